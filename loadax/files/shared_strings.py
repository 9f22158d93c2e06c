"""SharedStrings: rows of `str` or `bytes` in a few buffers, of which all worker processes map one copy."""

from collections.abc import Iterator
from pickle import PickleBuffer
from typing import Any, final

import numpy as np

from loadax.protocols import Array

OUT_OF_BAND = 5  # protocol of pickle from which buffers can be apart from the message
BLOCK = 1 << 16  # rows a block
# characters up to which rows are encoded together, which takes up to 20 bytes a character meanwhile
_SHORT = 128
_ENCODING = "utf-8", "surrogatepass"  # of any str


def shared_strings(rows: Any) -> Any:
    """The object to pickle for an array: `SharedStrings` if all entries are `str`, or all `bytes`; else the array."""
    one_by_one = (
        isinstance(rows, np.ndarray) and rows.dtype == object and rows.ndim == 1
    )
    if one_by_one:
        kinds = {*map(type, rows.flat)}
    else:
        kinds = set()
    if kinds not in ({str}, {bytes}):
        return rows
    kind = kinds.pop()
    return SharedStrings(kind, len(rows), _encoded(kind, rows))


@final
class SharedStrings:
    """Strings that are encoded while they are pickled, a block at a time, and decoded when their rows are read.

    Args:
        kind: `str` or `bytes`.
        count: Number of strings.
        buffers: Two for each block: int64 bounds of its rows, in bytes, and their bytes. A list while unpickling.
    """

    def __init__(self, kind: type, count: int, buffers: Any):
        self._kind = kind
        self._count = count
        self._buffers = buffers

    def __reduce_ex__(self, protocol: Any) -> Any:
        # Their iterator, so that only one block at a time takes memory.
        buffers = map(
            PickleBuffer if protocol >= OUT_OF_BAND else bytes, self._buffers
        )
        return SharedStrings, (self._kind, self._count, []), None, buffers

    def append(self, buffer: Any) -> None:
        """Appends a buffer; called while unpickling."""
        self._buffers.append(
            memoryview(buffer).cast("B").cast("B" if len(self._buffers) % 2 else "q")
        )

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: Any) -> Array:
        """object[n]: decoded rows, of a slice or int64[n]; of the index of one row, as a tuple, its string."""
        if isinstance(index, tuple):
            return self[np.array(index)][0]
        if isinstance(index, slice):
            rows = np.arange(self._count)[index]
        else:
            rows = index
        strings, encoding = (
            np.empty(len(rows), object),
            _ENCODING if self._kind is str else (),
        )
        blocks, places = np.divmod(rows, BLOCK)
        for row, (block, place) in enumerate(
            zip(blocks.tolist(), places.tolist(), strict=True)
        ):
            bounds, encoded = self._buffers[2 * block : 2 * block + 2]
            strings[row] = self._kind(
                encoded[bounds[place] : bounds[place + 1]], *encoding
            )
        return strings


def _encoded(kind: type, strings: Array) -> Iterator[Any]:
    """The buffers of strings."""
    for low in range(0, len(strings), BLOCK):
        block = strings[low : low + BLOCK].tolist()
        if kind is str and sum(map(len, block)) > _SHORT * len(block):
            block = [text.encode(*_ENCODING) for text in block]
        joined = type(block[0])().join(block)
        if isinstance(joined, str):
            encoded = joined.encode(*_ENCODING)
        else:
            encoded = joined
        bounds = np.cumsum([0, *map(len, block)], dtype=np.int64)
        # from characters to bytes, of which each begins with other bits than 10
        if len(encoded) > len(joined):
            begins = np.flatnonzero(np.frombuffer(encoded, np.uint8) & 0xC0 != 0x80)
            bounds = np.append(begins, len(encoded))[bounds]
        yield bounds
        yield encoded
