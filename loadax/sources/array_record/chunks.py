"""Parses the chunks of ArrayRecord files, which are those of Riegeli files, and the footer that lists them.

A file is cut every 64 KiB by a header of 24 bytes, wherever that falls within a chunk. A chunk has a header of 40
bytes, the sizes of its records, and their contents, each compressed by itself. The last 64 KiB tell where the footer
is, whose records tell offset, size and number of records of each chunk. The hashes of chunks are not compared.
"""

from typing import NamedTuple

from loadax.sources.library import require

BLOCK = 64 << 10
_BLOCK_HEADER = 24
_CHUNK_HEADER = 40
_SIMPLE = ord("r")
_CODECS = {ord("b"): "brotli", ord("z"): "zstd", ord("s"): "snappy"}
_MAGIC = 0x71930E704FDAE05E
_LONGEST = 10  # bytes of a number
# Fields of the footer's records.
_METADATA, _OFFSET, _DECODED, _RECORDS = 1, 1, 2, 3
_VARINT, _BYTES = 0, 2  # kinds of fields


class ChunkError(ValueError):
    """The bytes are not those of a chunk that this module reads."""


class TransposedError(ChunkError):
    """The fields of a chunk's records are stored apart."""


class RecordChunk(NamedTuple):
    """A chunk of records: its offset in the file, bytes of its records, and their number."""

    offset: int
    nbytes: int
    records: int


def without_headers(content: bytes, start: int) -> bytes:
    """The bytes of a file from `start` on, without the headers of blocks."""
    parts = []
    at = 0
    while at < len(content):
        within = (start + at) % BLOCK
        if not within:
            at += _BLOCK_HEADER
            within = _BLOCK_HEADER
        stop = at + BLOCK - within
        parts.append(content[at:stop])
        at = stop
    return b"".join(parts)


def footer_offset(last: bytes) -> int:
    """Where the footer begins, by the last 64 KiB of a file.

    Raises:
        ChunkError: When it is not an ArrayRecord file, or its writer was not closed.
    """
    fields = _fields(records_of(without_headers(last, 0), 1 << 10)[0])
    if fields.get(2) != _MAGIC or not isinstance(offset := fields.get(1), int):
        raise ChunkError("it does not end as an ArrayRecord file")
    return offset


def chunks_of(footer: bytes, end: int) -> list[RecordChunk]:
    """The chunks that a footer lists, in the order of the file.

    Args:
        footer: Bytes of the footer, without the headers of blocks.
        end: Offset of the footer.

    Raises:
        ChunkError: When it is damaged.
    """
    _, *others = records_of(footer, 1 << 31)
    found = []
    for record in others:
        fields = _fields(record)
        values = [fields.get(field, 0) for field in (_OFFSET, _DECODED, _RECORDS)]
        found.append(RecordChunk(*values))
    offsets = [chunk.offset for chunk in found]
    if offsets != sorted(set(offsets)) or (offsets and offsets[-1] >= end):
        raise ChunkError("the offsets of its chunks don't ascend")
    return found


def decode(content: bytes, chunk: RecordChunk) -> list[bytes]:
    """The records of a chunk, from the bytes of the file where it is.

    Raises:
        ChunkError: When it is damaged, or "transposed".
        UnsupportedError: When it is compressed, and pyarrow is not installed.
    """
    records = records_of(without_headers(content, chunk.offset), chunk.nbytes)
    if len(records) != chunk.records or sum(map(len, records)) != chunk.nbytes:
        raise ChunkError("a chunk has other records than the footer tells")
    return records


def records_of(chunk: bytes, most: int) -> list[bytes]:
    """The records of a chunk.

    Args:
        chunk: Its bytes, without the headers of blocks; what follows it is ignored.
        most: Bytes that its records may have.

    Raises:
        ChunkError: When it is damaged, or "transposed".
        UnsupportedError: When it is compressed, and pyarrow is not installed.
    """
    size = int.from_bytes(chunk[8:16], "little")
    number = int.from_bytes(chunk[25:32], "little")
    data = chunk[_CHUNK_HEADER : _CHUNK_HEADER + size]
    if len(data) < max(2, size):
        raise ChunkError("a chunk is cut short")
    if chunk[24] == ord("t"):
        raise TransposedError("it was written with transpose:true")
    if chunk[24] != _SIMPLE:
        raise ChunkError("a chunk is of an unknown kind")
    codec = data[0]
    length, at = _varint(data, 1)
    sizes = _decompressed(codec, data[at : at + length], _LONGEST * number)
    content = _decompressed(codec, data[at + length :], most)
    records = []
    begin = 0
    at = 0
    for _ in range(number):
        length, at = _varint(sizes, at)
        records.append(content[begin : begin + length])
        begin += length
    if begin != len(content) or at != len(sizes):
        raise ChunkError("the sizes of its records are damaged")
    return records


def _decompressed(codec: int, content: bytes, most: int) -> bytes:
    if not codec:
        return content
    if codec not in _CODECS:
        raise ChunkError("a chunk has an unknown compression")
    require(
        "a compressed ArrayRecord file in a bucket", {"pyarrow": "pyarrow"}, "parquet"
    )
    import pyarrow as pa

    size, at = _varint(content, 0)
    if size > most:
        raise ChunkError("a chunk tells a wrong size")
    if not size:
        return b""
    try:
        decompressed = pa.decompress(content[at:], size, _CODECS[codec], asbytes=True)
    except (pa.ArrowException, OSError) as error:
        raise ChunkError(f"a chunk can't be decompressed: {error}") from error
    if len(decompressed) != size:
        raise ChunkError("a chunk tells a wrong size")
    found: bytes = decompressed
    return found


def _fields(message: bytes) -> dict[int, int]:
    """The numbers of a message of Protocol Buffers, by field; fields of bytes are left out."""
    found = {}
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        value, at = _varint(message, at)
        if key & 7 == _VARINT:
            found[key >> 3] = value
        elif key & 7 == _BYTES:
            at += value
        else:
            raise ChunkError("its footer is damaged")
    return found


def _varint(content: bytes, at: int) -> tuple[int, int]:
    """The number that begins at a byte, and the byte after it."""
    value = 0
    for shift, byte in enumerate(content[at : at + _LONGEST]):
        value |= (byte & 127) << 7 * shift
        if byte < 128:
            return value, at + shift + 1
    raise ChunkError("a number is cut short")
