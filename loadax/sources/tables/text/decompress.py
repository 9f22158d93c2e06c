"""Decompresses files once, into a local folder.

    folder/loadax-decompressed/3f9a…-name         the content
    folder/loadax-decompressed/3f9a…-name.sha256  its digest, and the size and times of the file when that was taken

A file whose size and times are as they were is not read again to be checked: another content has another `ctime`, which
no program can set.
"""

import hashlib
import io
import json
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from loadax.core.log import log
from loadax.core.progress_bar import progress_bar
from loadax.errors import ArgumentError
from loadax.files.byte_ranges import ByteRange
from loadax.files.compression import MAGIC_BYTES, compression_of, decompress
from loadax.files.files import Files
from loadax.files.identity import FileIdentity, digest_of
from loadax.files.kept_files import (
    make_private_folder,
    not_writable,
    open_kept,
    private_folder,
    sweep,
    whole_file,
)
from loadax.files.paths import local_folder
from loadax.files.range_file import RangeFile
from loadax.sources.expand import file_name

_FOLDER = "loadax-decompressed"
_WINDOW = 8 << 20
_LONGEST = 1 << 12  # bytes of a digest's file
_LONGEST_NAME = 180  # characters of a file's own name in that of its content


def decompressed(
    files: Files, locations: Sequence[str], cache: Any, progress: bool | None
) -> list[str]:
    """Paths of the decompressed contents of files; files that are not compressed are returned as they are.

    Each file is written whole under another name, and then renamed; a file of another identity gets another name. Small
    remote files are requested once: `files` has their contents until `forget_whole`.

    Raises:
        ArgumentError: When a file is compressed, and there is no cache, or it can't be written or trusted.
        SourceError: When a file is damaged; names it.
    """
    starts = files.read_starts(locations, MAGIC_BYTES, whole=True)
    compressed = [
        location
        for location, start in zip(locations, starts, strict=True)
        if compression_of(start)
    ]
    if not compressed:
        return list(locations)
    if cache is None:
        raise ArgumentError(
            f"{compressed[0]} is compressed, so that no row can be read without "
            "those before it; pass cache=FOLDER, a local folder for its decompressed "
            "content, or decompress it",
            argument="cache",
        )
    parent = local_folder("cache", cache)
    folder = private_folder(parent, _FOLDER)
    sweep(folder)
    known = files.identities(compressed)
    paths = {
        location: folder / _name(identity)
        for location, identity in zip(compressed, known, strict=True)
    }
    missing = [
        (location, identity.size)
        for location, identity in zip(compressed, known, strict=True)
        if not _is_whole(paths[location])
    ]
    with progress_bar(
        "decompress", sum(size for _, size in missing), "B", progress
    ) as done:
        for location, size in missing:
            try:
                make_private_folder(parent, _FOLDER)
                _decompress(files, location, size, paths[location])
            except OSError as error:
                raise not_writable(parent, error) from error
            done(size)
    return [str(paths.get(location, location)) for location in locations]


def _name(identity: FileIdentity) -> str:
    name = file_name(identity.location)
    return (
        f"{digest_of(identity)}-{name.rpartition('.')[0][:_LONGEST_NAME] or 'file'}"
    )


def _decompress(files: Files, location: str, size: int, path: Path) -> None:
    def fetch(start: int, stop: int) -> bytes:
        return files.read([ByteRange(location, start, stop)])[0]

    digest = hashlib.sha256()
    with whole_file(path, 0o600) as out:
        for block in decompress(
            io.BufferedReader(RangeFile(size, {}, fetch), _WINDOW), location, size
        ):
            digest.update(block)
            out.write(block)
    _describe(path, digest.hexdigest())


def _describe(path: Path, digest: str) -> None:
    with whole_file(path.with_name(f"{path.name}.sha256"), 0o600) as out:
        out.write(json.dumps([digest, *_stamp(path.lstat())]).encode())


def _stamp(status: os.stat_result) -> tuple[int, int, int, int]:
    return status.st_size, status.st_ino, status.st_mtime_ns, status.st_ctime_ns


def _is_whole(path: Path) -> bool:
    """Whether a content is there and undamaged; says so if it is damaged."""
    digest = ""
    try:
        with os.fdopen(
            open_kept(path.with_name(f"{path.name}.sha256")), "rb"
        ) as described:
            digest, *stamp = json.loads(described.read(_LONGEST))
        with os.fdopen(open_kept(path), "rb") as file:
            now = [*_stamp(os.fstat(file.fileno()))]
            if stamp == now:
                return True
            same = (
                stamp[:1] == now[:1]
                and hashlib.file_digest(file, "sha256").hexdigest() == digest
            )
            if same:
                problem = ""
            else:
                problem = "its size or digest is wrong"
    except FileNotFoundError:
        return False
    except (OSError, ValueError, TypeError, RecursionError) as error:
        problem = str(error)
    if problem:
        log.warning(
            "%s: this decompressed content is damaged (%s) and is made again",
            path,
            problem,
        )
        return False
    with suppress(OSError):
        _describe(path, digest)
    return True
