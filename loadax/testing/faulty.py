"""A source that fails where it is told to."""

import copy
import threading
from collections.abc import Mapping
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from loadax.doors import as_dataset
from loadax.errors import ArgumentError
from loadax.protocols import Columns, Integers, Tree

_PASSED_ON = ("chunks", "concurrent_reads", "fresh", "lengths", "where")


@final
class FaultySource:
    """Another source that raises when certain rows are read, and remembers which rows it was asked for. Thread-safe.

    Args:
        source: the source to wrap; or a `Dataset`, whose positions are then the rows, or whatever else `loadax.Dataloader` takes.
        failures: the exception that each row raises. A copy of it, so that notes and tracebacks don't gather on it.
        times: how many reads of a row fail before it can be read; None: all.

    Raises:
        ArgumentError: when a row of `failures` is not there, its value is no exception, or `times` is below 1.

    Example:
        >>> import numpy as np
        >>> from loadax import from_arrays
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
        source = source if hasattr(source, "read") else as_dataset(source).source
        for row, failure in failures.items():
            if not 0 <= row < len(source):
                raise ArgumentError(f"failures has row {row}, which is not there: rows are at least 0 and below {len(source)}")
            if not isinstance(failure, Exception):
                raise ArgumentError(f"failures[{row}]={failure!r}: pass an exception, as OSError('the disk is gone')")
        if times is not None and times < 1:
            raise ArgumentError(f"times={times}: pass 1 or more, or None for all reads")
        self._given = source, dict(failures), times
        self._source: Any = source
        self._failures = dict(failures)
        self._left: dict[int, int | None] = dict.fromkeys(failures, times)
        self._lock = threading.Lock()
        self.reads: list[Integers] = []
        """The rows of each read so far, also of those that failed."""
        for name in _PASSED_ON:
            if hasattr(source, name):
                setattr(self, name, getattr(source, name))
        # A source says by having it that it reads columns.
        self.read_into = self._read_into if getattr(source, "read_into", None) is not None else None

    def __reduce__(self) -> tuple[Any, ...]:
        """Another process gets a new one: a lock can't go there, and what is read there is not seen here."""
        return FaultySource, self._given

    def __len__(self) -> int:
        return len(self._source)

    def __repr__(self) -> str:
        return f"{self._source!r} with {len(self._failures)} faulty rows"

    @property
    def spec(self) -> Tree | None:
        """The wrapped source's."""
        return self._source.spec

    def read(self, rows: Integers) -> Tree:
        """The examples at `rows`, unless one of them is to fail."""
        self._note(rows)
        return self._source.read(rows)

    def _read_into(self, rows: Integers, boxes: list[Columns | None], out: list[NDArray[Any] | None]) -> None:
        """As the wrapped source's, unless a row is to fail."""
        self._note(rows)
        self._source.read_into(rows, boxes, out)

    def _note(self, rows: Integers) -> None:
        """Writes down the read; raises for the first row that is to fail."""
        with self._lock:
            self.reads.append(np.array(rows, np.int64))
            for row in self.reads[-1].tolist():
                left = self._left.get(row, 0)
                if left is None or left > 0:
                    self._left[row] = None if left is None else left - 1
                    raise copy.copy(self._failures[row])
