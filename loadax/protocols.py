"""The core contracts, and the types that pass between components.

Indices have three names and keep them in every signature: `step` (which batch), `position` (index in the order, or in
the batch), `row` (record of the source).
"""

import math
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import Any, NamedTuple, Protocol, TypeAlias, runtime_checkable

import numpy as np
from numpy.typing import NDArray

# int64[n]: rows, positions, epochs or steps
Integers: TypeAlias = NDArray[np.int64]

# An array of any dtype
Array: TypeAlias = NDArray[Any]

# A pytree (dict, list, tuple, namedtuple, dataclass) of arrays, or one array
Tree: TypeAlias = Any

# A column box: `(start, stop)` for every dimension of a leaf after its first
Columns: TypeAlias = tuple[tuple[int, int], ...]

# An executor, or a function that makes one: a process pool whose worker has died can't be used again.
Engine: TypeAlias = Executor | Callable[[], Executor]

# `(start, stop)`
Interval: TypeAlias = tuple[int, int]

# The columns of each leaf; None for a leaf that is left out
Boxes: TypeAlias = Sequence[Columns | None]

# The array of each leaf to write to; None for a leaf that is left out
Outputs: TypeAlias = Sequence[NDArray[Any] | None]

# An array for each leaf, or None for one that is left out
LeafArrays: TypeAlias = list[NDArray[Any] | None]


class ArraySpec(NamedTuple):
    """Shape and dtype of one leaf of one example, without the dimension of rows."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def nbytes(self) -> int:
        """Bytes of the leaf in one example."""
        return math.prod(self.shape) * self.dtype.itemsize


class Visits(NamedTuple):
    """The rows that a sequence of positions reads, and the epoch of each read.

    A row of -1 is padding: nothing is read, and the batch has zeros there.
    """

    rows: Integers
    epochs: Integers


class Segments(NamedTuple):
    """The parts of documents in packed rows, sorted by row and column. Every field is int64[n].

    Attributes:
        rows: Index of the packed row among the requested ones, from 0.
        documents: Number of the document.
        skips: First entry of the document that the segment contains.
        columns: First column of the segment in its row.
        lengths: Entries of the segment.
        numbers: Number of the segment within its row, from 1.
    """

    rows: Integers
    documents: Integers
    skips: Integers
    columns: Integers
    lengths: Integers
    numbers: Integers


class Location(NamedTuple):
    """Location of stored data: a file, its first and last byte if known, and the part if the file has several."""

    file: str
    first: int | None = None
    last: int | None = None
    part: str = ""


class LaneAssignment(NamedTuple):
    """A span of positions that are assigned to lanes round-robin. It ends where the next one begins.

    Attributes:
        start: Position that belongs to `lanes[0]`; the next one belongs to `lanes[1]`, and so on. It may be before the
            first requested position.
        lanes: Lanes in round-robin order, int64[n].
    """

    start: int
    lanes: Integers


class Hits(NamedTuple):
    """Positions of requested rows.

    Attributes:
        asked: Indices into the requested rows, int64[n].
        positions: Position of each, int64[n].
    """

    asked: Integers
    positions: Integers


class Blocks(NamedTuple):
    """Blocks of a block shuffle.

    Attributes:
        rows: Rows of each block; the last one may have fewer.
        num_blocks: Number of blocks.
        window: Number of blocks of a lane that are permuted together.
        lanes: Number of lanes.
        pinned: Whether a lane has the same blocks in every epoch.
    """

    rows: int
    num_blocks: int
    window: int
    lanes: int
    pinned: bool = False


class Shuffle(NamedTuple):
    """How a verb shuffles the positions of its parent.

    Attributes:
        seed: Seed of the permutations.
        blocks: Blocks of a block shuffle; None: single positions are shuffled.
    """

    seed: int
    blocks: Blocks | None = None


@runtime_checkable
class Source(Protocol):
    """Data with random access to its rows. The contract between loadax and the data.

    A source needs only these three members, which `loadax.testing.check_source` checks. loadax adapts it to
    `loadax.sources.base.BaseSource`, which has a default for everything else. Optional members:

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
    - `map_children(wrap)`: for a source that reads from another one: the same source over `wrap(other, times)`, where
      each row of the other one is read `times` times.
    """

    @property
    def spec(self) -> Tree | None:
        """Pytree of objects with `shape` and `dtype`, for one example. None: inferred by reading one."""

    def __len__(self) -> int:
        """Number of rows."""

    def read(self, rows: Integers) -> Tree:
        """Reads the examples at `rows` (int64[n], any order, repeats allowed).

        Returns a pytree of arrays whose first dimension is n. Entry i is row `rows[i]`, the same in each call.

        Raises:
            IndexError: For a row below 0, or not below `len()`; NumPy would take -1 for the last one.
        """


class MapTransform(Protocol):
    """As `grain.transforms.Map`."""

    def map(self, element: Any, /) -> Any:
        """Fate of an example."""


class RandomMapTransform(Protocol):
    """As `grain.transforms.RandomMap`."""

    def random_map(self, element: Any, rng: np.random.Generator, /) -> Any:
        """Fate of an example."""


class FilterTransform(Protocol):
    """As `grain.transforms.Filter`."""

    def filter(self, element: Any, /) -> bool:
        """Whether an example is kept."""


# Narrows an order that is the same in every epoch. Arguments: the order, and its source's first row in all parts.
NarrowRule: TypeAlias = "Callable[[Order, int], Order]"


class Order(Protocol):
    """Maps positions of a dataset to visits of its source's rows, by arithmetic alone.

    Each verb is one class, in a file of its own in `loadax/plan/`.
    """

    @property
    def size(self) -> int:
        """Number of positions in an epoch."""

    @property
    def varies(self) -> bool:
        """Whether the order differs between epochs."""

    @property
    def repeats(self) -> bool:
        """Whether an epoch may visit a row several times."""

    @property
    def mixes(self) -> bool:
        """Whether this verb mixes its parts in proportions, which a shuffle of it would break."""

    @property
    def by_step(self) -> bool:
        """Whether this is a mixture that is scheduled by step, whose size depends on the batch size."""

    @property
    def is_stream(self) -> bool:
        """Whether this is the order of a stream's lanes, which has no end and no random access."""

    @property
    def changing_rows(self) -> str | None:
        """Text: why row i is another record in every epoch, and what to do about it; None: it is the same record."""

    @property
    def parent(self) -> "Order | None":
        """The order that this one rearranges; None for a source's own order, and for an order with `parts`."""

    @property
    def parts(self) -> "Sequence[Order]":
        """Orders of several sources, one for each child of the dataset's source; else empty."""

    @property
    def row_range(self) -> range | None:
        """Rows at positions 0, 1, … if they are evenly spaced and the same in every epoch; else None."""

    @property
    def runs(self) -> Integers | None:
        """First positions of runs of ascending, evenly spaced rows, the same in every epoch; None: rows form no runs.

        int64[n], ascending from 0, and empty for an empty order. Where a run ends and the next begins is a seam, such
        as between the parts of `concat`.
        """

    @property
    def shuffle(self) -> Shuffle | None:
        """How this verb shuffles its parent's positions; None: not at all."""

    def visits(self, epochs: Integers, positions: Integers) -> Visits:
        """Rows, and epochs of the source, at `positions` (each in `[0, size)`) of `epochs`; all int64[n]."""

    def inverse(
        self, rows: Integers, epochs: Integers, window: tuple[int, int]
    ) -> Hits:
        """Positions of rows: the inverse of `visits`.

        Args:
            rows: Rows of the source, int64[n].
            epochs: Epoch of this order to search for each row, int64[n].
            window: `(start, stop)`: positions to search in every epoch. Hits may include positions outside.
        """

    def narrow(self, verb: str, rule: NarrowRule, first_row: int = 0) -> "Order":
        """This order with `rule` applied below all shuffles and repeats.

        So a verb that selects rows means the same before and after a shuffle.

        Args:
            verb: Name of the verb that narrows, for errors.
            rule: Rule that leaves out rows.
            first_row: Number of the source's first row among the rows of all parts.

        Raises:
            ArgumentError: When the rows depend on the epoch, or a mixture would lose its proportions.
        """

    def lane_assignments(
        self, epoch: int, start: int, stop: int
    ) -> list[LaneAssignment]:
        """Lane assignments of the positions from `start` to `stop` of an epoch; empty without lanes."""

    def describe(self) -> list[Any]:
        """This order as JSON: an entry for each verb, with sizes and seeds.

        Two orders are equal if and only if their descriptions are. Saved states depend on it.
        """

    def text(self) -> list[str]:
        """This order as human-readable text: an entry for each entry of `describe`."""
