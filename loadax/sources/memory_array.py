"""ArrayLeaf: an array whose first dimension counts entries, and MemoryArray: one in memory, or memory-mapped."""

from collections.abc import Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, Protocol, final

import numpy as np

from loadax.core.array_parts import indices, take_parts
from loadax.core.spec import all_columns
from loadax.protocols import Array, ArraySpec, Columns, Integers, Location
from loadax.sources.base import span_rows

if TYPE_CHECKING:
    from loadax.files.byte_ranges import KnownFiles
    from loadax.files.remote_ranges import Wanted

# protocol of pickle from which buffers can be apart from the message
_OUT_OF_BAND = 5
# bytes: entries that are copied faster one by one, into their destination, than as runs twice
_LARGE = 1 << 10


class ArrayLeaf(Protocol):
    """An array, in memory or in files, whose first dimension counts entries; read in native byte order."""

    spec: ArraySpec
    whole: Columns

    @property
    def far(self) -> bool:
        """Whether reading waits for a network."""

    @property
    def addresses(self) -> Sequence[str]:
        """Paths and URLs of its files."""

    @property
    def known_files(self) -> "KnownFiles":
        """Sizes and ETags of its remote files, by URL, as far as they are known."""

    @property
    def memory(self) -> Array | None:
        """The array, or strings that decode the rows that are read, unless it is in a file."""

    def __len__(self) -> int:
        """Number of entries."""

    def wanted(self, first: Integers, count: int) -> "list[Wanted]":
        """What a read of the `count` entries from each of `first` on will request of remote files."""

    def read_into(self, rows: Integers, columns: Columns, out: Array) -> None:
        """Copies a column box of entries."""

    def spans(self, first: Integers, count: int, columns: Columns) -> Array:
        """Copies a column box of the `count` entries from each of `first` on: an array of shape `[n, count, …]`."""

    def spans_into(
        self, first: Integers, count: int, columns: Columns, out: Array
    ) -> None:
        """Copies as `spans` does, into memory."""

    def gather(self, first: Integers, lengths: Integers) -> Array:
        """Copies `lengths` entries, at least 1, from each of `first` on, concatenated."""

    def locate(self, start: int, stop: int) -> list[Location]:
        """Files of entries, with their bytes where these are contiguous."""


class _Extent(Protocol):
    """The part of a file that an array is mapped from."""

    def check(self) -> None:
        """Checks that the file is still long enough: reading past its end would kill the process with SIGBUS."""


@final
class MemoryArray:
    """An array in memory, or memory-mapped, whose first dimension counts entries.

    Args:
        array: The array.
    """

    far = False
    known_files: "KnownFiles" = MappingProxyType({})

    def __init__(self, array: Array):
        self._file = self._mapped_file(array)
        # A plain view: every operation on a memmap pays the cost of the subclass.
        self._array: Any = array.view(np.ndarray)
        if self._file is None:
            self.addresses = []
        else:
            self.addresses = [str(Path(self._file.file).absolute())]
        # The part of a file that must exist. None: not looked for; False: there is none.
        self._extent: _Extent | Literal[False] | None = None
        self.spec = ArraySpec(array.shape[1:], array.dtype.newbyteorder("="))
        self.whole = all_columns(self.spec.shape)

    def __len__(self) -> int:
        return len(self._array)

    def __repr__(self) -> str:
        if self._file is None:
            return "in memory"
        return "memory-mapped"

    @property
    def memory(self) -> Array | None:
        """The array, or strings that decode the rows that are read, unless it is mapped from a file."""
        if self._file is None:
            return self._array
        return None

    def __reduce_ex__(self, protocol: Any) -> Any:
        reduced: Any = super().__reduce_ex__(protocol)
        make, arguments, state, *_ = reduced
        array = self._array
        if protocol >= _OUT_OF_BAND and self.spec.dtype.hasobject:
            from loadax.files.shared_strings import shared_strings

            array = shared_strings(array)
        # another process maps the file again
        return make, arguments, {**state, "_array": array, "_extent": None}

    def wanted(self, first: Integers, count: int) -> "list[Wanted]":  # noqa: ARG002
        """Nothing: no file is remote."""
        return []

    def read_into(self, rows: Integers, columns: Columns, out: Array) -> None:
        """Copies a column box of entries."""
        array = self._checked()
        # NumPy's `take` would first copy a whole array that is not contiguous.
        plain = (
            not self.spec.dtype.hasobject
            and array.flags.c_contiguous
            and array.flags.aligned
        )
        if (
            columns == self.whole
            and plain
            and array.dtype == out.dtype
            and out.flags.c_contiguous
        ):
            # Any mode but "raise" writes to `out` without a copy, "wrap" fastest; the rows were checked before.
            array.take(rows, axis=0, out=out, mode="wrap")
        else:
            index: Any
            if columns:
                index = (rows, *(slice(*column) for column in columns))
            else:
                index = rows
            out[...] = array[index]

    def spans(self, first: Integers, count: int, columns: Columns) -> Array:
        """Copies a column box of the `count` entries from each of `first` on: an array of shape `[n, count, …]`."""
        array: Any = self._checked()
        if type(array) is not np.ndarray:  # strings that are decoded as they are read
            return array[span_rows(first, count)].reshape(-1, count)
        shape = (len(array) - count + 1, count, *array.shape[1:])
        spans = np.lib.stride_tricks.as_strided(
            array, shape, (array.strides[0], *array.strides), writeable=False
        )
        index: Any = (first, slice(None), *(slice(*column) for column in columns))
        return spans[index].astype(self.spec.dtype, copy=False)

    def spans_into(
        self, first: Integers, count: int, columns: Columns, out: Array
    ) -> None:
        """Copies as `spans` does, into memory."""
        if self.spec.nbytes < _LARGE or not out.flags.c_contiguous:
            out[...] = self.spans(first, count, columns)
        else:
            self.read_into(
                span_rows(first, count), columns, out.reshape(-1, *out.shape[2:])
            )

    def gather(self, first: Integers, lengths: Integers) -> Array:
        """Copies `lengths` entries, at least 1, from each of `first` on, concatenated."""
        array: Any = self._checked()
        if type(array) is not np.ndarray:
            return array[indices(first, lengths)]
        return take_parts(array, first, lengths).astype(self.spec.dtype, copy=False)

    def locate(self, start: int, stop: int) -> list[Location]:
        """The file of entries, with their bytes where these are contiguous."""
        if self._file is None or not (entries := self._array[start:stop]).size:
            return []
        if not entries.flags.c_contiguous:
            return [Location(self._file.file)]
        first = (self._file.first or 0) + start * self._array.strides[0]
        return [Location(self._file.file, first, first + entries.nbytes - 1)]

    def _checked(self) -> Array:
        """The array, whose file is long enough: reading past its end would kill the process."""
        if self._extent is None:
            self._extent = self._mapped_extent() or False
        if self._extent:
            self._extent.check()
        return self._array

    @staticmethod
    def _mapped_file(array: Array) -> Location | None:
        if _is_in_memory(array):
            return None
        from loadax.files.locations import mapped_file

        return mapped_file(array)

    def _mapped_extent(self) -> _Extent | None:
        if _is_in_memory(self._array):
            return None
        from loadax.files.locations import mapped_extent

        return mapped_extent(self._array)


def _is_in_memory(array: Any) -> bool:
    """Whether NumPy holds the memory of an array itself: it is no view of a memory map, or of another object."""
    base = array
    while isinstance(base, np.ndarray):
        base = base.base
    return base is None
