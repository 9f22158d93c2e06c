"""ZippedSource: reads several datasets in parallel; row p is position p of each."""

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any, NamedTuple, final

import numpy as np

from loadax.core.spec import flatten_spec, spec_of, stack
from loadax.core.tree import Structure
from loadax.protocols import Boxes, Integers, Location, Order, Outputs, Tree, Visits
from loadax.reader import Reader
from loadax.sources.base import BaseSource, Below, Child, MapChild, joint_traits
from loadax.sources.checks import check_rows, chunk_starts
from loadax.sources.origins import have_common_origins


class ZipPart(NamedTuple):
    """One of the zipped datasets.

    Args:
        name: Path of its leaves in an example.
        reader: Reader of its rows.
        order: Order of its rows.
    """

    name: str
    reader: Reader
    order: Order


@final
class ZippedSource(BaseSource):
    """Examples of several datasets as one: row p of an epoch is position p of each of them in that epoch.

    Args:
        parts: Datasets of one size, in leaf order.
        structure: Structure of an example, whose leaves are the examples of the parts.
    """

    in_parts = True

    def __init__(self, parts: Sequence[ZipPart], structure: Structure):
        self._parts = list(parts)
        self._structure = structure
        own_epochs = any(part.order.varies for part in self._parts)
        joined = joint_traits([part.reader.traits for part in self._parts])
        self.traits = joined._replace(
            reads_columns=joined.reads_columns and not own_epochs,
            reads_parts=False,
            random=own_epochs or joined.random,
            own_epochs=own_epochs,
            shared_by=joined.shared_by or "zip()" * self._may_share_rows(),
            attributes={
                ".".join(filter(None, (name, path))): each
                for name, part in zip(structure.names, self._parts, strict=True)
                for path, each in part.reader.traits.attributes.items()
            },
        )

    def __len__(self) -> int:
        return self._parts[0].order.size

    def _may_share_rows(self) -> bool:
        """Whether two rows may have a row of a part in common, as where a series is zipped with itself, shifted."""
        if any(part.order.repeats for part in self._parts):
            return True
        return have_common_origins([part.reader.source for part in self._parts])

    def __repr__(self) -> str:
        return f"zip of {len(self._parts)}"

    @cached_property
    def spec(self) -> Tree | None:
        """Spec of an example; None if rows of a part may differ, so that it is that of the rows that are read."""
        if any(part.reader.ragged for part in self._parts):
            return None
        return self._structure.build(part.reader.spec_of_part for part in self._parts)

    @cached_property
    def _leaf_ends(self) -> list[int]:
        """Number of leaves up to and including each part."""
        return np.cumsum(
            [len(flatten_spec(part.reader.spec)[0]) for part in self._parts]
        ).tolist()

    @property
    def children(self) -> Sequence[Child]:
        return [
            Child(
                name,
                reader.source,
                None,
                order.size / max(1, reader.num_rows),
                reader.maps,
            )
            for name, reader, order in self._parts
        ]

    def map_children(self, wrap: MapChild) -> "ZippedSource":
        parts = (
            part._replace(reader=part.reader.with_source(wrap(child)))
            for part, child in zip(self._parts, self.children, strict=True)
        )
        return ZippedSource(list(parts), self._structure)

    @property
    def rows_probed(self) -> int:
        readers = [part.reader for part in self._parts]
        return sum(
            reader.source.rows_probed if reader.ragged else reader.probed
            for reader in readers
        )

    def describe(self) -> list[Any]:
        return [
            [
                "zip",
                [
                    [part.order.describe(), part.reader.describe()]
                    for part in self._parts
                ],
            ]
        ]

    @cached_property
    def chunks(self) -> Integers | range | None:
        """Chunks of the parts that have any, if they are equal and all orders are sequential; None otherwise."""
        all_starts = []
        for _, reader, order in self._parts:
            starts = chunk_starts(reader.source)
            rows = order.row_range
            if starts is None:
                continue
            if rows is None or (rows.start, rows.step) != (0, 1):
                return None
            all_starts.append(starts[: int(np.searchsorted(starts, order.size))])
        equal = all(np.array_equal(starts, all_starts[0]) for starts in all_starts)
        if all_starts and equal:
            return all_starts[0]
        return None

    def visits_below(self, visits: Visits) -> list[Below]:
        asked = np.arange(len(visits.rows))
        return [
            Below(part.reader.source, asked, below)
            for part, below in self._below(visits)
        ]

    def locate(self, row: int) -> list[Location]:
        """Files of the row in every part, as of epoch 0."""
        return self.locate_visit(row, 0)

    def locate_visit(self, row: int, epoch: int) -> list[Location]:
        locations = []
        for part, (rows, epochs) in self._below(
            Visits(np.array([row]), np.array([epoch]))
        ):
            locations += part.reader.source.locate_visit(int(rows[0]), int(epochs[0]))
        return locations

    def read_visits(self, visits: Visits) -> Tree:
        return self._structure.build(
            _read(part.reader, below) for part, below in self._below(visits)
        )

    def read_examples(self, visits: Visits) -> list[Tree]:
        columns = [part.reader.examples(below) for part, below in self._below(visits)]
        return self._structure.build_all(columns, len(visits.rows))

    def read_into(self, rows: Integers, boxes: Boxes, out: Outputs) -> None:
        rows = check_rows(rows, len(self))
        if not self.traits.reads_columns:
            super().read_into(rows, boxes, out)
            return
        first = 0
        for (part, below), end in zip(
            self._below(Visits(rows, np.zeros_like(rows))),
            self._leaf_ends,
            strict=True,
        ):
            if any(box is not None for box in boxes[first:end]):
                part.reader.source.read_into(
                    below.rows, boxes[first:end], out[first:end]
                )
            first = end

    def _below(self, visits: Visits) -> Iterable[tuple[ZipPart, Visits]]:
        """Maps visits to the visits of every part."""
        rows = check_rows(visits.rows, len(self))
        return (
            (part, part.order.visits(visits.epochs, rows)) for part in self._parts
        )


def _read(reader: Reader, visits: Visits) -> Tree:
    """Reads one part. Rows that may differ have the spec of the first one read, and not that of its first row."""
    if not reader.ragged or not len(visits.rows):
        return reader.read_visits(visits)
    _ = reader.spec_of_part  # whose error has advice for parts
    examples = reader.examples(visits)
    return stack(examples, spec_of(examples[0]), visits.rows.tolist())
