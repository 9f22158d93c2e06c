"""Prefetching within its limits, in order, by any free worker."""

import threading
from typing import Any

import jax
import numpy as np
import pytest

from loadax import Dataloader, from_arrays, from_source
from loadax.errors import HostError
from loadax.protocols import ArraySpec, Integers
from tests.clocks import Machine
from tests.limits import HANG, until


class Watched:
    """Rows that are their number.

    Says which were asked for, how many reads run at once, and holds up those of a chosen row.
    """

    spec = ArraySpec((256,), np.dtype(np.int32))

    def __init__(self) -> None:
        self.seen: set[int] = set()
        self.later: set[int] = set()  # asked for while a read was held up
        self.held: int | None = None
        self.waiting, self.go = threading.Event(), threading.Event()

    def __len__(self) -> int:
        return 8000

    def read(self, rows: Integers) -> Any:
        self.seen |= set(rows.tolist())
        self.later |= set(rows.tolist()) if self.waiting.is_set() else set()
        if self.held in rows:
            self.waiting.set()
            assert self.go.wait(HANG)
        return np.repeat(rows.astype(np.int32)[:, None], 256, axis=1)


STEP = 8 * 1024  # bytes of a step of 8 rows


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize(("depth", "budget"), [(1, 1), (2, 4 * STEP), (8, STEP)])
def test_no_more_is_read_ahead_than_allowed(
    workers: int, depth: int, budget: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine(monkeypatch)
    source = Watched()
    with iter(
        Dataloader(from_source(source), 8, num_workers=workers, prefetch=depth, prefetch_bytes=budget)
    ) as batches:
        for taken in (0, 1, 30):
            while batches.step < taken:
                next(batches)
            machine.sleep(10.0)  # once nobody has anything left to do
            steps = -(-len(source.seen) // 8)
            # Placed ones, those within the budget (one run is always allowed), and what was handed out.
            assert steps - taken <= depth + max(1, budget // STEP)
            assert steps > taken
            assert batches.stats().ready <= depth


def test_nothing_is_read_ahead_without_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    # Steps that take less than half of it are read in pairs, as some do on a machine that is quick at the moment.
    monkeypatch.setattr("loadax.loader.execution.piece_size.ALONE_TARGET", 0.0)
    source = Watched()
    with iter(Dataloader(from_source(source), 8, num_workers=0, prefetch=4)) as batches:
        for step in range(5):
            next(batches)
            assert len(source.seen) == 8 * (step + 1)


def test_a_slow_piece_holds_up_no_reader_and_no_order() -> None:
    source = Watched()
    source.held = 9
    with iter(Dataloader(from_source(source), 8, num_workers=2, prefetch=2)) as batches:
        first = int(next(batches)[0, 0])
        assert source.waiting.wait(HANG)
        rest: list[int] = []
        consumer = threading.Thread(target=lambda: rest.extend(int(next(batches)[0, 0]) for _ in range(20)))
        consumer.start()  # one that waits: for one that does not, nobody need hurry
        until(lambda: source.later)  # others are read meanwhile
        source.go.set()
        consumer.join(HANG)
    assert [first, *rest] == [8 * step for step in range(21)]


def test_jitted_steps_beside_prefetching_threads() -> None:
    """The background never runs a collective or a jit, so training's own ones meet nothing."""
    loader = Dataloader(from_source(Watched()), 8, num_workers=3, prefetch=4)
    step = jax.jit(lambda total, batch: total + batch.sum())
    random = np.random.default_rng(0)
    total = 0
    with loader.iterate(900) as batches:
        for batch in batches:
            total = step(total, batch)
            if random.random() < 0.2:
                jax.block_until_ready(total)  # so that they get ahead
    assert int(total) == 256 * sum(range(7200, 8000))


def test_an_error_of_this_process_comes_before_those_of_others() -> None:
    def broken(row: Any) -> Any:
        if row["x"] == 9:
            raise ZeroDivisionError("row 9")
        return row

    data = from_arrays({"x": np.arange(32)}).map(broken)
    with iter(Dataloader(data, 8, num_workers=1)) as batches:
        next(batches)
        scheduler = batches._stretch.scheduler
        until(lambda: scheduler._groups and scheduler._groups[0].error is not None)
        scheduler.abort(HostError("process 1 ended before step 1 with ZeroDivisionError: row 9"))
        with pytest.raises(ZeroDivisionError, match="row 9"):
            next(batches)
