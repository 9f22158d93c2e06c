"""Any Python object with `__len__` and `__getitem__`: lists, torch and Hugging Face datasets, Grain's MapDataset."""

from collections.abc import Iterator
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from loadax.errors import ArgumentError, LeafError, SourceError
from loadax.protocols import Integers, Tree
from loadax.sources.checks import check_rows
from loadax.specs import spec_of, stack
from loadax.trees import flatten

_MOST_HELD = 1 << 16  # examples of a list that tell it from another one


@final
class ObjectSource:
    """Reads examples one by one with `items[row]`, or many at once with `items.__getitems__(rows)` where that is there.

    The spec is that of the first example that is read.
    """

    fresh = True  # what `read` gives is nobody else's memory

    def __init__(self, items: Any):
        missing = [name for name in ("__len__", "__getitem__") if not hasattr(items, name)]
        if missing:
            raise ArgumentError(
                f"the data is a {type(items).__name__} without {' and '.join(missing)}, so it can't be read at any row; pass a Source "
                "(with read, __len__ and spec), or any object with __len__ and __getitem__: a generator as list(…)"
            )
        self._items = items
        self._many = getattr(items, "__getitems__", None)
        self.spec: Tree | None = None
        """None until the first read, whose first example decides it: all others must be alike."""

    def __len__(self) -> int:
        return len(self._items)

    def __repr__(self) -> str:
        return f"{type(self._items).__name__} object"

    def held(self, most: int) -> Iterator[NDArray[Any]]:
        """What a list or tuple holds: the leaves of its examples, or of evenly spread ones: at most so many bytes."""
        if not isinstance(self._items, list | tuple) or not len(self):
            return
        numbers = np.unique(np.linspace(0, len(self) - 1, min(len(self), _MOST_HELD)).astype(np.int64)).tolist()
        each_bytes = max(
            1, sum(np.asarray(leaf).nbytes for leaf in flatten(_with_arrays(self._items[numbers[len(numbers) // 2]]))[0])
        )
        step = max(1, -(-len(numbers) * each_bytes // most))
        for row in numbers[::step]:
            yield from (np.asarray(leaf) for leaf in flatten(_with_arrays(self._items[row]))[0])

    def read(self, rows: Integers) -> Tree:
        """The examples at `rows`, stacked; all must be alike."""
        numbers = check_rows(rows, len(self)).tolist()
        examples = self.examples(rows)
        if self.spec is None:
            self.spec = spec_of((examples or self.examples(np.zeros(1, np.int64)))[0])
        return stack(examples, self.spec, numbers)

    def examples(self, rows: Integers) -> list[Tree]:
        """The examples at `rows`, one by one, which need not be alike."""
        numbers = check_rows(rows, len(self)).tolist()
        examples = [_with_arrays(example) for example in self._examples(numbers)]
        if None in (missing := [None if example is None else 0 for example in examples]):
            row = numbers[missing.index(None)]
            raise LeafError(
                f"row {row}: {type(self._items).__name__} gave None instead of an example; return one for every row (a filter of "
                "Grain's leaves None: apply it to a Grain dataset that iterates, or keep a list of the good rows)"
            )
        return examples

    def _examples(self, rows: list[int]) -> list[Tree]:
        if self._many is None:
            return [self._example(row) for row in rows]
        try:
            examples = self._many(rows)
        except Exception as error:
            error.add_note(f"loadax: in {type(self._items).__name__}.__getitems__({rows[:8]}{' …' if len(rows) > 8 else ''})")
            raise
        if not isinstance(examples, list) or len(examples) != len(rows):
            got = f"{len(examples)}" if hasattr(examples, "__len__") else "no"
            raise SourceError(
                f"{type(self._items).__name__}.__getitems__ gave a {type(examples).__name__} of {got} entries for {len(rows)} rows; "
                "it must return a list with one example for each row"
            )
        return examples

    def _example(self, row: int) -> Tree:
        try:
            return self._items[row]
        except Exception as error:
            error.add_note(f"loadax: in {type(self._items).__name__}[{row}]")
            raise


def _with_arrays(example: Tree) -> Tree:
    """The example with each list of numbers, which Hugging Face and JSON have in place of arrays, as one array."""
    if type(example) is dict:
        return {key: _with_arrays(value) for key, value in example.items()}
    if type(example) is tuple:
        return tuple(map(_with_arrays, example))
    return np.asarray(example) if type(example) is list and _numeric(example) else example


def _numeric(items: list[Any]) -> bool:
    return bool(items) and all(
        isinstance(item, int | float | np.number) or (type(item) is list and _numeric(item)) for item in items
    )
