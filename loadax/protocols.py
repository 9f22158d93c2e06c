"""The core contracts, and the types that pass between components.

Indices have three names and keep them in every signature: `step` (which batch), `position` (index in the order, or in
the batch), `row` (record of the source).
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias, runtime_checkable

import numpy as np
from numpy.typing import NDArray

Integers: TypeAlias = NDArray[np.int64]
"""int64[n]: rows, positions, epochs or steps."""

Tree: TypeAlias = Any
"""A pytree (dict, list, tuple, namedtuple, dataclass) of arrays, or one array."""

Columns: TypeAlias = tuple[tuple[int, int], ...]
"""A column box: `(start, stop)` for every dimension of a leaf after its first."""


class ArraySpec(NamedTuple):
    """Shape and dtype of one leaf of one example, without the dimension of rows."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]


class Visits(NamedTuple):
    """The rows that a sequence of positions reads, and the epoch of each read.

    A row of -1 is padding: nothing is read, and the batch has zeros there.
    """

    rows: Integers
    epochs: Integers


class Segments(NamedTuple):
    """The parts of documents in packed rows, sorted by row and column. Every field is int64[n]."""

    rows: Integers
    """Index of the packed row among the requested ones, from 0."""
    documents: Integers
    skips: Integers
    """First entry of the document that the segment contains."""
    columns: Integers
    """First column of the segment in its row."""
    lengths: Integers
    numbers: Integers
    """Number of the segment within its row, from 1."""


class Location(NamedTuple):
    """Location of stored data: a file, its first and last byte if known, and the part if the file has several."""

    file: str
    first: int | None = None
    last: int | None = None
    part: str = ""


class LaneAssignment(NamedTuple):
    """A range of positions that are assigned to lanes round-robin.

    `start` belongs to `lanes[0]`, the next position to `lanes[1]`, and so on. The range ends where the next one begins.
    `lanes` is int64[n]; `start` may be before the first requested position.
    """

    start: int
    lanes: Integers


@runtime_checkable
class Source(Protocol):
    """Data with random access to its rows. The contract between loadax and the data.

    A source needs only these three members. loadax adapts it to `loadax.sources.base.BaseSource`, which has a default
    for everything else. Optional members:

    - `read_into(rows, boxes, out)`: reads directly into `out`, without copies and without unneeded columns. `boxes` and
      `out` have one entry per leaf, in leaf order: a column box and a destination of shape `(len(rows), *box extents)`,
      or None and None for a leaf that is not requested.
    - `owns_memory`: whether nothing else references the memory that `read` returns. If not, it is copied before a map
      may write to it.
    - `chunks`: first rows of the chunks that are decoded together, ascending from 0: int64[m], or a `range` if chunks
      are of equal size. A block shuffle then caches its open chunks, so that each is decoded once.
    - `concurrent_reads`: number of reads to keep in flight, for a source that waits for disks or networks.
    - `examples(rows)`: the rows as a list of examples, which may differ in shape until the last per-row map.
    - `lengths(rows)`: document lengths as int64[n], without reading documents.
    - `read_parts(rows, starts, lengths, wanted)`: parts of documents in flat arrays: `lengths[i]` entries of document
      `rows[i]` from entry `starts[i]` on, concatenated. Returns a list with an array per leaf, None for leaves that are
      not `wanted`.
    - `locate(row)`: files of a row: a list of `Location`s, or of tuples of their fields.
    - `addresses`: local paths and URLs of the files and folders that the source itself reads, to refuse overwriting
      them and to notice changes.
    - `some_files(most)`: at most `most` of its local files, evenly spaced, if `addresses` names a folder of many.
    - `held(most)`: its in-memory arrays, or evenly spaced rows of them, of at most `most` bytes, to identify the data.
    - `documents(row)`: the parts of documents in a packed row.
    - `over(wrap)`: for a source that reads from another one: the same source over `wrap(other, times)`, where each row
      of the other one is read `times` times.
    """

    @property
    def spec(self) -> Tree | None:
        """Pytree of objects with `shape` and `dtype`, for one example. None: inferred by reading one."""
        ...

    def __len__(self) -> int:
        """Number of rows."""
        ...

    def read(self, rows: Integers) -> Tree:
        """Reads the examples at `rows` (int64[n], any order, repeats allowed).

        Returns a pytree of arrays whose first dimension is n.
        """
        ...


class Order(Protocol):
    """A rule that turns positions of a dataset into visits of its source's rows, by arithmetic alone."""

    @property
    def size(self) -> int:
        """How many positions one epoch has."""
        ...

    @property
    def parent(self) -> "Order | None":
        """The order that this one rearranges, of the same source's rows; None when there is none, or several."""
        ...

    @property
    def parts(self) -> "Sequence[Order]":
        """The orders of the parts of a concatenation or mixture, each of a source of its own.

        Empty for any other order.
        """
        ...

    @property
    def by_step(self) -> bool:
        """Whether its size is known only in a run, which knows how many positions a step has."""
        ...

    @property
    def varies(self) -> bool:
        """Whether another epoch meets the rows in another order."""
        ...

    def deals(self, epoch: int, start: int, stop: int) -> list[LaneAssignment]:
        """How the positions from `start` to `stop` of an epoch are dealt to lanes; empty when there are none."""
        ...

    def visits(self, epochs: Integers, positions: Integers) -> Visits:
        """The rows, and their own epochs, at `positions` (each in `[0, size)`) of `epochs`; all int64[n]."""
        ...

    def describe(self) -> list[Any]:
        """What decides this order, as JSON: verbs, sizes, seeds. Two orders that describe alike are alike."""
        ...
