"""Identity of files: what tells a file from another one, by which caches and indices find what they keep of it.

A file is identified by its location, its size, and its time of change or ETag. Times of change are often whole seconds
or set by a program that copies (`tar -x`, `rsync -t`), so the first and last bytes of local files count too; compressed
files have checksums there. Where a server sends neither ETag nor time, a digest of the content takes their place.
"""

import hashlib
import os
from collections.abc import Sequence
from typing import BinaryIO, NamedTuple

from loadax.redaction import redact
from loadax.sources.io.paths import local_path

_END = 4096  # bytes at each end of a local file


class FileIdentity(NamedTuple):
    """Identity of a file.

    Args:
        location: Absolute path without links, or URL without credentials.
        size: Bytes.
        generation: ETag or time of change.
        ends: Digest of the first and last bytes of a local file; empty for a remote one.
    """

    location: str
    size: int
    generation: bytes
    ends: str = ""

    def digest(self) -> str:
        """Hash of the identity, as text."""
        return digest_of(self)


def digest_of(identity: object) -> str:
    """Hash of identities, as text."""
    return hashlib.sha256(repr(identity).encode()).hexdigest()[:16]


def stat_identity(path: str) -> tuple[str, int, int] | tuple[str, str]:
    """Location, size and time of change of a local file at a path without links."""
    try:
        status = os.stat(path)  # noqa: PTH116
    except OSError:
        return path, "missing"
    return path, status.st_size, status.st_mtime_ns


def resolved(location: str) -> str:
    """The location of a file in its identity: without links, or without credentials, which are renewed."""
    path = local_path(location)
    return redact(location) if path is None else os.path.realpath(path)


def ends_of(file: BinaryIO, size: int) -> str:
    """Digest of the first and last bytes of a file."""
    digest = hashlib.sha256(file.read(_END))
    file.seek(max(0, size - _END))
    digest.update(file.read(_END))
    return digest.hexdigest()[:16]


def digest_parts(size: int, most: int, step: int) -> Sequence[tuple[int, int]]:
    """Byte ranges whose digest stands for the content of a file: all, or evenly spaced ones if they exceed `most`."""
    count = -(-min(size, most) // step)
    last = max(0, size - step)
    return [(begin, min(size, begin + step)) for begin in (index * last // max(1, count - 1) for index in range(count))]
