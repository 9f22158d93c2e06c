"""Identity of files: what tells a file from another one, by which caches and indices find what they keep of it.

A file is identified by its location, its size, and its time of change or ETag. Times of change are often whole seconds
or set by a program that copies (`tar -x`, `rsync -t`), so a sample of the bytes of local files counts too, also of the
last ones, where compressed files have checksums. Where a server sends neither ETag nor time, a digest of the content
takes their place.
"""

import hashlib
import os
from collections.abc import Sequence
from typing import BinaryIO, NamedTuple

from loadax.files.paths import local_path
from loadax.redaction import redact

_PART = 4096  # bytes of a local file in each part of the sample


class FileIdentity(NamedTuple):
    """Identity of a file.

    Args:
        location: Absolute path without links, or URL without credentials.
        size: Bytes.
        generation: ETag or time of change.
        sample: Digest of a few parts of a local file; empty for a remote one.
    """

    location: str
    size: int
    generation: bytes
    sample: str = ""


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
    if path is None:
        return redact(location)
    return os.path.realpath(path)


def sample_of(file: BinaryIO, size: int) -> str:
    """Digest of a few parts of a file, the first and the last among them."""
    digest = hashlib.sha256()
    for begin, end in digest_parts(size, 4 * _PART, _PART):
        file.seek(begin)
        digest.update(file.read(end - begin))
    return digest.hexdigest()[:16]


def digest_parts(size: int, most: int, step: int) -> Sequence[tuple[int, int]]:
    """Byte ranges whose digest stands for the content of a file: all, or evenly spaced ones if they exceed `most`."""
    count = -(-min(size, most) // step)
    last = max(0, size - step)
    return [
        (begin, min(size, begin + step))
        for begin in (index * last // max(1, count - 1) for index in range(count))
    ]
