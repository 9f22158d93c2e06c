"""`verify`: reads a whole store and reports all damage, not only the first."""

import itertools
import json
import math
import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import CancelledError
from dataclasses import astuple, dataclass, replace
from threading import Event
from typing import Any, final

import numpy as np
import tensorstore as ts
from numpy.typing import NDArray

from loadax.files.identity import digest_of, stat_identity
from loadax.files.paths import local_path
from loadax.kept.index_folder import FILES, Entry, IndexFolder
from loadax.kept.kept_pass import PassOptions, kept_pass
from loadax.protocols import Engine
from loadax.redaction import redact
from loadax.sources.zarr.names import FINISHED
from loadax.work.executors import index_engine
from loadax.writing.chunk_layout import array_label
from loadax.writing.keys import keys_below
from loadax.writing.store_parts import ahead, damage_of, reason
from loadax.writing.survey import (
    Box,
    Stored,
    chunk_shape,
    file_shape,
    has_checksum,
    open_stored,
)

_PIECE_BYTES = 64 << 20  # largest read, unless a single chunk is larger
_AHEAD_BYTES = 128 << 20  # bytes of concurrent reads of a part
PARTS_AT_ONCE = 2
PART_BYTES = 256 << 20
_MOST_PARTS = 512
_AHEAD = 64  # concurrent reads
_CHUNKS_AT_ONCE = 1024  # concurrent chunk reads in a damaged piece


@final
@dataclass(frozen=True)
class Damage:
    """Rows that can't be read.

    Args:
        array: Name of the array; empty if the store is one array.
        start: First row.
        stop: End of the rows, exclusive.
        message: Error of the first damaged chunk, with its location.
    """

    array: str
    start: int
    stop: int
    message: str


@final
@dataclass(frozen=True)
class Verification:
    """Result of `verify`.

    Args:
        location: Path or URL of the store.
        rows: Number of rows of its longest array.
        arrays: Number of arrays.
        nbytes: Decoded bytes that were read.
        damages: Damage by array and row; empty for an intact store.
        unchecked: Arrays without checksums, where flipped bits go undetected.
        ours: Whether loadax wrote the store, so that no chunk may be missing.
    """

    location: str
    rows: int
    arrays: int
    nbytes: int
    damages: tuple[Damage, ...]
    unchecked: tuple[str, ...]
    ours: bool


def verify(
    path: str | os.PathLike[str],
    index: str | os.PathLike[str] | None = None,
    executor: Engine | None = None,
    progress: bool | None = None,
) -> Verification:
    """Reads every chunk of a zarr store, of any writer, and reports damage.

    Flipped bits are detected where the store has checksums, as all stores of loadax do; missing and truncated files
    are always detected.

    Args:
        path: Path or URL of an array or a group.
        index: Path of a folder that keeps what is found, so that an interrupted call goes on; None: nothing is kept.
        executor: What reads instead of threads of this process; it needs `index`. See `Dataset.filter`.
        progress: Whether to show a progress bar; None: if stderr is a terminal.

    Raises:
        SourceError: When there is no store, it is unfinished, or a server does not respond.
    """
    stored = open_stored(path)
    engine = index_engine(executor, index)
    total = sum(map(stored.raw_bytes, stored.arrays))
    entry = kept_pass(
        None if index is None else IndexFolder(index),
        "verify",
        lambda: {
            "store": redact(stored.location),
            "manifest": stored.manifest,
            FILES: _files(stored.location),
        },
        lambda _: None,
        lambda: _plan(stored),
        lambda parts: Entry(
            {}, {"damages": [json.loads(bytes(part["damages"])) for part in parts]}
        ),
        PassOptions(PARTS_AT_ONCE, engine, progress),
    )
    damages = list(_lacking(stored))
    found = [
        _by_rows(Damage(*fields), stored)
        for part in entry.facts["damages"]
        for fields in part
    ]
    for name in stored.arrays:
        damages += _merged(damage for damage in found if damage.array == name)
    rows = max(
        [0, *(array.shape[0] for array in stored.arrays.values() if array.rank)]
    )
    unchecked = tuple(
        name for name, array in stored.arrays.items() if not has_checksum(array)
    )
    count = len(stored.arrays) + len(stored.absent)
    return Verification(
        redact(stored.location),
        rows,
        count,
        total,
        tuple(damages),
        unchecked,
        stored.manifest is not None,
    )


@final
@dataclass(frozen=True)
class _Check:
    """Reading of a store; see `loadax.kept.pass_work.Work`. A part is some pieces of an array."""

    stored: Stored
    pieces: list[tuple[str, list[Box]]]
    label: str
    unit: str = "B"

    @property
    def sizes(self) -> list[int]:
        return [
            sum(map(_size, boxes)) * _itemsize(self.stored.arrays[name])
            for name, boxes in self.pieces
        ]

    def compute(self, part: int, over: Event) -> dict[str, NDArray[Any]]:
        """Damage of the pieces of a part, as JSON."""
        name, boxes = self.pieces[part]
        array = self.stored.arrays[name]
        label = array_label(self.stored.location, name)
        found = [
            astuple(damage) for damage in _damaged(name, array, label, boxes, over)
        ]
        return {"damages": np.frombuffer(json.dumps(found).encode(), np.uint8)}


def _plan(stored: Stored) -> _Check:
    """Cuts a store into parts, from shapes alone."""
    pieces: list[tuple[str, list[Box]]] = []
    for name, array in stored.arrays.items():
        room = 0
        for box in _pieces(array, stored.boxes(name)):
            size = _size(box) * _itemsize(array)
            if size > room:
                pieces.append((name, []))
                room = max(PART_BYTES, stored.raw_bytes(name) // _MOST_PARTS)
            pieces[-1][1].append(box)
            room -= size
    return _Check(stored, pieces, f"verifying {redact(stored.location)}")


def _files(location: str) -> str | None:
    """Digest of the sizes and times of a local store's files."""
    folder = local_path(location)
    if folder is None:
        return None
    return digest_of(
        [stat_identity(str(folder / key)) for key in sorted(keys_below(folder))]
    )


def _by_rows(damage: Damage, stored: Stored) -> Damage:
    """Damage with its rows: that of a ragged leaf has parts."""
    if (
        damage.array not in stored.ragged
        or stored.lengths is None
        or stored.manifest is None
    ):
        return damage
    rows = len(stored.lengths)
    step = stored.manifest["shard_rows"]
    return replace(
        damage, start=damage.start * step, stop=min(damage.stop * step, rows)
    )


def _lacking(stored: Stored) -> Iterator[Damage]:
    """Yields arrays that are missing or contradict the manifest."""
    promised = (stored.manifest or {}).get("arrays", {})
    for name, error in stored.absent.items():
        yield Damage(name, 0, promised[name]["shape"][0], reason(error))
    for name, array in stored.arrays.items():
        has = [list(array.shape), array.dtype.name]
        if name in promised and has != (
            should := [promised[name]["shape"], promised[name]["dtype"]]
        ):
            message = (
                f"its zarr.json says {has[1]}{has[0]}, but {FINISHED} says "
                f"{should[1]}{should[0]}; copy both again"
            )
            yield Damage(name, 0, promised[name]["shape"][0], message)


def _damaged(
    name: str, array: ts.TensorStore, label: str, pieces: Iterable[Box], over: Event
) -> Iterator[Damage]:
    """Yields damaged row ranges of some pieces of an array; a range may come in several pieces."""

    def full(boxes: Sequence[Box]) -> bool:
        return (
            len(boxes) >= _AHEAD
            or sum(map(_size, boxes)) * _itemsize(array) >= _AHEAD_BYTES
        )

    for box, future in ahead(pieces, lambda box: _read(array, box, None), full):
        if over.is_set():
            raise CancelledError
        if damage_of(future, label) is not None:
            yield from _chunks(name, array, label, box)


def _itemsize(array: ts.TensorStore) -> int:
    return int(array.dtype.numpy_dtype.itemsize)


def _chunks(
    name: str, array: ts.TensorStore, label: str, box: Box
) -> Iterator[Damage]:
    """Yields the damaged chunks of a piece that can't be read."""
    chunks = _cut(box, chunk_shape(array))
    while group := list(itertools.islice(chunks, _CHUNKS_AT_ONCE)):
        batch = ts.Batch()
        futures = [_read(array, chunk, batch) for chunk in group]
        batch.submit()
        for chunk, future in zip(group, futures, strict=True):
            message = damage_of(future, label)
            if message is not None:
                if chunk:
                    start, stop = chunk[0]
                else:
                    start, stop = (0, 1)
                yield Damage(name, start, stop, message)


def _read(array: ts.TensorStore, box: Box, batch: ts.Batch | None) -> Any:
    if box:
        region = array[tuple(slice(start, stop) for start, stop in box)]
    else:
        region = array
    return region.read(batch=batch)


def _pieces(array: ts.TensorStore, stored: Iterable[Box]) -> Iterator[Box]:
    """Yields the boxes of the files, cut along the rows if one would take too much memory."""
    for box in itertools.chain.from_iterable(
        _cut(box, file_shape(array)) for box in stored
    ):
        size = _size(box) * _itemsize(array)
        if size <= _PIECE_BYTES or not box:
            yield box
            continue
        rows = chunk_shape(array)[0]
        row_bytes = size // (box[0][1] - box[0][0])
        step = max(1, _PIECE_BYTES // (row_bytes * rows)) * rows
        yield from _cut(box, (step, *file_shape(array)[1:]))


def _cut(box: Box, shape: tuple[int, ...]) -> Iterator[Box]:
    """Cuts a box into boxes of `shape`, along a grid that begins at 0."""
    edges = []
    for (start, stop), extent in zip(box, shape, strict=True):
        starts = range(start - start % extent, stop, extent)
        edges.append([(max(start, low), min(stop, low + extent)) for low in starts])
    return itertools.product(*edges)


def _size(box: Box) -> int:
    return math.prod(stop - start for start, stop in box)


def _merged(damages: Iterator[Damage]) -> list[Damage]:
    """Merges adjacent row ranges."""
    merged: list[Damage] = []
    for damage in sorted(damages, key=lambda damage: damage.start):
        if merged and damage.start <= merged[-1].stop:
            last = merged[-1]
            merged[-1] = Damage(
                last.array, last.start, max(last.stop, damage.stop), last.message
            )
        else:
            merged.append(damage)
    return merged
