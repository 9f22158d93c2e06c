"""`loadax new`: the script that it writes runs, learns, and resumes."""

import ast
import json
import re
import runpy
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import zarr
from PIL import Image
from pyarrow import parquet

from loadax.cli import main


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write_table(path: str) -> None:
    x = np.random.default_rng(0).normal(size=(200, 2))
    columns = {"a": x[:, 0], "y": 2 * x[:, 0] - x[:, 1] + 3, "b": x[:, 1], "name": [str(row) for row in range(200)]}
    parquet.write_table(pa.table(columns), path)


def losses(printed: str) -> list[tuple[int, float]]:
    return [(int(step), float(loss)) for step, loss in re.findall(r"step (\d+): loss .*, held out (\S+)", printed)]


def run(capsys: Any) -> list[tuple[int, float]]:
    runpy.run_path("train.py", run_name="__main__")
    return losses(capsys.readouterr().out)


def test_script_of_a_table(folder: Path, capsys: Any) -> None:
    write_table("t.parquet")
    assert main(["new", "t.parquet", "train.py"]) == 0
    assert "train.py: written; run it with: python train.py" in capsys.readouterr().out
    text = Path("train.py").read_text()
    assert "['y'] from the other leaves" in text
    assert "'name'" not in text
    assert max(map(len, text.splitlines())) <= 120
    first = run(capsys)
    assert [step for step, _ in first] == [2, 4, 6]
    assert Path("train.checkpoint.npz").exists()  # each script has its own
    assert first[-1][1] < first[0][1]
    Path("train.py").write_text(text.replace("EPOCHS = 3", "EPOCHS = 4"))
    assert [step for step, _ in run(capsys)] == [8]  # goes on where the first run ended


def test_names_with_quotes_and_backslashes(folder: Path) -> None:
    for name in ('od\\d""".parquet', "\\N.parquet", 'end".parquet'):
        write_table(name)
        assert main(["new", name, f"{name}.py"]) == 0
        written = ast.parse(Path(f"{name}.py").read_text())
        assert (ast.get_docstring(written) or "").startswith(f"Trains on {name}. ")


@pytest.mark.parametrize("kind", ["documents", "tokens", "images", "npy"])
def test_other_data(kind: str, folder: Path, capsys: Any) -> None:
    options: list[str] = []
    match kind:
        case "documents":
            source = "d.jsonl"
            documents = [list(range(row % 60 + 1)) for row in range(800)]
            Path(source).write_text("".join(json.dumps({"tokens": tokens, "id": "x"}) + "\n" for tokens in documents))
        case "tokens":
            source, options = "c.bin", ["--seq-len", "16", "--dtype", "uint16"]
            np.arange(3000, dtype=np.uint16).tofile(source)
        case "images":
            source, options = "photos", ["--size", "8"]
            for name, red in (("cat", 200), ("dog", 20)):
                Path("photos", name).mkdir(parents=True)
                for number in range(20):
                    Image.new("RGB", (9 + number % 2, 9), (red, 3 * number, 0)).save(f"photos/{name}/{number}.png")
        case _:
            source = "x.npy"
            np.save(source, np.random.default_rng(0).normal(size=(100, 3)))
    assert main(["new", source, "train.py", *options]) == 0
    capsys.readouterr()
    if kind in ("tokens", "images"):  # the models of documents and tables
        compile(Path("train.py").read_text(), "train.py", "exec")
        return
    found = run(capsys)
    assert len(found) == 3
    assert found[-1][1] < found[0][1]


def test_script_of_a_function(folder: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("corpus_of_new.py").write_text(
        "import numpy, loadax\nx = numpy.arange(90.0)\ndef data(): return loadax.from_arrays({'x': x, 'y': x})\n"
    )
    monkeypatch.syspath_prepend(folder)
    assert main(["new", "corpus_of_new:data", "train.py"]) == 0
    text = Path("train.py").read_text()
    assert "\nimport corpus_of_new\nimport loadax\n" in text
    assert "\ndata = corpus_of_new.data()\n" in text
    sys.modules.pop("corpus_of_new")


def test_refusals_of_new(folder: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*arguments: str) -> str:
        assert main(["new", *arguments]) == 2
        return str(capsys.readouterr().err)

    write_table("t.parquet")
    Path("train.py").write_text("mine")
    assert "train.py can't be written: File exists; pass the path of a new file" in refused("t.parquet", "train.py")
    assert Path("train.py").read_text() == "mine"
    assert "no leaf has numbers, but ['name'] object" in refused("t.parquet", "a.py", "--columns", "name")
    Path("r.jsonl").write_text('{"x": [1.5], "y": [1]}\n{"x": [], "y": [1, 2]}\n')
    assert "rows differ in shape; pass" in refused("r.jsonl", "a.py", "--columns", "x")
    Path("n.jsonl").write_text('{"x": {"a": 1}}\n')
    assert "examples are not flat dicts, but have the leaves ['x']['a']" in refused("n.jsonl", "a.py")
    assert "nothing.npy does not exist" in refused("nothing.npy", "a.py")
    Path("stream_of_new.py").write_text(
        "import loadax\ndef data(): return loadax.from_stream(lambda lane, lanes: [{'x': 1.0}], lanes=1)\n"
    )
    monkeypatch.syspath_prepend(folder)
    assert "stream_of_new.data() is a stream, and the script needs random access" in refused("stream_of_new:data", "a")
    sys.modules.pop("stream_of_new")
    for name, rows in (("t2m", 6), ("latitude", 2)):
        zarr.create_array("w.zarr", name=name, data=np.zeros((rows, 2)))
    assert "dim 0 of every leaf must be equal (--columns)" in refused("w.zarr", "a.py")
    assert not Path("a.py").exists()
