"""SelectedLeaves: some leaves of another source's rows, or the same ones under other names."""

from collections.abc import Sequence
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from loadax.core.leaf_selection import LeafSelection, select_leaves, select_of_rows
from loadax.core.spec import spec_of, stack
from loadax.core.tree import Structure, flatten, map_leaves
from loadax.protocols import Boxes, Integers, LeafArrays, Tree, Visits
from loadax.sources.base import Attributes, BaseSource, WrapperSource
from loadax.sources.checks import read_columns


@final
class SelectedLeaves(WrapperSource):
    """Selects leaves of every row, and reads no others from a source that can read some of its leaves.

    Args:
        source: Source of the rows.
        selection: The leaves. None: rows of the source have these alone.
        before: Structure of a row of the source. None: unknown; then whole rows are read.
        described: What `describe` returns: facts about the source, and of all selections.
        attributes: Attributes of the selected leaves.
    """

    structure: Structure | None = None

    def __init__(
        self,
        source: BaseSource,
        selection: LeafSelection | None,
        before: Structure | None,
        described: Sequence[Any],
        attributes: Attributes,
    ):
        super().__init__(source)
        self._selection, self._before, self._described = selection, before, described
        self._indices: list[int] = []
        traits = source.traits._replace(attributes=attributes)
        if before is None:
            traits = traits._replace(reads_columns=False, reads_parts=False)
        else:
            self._indices, self.structure = flatten(self._select(before.build(range(len(before.paths)))))
        self.traits = traits

    def __repr__(self) -> str:
        return repr(self._source) if self._selection is None else f"{self._selection} of {self._source!r}"

    def _over(self, source: BaseSource) -> "SelectedLeaves":
        return SelectedLeaves(source, self._selection, self._before, self._described, self.traits.attributes)

    def keep_leaves(self, leaves: Tree) -> BaseSource | None:
        known = self._before is not None
        return self._source.keep_leaves(map_leaves(self._indices.__getitem__, leaves)) if known else None

    @property
    def spec(self) -> Tree | None:
        spec = self._source.spec
        return None if spec is None else self._select(spec)

    def read(self, rows: Integers) -> Tree:
        return self.read_visits(Visits(rows, np.zeros_like(rows)))

    def read_visits(self, visits: Visits) -> Tree:
        if self._reads_some:
            return read_columns(self, visits.rows)
        if self._selection is None or not self.traits.reads_examples:
            return self._select(self._source.read_visits(visits))
        # Only the selected leaves of these rows need be alike.
        examples = self.read_examples(visits)
        like = examples or self.read_examples(Visits(np.zeros(1, np.int64), np.zeros(1, np.int64)))
        return stack(examples, spec_of(like[0]), visits.rows.tolist())

    def read_examples(self, visits: Visits) -> list[Tree]:
        examples = self._source.read_examples(visits)
        return examples if self._selection is None else select_of_rows(self._selection, examples, visits.rows.tolist())

    def read_into(self, rows: Integers, boxes: Boxes, out: Sequence[NDArray[Any] | None]) -> None:
        if self.traits.reads_columns:
            self._source.read_into(rows, self._of_source(boxes), self._of_source(out))
        else:
            super(WrapperSource, self).read_into(rows, boxes, out)

    def read_runs(self, first: Visits, count: int) -> Tree:
        return self._select(self._source.read_runs(first, count))

    def read_runs_into(self, first: Integers, count: int, boxes: Boxes, out: Sequence[NDArray[Any] | None]) -> None:
        if self.traits.reads_columns:
            self._source.read_runs_into(first, count, self._of_source(boxes), self._of_source(out))
        else:
            super().read_runs_into(first, count, boxes, out)

    def read_parts(self, rows: Integers, starts: Integers, lengths: Integers, wanted: Sequence[bool]) -> LeafArrays:
        of_source = [bool(each) for each in self._of_source(wanted)]
        parts = self._source.read_parts(rows, starts, lengths, of_source)
        return [parts[index] for index in self._indices]

    def describe(self) -> list[Any]:
        return list(self._described)

    @property
    def _reads_some(self) -> bool:
        """Whether reading columns reads less than reading rows."""
        some = self._before is not None and len(self._indices) < len(self._before.paths)
        return some and self.traits.reads_columns and not self.traits.random

    def _select(self, tree: Tree) -> Tree:
        return tree if self._selection is None else select_leaves(self._selection, tree)

    def _of_source(self, leaves: Sequence[Any]) -> list[Any]:
        """Values by leaf, in the leaf order of the source; None for those that are not selected."""
        values: list[Any] = [None] * len(self._before.paths if self._before else ())
        for index, value in zip(self._indices, leaves, strict=True):
            values[index] = value
        return values


def selected_leaves(source: BaseSource, before: Structure | None, selection: LeafSelection) -> SelectedLeaves:
    """Selects leaves of a source.

    Args:
        source: Source of the rows.
        before: Structure of a row, if it is known.
        selection: The leaves.

    Raises:
        ArgumentError: When a leaf does not exist, two get one name, or none is left.
    """
    described = [*source.describe(), selection.describe()]
    if before is None:
        return SelectedLeaves(source, selection, None, described, {})
    chosen = select_leaves(selection, before.build(range(len(before.paths))))
    indices, after = flatten(chosen)
    known, names = source.traits.attributes, before.names
    pairs = zip(after.names, indices, strict=True)
    attributes = {name: known[names[index]] for name, index in pairs if names[index] in known}
    kept = source.keep_leaves(chosen)
    if kept is None:
        return SelectedLeaves(source, selection, before, described, attributes)
    return SelectedLeaves(kept, None, after, described, attributes)
