"""The data side of a dataset: a source and the maps behind it. Visits in, arrays out."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from loadax.errors import ArgumentError, LeafError, SourceError
from loadax.protocols import Columns, Integers, Source, Tree, Visits, Wrap
from loadax.specs import as_array, check_batch, flatten_spec, normalise_spec, spec_of, stack
from loadax.transforms import BatchMap, Map, Transform, name_of
from loadax.trees import flatten, map_leaves

ReadInto = Callable[..., None]


@final
@dataclass(frozen=True)
class Reader:
    """Reads visits: the source's rows, with every map applied.

    Args:
        source: of the rows.
        maps: applied in this order.
        first: one visit, read when a spec has to be found by looking at an example; None when there is no row.
    """

    source: Source
    maps: tuple[Transform, ...]
    first: Visits | None

    @cached_property
    def _found(self) -> tuple[tuple[Tree, ...], int]:
        """The specs, and how many rows were read to find them."""
        known = [getattr(self.source, "spec", None), *(each.spec for each in self.maps)]
        if known[0] is not None:
            known[0] = normalise_spec(known[0], "spec")
        probed = int(None in known)
        if probed:
            known = self._probe(known)
        for before, after, each in zip(known, known[1:], self.maps, strict=False):
            if each.elementwise:
                _check_elementwise(before, after, name_of(each.function))
        return tuple(known), probed + int(getattr(self.source, "probed", 0))

    @property
    def specs(self) -> tuple[Tree, ...]:
        """The element spec of the source, and after each map; found out once, with at most one row read."""
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

    def over(self, wrap: Wrap) -> "Reader":
        """The same, reading every source that stands at the bottom through `wrap`."""
        further = getattr(self.source, "over", None)
        return replace(self, source=further(wrap) if further is not None else wrap(self.source, 1.0))

    @property
    def read_into(self) -> ReadInto | None:
        """The source's `read_into`, when it has one and no map stands before the result."""
        return None if self.maps else self.source_into

    @property
    def source_into(self) -> ReadInto | None:
        """The source's `read_into`, when it has one."""
        return getattr(self.source, "read_into", None)

    @property
    def concurrent_reads(self) -> int:
        """How many reads of the source should be under way at once, as far as it says so."""
        return int(getattr(self.source, "concurrent_reads", 1))

    @property
    def elementwise(self) -> bool:
        """Whether a part of each row's columns is all that the maps need for that part of their result."""
        return all(each.elementwise for each in self.maps)

    @property
    def random(self) -> bool:
        """Whether another epoch may give another result for the same row."""
        return any(each.rng for each in self.maps) or bool(getattr(self.source, "maps_random", False))

    @property
    def depth(self) -> int:
        """How many maps a row has gone through, also those within a concatenation: the next map's place in the chain."""
        return int(getattr(self.source, "maps_depth", 0)) + len(self.maps)

    def describe(self) -> list[Any]:
        """The maps, also those within a concatenation, as JSON."""
        return [*getattr(self.source, "maps_described", ()), *(each.describe() for each in self.maps)]

    def read_visits(self, visits: Visits) -> Tree:
        """The examples at `visits`, as a tree of arrays whose first dimension is theirs."""
        return self.apply(self.read_source(visits), visits)

    def examples(self, visits: Visits) -> list[Tree]:
        """The examples at `visits` one by one, each mapped by itself: they need not be of one shape.

        Raises:
            ArgumentError: when one of the maps is of whole batches.
        """
        maps = [each for each in self.maps if isinstance(each, Map)]
        for other in self.maps:
            if isinstance(other, BatchMap):
                raise ArgumentError(
                    f"map_batch {name_of(other.function)} wants rows that are all alike, but documents are read one by one; use map before pack"
                )
        examples = self._one_by_one(visits)
        if maps:
            # A map may write to its example, and what the source gave may be somebody's memory.
            examples = [map_leaves(_own, example) for example in examples]
        for each in maps:
            numbers = zip(examples, visits.rows.tolist(), visits.epochs.tolist(), strict=True)
            examples = [each.one(example, row, epoch) for example, row, epoch in numbers]
        return examples

    def _one_by_one(self, visits: Visits) -> list[Tree]:
        examples = getattr(self.source, "examples", None)
        if examples is None:
            leaves, structure = flatten(self._raw(visits))
            return [structure.build(leaf[index] for leaf in leaves) for index in range(len(visits.rows))]
        try:
            return list(examples(visits.rows))
        except LeafError:
            raise  # it names its row
        except Exception as error:
            error.add_note(f"loadax: reading {_some(visits.rows)}")
            raise

    def read_source(self, visits: Visits) -> Tree:
        """What the source has at `visits`, before any map."""
        spec = self.specs[0]
        return check_batch(self._raw(visits), len(visits.rows), spec, f"the source's read of {_some(visits.rows)}")

    def read_columns(self, rows: Integers, boxes: list[Columns | None], out: list[NDArray[Any] | None]) -> None:
        """The source's `read_into`, which it must have."""
        assert self.source_into is not None
        try:
            self.source_into(rows, boxes, out)
        except Exception as error:
            error.add_note(f"loadax: reading {_some(rows)}")
            raise

    def apply(self, batch: Tree, visits: Visits) -> Tree:
        """The maps applied to what `read_source` gave for these visits."""
        batch = self._writable(batch)
        for each, spec in zip(self.maps, self.specs[1:], strict=True):
            batch = each(batch, visits, spec)
        return batch

    def _writable(self, batch: Tree) -> Tree:
        """A batch that maps may write to: what a user's source gave may be its own memory."""
        return batch if not self.maps or getattr(self.source, "fresh", False) else map_leaves(np.array, batch)

    def _raw(self, visits: Visits) -> Tree:
        read_visits = getattr(self.source, "read_visits", None)
        try:
            return read_visits(visits) if read_visits is not None else self.source.read(visits.rows)
        except LeafError:
            raise  # it names its row
        except Exception as error:
            error.add_note(f"loadax: reading {_some(visits.rows)}")
            raise

    def _probe(self, known: list[Tree | None]) -> list[Tree]:
        """`known`, with what is None filled in by reading one row and mapping it."""
        if self.first is None:
            raise SourceError("the dataset has no rows, and no spec that would say what a row looks like; pass spec= to its maps")
        batch = self._writable(self._raw(self.first))
        specs = [known[0] if known[0] is not None else _batch_spec(batch, "the source")]
        for number, (each, stated) in enumerate(zip(self.maps, known[1:], strict=True), 1):
            if stated is None:
                # Its one call: the result is both what shows the spec and what the next map gets.
                batch = _first_result(each, batch, self.first)
                specs.append(_batch_spec(batch, name_of(each.function)))
            else:
                specs.append(stated)
                if None in known[number + 1 :]:
                    batch = each(batch, self.first, stated)
        return specs


def _own(leaf: Any) -> Any:
    """A leaf as a batch would have it: arrays copied, numbers as NumPy's."""
    return leaf if isinstance(leaf, str | bytes) else np.array(leaf)[()]


def _first_result(each: Transform, batch: Tree, first: Visits) -> Tree:
    """What a map of unknown spec makes of a batch of one row."""
    if isinstance(each, BatchMap):
        return each.raw(batch, first)
    example = each.one(map_leaves(lambda leaf: leaf[0], batch), int(first.rows[0]), int(first.epochs[0]))
    try:
        return stack([example], spec_of(example), [int(first.rows[0])])
    except LeafError as error:
        error.add_note(f"loadax: that is what map {name_of(each.function)} returned")
        raise


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


def _some(rows: Integers) -> str:
    more = ", …" if len(rows) > 8 else ""
    return f"row {rows[0]}" if len(rows) == 1 else f"{len(rows)} rows ({', '.join(map(str, rows[:8]))}{more})"
