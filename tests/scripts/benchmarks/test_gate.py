"""The gate of benchmarks closes for one more copy of a batch, one more request a file, and a search for each row."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.limits import HANG
from tests.scripts.benchmarks.scripts import FOLDER, load

# Counts two workloads, then each again with a regression.
_PROGRAM = f"""
import json, sys
sys.path.insert(0, {str(FOLDER)!r})
import gate
from loadax.files.remote import RemoteFiles
from loadax.loader.assembly.assembler import _PieceView

table = {{name: gate.measure(name) for name in ("arrays", "bucket")}}
again = {{name: gate.measure(name) for name in table}}
found = [gate.compare(table, again)]
_PieceView.destination = lambda *_: None  # rows are read into an array of their own, and copied
found.append(gate.compare(table, {{"arrays": gate.measure("arrays")}}))
read = RemoteFiles.read

def reads(files, ranges, *others, **named):
    files.look_up([part.location for part in ranges])  # asks for the size of each file
    return read(files, ranges, *others, **named)

RemoteFiles.read = reads
found.append(gate.compare(table, {{"bucket": gate.measure("bucket")}}))
print(json.dumps(found))
"""

# Reads rows between marks, after once that counts for nothing, and then with a regression that calls no function and
# takes no memory. No loader, since JAX takes ten seconds to import below valgrind.
_SEARCH = f"""
import sys
sys.path.insert(0, {str(FOLDER)!r})
import gate_instructions
import numpy as np
import loadax
from loadax.sources.memory_array import MemoryArray

rows = loadax.from_arrays(np.arange(4096 * 64).reshape(4096, 64)).shuffle(seed=0)
mark = gate_instructions.marks()

def read(name):
    rows.read(range(128))
    mark(name, "begin")
    for step in range(1, 9):
        rows.read(range(step * 128, step * 128 + 128))
    mark(name, "end")

read("first")
read("before")
read("again")
read_into = MemoryArray.read_into
known = [-1] * 64

def searched(array, rows, columns, out):
    for row in rows:
        if row in known:
            break
    read_into(array, rows, columns, out)

MemoryArray.read_into = searched
read("searched")
"""


def test_gate_fails_for_a_copy_of_a_batch_and_a_request_a_file() -> None:
    # a process of its own, since the clock must be there before loadax is imported
    command = [sys.executable, "-c", _PROGRAM]
    run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=HANG)
    assert run.returncode == 0, run.stderr
    clean, copied, asked = json.loads(run.stdout.splitlines()[-1])
    assert clean == []
    assert any(line.startswith("arrays: allocated has grown") for line in copied), copied
    assert asked == ["bucket: requests at start has grown from 21 to 37"]  # there are 16 files


@pytest.mark.skipif(not all(map(shutil.which, ("valgrind", "cc"))), reason="instructions need valgrind and cc")
def test_instructions_show_a_search_for_each_row() -> None:
    program = load("gate_instructions")
    assert program.missing() == ""
    counts = program.count([sys.executable, "-c", _SEARCH])
    before = counts["before"]
    assert abs(counts["again"] - before) < 0.01 * before, counts
    table = {"rows": {"instructions": before}}
    assert load("gate_table").compare(table, {"rows": {"instructions": counts["searched"]}}) == [
        f"rows: instructions has grown from {before:g} to {counts['searched']:g}"
    ]
    with pytest.raises(RuntimeError, match="no such workload"):
        program.count([sys.executable, "-c", "raise SystemExit('no such workload')"])


def test_gate_says_which_programs_it_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert load("gate_instructions").missing() == "valgrind and cc"


def test_gate_has_a_table_of_all_its_workloads() -> None:
    table = json.loads((FOLDER / "gate.json").read_text("utf-8"))
    assert {"why", "loadax", "python", "counts"} == set(table[-1]) - {"machine code"}  # recorded with valgrind
    text = Path(FOLDER, "gate.py").read_text("utf-8")
    assert set(table[-1]["counts"]) == {line.split('"')[1] for line in text.splitlines() if ": Workload(" in line}


@pytest.mark.parametrize(
    ("count", "grown"),
    [(104.0, []), (106.0, ["x: calls has grown from 100 to 106"]), (90.0, [])],
)
def test_gate_lets_five_per_cent_pass(count: float, grown: list[str]) -> None:
    program = load("gate_table")
    assert program.compare({"x": {"calls": 100.0}}, {"x": {"calls": count}}) == grown
    assert program.compare({}, {"x": {"calls": 1.0}}) == ["x: calls is 1, and not in the table"]
    assert program.compare({"x": {"system": 0.0}}, {"x": {"system": 0.4}}) == []
