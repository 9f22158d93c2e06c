"""Law: whatever fails, a run has the right rows, or masks what failed, or ends with an error that says where.

It never hangs, and no row is wrong, lost or there twice. `python -m tests.chaos` tries as many as wanted.
"""

import re
import subprocess
from collections import Counter

import pytest

from loadax.errors import SourceError
from tests.chaos import threads
from tests.chaos.judge import Count, rows_of, table, values_of
from tests.forkserver import Child
from tests.limits import HANG


def chaos(*options: str) -> str:
    with Child(["-m", "tests.chaos", *options], stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as child:
        told, _ = child.communicate(2 * HANG)
        assert child.wait() == 0, told
    return told


def faults(told: str) -> int:
    (line,) = re.findall(r"^\| all \| (.*) \|$", told, re.MULTILINE)
    fault_count, _, _, _, *wrong = (int(number.replace(",", "")) for number in line.split(" | "))
    assert wrong == [0, 0, 0, 0], told
    return fault_count


@pytest.mark.processes
def test_some_hundred_faults() -> None:
    """`.ci/run` injects thousands, and those of processes."""
    assert faults(chaos("--runs", "60", "--servers", "1", "--processes", "0")) >= 300


def test_the_judge_sees_what_is_wrong() -> None:
    rows = rows_of(6)
    count, ids = Count(), Counter[int]()
    batch = {"id": rows["id"][:4], "x": rows["x"][:4].copy()}
    count.batch(batch, ids)
    assert count.findings == 0
    batch["x"][1] += 1
    count.batch(batch, ids)
    assert count.wrong == 1
    count.epoch(ids, [1, 1, 2, 2, 3, 3, 4, 4])
    assert count.lost == 0
    count.epoch(ids, range(1, 7))
    assert count.lost == 6
    assert (values_of(rows["id"]) == rows["x"]).all()


def test_the_judge_knows_clear_errors() -> None:
    count = Count()
    count.error(SourceError("row 12 of a.npy is broken"), {"12"})
    count.error(threads.Broken("row 12"), {"12"}, threads.Broken)
    assert (count.errors, count.unclear) == (2, 0)
    count.error(SourceError("row 123 is broken"), {"12"})
    count.error(threads.Broken("row 12"), {"12"})
    count.error(KeyError(12), {"12"}, threads.Broken)
    assert (count.errors, count.unclear) == (2, 3)
    assert list(table({"a": count}))[-1] == "| all | 0 | 0 | 2 | 0 | 0 | 0 | 0 | 3 |"
