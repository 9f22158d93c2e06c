"""Opens columns of a map-style Hugging Face dataset, through its Arrow table and indices mapping."""

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from datasets.features.features import decode_nested_example, require_decoding
from numpy.typing import NDArray

from loadax.sources.library import comes_from
from loadax.sources.tables.arrow.column_tree import ColumnTree, sample_rows
from loadax.sources.tables.arrow.columns import column_of
from loadax.sources.tables.arrow.layout import without_views
from loadax.sources.tables.arrow.table import RowMap, TableSource


def open_columns(data: Any, names: Sequence[str]) -> TableSource:
    """The source of columns of a `datasets.Dataset`, whose format is ignored. Columns of numbers have no nulls."""
    table, features = data.data, data.features
    batches = [batch for batch in table.table.select(names).to_batches() if len(batch)]
    fields = {name: table.table.schema.field(name) for name in names}
    arrays = {name: [batch.column(name) for batch in batches] for name in names}
    columns = {name: _columns(arrays[name], fields[name], features[name]) for name in names}
    tree = ColumnTree(columns, list(map(len, batches)))
    mapping = mapping_of(data)

    def held(most: int) -> Iterator[NDArray[Any]]:
        """The mapping of indices, and of a table in memory its rows, or evenly spaced ones."""
        if mapping is not None:
            yield mapping(np.linspace(0, len(data) - 1, min(len(data), most // 8)).astype(np.int64))
        if not _is_mapped(table) and len(data):
            rows = sample_rows(len(data), table.nbytes * len(data) // max(1, table.num_rows), most)
            yield from tree.sample(rows if mapping is None else mapping(rows))

    classes = {name: {"classes": list(features[name].names)} for name in names if hasattr(features[name], "names")}
    text = f"Hugging Face columns ({', '.join(f'{name}: {_kind(features[name])}' for name in names)})"
    addresses = sorted({str(Path(file["filename"]).absolute()) for file in data.cache_files})
    # A dataset that is mapped from files pickles as their paths.
    opened = open_columns, (data, names)
    return TableSource(tree, text, classes, opened, held, addresses, mapping and (mapping, len(data)))


def _is_mapped(table: Any) -> bool:
    """Whether a table is memory-mapped from files whole; `cache_files` also lists those of one block, or of indices."""
    if comes_from(table, "datasets.table", "ConcatenationTable"):
        return all(_is_mapped(block) for row in table.blocks for block in row)
    return comes_from(table, "datasets.table", "MemoryMappedTable")


def mapping_of(data: Any) -> RowMap | None:
    """The function from rows of a dataset to rows of its table; None where they are the same."""
    # Of all that this folder reads the one thing without a public name. A dataset without it would have to be written
    # again (`flatten_indices`), which for a shuffled one takes as long as an epoch.
    table = data._indices  # noqa: SLF001
    if table is None:
        return None
    chunks = [chunk for chunk in table.column(0).chunks if len(chunk)]
    indices = ColumnTree(column_of(chunks, table.column(0).type, None), list(map(len, chunks)))
    return lambda rows: indices.read(rows).astype(np.int64)


def _columns(arrays: Sequence[Any], field: Any, feature: Any) -> Any:
    """The column of a feature; of a dict of features a dict of their columns."""
    if isinstance(feature, dict):
        members = [field.type.get_field_index(name) for name in feature]
        flat = [array.flatten() for array in arrays]  # with the nulls of the structs themselves
        return {
            name: _columns([each[index] for each in flat], field.type.field(index), inner)
            for index, (name, inner) in zip(members, feature.items(), strict=True)
        }
    decode = partial(decode_nested_example, feature) if require_decoding(feature) else None
    return column_of([without_views(array) for array in arrays], field.type, decode)


def _kind(feature: Any) -> str:
    if hasattr(feature, "names"):
        shown = ", ".join(feature.names[:5]) + (", …" if len(feature.names) > 5 else "")
        return f"class label of {shown}"
    return getattr(feature, "dtype", None) or type(feature).__name__
