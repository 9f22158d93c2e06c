"""Parses Megatron's `.idx` files, and fairseq's: the document offsets of a `.bin` file."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from loadax.core.formatting import count_text
from loadax.errors import SourceError
from loadax.files.byte_ranges import ByteRange
from loadax.files.files import Files
from loadax.protocols import Integers

_MAGIC = b"MMIDIDX\x00\x00"
_HEADER = np.dtype(
    [("magic", "S9"), ("version", "<u8"), ("dtype", "u1"), ("sequences", "<u8")]
)
_DTYPES = {
    1: "u1",
    2: "i1",
    3: "<i2",
    4: "<i4",
    5: "<i8",
    8: "<u2",
    9: "<u4",
    10: "<u8",
}
_PIECE = 8 << 20  # bytes per read


class MegatronIndex(NamedTuple):
    """Contents of an `.idx` file: dtype and number of the tokens, and the first token of each document."""

    dtype: np.dtype[Any]
    tokens: int
    begins: Integers


def read_index(files: Files, location: str) -> MegatronIndex:
    """Reads and validates an `.idx` file.

    Raises:
        SourceError: When it is missing, has another format, is cut short, or is inconsistent; names it.
    """
    size = _HEADER.itemsize
    header = np.frombuffer(_read(files, location, 0, size), _HEADER)[0]
    # NumPy strips trailing zeros from bytes fields.
    if header["magic"] != _MAGIC.rstrip(b"\x00"):
        raise SourceError(
            f"{location} is not an index of Megatron's or fairseq's mmap format: "
            f"{bytes(header['magic'])!r}; write it with --dataset-impl mmap, or move "
            "it elsewhere, and pass the .bin file with dtype="
        )
    if header["version"] != 1:
        raise SourceError(
            f"{location} has version {header['version']}, not 1; write it again"
        )
    code = int(header["dtype"])
    sequences = int(header["sequences"])
    if code not in _DTYPES:
        raise SourceError(
            f"{location}: the code {code} of its dtype is not one of integers; "
            "convert the tokens"
        )
    dtype = np.dtype(_DTYPES[code])
    # fairseq's indices end after the pointers: each sequence is a document. Megatron's have the documents too.
    grouped = files.sizes([location])[0] != size + 12 * sequences
    if grouped:
        documents = int.from_bytes(_read(files, location, size, size + 8), "little")
    else:
        documents = sequences + 1
    size += 8 * grouped
    lengths_end = size + 4 * sequences
    pointers_end = lengths_end + 8 * sequences
    needed = pointers_end + 8 * documents * grouped
    if files.sizes([location])[0] < needed:
        what = (
            f"{count_text(sequences, 'sequence')} and {documents} document indices "
            f"take {count_text(needed, 'byte')}"
        )
        raise SourceError(f"{location}: the file is cut short: {what}; copy it again")
    lengths = np.frombuffer(_read(files, location, size, lengths_end), "<i4")
    pointers = np.frombuffer(_read(files, location, lengths_end, pointers_end), "<i8")
    firsts = np.arange(documents)
    if grouped:
        firsts = np.frombuffer(
            _read(files, location, pointers_end, pointers_end + 8 * documents), "<i8"
        )
    begins = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    damaged = np.flatnonzero(
        (lengths < 0) | (pointers != begins[:-1] * dtype.itemsize)
    )
    if len(damaged):
        wrong = int(damaged[0])
        raise SourceError(
            f"{location}: sequence {wrong} has "
            f"{count_text(lengths[wrong], 'token')} and begins at byte "
            f"{pointers[wrong]}, expected byte {begins[wrong] * dtype.itemsize}, "
            "the end of the previous one; the file is damaged: write it again"
        )
    if (
        not documents
        or firsts[0] != 0
        or firsts[-1] != sequences
        or (np.diff(firsts) < 0).any()
    ):
        what = (
            f"its {documents} document indices don't ascend from 0 to {sequences}, "
            "the number of its sequences"
        )
        raise SourceError(f"{location}: {what}; the file is damaged: write it again")
    return MegatronIndex(dtype, int(begins[-1]), begins[firsts[:-1]])


def read_documents(
    files: Files, locations: Sequence[str]
) -> tuple[Integers, Integers]:
    """The first token of each document of a stream, and its end, by its `.idx` files."""
    begins = []
    ends = []
    before = 0
    for location in locations:
        index = read_index(files, location)
        begins.append(index.begins + before)
        ends.append(np.append(index.begins[1:], index.tokens) + before)
        before += index.tokens
    return np.concatenate(begins), np.concatenate(ends)


def _read(files: Files, location: str, start: int, stop: int) -> bytes:
    cuts = range(start, stop, _PIECE)
    return b"".join(
        files.read(
            [ByteRange(location, cut, min(cut + _PIECE, stop)) for cut in cuts]
        )
    )
