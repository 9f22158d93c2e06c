"""Reads headers of `.npy` files."""

import math
import tokenize
from collections.abc import Callable, Sequence
from contextlib import suppress
from io import BytesIO
from typing import Any, NamedTuple

import numpy as np
from numpy.lib.format import read_array_header_1_0, read_array_header_2_0
from numpy.typing import NDArray

from loadax.core.arguments import LARGEST
from loadax.core.formatting import count_text
from loadax.errors import SourceError
from loadax.files.byte_ranges import ByteRange, too_short
from loadax.files.files import Files
from loadax.files.magic import NPY

REMEDY = (
    "write it with numpy.save; if it is a flat file of tokens, open it with "
    "from_tokens and dtype="
)
# bytes of magic, version and the header's own length; no .npy file is shorter
_PREFIX = 12
_FIRST = 1 << 12  # bytes of the first read; most headers have 128
_TRIES = 3  # of parsing a header, before the last one
_LONGEST = 10_000  # bytes of the longest header that NumPy reads
_VERSIONS = (b"\1\0", b"\2\0", b"\3\0")

# Exceptions that NumPy and Python's parsers raise for damaged files and other formats.
NPY_FAILURES = (
    *(
        OSError,
        EOFError,
        ValueError,
        SyntaxError,
        TypeError,
        KeyError,
        OverflowError,
        MemoryError,
        RecursionError,
    ),
    *(tokenize.TokenError, AssertionError, IndexError, AttributeError),
)


def parse_npy(content: bytes | memoryview) -> NDArray[Any]:
    """The array of a whole `.npy` file; raises one of `NPY_FAILURES` for other formats and archives.

    Without a copy, so that what a header claims is never allocated.
    """
    location = "the array"
    first, begin = _span(bytes(content[:_PREFIX]), location)
    header = _parse(
        bytes(content[:_PREFIX]), bytes(content[first:begin]), begin, location
    )
    if len(content) < begin + header.size:
        raise SourceError(
            f"it is cut short: {header.dtype}{list(header.shape)} takes "
            f"{count_text(header.size, 'byte')}"
        )
    array = np.frombuffer(content, header.dtype, math.prod(header.shape), begin)
    return array.reshape(header.shape, order="F" if header.fortran else "C")


class NpyHeader(NamedTuple):
    """Dtype, shape and memory order of a `.npy` file's array, and its first byte in the file."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    fortran: bool
    begin: int

    @property
    def size(self) -> int:
        """Size of the array in bytes."""
        return math.prod(self.shape) * self.dtype.itemsize


def read_npy_headers(files: Files, locations: Sequence[str]) -> list[NpyHeader]:
    """Reads the headers of `.npy` files and checks them against the lengths of the files.

    Raises:
        SourceError: When a file is missing, not a `.npy` file, cut short, or contains Python objects; names it.
    """
    starts = files.read_starts(locations, _FIRST)
    spans = [
        _span(start, location)
        for start, location in zip(starts, locations, strict=True)
    ]
    longer = {
        index: ByteRange(locations[index], *span)
        for index, span in enumerate(spans)
        if span[1] > len(starts[index])
    }
    texts = [
        start[first:stop] for start, (first, stop) in zip(starts, spans, strict=True)
    ]
    for index, text in zip(longer, files.read(list(longer.values())), strict=True):
        texts[index] = text
    parts = zip(starts, texts, spans, locations, strict=True)
    headers = [
        _parse(start, text, stop, location)
        for start, text, (_, stop), location in parts
    ]
    for header, location, size in zip(
        headers, locations, files.sizes(locations), strict=True
    ):
        if size < header.begin + header.size:
            raise SourceError(
                f"{location}: the file is cut short: "
                f"{header.dtype}{list(header.shape)} of its header needs "
                f"{count_text(header.begin + header.size, 'byte')}; copy it again"
            )
    return headers


def _span(start: bytes, location: str) -> tuple[int, int]:
    """Byte range of the header's text."""
    if not start.startswith(NPY):
        if start.startswith(b"PK\3\4"):
            archive = "an archive (.npz): save each of its arrays with numpy.save"
        else:
            archive = REMEDY
        raise SourceError(
            f"{location} is not a .npy file: it begins with {start[:6]!r}; {archive}"
        )
    if len(start) < _PREFIX:
        raise too_short(ByteRange(location, 0, _PREFIX))
    if start[6:8] not in _VERSIONS:
        raise SourceError(
            f"{location} is a .npy file of version {start[6]}.{start[7]}, which "
            "NumPy never wrote; copy it again"
        )
    if start[6] == 1:
        first = 10
    else:
        first = 12
    length = int.from_bytes(start[8:first], "little")
    if length > _LONGEST:
        raise SourceError(
            f"{location}: the header of this .npy file has "
            f"{count_text(length, 'byte')}; copy it again"
        )
    return first, first + length


def _parse(start: bytes, text: bytes, begin: int, location: str) -> NpyHeader:
    """The header of a file that begins with `start`. NumPy parses it, as it parses those that Python 2 wrote."""
    if start[6] == 1:
        length, read = (2, read_array_header_1_0)
    else:
        length, read = (4, read_array_header_2_0)
    try:
        # UTF-8, which the parser of version 2 reads once it is escaped
        if start[6] == 3:
            text = text.decode().encode("ascii", "backslashreplace")
        shape, fortran, dtype = _parsed(
            read, len(text).to_bytes(length, "little") + text
        )
        size = math.prod(max(1, extent) for extent in shape) * dtype.itemsize
        if size > LARGEST or min(shape, default=0) < 0 or bool in map(type, shape):
            raise ValueError(f"its shape is {shape}")
    except NPY_FAILURES as error:
        raise SourceError(
            f"{location}: the header of this .npy file can't be read: {error}; copy "
            "it again"
        ) from error
    if dtype.hasobject:
        raise SourceError(
            f"{location} contains Python objects; save an array of numbers with "
            "numpy.save"
        )
    return NpyHeader(dtype, tuple(map(int, shape)), fortran, begin)


def _parsed(read: Callable[[BytesIO], Any], header: bytes) -> Any:
    """What NumPy's parser reads, which parses Python.

    Threads of Python 3.11 that parse at once share a counter, and now and then one raises SystemError.
    """
    for _ in range(_TRIES):
        with suppress(SystemError):
            return read(BytesIO(header))
    return read(BytesIO(header))
