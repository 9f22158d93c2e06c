"""A source that fails at chosen rows."""

import copy
import math
import threading
from collections.abc import Mapping, Sequence
from typing import Any, final

import numpy as np

from loadax.core.arguments import integer
from loadax.errors import ArgumentError
from loadax.io import as_dataset
from loadax.protocols import Boxes, Integers, LeafArrays, Outputs, Tree, Visits
from loadax.sources.adapt import as_source
from loadax.sources.base import BaseSource, WrapperSource


@final
class FaultySource(WrapperSource):
    """Wraps a source so that certain rows raise when they are read, and records all reads. Thread-safe.

    Args:
        source: Source to wrap, or a `Dataset`, whose positions are then the rows, or anything else that
            `loadax.Dataloader` accepts.
        failures: Exception of each faulty row. A copy is raised, so that notes and tracebacks don't accumulate.
        times: Number of reads of a row that fail before one succeeds; None: all fail.

    Attributes:
        reads: Rows of each read so far, including failed ones.

    Raises:
        ArgumentError: When a row of `failures` is out of range, its value is not an exception, or `times` is below 1.

    Examples:
        >>> import numpy as np
        >>> from loadax import from_arrays
        >>> from tests.faulty import FaultySource
        >>> source = FaultySource(from_arrays(np.arange(4)), {2: OSError("the disk is gone")}, times=1)
        >>> source.read(np.array([1, 2]))
        Traceback (most recent call last):
        ...
        OSError: the disk is gone
        >>> source.read(np.array([1, 2]))
        array([1, 2])
        >>> source.reads
        [array([1, 2]), array([1, 2])]
    """

    def __init__(self, source: Any, failures: Mapping[int, Exception], times: int | None = None):
        dataset = as_dataset(source)
        plain = dataset.order.row_range == range(len(dataset.source)) and not dataset.maps
        inner = dataset.source if plain else as_source(dataset)
        super().__init__(inner)
        for row, failure in failures.items():
            if not (0 <= row < len(inner) and isinstance(failure, Exception)):
                remedy = f"pass rows from 0 to {len(inner) - 1}, with an exception each, such as OSError('disk error')"
                raise ArgumentError(f"failures[{row}]={failure!r}: {remedy}")
        if times is not None:
            integer("times", times, 1, remedy="1 or more, or None for all reads")
        self._failures, self._times = dict(failures), times
        self._left = dict.fromkeys(failures, math.inf if times is None else times)
        self._lock = threading.Lock()
        self.reads: list[Integers] = []

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles the arguments: another process gets a new source with its own lock and its own `reads`."""
        return FaultySource, (self._source, self._failures, self._times)

    def _over(self, source: BaseSource) -> "FaultySource":
        other = object.__new__(type(self))
        vars(other).update(vars(self))  # shares `reads` and the counts
        super(FaultySource, other).__init__(source)
        return other

    def __repr__(self) -> str:
        return f"{self._source!r} with {len(self._failures)} faulty rows"

    def read(self, rows: Integers) -> Tree:
        """Reads the examples at `rows`, unless one of them is to fail."""
        self._note(rows)
        return self._source.read(rows)

    def read_visits(self, visits: Visits) -> Tree:
        self._note(visits.rows)
        return self._source.read_visits(visits)

    def read_examples(self, visits: Visits) -> list[Tree]:
        self._note(visits.rows)
        return self._source.read_examples(visits)

    def read_into(self, rows: Integers, boxes: Boxes, out: Outputs) -> None:
        self._note(rows)
        self._source.read_into(rows, boxes, out)

    def read_parts(self, rows: Integers, starts: Integers, lengths: Integers, wanted: Sequence[bool]) -> LeafArrays:
        self._note(rows)
        return self._source.read_parts(rows, starts, lengths, wanted)

    def _note(self, rows: Integers) -> None:
        """Records a read; raises for the first row that is to fail."""
        with self._lock:
            self.reads.append(np.array(rows, np.int64))
            for row in self.reads[-1].tolist():
                if self._left.get(row, 0) > 0:
                    self._left[row] -= 1
                    raise copy.copy(self._failures[row])
