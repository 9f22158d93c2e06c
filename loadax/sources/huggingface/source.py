"""A map-style Hugging Face dataset: its Arrow table and its mapping of indices."""

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, final

import numpy as np
import pyarrow as pa
from datasets.features.features import decode_nested_example, require_decoding
from numpy.typing import NDArray

from loadax.core.spec import leaf_arrays, spec_of, stack
from loadax.core.tree import flatten, map_leaves
from loadax.protocols import ArraySpec, Columns, Integers, Tree, Visits
from loadax.sources.adapters.libraries import comes_from
from loadax.sources.base import BaseSource
from loadax.sources.checks import check_rows
from loadax.sources.huggingface.columns import Column, Lists, Numbers, Objects, Run, column_of, runs_of

_KINDS = Numbers, Lists, Objects


@final
class HuggingFaceSource(BaseSource):
    """Rows of a `datasets.Dataset`, read column by column: dicts of arrays, in native byte order.

    Args:
        data: The dataset; its format decides nothing.
        columns: Names of those that are read; those of numbers have no nulls.
    """

    def __init__(self, data: Any, columns: Sequence[str]):
        self._data, self._names = data, list(columns)
        batches = [batch for batch in data.data.table.select(self._names).to_batches() if len(batch)]
        self._starts = np.cumsum([0, *map(len, batches)])[:-1]
        features = data.features
        tree = {
            name: _columns(
                [batch.column(name) for batch in batches], data.data.table.schema.field(name), features[name]
            )
            for name in self._names
        }
        found, self._structure = flatten(tree, is_leaf=lambda node: isinstance(node, _KINDS))
        self._columns: list[Column] = found
        self._mapping = mapping_of(data)
        self.classes: dict[str, list[str]] = {
            name: list(features[name].names) for name in self._names if hasattr(features[name], "names")
        }
        """The names of the classes of each column of class labels, by label."""

    def __len__(self) -> int:
        return len(self._data)

    def __repr__(self) -> str:
        kinds = [f"{name}: {_kind(self._data.features[name])}" for name in self._names]
        return f"Hugging Face columns ({', '.join(kinds)})"

    @property
    def spec(self) -> Tree | None:
        """None where rows of a column need not be alike: lists of any length, images."""
        specs = [column.spec for column in self._columns]
        return None if None in specs else self._structure.build(specs)

    @property
    def owns_memory(self) -> bool:
        return True

    @property
    def reads_columns(self) -> bool:
        return all(isinstance(column, Numbers) for column in self._columns)

    @property
    def reads_examples(self) -> bool:
        return any(column.spec is None for column in self._columns)

    @property
    def runs_python(self) -> bool:
        return any(isinstance(column, Objects) for column in self._columns)

    def read(self, rows: Integers) -> Tree:
        """The rows, stacked; lists and images must be alike."""
        rows = check_rows(rows, len(self))
        if not len(rows) and len(self) and self.spec is None:
            return map_leaves(lambda leaf: leaf[:0], self.read(np.zeros(1, np.int64)))
        runs = self._runs(rows)
        leaves = [column.read(runs, len(rows)) for column in self._columns]
        if not len(self):  # no row says what the objects are
            leaves = [np.empty(0, object) if leaf is None else leaf for leaf in leaves]
        if any(leaf is None for leaf in leaves):
            examples = self._examples(runs, len(rows))
            return stack(examples, spec_of(examples[0]), rows.tolist())
        return self._structure.build(leaves)

    def read_into(self, rows: Integers, boxes: Sequence[Columns | None], out: Sequence[NDArray[Any] | None]) -> None:
        if not self.reads_columns:
            super().read_into(rows, boxes, out)
            return
        runs = self._runs(check_rows(rows, len(self)))
        for column, box, destination in zip(self._columns, boxes, out, strict=True):
            if box is not None and destination is not None:
                assert isinstance(column, Numbers)
                whole = box == tuple((0, extent) for extent in column.spec.shape)
                column.fill(runs, None if whole and destination.dtype == column.spec.dtype else box, destination)

    def read_examples(self, visits: Visits) -> list[Tree]:
        rows = check_rows(visits.rows, len(self))
        return self._examples(self._runs(rows), len(rows))

    def lengths(self, rows: Integers) -> Integers | None:
        """Entries of the lists at `rows`, where all columns are flat lists that are equally long."""
        if not self.reads_parts:
            return None
        runs = self._runs(check_rows(rows, len(self)))
        first, *others = (column.lengths(runs, len(rows)) for column in self._columns if isinstance(column, Lists))
        return first if all((other == first).all() for other in others) else None

    @property
    def reads_parts(self) -> bool:
        return all(isinstance(column, Lists) and not column.inner.shape for column in self._columns)

    def read_parts(
        self, rows: Integers, starts: Integers, lengths: Integers, wanted: Sequence[bool]
    ) -> list[NDArray[Any] | None]:
        runs = self._runs(check_rows(rows, len(self)))
        return [
            column.parts(runs, starts, lengths) if want and isinstance(column, Lists) else None
            for column, want in zip(self._columns, wanted, strict=True)
        ]

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
            each = max(1, self._data.data.nbytes // max(1, self._data.data.num_rows))
            rows = np.unique(np.linspace(0, len(self) - 1, max(2, min(len(self), most // each))).astype(np.int64))
            runs = self._runs(rows)
            for column in self._columns:
                values = column.read(runs, len(rows))
                if values is None:
                    yield from leaf_arrays(column.examples(runs, len(rows)))
                else:
                    yield values

    def __getstate__(self) -> dict[str, Any]:
        # A dataset that is mapped from files takes their paths along, and what is mapped is found again.
        return {"data": self._data, "columns": self._names}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)

    def _runs(self, rows: Integers) -> list[Run]:
        return runs_of(self._starts, rows if self._mapping is None else self._mapped(rows))

    def _mapped(self, rows: Integers) -> Integers:
        assert self._mapping is not None
        starts, indices = self._mapping
        return indices.read(runs_of(starts, rows), len(rows)).astype(np.int64)

    def _examples(self, runs: Sequence[Run], count: int) -> list[Tree]:
        return self._structure.build_all([column.examples(runs, count) for column in self._columns], count)


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
        return {
            name: _columns([_member(array, field.type, name) for array in arrays], _field(field.type, name), inner)
            for name, inner in feature.items()
        }
    decode = partial(decode_nested_example, feature) if require_decoding(feature) else None
    return column_of([_without_views(array) for array in arrays], field.type, decode)


def _without_views(array: Any) -> Any:
    """Texts and bytes in a form that Arrow can take rows of: it can't of views of them."""
    if array.type == pa.string_view():
        return array.cast(pa.large_string())
    return array.cast(pa.large_binary()) if array.type == pa.binary_view() else array


def _member(array: Any, kind: Any, name: str) -> Any:
    return array.flatten()[kind.get_field_index(name)]  # with the nulls of the struct itself


def _field(kind: Any, name: str) -> Any:
    return kind.field(kind.get_field_index(name))


def _kind(feature: Any) -> str:
    if hasattr(feature, "names"):
        shown = ", ".join(feature.names[:5]) + (", …" if len(feature.names) > 5 else "")
        return f"class label of {shown}"
    return getattr(feature, "dtype", None) or type(feature).__name__
