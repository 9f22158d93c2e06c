"""ConcatenatedSource: the rows of several sources, numbered consecutively."""

from collections.abc import Callable, Sequence
from typing import Any, final

import numpy as np

from loadax.core.array_parts import indices
from loadax.core.spec import flatten_spec
from loadax.core.tree import flatten
from loadax.errors import LeafError
from loadax.plan.part_orders import by_part
from loadax.protocols import (
    Array,
    ArraySpec,
    Boxes,
    Integers,
    LeafArrays,
    Location,
    Outputs,
    Tree,
    Visits,
)
from loadax.reader import Reader
from loadax.sources.base import (
    BaseSource,
    Below,
    Child,
    MapChild,
    asked_for,
    joint_traits,
    scatter_into,
)
from loadax.sources.checks import check_rows, chunk_starts
from loadax.sources.origins import have_common_origins

# rows of a part below which a read of each array costs less than one of the part
_FEW = 32


@final
class ConcatenatedSource(BaseSource):
    """The rows of all parts in order.

    Args:
        parts: Readers of the parts.
        verb: Name of the combining function, for messages.
        names: Names of the parts; None: their indices.

    Raises:
        LeafError: When element specs differ and no part reads rows one by one; names the part and the leaf.
    """

    in_parts = True

    # Spec of all parts; None if they differ: then a map must make the rows equal before they are stacked
    spec: Tree = None

    def __init__(
        self,
        parts: Sequence[Reader],
        verb: str = "concat",
        names: Sequence[str] | None = None,
    ):
        self._parts = list(parts)
        self._verb = verb
        self._names = names
        self._ends = np.cumsum([part.num_rows for part in self._parts])
        self._begins = self._ends - [part.num_rows for part in self._parts]
        specs: list[tuple[list[ArraySpec], Any]] = []
        self._difference: str | None = None
        for index, part in enumerate(self._parts):
            below = _difference_within(part)
            specs.append(
                flatten_spec(part.spec_of_part) if below is None else ([], None)
            )
            self._difference = (
                self._difference or below or self._compare(index, specs[0], specs[-1])
            )
        self._structure = specs[0][1]
        joined = joint_traits([part.traits for part in self._parts])
        same = self._difference is None
        if same:
            self.spec = self._parts[0].spec
        elif not joined.reads_examples:
            raise LeafError(self._difference)
        # Documents may differ in length, but in nothing else.
        if same:
            kinds = []
        else:
            kinds = [
                (tree, [(leaf.dtype, len(leaf.shape)) for leaf in leaves])
                for leaves, tree in specs
            ]
        alike = (
            all(kind == kinds[0] for kind in kinds) and self._structure is not None
        )
        reads_columns = joined.reads_columns and same
        reads_parts = joined.reads_parts and alike
        shared_by = joined.shared_by or f"{verb}()" * have_common_origins(
            [part.source for part in parts]
        )
        self.traits = joined._replace(
            reads_columns=reads_columns, reads_parts=reads_parts, shared_by=shared_by
        )
        self._dtypes = [spec.dtype for spec in specs[0][0]]

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __repr__(self) -> str:
        return (
            f"{'concatenation' if self._names is None else 'mixture'} of "
            f"{len(self._parts)}"
        )

    @property
    def children(self) -> Sequence[Child]:
        names = self._names or [f"part {index}" for index in range(len(self._parts))]
        return [
            Child(name, part.source, begin, maps=part.maps)
            for name, part, begin in zip(
                names, self._parts, self._begins.tolist(), strict=True
            )
        ]

    def map_children(self, wrap: MapChild) -> "ConcatenatedSource":
        parts = [
            part.with_source(wrap(child))
            for part, child in zip(self._parts, self.children, strict=True)
        ]
        return ConcatenatedSource(parts, self._verb, self._names)

    @property
    def rows_probed(self) -> int:
        return sum(
            part.probed
            if _difference_within(part) is None
            else part.source.rows_probed
            for part in self._parts
        )

    def describe(self) -> list[Any]:
        described = [part.describe() for part in self._parts]
        if any(described):
            return [["concat", described]]
        return []

    @property
    def chunks(self) -> Integers | None:
        """Chunks of all parts; None if a part has no chunks or has maps."""
        chunks = []
        for part, begin in zip(self._parts, self._begins, strict=True):
            if part.maps:
                starts = None
            else:
                starts = chunk_starts(part.source)
            if starts is None:
                return None
            chunks.append(np.asarray(starts, np.int64) + begin)
        return np.concatenate(chunks)

    @property
    def groups(self) -> Integers:
        """First rows of the groups of all parts, of which each is one itself where it has none."""
        firsts = []
        for part, begin in zip(self._parts, self._begins.tolist(), strict=True):
            own = part.source.groups
            if own is None:
                own = np.arange(min(1, part.num_rows))
            firsts.append(own + begin)
        return np.concatenate(firsts)

    def visits_below(self, visits: Visits) -> list[Below]:
        return [
            Below(part.source, asked, Visits(inner, visits.epochs[asked]))
            for part, asked, inner in self._owned(visits.rows)
        ]

    def locate(self, row: int) -> list[Location]:
        return self.locate_visit(row, 0)

    def locate_visit(self, row: int, epoch: int) -> list[Location]:
        part, inner = self._part_of(row)
        return part.source.locate_visit(inner, epoch)

    def documents(self, row: int) -> list[Any] | None:
        part, inner = self._part_of(row)
        return part.source.documents(inner)

    def squared_lengths(self, rows: Integers) -> Array | None:
        return self._known(
            rows, np.float64, lambda part, inner: part.source.squared_lengths(inner)
        )

    def tokens(self, rows: Integers) -> Integers | None:
        return self._known(
            rows, np.int64, lambda part, inner: part.source.tokens(inner)
        )

    def lengths(self, rows: Integers) -> Integers | None:
        return self._known(rows, np.int64, Reader.lengths)

    def read_visits(self, visits: Visits) -> Tree:
        """Reads the examples, each with its own epoch, with one read per part.

        Raises:
            LeafError: When the specs of the parts differ; names the part and the leaf.
        """
        if self._difference is not None:
            raise LeafError(self._difference)
        specs, _ = flatten_spec(self.spec)
        out: list[Array] = []
        for part, positions, inner in self._owned(visits.rows):
            batch = part.read_visits(Visits(inner, visits.epochs[positions]))
            if len(positions) == len(visits.rows):
                return batch
            out = out or [
                np.empty((len(visits.rows), *spec.shape), spec.dtype)
                for spec in specs
            ]
            for destination, leaf in zip(out, flatten(batch)[0], strict=True):
                destination[positions] = leaf
        return self._structure.build(
            out or [np.empty((0, *spec.shape), spec.dtype) for spec in specs]
        )

    def read_examples(self, visits: Visits) -> list[Tree]:
        out: list[Tree] = [None] * len(visits.rows)
        for part, positions, inner in self._owned(visits.rows):
            examples = part.examples(Visits(inner, visits.epochs[positions]))
            for position, example in zip(positions.tolist(), examples, strict=True):
                out[position] = example
        return out

    def read_into(self, rows: Integers, boxes: Boxes, out: Outputs) -> None:
        if not self.traits.reads_columns:
            super().read_into(rows, boxes, out)
            return
        rows = check_rows(rows, len(self))
        owner = np.searchsorted(self._ends, rows, side="right")
        met = np.unique(owner).tolist()
        if len(rows) < _FEW * len(met):
            memory = {index: self._parts[index].source.memory for index in met}
        else:
            memory = {}
        if memory and None not in memory.values():
            inner = (rows - self._begins[owner]).tolist()
            for leaf, columns, destination in asked_for(range(len(out)), boxes, out):
                box = [slice(*column) for column in columns]
                for place, (index, row) in enumerate(
                    zip(owner.tolist(), inner, strict=True)
                ):
                    destination[place] = memory[index][leaf][row, *box]
            return
        for part, positions, inner in self._owned(rows):
            scatter_into(part.source, inner, boxes, out, positions)

    def read_parts(
        self,
        rows: Integers,
        starts: Integers,
        lengths: Integers,
        wanted: Sequence[bool],
    ) -> LeafArrays:
        begins = np.cumsum(lengths) - lengths
        out = [
            np.empty(int(lengths.sum()), dtype) if want else None
            for dtype, want in zip(self._dtypes, wanted, strict=True)
        ]
        for part, positions, inner in self._owned(rows):
            part_values = part.source.read_parts(
                inner, starts[positions], lengths[positions], wanted
            )
            places = indices(begins[positions], lengths[positions])
            for destination, values in zip(out, part_values, strict=True):
                if destination is not None:
                    destination[places] = values
        return out

    def _owned(self, rows: Integers) -> list[tuple[Reader, Integers, Integers]]:
        """Splits rows by part: `(part, indices into rows, rows of the part)`."""
        rows = check_rows(rows, len(self))
        owner = np.searchsorted(self._ends, rows, side="right")
        return [
            (self._parts[index], positions, rows[positions] - self._begins[index])
            for index, positions in by_part(owner, np.arange(len(rows)))
        ]

    def _known(
        self,
        rows: Integers,
        dtype: Any,
        known: Callable[[Reader, Integers], Array | None],
    ) -> Array | None:
        """Values that the parts know of rows; None if one does not."""
        out = np.empty(len(rows), dtype)
        for part, positions, inner in self._owned(rows):
            values = known(part, inner)
            if values is None:
                return None
            out[positions] = values
        return out

    def _part_of(self, row: int) -> tuple[Reader, int]:
        ((part, _, inner),) = self._owned(np.array([row]))
        return part, int(inner[0])

    def _compare(
        self,
        index: int,
        first: tuple[list[ArraySpec], Any],
        other: tuple[list[ArraySpec], Any],
    ) -> str | None:
        """Describes how a part's element spec differs from that of part 0; None if it does not."""
        (specs, structure), (others, its_structure) = first, other
        if first == other:
            return None
        its_name = self._called(index)
        name = self._called(0)
        if difference := structure.static_difference(its_structure):
            return (
                f"{self._verb}: in {its_name} {difference} as in {name}; map them to "
                "one value first"
            )
        if structure != its_structure:
            own = structure.paths
            its = its_structure.paths
            return (
                f"{self._verb}: {its_name} has the leaves {its}, {name} has {own}; "
                "map them to one structure first"
            )
        path, *unlike = next(
            leaf
            for leaf in zip(structure.paths, specs, others, strict=True)
            if leaf[1] != leaf[2]
        )
        own, its = (f"{spec.dtype}{list(spec.shape)}" for spec in unlike)
        return (
            f"{self._verb}: leaf {path or 'of the example'} is {its} in {its_name} "
            f"and {own} in {name}; map them to one shape and dtype first"
        )

    def _called(self, index: int) -> str:
        if self._names is None:
            return f"part {index}"
        return f"dataset {self._names[index]!r}"


def _difference_within(part: Reader) -> str | None:
    """Describes how the rows of a part, itself a concatenation, differ from each other; None if they don't."""
    source = part.source
    return (
        source._difference  # noqa: SLF001 - same class
        if isinstance(source, ConcatenatedSource) and not part.maps
        else None
    )
