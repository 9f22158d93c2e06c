"""The order in which threads read the lanes of a run."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from loadax import Dataloader, from_stream
from loadax.loader.execution.piece_size import PieceSizes
from loadax.loader.streams.run import OrderedReads, SkippedError
from loadax.protocols import Visits
from tests.limits import HANG


class Lanes:
    """A `StreamRun` that notes what is read. Reading of row `fails` waits for `go_on` and raises."""

    def __init__(self, fails: int | None = None):
        self.read_steps: list[tuple[int, bool]] = []
        self.go_on = threading.Event()
        self._fails = fails

    def read(self, step: int, last: bool, visits: Visits, out: None) -> tuple[Visits, list[Any]]:
        if self._fails in visits.rows:
            assert self.go_on.wait(HANG)
            raise OSError("no answer")
        self.read_steps.append((step, last))
        return visits, []


def visits(*rows: int) -> Visits:
    return Visits(np.array(rows, np.int64), np.zeros(len(rows), np.int64))


@pytest.mark.parametrize("rows", [0, 4])
def test_steps_are_read_in_order_also_by_a_process_without_rows(rows: int) -> None:
    lanes: Any = Lanes()
    reads = OrderedReads(lanes, 5, rows)
    pieces = [
        (5, 0, visits(*range(rows)), None),
        (6, 0, visits(*range(rows // 2)), None),
        (6, rows // 2, visits(*range(rows // 2)), None),
    ]
    expected = [(5, True), *([(6, False)] if rows else []), (6, True)]
    if not rows:
        del pieces[-1]
    with ThreadPoolExecutor(3) as pool:
        later = [pool.submit(reads.read, *piece) for piece in reversed(pieces[1:])]
        assert not any(each.done() for each in later)
        reads.read(*pieces[0])
        for each in later:
            each.result(HANG)
    assert lanes.read_steps == expected


def test_a_thread_that_waits_for_rows_that_fail_does_not_report_an_error_of_its_own() -> None:
    lanes: Any = Lanes(fails=1)
    reads = OrderedReads(lanes, 0, 4)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(reads.read, 0, 0, visits(0, 1), None)
        second = pool.submit(reads.read, 0, 2, visits(2, 3), None)
        lanes.go_on.set()
        with pytest.raises(SkippedError):
            second.result(HANG)
        with pytest.raises(OSError, match="no answer"):
            first.result(HANG)


def test_the_error_of_a_lane_comes_before_those_of_threads_that_wait_for_its_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(lane: int, lanes: int) -> Iterator[Any]:
        yield np.int32(lane)
        assert waiting.wait(HANG)
        raise OSError("no answer")

    waiting, closes, read = threading.Event(), OrderedReads.close, OrderedReads.read

    def notes(reads: OrderedReads, step: int, low: int, visits: Visits, out: Any) -> Any:
        if low:
            waiting.set()
        return read(reads, step, low, visits, out)

    def lets_others_go_first(reads: OrderedReads) -> None:
        closes(reads)
        time.sleep(0.05)

    monkeypatch.setattr(PieceSizes, "pieces", lambda *_: [(0, 4), (4, 8)])
    monkeypatch.setattr(OrderedReads, "read", notes)
    monkeypatch.setattr(OrderedReads, "close", lets_others_go_first)
    loader = Dataloader(from_stream(broken, lanes=4), 8, num_workers=2)
    with iter(loader) as batches, pytest.raises(OSError, match="no answer"):
        next(batches)
