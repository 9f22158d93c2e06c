"""ArrowSource: rows of an Arrow table in memory."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from loadax.core.buffers import BufferPool
from loadax.protocols import Columns, Integers, Tree, Visits
from loadax.sources.arrow.call import Call
from loadax.sources.arrow.column_tree import ColumnTree, sample_rows
from loadax.sources.arrow.leaves import Leaf, columns_of, leaves_of, stated_classes
from loadax.sources.arrow.nulls import Nulls
from loadax.sources.base import Attributes, BaseSource
from loadax.sources.checks import check_rows

_FEW_ROWS = 1 << 16  # rows of a batch; in smaller ones, rows of a batch cost more to find than to copy
_IDLE_BYTES = 64 << 20  # idle memory of the buffers for batches
_COMBINED_BYTES = 4 << 30  # largest table that is copied for that


@final
class ArrowSource(BaseSource):
    """Rows of an Arrow table: dicts of its columns.

    Args:
        table: `pyarrow.Table` of the columns to read.
        nulls: What nulls become; see `Nulls`.
        call: The call that opens the table, for messages.
        addresses: Files that the table was read from.
        where: The name of a row for messages; None: its number.
        classes: Names of categories by column that the user states; see `stated_classes`.
    """

    addresses: Sequence[str] = ()

    def __init__(
        self,
        table: Any,
        nulls: Any,
        call: Call,
        addresses: Sequence[str] = (),
        where: Callable[[int], str] | None = None,
        classes: Any = None,
    ):
        self._state = table, nulls, call, addresses, None, classes
        self.addresses = list(addresses)
        self._buffers = BufferPool(_IDLE_BYTES)  # new pages of memory take as long as the rows
        table = table if table.nbytes > _COMBINED_BYTES else _with_large_batches(table)
        batches = [batch for batch in table.to_batches() if len(batch)]
        self.leaves, structure = leaves_of(table.schema, call, stated_classes(classes), lambda _: [table])
        filler = Nulls(nulls, self.leaves, call)
        columns = columns_of(self.leaves, batches, filler, where)
        starts = np.cumsum([0, *map(len, batches)])[:-1]
        self._tree = ColumnTree(structure.build(columns), starts, table.num_rows)
        self.traits = self._tree.traits._replace(attributes=attributes_of(self.leaves))

    def __len__(self) -> int:
        return len(self._tree)

    def __repr__(self) -> str:
        return f"Arrow columns ({leaves_text(self.leaves)})"

    @property
    def spec(self) -> Tree | None:
        return self._tree.spec

    def read(self, rows: Integers) -> Tree:
        return self._tree.read(check_rows(rows, len(self)), allocate=self._buffers.lease)

    def read_into(self, rows: Integers, boxes: Sequence[Columns | None], out: Sequence[NDArray[Any] | None]) -> None:
        if self.traits.reads_columns:
            self._tree.fill(check_rows(rows, len(self)), boxes, out)
        else:
            super().read_into(rows, boxes, out)

    def read_examples(self, visits: Visits) -> list[Tree]:
        return self._tree.examples(check_rows(visits.rows, len(self)))

    def lengths(self, rows: Integers) -> Integers | None:
        return self._tree.lengths(check_rows(rows, len(self)))

    def read_parts(
        self, rows: Integers, starts: Integers, lengths: Integers, wanted: Sequence[bool]
    ) -> list[NDArray[Any] | None]:
        return self._tree.parts(check_rows(rows, len(self)), starts, lengths, wanted)

    def held(self, most: int) -> Iterator[NDArray[Any]]:
        yield from stated_names(self.leaves)
        if len(self):
            yield from self._tree.sample(sample_rows(len(self), self._state[0].nbytes, most))

    def __reduce__(self) -> Any:
        return ArrowSource, self._state


def leaves_text(leaves: Sequence[Leaf]) -> str:
    """Leaves with their types: `label: class label of cat, dog, time: timestamp[us] as int64`."""
    return ", ".join(f"{leaf.path}: {_leaf_text(leaf)}" for leaf in leaves)


def attributes_of(leaves: Sequence[Leaf]) -> Attributes:
    """The names of the categories of leaves, and the Arrow types of times, whose ints count its unit."""
    classes = {leaf.path: {"classes": list(leaf.classes)} for leaf in leaves if leaf.classes is not None}
    return {**classes, **{leaf.path: {"units": str(leaf.stored)} for leaf in leaves if leaf.is_temporal}}


def stated_names(leaves: Sequence[Leaf]) -> list[NDArray[Any]]:
    """Names of categories that the user states, which decide the numbers of rows as the files do."""
    return [np.array(leaf.classes) for leaf in leaves if leaf.stated]


def _leaf_text(leaf: Leaf) -> str:
    if leaf.classes is not None:
        return f"class label of {', '.join(leaf.classes[:5])}{', …' if len(leaf.classes) > 5 else ''}"
    return f"{leaf.stored} as {leaf.type}" if leaf.is_temporal else str(leaf.stored)


def _with_large_batches(table: Any) -> Any:
    """A table of many small record batches as one of few."""
    batches = max(1, max((column.num_chunks for column in table.columns), default=1))
    return table.combine_chunks() if batches > 1 and table.num_rows < batches * _FEW_ROWS else table
