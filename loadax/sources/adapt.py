"""as_source: adapters of users' objects: sources of theirs, and any object with `__len__` and `__getitem__`."""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from itertools import chain
from typing import Any, final

import numpy as np

from loadax.core.formatting import count_text, some, type_text
from loadax.core.spec import (
    leaf_arrays,
    own_all,
    refuse_masked,
    same_memory,
    spec_of,
    stack,
    unmasked,
)
from loadax.core.tree import flatten, too_deep, with_values
from loadax.core.user_object import UserObject
from loadax.errors import ArgumentError, LeafError, SourceError
from loadax.protocols import (
    Array,
    Boxes,
    Integers,
    LeafArrays,
    Location,
    Outputs,
    Tree,
    Visits,
)
from loadax.sources.base import BaseSource, Child, MapChild, Traits
from loadax.sources.checks import check_rows

# optional members of a user's source that read rows
_READS = ("examples", "read_into")
_MOST_HELD = 1 << 16  # examples of a list that go into its fingerprint


def as_source(given: Any) -> BaseSource:
    """Adapts a user's object to `BaseSource`; a `BaseSource` is returned as it is.

    Args:
        given: A `BaseSource`; an object with the members of `loadax.protocols.Source`; or one with
            `__len__` and `__getitem__`.

    Raises:
        ArgumentError: When it is none of these.
    """
    if isinstance(given, BaseSource):
        return given
    if is_source(given):
        return UserSource(given)
    return ObjectSource(given)


def is_source(given: Any) -> bool:
    """Whether an object has the three members of a source. Open files have `read` too, and some a length."""
    return all(hasattr(given, name) for name in ("read", "spec", "__len__"))


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
        self._given = given
        self._object = UserObject(given, thread_safe)
        self.traits = Traits(
            reads_examples=getattr(given, "examples", None) is not None,
            reads_columns=getattr(given, "read_into", None) is not None,
            reads_parts=getattr(given, "read_parts", None) is not None,
            owns_memory=bool(getattr(given, "owns_memory", False)),
            concurrent_reads=1 if reads is None else reads,
            runs_python=True,
        )

    def when_called(self, thread_safe: bool | None) -> "UserSource":
        """The same source, called by several threads at once or not."""
        return UserSource(self._given, thread_safe)

    def __len__(self) -> int:
        return len(self._given)

    def __repr__(self) -> str:
        text = repr(self._given)
        # the default repr
        if " object at 0x" in text:
            return self.type_name
        return text

    @property
    def type_name(self) -> str:
        return type(self._given).__name__

    @property
    def spec(self) -> Tree | None:
        return self._optional("spec")

    def read(self, rows: Integers) -> Tree:
        return refuse_masked(
            self._object.call(self._given.read, rows), f"{self.type_name}.read: leaf"
        )

    def read_examples(self, visits: Visits) -> list[Tree]:
        examples = self._optional("examples")
        if examples is None:
            return super().read_examples(visits)
        return own_all(list(examples(visits.rows)), visits.rows.tolist())

    def read_into(self, rows: Integers, boxes: Boxes, out: Outputs) -> None:
        into = self._optional("read_into") or super().read_into
        into(rows, list(boxes), list(out))

    @property
    def chunks(self) -> Integers | range | None:
        return self._optional("chunks")

    def lengths(self, rows: Integers) -> Integers | None:
        lengths = self._optional("lengths")
        if lengths is None:
            return None
        return lengths(rows)

    def read_parts(
        self,
        rows: Integers,
        starts: Integers,
        lengths: Integers,
        wanted: Sequence[bool],
    ) -> LeafArrays:
        parts = self._object.call(
            self._given.read_parts, rows, starts, lengths, wanted
        )
        return [
            unmasked(part, f"{self.type_name}.read_parts: a leaf") for part in parts
        ]

    def locate(self, row: int) -> list[Location]:
        locate = self._optional("locate")
        if locate is None:
            return []
        return [Location(*location) for location in locate(row) or ()]

    def documents(self, row: int) -> list[Any] | None:
        documents = self._optional("documents")
        if documents is None:
            return None
        return list(documents(row) or ()) or None

    @property
    def addresses(self) -> Sequence[str]:
        given = self._optional("addresses")
        return [
            os.fspath(address)
            for address in (
                [given] if isinstance(given, str | os.PathLike) else given or ()
            )
        ]

    def some_files(self, most: int) -> Sequence[str] | None:
        some_files = self._optional("some_files")
        if some_files is None:
            return None
        return some_files(most)

    def held(self, most: int) -> Iterable[Array]:
        arrays = self._optional("held")
        # `held` is a common attribute name
        if callable(arrays):
            return arrays(most)
        return ()

    @cached_property
    # cached so that each child keeps its identity
    def children(self) -> Sequence[Child]:
        map_children = self._optional("map_children")
        children = []

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

    def _optional(self, name: str) -> Any:
        member = getattr(self._given, name, None)
        # Until the first read, the others don't tell whether it opens a handle.
        in_turn = (
            name in _READS
            or self._object.handle is not None
            or self._object.thread_safe is False
        )
        if in_turn and callable(member):
            return partial(self._object.call, member)
        return member


@final
class ObjectSource(BaseSource):
    """Reads examples with `items[row]`, or many at once with `items.__getitems__(rows)` if the object has it.

    Examples that are read together must have equal shapes and dtypes.

    Args:
        items: The object.
        thread_safe: Whether several threads may call it at once; None: if it holds no handles.
    """

    traits = Traits(reads_examples=True, owns_memory=True, runs_python=True)

    def __init__(self, items: Any, thread_safe: bool | None = None):
        if isinstance(items, type) and hasattr(items, "__getitem__"):
            raise ArgumentError(
                f"the data is the class {items.__name__}, which has no rows; pass an "
                f"object of it: {items.__name__}(…)"
            )
        missing = [
            name for name in ("__len__", "__getitem__") if not hasattr(items, name)
        ]
        if missing and callable(items) and not isinstance(items, type):
            raise ArgumentError(
                f"the data is {type_text(items)}, which is called for its rows; if "
                "it returns an iterator of them, it is a stream: from_stream(lambda "
                "lane, lanes: FUNCTION(), lanes=1); pass what it returns otherwise"
            )
        if missing:
            raise ArgumentError(
                f"the data is {type_text(items)} without {' and '.join(missing)}, so "
                "it has no random access; pass a Source (with read, __len__ and "
                "spec), or any object with __len__ and __getitem__: a generator as "
                "list(…)"
            )
        self._items = items
        self._object = UserObject(items, thread_safe)
        self._many = getattr(items, "__getitems__", None)

    def when_called(self, thread_safe: bool | None) -> "ObjectSource":
        """The same source, called by several threads at once or not."""
        return ObjectSource(self._items, thread_safe)

    def __len__(self) -> int:
        return len(self._items)

    def __repr__(self) -> str:
        return f"{type(self._items).__name__} object"

    def held(self, most: int) -> Iterator[Array]:
        """Leaves of the examples of a list or tuple, or of evenly spaced ones."""
        if not isinstance(self._items, list | tuple) or not len(self):
            return
        numbers = np.unique(
            np.linspace(0, len(self) - 1, min(len(self), _MOST_HELD)).astype(np.int64)
        ).tolist()
        each_bytes = max(
            1, sum(leaf.nbytes for leaf in self._held(numbers[len(numbers) // 2]))
        )
        step = max(1, -(-len(numbers) * each_bytes // most))
        for row in numbers[::step]:
            yield from self._held(row)

    def _held(self, row: int) -> list[Array]:
        return leaf_arrays(all_with_arrays([self._items[row]])[0])

    def read(self, rows: Integers) -> Tree:
        """Reads and stacks the examples at `rows`, whose shapes and dtypes must be equal."""
        numbers = check_rows(rows, len(self)).tolist()
        examples = self._examples(numbers)
        return stack(examples, spec_of((examples or self._examples([0]))[0]), numbers)

    def read_examples(self, visits: Visits) -> list[Tree]:
        """Reads and copies the examples one by one; their shapes may differ."""
        rows = check_rows(visits.rows, len(self)).tolist()
        return own_all(self._examples(rows), rows)

    def lend_examples(self, visits: Visits) -> list[Tree]:
        """Examples of a list or tuple; other objects may overwrite those that they returned."""
        if type(self._items) not in (list, tuple):
            return self.read_examples(visits)
        return self._examples(check_rows(visits.rows, len(self)).tolist())

    def _examples(self, rows: list[int]) -> list[Tree]:
        examples = all_with_arrays(self._object.call(self._given, rows))
        missing = [
            row
            for row, example in zip(rows, examples, strict=True)
            if example is None
        ]
        if missing:
            raise LeafError(
                f"row {missing[0]}: {type(self._items).__name__} returned None "
                "instead of an example; return one for every row, or leave the "
                "others out, which holds all examples in memory: "
                "loadax.from_source([data[row] for row in range(len(data)) if "
                "data[row] is not None])"
            )
        return examples

    def _given(self, rows: list[int]) -> list[Tree]:
        if self._many is None:
            return self._one_by_one(rows)
        try:
            examples = self._many(rows)
        except Exception as error:
            error.add_note(
                "loadax: in "
                f"{type(self._items).__name__}.__getitems__([{some(rows)}])"
            )
            raise
        if not isinstance(examples, list) or len(examples) != len(rows):
            if hasattr(examples, "__len__"):
                got = count_text(len(examples), "entry", "entries")
            else:
                got = "no entries"
            raise SourceError(
                f"{type(self._items).__name__}.__getitems__ returned "
                f"{type_text(examples)} of {got} "
                f"for {count_text(len(rows), 'row')}; it must return a list with "
                "one example for each row"
            )
        return examples

    def _one_by_one(self, rows: list[int]) -> list[Tree]:
        items = self._items
        examples = each_item(items, rows, lambda index: f"[{rows[index]}]")
        if (
            len(rows) > 1
            and rows[0] != rows[1]
            and _share_memory(examples[0], examples[1])
        ):
            # The object reuses one buffer for every row, which now contains the last one.
            return [own_all([items[row]], [row])[0] for row in rows]
        return examples


def each_item(
    items: Any, rows: Iterable[int], text: Callable[[int], str]
) -> list[Tree]:
    """The items at rows, in turn; an error gets a note with the text of the index among `rows`."""
    examples: list[Tree] = []
    add = examples.append
    try:
        for row in rows:
            add(items[row])
    except Exception as error:
        error.add_note(f"loadax: in {type(items).__name__}{text(len(examples))}")
        raise
    return examples


def _share_memory(example: Tree, other: Tree) -> bool:
    try:
        return any(map(same_memory, flatten(example)[0], flatten(other)[0]))
    except ArgumentError:  # a dict whose keys can't be sorted
        return False


_LISTS = {list, tuple, dict}


def all_with_arrays(examples: list[Tree]) -> list[Tree]:
    """As `with_arrays`, of many examples: quick where they hold no lists."""
    kinds = {*map(type, examples)}
    if kinds == {dict}:
        kinds = {*map(type, chain.from_iterable(map(dict.values, examples)))}
    if _LISTS.isdisjoint(kinds) and not any(
        issubclass(kind, Mapping) for kind in kinds
    ):
        return examples
    try:
        return list(map(with_arrays, examples))
    except RecursionError:
        raise too_deep() from None


def with_arrays(example: Tree) -> Tree:
    """Converts each list of numbers, which Hugging Face and JSON use in place of arrays, to an array."""
    if isinstance(example, Mapping):
        return with_values(
            example, {key: with_arrays(value) for key, value in example.items()}
        )
    if type(example) is tuple:
        return tuple(map(with_arrays, example))
    if type(example) is not list or not _numeric(example):
        return example
    try:
        return np.asarray(example)
    except (
        ValueError
    ):  # lists of different lengths, or nested deeper than arrays can be
        return example


def _numeric(items: list[Any]) -> bool:
    return bool(items) and all(
        isinstance(item, int | float | np.number)
        or (type(item) is list and _numeric(item))
        for item in items
    )
