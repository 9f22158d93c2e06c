"""Decompresses files, with one limit for all formats: recognises gzip, bzip2, xz and Zstandard by their first bytes."""

import bz2
import gzip
import lzma
import re
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from loadax.core.formatting import size_text
from loadax.errors import SourceError

# First bytes of a file that `compression_of` needs.
MAGIC_BYTES = 10

_MAGIC = {
    "gzip": re.compile(rb"\x1f\x8b\x08"),
    "bz2": re.compile(rb"BZh[1-9](1AY&SY|\x17rE8P\x90)"),
    "xz": re.compile(rb"\xfd7zXZ\x00"),
    "zstd": re.compile(rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18", re.DOTALL),
}
_WINDOW = 1 << 20
MOST = 1 << 30  # bytes that any file may have decompressed
# of larger ones to their compressed size; text is compressed five to twenty times
_RATIO = 200
# bytes that the dictionary of an xz file may take; `xz -9` needs 65 MiB
_XZ = 256 << 20


def compression_of(start: bytes) -> str | None:
    """Name of the codec of a file that begins with `start`; None: it is not compressed."""
    return next(
        (codec for codec, magic in _MAGIC.items() if magic.match(start)), None
    )


def decompress(file: Any, location: str, size: int) -> Iterator[bytes]:
    """Yields the decompressed content of a file in blocks of at most 1 MiB; joined streams are decompressed all.

    Args:
        file: Binary file object at the beginning of the file, such as `open(path, "rb")` or `io.BytesIO(content)`.
        location: Path or URL, for messages.
        size: Size of the compressed file in bytes.

    Raises:
        SourceError: When the file is not compressed, cut short or damaged, or its content exceeds 1 GiB and 200 times
            its size; names it.
    """
    import pyarrow as pa

    done = 0
    most = max(MOST, _RATIO * size)
    try:
        for block in _blocks(file, location):
            done += len(block)
            if done > most:
                raise SourceError(
                    f"{location}: its {size_text(size)} become more than "
                    f"{size_text(most)}, more than {_RATIO} times as many, which "
                    "looks like an attack; if it is right, decompress it yourself "
                    "and pass that file"
                )
            yield block
    except (
        EOFError,
        OSError,
        MemoryError,
        zlib.error,
        lzma.LZMAError,
        pa.ArrowException,
    ) as error:
        raise SourceError(
            f"{location}: the file can't be decompressed: {error}; copy it again"
        ) from error


def _blocks(file: Any, location: str) -> Iterator[bytes]:
    import pyarrow as pa

    start = file.read(MAGIC_BYTES)
    file.seek(0)
    codec = compression_of(start)
    if codec is None:
        raise SourceError(
            f"{location}: the file is not compressed: it begins with {start!r}; "
            "rename it"
        )
    if codec in ("bz2", "xz"):
        make: Any
        if codec == "bz2":
            make = bz2.BZ2Decompressor
        else:
            make = partial(lzma.LZMADecompressor, memlimit=_XZ)
        yield from _joined(file, make)
        return
    is_gzip = codec == "gzip"
    stream: Any
    if is_gzip:
        stream = gzip.GzipFile(fileobj=file)
    else:
        stream = pa.CompressedInputStream(pa.PythonFile(file, "r"), codec)
    yield from iter(lambda: stream.read(_WINDOW), b"")


def _joined(file: Any, make: Callable[[], Any]) -> Iterator[bytes]:
    """Decompresses streams that follow each other; `lzma` and `bz2` ignore what follows padding or other bytes."""
    one = make()
    rest = b""
    while one.eof or rest or not one.needs_input or (rest := file.read(_WINDOW)):
        if one.eof:
            rest = one.unused_data.lstrip(b"\0") or file.read(_WINDOW).lstrip(b"\0")
            if not rest:
                return
            one = make()
        yield one.decompress(rest, max_length=_WINDOW)
        rest = b""
    raise EOFError("it ends before its end is marked")
