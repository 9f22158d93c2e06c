"""Starts an iterator's read-ahead before its first batch is asked for."""

import threading
from typing import final

from jax.sharding import Mesh

from loadax.loader.iterator import DataIterator


@final
class Warm:
    """An iterator that reads ahead already, for the first caller that would begin one alike.

    A loader keeps it, so it must not keep the loader.
    """

    def __init__(self, batches: DataIterator, mesh: Mesh):
        self._lock = threading.Lock()
        self._batches: DataIterator | None = batches
        self._mesh = mesh

    def take(self, mesh: Mesh, start: int) -> DataIterator | None:
        """The iterator, when it is at step `start` and for that mesh; else it is closed. Once only."""
        with self._lock:
            batches, self._batches = self._batches, None
        if batches is None:
            return None
        if batches.step != start or mesh != self._mesh:
            batches.close()
            return None
        batches.restart_statistics()
        return batches

    def close(self) -> None:
        """Ends it, unless somebody has taken it."""
        with self._lock:
            batches, self._batches = self._batches, None
        if batches is not None:
            batches.close()
