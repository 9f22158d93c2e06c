"""`loadax inspect`: shows the arrays of a store or the columns of a table, and the cost of shuffling them."""

import argparse
import math
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import tensorstore as ts

from loadax.cli.inspect_table import table_lines
from loadax.cli.options import add_command
from loadax.cli.source import open_records, open_table
from loadax.core.formatting import count_text, size_text, table
from loadax.core.spec import flatten_spec
from loadax.io import from_zarr
from loadax.redaction import redact
from loadax.sources.checks import chunk_starts
from loadax.sources.zarr.manifest import FINISHED
from loadax.writing.survey import (
    Stored,
    chunk_shape,
    codecs_of,
    file_shape,
    has_checksum,
    is_sharded,
    open_stored,
    raw_bytes,
)

_HEADER = ("array", "shape", "dtype", "chunk", "shard", "codecs", "checksum", "raw", "on disk")
_EXAMPLES = """\
example:
  loadax inspect train.zarr
  loadax inspect 'parts/*.parquet'
"""


def add(commands: Any) -> None:
    """Adds `inspect` to the commands."""
    command = add_command(
        commands,
        "inspect",
        run,
        "show the arrays of a zarr store or the columns of tables, and the cost of shuffling them",
        "Shows the arrays of a zarr store from any writer: shapes, chunks, shards, compression, "
        "and the cost of reading rows in random order. Reads metadata only. "
        "Of Parquet, JSON lines and CSV files it shows columns, rows and row groups, and of files of ArrayRecord, "
        "TFRecord or WebDataset (.tar) the leaves of a row.",
        _EXAMPLES,
    )
    command.add_argument(
        "path", metavar="PATH", help="path or URL of a zarr array or group, of tables, or of files of records"
    )


def run(options: argparse.Namespace) -> int:
    """Runs the command.

    Raises:
        LoadaxError: When there is no store.
    """
    opened = open_table(options.path)
    if opened is not None:
        sys.stdout.writelines(table_lines(options.path, *opened))
        return 0
    records = open_records(options.path)
    if records is not None:
        specs, structure = flatten_spec(records.spec)
        lines = [
            [path or "(itself)", " x ".join(map(str, spec.shape)) or "a single value", str(spec.dtype)]
            for path, spec in zip(structure.paths, specs, strict=True)
        ]
        sys.stdout.write(f"{redact(options.path)}: {records.source!r}\n\n{table(_HEADER[:3], lines)}")
        return 0
    stored = open_stored(options.path, half_written=True)
    sys.stdout.write(f"{redact(stored.location)}: {_kind(stored)}\n{_state(stored)}\n")
    if stored.arrays:
        sys.stdout.write("\n" + table(_HEADER, [_line(name, array) for name, array in stored.arrays.items()]))
    for name, error in stored.absent.items():
        sys.stdout.write(f"\narray {name!r} is missing: {error}\n")
    rows = {name: array for name, array in stored.arrays.items() if array.rank and array.size}
    if rows and stored.partial is None:
        sys.stdout.write("\n" + "".join(f"{line}\n" for line in _cost(stored.location, rows)))
    return 0


def _kind(stored: Stored) -> str:
    drivers = " and ".join(sorted({array.spec().to_json()["driver"] for array in stored.arrays.values()}))
    lengths = sorted({array.shape[0] for array in stored.arrays.values() if array.rank})
    single = list(stored.arrays) == [""]
    kind = f"{drivers} array" if single else f"{drivers} group, {count_text(len(stored.arrays), 'array')}".strip()
    return f"{kind} of {' or '.join(f'{length:,}' for length in lengths)} rows" if lengths else kind


def _state(stored: Stored) -> str:
    if stored.manifest is not None:
        return f"manifest: yes ({FINISHED}): complete, written by loadax"
    if stored.partial is not None:
        remedy = "finish it with `loadax convert … --resume`, or delete it; it can't be opened"
        return f"manifest: HALF-WRITTEN (no {FINISHED}): {remedy}"
    return f"manifest: none (no {FINISHED}): written by another program; `loadax verify` checks whether it is complete"


def _line(name: str, array: ts.TensorStore) -> list[str]:
    names = [name for name, _ in codecs_of(array) if name not in ("bytes", "raw")]
    raw = raw_bytes(array)
    stored = _stored_bytes(array)
    return [
        name or "(itself)",
        " x ".join(map(str, array.shape)) or "a single value",
        array.dtype.name,
        _box(chunk_shape(array), array),
        _box(file_shape(array), array) if is_sharded(array) else "none",
        " ".join(names) or "none",
        "yes" if has_checksum(array) else "NO",
        size_text(raw),
        "not local" if stored is None else f"{size_text(stored)} ({raw / stored:.1f}x)" if stored else "0 B",
    ]


def _box(shape: Sequence[int], array: ts.TensorStore) -> str:
    """Rows and raw size of a chunk; its whole shape, if it has only some columns."""
    size = size_text(math.prod(shape) * array.dtype.numpy_dtype.itemsize)
    whole = all(extent >= all_ for extent, all_ in zip(shape[1:], array.shape[1:], strict=True))
    return f"{count_text(shape[0], 'row')} ({size})" if shape and whole else f"{' x '.join(map(str, shape))} ({size})"


def _cost(location: str, arrays: dict[str, ts.TensorStore]) -> Iterator[str]:
    """Cost of reading rows in random order, and the code that reads them well, according to `Dataset.shuffle`."""
    most = max(arrays, key=lambda name: raw_bytes(arrays[name]))
    length = arrays[most].shape[0]
    together = sorted(name for name, array in arrays.items() if array.shape[0] == length)
    all_of_it = len(together) == len(arrays)
    opened = (
        f"loadax.from_zarr({redact(location)!r})"
        if all_of_it
        else f"loadax.from_zarr({redact(location)!r}, variables={together})"
    )
    dataset = from_zarr(location, None if all_of_it else together)
    with warnings.catch_warnings(record=True) as costly:
        warnings.simplefilter("always")
        dataset.shuffle(0)
    alone = chunk_starts(dataset.source) is None  # true also of memory-mapped chunks, which are not decoded
    chunk = 1 if alone else min(chunk_shape(arrays[most])[0], length)
    which = f" (array {most!r} has most bytes)" if len(arrays) > 1 else ""
    yield "cost of shuffling"
    if chunk == 1:
        yield f"  .shuffle(seed): decodes only the rows that it returns{which}"
    else:
        yield f"  .shuffle(seed): decodes {chunk} rows for each row that it returns{which}"
    if not costly:
        if chunk > 1:
            yield "  but its chunks are small, so this is cheap"
        yield f"  {opened}.shuffle(seed)"
        return
    shuffle = dataset.shuffle(0, block="chunks").order.shuffle
    assert shuffle is not None and shuffle.blocks is not None  # noqa: PT018
    blocks = shuffle.blocks
    row_bytes = sum(raw_bytes(arrays[name]) // length for name in together)
    open_bytes = size_text(min(blocks.lanes * blocks.window * blocks.rows, length) * row_bytes)
    yield f'  .shuffle(seed, block="chunks"): decodes each chunk once; keeps {open_bytes} open, shared by all hosts'
    yield f"    ({blocks.lanes} lanes x {count_text(blocks.window, 'block')} of {count_text(blocks.rows, 'row')})"
    yield f'  {opened}.shuffle(seed, block="chunks")'


def _stored_bytes(array: ts.TensorStore) -> int | None:
    """Bytes in the array's folder; None if it is not on this machine."""
    spec = {} if array.kvstore is None else array.kvstore.spec().to_json()
    if spec.get("driver") != "file":
        return None
    return sum(Path(folder, name).stat().st_size for folder, _, names in os.walk(spec["path"]) for name in names)
