"""StreamArray: entries of an array in files, read by their bytes."""

import math
from typing import Any, final

import numpy as np

from loadax.core.spec import all_columns
from loadax.files.byte_ranges import KnownFiles
from loadax.files.byte_stream import ByteStream
from loadax.files.remote_ranges import Wanted
from loadax.protocols import Array, ArraySpec, Columns, Integers, Location
from loadax.redaction import redact


@final
class StreamArray:
    """An array in local or remote files, in C order, whose first dimension counts entries.

    Args:
        stream: Stream of the bytes.
        stored: Dtype, as it is stored.
        shape: Shape of the array; None: it is flat, and ends with the stream.
    """

    memory = None

    def __init__(
        self,
        stream: ByteStream,
        stored: np.dtype[Any],
        shape: tuple[int, ...] | None = None,
    ):
        self._stream = stream
        self._stored = stored
        self.far = stream.far
        self.addresses = stream.ends.locations  # paths and URLs of the files
        self._length, *inner = shape or (stream.ends.total // stored.itemsize,)
        self.spec = ArraySpec(tuple(inner), stored.newbyteorder("="))
        self.whole = all_columns(self.spec.shape)
        self._entry_bytes = math.prod(inner) * stored.itemsize

    def __len__(self) -> int:
        return self._length

    def __repr__(self) -> str:
        return redact(f"at {', '.join(self.addresses)}")

    @property
    def known_files(self) -> KnownFiles:
        return self._stream.known_files

    def read_into(self, rows: Integers, columns: Columns, out: Array) -> None:
        """Reads a column box of entries."""
        if columns:
            self._read(rows, self.spec.shape, columns, out)
        else:
            self.spans_into(rows, 1, (), out[:, None])

    def wanted(self, first: Integers, count: int) -> list[Wanted]:
        """What a read of the `count` entries from each of `first` on will request; empty if the files are local."""
        starts = first * self._entry_bytes
        return self._stream.wanted(starts, starts + count * self._entry_bytes)

    def spans(self, first: Integers, count: int, columns: Columns) -> Array:
        """Reads a column box of the `count` entries from each of `first` on: an array of shape `[n, count, …]`."""
        out = np.empty(
            (len(first), count, *(stop - start for start, stop in columns)),
            self.spec.dtype,
        )
        self.spans_into(first, count, columns, out)
        return out

    def spans_into(
        self, first: Integers, count: int, columns: Columns, out: Array
    ) -> None:
        """Reads as `spans` does, into memory."""
        self._read(first, (count, *self.spec.shape), ((0, count), *columns), out)

    def gather(self, first: Integers, lengths: Integers) -> Array:
        """Reads `lengths` entries, at least 1, from each of `first` on, concatenated; of a flat array."""
        return self._stream.gather(first, lengths, self._stored).astype(
            self.spec.dtype, copy=False
        )

    def locate(self, start: int, stop: int) -> list[Location]:
        """Files of entries, each with its first and last byte."""
        return self._stream.ends.locate(
            start * self._entry_bytes, stop * self._entry_bytes
        )

    def _read(
        self, first: Integers, shape: tuple[int, ...], columns: Columns, out: Array
    ) -> None:
        """Reads a box of the arrays of a shape that begin at these entries."""
        if not out.size:
            return
        # Along the first dimension the box is one byte range; along the others it is cut out afterwards.
        (low, high), *others = columns
        across = math.prod(shape[1:]) * self._stored.itemsize
        starts = first * self._entry_bytes + low * across
        size = (high - low) * across
        contiguous = out.flags.c_contiguous or (
            out.ndim == 2 and out.strides[1] == out.itemsize
        )
        if (
            contiguous
            and out.dtype == self._stored
            and tuple(others) == all_columns(shape[1:])
        ):
            self._stream.read_into(starts, out.reshape(len(out), -1).view(np.uint8))
            return
        content = np.empty((len(first), size), np.uint8)
        self._stream.read_into(starts, content)
        box = (slice(None), slice(None), *(slice(*column) for column in others))
        out[...] = content.view(self._stored).reshape(
            len(first), high - low, *shape[1:]
        )[box]
