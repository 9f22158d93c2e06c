"""Parses Megatron's `.idx` files: where each document begins in the `.bin` file."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from loadax.errors import SourceError
from loadax.protocols import Integers
from loadax.sources.io.files import ByteRange, Files

_MAGIC = b"MMIDIDX\x00\x00"
_HEADER = np.dtype([("magic", "S9"), ("version", "<u8"), ("dtype", "u1"), ("sequences", "<u8"), ("documents", "<u8")])
_DTYPES = {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}
_FLOATS = {6: "float64", 7: "float32"}
_PIECE = 8 << 20  # bytes that are asked for at once


class MegatronIndex(NamedTuple):
    """What an `.idx` file says: the dtype of the tokens, how many they are, and with which of them documents begin."""

    dtype: np.dtype[Any]
    tokens: int
    begins: Integers


def read_index(files: Files, location: str) -> MegatronIndex:
    """Reads an `.idx` file, and checks all that it says of itself.

    Raises:
        SourceError: when it is missing, of another kind, cut short, or contradicts itself; names it.
    """
    size = _HEADER.itemsize
    header = np.frombuffer(_read(files, location, 0, size), _HEADER)[0]
    # A field of bytes loses the zeros at its end.
    if header["magic"] != _MAGIC.rstrip(b"\x00"):
        raise SourceError(
            f"{location}: it is no Megatron index, it begins with {bytes(header['magic'])!r}; "
            "pass the .bin file itself, with dtype="
        )
    if header["version"] != 1:
        raise SourceError(f"{location}: its version is {header['version']}, and only version 1 is known; write it anew")
    code, sequences, documents = int(header["dtype"]), int(header["sequences"]), int(header["documents"])
    if code not in _DTYPES:
        meaning = f"{_FLOATS[code]}: tokens are integers" if code in _FLOATS else "unknown"
        raise SourceError(f"{location}: the dtype of its tokens has the code {code}, which is {meaning}")
    dtype = np.dtype(_DTYPES[code])
    lengths_end = size + 4 * sequences
    pointers_end = lengths_end + 8 * sequences
    _check_long_enough(files, location, pointers_end + 8 * documents, sequences, documents)
    lengths = np.frombuffer(_read(files, location, size, lengths_end), "<i4")
    pointers = np.frombuffer(_read(files, location, lengths_end, pointers_end), "<i8")
    firsts = np.frombuffer(_read(files, location, pointers_end, pointers_end + 8 * documents), "<i8")
    ends = np.cumsum(lengths, dtype=np.int64)
    begins = np.concatenate([[0], ends])
    if (lengths < 0).any() or (pointers != begins[:-1] * dtype.itemsize).any():
        wrong = int(np.flatnonzero((lengths < 0) | (pointers != begins[:-1] * dtype.itemsize))[0])
        raise SourceError(
            f"{location}: sequence {wrong} has {lengths[wrong]} tokens and begins at byte {pointers[wrong]}, expected "
            f"byte {begins[wrong] * dtype.itemsize}, right behind the one before; the file is damaged: write it anew"
        )
    if not documents or firsts[0] != 0 or firsts[-1] != sequences or (np.diff(firsts) < 0).any():
        raise SourceError(
            f"{location}: its {documents} document indices don't ascend from 0 to {sequences}, "
            "the number of its sequences; the file is damaged: write it anew"
        )
    return MegatronIndex(dtype, int(begins[-1]), begins[firsts[:-1]])


@final
class Documents:
    """With which tokens of a stream documents begin. Pickles as the places of the `.idx` files, and reads them anew.

    Args:
        files: through which they are read.
        indices: the `.idx` files.
        offsets: of the first token of each in the stream.
    """

    def __init__(self, files: Files, indices: Sequence[str], offsets: Sequence[int]):
        self._files, self._indices, self._offsets = files, tuple(indices), tuple(offsets)

    @property
    def indices(self) -> tuple[str, ...]:
        """The `.idx` files."""
        return self._indices

    def __getstate__(self) -> Any:
        return self._files, self._indices, self._offsets

    def __setstate__(self, state: Any) -> None:
        self._files, self._indices, self._offsets = state

    @cached_property
    def begins(self) -> Integers:
        """int64[m], ascending: the tokens that documents begin with; of empty documents none is left."""
        parts = [
            read_index(self._files, index).begins + offset
            for index, offset in zip(self._indices, self._offsets, strict=True)
        ]
        return np.unique(np.concatenate(parts))

    def number_into(self, first: Integers, columns: tuple[int, int], out: NDArray[Any]) -> None:
        """For windows that begin at the tokens `first`.

        The number of the document that each token of some columns is of.

        Documents are numbered within each window, from 1.
        """
        low, high = columns
        begun = np.searchsorted(self.begins, first, side="right")
        before = np.searchsorted(self.begins, first + low, side="right")
        within = np.searchsorted(self.begins, first + (high - 1), side="right") - before
        steps = np.zeros((len(first), high - low), np.int32)
        steps[:, 0] = 1 + before - begun
        windows = np.repeat(np.arange(len(first)), within)
        behind = np.arange(len(windows)) - np.repeat(np.cumsum(within) - within, within)
        begins = self.begins[before[windows] + behind]
        steps[windows, begins - first[windows] - low] = 1
        out[...] = np.cumsum(steps, axis=1, dtype=np.int32)


def _check_long_enough(files: Files, location: str, size: int, sequences: int, documents: int) -> None:
    if not files.contains([ByteRange(location, size - 1, size)])[0]:
        raise SourceError(
            f"{location}: it is cut short: "
            f"{sequences} sequences and {documents} document indices take {size} bytes; copy it again"
        )


def _read(files: Files, location: str, start: int, stop: int) -> bytes:
    cuts = range(start, stop, _PIECE)
    return b"".join(files.read([ByteRange(location, cut, min(cut + _PIECE, stop)) for cut in cuts]))
