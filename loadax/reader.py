"""Reader: a source with its maps applied, from visits to arrays.

Rows may be read one by one, and then may have different shapes. They are stacked after the last per-row map, or before
a batch map, and never earlier.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, TypeVar, final

import numpy as np

from loadax.core.arguments import integer
from loadax.core.formatting import count_text, name_of, rows_text
from loadax.core.spec import (
    RowNames,
    as_array,
    check_batch,
    check_leaves,
    describe_spec,
    flatten_spec,
    normalise_spec,
    own_all,
    spec_of_batch,
    split_rows,
    stack,
)
from loadax.core.tree import Structure, flatten, map_leaves
from loadax.core.user_object import RAISED, blame
from loadax.errors import ArgumentError, LeafError, SourceError
from loadax.protocols import (
    Array,
    ArraySpec,
    Boxes,
    Integers,
    Location,
    Outputs,
    Tree,
    Visits,
)
from loadax.sources.base import BaseSource, Child, Traits, map_bottom, walk
from loadax.transforms import (
    BatchMap,
    Examples,
    Map,
    Stacker,
    Stream,
    Transform,
    select,
)

_Read = TypeVar("_Read")

# version of `zip`, `concat` and `chain` whose parts draw different random numbers
DISTINCT = 2


@final
@dataclass(frozen=True)
class Reader:
    """Reads the source's rows at visits and applies every map.

    Args:
        source: Source of the rows.
        maps: Maps, in the order in which they apply.
        first: A visit that is read if a spec has to be inferred from an example; None if there are no rows.
    """

    source: BaseSource
    maps: tuple[Transform, ...]
    first: Visits | None

    @cached_property
    def _specs_and_probed(self) -> tuple[tuple[Tree, ...], int]:
        """The specs, and the number of rows read to infer them."""
        known = [
            normalise_spec(self.source.spec),
            *(transform.spec for transform in self.maps),
        ]
        for index, transform in enumerate(self.maps):
            if known[index] is None:
                continue
            if transform.kind == "select":
                known[index + 1] = transform.of_tree(known[index])
            elif transform.kind == "decode":
                known[index + 1] = transform.spec_of_tree(known[index])
        probed = int(None in known)
        if probed:
            from loadax.probe import probe

            known = probe(self, known)
        for before, after, transform in zip(
            known, known[1:], self.maps, strict=False
        ):
            if transform.kind == "map_batch" and transform.elementwise:
                _check_elementwise(before, after, name_of(transform.function))
        return tuple(known), probed + self.source.rows_probed

    def __getstate__(self) -> dict[str, Any]:
        # Specs are instances of users' classes. Structures record which of their fields are static, which JAX may not
        # know in the other process.
        if "_specs_and_probed" in vars(self):
            known = self._specs_and_probed[0]
        else:
            known = ()
        return {
            "_structures": [flatten_spec(spec)[1] for spec in known],
            **vars(self),
        }

    @property
    def spec_of_part(self) -> Tree:
        """The spec, where this is a part of `mix`, `concat` or `zip`, which ask all of their parts."""
        try:
            return self.spec
        except Exception as error:
            if self.maps:
                error.add_note(
                    "loadax: if only some rows of this part fail, pass spec= to its "
                    "maps: then none is read"
                )
            raise

    @property
    def specs(self) -> tuple[Tree, ...]:
        """The element specs of the source and after each map. At most one row is read to infer them.

        Where rows go to the next map one by one, other rows may have another spec.
        """
        return self._specs_and_probed[0]

    @cached_property
    def _source_spec(self) -> tuple[list[ArraySpec], Structure]:
        """The spec of the source, flattened: every read checks it."""
        return flatten_spec(self.specs[0])

    @property
    def spec(self) -> Tree:
        """The element spec of mapped rows: a tree of `ArraySpec`s."""
        return self.specs[-1]

    @property
    def probed(self) -> int:
        """Number of rows read to infer the spec: one, or none if every spec was given."""
        return self._specs_and_probed[1]

    @property
    def num_rows(self) -> int:
        """Number of rows of the source."""
        return len(self.source)

    @property
    def source_row_bytes(self) -> int:
        """Bytes of a row of the source, before any map."""
        return sum(spec.nbytes for spec in self._source_spec[0])

    def with_source(self, source: BaseSource | Child) -> "Reader":
        """The same maps over another source; or a child's source and maps."""
        if isinstance(source, Child):
            return replace(self, source=source.source, maps=tuple(source.maps))
        return replace(self, source=source)

    def with_streams(self, change: Callable[[Stream], Stream]) -> "Reader":
        """The same reader, but maps without a given seed, also those below, draw from other streams."""
        if not draws_by_default(self):
            return self
        made = replace(
            self,
            source=_with_streams(self.source, change),
            maps=_other_streams(self.maps, change),
        )
        if "_specs_and_probed" in vars(self):  # no row is read again for it
            vars(made)["_specs_and_probed"] = self._specs_and_probed
        return made

    def over(self, wrap: Callable[[BaseSource, float], BaseSource]) -> "Reader":
        """A reader whose innermost sources are replaced by `wrap(source, times)`."""
        return self.with_source(map_bottom(self.source, wrap))

    @cached_property
    def traits(self) -> Traits:
        """Traits of mapped rows. Padding and selections of leaves don't count as maps: some sources do them."""
        traits = self.source.traits
        if not self.maps:
            return traits
        return Traits(
            reads_examples=self._last.kind != "map_batch"
            if self._last
            else traits.reads_examples,
            owns_memory=self._last is not None or traits.owns_memory,
            concurrent_reads=traits.concurrent_reads,
            random=traits.random
            or any(transform.rng or transform.with_epoch for transform in self.maps),
            own_epochs=traits.own_epochs,
            num_maps=traits.num_maps
            + sum(transform.kind not in ("pad", "select") for transform in self.maps),
            runs_python=self._last is not None or traits.runs_python,
            attributes=traits.attributes
            if all(transform.kind in ("pad", "decode") for transform in self.maps)
            else {},
            shared_by=traits.shared_by,
        )

    @property
    def _last(self) -> Map | BatchMap | Stacker | None:
        """The last map that makes the values of leaves; None: they are those of the source."""
        return next(
            (
                transform
                for transform in reversed(self.maps)
                if transform.kind != "select"
            ),
            None,
        )

    @property
    def origins(self) -> list[int]:
        """Index of the source's leaf that each leaf of an example is made of, if all maps are elementwise."""
        specs, structure = self._source_spec
        tree = structure.build(range(len(specs)))
        for transform in self.maps:
            if transform.kind == "select":
                tree = transform.of_tree(tree)
        return flatten(tree)[0]

    @property
    def ragged(self) -> bool:
        """Whether the shapes of rows may differ: they are read one by one, and no spec is given for them."""
        return self.traits.reads_examples and (self._last or self.source).spec is None

    @property
    def elementwise(self) -> bool:
        """Whether all maps are elementwise, so that they can be applied to some columns of a row."""
        return all(transform.elementwise for transform in self.maps)

    @property
    def maps_columns(self) -> bool:
        """Whether some columns of rows can be read and mapped without the others."""
        return self.source.traits.reads_columns and self.elementwise

    def describe(self) -> list[Any]:
        """The maps as JSON, including those inside a concatenation."""
        return [
            *self.source.describe(),
            *(transform.describe() for transform in self.maps),
        ]

    def lengths(self, rows: Integers) -> Integers | None:
        """int64[n]: document lengths if known without reading, and no map changes them; else None."""
        if self._last:
            return None
        return self.source.lengths(rows)

    def read_visits(self, visits: Visits) -> Tree:
        """The examples at `visits`: a tree of arrays, rows first."""
        return self.apply(self.read_source(visits), visits)

    def examples(self, visits: Visits) -> list[Tree]:
        """The examples at `visits` as a list, in memory that nothing else references. Their shapes may differ."""
        if not self.maps and self.source.traits.reads_examples:
            return self._read_examples(visits).items
        mapped = self._apply_maps(self.read_source(visits), visits, stacked=False)
        if isinstance(mapped, Examples):
            return self._own(mapped, visits, len(self.maps))
        owned = self._last is None and self.source.traits.owns_memory
        return split_rows(
            mapped if owned else map_leaves(np.array, mapped), len(visits.rows)
        )

    def lent_examples(self, visits: Visits) -> list[Tree]:
        """As `examples`, in memory that the source may hold: they must be neither written to nor kept."""
        if self.maps or not self.source.traits.reads_examples:
            return self.examples(visits)
        return self._read_examples(visits, self.source.lend_examples).items

    def results(self, visits: Visits) -> list[Tree]:
        """Results of the last map, a per-row one, for the examples at `visits`, which its function may still hold."""
        mapped = self._apply_maps(self.read_source(visits), visits, stacked=False)
        if isinstance(mapped, Examples):
            return mapped.items
        return []

    def read_source(self, visits: Visits) -> Tree | Examples:
        """Reads the source's rows at `visits`, before any map.

        They are separate rows if the source has them and the next map is a per-row one.
        """
        if self._maps_examples_first:
            return self._read_examples(visits)
        # first, since a source may read a row for it
        specs, structure = self._source_spec
        # a source of rows that differ has no shapes for none of them
        if not len(visits.rows):
            return stack([], self.specs[0], [])
        try:
            batch = self._read_with_note(self.source.read_visits, visits)
            return check_leaves(
                batch,
                len(visits.rows),
                specs,
                structure,
                f"the source's read of {rows_text(visits.rows)}",
            )
        except LeafError as error:
            # A source of examples compares rows with the first one of the read, which may be the one that differs.
            if self.source.traits.reads_examples and not hasattr(error, "__notes__"):
                self._stack(self._read_examples(visits), visits, 0)
            raise

    def read_columns(self, rows: Integers, boxes: Boxes, out: Outputs) -> None:
        """Reads columns of the source, before any map; see `BaseSource.read_into`."""
        try:
            self.source.read_into(rows, boxes, out)
        except RAISED as error:
            blame(error, "the source", f"loadax: reading {rows_text(rows)}")
            raise

    def mapped_columns(self, visits: Visits, boxes: Boxes) -> list[Array]:
        """Reads columns of every leaf, and applies the maps, all elementwise; see `BaseSource.read_into`.

        Values of leaves without a box have no meaning.
        """
        specs = self._source_spec[0]
        out = list[Array | None]()
        values = []
        its_boxes = dict(zip(self.origins, boxes, strict=True))
        read = [its_boxes.get(leaf) for leaf in range(len(specs))]
        for box, spec in zip(read, specs, strict=True):
            columns = [(0, 1)] * len(spec.shape) if box is None else box
            shape = len(visits.rows), *(stop - start for start, stop in columns)
            values.append((np.ones if box is None else np.empty)(shape, spec.dtype))
            out.append(None if box is None else values[-1])
        self.source.read_into(visits.rows, read, out)
        return self.apply_elementwise(values, visits)

    def apply_elementwise(
        self, columns: Sequence[Array], visits: Visits
    ) -> list[Array]:
        """Applies the maps, all elementwise, to some columns of every leaf of the source."""
        batch = self._source_spec[1].build(columns)
        for transform, spec in zip(self.maps, self.specs[1:], strict=True):
            if transform.kind == "select":
                batch = transform.of_tree(batch)
                continue
            assert isinstance(transform, BatchMap)
            shapes = [leaf.shape for leaf in flatten(batch)[0]]
            name = name_of(transform.function)
            specs, expected = flatten_spec(spec)
            results, structure = flatten(transform.raw(batch, visits))
            if structure != expected:
                raise LeafError(
                    f"map_batch {name} returned the leaves {structure.paths}, "
                    f"expected {expected.paths}"
                )
            leaves = []
            for path, leaf, shape, wanted in zip(
                structure.paths, results, shapes, specs, strict=True
            ):
                array = as_array(
                    leaf, f"map_batch {name}: leaf {path or 'of the batch'}"
                )
                wrong_dtype = (
                    array.dtype != wanted.dtype and not wanted.dtype.hasobject
                )
                if array.shape != shape or wrong_dtype:
                    raise LeafError(
                        f"map_batch {name} returned leaf {path or 'of the batch'} as "
                        f"{array.dtype}{list(array.shape)}, expected "
                        f"{wanted.dtype}{list(shape)}; use elementwise=False to "
                        "change shapes"
                    )
                leaves.append(array)
            batch = expected.build(leaves)
        return flatten(batch)[0]

    def apply(self, read: Tree | Examples, visits: Visits) -> Tree:
        """Applies the maps to what `read_source` returned for `visits`, and returns a tree of arrays."""
        mapped = self._apply_maps(read, visits, stacked=True)
        if isinstance(mapped, Examples):
            return self._stack(mapped, visits, len(self.maps))
        return mapped

    def _apply_maps(
        self, read: Tree | Examples, visits: Visits, stacked: bool
    ) -> Tree | Examples:
        """Applies the maps. The result is still separate rows if the last map was a per-row one.

        Args:
            read: What `read_source` returned.
            visits: Visits of the rows.
            stacked: Whether the rows are stacked next. Padding then stacks them, which is faster.
        """
        if not isinstance(read, Examples):
            read = self._make_writable(read)
        for index, transform in enumerate(self.maps):
            if transform.kind == "select":
                read = select(transform, read, visits)
                continue
            if transform.kind == "map_batch":
                if isinstance(read, Examples):
                    batch = self._stack(read, visits, index)
                else:
                    batch = read
                read = transform(batch, visits, self.specs[index + 1])
                continue
            if transform.kind != "map":
                if isinstance(read, Examples):
                    given = read.items
                else:
                    given = split_rows(read, len(visits.rows))
                spec = self.specs[index + 1]
                names = self._names(visits)
                if self.stacks(index, stacked):
                    read = transform(given, visits, spec, names)
                else:
                    read = Examples(transform.results(given, visits, spec, names))
                continue
            if not isinstance(read, Examples):
                given = split_rows(read, len(visits.rows))
            elif index:  # the user's function may still reference what it returned
                given = self._own(read, visits, index)
            else:
                given = read.items
            read = Examples(transform.results(given, visits))
        return read

    def stacks(self, index: int, stacked: bool = True) -> bool:
        """Whether rows are stacked after the map of this index; `stacked`: after the last one."""
        if index + 1 == len(self.maps):
            return stacked
        return isinstance(self.maps[index + 1], BatchMap)

    def _stack(self, examples: Examples, visits: Visits, num_maps: int) -> Tree:
        """Stacks examples after the first `num_maps` maps."""
        with self.noted(num_maps):
            return stack(examples.items, self.specs[num_maps], self._names(visits))

    def _own(self, examples: Examples, visits: Visits, num_maps: int) -> list[Tree]:
        """Copies of examples after the first `num_maps` maps."""
        with self.noted(num_maps):
            return own_all(examples.items, self._names(visits))

    def _names(self, visits: Visits) -> RowNames:
        return RowNames(len(visits.rows), partial(_row_name, self.source, visits))

    @contextmanager
    def noted(self, num_maps: int) -> Iterator[None]:
        """Adds a note to a `LeafError` that says which map returned the examples."""
        try:
            yield
        except LeafError as error:
            if num_maps:
                error.add_note(
                    "loadax: returned by map "
                    f"{name_of(self.maps[num_maps - 1].function)}"
                )
            raise

    @property
    def _maps_examples_first(self) -> bool:
        return (
            self.source.traits.reads_examples
            and bool(self.maps)
            and not isinstance(self.maps[0], BatchMap)
        )

    def _make_writable(self, batch: Tree) -> Tree:
        """Copies the batch if maps may write to it and the source may still reference its memory."""
        if self._last is None or self.source.traits.owns_memory:
            return batch
        return map_leaves(np.array, batch)

    def _read_examples(
        self, visits: Visits, read: Callable[[Visits], list[Tree]] | None = None
    ) -> Examples:
        examples = list(
            self._read_with_note(read or self.source.read_examples, visits)
        )
        if len(examples) != len(visits.rows):
            name = self.source.type_name
            rows = rows_text(visits.rows)
            raise SourceError(
                f"{name}.examples returned {count_text(len(examples), 'example')} "
                f"for {rows}; return one per row"
            )
        return Examples(examples)

    def _read_with_note(
        self, read: Callable[[Visits], _Read], visits: Visits
    ) -> _Read:
        try:
            return read(visits)
        except LeafError:
            raise  # it names the row already
        except RAISED as error:
            blame(error, "the source", f"loadax: reading {rows_text(visits.rows)}")
            raise

    def read_first(self, first: Visits, spec: Tree | None) -> Tree | Examples:
        """Reads the source's row at one visit, before any map, to infer specs of it; as `read_source`.

        Args:
            first: The visit.
            spec: Spec of the source; None: unknown.
        """
        if self._maps_examples_first:
            return self._read_examples(first)
        batch = self._make_writable(
            self._read_with_note(self.source.read_visits, first)
        )
        if spec is None:
            expected = spec_of_batch(batch, "the source")
        else:
            expected = spec
        return check_batch(
            batch, 1, expected, f"the source's read of {rows_text(first.rows)}"
        )


def streams_of(reader: Reader) -> list[Stream]:
    """Streams of the maps of a reader, and below it, that draw random numbers with a seed that was not given."""
    return [
        each.stream for each in _all_maps(reader.source, reader.maps) if each.stream
    ]


def draws_by_default(reader: Reader) -> bool:
    """Whether a map of a reader, or below it, draws random numbers with a seed that was not given."""
    return bool(streams_of(reader))


def _all_maps(source: BaseSource, maps: Sequence[Transform] = ()) -> list[Transform]:
    """The maps of a source, and those of all sources below it."""
    return [
        *maps,
        *(
            transform
            for each in walk(source)
            for child in each.children
            for transform in child.maps
        ),
    ]


def readers_of_parts(readers: Sequence[Reader], version: int) -> list[Reader]:
    """Readers of the parts of `mix`, `zip` or `concat`, whose maps without a given seed draw different numbers.

    Args:
        readers: Readers of the parts.
        version: 1: they draw equal numbers, as before there was version 2.

    Raises:
        ArgumentError: When there is no such version.
    """
    version = integer("version", version)
    if version not in (1, DISTINCT):
        raise ArgumentError(
            f"version={version}: pass {DISTINCT}, or 1 to go on with a run that "
            "began with it"
        )
    if version == 1 or sum(map(draws_by_default, readers)) < 2:
        return [*readers]
    return [
        reader.with_streams(partial(_in_part, part))
        for part, reader in enumerate(readers)
    ]


def _in_part(part: int, stream: Stream) -> Stream:
    return replace(stream, parts=(*stream.parts, part))


def _with_streams(
    source: BaseSource, change: Callable[[Stream], Stream]
) -> BaseSource:
    def changed(child: Child) -> Any:
        below = _with_streams(child.source, change)
        if child.maps:
            return child._replace(
                source=below, maps=_other_streams(child.maps, change)
            )
        return below

    if not any(each.stream for each in _all_maps(source)):
        return source
    return source.map_children(changed)


def _other_streams(
    maps: Sequence[Any], change: Callable[[Stream], Stream]
) -> tuple[Transform, ...]:
    return tuple(
        replace(each, stream=change(each.stream)) if each.stream else each
        for each in maps
    )


def _row_name(source: BaseSource, visits: Visits, index: int) -> str:
    """A row with its file, for errors."""
    row = int(visits.rows[index])
    epoch = int(visits.epochs[index])
    locations = source.locate_visit(row, epoch)
    if locations:
        file, first, _, part = locations[0]
    else:
        file, first, _, part = Location("")
    if part and len(locations) == 1:
        place = part
    elif first is not None:
        place = f"byte {first}"
    else:
        place = ""
    if file:
        return f"{row} ({', '.join(filter(None, (file, place)))})"
    return str(row)


def _check_elementwise(before: Tree, after: Tree, name: str) -> None:
    specs, structure = flatten_spec(before)
    results, result_structure = flatten_spec(after)
    if structure != result_structure or [spec.shape for spec in specs] != [
        spec.shape for spec in results
    ]:
        raise ArgumentError(
            f"map_batch {name} is elementwise=True, but its result and its input "
            f"differ in leaves or shapes: {describe_spec(before)} became "
            f"{describe_spec(after)}; leave elementwise out"
        )
