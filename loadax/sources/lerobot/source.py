"""LeRobotSource: columns of a table, and frames of videos beside them."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from loadax.core.spec import flatten_spec
from loadax.core.tree import Structure, flatten
from loadax.protocols import Boxes, Integers, Location, Outputs, Tree, Visits
from loadax.sources.base import BaseSource, Below, Child, MapChild, joint_traits
from loadax.sources.checks import check_rows, chunk_starts, read_columns
from loadax.sources.lerobot.description import Description


class LeafSource(NamedTuple):
    """Where some leaves are read.

    Args:
        name: Name of the camera; "": the table.
        source: The table, or the frames of a camera's videos.
        firsts: Row of `source` of each episode's first frame, int64[episodes].
    """

    name: str
    source: BaseSource
    firsts: Integers


class Leaf(NamedTuple):
    """Where a leaf is read.

    Args:
        part: Number of the part.
        leaf: Number of the leaf there.
    """

    part: int
    leaf: int


@final
class LeRobotSource(BaseSource):
    """Row i: frame i of all episodes, as a dict of the dataset's features.

    Args:
        parts: The table, and each camera.
        structure: Structure of a row.
        leaves: Where each leaf is read, in the order of the structure.
        description: What the folder says of itself.
    """

    spec: Tree = None

    def __init__(
        self,
        parts: Sequence[LeafSource],
        structure: Structure,
        leaves: Sequence[Leaf],
        description: Description,
    ):
        self._parts = parts
        self.structure = structure
        self._leaves = leaves
        self._description = description
        self._starts = description.starts
        self._length = description.num_rows
        specs = [flatten_spec(part.source.spec)[0] for part in parts]
        self.spec = structure.build(specs[part][leaf] for part, leaf in leaves)
        classes = {"task_index": {"classes": self.tasks}}
        known = {name: classes[name] for name in structure.names if name in classes}
        traits = joint_traits([part.source.traits for part in parts])
        self.traits = traits._replace(reads_parts=False, attributes=known)

    def __repr__(self) -> str:
        return f"{len(self._starts)} episodes of {self._description.folder}"

    @property
    def tasks(self) -> list[str]:
        """Texts of the tasks: `tasks[row["task_index"]]`."""
        return self._description.tasks

    @property
    def stats(self) -> dict[str, dict[str, NDArray[Any]]]:
        """Statistics of `meta/stats.json` by feature and name, such as `stats["action"]["mean"]`."""
        return self._description.stats

    @property
    def pictures(self) -> list[str]:
        """Features of encoded pictures, still to be decoded."""
        names = self.structure.names
        return [name for name in self._description.pictures if name in names]

    @property
    def groups(self) -> Integers:
        """First row of each episode."""
        return self._starts

    @cached_property
    def chunks(self) -> Integers | range | None:
        """Groups of pictures, if all cameras have the same, and all frames are rows in their order; else None."""
        cameras = [part for part in self._parts if part.name]
        found: list[Any] = []
        for part in cameras or self._parts:
            in_order = np.array_equal(part.firsts, self._starts)
            if len(part.source) != len(self) or not in_order:
                return None
            found.append(chunk_starts(part.source))
        first = found[0]
        if all(np.array_equal(chunks, first) for chunks in found):
            return first
        return None

    def keep_leaves(self, leaves: Tree) -> BaseSource:
        indices, structure = flatten(leaves)
        chosen = [self._leaves[index] for index in indices]
        used = sorted({leaf.part for leaf in chosen})
        return LeRobotSource(
            [self._parts[part] for part in used],
            structure,
            [leaf._replace(part=used.index(leaf.part)) for leaf in chosen],
            self._description,
        )

    @property
    def children(self) -> Sequence[Child]:
        return [
            Child(part.name, part.source, None, len(self) / max(1, len(part.source)))
            for part in self._parts
        ]

    def map_children(self, wrap: MapChild) -> BaseSource:
        parts = [
            part._replace(source=wrap(child))
            for part, child in zip(self._parts, self.children, strict=True)
        ]
        return LeRobotSource(parts, self.structure, self._leaves, self._description)

    def visits_below(self, visits: Visits) -> list[Below]:
        rows = check_rows(visits.rows, len(self))
        asked = np.arange(len(rows))
        return [
            Below(part.source, asked, Visits(self._rows(part, rows), visits.epochs))
            for part in self._parts
        ]

    def locate(self, row: int) -> list[Location]:
        """The file of the row's columns, and its frame in each video."""
        rows = check_rows([row], len(self))
        return [
            location
            for part in self._parts
            for location in part.source.locate(int(self._rows(part, rows)[0]))
        ]

    read = read_columns

    def read_into(self, rows: Integers, boxes: Boxes, out: Outputs) -> None:
        rows = check_rows(rows, len(self))
        for number, part in enumerate(self._parts):
            count = len(flatten_spec(part.source.spec)[0])
            its_boxes: list[Any] = [None] * count
            its_out: list[Any] = [None] * count
            for leaf, box, into in zip(self._leaves, boxes, out, strict=True):
                if leaf.part == number:
                    its_boxes[leaf.leaf] = box
                    its_out[leaf.leaf] = into
            if any(into is not None for into in its_out):
                part.source.read_into(self._rows(part, rows), its_boxes, its_out)

    def _rows(self, part: LeafSource, rows: Integers) -> Integers:
        """Rows of a part, of rows."""
        episodes = np.searchsorted(self._starts, rows, side="right") - 1
        return part.firsts[episodes] + rows - self._starts[episodes]
