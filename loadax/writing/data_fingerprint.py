"""Fingerprints of data: locations, sizes and times or ETags of its files, and a sample of its rows.

A change of a file is detected by its size, and its modification time or ETag (for 16,384 evenly spaced files if there
are more). Data in memory is compared whole up to 64 MiB, and beyond that by 64 MiB of evenly spaced rows. Everything
else, such as remote stores and users' sources, is compared by the sample of rows that each caller takes.
"""

import hashlib
import itertools
import os
from collections.abc import Iterable
from contextlib import suppress
from datetime import date, time, timedelta
from decimal import Decimal
from fractions import Fraction
from functools import cache
from pathlib import PurePath
from typing import Any
from uuid import UUID

import numpy as np

from loadax.core.distributed import this_process
from loadax.errors import LoadaxError
from loadax.files.files import Files
from loadax.files.identity import (
    digest_of as digest_of_files,
    resolved,
    stat_identity,
)
from loadax.files.paths import local_path
from loadax.kept.index_folder import FILES
from loadax.protocols import Integers
from loadax.sources.base import BaseSource, walk
from loadax.sources.checks import chunk_starts
from loadax.writing.keys import keys_below, own_keys

_MOST_FILES = 1 << 14
MOST_MEMORY = 64 << 20  # bytes
_SAMPLE_BYTES = 64 << 20  # that a sample of rows may decode
_LEAST_ROWS = 3
_PLAIN = (
    str,
    bytes,
    int,
    float,
    complex,
    type(None),
    *(Decimal, Fraction, date, time, timedelta, UUID, PurePath),
)


def identify(source: BaseSource) -> dict[str, str | None]:
    """Digests of a source's files and of its data in memory; None for a part that it does not have."""
    # one at a time: they may be copies
    arrays = (array for part in walk(source) for array in part.held(MOST_MEMORY))
    first = next(arrays, None)
    if first is None:
        memory = None
    else:
        memory = digest_of(itertools.chain([first], arrays))
    if this_process().count > 1:
        files = []
    else:
        files = [file for part in walk(source) for file in _files_of(part)]
    return {FILES: digest_of_files(files) if files else None, "memory": memory}


def spread(size: int, most: int) -> Integers:
    """Evenly spaced sample of `range(size)`, at most `most` entries, including the first and last."""
    return np.unique(
        np.linspace(0, max(0, size - 1), min(most, size)).astype(np.int64)
    )


def sample_size(source: BaseSource, row_bytes: int, most: int) -> int:
    """Number of rows of a sample, bounded by the bytes of the chunks that it decodes."""
    starts = chunk_starts(source)
    if starts is None:
        decoded = 1
    else:
        decoded = max(1, len(source) // len(starts))
    return max(_LEAST_ROWS, min(most, _SAMPLE_BYTES // max(1, row_bytes * decoded)))


def digest_of(arrays: Iterable[Any]) -> str:
    """Hash of the shapes, dtypes and contents of arrays, equal in every process."""
    digest = hashlib.sha256()
    for array in map(np.asarray, arrays):
        plain = array.dtype.kind not in "US" and not array.dtype.hasobject
        if plain:
            entries = None
        else:
            entries = list(map(_content, array.ravel().tolist()))
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


def _files_of(source: BaseSource) -> Iterable[Any]:
    """Identities of a sample of the files of a source."""
    sample = source.some_files(_MOST_FILES)
    if sample is not None:
        real = cache(os.path.realpath)  # links of a folder are resolved once
        return [
            stat_identity(f"{real(folder)}/{name}")
            for folder, _, name in (path.rpartition("/") for path in sample)
        ]
    files: list[Any] = []
    remote: list[str] = []
    addresses = source.addresses
    for index in spread(len(addresses), _MOST_FILES).tolist():
        path = local_path(addresses[index].partition("|")[0])
        if path is None:
            remote.append(addresses[index])
        elif path.is_dir():
            keys = sorted(keys_below(path))
            root = os.path.realpath(path)
            # else no zarr store
            keys = own_keys(keys) or [key for key in keys if not key.startswith(".")]
            chosen = spread(len(keys), _MOST_FILES // len(addresses) + 1).tolist()
            files += [
                stat_identity(f"{root}/{keys[position]}") for position in chosen
            ]
        else:
            files.append(stat_identity(os.path.realpath(path)))
    # a store of another kind, or one whose objects have other names
    with suppress(LoadaxError):
        return [*files, *Files().identities(remote)]
    return [*files, *map(resolved, remote)]
