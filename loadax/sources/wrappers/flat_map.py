"""FlatMapSource: a fixed number of examples of each row of another source, as a function returns them."""

from collections.abc import Sequence
from typing import Any, final

import numpy as np

from loadax.core.spec import own, spec_of, stack
from loadax.errors import LeafError, SourceError
from loadax.protocols import Integers, Location, Tree, Visits
from loadax.sources.base import BaseSource, Child, MapChild
from loadax.sources.checks import check_rows, chunk_starts
from loadax.sources.wrappers.concat import PartReader


@final
class FlatMapSource(BaseSource):
    """Row i is entry `i % fan_out` of the list that is made of row `i // fan_out`.

    A row is read and mapped once for consecutive entries of its list. Entries that are read together must have equal
    shapes and dtypes.

    Args:
        reader: Reader of the lists.
        fan_out: Length of every list.
        name: Name of the function that makes them, for messages.
    """

    def __init__(self, reader: PartReader, fan_out: int, name: str):
        self._reader, self._fan_out, self._name = reader, fan_out, name
        self.traits = reader.traits._replace(reads_examples=True, attributes={})

    def __len__(self) -> int:
        return len(self._reader.source) * self._fan_out

    def __repr__(self) -> str:
        return repr(self._reader.source)  # the order tells of flat_map()

    @property
    def children(self) -> Sequence[Child]:
        return (Child("", self._reader.source, None, maps=self._reader.maps),)

    def map_children(self, wrap: MapChild) -> "FlatMapSource":
        return FlatMapSource(self._reader.with_source(wrap(self.children[0])), self._fan_out, self._name)

    def describe(self) -> list[Any]:
        return [["flat_map", self._fan_out, self._reader.describe()]]

    @property
    def chunks(self) -> Integers | range | None:
        """First rows of the lists that are made of a chunk."""
        starts = chunk_starts(self._reader.source)
        if isinstance(starts, range):
            return range(0, len(self), starts.step * self._fan_out)
        return None if starts is None else starts * self._fan_out

    def rows_below(self, rows: Integers) -> tuple[Integers, Integers]:
        return np.arange(len(rows), dtype=np.int64), rows // self._fan_out

    def locate(self, row: int) -> list[Location]:
        return self._reader.source.locate(row // self._fan_out)

    def locate_visit(self, row: int, epoch: int) -> list[Location]:
        return self._reader.source.locate_visit(row // self._fan_out, epoch)

    def read_visits(self, visits: Visits) -> Tree:
        examples = self.read_examples(visits)
        return stack(examples, spec_of((examples or [self._first_example()])[0]), visits.rows.tolist())

    def _first_example(self) -> Tree:
        first = self._reader.first
        if first is None:
            raise SourceError("the dataset has no rows, and no spec can be inferred; leave flat_map() out")
        return self.read_examples(Visits(first.rows * self._fan_out, first.epochs))[0]

    def read_examples(self, visits: Visits) -> list[Tree]:
        if not len(visits.rows):
            return []
        rows, parts = np.divmod(check_rows(visits.rows, len(self)), self._fan_out)
        begins = (np.diff(rows, prepend=-1) != 0) | (np.diff(visits.epochs, prepend=-1) != 0)
        begins[0] = True
        below = Visits(rows[begins], visits.epochs[begins])
        lists = self._reader.examples(below)
        for row, entries in zip(below.rows.tolist(), lists, strict=True):
            self._check(entries, row)
        groups = (np.cumsum(begins) - 1).tolist()
        seen: set[tuple[int, int]] = set()
        examples = []
        for key in zip(groups, parts.tolist(), strict=True):
            entry = lists[key[0]][key[1]]
            examples.append(own(entry) if key in seen else entry)  # each example may be written to
            seen.add(key)
        return examples

    def _check(self, entries: Any, row: int) -> None:
        if not isinstance(entries, list | tuple | np.ndarray) or getattr(entries, "shape", (0,)) == ():
            what = f"flat_map {self._name} returned a {type(entries).__name__} for row {row}"
            raise LeafError(f"{what}; return a list of {self._fan_out} examples")
        if len(entries) != self._fan_out:
            raise LeafError(
                f"flat_map {self._name} returned {len(entries)} examples for row {row}, and fan_out={self._fan_out}; "
                "return as many for every row: pad the list, and filter the padding out afterwards"
            )
