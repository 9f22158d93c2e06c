"""`loadax inspect`: show the leaves of a dataset.

Shows the arrays of a zarr store from any writer: shapes, chunks, shards and compression. Reads metadata only. Of any
other data it shows rows, files, the leaves of a row, chunks, and the Python code that opens it.

example:
  loadax inspect train.zarr
  loadax inspect 'parts/*.parquet'
  loadax inspect corpus.bin --seq-len 2047 --dtype uint16

{SOURCES}.
"""

import argparse
import math
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorstore as ts

from loadax.cli.command import add_command
from loadax.cli.data_opener import Opener, add_source_options, find_opener
from loadax.core.formatting import count_text, size_text, some, table
from loadax.core.spec import flatten_spec
from loadax.errors import ArgumentError
from loadax.files.spec_json import spec_json
from loadax.redaction import redact
from loadax.sources.checks import chunk_starts
from loadax.sources.formats import FORMATS
from loadax.sources.zarr.names import FINISHED
from loadax.writing.survey import (
    Stored,
    chunk_shape,
    codecs_of,
    file_shape,
    has_checksum,
    is_sharded,
    open_stored,
)

_HEADER = (
    "array",
    "shape",
    "dtype",
    "chunk",
    "shard",
    "codecs",
    "checksum",
    "raw",
    "on disk",
)


def add(commands: Any) -> None:
    """Adds `inspect` to the commands."""
    add_source_options(add_command(commands, run))


def run(options: argparse.Namespace) -> int:
    """Runs the command.

    Raises:
        LoadaxError: When there is no data.
    """
    opener = find_opener(options)
    sys.stdout.writelines(
        _store_lines(opener)
        if opener.function == "from_zarr"
        else dataset_lines(opener)
    )
    return 0


def _store_lines(opener: Opener) -> Iterator[str]:
    """Text about a zarr store, which may be damaged or half-written."""
    assert opener.path is not None
    stored = open_stored(opener.path, half_written=True)
    arrays = stored.arrays
    wanted = opener.arguments.get("variables")
    if wanted is not None:
        absent = sorted(set(wanted) - set(arrays))
        if absent:
            raise ArgumentError(
                f"{redact(stored.location)} has no array {absent[0]!r}, but "
                f"{some(arrays)}; pass these"
            )
        arrays = {name: arrays[name] for name in wanted}
    yield f"{redact(stored.location)}: {_kind(arrays, stored.ragged)}\n{_state(stored)}\n"
    if arrays:
        yield "\n" + table(_HEADER, [_line(name, stored) for name in arrays])
    for name, error in stored.absent.items():
        yield f"\narray {name!r} is missing: {error}\n"
    yield f"\n{opener.code}\n"


def _kind(arrays: Mapping[str, ts.TensorStore], ragged: Sequence[str]) -> str:
    drivers = " and ".join(
        sorted({spec_json(array.spec())["driver"] for array in arrays.values()})
    )
    lengths = sorted(
        {
            array.shape[0]
            for name, array in arrays.items()
            if array.rank and name not in ragged
        }
    )
    single = list(arrays) == [""]
    if single:
        kind = f"{drivers} array"
    else:
        kind = f"{drivers} group, {count_text(len(arrays), 'array')}".strip()
    if lengths:
        return f"{kind} of {' or '.join(f'{length:,}' for length in lengths)} rows"
    return kind


def _state(stored: Stored) -> str:
    if stored.manifest is not None:
        return f"manifest: yes ({FINISHED}): complete, written by loadax"
    if stored.partial is not None:
        remedy = (
            "finish it with `loadax convert … --resume`, or delete it; it can't be "
            "opened"
        )
        return f"manifest: HALF-WRITTEN (no {FINISHED}): {remedy}"
    return (
        f"manifest: none (no {FINISHED}): written by another program; `loadax "
        "verify` checks whether it is complete"
    )


def _line(name: str, stored: Stored) -> list[str]:
    array = stored.arrays[name]
    names = [name for name, _ in codecs_of(array) if name not in ("bytes", "raw")]
    raw = stored.raw_bytes(name)
    on_disk = _stored_bytes(array)
    return [
        name or "(itself)",
        _shape(name, stored),
        array.dtype.name,
        _box(chunk_shape(array), array),
        _box(file_shape(array), array) if is_sharded(array) else "none",
        " ".join(names) or "none",
        "yes" if has_checksum(array) else "NO",
        size_text(raw),
        "not local"
        if on_disk is None
        else f"{size_text(on_disk)} ({raw / on_disk:.1f}x)"
        if on_disk
        else "0 B",
    ]


def _shape(name: str, stored: Stored) -> str:
    shape = stored.arrays[name].shape
    if name not in stored.ragged:
        return " x ".join(map(str, shape)) or "a single value"
    if stored.lengths is None:
        entries = "unknown entries"
    else:
        counted = stored.lengths[:, stored.ragged.index(name)].sum()
        entries = count_text(counted, "entry", "entries")
    return " x ".join(map(str, ("ragged", *shape[3:]))) + f" ({entries})"


def _box(shape: Sequence[int], array: ts.TensorStore) -> str:
    """Rows and raw size of a chunk; its whole shape, if it has only some columns."""
    size = size_text(math.prod(shape) * array.dtype.numpy_dtype.itemsize)
    whole = all(
        extent >= all_
        for extent, all_ in zip(shape[1:], array.shape[1:], strict=True)
    )
    if shape and whole:
        return f"{count_text(shape[0], 'row')} ({size})"
    return f"{' x '.join(map(str, shape))} ({size})"


def _stored_bytes(array: ts.TensorStore) -> int | None:
    """Bytes in the array's folder; None if it is not on this machine."""
    if array.kvstore is None:
        spec = {}
    else:
        spec = spec_json(array.kvstore.spec())
    if spec.get("driver") != "file":
        return None
    return sum(
        Path(folder, name).stat().st_size
        for folder, _, names in os.walk(spec["path"])
        for name in names
    )


def dataset_lines(opener: Opener) -> Iterator[str]:
    """Text about a dataset.

    Args:
        opener: The call that opens it.
    """
    dataset = opener.open()
    source = dataset.source
    name = opener.path or opener.function
    is_folder = opener.path is not None and FORMATS[opener.function].is_folder
    if is_folder:
        kind = "folder"
    else:
        kind = "file"
    if source.addresses:
        files = f" in {count_text(len(source.addresses), kind)}"
    else:
        files = ""
    yield f"{redact(name)}: {count_text(len(dataset), 'row')}{files}\n\n"
    specs, structure = flatten_spec(dataset.spec)
    rows = [
        (
            leaf or "(itself)",
            " x ".join(map(str, spec.shape)) or "a single value",
            str(spec.dtype),
        )
        for leaf, spec in zip(structure.paths, specs, strict=True)
    ]
    yield table(("leaf", "shape", "dtype"), rows)
    yield f"{redact(repr(source))}\n"
    if (
        source.spec is None
        or source.rows_probed
        or (is_folder and source.traits.reads_examples)
    ):
        yield "shapes and dtypes are those of row 0: other rows may have other shapes\n"
    starts = chunk_starts(source)
    if starts is not None:  # not of memory-mapped chunks, which are not decoded
        sizes = np.diff(np.asarray(starts), append=len(source))
        if sizes.min() < sizes.max():
            rows_text = f"{sizes.min():,} to {sizes.max():,} rows"
        else:
            rows_text = count_text(sizes[0], "row")
        yield f"{count_text(len(starts), 'chunk')} of {rows_text}, each decoded whole\n"
    yield f"\n{opener.code}\n"
