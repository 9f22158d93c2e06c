"""Opens Hugging Face datasets; refuses what can't be read by rows, and nulls."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from loadax.core.arguments import entries
from loadax.errors import ArgumentError, SourceError
from loadax.sources.adapters.libraries import comes_from
from loadax.sources.adapters.unsupported import refuse_known
from loadax.sources.huggingface.columns import count_nulls, layout, runs_of
from loadax.sources.huggingface.source import HuggingFaceSource, mapping_of

_TOGETHER = 1 << 16  # rows that are looked at together for nulls


def open_huggingface(data: Any, columns: Sequence[str] | str | None = None) -> HuggingFaceSource:
    """The source of a map-style dataset.

    Args:
        data: The dataset.
        columns: Names of those to read; None: those of its format, which are all unless it says so.

    Raises:
        ArgumentError: when it is none, or a column is not there; says what to write.
        SourceError: when a column has nulls; names it, says how many, and what to write.
    """
    _check_kind(data)
    names = _names(data, columns)
    for name in names:
        nulls, deep = _nulls(data, name)
        if nulls:
            raise SourceError(_null_message(data, name, nulls, deep, names))
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
    if isinstance(data, Mapping):
        names = ", ".join(map(repr, data))
        raise ArgumentError(
            f"the data is a {type(data).__name__} of the splits {names}; hand over one of them: "
            f"loadax.from_huggingface(data[{next(iter(data), '…')!r}])"
        )
    refuse_known(data)
    raise ArgumentError(f"the data is a {type(data).__name__}; pass a datasets.Dataset, or use loadax.as_dataset(data)")


def _names(data: Any, columns: Sequence[str] | str | None) -> list[str]:
    if columns is None:
        return list(data.format["columns"])
    names = [columns] if isinstance(columns, str) else entries("columns", columns, "names of columns")
    for name in names:
        if name not in data.column_names:
            raise ArgumentError(f"columns={columns!r}: there is no column {name!r}; there are {data.column_names}")
    if not names:
        raise ArgumentError(f"columns={columns!r} names none; there are {data.column_names}")
    return names


def _nulls(data: Any, name: str) -> tuple[int, bool]:
    """The nulls in a column of a dataset, and whether they are inside of its rows."""
    chunks, feature = data.data.table.column(name).chunks, data.features[name]
    total = sum(_count(chunk, feature) for chunk in chunks)
    mapping = mapping_of(data)
    if not total or mapping is None:
        return total, total > sum(chunk.null_count for chunk in chunks)
    # Most have none, which costs nothing to see. Else some rows are not in the mapping, as those that a filter dropped.
    starts = np.cumsum([0, *map(len, chunks)])[:-1]
    nulls = top = 0
    for start in range(0, len(data), _TOGETHER):
        places = np.arange(start, min(start + _TOGETHER, len(data)))
        rows = mapping[1].read(runs_of(mapping[0], places), len(places)).astype(np.int64)
        for run in runs_of(starts, rows):
            taken = chunks[run.batch].take(run.rows)
            nulls, top = nulls + _count(taken, feature), top + taken.null_count
    return nulls, nulls > top


def _count(array: Any, feature: Any) -> int:
    """The nulls of a column; of a dict of features those of its members."""
    if not isinstance(feature, dict):
        return count_nulls(array)
    return sum(_count(member, feature[field.name]) for field, member in zip(array.type, array.flatten(), strict=True))


def _null_message(data: Any, name: str, nulls: int, deep: bool, names: list[str]) -> str:
    depth = len(layout(data.data.table.schema.field(name).type)[0])
    if deep and (depth != 1 or isinstance(data.features[name], dict)):
        remedies = ["fill them with data.map"]
    else:
        test = f"None not in row[{name!r}]" if deep else f"row[{name!r}] is not None"
        remedies = [f"drop the rows that have some: loadax.from_huggingface(data.filter(lambda row: {test}))"]
    if others := [each for each in names if each != name]:
        remedies.append(f"leave the column out: loadax.from_huggingface(data, columns={others!r})")
    count = "1 null" if nulls == 1 else f"{nulls} nulls"
    return f"column {name!r} has {count} in {len(data)} rows, which an array can't hold; {', or '.join(remedies)}"
