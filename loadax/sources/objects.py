"""ObjectSource: rows of any Python object with `__len__` and `__getitem__`: lists, torch datasets."""

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from loadax.core.formatting import some, type_text
from loadax.core.spec import leaf_arrays, own_all, same_memory, spec_of, stack
from loadax.core.tree import flatten, too_deep, with_values
from loadax.core.user_object import UserObject
from loadax.errors import ArgumentError, LeafError, SourceError
from loadax.protocols import Integers, Tree, Visits
from loadax.sources.base import BaseSource
from loadax.sources.checks import check_rows

_MOST_HELD = 1 << 16  # examples of a list that go into its fingerprint


@final
class ObjectSource(BaseSource):
    """Reads examples with `items[row]`, or many at once with `items.__getitems__(rows)` if the object has it.

    Examples that are read together must have equal shapes and dtypes.

    Args:
        items: The object.
        thread_safe: Whether several threads may call it at once; None: if it holds no handles.
    """

    owns_memory = True
    reads_examples = True
    runs_python = True

    def __init__(self, items: Any, thread_safe: bool | None = None):
        missing = [name for name in ("__len__", "__getitem__") if not hasattr(items, name)]
        if missing:
            raise ArgumentError(
                f"the data is {type_text(items)} without {' and '.join(missing)}, "
                "so it has no random access; pass a Source (with read, __len__ and spec), "
                "or any object with __len__ and __getitem__: a generator as list(…)"
            )
        self._items, self._object = items, UserObject(items, thread_safe)
        self._many = getattr(items, "__getitems__", None)

    def when_called(self, thread_safe: bool | None) -> "ObjectSource":
        """The same source, called by several threads at once or not."""
        return ObjectSource(self._items, thread_safe)

    def __len__(self) -> int:
        return len(self._items)

    def __repr__(self) -> str:
        return f"{type(self._items).__name__} object"

    def held(self, most: int) -> Iterator[NDArray[Any]]:
        """Leaves of the examples of a list or tuple, or of evenly spaced ones."""
        if not isinstance(self._items, list | tuple) or not len(self):
            return
        numbers = np.unique(np.linspace(0, len(self) - 1, min(len(self), _MOST_HELD)).astype(np.int64)).tolist()
        each_bytes = max(1, sum(leaf.nbytes for leaf in self._held(numbers[len(numbers) // 2])))
        step = max(1, -(-len(numbers) * each_bytes // most))
        for row in numbers[::step]:
            yield from self._held(row)

    def _held(self, row: int) -> list[NDArray[Any]]:
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

    def _examples(self, rows: list[int]) -> list[Tree]:
        examples = all_with_arrays(self._object.call(self._given, rows))
        missing = [row for row, example in zip(rows, examples, strict=True) if example is None]
        if missing:
            raise LeafError(
                f"row {missing[0]}: {type(self._items).__name__} returned None instead of an example; "
                "return one for every row, or leave the others out, which holds all examples in memory: "
                "loadax.from_source([data[row] for row in range(len(data)) if data[row] is not None])"
            )
        return examples

    def _given(self, rows: list[int]) -> list[Tree]:
        if self._many is None:
            return self._one_by_one(rows)
        try:
            examples = self._many(rows)
        except Exception as error:
            error.add_note(f"loadax: in {type(self._items).__name__}.__getitems__([{some(rows)}])")
            raise
        if not isinstance(examples, list) or len(examples) != len(rows):
            got = f"{len(examples)}" if hasattr(examples, "__len__") else "no"
            raise SourceError(
                f"{type(self._items).__name__}.__getitems__ returned {type_text(examples)} of {got} entries "
                f"for {len(rows)} rows; it must return a list with one example for each row"
            )
        return examples

    def _one_by_one(self, rows: list[int]) -> list[Tree]:
        examples: list[Tree] = []
        items, keep = self._items, examples.append
        try:
            for row in rows:
                keep(items[row])
        except Exception as error:
            error.add_note(f"loadax: in {type(items).__name__}[{rows[len(examples)]}]")
            raise
        if len(rows) > 1 and rows[0] != rows[1] and _share_memory(examples[0], examples[1]):
            # The object reuses one buffer for every row, which now contains the last one.
            return [own_all([items[row]], [row])[0] for row in rows]
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
    if _LISTS.isdisjoint(kinds) and not any(issubclass(kind, Mapping) for kind in kinds):
        return examples
    try:
        return list(map(with_arrays, examples))
    except RecursionError:
        raise too_deep() from None


def with_arrays(example: Tree) -> Tree:
    """Converts each list of numbers, which Hugging Face and JSON use in place of arrays, to an array."""
    if isinstance(example, Mapping):
        return with_values(example, {key: with_arrays(value) for key, value in example.items()})
    if type(example) is tuple:
        return tuple(map(with_arrays, example))
    if type(example) is not list or not _numeric(example):
        return example
    try:
        return np.asarray(example)
    except ValueError:  # lists of different lengths, or nested deeper than arrays can be
        return example


def _numeric(items: list[Any]) -> bool:
    return bool(items) and all(
        isinstance(item, int | float | np.number) or (type(item) is list and _numeric(item)) for item in items
    )
