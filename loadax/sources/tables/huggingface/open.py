"""Opens Hugging Face datasets; refuses what can't be read by rows, and nulls in arrays."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from loadax.core.formatting import count_text, type_text
from loadax.errors import ArgumentError, SourceError
from loadax.sources.library import comes_from
from loadax.sources.tables.arrow.call import column_names
from loadax.sources.tables.arrow.columns import runs_of
from loadax.sources.tables.arrow.layout import count_nulls, layout
from loadax.sources.tables.arrow.table import TableSource
from loadax.sources.tables.huggingface.source import mapping_of, open_columns

_TOGETHER = 1 << 16  # rows that are looked at together for nulls


def open_huggingface(data: Any, columns: Sequence[str] | str | None = None) -> TableSource:
    """The source of a map-style dataset.

    Args:
        data: The dataset.
        columns: Names of those to read; None: those of its format, which are all unless it says so.

    Raises:
        ArgumentError: when it is none, or a column is not there; says what to write.
        SourceError: when columns of numbers have nulls; names them, says how many, and what to write.
    """
    _check_kind(data)
    names = list(data.format["columns"]) if columns is None else column_names(columns, data.column_names)
    if nulls := {name: count for name in names if (count := _nulls(data, name))}:
        found = " and ".join(f"column {name!r} has {count_text(count, 'null')}" for name, count in nulls.items())
        others = [name for name in names if name not in nulls]
        leave_out = f", or leave them out: loadax.from_huggingface(data, columns={others!r})" if others else ""
        raise SourceError(
            f"{found} in {len(data)} rows, which an array can't hold; fill them with data.map, or drop their rows with "
            f"data.filter{leave_out}"
        )
    return open_columns(data, names)


def _check_kind(data: Any) -> None:
    if comes_from(data, "datasets", "Dataset"):
        if data.format["type"] == "custom":
            raise ArgumentError(
                "the dataset has a transform of its own (set_transform, with_transform), which makes rows of batches "
                "in Python; apply it by a map: loadax.from_huggingface(data.with_format(None)).map(fn), "
                "or have Hugging Face apply it row by row: loadax.from_source(data)"
            )
        return
    if isinstance(data, str | os.PathLike):
        path = os.fspath(data)
        saved = (Path(path) / "state.json").is_file()
        load = f"load_from_disk({path!r})" if saved else f"load_dataset({path!r}, split='train')"
        raise ArgumentError(f"data={data!r} is a path or a name; open it: loadax.from_huggingface(datasets.{load})")
    raise ArgumentError(f"the data is {type_text(data)}; pass a datasets.Dataset, or use loadax.as_dataset(data)")


def _nulls(data: Any, name: str) -> int:
    """The nulls in a column of numbers or lists of them; objects such as texts may be None."""
    chunks, feature = data.data.table.column(name).chunks, data.features[name]
    total = sum(_count(chunk, feature) for chunk in chunks)
    mapping = mapping_of(data)
    if not total or mapping is None:
        return total
    # Most have none, which costs nothing to see. Else some rows are not in the mapping, as those that a filter dropped.
    starts = np.cumsum([0, *map(len, chunks)])[:-1]
    total = 0
    for start in range(0, len(data), _TOGETHER):
        rows = mapping(np.arange(start, min(start + _TOGETHER, len(data))))
        total += sum(_count(chunks[run.batch].take(run.rows), feature) for run in runs_of(starts, rows))
    return total


def _count(array: Any, feature: Any) -> int:
    """The nulls of a column that is read as arrays; of a dict of features those of its members."""
    if not isinstance(feature, dict):
        return count_nulls(array) if layout(array.type)[1] is not None or array.type == pa.null() else 0
    return sum(_count(member, feature[field.name]) for field, member in zip(array.type, array.flatten(), strict=True))
