"""HuggingFaceSource: rows of a map-style Hugging Face dataset, read through its Arrow table and indices mapping."""

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, final

import numpy as np
from datasets.features.features import decode_nested_example, require_decoding
from numpy.typing import NDArray

from loadax.protocols import ArraySpec, Columns, Integers, Tree, Visits
from loadax.sources.adapters.libraries import comes_from
from loadax.sources.arrow.column_tree import ColumnTree, sample_rows
from loadax.sources.arrow.columns import Numbers, column_of, runs_of
from loadax.sources.arrow.layout import without_views
from loadax.sources.base import BaseSource
from loadax.sources.checks import check_rows


@final
class HuggingFaceSource(BaseSource):
    """Rows of a `datasets.Dataset`, read column by column: dicts of arrays, in native byte order.

    Args:
        data: `datasets.Dataset`, whose format is ignored.
        columns: Names of the columns to read; columns of numbers have no nulls.
    """

    def __init__(self, data: Any, columns: Sequence[str]):
        self._data, self._names = data, list(columns)
        batches = [batch for batch in data.data.table.select(self._names).to_batches() if len(batch)]
        features = data.features
        tree = {
            name: _columns(
                [batch.column(name) for batch in batches], data.data.table.schema.field(name), features[name]
            )
            for name in self._names
        }
        starts = np.cumsum([0, *map(len, batches)])[:-1]
        self._tree = ColumnTree(tree, starts, sum(map(len, batches)))
        self._mapping = mapping_of(data)
        classes = {name: features[name].names for name in self._names if hasattr(features[name], "names")}
        self.traits = self._tree.traits._replace(
            attributes={name: {"classes": list(names)} for name, names in classes.items()}
        )

    def __len__(self) -> int:
        return len(self._data)

    def __repr__(self) -> str:
        kinds = [f"{name}: {_kind(self._data.features[name])}" for name in self._names]
        return f"Hugging Face columns ({', '.join(kinds)})"

    @property
    def spec(self) -> Tree | None:
        """None if the rows of a column may differ in shape: lists of any length, images."""
        return self._tree.spec

    def read(self, rows: Integers) -> Tree:
        """The rows, stacked; lists and images must be alike."""
        rows = check_rows(rows, len(self))
        return self._tree.read(self._mapped(rows), rows)

    def read_into(self, rows: Integers, boxes: Sequence[Columns | None], out: Sequence[NDArray[Any] | None]) -> None:
        if not self.traits.reads_columns:
            super().read_into(rows, boxes, out)
            return
        self._tree.fill(self._mapped(check_rows(rows, len(self))), boxes, out)

    def read_examples(self, visits: Visits) -> list[Tree]:
        return self._tree.examples(self._mapped(check_rows(visits.rows, len(self))))

    def lengths(self, rows: Integers) -> Integers | None:
        """Entries of the lists at `rows`, where all columns are flat lists that are equally long."""
        return self._tree.lengths(self._mapped(check_rows(rows, len(self))))

    def read_parts(
        self, rows: Integers, starts: Integers, lengths: Integers, wanted: Sequence[bool]
    ) -> list[NDArray[Any] | None]:
        return self._tree.parts(self._mapped(check_rows(rows, len(self))), starts, lengths, wanted)

    @property
    def addresses(self) -> list[str]:
        """The files that the table is mapped from."""
        return sorted({str(Path(file["filename"]).absolute()) for file in self._data.cache_files})

    def held(self, most: int) -> Iterator[NDArray[Any]]:
        """The mapping of indices, and of a table in memory its rows, or evenly spread ones."""
        if self._mapping is not None:
            kept = np.linspace(0, len(self) - 1, min(len(self), most // 8)).astype(np.int64)
            yield self._mapped(kept)
        if not _is_mapped(self._data.data) and len(self):
            table = self._data.data
            rows = sample_rows(len(self), table.nbytes * len(self) // max(1, table.num_rows), most)
            yield from self._tree.sample(self._mapped(rows))

    def __getstate__(self) -> dict[str, Any]:
        # A dataset that is mapped from files takes their paths along, and what is mapped is found again.
        return {"data": self._data, "columns": self._names}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)

    def _mapped(self, rows: Integers) -> Integers:
        """Rows of the table."""
        if self._mapping is None:
            return rows
        starts, indices = self._mapping
        return indices.read(runs_of(starts, rows), len(rows)).astype(np.int64)


def _is_mapped(table: Any) -> bool:
    """Whether a table is memory-mapped from files whole; `cache_files` also lists those of one block, or of indices."""
    if comes_from(table, "datasets.table", "ConcatenationTable"):
        return all(_is_mapped(block) for row in table.blocks for block in row)
    return comes_from(table, "datasets.table", "MemoryMappedTable")


def mapping_of(data: Any) -> tuple[Integers, Numbers] | None:
    """The row of the table behind each row of a dataset; None where they are the same.

    Returns:
        The first index of each part of the mapping, and the mapping.
    """
    # Of all that this folder reads the one thing without a public name. A dataset without it would have to be written
    # anew (`flatten_indices`), which for a shuffled one takes as long as an epoch.
    table = data._indices  # noqa: SLF001
    if table is None:
        return None
    chunks = [chunk for chunk in table.column(0).chunks if len(chunk)]
    dtype = np.dtype(table.column(0).type.to_pandas_dtype())
    return np.cumsum([0, *map(len, chunks)])[:-1], Numbers(ArraySpec((), dtype), chunks)


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
