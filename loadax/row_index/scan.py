"""Reads every row that a dataset meets once, in large batches, by several threads."""

import math
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from loadax.core.spec import flatten_spec, leaf_arrays
from loadax.core.tree import flatten
from loadax.protocols import Integers, Tree, Visits
from loadax.reader import Reader
from loadax.sources.checks import chunk_starts
from loadax.transforms import RAISED, blame

_RUN_BYTES = 4 << 20
# few enough that a slow function's progress shows, and that what was begun soon ends when the user stops it
_RUN_ROWS = 1024
_RUNS_A_THREAD = 4  # at least, where there are rows enough, so that none is idle at the end
_WORKERS, _MOST_WORKERS = 4, 32


class StoppedError(Exception):
    """What ends a run whose result nobody waits for any more."""


class Run(NamedTuple):
    """Rows that were read together.

    Args:
        rows: which.
        batch: a tree of arrays, rows first; None when they were read one by one, and may differ in shape.
        listed: one tree a row, when they were read one by one.
        over: set when nobody waits for the result any more.
    """

    rows: Integers
    batch: Tree | None
    listed: list[Tree]
    over: threading.Event

    def examples(self) -> Iterator[tuple[int, Tree]]:
        """Each row with its example."""
        for row, example in zip(
            self.rows.tolist(), self.listed if self.batch is None else _apart(self.batch), strict=True
        ):
            if self.over.is_set():
                raise StoppedError
            yield row, example

    def column(self, index: int) -> Any:
        """The values of one leaf for all rows: an array, or a list when they were read one by one."""
        return (
            [flatten(example)[0][index] for example in self.listed]
            if self.batch is None
            else flatten(self.batch)[0][index]
        )


def _apart(batch: Tree) -> Iterator[Tree]:
    """The examples of a batch, whose arrays can't be written to: they may be the source's own."""
    leaves, structure = flatten(batch)
    leaves = [leaf.view() for leaf in leaves]
    for leaf in leaves:
        leaf.flags.writeable = False
    for row in range(len(leaves[0])):
        yield structure.build([leaf[row] for leaf in leaves])


def read_run(reader: Reader, rows: Integers, over: threading.Event) -> Run:
    """Reads rows as epoch 0 meets them.

    One by one where that is no slower, for then they may be documents of any length.
    """
    visits = Visits(rows, np.zeros_like(rows))
    if reader.reads_examples:
        return Run(rows, None, reader.examples(visits), over)
    return Run(rows, reader.read_visits(visits), [], over)


def results(run: Run, function: Callable[..., Any], name: str) -> Iterator[tuple[int, Any]]:
    """Each row with what a user's function returns for its example; what it raises names `what` and the row."""
    for row, example in run.examples():
        try:
            result = function(example)
        except RAISED as error:
            blame(error, name, f"loadax: in {name}, on row {row}")
            raise
        yield row, result


RowFunction = Callable[[Run], NDArray[Any]]
"""What is to be known of the rows of a run, as one array."""


def threads_for(reader: Reader, workers: int | None) -> int:
    """How many threads read: more than the cores of a small machine, for a source waits for disks and networks."""
    return workers or max(_WORKERS, min(reader.concurrent_reads, _MOST_WORKERS))


def plan_runs(reader: Reader, met: NDArray[np.bool_], workers: int) -> Integers:
    """The runs, as int64[n, 2] of first row and end.

    Each holds whole chunks, where the source has some, and a row that is met.
    """
    if not met.any():  # so nothing has to be known of a row
        return np.empty((0, 2), np.int64)
    total = len(met)
    size = max(1, min(_RUN_BYTES // max(1, _row_bytes(reader)), _RUN_ROWS, -(-total // (_RUNS_A_THREAD * workers))))
    starts = chunk_starts(reader.source)
    if isinstance(starts, range):
        begins = np.arange(0, total, starts.step * max(1, size // starts.step))
    else:
        begins = np.arange(0, total, size)
        if starts is not None:
            begins = np.unique(starts[np.searchsorted(starts, begins, side="right") - 1])
    bounds = np.stack([begins, np.append(begins[1:], total)], axis=1).astype(np.int64)
    return bounds[np.add.reduceat(met, begins, dtype=np.int64) > 0]


def _row_bytes(reader: Reader) -> int:
    """Bytes of a row as the source has it; of the first one, where no two need be alike."""
    if _needs_specs(reader):
        return sum(math.prod(spec.shape) * spec.dtype.itemsize for spec in flatten_spec(reader.specs[0])[0])
    assert reader.first is not None
    return sum(leaf.nbytes for leaf in leaf_arrays(reader.examples(reader.first)[0]))


def _needs_specs(reader: Reader) -> bool:
    """Whether rows are stacked or mapped.

    Others are read as they are, and those of joined datasets may have no spec in common.
    """
    return bool(reader.maps) or not reader.reads_examples


def scan(
    reader: Reader,
    met: NDArray[np.bool_],
    runs: Integers,
    judge: RowFunction,
    workers: int,
    done: Callable[[int], object],
) -> list[NDArray[Any]]:
    """What `judge` says of the rows of each run that are met, in the order of the runs. Memory: a few runs a thread.

    Args:
        reader: of the rows, whose maps are not random.
        met: for every row whether it is read.
        runs: from `plan_runs`.
        judge: called by several threads at once.
        workers: threads.
        done: called with the rows of each run that is done.
    """
    if len(runs) and _needs_specs(reader):
        _ = reader.specs  # found now, and not by every thread
    over = threading.Event()

    def one(start: int, end: int) -> tuple[NDArray[Any], int]:
        rows = start + np.flatnonzero(met[start:end])
        return judge(read_run(reader, rows, over)), len(rows)

    arrays: list[NDArray[Any]] = []
    under_way: deque[Future[tuple[NDArray[Any], int]]] = deque()

    def take() -> None:
        values, count = under_way.popleft().result()
        arrays.append(values)
        done(count)

    with ThreadPoolExecutor(workers, thread_name_prefix="loadax-scan") as pool:
        try:
            for start, end in runs.tolist():
                if len(under_way) > 2 * workers:
                    take()
                under_way.append(pool.submit(one, start, end))
            while under_way:
                take()
        except BaseException:
            over.set()
            # those that run end at their next row, and are waited for by `with`
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return arrays
