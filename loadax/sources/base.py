"""BaseSource: the whole contract of a source, with defaults that are right for a plain one.

Users write `spec`, `__len__` and `read` (see `loadax.protocols.Source`), and `as_source` adapts their object once, when
it enters the package. From then on every source is a `BaseSource`, and no code tests for optional members. A source
that reads from another one is a `WrapperSource`: it forwards every member and overrides only the ones it changes. No
other behaviour in the package is inherited.
"""

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import Any, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from loadax.core.spec import own_all, refuse_masked, split_rows, unmasked
from loadax.core.tree import flatten, map_leaves
from loadax.core.user_object import UserObject
from loadax.errors import SourceError
from loadax.protocols import Columns, Integers, Location, Tree, Visits

_READS = ("examples", "read_into")  # optional members of a user's source that read rows


class Child(NamedTuple):
    """A source that a parent source reads from.

    Args:
        name: Name in a mixture or concatenation; "" elsewhere.
        source: The source itself.
        first_row: Row of the parent that is the child's row 0, if each row of the child is a row of the parent; None
            otherwise.
        reads_per_row: Reads of each child row in one pass over the parent.
    """

    name: str
    source: "BaseSource"
    first_row: int | None
    reads_per_row: float = 1.0


def run_rows(first: Integers, count: int) -> Integers:
    """The rows of runs of `count` rows, one run after the other."""
    return (first[:, None] + np.arange(count)).reshape(-1)


Attributes = Mapping[str, Mapping[str, Any]]
"""What the numbers of leaves mean, by their keys joined by dots: `classes`, a list of names, or `units`."""

MapChild = Callable[[Child], "BaseSource"]
"""Returns the source to read in place of a child."""


class BaseSource(ABC):
    """Rows that can be read in any order.

    The defaults fit a source without children whose rows all have the same shapes and dtypes.
    """

    @property
    def spec(self) -> Tree | None:
        """Pytree of objects with `shape` and `dtype`, for one row; None: inferred by reading a row."""
        return None

    @property
    def attributes(self) -> Attributes:
        """What the numbers of leaves mean; stores keep it."""
        return {}

    @property
    def classes(self) -> Any:
        """Names of the categories of each leaf of categories, by number."""
        return {path: each["classes"] for path, each in self.attributes.items() if "classes" in each}

    @property
    def units(self) -> dict[str, str]:
        """Units of each leaf that has some, such as the Arrow type of times, whose ints count its unit."""
        return {path: each["units"] for path, each in self.attributes.items() if "units" in each}

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def read(self, rows: Integers) -> Tree:
        """Reads the rows `rows` (int64[n]) as a pytree of arrays whose first dimension is n."""
        ...

    def read_visits(self, visits: Visits) -> Tree:
        """Reads like `read`, for a source whose rows may depend on the epoch (see `random`)."""
        return self.read(visits.rows)

    @property
    def reads_examples(self) -> bool:
        """Whether rows are read one by one, so that `read_examples` costs no more than `read` and shapes may differ."""
        return False

    def read_examples(self, visits: Visits) -> list[Tree]:
        """Reads the rows as a list of trees that own their memory, so that a map may write to them."""
        batch = self.read_visits(visits)
        return split_rows(batch if self.owns_memory else map_leaves(np.array, batch), len(visits.rows))

    @property
    def reads_columns(self) -> bool:
        """Whether `read_into` reads only the requested columns, or saves a copy."""
        return False

    def read_into(self, rows: Integers, boxes: Sequence[Columns | None], out: Sequence[NDArray[Any] | None]) -> None:
        """Reads columns of rows into memory; see `loadax.protocols.Source`."""
        for leaf, columns, destination in zip(flatten(self.read(rows))[0], boxes, out, strict=True):
            if columns is not None and destination is not None:
                index: Any = (slice(None), *(slice(*column) for column in columns))
                destination[...] = np.asarray(leaf)[index]

    def read_runs(self, first: Visits, count: int) -> Tree:
        """Reads the `count` rows from each of `first` on: a tree of arrays of shape `[n, count, ...]`."""
        batch = self.read_visits(Visits(run_rows(first.rows, count), np.repeat(first.epochs, count)))
        return map_leaves(lambda leaf: np.asarray(leaf).reshape(-1, count, *leaf.shape[1:]), batch)

    def read_runs_into(
        self, first: Integers, count: int, boxes: Sequence[Columns | None], out: Sequence[NDArray[Any] | None]
    ) -> None:
        """Reads columns of such runs into memory, as `read_into`; destinations have shape `[n, count, ...]`."""
        flat = [
            # Not every view can be reshaped without a copy.
            None if destination is None else np.ascontiguousarray(destination).reshape(-1, *destination.shape[2:])
            for destination in out
        ]
        self.read_into(run_rows(first, count), boxes, flat)
        for values, destination in zip(flat, out, strict=True):
            if values is not None and destination is not None and not np.may_share_memory(values, destination):
                destination[...] = values.reshape(destination.shape)

    @property
    def owns_memory(self) -> bool:
        """Whether `read` returns memory that nothing else references, so that maps may write to it."""
        return False

    @property
    def chunks(self) -> Integers | range | None:
        """First rows of the chunks that are decoded whole, ascending from 0; None: rows are decoded one by one."""
        return None

    @property
    def kept_chunks(self) -> int:
        """Number of decoded chunks that this source keeps in memory itself."""
        return 0

    def keep_chunks(self, count: int) -> "BaseSource | None":  # noqa: ARG002
        """This source with memory for `count` decoded chunks; None: it keeps none itself."""
        return None

    @property
    def concurrent_reads(self) -> int:
        """Number of reads to run concurrently."""
        return 1

    def lengths(self, rows: Integers) -> Integers | None:  # noqa: ARG002
        """Lengths of the documents `rows` as int64[n], without reading any; None if unknown."""
        return None

    @property
    def reads_parts(self) -> bool:
        """Whether rows are documents in flat arrays, so that `read_parts` can read parts of them."""
        return False

    def read_parts(
        self,
        rows: Integers,
        starts: Integers,  # noqa: ARG002
        lengths: Integers,  # noqa: ARG002
        wanted: Sequence[bool],  # noqa: ARG002
    ) -> list[NDArray[Any] | None]:
        """Reads parts of documents, concatenated, as one array per wanted leaf; see `loadax.protocols.Source`."""
        raise SourceError(
            f"{self.type_name} can't read parts of its documents ({len(rows)} requested); read whole documents"
        )

    def padded(self, length: int, value: Any, truncate: bool) -> "BaseSource | None":  # noqa: ARG002
        """This source with rows padded as they are read, see `Dataset.pad`; None: they are padded afterwards."""
        return None

    def locate(self, row: int) -> list[Location]:  # noqa: ARG002
        """Files that a row comes from; empty if unknown."""
        return []

    def locate_visit(self, row: int, epoch: int) -> list[Location]:  # noqa: ARG002
        """Locates like `locate`, for a source whose rows may depend on the epoch (see `random`)."""
        return self.locate(row)

    def documents(self, row: int) -> list[Any] | None:  # noqa: ARG002
        """Parts of documents in a packed row; None if rows are not packed."""
        return None

    @property
    def addresses(self) -> Sequence[str]:
        """Local paths and URLs of the files, folders and stores that this source reads, without its children's."""
        return ()

    def some_files(self, most: int) -> Sequence[str] | None:  # noqa: ARG002
        """Evenly spaced sample of at most `most` local files that this source reads; None: sample `addresses`."""
        return None

    def held(self, most: int) -> Iterable[NDArray[Any]]:  # noqa: ARG002
        """Arrays that this source holds in memory, or evenly spaced rows of them: at most `most` bytes to hash."""
        return ()

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

    @property
    def rows_probed(self) -> int:
        """Number of rows that were read to infer `spec`."""
        return 0

    @property
    def random(self) -> bool:
        """Whether the values of a row may differ between epochs."""
        return False

    @property
    def own_epochs(self) -> bool:
        """Whether row i may be a different record in each epoch: the source has its own order."""
        return False

    @property
    def num_maps(self) -> int:
        """Number of maps applied to rows, which is the index of the next map in the chain."""
        return 0

    def describe(self) -> list[Any]:
        """Everything that determines the values of rows and belongs to a run's state, as JSON."""
        return []

    @property
    def runs_python(self) -> bool:
        """Whether reading calls the user's Python code, usually once per row."""
        return any(child.source.runs_python for child in self.children)

    @property
    def type_name(self) -> str:
        """Class name for messages; for a user's source, the name of the user's class."""
        return type(self).__name__


class WrapperSource(BaseSource):
    """A source whose row i is row i of another one: forwards every member.

    Args:
        source: The source to read from.
    """

    def __init__(self, source: BaseSource):
        self._source = source

    @abstractmethod
    def _over(self, source: BaseSource) -> BaseSource:
        """Rebuilds this wrapper around another source."""
        ...

    @property
    def spec(self) -> Tree | None:
        return self._source.spec

    @property
    def attributes(self) -> Attributes:
        return self._source.attributes

    def __len__(self) -> int:
        return len(self._source)

    def read(self, rows: Integers) -> Tree:
        return self._source.read(rows)

    def read_visits(self, visits: Visits) -> Tree:
        return self._source.read_visits(visits)

    @property
    def reads_examples(self) -> bool:
        return self._source.reads_examples

    def read_examples(self, visits: Visits) -> list[Tree]:
        return self._source.read_examples(visits)

    @property
    def reads_columns(self) -> bool:
        return self._source.reads_columns

    def read_into(self, rows: Integers, boxes: Sequence[Columns | None], out: Sequence[NDArray[Any] | None]) -> None:
        self._source.read_into(rows, boxes, out)

    @property
    def owns_memory(self) -> bool:
        return self._source.owns_memory

    @property
    def chunks(self) -> Integers | range | None:
        return self._source.chunks

    @property
    def kept_chunks(self) -> int:
        return self._source.kept_chunks

    def keep_chunks(self, count: int) -> BaseSource | None:
        kept = self._source.keep_chunks(count)
        return None if kept is None else self._over(kept)

    @property
    def concurrent_reads(self) -> int:
        return self._source.concurrent_reads

    def lengths(self, rows: Integers) -> Integers | None:
        return self._source.lengths(rows)

    @property
    def reads_parts(self) -> bool:
        return self._source.reads_parts

    def read_parts(
        self, rows: Integers, starts: Integers, lengths: Integers, wanted: Sequence[bool]
    ) -> list[NDArray[Any] | None]:
        return self._source.read_parts(rows, starts, lengths, wanted)

    def locate(self, row: int) -> list[Location]:
        return self._source.locate(row)

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

    @property
    def rows_probed(self) -> int:
        return self._source.rows_probed

    @property
    def random(self) -> bool:
        return self._source.random

    @property
    def own_epochs(self) -> bool:
        return self._source.own_epochs

    @property
    def num_maps(self) -> int:
        return self._source.num_maps

    def describe(self) -> list[Any]:
        return self._source.describe()


@final
class UserSource(BaseSource):
    """Adapter of a user's object with `__len__` and `read`; looks up the optional members.

    Args:
        given: Object with the members of `loadax.protocols.Source`.
        thread_safe: Whether several threads may call it at once; None: if it holds no handles.
    """

    def __init__(self, given: Any, thread_safe: bool | None = None):
        reads = getattr(given, "concurrent_reads", None)
        if thread_safe is None and isinstance(reads, int) and reads > 1:
            thread_safe = True  # it says so
        self._given, self._object = given, UserObject(given, thread_safe)

    def when_called(self, thread_safe: bool | None) -> "UserSource":
        """The same source, called by several threads at once or not."""
        return UserSource(self._given, thread_safe)

    def __len__(self) -> int:
        return len(self._given)

    def __repr__(self) -> str:
        text = repr(self._given)
        return self.type_name if " object at 0x" in text else text  # the default repr

    @property
    def type_name(self) -> str:
        return type(self._given).__name__

    @property
    def spec(self) -> Tree | None:
        return self._optional("spec")

    def read(self, rows: Integers) -> Tree:
        return refuse_masked(self._object.call(self._given.read, rows), f"{self.type_name}.read: leaf")

    @property
    def reads_examples(self) -> bool:
        return self._optional("examples") is not None

    def read_examples(self, visits: Visits) -> list[Tree]:
        examples = self._optional("examples")
        if examples is None:
            return super().read_examples(visits)
        return own_all(list(examples(visits.rows)), visits.rows.tolist())

    @property
    def reads_columns(self) -> bool:
        return self._optional("read_into") is not None

    def read_into(self, rows: Integers, boxes: Sequence[Columns | None], out: Sequence[NDArray[Any] | None]) -> None:
        into = self._optional("read_into") or super().read_into
        into(rows, list(boxes), list(out))

    @property
    def owns_memory(self) -> bool:
        return bool(self._optional("owns_memory"))

    @property
    def chunks(self) -> Integers | range | None:
        return self._optional("chunks")

    @property
    def concurrent_reads(self) -> int:
        wanted = self._optional("concurrent_reads")
        return 1 if wanted is None else wanted

    def lengths(self, rows: Integers) -> Integers | None:
        lengths = self._optional("lengths")
        return None if lengths is None else lengths(rows)

    @property
    def reads_parts(self) -> bool:
        return self._optional("read_parts") is not None

    def read_parts(
        self, rows: Integers, starts: Integers, lengths: Integers, wanted: Sequence[bool]
    ) -> list[NDArray[Any] | None]:
        parts = self._object.call(self._given.read_parts, rows, starts, lengths, wanted)
        return [unmasked(part, f"{self.type_name}.read_parts: a leaf") for part in parts]

    def locate(self, row: int) -> list[Location]:
        locate = self._optional("locate")
        return [] if locate is None else [Location(*location) for location in locate(row) or ()]

    def documents(self, row: int) -> list[Any] | None:
        documents = self._optional("documents")
        return None if documents is None else list(documents(row) or ()) or None

    @property
    def addresses(self) -> Sequence[str]:
        given = self._optional("addresses")
        return [os.fspath(address) for address in ([given] if isinstance(given, str | os.PathLike) else given or ())]

    def some_files(self, most: int) -> Sequence[str] | None:
        some_files = self._optional("some_files")
        return None if some_files is None else some_files(most)

    def held(self, most: int) -> Iterable[NDArray[Any]]:
        arrays = self._optional("held")
        return arrays(most) if callable(arrays) else ()  # `held` is a common attribute name

    @cached_property
    def children(self) -> Sequence[Child]:  # cached so that each child keeps its identity
        map_children, children = self._optional("map_children"), []

        def look(source: Any, times: float) -> Any:
            children.append(Child("", as_source(source), None, times))
            return source

        if map_children is not None:
            map_children(look)
        return tuple(children)

    def map_children(self, wrap: MapChild) -> BaseSource:
        if not self.children:
            return self
        children = iter(self.children)

        def put(source: Any, times: float) -> Any:  # noqa: ARG001 - called as `wrap(source, times)`
            wrapped = wrap(next(children))
            return wrapped._given if isinstance(wrapped, UserSource) else wrapped  # noqa: SLF001

        return as_source(self._given.map_children(put))

    @property
    def runs_python(self) -> bool:
        return True

    def _optional(self, name: str) -> Any:
        member = getattr(self._given, name, None)
        # Until the first read, the others don't tell whether it opens a handle.
        in_turn = name in _READS or self._object.handle is not None or self._object.thread_safe is False
        return partial(self._object.call, member) if in_turn and callable(member) else member


def as_source(given: Any) -> BaseSource:
    """Adapts a user's object to `BaseSource`; a `BaseSource` is returned as it is.

    Args:
        given: A `BaseSource`; an object with `__len__` and `read` (see `loadax.protocols.Source`); or one with
            `__len__` and `__getitem__`.

    Raises:
        ArgumentError: When it is none of these.
    """
    if isinstance(given, BaseSource):
        return given
    if hasattr(given, "read") and hasattr(given, "__len__"):
        return UserSource(given)
    from loadax.sources.objects import ObjectSource

    return ObjectSource(given)


def walk(source: BaseSource) -> Iterator[BaseSource]:
    """Iterates over a source and all its descendants, parents first."""
    yield source
    for child in source.children:
        yield from walk(child.source)


def map_bottom(source: BaseSource, wrap: Callable[[BaseSource, float], BaseSource], times: float = 1.0) -> BaseSource:
    """Replaces each childless source below `source`.

    Args:
        source: Any source.
        wrap: Function of a childless source and the number of reads of each of its rows; returns the replacement.
        times: Number of reads of each row of `source`.
    """
    if not source.children:
        return wrap(source, times)
    return source.map_children(lambda child: map_bottom(child.source, wrap, times * child.reads_per_row))
