"""Opens map-style Hugging Face datasets, through their Arrow tables and mappings of indices.

What can't be read by rows is refused, and nulls in arrays.
"""

import os
from collections.abc import Iterator, Sequence
from copy import copy
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from loadax.core.formatting import count_text, type_text
from loadax.errors import ArgumentError, SourceError
from loadax.sources.library import comes_from
from loadax.sources.tables.arrow.call import column_names
from loadax.sources.tables.arrow.column_layout import (
    count_nulls,
    layout,
    without_views,
)
from loadax.sources.tables.arrow.column_tree import ColumnTree, sample_rows
from loadax.sources.tables.arrow.columns import column_of, rows_by_batch
from loadax.sources.tables.arrow.table import RowMap, TableSource

_TOGETHER = 1 << 16  # rows that are looked at together for nulls


def open_huggingface(
    data: Any, columns: Sequence[str] | str | None = None
) -> TableSource:
    """The source of a map-style dataset.

    Args:
        data: The dataset.
        columns: Names of those to read; None: those of its format, which are all unless it says so.

    Raises:
        ArgumentError: when it is none, or a column is not there; says what to write.
        SourceError: when columns of numbers have nulls; names them, says how many, and what to write.
    """
    _check_kind(data)
    if columns is None:
        names = _formatted(data)
    else:
        names = column_names(columns, data.column_names)
    if nulls := {name: count for name in names if (count := _nulls(data, name))}:
        found = " and ".join(
            f"column {name!r} has {count_text(count, 'null')}"
            for name, count in nulls.items()
        )
        others = [name for name in names if name not in nulls]
        if others:
            leave_out = (
                ", or leave them out: loadax.from_huggingface(data, "
                f"columns={others!r})"
            )
        else:
            leave_out = ""
        raise SourceError(
            f"{found} in {count_text(len(data), 'row')}, which an array can't hold; "
            "fill them with data.map, or drop their rows with "
            f"data.filter{leave_out}"
        )
    return open_columns(data, names)


def _formatted(data: Any) -> list[str]:
    """Names of the columns that the format of a dataset lets through."""
    return list(
        data.column_names
        if data.format["output_all_columns"]
        else data.format["columns"]
    )


def _check_kind(data: Any) -> None:
    if comes_from(data, "datasets", "Dataset"):
        if data.format["type"] == "custom":
            raise ArgumentError(
                "the dataset has a transform of its own (set_transform, "
                "with_transform), which makes rows of batches in Python; apply it by "
                "a map: loadax.from_huggingface(data.with_format(None)).map(fn), or "
                "have Hugging Face apply it row by row: loadax.from_source(data)"
            )
        return
    if isinstance(data, str | os.PathLike):
        path = os.fspath(data)
        saved = (Path(path) / "state.json").is_file()
        if saved:
            load = f"load_from_disk({path!r})"
        else:
            load = f"load_dataset({path!r}, split='train')"
        raise ArgumentError(
            f"data={data!r} is a path or a name; open it: "
            f"loadax.from_huggingface(datasets.{load})"
        )
    raise ArgumentError(
        f"the data is {type_text(data)}; pass a datasets.Dataset, or use "
        "loadax.as_dataset(data)"
    )


def _nulls(data: Any, name: str) -> int:
    """The nulls in a column of numbers or lists of them; objects such as texts may be None."""
    chunks = data.data.table.column(name).chunks
    feature = data.features[name]
    total = sum(_count(chunk, feature) for chunk in chunks)
    if total:
        mapping = _mapping(_indices_of(data))
    else:
        mapping = None
    if mapping is None:
        return total
    # Some of the rows may not be in the mapping, as those that a filter dropped.
    starts = np.cumsum([0, *map(len, chunks)])[:-1]
    total = 0
    for start in range(0, len(data), _TOGETHER):
        rows = mapping(np.arange(start, min(start + _TOGETHER, len(data))))
        total += sum(
            _count(chunks[each.batch].take(each.rows), feature)
            for each in rows_by_batch(starts, rows)
        )
    return total


def _count(array: Any, feature: Any) -> int:
    """The nulls of a column that is read as arrays; of a dict of features those of its members."""
    if not isinstance(feature, dict):
        if layout(array.type)[1] is not None or array.type == pa.null():
            return count_nulls(array)
        return 0
    return sum(
        _count(member, feature[field.name])
        for field, member in zip(array.type, array.flatten(), strict=True)
    )


def open_columns(
    data: Any, names: Sequence[str], indices: NDArray[Any] | None = None
) -> TableSource:
    """The source of columns of a `datasets.Dataset`, whose format is ignored. Columns of numbers have no nulls.

    Args:
        data: The dataset.
        names: Names of the columns.
        indices: Rows of the dataset's table to read; None: those of the dataset.
    """
    table = data.data
    features = data.features
    batches = [
        batch for batch in table.table.select(names).to_batches() if len(batch)
    ]
    fields = {name: table.table.schema.field(name) for name in names}
    arrays = {name: [batch.column(name) for batch in batches] for name in names}
    columns = {
        name: _columns(arrays[name], fields[name], features[name]) for name in names
    }
    tree = ColumnTree(columns, list(map(len, batches)))
    addresses = sorted(
        {str(Path(file["filename"]).absolute()) for file in data.cache_files}
    )
    # A dataset that is mapped from files pickles as their paths, and the indices of another as one array.
    given = indices
    if indices is None:
        indices = _indices_of(data)
    if data._indices is not None and not _is_mapped(data._indices):  # noqa: SLF001 - see _indices_of
        given = indices
        data = copy(data)
        data._indices = None  # noqa: SLF001 - in memory they take up to 20 bytes a row
    opened = open_columns, (data, names, given)
    if indices is None:
        length = len(data)
    else:
        length = len(indices)
    mapping = _mapping(indices)

    def held(most: int) -> Iterator[NDArray[Any]]:
        """The mapping of indices, and of a table in memory its rows, or evenly spaced ones."""
        if mapping is not None:
            yield mapping(
                np.linspace(0, length - 1, min(length, most // 8)).astype(np.int64)
            )
        if not _is_mapped(table) and length:
            rows = sample_rows(
                length, table.nbytes * length // max(1, table.num_rows), most
            )
            yield from tree.sample(rows if mapping is None else mapping(rows))

    classes = {
        name: {"classes": list(features[name].names)}
        for name in names
        if hasattr(features[name], "names")
    }
    text = (
        "Hugging Face columns "
        f"({', '.join(f'{name}: {_kind(features[name])}' for name in names)})"
    )
    return TableSource(
        tree, text, classes, opened, held, addresses, mapping and (mapping, length)
    )


def _is_mapped(table: Any) -> bool:
    """Whether a table is memory-mapped from files whole; `cache_files` also lists those of one block, or of indices."""
    if comes_from(table, "datasets.table", "ConcatenationTable"):
        return all(_is_mapped(block) for row in table.blocks for block in row)
    return comes_from(table, "datasets.table", "MemoryMappedTable")


def _mapping(indices: NDArray[Any] | None) -> RowMap | None:
    """The function from rows of a dataset to rows of its table; None where they are the same."""
    if indices is None:
        return None
    return lambda rows: indices[rows].astype(np.int64)


def _indices_of(data: Any) -> NDArray[Any] | None:
    """The rows of its table that a dataset has, as one array: it has them in chunks of 1,000. None: all rows."""
    # Of all that this folder reads the one thing without a public name. A dataset without it would have to be written
    # again (`flatten_indices`), which for a shuffled one takes as long as an epoch.
    table = data._indices  # noqa: SLF001
    if table is None:
        return None
    chunks = [chunk.to_numpy() for chunk in table.column(0).chunks]
    dtype = np.min_scalar_type(data.data.num_rows)
    return np.concatenate(
        [np.empty(0, dtype), *chunks], dtype=dtype, casting="unsafe"
    )


def _columns(arrays: Sequence[Any], field: Any, feature: Any) -> Any:
    """The column of a feature; of a dict of features a dict of their columns."""
    from datasets.features.features import decode_nested_example, require_decoding

    if isinstance(feature, dict):
        members = [field.type.get_field_index(name) for name in feature]
        # with the nulls of the structs themselves
        flat = [array.flatten() for array in arrays]
        return {
            name: _columns(
                [each[index] for each in flat], field.type.field(index), inner
            )
            for index, (name, inner) in zip(members, feature.items(), strict=True)
        }
    if require_decoding(feature):
        decode = partial(decode_nested_example, feature)
    else:
        decode = None
    return column_of([without_views(array) for array in arrays], field.type, decode)


def _kind(feature: Any) -> str:
    if hasattr(feature, "names"):
        shown = ", ".join(feature.names[:5]) + (
            ", …" if len(feature.names) > 5 else ""
        )
        return f"class label of {shown}"
    return getattr(feature, "dtype", None) or type(feature).__name__
