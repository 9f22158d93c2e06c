"""GroupedSource: lists of the examples of another dataset."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple, final

import numpy as np

from loadax.core.array_parts import indices
from loadax.core.formatting import count_text
from loadax.core.spec import spec_of, stack
from loadax.errors import LeafError
from loadax.protocols import Array, Integers, Order, Tree, Visits
from loadax.reader import Reader
from loadax.sources.base import BaseSource, Child, MapChild
from loadax.sources.checks import check_rows, chunk_starts
from loadax.sources.wrappers.chunk_cache import chunk_of


class GroupedRow(NamedTuple):
    """A row of a group.

    Args:
        row: Row of the source.
    """

    row: int


@final
class GroupedSource(BaseSource):
    """Row i is the list of the examples at the positions of group i, as of epoch 0.

    Args:
        reader: Reader of the examples.
        order: Order of the examples, with the same rows in every epoch.
        bounds: Index of each group's first position in `positions`, int64[groups + 1].
        positions: Positions of all groups, one group after the other, int32[n] or int64[n].
        described: Everything that determines the groups, as JSON.
    """

    def __init__(
        self,
        reader: Reader,
        order: Order,
        bounds: Integers,
        positions: Array,
        described: list[Any],
    ):
        self._reader = reader
        self._order = order
        self.described = [described]
        self._bounds = bounds
        self._positions = positions
        shared_by = reader.traits.shared_by or "group()" * order.repeats
        own = reader.traits._replace(
            reads_examples=True, owns_memory=True, attributes={}, shared_by=shared_by
        )
        self.traits = own._replace(
            reads_columns=False, reads_parts=False, num_maps=own.num_maps + 1
        )

    def __len__(self) -> int:
        return len(self._bounds) - 1

    def __repr__(self) -> str:
        return (
            f"{count_text(len(self._positions), 'row')} in groups of "
            f"{self._reader.source!r}"
        )

    @property
    def children(self) -> Sequence[Child]:
        times = len(self._positions) / max(1, self._reader.num_rows)
        return (Child("", self._reader.source, None, times, self._reader.maps),)

    def map_children(self, wrap: MapChild) -> "GroupedSource":
        reader = self._reader.with_source(wrap(self.children[0]))
        return GroupedSource(
            reader, self._order, self._bounds, self._positions, self.described[0]
        )

    @cached_property
    def child_order(self) -> Order | None:
        if (np.diff(self._positions) == 1).all():
            return self._order
        return None

    @cached_property
    def chunks(self) -> Integers | None:
        """First groups per chunk of the source, if their rows are in its order; None otherwise."""
        starts = chunk_starts(self._reader.source)
        if starts is None or self.child_order is None:
            return None
        _, rows = self.rows_below(np.arange(len(self)))
        turns = np.diff(chunk_of(starts, rows[self._bounds[:-1]]), prepend=-1)
        if (turns < 0).any():
            return None
        return np.flatnonzero(turns)

    def rows_below(self, rows: Integers) -> tuple[Integers, Integers]:
        below, counts = self._below(Visits(rows, np.zeros_like(rows)))
        return np.repeat(np.arange(len(rows)), counts), below.rows

    def documents(self, row: int) -> list[GroupedRow]:
        return [
            GroupedRow(inner)
            for inner in self.rows_below(np.array([row]))[1].tolist()
        ]

    def read_visits(self, visits: Visits) -> Tree:
        examples = self.read_examples(visits)
        spec = spec_of(
            (
                examples
                or self.read_examples(
                    Visits(np.zeros(1, np.int64), np.zeros(1, np.int64))
                )
            )[0]
        )
        try:
            return stack(examples, spec, visits.rows.tolist())
        except LeafError as error:
            failed = LeafError(
                "a row of group() is a list of examples, which differ; make one "
                "shape of them: .map(fn)"
            )
            failed.add_note(f"loadax: {error.args[0].partition(';')[0]}")
            raise failed from None

    def read_examples(self, visits: Visits) -> list[Tree]:
        below, counts = self._below(visits)
        if len(below.rows):
            examples = self._reader.examples(below)
        else:
            examples = []
        ends = np.cumsum(counts).tolist()
        return [
            examples[end - count : end]
            for end, count in zip(ends, counts.tolist(), strict=True)
        ]

    def _below(self, visits: Visits) -> tuple[Visits, Integers]:
        """Visits of the rows of groups, and the number of rows of each group."""
        groups = check_rows(visits.rows, len(self))
        first = self._bounds[groups]
        counts = self._bounds[groups + 1] - self._bounds[groups]
        positions = self._positions[indices(first, counts)].astype(np.int64)
        if self._order.varies:
            epochs = np.zeros_like(visits.epochs)
        else:
            epochs = visits.epochs
        return self._order.visits(np.repeat(epochs, counts), positions), counts
