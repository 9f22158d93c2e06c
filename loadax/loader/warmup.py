"""Starts an iterator's read-ahead before its first batch is asked for."""

import threading
from dataclasses import replace
from typing import final

from loadax.loader.execution.producer import BatchProducer
from loadax.loader.iterator import DataIterator, Run
from loadax.loader.workers.process_pool import ProcessPool


@final
class Warm:
    """Begins an iterator, and hands it to the first that would begin one alike.

    A loader keeps it, so it must not keep the loader: as long as nobody takes it, it has no way to begin anew.
    """

    def __init__(self, run: Run, start: int):
        self._lock = threading.Lock()
        batches = DataIterator(run, start)
        batches.serve(replace(run, feed=_never, used_up=_nothing))
        self._batches: DataIterator | None = batches
        self._mesh = run.mesh

    def take(self, run: Run, start: int) -> DataIterator | None:
        """The iterator, when that is what this run would begin with at `start`; else it is closed. Once only."""
        with self._lock:
            batches, self._batches = self._batches, None
        if batches is None:
            return None
        if batches.step != start or run.mesh != self._mesh:
            batches.close()
            return None
        batches.serve(run)
        return batches

    def close(self) -> None:
        """Ends it, unless somebody has taken it."""
        with self._lock:
            batches, self._batches = self._batches, None
        if batches is not None:
            batches.close()


def _never(step: int, processes: ProcessPool | None) -> BatchProducer:
    raise AssertionError("nobody takes batches from what nobody has taken", step, processes)


def _nothing() -> None:
    pass
