"""Decompresses files once, into a local folder."""

import gzip
import hashlib
import io
import os
import secrets
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from loadax.core.formatting import size_text
from loadax.core.progress import progress_bar
from loadax.errors import ArgumentError, SourceError
from loadax.sources.file_names import compression
from loadax.sources.io.byte_ranges import ByteRange
from loadax.sources.io.expand import file_name
from loadax.sources.io.files import Files
from loadax.sources.io.paths import local_folder
from loadax.sources.io.range_file import RangeFile

_FOLDER = "loadax-decompressed"
_WINDOW = 8 << 20
_MOST = 1 << 30  # bytes that any file may have decompressed
_RATIO = 200  # of larger ones to their compressed size; JSON is compressed five to twenty times


def decompressed(files: Files, locations: Sequence[str], cache: Any, progress: bool | None) -> list[str]:
    """Paths of the decompressed contents of files; files that are not compressed are returned as they are.

    Each file is written whole under another name, and then renamed; a file of another size or generation gets another
    name.

    Raises:
        ArgumentError: When a file is compressed, and there is no cache, or it can't be written.
        SourceError: When a file is damaged; names it.
    """
    compressed = [location for location in locations if compression(location)]
    if not compressed:
        return list(locations)
    if cache is None:
        raise ArgumentError(
            f"{compressed[0]} is compressed, so that no row can be read without those before it; pass cache=FOLDER, a "
            "local folder for its decompressed content, or decompress it",
            argument="cache",
        )
    folder = local_folder("cache", cache) / _FOLDER
    try:
        folder.mkdir(0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ArgumentError(
            f"cache={os.fspath(cache)!r} can't be written: {error}; pass a folder of your own"
        ) from error
    identities = zip(compressed, files.sizes(compressed), files.generations(compressed), strict=True)
    paths = {location: folder / _name(location, size, generation) for location, size, generation in identities}
    missing = [location for location in paths if not paths[location].exists()]
    with progress_bar("decompress", sum(files.sizes(missing)), "B", progress) as done:
        for location, size in zip(missing, files.sizes(missing), strict=True):
            _decompress(files, location, size, paths[location])
            done(size)
    return [str(paths.get(location, location)) for location in locations]


def _name(location: str, size: int, generation: bytes) -> str:
    name = file_name(location)
    digest = hashlib.sha256(repr((name, size, generation)).encode()).hexdigest()[:16]
    return f"{digest}-{name.rpartition('.')[0]}"


def _decompress(files: Files, location: str, size: int, path: Path) -> None:
    def fetch(start: int, stop: int) -> bytes:
        return files.read([ByteRange(location, start, stop)])[0]

    file: Any = io.BufferedReader(RangeFile(size, {}, fetch), _WINDOW)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        is_gzip = compression(location) == "gzip"
        stream: Any = gzip.GzipFile(fileobj=file) if is_gzip else pa.CompressedInputStream(pa.PythonFile(file), "zstd")
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:
            while content := stream.read(_WINDOW):
                out.write(content)
                if out.tell() > max(_MOST, _RATIO * size):
                    raise SourceError(
                        f"{location}: its {size_text(size)} become more than {size_text(out.tell())}, more than "
                        f"{_RATIO} times as many, which looks like an attack; if it is right, decompress it yourself "
                        "and pass the decompressed file"
                    )
            out.flush()
            os.fsync(out.fileno())
        temporary.replace(path)
    except (EOFError, OSError, MemoryError, zlib.error, pa.ArrowException) as error:
        raise SourceError(
            f"{location}: the file can't be decompressed: {error}; copy it again, or free space in the cache"
        ) from error
    finally:
        temporary.unlink(missing_ok=True)
