"""Maps: users' functions on single rows or on many at once. Rows in, rows out; no step, no host, no mesh."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, final

import numpy as np

from loadax import seeds
from loadax.core.formatting import name_of, rows_text
from loadax.core.spec import check_batch, same_memory
from loadax.core.tree import flatten
from loadax.errors import ArgumentError, LeafError
from loadax.protocols import Tree, Visits


def takes(function: Callable[..., Any], count: int) -> bool | None:
    """Whether a function can be called with so many arguments by position; None where that can't be told."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # one written in C that doesn't say
        return None
    try:
        signature.bind(*range(count))
    except TypeError:
        return False
    return True


RAISED = (Exception, SystemExit, GeneratorExit)
"""What is told of with the row that it happened on. A Ctrl-C is none of it: it may come at any row."""


def blame(error: BaseException, what: str, note: str) -> None:
    """Adds a note to what a user's function raised.

    Raises:
        RuntimeError: In place of an exception that would end a loop, or the program, in silence. A StopIteration looks
            like the end of the data (in generators PEP 479 does the same), and a `sys.exit()` on a worker thread like
            that of the training.
    """
    if not isinstance(error, StopIteration | SystemExit | GeneratorExit):
        error.add_note(note)
        return
    made = RuntimeError(f"{what} raised {error!r}")
    made.add_note(note)
    raise made from error


@final
class LastRow:
    """What a function returned last: arrays that are its own, and what they held."""

    def __init__(self) -> None:
        self.leaves_and_values: tuple[list[Any], list[Any]] = [], []  # one tuple: threads replace it at once

    def __reduce__(self) -> Any:
        return LastRow, ()  # in another process, and in a copy, nothing was returned yet

    def keep(self, leaves: list[Any], values: list[Any]) -> None:
        """Remembers leaves, and copies of what they hold."""
        # Not views: they would keep alive what they are a view of.
        own = [leaf if type(leaf) is np.ndarray and leaf.base is None else None for leaf in leaves]
        self.leaves_and_values = (
            own,
            [None if leaf is None else value.copy() for leaf, value in zip(own, values, strict=True)],
        )


def generator(seed: int, place: int, epoch: int, row: int) -> np.random.Generator:
    """The random stream of one row: a function of these four numbers, so of no worker, host or order.

    Philox (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011) is a keyed function of a counter: the
    key is the seed and the place in the chain, and row and epoch are the counter's upper half, so that no two streams
    ever overlap.
    """
    key = np.array([seeds.derive(seed, "map"), place], np.uint64)
    counter = np.array([0, 0, row, epoch], np.uint64)
    return np.random.Generator(np.random.Philox(key=key, counter=counter))


@final
@dataclass(frozen=True)
class Map:
    """A function of one example, applied row by row.

    Args:
        function: `function(example)`, or `function(example, rng)`.
        rng: whether it gets a `numpy.random.Generator`, the row's own.
        seed: of that generator.
        place: how many maps come before this one.
        spec: of what it returns, or None: found out by calling it once.
    """

    function: Callable[..., Tree]
    rng: bool
    seed: int
    place: int
    spec: Tree | None
    last: "LastRow" = field(default_factory=lambda: LastRow(), init=False, repr=False, compare=False)  # noqa: PLW0108 - defined below
    elementwise = False

    def results(self, examples: list[Tree], visits: Visits) -> list[Tree]:
        """What the function returns for each example.

        Raises:
            LeafError: When it returns one array for several rows and writes to it in between.
        """
        found, reused = self._watched(examples[:2], visits)
        if reused:
            further, _ = self._watched(examples[2:], visits, 2)
        elif self.rng:
            numbers = zip(examples[2:], visits.rows.tolist()[2:], visits.epochs.tolist()[2:], strict=True)
            further = [self.one(*each) for each in numbers]
        else:
            further = self._all(examples[2:], visits, 2)
        return found + further

    def _watched(self, examples: list[Tree], visits: Visits, first: int = 0) -> tuple[list[Tree], bool]:
        """The results for the examples from `first` on, and whether the function returned the same array again.

        Such an array is copied: a constant may stay one or not. A function that reuses an array does so from its second
        row on, so the first two rows of a call and the last one of the call before tell.
        """
        found: list[Tree] = []
        reused = False
        before, then = self.last.leaves_and_values
        for index, example in enumerate(examples, first):
            row = int(visits.rows[index])
            result = self.one(example, row, int(visits.epochs[index]))
            try:
                leaves, structure = flatten(result)
            except ArgumentError:  # a dict whose keys can't be sorted, which only another map can take
                found.append(result)
                continue
            now = [leaf.copy() if isinstance(leaf, np.ndarray) else leaf for leaf in leaves]
            again = self._check_unchanged(leaves, before, then, now, row)
            found.append(structure.build(now) if again else result)
            reused |= again
            before, then = leaves, now
        self.last.keep(before, then)
        return found, reused

    def _all(self, given: list[Tree], visits: Visits, first: int) -> list[Tree]:
        """The function's results for the examples from `first` on, where it gets nothing else."""
        examples: list[Tree] = []
        function, keep = self.function, examples.append
        try:
            for example in given:
                keep(function(example))
        except RAISED as error:
            failed = first + len(examples)
            blame(error, f"map {name_of(function)}", self._where(int(visits.rows[failed]), int(visits.epochs[failed])))
            raise
        if type(None) in {*map(type, examples)}:
            failed = first + next(number for number, example in enumerate(examples) if example is None)
            raise self._gave_none(int(visits.rows[failed]))
        return examples

    def _check_unchanged(self, leaves: list[Any], before: list[Any], then: list[Any], now: list[Any], row: int) -> bool:
        """Whether the function returned an array that it returned for the row before as well.

        Args:
            leaves: What it returned.
            before: What it returned for the row before.
            then: What those held at that time.
            now: What the leaves hold.
            row: Row, for the message.

        Raises:
            LeafError: When it has written to the array since.
        """
        again = False
        for number, (leaf, earlier) in enumerate(zip(leaves, before, strict=False)):
            if not same_memory(leaf, earlier):
                continue
            again = True
            if not now[number].dtype.hasobject and now[number].tobytes() != then[number].tobytes():
                raise LeafError(
                    f"map {name_of(self.function)} returned one array for several rows, and changed it in between, "
                    f"so that rows overwrite each other; return a new array (copy it): row {row}, leaf number {number}"
                )
        return again

    def one(self, example: Tree, row: int, epoch: int) -> Tree:
        """The function's result for one example; what it raises gets a note that names the row."""
        try:
            arguments = (generator(self.seed, self.place, epoch, row),) if self.rng else ()
            result = self.function(example, *arguments)
        except RAISED as error:
            blame(error, f"map {name_of(self.function)}", self._where(row, epoch))
            raise
        if result is None:
            raise self._gave_none(row)
        return result

    def _where(self, row: int, epoch: int) -> str:
        return f"loadax: in map {name_of(self.function)}, on row {row} in epoch {epoch}"

    def _gave_none(self, row: int) -> LeafError:
        return LeafError(
            f"map {name_of(self.function)} returned None for row {row}; did you forget to return the example?"
        )

    def describe(self) -> list[Any]:
        return ["map", self.rng, self.seed if self.rng else None]


@final
@dataclass(frozen=True)
class BatchMap:
    """A function of many rows at once, which must act on each row by itself.

    Args:
        function: `function(batch)`, or `function(batch, rngs)` with one generator for each row.
        rng: whether it gets generators.
        seed: of those.
        place: how many maps come before this one.
        spec: of what it returns, without the rows' dimension, or None: found out by calling it once.
        elementwise: promises that every element of every leaf follows from the same element of the same leaf alone, so
            that it may be given some columns of the rows, and leaves with different numbers of rows.
    """

    function: Callable[..., Tree]
    rng: bool
    seed: int
    place: int
    spec: Tree | None
    elementwise: bool

    def __call__(self, batch: Tree, visits: Visits, spec: Tree) -> Tree:
        """The mapped rows of `batch`, a tree with `spec` behind a first dimension of rows."""
        result = self.raw(batch, visits)
        return check_batch(result, len(visits.rows), spec, f"map_batch {name_of(self.function)}")

    def raw(self, batch: Tree, visits: Visits) -> Tree:
        """The function's result, unchecked; what it raises gets a note that names the rows."""
        try:
            if self.rng:
                pairs = zip(visits.rows.tolist(), visits.epochs.tolist(), strict=True)
                result = self.function(batch, [generator(self.seed, self.place, epoch, row) for row, epoch in pairs])
            else:
                result = self.function(batch)
        except RAISED as error:
            name = f"map_batch {name_of(self.function)}"
            blame(error, name, f"loadax: in {name}, on {rows_text(visits.rows)}")
            raise
        if result is None:
            raise LeafError(f"map_batch {name_of(self.function)} returned None; did you forget to return the batch?")
        return result

    def describe(self) -> list[Any]:
        return ["map_batch", self.rng, self.seed if self.rng else None]


Transform = Map | BatchMap
