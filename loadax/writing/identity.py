"""Fingerprints of data: sizes and modification times of its files, and a sample of its rows.

What is promised: a change of a local file is noticed by its size or its time of change (of more than 16,384 files: of
so many, evenly spread); data in memory is compared as a whole up to 64 MiB, and beyond that by evenly spread rows of so
many bytes; of everything else, such as remote files and users' own sources, by the sample of rows that each caller
takes. Where files lie does not matter, so that data may be moved.
"""

import hashlib
import itertools
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from loadax.core.distributed import this_process
from loadax.protocols import Integers
from loadax.sources.base import BaseSource, walk
from loadax.sources.checks import chunk_starts
from loadax.sources.io.paths import local_path
from loadax.writing.own_files import keys_below, own_keys

FILES = "files"
"""The field of an identity that is unknown (None) to a run of several processes, each of which may have its own copy of
the data.
"""

_MOST_FILES = 1 << 14
_MOST_MEMORY = 64 << 20  # bytes
_SAMPLE_BYTES = 64 << 20  # that a sample of rows may decode
_LEAST_ROWS = 3


def identify(source: BaseSource) -> dict[str, str | None]:
    """Digests of a source's files and of what it holds in memory; None for what there is nothing of."""
    return {FILES: None if this_process().count > 1 else _files(source), "memory": _memory(source)}


def differs(known: Any, asked: Any, field: str) -> bool:
    """Whether a field of two identities differs; `FILES` is compared where both know it."""
    return bool(known != asked and not (field == FILES and (known is None or asked is None)))


def spread(size: int, most: int) -> Integers:
    """At most so many of `range(size)`, from the first to the last, evenly."""
    return np.unique(np.linspace(0, max(0, size - 1), min(most, size)).astype(np.int64))


def sample_size(source: BaseSource, row_bytes: int, most: int) -> int:
    """How many rows a sample may have, so that reading them decodes little."""
    starts = chunk_starts(source)
    decoded = 1 if starts is None else max(1, len(source) // len(starts))
    return max(_LEAST_ROWS, min(most, _SAMPLE_BYTES // max(1, row_bytes * decoded)))


def digest_of(arrays: Iterable[Any]) -> str:
    """A hash of the shapes, dtypes and contents of arrays, the same in every process."""
    digest = hashlib.sha256()
    for array in map(np.asarray, arrays):
        plain = array.dtype.kind not in "US" and not array.dtype.hasobject
        entries = None if plain else list(map(_content, array.ravel().tolist()))
        digest.update(repr((array.dtype.str, array.shape, entries)).encode())
        if plain:
            digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()[:16]


def _content(value: Any) -> Any:
    """What of an object is the same in every process: the text of others holds addresses."""
    return value if isinstance(value, str | bytes | int | float) else type(value).__qualname__


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
    """Some of the local files of a source, each with a name that does not say where it is."""
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
    """What belongs to a zarr store, or all where it is another kind of store."""
    keys = sorted(keys_below(folder))
    return own_keys(keys) or [key for key in keys if not key.startswith(".")]
