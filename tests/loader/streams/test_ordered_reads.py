"""Threads read the lanes of a run at the same time, each lane one at a time and in the order of the steps."""

import random
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count, pairwise
from time import perf_counter
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from loadax import Dataloader, from_stream
from loadax.loader.execution.piece_size import PieceSizes
from loadax.loader.slots import SkippedError
from loadax.loader.streams.ordered_reads import OrderedReads, PieceOfStreams
from loadax.loader.streams.tickets import LaneTickets, PieceTickets
from loadax.protocols import Visits
from loadax.sources.stream.lane import Lane
from tests.limits import HANG, until
from tests.streams import expected_steps, row_of


def loader(open_lane: Any, lanes: int, batch_size: int, **options: Any) -> Dataloader:
    spec = {"x": np.int32(0)}
    return Dataloader(
        from_stream(open_lane, lanes=lanes, spec=spec), batch_size, shard_index=0, shard_count=1, **options
    )


def pieces_of(monkeypatch: pytest.MonkeyPatch, *bounds: int) -> None:
    """Splits every step at these rows."""
    monkeypatch.setattr(PieceSizes, "pieces", lambda *_: list(pairwise(bounds)))


def rows(lane: int, lanes: int) -> Iterator[Any]:
    return ({"x": np.int32(row_of(lane, row))} for row in count())


@pytest.mark.parametrize("maps", [False, True])
@pytest.mark.parametrize(
    ("batch_size", "bounds", "places"),
    [
        (8, (0, 4, 8), [(0, 0), (1, 0)]),
        (8, (0, 8), [(2, 0), (0, 2)]),  # lane 2 comes behind lane 0
        (2, (0, 2), [(0, 0), (2, 0)]),
    ],
    ids=["two pieces of a step", "two steps with all lanes", "two steps with lanes of their own"],
)
def test_lanes_are_read_at_the_same_time(
    monkeypatch: pytest.MonkeyPatch, batch_size: int, bounds: tuple[int, ...], places: list[tuple[int, int]], maps: bool
) -> None:
    met = threading.Barrier(2)

    def meets(lane: int, lanes: int) -> Iterator[Any]:
        for row, value in enumerate(rows(lane, lanes)):
            if (lane, row) in places:
                met.wait(HANG)  # each waits until the other one is read too
            yield value

    pieces_of(monkeypatch, *bounds)
    data = from_stream(meets, lanes=4, spec={"x": np.int32(0)})
    data = data.map(lambda row: row, spec={"x": np.int32(0)}) if maps else data
    given = Dataloader(data, batch_size, shard_index=0, shard_count=1, num_epochs=None, num_workers=2)
    with given.host_batches() as batches:
        steps = [next(batches)["x"].tolist() for _ in range(4)]
    assert steps == expected_steps([100] * 4, batch_size, "drop")[:4]


def test_pieces_that_share_a_lane_are_read_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each begins with the lane that the one before ends with: they do not wait for each other in a row."""
    met = threading.Barrier(3)

    def meets(lane: int, lanes: int) -> Iterator[Any]:
        if lane in (1, 3, 5):  # within the first, the second and the third piece
            met.wait(HANG)
        yield from rows(lane, lanes)

    lanes, batch_size = 6, 24
    values = expected_steps([batch_size] * lanes, batch_size, "drop")[0]
    places = {lane: place for place, lane in enumerate(dict.fromkeys(value // 1000 for value in values))}
    pieces_of(monkeypatch, 0, 10, 18, 24)
    given = loader(lambda lane, lanes: meets(places[lane], lanes), lanes, batch_size, num_workers=3, num_epochs=None)
    with given.host_batches() as batches:
        assert len(next(batches)["x"]) == batch_size


@pytest.mark.parametrize("remainder", ["drop", "pad"])
@pytest.mark.parametrize("batch_size", [5, 12, 32])
def test_a_lane_is_read_by_one_thread_at_a_time_and_in_order(
    monkeypatch: pytest.MonkeyPatch, batch_size: int, remainder: str
) -> None:
    numbers = random.Random(batch_size)
    lengths = [numbers.randrange(20, 60) for _ in range(5)]
    read_now: set[int] = set()

    def lane_of(lane: int, lanes: int) -> Iterator[Any]:
        for row in range(lengths[lane]):
            assert lane not in read_now, "two threads read a lane"
            read_now.add(lane)
            time.sleep(numbers.random() * 0.0005)
            read_now.remove(lane)
            yield {"x": np.int32(row_of(lane, row))}

    def pieces(*_: Any) -> list[tuple[int, int]]:
        bounds = sorted({0, batch_size, *(numbers.randrange(1, batch_size) for _ in range(3))})
        return list(pairwise(bounds))

    monkeypatch.setattr(PieceSizes, "pieces", pieces)
    data = from_stream(lane_of, lanes=5, spec={"x": np.int32(0)})
    options: Any = {"remainder": remainder, "num_workers": 4}
    with Dataloader(data, batch_size, shard_index=0, shard_count=1, **options).host_batches() as batches:
        steps = [
            [int(x) if real else -1 for x, real in zip(batch["x"], batch.get("mask", np.ones(batch_size)), strict=True)]
            for batch in batches
        ]
    assert steps == expected_steps(lengths, batch_size, remainder)


def test_a_step_that_is_read_before_an_earlier_one_waits_for_it() -> None:
    """Each step has a lane of its own, and the first one is late."""
    others = threading.Event()

    def late(lane: int, lanes: int) -> Iterator[Any]:
        for row in range(2):
            if lane == 0 and row == 0:
                assert others.wait(HANG)
            if lane == 3:
                others.set()  # three later steps were read
            yield {"x": np.int32(row_of(lane, row))}

    with loader(late, 4, 1, num_workers=2).host_batches() as batches:
        assert [batch["x"].tolist() for batch in batches] == expected_steps([2] * 4, 1, "drop")


def test_an_error_comes_behind_the_steps_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lane has failed in the second step while another one is still read for the first step."""
    failed = threading.Event()

    def fails(lane: int, lanes: int) -> Iterator[Any]:
        if lane == 0:
            assert failed.wait(HANG)
            yield from rows(lane, lanes)
        yield {"x": np.int32(row_of(lane, 0))}
        failed.set()
        raise OSError("no answer")

    pieces_of(monkeypatch, 0, 1, 2)
    with loader(fails, 2, 2, num_workers=3).host_batches() as batches:
        assert next(batches)["x"].tolist() == [row_of(0, 0), row_of(1, 0)]
        with pytest.raises(OSError, match="no answer") as caught:
            next(batches)
    assert "loadax: reading row 1 of lane 1" in caught.value.__notes__
    assert "loadax: in step 1" in caught.value.__notes__


def test_the_error_of_a_lane_comes_before_those_of_threads_that_wait_for_its_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(lane: int, lanes: int) -> Iterator[Any]:
        yield {"x": np.int32(lane)}
        if lane == 0:
            until(lambda: waiting)
            raise OSError("no answer")
        yield from rows(lane, lanes)

    waiting = noted_waiting(monkeypatch)
    pieces_of(monkeypatch, 0, 3, 8)  # lane 0 is in both
    with loader(broken, 2, 8, num_workers=2).host_batches() as batches, pytest.raises(OSError, match="no answer"):
        next(batches)


def noted_waiting(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """When a thread begins to wait for a lane, and when it is skipped."""
    noted: list[str] = []
    wait = LaneTickets.wait

    def notes(tickets: LaneTickets, piece: int, turn: Any, has_come: Any) -> None:
        noted.extend(["waits"] * isinstance(turn[0], Lane))
        try:
            wait(tickets, piece, turn, has_come)
        except SkippedError:
            noted.append("skipped")
            raise

    monkeypatch.setattr(LaneTickets, "wait", notes)
    return noted


def test_closing_ends_the_waiting_for_a_lane(monkeypatch: pytest.MonkeyPatch) -> None:
    go_on = threading.Event()

    def stuck(lane: int, lanes: int) -> Iterator[Any]:
        if lane == 0:
            assert go_on.wait(HANG)
        yield from rows(lane, lanes)

    noted = noted_waiting(monkeypatch)
    pieces_of(monkeypatch, 0, 3, 8)  # lane 0 is in both
    batches = loader(stuck, 2, 8, num_workers=2, num_epochs=None).host_batches()
    until(lambda: noted == ["waits"])
    closing = threading.Thread(target=batches.close)
    closing.start()
    until(lambda: noted == ["waits", "skipped"])  # while the lane is still read
    go_on.set()
    closing.join(HANG)
    assert not closing.is_alive()


@pytest.mark.parametrize("rows_per_step", [0, 2])
def test_steps_are_finished_in_order_also_by_a_process_without_rows(rows_per_step: int) -> None:
    class Run:
        """A `StreamRun` without lanes, that notes which steps are finished."""

        def begin(self, step: int) -> None:
            self.finished: list[int] = []

        def locate(self, rows: Any) -> list[Any]:
            return []

        def read(self, located: Any, turns: Any, visits: Visits, out: Any) -> PieceOfStreams:
            return PieceOfStreams(visits, bool(rows_per_step), "", [])

        def finish(self, step: int, present: bool, ended_lane: str) -> None:
            assert present == bool(rows_per_step)
            self.finished.append(step)

    run: Any = Run()
    reads = OrderedReads(run, 5, rows_per_step)
    visits = Visits(np.zeros(rows_per_step, np.int64), np.zeros(rows_per_step, np.int64))
    with ThreadPoolExecutor(2) as pool:
        later = pool.submit(reads.read, 6, 0, visits, None)
        assert not later.done()
        reads.read(5, 0, visits, None)
        later.result(HANG)
    assert run.finished == [5, 6]


def test_a_skipped_piece_waits_no_longer_and_those_before_it_do() -> None:
    tickets = LaneTickets()
    tickets.skip(3)
    for piece in (3, 4):
        with pytest.raises(SkippedError):
            tickets.wait(piece, "turn", lambda: pytest.fail("it is skipped"))
    answers = iter([True])
    tickets.wait(2, "turn", lambda: next(answers))
    assert list(answers) == []


def test_the_wait_for_a_lane_is_counted() -> None:
    """It is no time of reading."""
    tickets, lane = LaneTickets(), Mock(serving=0)
    served = threading.Timer(0.05, tickets.serve_next, [lane])
    served.start()
    piece = PieceTickets(tickets, 1)
    assert list(piece.in_turn([lane], [1])) == [0]
    assert 0 < piece.waited < HANG
    assert lane.serving == 2


def test_reading_time_excludes_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A report that counted the waits would call the lanes slow."""
    wait = 0.05
    monkeypatch.setattr(LaneTickets, "wait", lambda *_: time.sleep(wait))

    def read(located: Any, tickets: PieceTickets, visits: Visits, out: Any) -> PieceOfStreams:
        assert list(tickets.in_turn([Mock(serving=0)], [1])) == [0]
        return PieceOfStreams(visits, True, "", [])

    reads = OrderedReads(Mock(read=read), 0, 1)
    began = perf_counter()
    timing = reads.read(0, 0, Visits(np.zeros(1, np.int64), np.zeros(1, np.int64)), None).timing
    elapsed = perf_counter() - began
    assert 0 <= timing.read <= elapsed - 2 * wait  # for its turn to take tickets, and for the lane
