"""Interface of a workload for contestants and for the measurement. No JAX here: worker processes import it."""

from pathlib import Path
from typing import Any, Protocol, final

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.int64]


class Data(Protocol):
    """Rows of a workload in plain NumPy, as a careful user would read them. Files are pickled as paths."""

    def row(self, row: int) -> Any:
        """One example."""
        ...

    def batch(self, rows: Rows) -> Any:
        """Many of them, stacked."""
        ...


class Workload(Protocol):
    """Rows and how they are fed."""

    @property
    def name(self) -> str:
        """Of the workload, and of the file of its results."""
        ...

    @property
    def rows(self) -> int:
        """How many there are."""
        ...

    @property
    def batch_size(self) -> int:
        """Of the global batch."""
        ...

    def write(self, folder: Path) -> None:
        """Writes the rows, the same ones each time."""
        ...

    def data(self, folder: Path) -> Data:
        """The rows, to be read by hand."""
        ...

    def rows_of(self, batch: Any) -> Rows:
        """Row numbers of a batch, from its contents."""
        ...

    def compare(self, batch: Any, expected: Any) -> dict[str, float]:
        """Compares a batch with NumPy's for the same rows; returns figures, or raises ValueError."""
        ...


@final
class Arrays:
    """The rows of arrays: in memory, or in one `.npy` file that is mapped."""

    def __init__(self, arrays: Any = None, mapped: Path | None = None):
        self._arrays, self._mapped = arrays, mapped
        if mapped is not None:
            # A plain array over the map: np.memmap's own bookkeeping would slow down every slice.
            self._arrays = np.asarray(np.load(mapped, mmap_mode="r"))

    @property
    def whole(self) -> Any:
        """All of them."""
        return self._arrays

    def row(self, row: int) -> Any:
        """One row of every leaf."""
        if isinstance(self._arrays, dict):
            return {name: array[row] for name, array in self._arrays.items()}
        return self._arrays[row]

    def batch(self, rows: Rows) -> Any:
        """The rows of every leaf, copied out."""
        if isinstance(self._arrays, dict):
            return {name: array[rows] for name, array in self._arrays.items()}
        return self._arrays[rows]

    def __reduce__(self) -> tuple[Any, ...]:
        return (Arrays, (None, self._mapped) if self._mapped else (self._arrays,))


def steps_per_epoch(workload: Workload) -> int:
    """Whole batches in the rows."""
    return workload.rows // workload.batch_size


def equal(batch: Any, expected: Any) -> dict[str, float]:
    """Raises unless both hold the same, to the bit."""
    theirs, ours = ((each if isinstance(each, dict) else {"batch": each}) for each in (batch, expected))
    if theirs.keys() != ours.keys():
        raise ValueError(f"a batch has the leaves {sorted(theirs)}, the source {sorted(ours)}")
    for name, leaf in theirs.items():
        if leaf.dtype != ours[name].dtype or not np.array_equal(np.asarray(leaf), ours[name]):
            raise ValueError(f"a batch differs from the source in its leaf {name!r}")
    return {}


def numbered(tokens: NDArray[np.uint16], rows: Rows) -> None:
    """Writes the rows' numbers into their first two tokens."""
    tokens[:, 0], tokens[:, 1] = rows & 0xFFFF, rows >> 16


def numbers(tokens: NDArray[Any]) -> Rows:
    """The rows' numbers, out of their first two tokens."""
    low, high = np.asarray(tokens)[:, :2].astype(np.int64).T
    return low + (high << 16)
