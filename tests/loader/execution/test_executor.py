"""Batches don't depend on the executor, and each event is reported once."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, nullcontext
from typing import Any

import jax
import numpy as np
import pytest

from loadax import Dataloader, from_arrays
from loadax.core.context import Caller
from loadax.loader.assembly.assembler import FillOptions, Piece
from loadax.loader.assembly.buffer_layout import BatchBuffers
from loadax.loader.execution.executor import ThreadExecutor, open_executor
from loadax.loader.execution.monitor import RunMonitor
from loadax.loader.execution.scheduler import OverError, PrefetchScheduler
from loadax.loader.execution.thread_pool import ThreadPool
from loadax.loader.metrics.stats import Timing, total
from loadax.loader.options import LoaderOptions
from loadax.loader.slots import LoadedJob, PieceExecutor
from loadax.reader import Reader
from loadax.work.capacity import Capacity
from tests.limits import until
from tests.loader.oracle import arrays


class Elsewhere:
    """An executor of another kind: pieces are handed to threads of its own, on three of which they are placed."""

    capacity, closed = Capacity("thread", 2, 4, 4, piece_seconds=0.012), False

    def __init__(self) -> None:
        self.pool = ThreadPoolExecutor(2)

    def load(
        self, reader: Reader, options: FillOptions, prefetch_bytes: int, family: tuple[Reader, ...] = ()
    ) -> LoadedJob:
        return Job(self, ThreadExecutor().load(reader, options, prefetch_bytes, family))

    def places(self) -> int:
        return 3

    def worker_text(self, thread: int) -> str:
        return ""

    def close(self) -> None:
        self.closed = True
        self.pool.shutdown()


class Job:
    def __init__(self, executor: Elsewhere, inner: LoadedJob):
        self.executor, self.inner = executor, inner

    def buffers(self, count: int) -> BatchBuffers:
        return self.inner.buffers(count)

    def run(self, piece: Piece) -> Timing:
        return self.executor.pool.submit(self.inner.run, piece).result()

    def prepare(self, threads: int) -> None:
        pass


class StepByStep(Elsewhere):
    """Goes on with the steps of a piece when the first one of them was handed out."""

    handed_out = waited_for = 0
    over = False

    def load(
        self, reader: Reader, options: FillOptions, prefetch_bytes: int, family: tuple[Reader, ...] = ()
    ) -> LoadedJob:
        return StepByStepJob(self, ThreadExecutor().load(reader, options, prefetch_bytes, family))


class StepByStepJob(Job):
    def run(self, piece: Piece) -> Timing:
        timings: list[Timing] = []
        for step, part in enumerate(piece.by_step(), piece.first):
            timings.append(self.inner.run(part))
            piece.filled(step + 1 - piece.first)
            assert isinstance(self.executor, StepByStep)
            if step == piece.first and piece.buffers.count > 1:
                until(lambda first=step: self.executor.handed_out > first or self.executor.over)  # type: ignore[misc]
                self.executor.waited_for += not self.executor.over
        return total(timings)


def batches_of(scheduler: PrefetchScheduler) -> Iterator[tuple[int, object]]:
    while True:
        try:
            yield scheduler.next_batch()[:2]
        except OverError:
            return


@pytest.mark.parametrize("make", [ThreadExecutor, lambda: ThreadExecutor(3, 1), Elsewhere])
def test_any_executor_gives_the_batches_of_the_plan(make: type[PieceExecutor]) -> None:
    loader = Dataloader(from_arrays(arrays(200)).shuffle(seed=0), 16, num_epochs=2, key_seed=1)
    with closing(make()) as executor:
        producer = loader.phases[0].pipeline.producer(loader.phases[0].shard(), 0, executor)
        monitor = RunMonitor(producer, LoaderOptions(), 0)
        scheduler = PrefetchScheduler(producer, 0, LoaderOptions(), monitor)
        with closing(ThreadPool(scheduler, executor, Caller())) as threads:
            threads.start()
            for expected, (step, batch) in enumerate(batches_of(scheduler)):
                assert step == expected
                for leaf, wanted in zip(jax.tree.leaves(batch), jax.tree.leaves(loader[step]), strict=True):
                    np.testing.assert_array_equal(leaf, wanted)
        stats = monitor.stats()
    assert (stats.steps, stats.rows, monitor.step) == (len(loader), 16 * len(loader), len(loader))
    assert (stats.workers, stats.at_work) == (executor.capacity.workers, executor.capacity.workers)
    stages = [bar.stage for _, bar in monitor.timeline().kept]
    assert stages.count("place") == stages.count("waiting") == len(loader)


@pytest.mark.parametrize("bad", [None, 0, 17, 40, 41, 62])
def test_steps_are_handed_out_before_those_that_are_read_with_them(bad: int | None) -> None:
    """Also if a later one of them fails, which then says where."""
    rows = np.arange(1024)
    order = from_arrays(rows).shuffle(seed=0)
    failing = None if bad is None else int(Dataloader(order, 16).rows(bad)[5])

    def fails(row: Any) -> Any:
        if row == failing:
            raise ZeroDivisionError("a bad row")
        return row

    loader = Dataloader(order.map(fails, spec=rows[0]), 16)
    with closing(StepByStep()) as executor:
        producer = loader.phases[0].pipeline.producer(loader.phases[0].shard(), 0, executor)
        scheduler = PrefetchScheduler(producer, 0, LoaderOptions())
        with closing(ThreadPool(scheduler, executor, Caller())) as threads:
            threads.start()
            caught: Any = nullcontext() if bad is None else pytest.raises(ZeroDivisionError, match="a bad row")
            with caught as error:
                for expected, (step, batch) in enumerate(batches_of(scheduler)):
                    assert step == expected
                    np.testing.assert_array_equal(batch, loader.rows(step))
                    executor.handed_out = step + 1
            executor.over = True
    assert executor.handed_out == (64 if bad is None else bad)
    if bad is None:
        assert executor.waited_for
    else:
        assert f"in step {bad}" in "".join(error.value.__notes__)


def test_a_monitor_goes_on_from_an_earlier_one() -> None:
    loader = Dataloader(from_arrays(arrays(64)), 16)
    monitor = None
    for first in (0, 4):
        producer = loader.phases[0].pipeline.producer(loader.phases[0].shard(), 0, ThreadExecutor())
        monitor = RunMonitor(producer, LoaderOptions(), first, earlier=monitor)
        assert sum(1 for _ in batches_of(PrefetchScheduler(producer, 0, LoaderOptions(), monitor))) == 4
        monitor.close()
        assert monitor.step == first + 4
    assert monitor is not None
    assert monitor.stats().steps == 8
    assert len(monitor.timeline().ready) == 8
    monitor.restart()
    assert monitor.timeline()[:2] == ((), ())


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        (LoaderOptions(worker_type="process", num_workers=0), ThreadExecutor),
        (LoaderOptions(worker_type="process", num_workers=1, keep_on_device=True), ThreadExecutor),
        (LoaderOptions(num_workers=2, first_workers=1), ThreadExecutor),
    ],
)
def test_processes_are_started_only_where_they_have_work(options: LoaderOptions, kind: type) -> None:
    with closing(open_executor(options)) as executor:
        assert isinstance(executor, kind)
        assert (executor.capacity.workers, executor.capacity.first) == (options.num_workers, options.first_workers)
