"""Reader: a source with its maps applied. Visits in, arrays out.

Rows may come one by one, and then need not be alike: they are stacked where the last map of single rows is done, or
where a map of batches wants them so, and nowhere before.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeVar, final

import numpy as np
from numpy.typing import NDArray

from loadax.core.formatting import name_of, rows_text
from loadax.core.spec import as_array, check_batch, flatten_spec, normalise_spec, own, spec_of, split_rows, stack
from loadax.core.tree import flatten, map_leaves
from loadax.errors import ArgumentError, LeafError, SourceError
from loadax.protocols import ArraySpec, Columns, Integers, Tree, Visits
from loadax.sources.base import BaseSource, map_bottom
from loadax.transforms import RAISED, BatchMap, Map, Transform, blame

_Read = TypeVar("_Read")


@final
@dataclass(frozen=True)
class Examples:
    """Rows one by one, in memory that nobody else holds."""

    items: list[Tree]


@final
@dataclass(frozen=True)
class Reader:
    """Reads visits: the source's rows, with every map applied.

    Args:
        source: Where the rows come from.
        maps: Applied in this order.
        first: One visit, read when a spec has to be found by looking at an example; None when there is no row.
    """

    source: BaseSource
    maps: tuple[Transform, ...]
    first: Visits | None

    @cached_property
    def _found(self) -> tuple[tuple[Tree, ...], int]:
        """The specs, and how many rows were read to find them."""
        known = [self.source.spec, *(each.spec for each in self.maps)]
        if known[0] is not None:
            known[0] = normalise_spec(known[0], "spec")
        probed = int(None in known)
        if probed:
            known = self._probe(known)
        for before, after, each in zip(known, known[1:], self.maps, strict=False):
            if each.elementwise:
                _check_elementwise(before, after, name_of(each.function))
        return tuple(known), probed + self.source.rows_probed

    def __getstate__(self) -> dict[str, Any]:
        # Specs are instances of users' classes; structures say which fields of these are static where JAX doesn't know
        # it.
        known = self._found[0] if "_found" in vars(self) else ()
        return {"_structures": [flatten_spec(spec)[1] for spec in known], **vars(self)}

    @property
    def specs(self) -> tuple[Tree, ...]:
        """The element spec of the source, and after each map; found out once, with at most one row read.

        Where rows go on one by one to the next map, other rows may have another one.
        """
        return self._found[0]

    @property
    def spec(self) -> Tree:
        """The element spec of what is read: a tree of `ArraySpec`s."""
        return self.specs[-1]

    @property
    def probed(self) -> int:
        """How many rows were read to find the spec: one, or none where every spec was stated."""
        return self._found[1]

    @property
    def num_rows(self) -> int:
        """How many rows the source has."""
        return len(self.source)

    def with_source(self, source: BaseSource) -> "Reader":
        """The same maps of the rows of another source."""
        return replace(self, source=source)

    def over(self, wrap: Callable[[BaseSource, float], BaseSource]) -> "Reader":
        """The same, reading every source that stands at the bottom through `wrap`."""
        return self.with_source(map_bottom(self.source, wrap))

    @property
    def reads_examples(self) -> bool:
        """Whether rows come one by one, so that they need not be alike before they are stacked."""
        return isinstance(self.maps[-1], Map) if self.maps else self.source.reads_examples

    @property
    def reads_columns(self) -> bool:
        """Whether the source reads columns, and no map stands between them and the result."""
        return not self.maps and self.source.reads_columns

    @property
    def reads_parts(self) -> bool:
        """Whether the source reads parts of documents, and no map stands between them and the result."""
        return not self.maps and self.source.reads_parts

    @property
    def concurrent_reads(self) -> int:
        """How many reads of the source should be under way at once, as far as it says so."""
        return int(self.source.concurrent_reads)

    @property
    def elementwise(self) -> bool:
        """Whether a part of each row's columns is all that the maps need for that part of their result."""
        return all(each.elementwise for each in self.maps)

    @property
    def random(self) -> bool:
        """Whether another epoch may give another result for the same row."""
        return any(each.rng for each in self.maps) or self.source.random

    @property
    def depth(self) -> int:
        """How many maps a row has gone through, also those within a concatenation.

        The next map's place in the chain.
        """
        return self.source.num_maps + len(self.maps)

    def describe(self) -> list[Any]:
        """The maps, also those within a concatenation, as JSON."""
        return [*self.source.describe(), *(each.describe() for each in self.maps)]

    def lengths(self, rows: Integers) -> Integers | None:
        """The lengths of documents, where they are known without reading any and no map changes them."""
        return None if self.maps else self.source.lengths(rows)

    def read_visits(self, visits: Visits) -> Tree:
        """The examples at `visits`, as a tree of arrays whose first dimension is theirs."""
        return self.apply(self.read_source(visits), visits)

    def examples(self, visits: Visits) -> list[Tree]:
        """The examples at `visits` one by one, in memory that nobody else holds: they need not be of one shape."""
        if not self.maps and self.source.reads_examples:
            return self._read_examples(visits).items
        found = self._mapped(self.read_source(visits), visits)
        if isinstance(found, Examples):
            return list(map(own, found.items))
        owned = not self.maps and self.source.owns_memory
        return split_rows(found if owned else map_leaves(np.array, found), len(visits.rows))

    def read_source(self, visits: Visits) -> Tree | Examples:
        """What the source has at `visits`, before any map.

        One by one where it has them so, and a map of single rows comes next.
        """
        if self._maps_examples:
            return self._read_examples(visits)
        spec = self.specs[0]
        batch = self._noted(self.source.read_visits, visits)
        return check_batch(batch, len(visits.rows), spec, f"the source's read of {rows_text(visits.rows)}")

    def read_columns(self, rows: Integers, boxes: Sequence[Columns | None], out: Sequence[NDArray[Any] | None]) -> None:
        """Reads columns of the source, before any map; see `BaseSource.read_into`."""
        try:
            self.source.read_into(rows, boxes, out)
        except RAISED as error:
            blame(error, "the source", f"loadax: reading {rows_text(rows)}")
            raise

    def apply(self, read: Tree | Examples, visits: Visits) -> Tree:
        """The maps applied to what `read_source` gave for these visits: a tree of arrays."""
        found = self._mapped(read, visits)
        return self._stacked(found, visits, len(self.maps)) if isinstance(found, Examples) else found

    def _mapped(self, read: Tree | Examples, visits: Visits) -> Tree | Examples:
        """The maps applied; one by one still, where the last was a map of single rows."""
        if not isinstance(read, Examples):
            read = self._writable(read)
        for number, each in enumerate(self.maps):
            if isinstance(each, BatchMap):
                batch = self._stacked(read, visits, number) if isinstance(read, Examples) else read
                read = each(batch, visits, self.specs[number + 1])
                continue
            if not isinstance(read, Examples):
                given = split_rows(read, len(visits.rows))
            elif number:  # what a map returned may be somebody's memory
                given = list(map(own, read.items))
            else:
                given = read.items
            read = Examples(each.results(given, visits))
        return read

    def _stacked(self, examples: Examples, visits: Visits, number: int) -> Tree:
        """Examples as a batch, behind so many maps."""
        try:
            return stack(examples.items, self.specs[number], visits.rows.tolist())
        except LeafError as error:
            if number:
                error.add_note(f"loadax: that is what map {name_of(self.maps[number - 1].function)} returned")
            raise

    @property
    def _maps_examples(self) -> bool:
        return self.source.reads_examples and bool(self.maps) and isinstance(self.maps[0], Map)

    def _writable(self, batch: Tree) -> Tree:
        """A batch that maps may write to: what a user's source gave may be its own memory."""
        return batch if not self.maps or self.source.owns_memory else map_leaves(np.array, batch)

    def _read_examples(self, visits: Visits) -> Examples:
        found = list(self._noted(self.source.read_examples, visits))
        if len(found) != len(visits.rows):
            raise SourceError(
                f"{self.source.type_name}.examples gave {len(found)} examples for {rows_text(visits.rows)}; "
                "return one for each row"
            )
        return Examples(found)

    def _noted(self, read: Callable[[Visits], _Read], visits: Visits) -> _Read:
        try:
            return read(visits)
        except LeafError:
            raise  # it names its row
        except RAISED as error:
            blame(error, "the source", f"loadax: reading {rows_text(visits.rows)}")
            raise

    def _probe(self, known: list[Tree | None]) -> list[Tree]:
        """`known`, with what is None filled in by reading one row and mapping it."""
        if self.first is None:
            remedy = "pass spec= to its maps" if self.maps else "leave it out"
            raise SourceError(f"the dataset has no rows, and no spec that would say what a row looks like; {remedy}")
        first, read = self.first, self._read_first(known[0])
        alike = _loose_spec if isinstance(read, Examples) else spec_of
        specs = [known[0] if known[0] is not None else alike(_only(read))]
        for number, (each, stated) in enumerate(zip(self.maps, known[1:], strict=True)):
            if None not in known[number + 1 :]:
                specs.append(stated)
                continue
            # Its one call: the result is both what shows the spec and what the next map gets.
            if isinstance(each, BatchMap):
                batch = stack(read.items, specs[number], first.rows.tolist()) if isinstance(read, Examples) else read
                result = each.raw(batch, first)
                specs.append(stated if stated is not None else _batch_spec(result, name_of(each.function)))
                read = check_batch(result, 1, specs[-1], f"map_batch {name_of(each.function)}")
            else:
                example = own(each.one(_only(read), int(first.rows[0]), int(first.epochs[0])))
                stacked = number + 1 == len(self.maps) or isinstance(self.maps[number + 1], BatchMap)
                try:
                    specs.append(stated if stated is not None else (spec_of if stacked else _loose_spec)(example))
                except LeafError as error:
                    error.add_note(f"loadax: that is what map {name_of(each.function)} returned")
                    raise
                read = Examples([example])
        return specs

    def _read_first(self, spec: Tree | None) -> Tree | Examples:
        assert self.first is not None
        if self._maps_examples:
            return self._read_examples(self.first)
        batch = self._writable(self._noted(self.source.read_visits, self.first))
        expected = _batch_spec(batch, "the source") if spec is None else spec
        return check_batch(batch, 1, expected, f"the source's read of {rows_text(self.first.rows)}")


def _only(read: Tree | Examples) -> Tree:
    """The example of one visit."""
    return read.items[0] if isinstance(read, Examples) else split_rows(read, 1)[0]


def _loose_spec(example: Tree) -> Tree:
    """The spec of an example that is never stacked, so that it may be anything."""
    try:
        return spec_of(example)
    except (ArgumentError, LeafError):  # a dict whose keys can't be sorted, or what NumPy makes no array of
        return ArraySpec((), np.dtype(object))


def _batch_spec(batch: Tree, name: str) -> Tree:
    leaves, structure = flatten(batch)
    for path, leaf in zip(structure.paths, leaves, strict=True):
        array = as_array(leaf, f"what {name} gave as leaf {path or 'of the batch'}")
        if array.ndim == 0 or len(array) != 1:
            raise ArgumentError(
                f"{name} gave leaf {path or 'of the batch'} with shape {list(array.shape)} for 1 row; "
                "the first dimension of every leaf must be the rows that were asked for"
            )
    return spec_of(structure.build(np.asarray(leaf)[0] for leaf in leaves))


def _check_elementwise(before: Tree, after: Tree, name: str) -> None:
    specs, structure = flatten_spec(before)
    results, result_structure = flatten_spec(after)
    if structure != result_structure or [spec.shape for spec in specs] != [spec.shape for spec in results]:
        raise ArgumentError(
            f"map_batch {name} is elementwise=True, but its result has other leaves or shapes than its input: "
            f"{_shown(before)} became {_shown(after)}; leave elementwise out"
        )


def _shown(spec: Tree) -> str:
    specs, structure = flatten_spec(spec)
    return ", ".join(
        f"{path or 'leaf'} {each.dtype}{list(each.shape)}" for path, each in zip(structure.paths, specs, strict=True)
    )
