"""FlatMapSource: several examples of each row of another source, as a function returns them in a list."""

from collections.abc import Sequence
from typing import Any, NamedTuple, final

import numpy as np

from loadax.core.formatting import count_text
from loadax.core.spec import own_all, spec_of, stack
from loadax.errors import LeafError
from loadax.plan.groups.offsets import group_starts
from loadax.protocols import Integers, Location, Order, Tree, Visits
from loadax.reader import Reader
from loadax.sources.base import BaseSource, Child, MapChild
from loadax.sources.checks import check_rows, chunk_starts

# Visits of the rows that lists are made of, and the index and the list length of each entry
Entries = tuple[Visits, Integers, Integers]


@final
class FanOut(NamedTuple):
    """Lists of one length for all rows of the source.

    Args:
        fan_out: The length.
        size: Number of entries of all lists.
        described: Everything that determines the entries, as JSON.
    """

    fan_out: int
    size: int
    described: list[Any]

    def entries(self, rows: Visits) -> Entries:
        """Entries at rows of all lists, one after the other."""
        below, indices = np.divmod(rows.rows, self.fan_out)
        return Visits(below, rows.epochs), indices, np.full_like(below, self.fan_out)

    @property
    def groups(self) -> Integers:
        """First entry of each list."""
        return np.arange(0, self.size, self.fan_out)

    def begins(self, starts: Integers | range) -> Integers | range | None:
        """First entries of the lists of chunks that begin at these rows; None: entries have another order than rows."""
        if isinstance(starts, range):
            return range(0, self.size, starts.step * self.fan_out)
        return starts * self.fan_out


@final
class Counts(NamedTuple):
    """Lists of a given length for each position of an order, in this order; otherwise as `FanOut`.

    Args:
        order: An order that does not vary.
        ends: Sums of the lengths, int64[positions].
        size: The last one.
        described: Everything that determines the entries, as JSON.
    """

    order: Order
    ends: Integers
    size: int
    described: list[Any]

    def entries(self, rows: Visits) -> Entries:
        positions = np.searchsorted(self.ends, rows.rows, side="right")
        begins = np.where(positions > 0, self.ends[positions - 1], 0)
        below = self.order.visits(rows.epochs, positions)
        return below, rows.rows - begins, self.ends[positions] - begins

    @property
    def groups(self) -> Integers:
        """First entry of each list that has some."""
        return group_starts(np.append(0, self.ends))

    def begins(self, starts: Integers | range) -> Integers | None:
        if self.order.row_range != range(self.order.size):
            return None
        first = np.unique(np.append(0, self.ends)[np.minimum(starts, len(self.ends))])
        return first[first < self.size]


@final
class FlatMapSource(BaseSource):
    """The entries of the lists that are made of rows of another source, one list after the other.

    A row is read and mapped once for consecutive entries of its list, and the list of the last row is kept for the next
    read, which may go on in it. Entries that are read together must have equal shapes and dtypes.

    Args:
        reader: Reader of the lists.
        lists: Lengths of the lists, and their rows.
        name: Name of the function that makes them, for messages.
    """

    def __init__(self, reader: Reader, lists: FanOut | Counts, name: str):
        self._reader = reader
        self._lists = lists
        self._name = name
        shared_by = reader.traits.shared_by or "flat_map()"
        self.traits = reader.traits._replace(
            reads_examples=True, attributes={}, shared_by=shared_by
        )
        # Row, epoch and entry that were read last, and the list. One tuple: threads replace it atomically.
        self._last: tuple[tuple[int, int], int, list[Any]] = (-1, -1), 0, []

    def __reduce__(self) -> Any:
        return FlatMapSource, (self._reader, self._lists, self._name)

    def __len__(self) -> int:
        return self._lists.size

    def __repr__(self) -> str:
        if isinstance(self._lists, FanOut):  # the order tells of flat_map()
            return repr(self._reader.source)
        return f"{self._reader.source!r}.flat_map({self._name}, counts)"

    @property
    def children(self) -> Sequence[Child]:
        return (Child("", self._reader.source, None, maps=self._reader.maps),)

    def map_children(self, wrap: MapChild) -> "FlatMapSource":
        return FlatMapSource(
            self._reader.with_source(wrap(self.children[0])), self._lists, self._name
        )

    def describe(self) -> list[Any]:
        return [["flat_map", *self._lists.described, self._reader.describe()]]

    @property
    def chunks(self) -> Integers | range | None:
        """First rows of the lists that are made of a chunk."""
        starts = chunk_starts(self._reader.source)
        if starts is None:
            return None
        return self._lists.begins(starts)

    @property
    def groups(self) -> Integers:
        """First rows of the lists."""
        return self._lists.groups

    def rows_below(self, rows: Integers) -> tuple[Integers, Integers]:
        return np.arange(len(rows), dtype=np.int64), self._lists.entries(
            Visits(rows, np.zeros_like(rows))
        )[0].rows

    def locate(self, row: int) -> list[Location]:
        return self.locate_visit(row, 0)

    def locate_visit(self, row: int, epoch: int) -> list[Location]:
        rows, epochs = self._lists.entries(
            Visits(np.array([row]), np.array([epoch]))
        )[0]
        return self._reader.source.locate_visit(int(rows[0]), int(epochs[0]))

    def read_visits(self, visits: Visits) -> Tree:
        examples = self.read_examples(visits)
        first = examples or self.read_examples(
            Visits(np.zeros(1, np.int64), np.zeros(1, np.int64))
        )
        return stack(examples, spec_of(first[0]), visits.rows.tolist())

    def read_examples(self, visits: Visits) -> list[Tree]:
        if not len(visits.rows):
            return []
        (rows, epochs), indices, lengths = self._lists.entries(
            Visits(check_rows(visits.rows, len(self)), visits.epochs)
        )
        begins = np.any(
            [np.diff(each, prepend=-1) != 0 for each in (rows, epochs, lengths)],
            axis=0,
        )
        lists = self._lists_of(
            Visits(rows[begins], epochs[begins]), int(indices[0]), int(indices[-1])
        )
        for row, entries, length in zip(
            rows[begins].tolist(), lists, lengths[begins].tolist(), strict=True
        ):
            self._check(entries, row, length)
        places = zip((np.cumsum(begins) - 1).tolist(), indices.tolist(), strict=True)
        found = [lists[place][index] for place, index in places]
        return own_all(found, visits.rows.tolist())  # each example may be written to

    def _lists_of(self, rows: Visits, first: int, last: int) -> list[Any]:
        """Lists of rows. `first`: first entry that is read of the first list; `last`: last one of the last list."""
        visits = list(zip(rows.rows.tolist(), rows.epochs.tolist(), strict=True))
        visit, entry, kept = self._last
        # no entry is given twice: maps may change objects
        if visit == visits[0] and entry < first:
            known = kept
        else:
            known = []
        rest = Visits(rows.rows[len(known) :], rows.epochs[len(known) :])
        lists = known + (self._reader.results(rest) if len(rest.rows) else [])
        self._last = visits[-1], last, lists[-1:]
        return lists

    def _check(self, entries: Any, row: int, length: int) -> None:
        if (
            not isinstance(entries, list | tuple | np.ndarray)
            or getattr(entries, "shape", (0,)) == ()
        ):
            what = (
                f"flat_map {self._name} returned a {type(entries).__name__} for row "
                f"{row}"
            )
            raise LeafError(
                f"{what}; return a list of {count_text(length, 'example')}"
            )
        if len(entries) != length:
            stated = f"{'fan_out' if isinstance(self._lists, FanOut) else 'counts'}={length}"
            what = (
                f"flat_map {self._name} returned "
                f"{count_text(len(entries), 'example')} for row {row}, and {stated}"
            )
            raise LeafError(
                f"{what}; pass counts=, the number of examples that fn makes of each "
                "row"
            )
