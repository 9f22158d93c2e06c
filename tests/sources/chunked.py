"""A source whose rows lie in chunks, that counts what is read of it."""

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadax.core.tree import flatten
from loadax.protocols import Columns, Integers
from loadax.sources.arrays import ArraySource


class ChunkedSource:
    """Arrays that are said to be decoded in chunks.

    Args:
        tree: of arrays.
        chunks: the rows at which they begin, or how many rows one has.
        into: whether it has `read_into`.
        before: called with the rows of every read before it happens; may wait or raise.
    """

    def __init__(self, tree: Any, chunks: Any, into: bool = True, before: Callable[[Integers], None] | None = None):
        self._inner = ArraySource(tree)
        self._into = into
        self._before = before
        self._lock = threading.Lock()
        self.spec = self._inner.spec
        self.chunks = range(0, len(self._inner), chunks) if isinstance(chunks, int) else chunks
        self.counts = np.zeros(len(self._inner), np.int64)
        self.elements = [np.zeros(np.shape(leaf), np.int64) for leaf in flatten(tree)[0]]
        self.reads = 0

    def __len__(self) -> int:
        return len(self._inner)

    def __repr__(self) -> str:
        return "chunked arrays"

    def read(self, rows: Integers) -> Any:
        self._count(rows, [tuple((0, extent) for extent in each.shape[1:]) for each in self.elements])
        return self._inner.read(rows)

    @property
    def read_into(self) -> Callable[..., None] | None:
        return self._read_into if self._into else None

    def _read_into(self, rows: Integers, boxes: list[Columns | None], out: list[NDArray[Any] | None]) -> None:
        self._count(rows, boxes)
        self._inner.read_into(rows, boxes, out)

    def forget(self) -> None:
        """Counts from 0."""
        for counts in (self.counts, *self.elements):
            counts[...] = 0

    def _count(self, rows: Integers, boxes: list[Columns | None]) -> None:
        with self._lock:
            self.reads += 1
            np.add.at(self.counts, rows, 1)
            for elements, columns in zip(self.elements, boxes, strict=True):
                if columns is not None:
                    where: Any = (rows, *(slice(*column) for column in columns))
                    np.add.at(elements, where, 1)
        if self._before is not None:
            self._before(rows)
