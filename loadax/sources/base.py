"""BaseSource: the whole contract of a source, with defaults that are right for a plain one.

Users write `spec`, `__len__` and `read` (see `loadax.protocols.Source`), and `adapt.as_source` adapts their object
once, when it enters the package. From then on every source is a `BaseSource`, and no code tests for optional members.
What only says what a source is like is its `traits`, one value. A source that reads from another one is a
`WrapperSource`: it forwards every member, and overrides or replaces what it changes.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, final

import numpy as np

from loadax.core.spec import split_rows
from loadax.core.tree import flatten, map_leaves
from loadax.errors import SourceError
from loadax.protocols import (
    Array,
    Boxes,
    Columns,
    Integers,
    LeafArrays,
    Location,
    Order,
    Outputs,
    Tree,
    Visits,
)

if TYPE_CHECKING:
    from loadax.files.byte_ranges import KnownFiles
    from loadax.files.remote_ranges import StoredChunks, Wanted

_Leaf = TypeVar("_Leaf")


class Child(NamedTuple):
    """A source that a parent source reads from.

    Args:
        name: Name in a mixture or concatenation; "" elsewhere.
        source: The source itself.
        first_row: Row of the parent that is the child's row 0, if each row of the child is a row of the parent; None
            otherwise.
        reads_per_row: Reads of each child row in one pass over the parent.
        maps: Transforms of its rows, before the parent sees them.
    """

    name: str
    source: "BaseSource"
    first_row: int | None
    reads_per_row: float = 1.0
    maps: Sequence[Any] = ()


class Below(NamedTuple):
    """Visits of a child that visits of its parent are made of.

    Args:
        source: The child.
        asked: Index of the parent's visit of each, int64[n].
        visits: The child's visits, int64[n] each.
    """

    source: "BaseSource"
    asked: Integers
    visits: Visits


def span_rows(first: Integers, count: int, every: int = 1) -> Integers:
    """The rows of runs of `count` rows, `every` rows apart, one run after the other."""
    return (first[:, None] + np.arange(0, count * every, every)).reshape(-1)


def asked_for(
    leaves: Iterable[_Leaf], boxes: Boxes, out: Outputs
) -> list[tuple[_Leaf, Columns, Array]]:
    """The leaves that `read_into` is asked for, each with its columns and its destination."""
    every = zip(leaves, boxes, out, strict=True)
    return [
        (leaf, columns, into)
        for leaf, columns, into in every
        if columns is not None and into is not None
    ]


# What the numbers of leaves mean, by their keys joined by dots: `classes`, a list of names, or `units`
Attributes = Mapping[str, Mapping[str, Any]]

# Returns the source to read in place of a child
MapChild = Callable[[Child], "BaseSource"]


@final
class Traits(NamedTuple):
    """Traits of a source, for its whole life.

    Args:
        reads_examples: Whether rows are read one by one, so that `read_examples` costs no more than `read` and shapes
            may differ.
        reads_columns: Whether `read_into` reads only the requested columns, or saves a copy.
        reads_parts: Whether rows are documents in flat arrays, so that `read_parts` can read parts of them.
        owns_memory: Whether `read` returns memory that nothing else references, so that maps may write to it.
        concurrent_reads: Number of reads to run concurrently.
        cached_chunks: Number of decoded chunks that the source keeps in memory itself.
        random: Whether the values of a row may differ between epochs.
        own_epochs: Whether row i may be a different record in each epoch: the source has its own order.
        num_maps: Number of maps applied to rows, which is the index of the next map in the chain.
        runs_python: Whether reading calls the user's Python code, usually once per row.
        attributes: What the numbers of leaves mean; stores keep it.
        shared_by: The verb that may make several rows of one row below, as text, such as windows that overlap; "": no
            two rows have a row below in common. A split of such rows must check them.
        row_step: Distance between rows that can be read to infer a spec: the number of lanes of a stream.
    """

    reads_examples: bool = False
    reads_columns: bool = False
    reads_parts: bool = False
    owns_memory: bool = False
    concurrent_reads: int = 1
    cached_chunks: int = 0
    random: bool = False
    own_epochs: bool = False
    num_maps: int = 0
    runs_python: bool = False
    attributes: Attributes = {}  # noqa: RUF012 - a read-only view of it can't be pickled
    shared_by: str = ""
    row_step: int = 1


def joint_traits(parts: Sequence[Traits]) -> Traits:
    """Traits of a source that reads each of its rows from one part, or from all of them."""
    first, *others = [part.attributes for part in parts]
    return Traits(
        reads_examples=any(part.reads_examples for part in parts),
        reads_columns=all(part.reads_columns for part in parts),
        reads_parts=all(part.reads_parts for part in parts),
        owns_memory=all(part.owns_memory for part in parts),
        concurrent_reads=max(part.concurrent_reads for part in parts),
        random=any(part.random for part in parts),
        num_maps=max(part.num_maps for part in parts),
        runs_python=any(part.runs_python for part in parts),
        attributes={
            path: each
            for path, each in first.items()
            if all(other.get(path) == each for other in others)
        },
        shared_by=next((part.shared_by for part in parts if part.shared_by), ""),
    )


class BaseSource:
    """Rows that can be read in any order.

    The defaults fit a source without children whose rows all have the same shapes and dtypes.
    """

    traits: Traits = Traits()
    # The `Structure` of a row, if it is known although `spec` is not.
    structure: Any = None
    # What `describe` tells of a source: how it makes its rows of others, or which leaves it has selected by itself.
    described: Sequence[Any] = ()
    # Number of tokens of every row, if all have as many; 0: see `tokens`.
    row_tokens = 0

    @property
    def spec(self) -> Tree | None:
        """Pytree of objects with `shape` and `dtype`, for one row; None: inferred by reading a row."""
        return None

    @property
    def classes(self) -> Any:
        """Names of the categories of each leaf of categories, by number."""
        return {
            path: each["classes"]
            for path, each in self.traits.attributes.items()
            if "classes" in each
        }

    @property
    def units(self) -> dict[str, str]:
        """Units of each leaf that has some, such as the Arrow type of times, whose ints count its unit."""
        return {
            path: each["units"]
            for path, each in self.traits.attributes.items()
            if "units" in each
        }

    # Whether an order with `parts` has one for each child, as those of `concat`, `mix` and `zip` have.
    in_parts = False

    @property
    def child_order(self) -> Order | None:
        """Order in which consecutive rows read those of the only child. None: they read them in another one."""
        return None

    # Number of rows; a source that has it from elsewhere replaces `__len__`.
    _length: int

    def __len__(self) -> int:
        return self._length

    def read(self, rows: Integers) -> Tree:
        """Reads the rows `rows` (int64[n]), as of epoch 0, as a pytree of arrays whose first dimension is n.

        Every source defines either this or `read_visits`.
        """
        return self.read_visits(Visits(rows, np.zeros(len(rows), np.int64)))

    def read_visits(self, visits: Visits) -> Tree:
        """Reads like `read`, for a source whose rows may depend on the epoch (see `random`)."""
        return self.read(visits.rows)

    def read_examples(self, visits: Visits) -> list[Tree]:
        """Reads the rows as a list of trees that own their memory, so that a map may write to them."""
        batch = self.read_visits(visits)
        return split_rows(
            batch if self.traits.owns_memory else map_leaves(np.array, batch),
            len(visits.rows),
        )

    def lend_examples(self, visits: Visits) -> list[Tree]:
        """As `read_examples`, or without a copy: the caller neither writes to the examples nor keeps them."""
        return self.read_examples(visits)

    def read_into(self, rows: Integers, boxes: Boxes, out: Outputs) -> None:
        """Reads columns of rows into memory; see `loadax.protocols.Source`."""
        for leaf, columns, destination in asked_for(
            flatten(self.read(rows))[0], boxes, out
        ):
            index: Any = (slice(None), *(slice(*column) for column in columns))
            destination[...] = np.asarray(leaf)[index]

    def read_spans_into(
        self, first: Integers, count: int, every: int, boxes: Boxes, out: Outputs
    ) -> None:
        """Reads columns of `count` rows, `every` rows apart, from each of `first` on, into arrays `[n, count, …]`."""
        flat = [
            # Not every view can be reshaped without a copy.
            None
            if destination is None
            else np.ascontiguousarray(destination).reshape(-1, *destination.shape[2:])
            for destination in out
        ]
        self.read_into(span_rows(first, count, every), boxes, flat)
        for values, destination in zip(flat, out, strict=True):
            if (
                values is not None
                and destination is not None
                and not np.may_share_memory(values, destination)
            ):
                destination[...] = values.reshape(destination.shape)

    @property
    def chunks(self) -> Integers | range | None:
        """First rows of the chunks that are decoded whole, ascending from 0; None: rows are decoded one by one."""
        return None

    @property
    def groups(self) -> Integers | None:
        """First rows of the groups that rows come in, such as files or episodes, ascending; None: in no groups."""
        return None

    def cache_chunks(self, count: int) -> "BaseSource | None":  # noqa: ARG002
        """This source with memory for `count` decoded chunks; None: it keeps none itself."""
        return None

    def lengths(self, rows: Integers) -> Integers | None:  # noqa: ARG002
        """Lengths of the documents `rows` as int64[n], without reading any; None if unknown."""
        return None

    def tokens(self, rows: Integers) -> Integers | None:
        """Tokens of rows that are documents or packed, int64[n], without reading any; None for other rows."""
        return self.lengths(rows)

    def squared_lengths(self, rows: Integers) -> Array | None:  # noqa: ARG002
        """Sums of the squared lengths of the segments of packed rows, float64[n]; None if rows are not packed."""
        return None

    def read_parts(
        self,
        rows: Integers,  # noqa: ARG002
        starts: Integers,  # noqa: ARG002
        lengths: Integers,  # noqa: ARG002
        wanted: Sequence[bool],  # noqa: ARG002
    ) -> LeafArrays:
        """Reads parts of documents, concatenated, as one array per wanted leaf; see `loadax.protocols.Source`."""
        raise SourceError(
            f"{self.type_name} can't read parts of its documents; read whole "
            "documents"
        )

    def padded(self, pad: Any) -> "BaseSource | None":  # noqa: ARG002
        """This source with rows padded by a `Pad` as they are read; None: they are padded afterwards."""
        return None

    def keep_leaves(self, leaves: Tree) -> "BaseSource | None":  # noqa: ARG002
        """A source of some of the leaves that reads only them; None: it can't.

        Args:
            leaves: Tree of indices of leaves; rows of the new source have these leaves in their places.
        """
        return None

    def locate(self, row: int) -> list[Location]:
        """Files that a row comes from, as far as they are known: here those of its rows below."""
        below = self.rows_below(np.array([row]))
        if below is None:
            rows = []
        else:
            rows = below[1].tolist()
        return [
            location
            for inner in rows
            for location in self.children[0].source.locate(inner)
        ]

    def locate_visit(self, row: int, epoch: int) -> list[Location]:  # noqa: ARG002
        """Locates like `locate`, for a source whose rows may depend on the epoch (see `random`)."""
        return self.locate(row)

    def documents(self, row: int) -> list[Any] | None:  # noqa: ARG002
        """Parts of documents in a packed row; None if rows are not packed."""
        return None

    def wanted(self, visits: Visits) -> "list[Wanted]":
        """Byte ranges of remote files that a read of all leaves of these rows will request; empty if unknown."""
        return [
            wanted
            for below in self.visits_below(visits)
            for wanted in below.source.wanted(below.visits)
        ]

    def chunks_of(self, visits: Visits) -> "list[StoredChunks]":
        """Chunks that a library will request for a read of all leaves of these rows; for `explain` alone."""
        return [
            chunks
            for below in self.visits_below(visits)
            for chunks in below.source.chunks_of(below.visits)
        ]

    @property
    def addresses(self) -> Sequence[str]:
        """Local paths and URLs of the files, folders and stores that this source reads, without its children's."""
        return ()

    @property
    def known_files(self) -> "KnownFiles":
        """Sizes and ETags of remote files, by URL, as far as this source knows them; without its children's."""
        return {}

    def some_files(self, most: int) -> Sequence[str] | None:  # noqa: ARG002
        """Evenly spaced sample of at most `most` local files that this source reads; None: sample `addresses`."""
        return None

    def held(self, most: int) -> Iterable[Array]:  # noqa: ARG002
        """Arrays that this source holds in memory, or evenly spaced rows of them: at most `most` bytes to hash."""
        return ()

    @property
    def memory(self) -> Sequence[Array] | None:
        """Arrays in memory whose entry i is row i, one for each leaf; None: rows are read in another way."""
        return None

    @property
    def children(self) -> Sequence[Child]:
        """Sources that this one reads from."""
        return ()

    def map_children(self, wrap: MapChild) -> "BaseSource":  # noqa: ARG002
        """Rebuilds this source with `wrap(child)` in place of each child."""
        return self

    def rows_below(self, rows: Integers) -> tuple[Integers, Integers] | None:  # noqa: ARG002
        """Maps rows to the rows of the only child that they are made of.

        Returns:
            Ascending indices into `rows`, and the child's row for each, both int64[m]; None if the mapping is unknown.
        """
        return None

    def visits_below(self, visits: Visits) -> list[Below]:
        """Maps visits to those of the children that they are made of; empty without children, or if it is unknown."""
        below = self.rows_below(visits.rows)
        if below is None:
            return []
        asked, rows = below
        return [
            Below(self.children[0].source, asked, Visits(rows, visits.epochs[asked]))
        ]

    @property
    def rows_probed(self) -> int:
        """Number of rows that were read to infer `spec`."""
        return sum(child.source.rows_probed for child in self.children)

    def describe(self) -> list[Any]:
        """Everything that determines the values of rows and belongs to a run's state, as JSON."""
        return [*self.described]

    @property
    def type_name(self) -> str:
        """Class name for messages; for a user's source, the name of the user's class."""
        return type(self).__name__


class WrapperSource(BaseSource, ABC):
    """A source whose row i is row i of another one: forwards every member, and its `traits`, which it may replace.

    Args:
        source: The source to read from.
    """

    def __init__(self, source: BaseSource):
        self._source = source
        self.traits = source.traits

    @abstractmethod
    def _over(self, source: BaseSource) -> BaseSource:
        """Rebuilds this wrapper around another source."""

    @property
    def spec(self) -> Tree | None:
        return self._source.spec

    def __len__(self) -> int:
        return len(self._source)

    def read(self, rows: Integers) -> Tree:
        return self._source.read(rows)

    def read_visits(self, visits: Visits) -> Tree:
        return self._source.read_visits(visits)

    def read_examples(self, visits: Visits) -> list[Tree]:
        return self._source.read_examples(visits)

    def read_into(self, rows: Integers, boxes: Boxes, out: Outputs) -> None:
        self._source.read_into(rows, boxes, out)

    @property
    def chunks(self) -> Integers | range | None:
        return self._source.chunks

    @property
    def groups(self) -> Integers | None:
        return self._source.groups

    def cache_chunks(self, count: int) -> BaseSource | None:
        kept = self._source.cache_chunks(count)
        if kept is None:
            return None
        return self._over(kept)

    def lengths(self, rows: Integers) -> Integers | None:
        return self._source.lengths(rows)

    def tokens(self, rows: Integers) -> Integers | None:
        return self._source.tokens(rows)

    def squared_lengths(self, rows: Integers) -> Array | None:
        return self._source.squared_lengths(rows)

    def read_parts(
        self,
        rows: Integers,
        starts: Integers,
        lengths: Integers,
        wanted: Sequence[bool],
    ) -> LeafArrays:
        return self._source.read_parts(rows, starts, lengths, wanted)

    def locate_visit(self, row: int, epoch: int) -> list[Location]:
        return self._source.locate_visit(row, epoch)

    def documents(self, row: int) -> list[Any] | None:
        return self._source.documents(row)

    @property
    def children(self) -> Sequence[Child]:
        return (Child("", self._source, 0),)

    def rows_below(self, rows: Integers) -> tuple[Integers, Integers]:
        return np.arange(len(rows), dtype=np.int64), rows

    @final
    def map_children(self, wrap: MapChild) -> BaseSource:
        return self._over(wrap(self.children[0]))

    def describe(self) -> list[Any]:
        return self._source.describe()


def scatter_into(
    source: BaseSource, rows: Integers, boxes: Boxes, out: Outputs, places: Integers
) -> None:
    """Reads columns of rows into the rows `places` of `out`, ascending and not empty; see `BaseSource.read_into`."""
    first = int(places[0])
    end = int(places[-1]) + 1
    if end - first == len(places):
        source.read_into(
            rows, boxes, [None if into is None else into[first:end] for into in out]
        )
        return
    read = [
        None if into is None else np.empty((len(rows), *into.shape[1:]), into.dtype)
        for into in out
    ]
    source.read_into(rows, boxes, read)
    for into, values in zip(out, read, strict=True):
        if into is not None:
            into[places] = values


def walk(source: BaseSource) -> Iterator[BaseSource]:
    """Iterates over a source and all its descendants, parents first."""
    yield source
    for child in source.children:
        yield from walk(child.source)


def all_parts(
    source: BaseSource, name: str = "", first_row: int = 0
) -> Iterator[tuple[str, BaseSource, int]]:
    """A source, and all below it whose rows are rows of it: their names as a path, and their first rows."""
    yield name, source, first_row
    for child in source.children:
        if child.first_row is not None:
            path = "/".join(filter(None, (name, child.name)))
            yield from all_parts(child.source, path, first_row + child.first_row)


def inner_functions(source: BaseSource) -> list[Callable[..., Any]]:
    """Functions of the maps inside of a source, such as those of the documents that are packed."""
    return [
        transform.function
        for each in walk(source)
        for child in each.children
        for transform in child.maps
    ]


def map_bottom(
    source: BaseSource,
    wrap: Callable[[BaseSource, float], BaseSource],
    times: float = 1.0,
) -> BaseSource:
    """Replaces each childless source below `source`.

    Args:
        source: Any source.
        wrap: Function of a childless source and the number of reads of each of its rows; returns the replacement.
        times: Number of reads of each row of `source`.
    """
    if not source.children:
        return wrap(source, times)
    return source.map_children(
        lambda child: map_bottom(child.source, wrap, times * child.reads_per_row)
    )
