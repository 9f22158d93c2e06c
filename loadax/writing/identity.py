"""Fingerprints of data: sizes and modification times of its files, and a sample of its rows.

A change of a local file is detected by its size or modification time (for 16,384 evenly spaced files if there are
more). Data in memory is compared whole up to 64 MiB, and beyond that by 64 MiB of evenly spaced rows. Everything else,
such as remote files and users' sources, is compared by the sample of rows that each caller takes. The location of
files is ignored, so data may be moved.
"""

import hashlib
import itertools
import os
from collections.abc import Iterable
from datetime import date, time, timedelta
from decimal import Decimal
from fractions import Fraction
from pathlib import Path, PurePath
from typing import Any
from uuid import UUID

import numpy as np

from loadax.core.distributed import this_process
from loadax.protocols import Integers
from loadax.sources.base import BaseSource, walk
from loadax.sources.checks import chunk_starts
from loadax.sources.io.index_folder import FILES
from loadax.sources.io.paths import local_path
from loadax.writing.own_files import keys_below, own_keys

_MOST_FILES = 1 << 14
_MOST_MEMORY = 64 << 20  # bytes
_SAMPLE_BYTES = 64 << 20  # that a sample of rows may decode
_LEAST_ROWS = 3
_PLAIN = (str, bytes, int, float, complex, type(None), *(Decimal, Fraction, date, time, timedelta, UUID, PurePath))


def identify(source: BaseSource) -> dict[str, str | None]:
    """Digests of a source's files and of its data in memory; None for a part that it does not have."""
    return {FILES: None if this_process().count > 1 else _files(source), "memory": _memory(source)}


def spread(size: int, most: int) -> Integers:
    """Evenly spaced sample of `range(size)`, at most `most` entries, including the first and last."""
    return np.unique(np.linspace(0, max(0, size - 1), min(most, size)).astype(np.int64))


def sample_size(source: BaseSource, row_bytes: int, most: int) -> int:
    """Number of rows of a sample, bounded by the bytes of the chunks that it decodes."""
    starts = chunk_starts(source)
    decoded = 1 if starts is None else max(1, len(source) // len(starts))
    return max(_LEAST_ROWS, min(most, _SAMPLE_BYTES // max(1, row_bytes * decoded)))


def digest_of(arrays: Iterable[Any]) -> str:
    """Hash of the shapes, dtypes and contents of arrays, equal in every process."""
    digest = hashlib.sha256()
    for array in map(np.asarray, arrays):
        plain = array.dtype.kind not in "US" and not array.dtype.hasobject
        entries = None if plain else list(map(_content, array.ravel().tolist()))
        digest.update(repr((array.dtype.str, array.shape, entries)).encode())
        if plain:
            digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()[:16]


def _content(value: Any) -> Any:
    """Reduces an object to what is equal in every process: the `repr` of others contains addresses."""
    match value:
        case dict():
            return [(_content(key), _content(entry)) for key, entry in value.items()]
        case list() | tuple():
            return [type(value).__qualname__, *map(_content, value)]
        case np.ndarray() | np.generic():
            return digest_of([value])
        case _ if isinstance(value, _PLAIN):
            return value
        case _:
            return type(value).__qualname__


def _memory(source: BaseSource) -> str | None:
    arrays = (array for part in walk(source) for array in part.held(_MOST_MEMORY))
    first = next(arrays, None)
    return None if first is None else digest_of(itertools.chain([first], arrays))


def _files(source: BaseSource) -> str | None:
    digest, any_file = hashlib.sha256(), False
    for name, path in itertools.chain.from_iterable(map(_files_of, walk(source))):
        try:
            status = os.stat(path)  # noqa: PTH116
        except OSError:
            digest.update(repr((name, "missing")).encode())
        else:
            digest.update(repr((name, status.st_size, status.st_mtime_ns)).encode())
        any_file = True
    return digest.hexdigest()[:16] if any_file else None


def _files_of(source: BaseSource) -> Iterable[tuple[str, str]]:
    """Sample of the local files of a source, each with a name that does not depend on its location."""
    sample = source.some_files(_MOST_FILES)
    if sample is not None:
        return [(path.rpartition("/")[2], path) for path in sample]
    files: list[tuple[str, str]] = []
    addresses = source.addresses
    for index in spread(len(addresses), _MOST_FILES).tolist():
        path = local_path(addresses[index].partition("|")[0])
        if path is not None and path.is_dir():
            keys = _of_folder(path)
            files += [
                (keys[position], str(path / keys[position]))
                for position in spread(len(keys), _MOST_FILES // len(addresses) + 1).tolist()
            ]
        elif path is not None:
            files.append((path.name, str(path)))
    return files


def _of_folder(folder: Path) -> list[str]:
    """Files of a zarr store; all visible files for another kind of store."""
    keys = sorted(keys_below(folder))
    return own_keys(keys) or [key for key in keys if not key.startswith(".")]
