"""Infers the specs of rows: reads and maps the first row, and again to tell whether its values stay the same."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Protocol

import numpy as np

from loadax.core.first_row import RowReading, Stage, compare
from loadax.core.formatting import name_of
from loadax.core.spec import (
    check_batch,
    own,
    own_all,
    spec_of,
    spec_of_batch,
    spec_or_object,
    split_rows,
    stack,
)
from loadax.core.tree import map_leaves
from loadax.core.user_object import user_objects
from loadax.errors import SourceError, StreamError
from loadax.protocols import Tree, Visits
from loadax.sources.base import BaseSource
from loadax.transforms import BatchMap, Examples, Map, Transform, select

_PROBED = "loadax: this row was read and mapped to infer the spec of examples"

_IN_MAP = (
    "draw random numbers in a map, from the generator of each row: data.map(fn, "
    "rng=True), which calls fn(row, rng)"
)
_WITH_RNG = "draw random numbers from each row's generator:"
_FROM_RNG = "draw all random numbers from rng, and none from other generators"

_MOST_PROBED = 1000  # rows, until one has a list that is not empty


class EmptyListError(Exception):
    """A list to pad is empty, so that it has no dtype."""


class RowReader(Protocol):
    """The members of `loadax.reader.Reader` that a probe needs."""

    @property
    def source(self) -> BaseSource:
        """Source of the rows."""

    @property
    def maps(self) -> tuple[Transform, ...]:
        """Maps, in the order in which they apply."""

    @property
    def first(self) -> Visits | None:
        """The visit that is read; None if there are no rows."""

    def stacks(self, index: int) -> bool:
        """Whether rows are stacked after the map of this index."""

    def noted(self, num_maps: int) -> AbstractContextManager[None]:
        """Adds a note to a `LeafError` that says which map returned the examples."""

    def read_first(self, first: Visits, spec: Tree | None) -> Tree | Examples:
        """Reads the source's row at one visit, before any map."""

    def with_source(self, source: BaseSource) -> "RowReader":
        """The same maps over another source."""


def probe(reader: RowReader, known: Sequence[Tree | None]) -> list[Tree]:
    """The specs of the source and after each map, of which some are not known: one row is read and mapped for them.

    Lists to pad have a dtype only where they are not empty: it is the first row that has no empty ones, if there is
    one among the first 1,000, or the first 64 of a lane of a stream.

    Args:
        reader: The source and the maps.
        known: The specs; None: unknown.

    Raises:
        SourceError: When there are no rows.
        LeafError: When a row can't be mapped; names the row.
    """
    try:
        return _probe_with_entries(reader, known)
    except Exception as error:
        if reader.maps:
            error.add_note(_PROBED)
        raise


def _probe_with_entries(
    reader: RowReader, known: Sequence[Tree | None]
) -> list[Tree]:
    first = reader.first
    num_rows = len(reader.source)
    if first is None:
        if reader.maps:
            remedy = "pass spec= to its maps"
        else:
            remedy = "leave it out"
        raise SourceError(
            f"the dataset has no rows, and no spec can be inferred; {remedy}"
        )
    for offset in range(min(num_rows, _MOST_PROBED)):
        rows = first.rows + offset * reader.source.traits.row_step
        visit = Visits(rows % num_rows, first.epochs)
        try:
            return _probe(reader, visit, known, needs_entries=True)
        except EmptyListError:
            continue
        except StreamError:
            break  # only the first rows of a stream can be read
        except Exception:
            if not offset:
                raise
            continue  # a row that may not be in the dataset
    return _probe(reader, first, known)


def _probe(
    reader: RowReader,
    first: Visits,
    known: Sequence[Tree | None],
    *,
    needs_entries: bool = False,
) -> list[Tree]:
    """Fills in the missing entries of `known` by reading and mapping one row, a second time if that is quick.

    Raises:
        EmptyListError: When a list to pad must have entries, and is empty.
    """
    traits = reader.source.traits
    reading = RowReading()
    # What wraps other sources may read much besides the user's objects.
    is_users = traits.runs_python and not reader.source.children
    if is_users:
        objects = [*user_objects(reader.source)]
    else:
        objects = []
    read = reading.call(objects, reader.read_first, first, known[0])
    if traits.runs_python:
        kept = None
    else:
        kept = _copy(read)
    specs = _infer(reader, first, known, read, reading, needs_entries=needs_entries)
    if (reader.maps or traits.runs_python) and not traits.random:
        again = partial(_infer_again, reader, first, known, kept)
        compare(reading, again, partial(_stages, reader), int(first.rows[0]))
    return specs


def _infer_again(
    reader: RowReader,
    first: Visits,
    known: Sequence[Tree | None],
    kept: Tree | Examples | None,
    reading: RowReading,
) -> None:
    """Reads the first row a second time, unless it is kept, since nothing of the user's made it, and maps it."""
    # sources may have kept what they read last: their copies have not
    if kept is None:
        reader = reader.with_source(
            reader.source.map_children(lambda child: child.source)
        )
        kept = reader.read_first(first, known[0])
    _infer(reader, first, known, kept, reading)


def _infer(
    reader: RowReader,
    first: Visits,
    known: Sequence[Tree | None],
    read: Tree | Examples,
    reading: RowReading,
    *,
    needs_entries: bool = False,
) -> list[Tree]:
    """Maps the first row, and fills in the missing entries of `known`; notes what the source and the maps give.

    Raises:
        EmptyListError: When a list to pad must have entries, and is empty.
    """
    row = int(first.rows[0])
    epoch = int(first.epochs[0])
    reading.note(_noted(read))
    if isinstance(read, Examples):
        infer = spec_or_object
    else:
        infer = spec_of
    specs = [known[0] if known[0] is not None else infer(_single_example(read))]
    for index, (transform, stated) in enumerate(
        zip(reader.maps, known[1:], strict=True)
    ):
        if None not in known[index + 1 :]:
            specs.append(stated)
            continue
        if reader.stacks(index):
            infer = spec_of
        else:
            infer = spec_or_object
        # Call each map once: its result gives the spec and is the input of the next map.
        if transform.kind == "map_batch":
            if isinstance(read, Examples):
                batch = stack(read.items, specs[index], [row])
            else:
                batch = read
            result = reading.call([transform.calls], transform.raw, batch, first)
            specs.append(
                stated
                if stated is not None
                else spec_of_batch(result, name_of(transform.function))
            )
            read = check_batch(
                result, 1, specs[-1], f"map_batch {name_of(transform.function)}"
            )
        elif transform.kind == "select":
            read = select(transform, read, first)
            one_by_one = isinstance(read, Examples)
            specs.append(
                infer(read.items[0])
                if one_by_one
                else transform.of_tree(specs[index])
            )
        elif transform.kind != "map":
            example = _single_example(read)
            if needs_entries and transform.pads_empty_list(example):
                raise EmptyListError
            specs.append(transform.spec_of(example, row, reader.stacks(index)))
            read = Examples(transform.results([example], first, specs[-1], [row]))
        else:
            given = _single_example(read)
            example = reading.call(
                [transform.calls],
                transform.calls.call,
                transform.one,
                given,
                row,
                epoch,
            )
            with reader.noted(index + 1):
                (example,) = own_all([example], [row])
                specs.append(stated if stated is not None else infer(example))
            read = Examples([example])
        reading.note(_noted(read))
    return specs


def _single_example(read: Tree | Examples) -> Tree:
    """The example of a single visit."""
    if isinstance(read, Examples):
        return read.items[0]
    return split_rows(read, 1)[0]


def _noted(read: Tree | Examples) -> Tree:
    """The row of a `RowReading`, of one visit."""
    if isinstance(read, Examples):
        return read.items[0]
    return read


def _copy(read: Tree | Examples) -> Tree | Examples:
    if isinstance(read, Examples):
        return Examples(list(map(own, read.items)))
    return map_leaves(np.array, read)


def _stages(reader: RowReader) -> list[Stage]:
    """The source and the maps, for `compare`."""
    objects = [*user_objects(reader.source)]
    name = (
        " or ".join(dict.fromkeys(each.name for each in objects))
        or reader.source.type_name
    )
    return [Stage(name, _IN_MAP, objects), *map(_stage, reader.maps)]


def _stage(transform: Transform) -> Stage:
    """A map as a stage of `compare`."""
    if not isinstance(transform, Map | BatchMap):
        return Stage(transform.text(), "", [])
    if isinstance(transform, Map):
        verb = "map"
    else:
        verb = "map_batch"
    if transform.rng:
        remedy = _FROM_RNG
    else:
        remedy = f"{_WITH_RNG} {verb}(fn, rng=True), which calls fn(…, rng)"
    return Stage(f"{verb} {name_of(transform.function)}", remedy, [transform.calls])
