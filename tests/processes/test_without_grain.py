"""Where neither grain nor array-record can be imported, all that needs neither works, and the rest names them."""

import os
import subprocess
import sys
from pathlib import Path

from tests.limits import HANG
from tests.release.pages import example
from tests.release.versions import block

ROOT = Path(__file__).parents[2]
CORE = ("tests/test_reader.py", "tests/plan/test_shuffle.py")
"""Few of the tests: `python -m tests.release blocked` runs more."""

_PROGRAM = """
import numpy as np
import loadax
from loadax.errors import UnsupportedError

def double(row):
    return row * 2

def message(opened):
    try:
        opened()
    except UnsupportedError as error:
        return str(error)

def interop():
    import loadax.interop.grain

if __name__ == "__main__":
    np.arange(64, dtype=np.uint16).tofile("tokens.bin")
    data = loadax.from_tokens("tokens.bin", 7, dtype="uint16").shuffle(0)
    assert len(data.read([0, 1])["tokens"]) == 2
    rows = loadax.as_dataset([np.arange(4)] * 8).map(double)
    loader = loadax.Dataloader(rows, 8, num_epochs=2, num_workers=1, worker_type="process")
    assert [batch.tolist() for batch in loader] == [[[0, 2, 4, 6]] * 8] * 2
    assert loadax.from_grain([1, 2, 3])[2] == 3  # a data source of Grain is any object with rows
    open("words.array_record", "wb").write(bytes(100))
    print(message(lambda: loadax.from_array_record("words.array_record")))
    print(message(interop))
"""


def run(folder: Path, *arguments: str, cwd: Path) -> str:
    """The output of Python where the two packages are blocked."""
    block(folder)
    settings = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)])}
    ended = subprocess.run(
        [sys.executable, *arguments], cwd=cwd, env=settings, capture_output=True, text=True, check=False, timeout=HANG
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def test_data_is_read_without_grain_and_array_record(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(example() + _PROGRAM)
    lines = run(tmp_path, "program.py", cwd=tmp_path).splitlines()
    needs = "needs {0}, which can't be imported (No module named '{1}'): pip install {0}"
    assert lines == [
        "an ArrayRecord file " + needs.format("array-record", "array_record"),
        "loadax.interop.grain " + needs.format("grain", "grain"),
    ]


def test_core_of_the_tests_passes_without_grain_and_array_record(tmp_path: Path) -> None:
    chosen = ("-n", "0", "-q", "--hypothesis-profile=dev", "-p", "no:cacheprovider", "-x")
    assert " passed" in run(tmp_path, "-m", "pytest", *chosen, *CORE, cwd=ROOT)
