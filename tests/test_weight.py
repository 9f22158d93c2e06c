"""What the smallest programs import: a newcomer reads no more than that to follow one of them.

A limit that is exceeded tells that a room is imported where it is not called. Import it in the verb, opener or option
that needs it; `python -X importtime` shows who imports it first.
"""

import io
import json
import os
import subprocess
import sys
import tokenize
from pathlib import Path
from typing import NamedTuple

import h5py
import pytest

from tests.limits import HANG
from tests.sources.sparse.matrices import matrix, write_group

ROOT = Path(__file__).parents[1]
# Packages that no program needs before it opens a store or asks for a library. JAX itself imports cloudpickle.
HEAVY = (
    "tensorstore",
    "grain",
    "array_record",
    "obstore",
    "pandas",
    "pyarrow",
    "datasets",
    "cv2",
    "PIL",
    "av",
    "soundfile",
    "tqdm",
)

_ARRAYS = "data = loadax.from_arrays({'x': np.arange(64.0)}).shuffle(seed=0).map(lambda row: row)\n"
_TOKENS = """
np.arange(6400, dtype=np.uint16).tofile("tokens.bin")
data = loadax.from_tokens("tokens.bin", seq_len=9, dtype="uint16").shuffle(seed=0)
"""
_PARQUET = """
import pyarrow as pa
from pyarrow import parquet
parquet.write_table(pa.table({"x": np.arange(64.0)}), "numbers.parquet")
data = loadax.from_parquet("numbers.parquet").shuffle(seed=0)
"""
_READ = "data.read(range(8))\n"
# Every verb of data in memory, none of which needs a store or a library.
_VERBS = """
data = loadax.from_arrays({"x": np.arange(64.0), "group": np.arange(64) // 4})
data.map(lambda row: row).filter(lambda row: row["x"] > 3).split(0.5)
data.split_by("group", 0.5)
data.shuffle(seed=1, block=4).repeat(2).subset_per_epoch([1])
data.select([1, 2, 3])[1:].exclude([1])
data.sample(np.ones(64))
data.keep("x").rename({"x": "y"})
data.windows(3)[0]
data.windows(3, within="group", pad="edge")[0]
data.split(0.5, by="group")[0].shuffle(0, by=data.split(0.5, by="group")[0].offsets())[0]
data.sample(np.ones(16), by="group")[0]
data.flat_map(lambda row: [row, row], fan_out=2)[0]
loadax.concat([data, data])[0], loadax.mix([data, data], [1, 2])[0], loadax.zip((data, data))[0]
documents = loadax.from_source([np.arange(3)] * 4)
documents.pack(8)[0], documents.group(8, len)[0], documents.pad(8)[0]
documents.to_stream(4).pack(8)
"""
_TRAIN = "for batch in loadax.Dataloader(data, 8, num_epochs=1): pass\n"
_IN_PROCESSES = _TRAIN.replace("8,", "8, num_workers=2, worker_type='process',")
_REPORT = """
paths = [getattr(module, "__file__", None) for name, module in sys.modules.items() if name.split(".")[0] == "loadax"]
print("REPORT", json.dumps([sorted({path for path in paths if path and path.endswith(".py")}), sorted(sys.modules)]))
"""


class Weight(NamedTuple):
    """Most that a program imports.

    Args:
        program: The program.
        files: Files of loadax.
        tokens: Tokens of their code, without docstrings and comments.
        heavy: Packages of `HEAVY` that it may import.
    """

    program: str
    files: int
    tokens: int
    heavy: tuple[str, ...] = ()


# Rooms of features that none of these programs asks for.
ASKED_FOR = (
    "loadax/sources/lerobot/",
    "loadax/sources/sparse/",
    "loadax/packing/",
    "loadax/pictures/",
    "loadax/loader/device/",
    "loadax/loader/inspection/",
)

# Some 5 % above what is reached.
WEIGHTS = {
    "described arrays": Weight(_ARRAYS, 36, 41_000),
    "read arrays": Weight(_ARRAYS + _READ, 38, 43_000),
    "read tokens": Weight(_TOKENS + _READ, 50, 53_000),
    "read parquet": Weight(_PARQUET + _READ, 66, 69_000, ("pyarrow", "pandas")),
    "arrays": Weight(_ARRAYS + _TRAIN, 96, 95_500),
    "processes": Weight(_ARRAYS + _IN_PROCESSES, 121, 112_000),
    "tokens": Weight(_TOKENS + _TRAIN, 109, 104_500),
    "parquet": Weight(_PARQUET + _TRAIN, 124, 120_000, ("pyarrow", "pandas")),
}


def count_tokens(path: str) -> int:
    """Number of tokens of a file's code, without comments and docstrings."""
    layout = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING}
    source = Path(path).read_text(encoding="utf-8")
    count, begins_statement = 0, True
    formatted = 0  # f-strings that are open: one token in Python 3.11, and many from 3.12 on
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        is_docstring = begins_statement and token.type == tokenize.STRING
        if token.type in layout or token.type == tokenize.ENDMARKER:
            begins_statement = begins_statement or token.type == tokenize.NEWLINE
            continue
        begins_statement = False
        name = tokenize.tok_name[token.type]
        formatted -= name == "FSTRING_END"
        count += not is_docstring and not formatted and name != "FSTRING_END"
        formatted += name == "FSTRING_START"
    return count


def imported_by(program: str, folder: Path) -> tuple[list[str], list[str]]:
    """Paths of the files of loadax, and names of all modules, that a program in a new process imports."""
    begin = "import json, sys\nimport numpy as np\nimport loadax\nif __name__ == '__main__':\n"
    body = "".join(f"    {line}\n" for line in (program + _REPORT).splitlines())
    script = folder / "program.py"
    script.write_text(begin + body, encoding="utf-8")
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, script.name]
    run = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=HANG
    )
    reports = [line.removeprefix("REPORT ") for line in run.stdout.splitlines() if line.startswith("REPORT ")]
    assert len(reports) == 1, run.stderr
    paths, modules = json.loads(reports[0])
    return paths, modules


@pytest.mark.processes
@pytest.mark.parametrize("name", WEIGHTS)
def test_program_imports_only_the_rooms_that_it_uses(name: str, tmp_path: Path) -> None:
    weight = WEIGHTS[name]
    paths, modules = imported_by(weight.program, tmp_path)
    names = [Path(path).relative_to(ROOT).as_posix() for path in paths]
    assert {*HEAVY} & {*modules} <= {*weight.heavy}
    assert not [path for path in names if path.startswith(ASKED_FOR)]
    assert len(names) <= weight.files, names
    assert sum(map(count_tokens, paths)) <= weight.tokens, names


def test_docstrings_and_comments_are_no_tokens(tmp_path: Path) -> None:
    path = tmp_path / "example.py"
    path.write_text('"""A module."""\n\n\ndef one():  # of two\n    """Returns one."""\n    return "one"\n')
    assert count_tokens(str(path)) == len(["def", "one", "(", ")", ":", "return", '"one"'])


@pytest.mark.processes
def test_verbs_of_data_in_memory_import_neither_jax_nor_other_libraries(tmp_path: Path) -> None:
    _, modules = imported_by(_VERBS, tmp_path)
    assert {"jax", "jaxlib", *HEAVY} & {*modules} == set()


@pytest.mark.processes
def test_h5ad_files_are_read_without_anndata_and_jax(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.h5ad", "w") as file:
        file.attrs["encoding-type"] = "anndata"
        write_group(file.create_group("X"), matrix())
    _, modules = imported_by("loadax.from_sparse('x.h5ad', dense=True).read(range(8))\n", tmp_path)
    assert "h5py" in modules
    assert {"anndata", "jax", "scipy", *HEAVY} & {*modules} == set()
