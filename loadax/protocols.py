"""The contracts that the rest leans on, and the names of what flows between the parts.

Indices have three names and keep them in every signature: `step` (which batch), `position` (where in the order, or in
the batch), `row` (which record of the source).
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias, runtime_checkable

import numpy as np
from numpy.typing import NDArray

Integers: TypeAlias = NDArray[np.int64]
"""Rows, positions, epochs or steps: int64[n]."""

Tree: TypeAlias = Any
"""A pytree (dict, list, tuple, namedtuple, dataclass) of arrays, or one array."""

Columns: TypeAlias = tuple[tuple[int, int], ...]
"""A column box: `(start, stop)` for every dimension of a leaf after its first."""


class ArraySpec(NamedTuple):
    """Shape and dtype of one leaf of one example, so without the dimension of the rows."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]


class Visits(NamedTuple):
    """Which records a run of positions meets, and in which pass over the data.

    A row of -1 stands for padding: no record is read, the batch has zeros there.
    """

    rows: Integers
    epochs: Integers


class Segments(NamedTuple):
    """What some packed rows hold: parts of documents, sorted by row and column. Each int64[n]."""

    rows: Integers
    """Which of the packed rows that were asked for it lies in, from 0."""
    documents: Integers
    skips: Integers
    """The first entry of the document that is meant."""
    columns: Integers
    """Where in the row it begins."""
    lengths: Integers
    numbers: Integers
    """Of the segment within its row, from 1."""


class Location(NamedTuple):
    """Location of stored data: a file, its first and last byte if these are known, and the part if it has several."""

    file: str
    first: int | None = None
    last: int | None = None
    part: str = ""


class LaneAssignment(NamedTuple):
    """A stretch of positions that are dealt to lanes in turn.

    `start` belongs to `lanes[0]`, the next to `lanes[1]`, and so on.

    It ends where the next one begins. `lanes` is int64[n]; `start` may lie before the first position.
    """

    start: int
    lanes: Integers


@runtime_checkable
class Source(Protocol):
    """Data that can be read at any row. The one contract that all of loadax leans on.

    These three members are all that a source needs. loadax adapts it once, where data comes in, to
    `loadax.sources.base.BaseSource`, which has a default for everything else. What a source may have beside them:

    - `read_into(rows, boxes, out)`: reads straight into `out`. `boxes` and `out` have an entry for every leaf, in leaf
      order: a column box and a destination of shape `(len(rows), *box extents)`, or None and None for a leaf that is
          not wanted now.
      No copies, and no columns that nobody holds.
    - `owns_memory`: whether `read` gives memory that nobody else holds. If not, it is copied before a map may write to
      it. (Formerly `fresh`.)
    - `chunks`: the rows at which what is decoded together begins: ascending, from 0; int64[m], or a `range` where they
      are equal. Then a block shuffle keeps the chunks that it has open, so that each is decoded once.
    - `concurrent_reads`: how many reads should be under way at once, for a source that waits for disks or networks.
    - `examples(rows)`: the rows as a list, one by one. They need not be alike until the last map of single rows is
      done.
    - `lengths(rows)`: the lengths of documents as int64[n], found without reading any.
    - `read_parts(rows, starts, lengths, wanted)`: of documents in flat arrays: `lengths[i]` entries of document
      `rows[i]` from entry `starts[i]` on, one document's part behind another; a list with an array for every leaf, None
      for those that are not `wanted`.
    - `locate(row)`: the files that a row comes from: a list of `Location`s, or of tuples that make some. (Formerly
      `where`.)
    - `addresses`: the local paths and URLs of the files and folders that it reads itself, so that nothing is written
      over them, and that a change of them is noticed.
    - `some_files(most)`: at most so many of its local files, evenly spread, where `addresses` names a folder that holds
      many.
    - `held(most)`: the arrays that it holds in memory, or evenly spread rows of these: at most so many bytes, which
      tell it from other data.
    - `documents(row)`: the parts of documents that a packed row holds.
    - `over(wrap)`: for a source that reads from another one: the same, reading from `wrap(other, times)`, where each
      row of the other is read `times` times.
    """

    @property
    def spec(self) -> Tree | None:
        """A pytree of what has `shape` and `dtype`, for one example; None: found by reading one."""
        ...

    def __len__(self) -> int:
        """How many rows there are."""
        ...

    def read(self, rows: Integers) -> Tree:
        """The examples at `rows` (int64[n], any order, repeats allowed).

        A pytree of arrays whose first dimension is n.
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
