"""Opens Hugging Face datasets; refuses what can't be read by rows, and nulls in arrays."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from loadax.core.formatting import type_text
from loadax.errors import ArgumentError, SourceError
from loadax.sources.adapters.libraries import comes_from
from loadax.sources.adapters.unsupported import refuse_known
from loadax.sources.arrow.call import column_names
from loadax.sources.arrow.columns import runs_of
from loadax.sources.arrow.layout import count_nulls, layout
from loadax.sources.huggingface.source import HuggingFaceSource, mapping_of

_TOGETHER = 1 << 16  # rows that are looked at together for nulls


def open_huggingface(data: Any, columns: Sequence[str] | str | None = None) -> HuggingFaceSource:
    """The source of a map-style dataset.

    Args:
        data: The dataset.
        columns: Names of those to read; None: those of its format, which are all unless it says so.

    Raises:
        ArgumentError: when it is none, or a column is not there; says what to write.
        SourceError: when columns of numbers have nulls; names them, says how many, and what to write.
    """
    _check_kind(data)
    names = _names(data, columns)
    nulls = {name: count for name in names if (count := _nulls(data, name)).total}
    if nulls:
        raise SourceError(_null_message(data, nulls, names))
    return HuggingFaceSource(data, names)


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
    if comes_from(data, "datasets", "IterableDatasetDict"):
        refuse_known(next(iter(data.values()), None))
    if isinstance(data, Mapping):
        if not all(comes_from(part, "datasets", "Dataset") for part in data.values()):
            raise ArgumentError(
                f"the data is {type_text(data)}, whose values are no datasets of Hugging Face; "
                "of arrays: loadax.from_arrays(data)"
            )
        names = ", ".join(map(repr, data))
        raise ArgumentError(
            f"the data is {type_text(data)} of the splits {names}; hand over one of them: "
            f"loadax.from_huggingface(data[{next(iter(data), '…')!r}])"
        )
    refuse_known(data)
    raise ArgumentError(f"the data is {type_text(data)}; pass a datasets.Dataset, or use loadax.as_dataset(data)")


def _names(data: Any, columns: Sequence[str] | str | None) -> list[str]:
    if columns is None:
        return list(data.format["columns"])
    return column_names(columns, data.column_names)


class _Nulls(NamedTuple):
    """Nulls of a column.

    Args:
        total: Number of nulls at any depth.
        rows: Number of rows that are null.
    """

    total: int
    rows: int


def _nulls(data: Any, name: str) -> _Nulls:
    """The nulls in a column of numbers or lists of them; objects such as texts may be None."""
    chunks, feature = data.data.table.column(name).chunks, data.features[name]
    total = sum(_count(chunk, feature) for chunk in chunks)
    mapping = mapping_of(data)
    if not total or mapping is None:
        return _Nulls(total, sum(chunk.null_count for chunk in chunks))
    # Most have none, which costs nothing to see. Else some rows are not in the mapping, as those that a filter dropped.
    starts = np.cumsum([0, *map(len, chunks)])[:-1]
    nulls = top = 0
    for start in range(0, len(data), _TOGETHER):
        places = np.arange(start, min(start + _TOGETHER, len(data)))
        rows = mapping[1].read(runs_of(mapping[0], places), len(places)).astype(np.int64)
        for run in runs_of(starts, rows):
            taken = chunks[run.batch].take(run.rows)
            nulls, top = nulls + _count(taken, feature), top + taken.null_count
    return _Nulls(nulls, top)


def _count(array: Any, feature: Any) -> int:
    """The nulls of a column that is read as arrays; of a dict of features those of its members."""
    if not isinstance(feature, dict):
        return count_nulls(array) if layout(array.type)[1] is not None or array.type == pa.null() else 0
    return sum(_count(member, feature[field.name]) for field, member in zip(array.type, array.flatten(), strict=True))


def _null_message(data: Any, nulls: Mapping[str, _Nulls], names: list[str]) -> str:
    rows = len(data)
    useless = [name for name, count in nulls.items() if count.rows == rows]
    tests = [_test_for(data, name, count) for name, count in nulls.items() if name not in useless]
    remedies = []
    if None in tests:
        remedies.append("fill them with data.map")
    elif tests:
        kept = [name for name in names if name not in useless]
        # Its format decides what `filter` sees: NaN in place of None as NumPy, and no other columns than its own.
        plain = data.format["type"] is None and data.format["columns"] == data.column_names
        line = f"{'data' if plain else 'data.with_format(None)'}.filter(lambda row: {' and '.join(map(str, tests))})"
        chosen = "" if kept == data.column_names else f", columns={kept!r}"
        remedies.append(f"drop the rows that have some: loadax.from_huggingface({line}{chosen})")
    if others := [name for name in names if name not in nulls]:
        what = "column" if len(nulls) == 1 else "columns"
        remedies.append(f"leave the {what} out: loadax.from_huggingface(data, columns={others!r})")
    if not remedies:
        remedies.append("no row is left without them")
    found = " and ".join(
        f"column {name!r} has {'1 null' if count.total == 1 else f'{count.total} nulls'}"
        for name, count in nulls.items()
    )
    return f"{found} in {rows} rows, which an array can't hold; {', or '.join(remedies)}"


def _test_for(data: Any, name: str, count: _Nulls) -> str | None:
    """The condition for a row of a column without nulls, as code; None where that takes more than a line."""
    deep = count.total > count.rows
    if deep and (len(layout(data.data.table.schema.field(name).type)[0]) != 1 or isinstance(data.features[name], dict)):
        return None
    present = [f"row[{name!r}] is not None"] if count.rows else []
    return " and ".join([*present, f"None not in row[{name!r}]"] if deep else present)
