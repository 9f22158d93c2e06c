"""`loadax index`: what it builds is what a run then reads."""

import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from loadax import from_jsonl, from_npy, from_zarr
from loadax.writing.write import write_zarr
from tests.cli.conftest import Command
from tests.limits import HANG
from tests.writing.rows import TreeRows

QUALITY = '''
import loadax
import numpy as np

LIMIT = 10

def is_good(example):
    """Whether to train on it."""
    return helper(example)

def helper(example):
    return bool(example > LIMIT)

def group(example):
    return int(example) // 3

def twice():
    return loadax.from_npy("x.npy").map(double)

def double(example):
    return example * 2

class Opaque:
    def __call__(self, example):
        return True

opaque = Opaque()

def documents():
    return loadax.from_source([np.arange(length) for length in (3, 0, 5, 2)])

def opaque_documents():
    return documents().map(opaque_map)

opaque_map = type("Tokenizer", (), {"__call__": lambda self, example: example})()
'''


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])
    Path("index_quality.py").write_text(QUALITY)
    np.save("x.npy", np.arange(30))
    yield
    sys.modules.pop("index_quality", None)


def read_only(log: pytest.LogCaptureFixture) -> bool:
    """Whether the last run found all that its index keeps."""
    return {record.getMessage().rpartition(": ")[2] for record in log.records} == {"read"}


def test_a_filter(command: Command, caplog: pytest.LogCaptureFixture) -> None:
    done = command("index", "x.npy", "--filter", "index_quality:is_good", "--out", "good", "--workers", 2)
    assert done == (0, "good: keeps 19 of 30 rows\n", f"loadax: index {Path('good').absolute()}/filter.json: written\n")
    assert command("index", "x.npy", "--filter", "index_quality:is_good", "--out", "good").err.endswith(
        "good/filter.json: read\n"
    )
    quality = sys.modules["index_quality"]
    caplog.clear()
    caplog.set_level(logging.INFO, "loadax")
    assert len(from_npy("x.npy").shuffle(0).filter(quality.is_good, index="good")) == 19
    assert read_only(caplog)


def test_groups_by_function_and_by_leaf(command: Command, caplog: pytest.LogCaptureFixture) -> None:
    write_zarr(TreeRows({"user": np.arange(40) // 4, "x": np.arange(40)}), "s")
    assert command("index", "s", "--split-by", "user", "--out", "users").out == "users: knows the groups of 40 rows\n"
    assert command("index", "s", "--split-by", "user", "--variables", "user", "--out", "others").code == 0
    assert (
        command("index", "x.npy", "--split-by", "index_quality:group", "--out", "groups").out
        == "groups: knows the groups of 30 rows\n"
    )
    caplog.clear()
    caplog.set_level(logging.INFO, "loadax")
    from_zarr("s").split_by("user", 0.8, 3, index="users")
    assert read_only(caplog)


def test_a_dataset_of_a_function(command: Command) -> None:
    done = command("index", "index_quality:twice", "--filter", "index_quality:is_good", "--out", "good")
    assert (done.code, done.out) == (0, "good: keeps 24 of 30 rows\n")


def test_a_key_for_what_can_not_be_recognised(command: Command) -> None:
    failed = command("index", "x.npy", "--filter", "index_quality:opaque", "--out", "i")
    assert (failed.code, failed.out) == (2, "")
    assert "loadax: error: i was not written: changes of the function can't be detected; pass --key\n" in failed.err
    assert command("index", "x.npy", "--filter", "index_quality:opaque", "--out", "i", "--key", "v1").code == 0


def test_lengths_of_documents_serve_every_plan(command: Command, caplog: pytest.LogCaptureFixture) -> None:
    done = command("index", "index_quality:documents", "--pack", 4, "--out", "lengths")
    assert (done.code, done.out) == (0, "lengths: packs 4 documents into 3 rows\n")
    caplog.clear()
    caplog.set_level(logging.INFO, "loadax")
    documents = sys.modules["index_quality"].documents
    documents().pack(4, index="lengths")
    documents().pack(8, method="best_fit", index="lengths")
    entries = [record.getMessage().split("/")[-1] for record in caplog.records if "index " in record.getMessage()]
    assert entries[:3] == ["lengths.json: read", "split-4-error-0.json: read", "lengths.json: read"]


def test_key_for_maps_before_pack(command: Command) -> None:
    failed = command("index", "index_quality:opaque_documents", "--pack", 4, "--out", "i")
    assert failed.code == 2
    assert "loadax: error: i was not written: changes of the function can't be detected; pass --key\n" in failed.err
    assert command("index", "index_quality:opaque_documents", "--pack", 4, "--out", "i", "--key", "v1").code == 0


def test_records_of_json_lines(command: Command, caplog: pytest.LogCaptureFixture) -> None:
    Path("a.jsonl").write_text('{"x": 1}\n{"x": 2}\n')
    done = command("index", "a.jsonl", "--records", "--out", "records")
    assert (done.code, done.out) == (0, "records: knows the records of 2 rows\n")
    caplog.clear()
    caplog.set_level(logging.INFO, "loadax")
    from_jsonl("a.jsonl", index="records")
    assert read_only(caplog)


@pytest.mark.processes
@pytest.mark.parametrize("executor", ["processes:2", "threads:2"])
def test_executor_builds_the_same_index(executor: str, command: Command) -> None:
    """Processes of a pool import the program, but do not run its command again."""
    source = ["index", "x.npy", "--filter", "index_quality:is_good"]
    program = [sys.executable, "-m", "loadax", *source, "--executor", executor, "--out", "pool"]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    said = subprocess.run(program, env=environment, capture_output=True, text=True, timeout=HANG, check=True)
    assert said.stdout == "pool: keeps 19 of 30 rows\n"
    assert said.stderr.count("written") == 1
    assert command(*source, "--out", "threads").code == 0
    assert [path.read_bytes() for path in Path("pool").glob("*.npy")] == [
        path.read_bytes() for path in Path("threads").glob("*.npy")
    ]


def test_executor_of_every_pass(command: Command) -> None:
    for arguments in (["x.npy", "--split-by", "index_quality:group"], ["index_quality:documents", "--pack", 4]):
        assert command("index", *arguments, "--out", f"by {arguments[1]}", "--executor", "threads:2").code == 0


def test_executor_finds_records(command: Command) -> None:
    Path("b.jsonl").write_bytes(b'{"x": 1}\n{"x": 2}\n')
    done = command("index", "b.jsonl", "--records", "--out", "i", "--executor", "threads:2")
    assert (done.code, done.out) == (0, "i: knows the records of 2 rows\n")
    command("index", "b.jsonl", "--records", "--out", "threads")
    assert {path.name: path.read_bytes() for path in Path("i").iterdir()} == {
        path.name: path.read_bytes() for path in Path("threads").iterdir()
    }
