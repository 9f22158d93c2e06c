"""Maps: user functions over single rows or batches of rows. Independent of steps, hosts and meshes."""

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
    """Whether a function accepts `count` positional arguments; None if its signature is unknown."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # a C function without a signature
        return None
    try:
        signature.bind(*range(count))
    except TypeError:
        return False
    return True


RAISED = (Exception, SystemExit, GeneratorExit)
"""Exceptions that get a note with their row. KeyboardInterrupt is not one, since it may arrive at any row."""


def blame(error: BaseException, what: str, note: str) -> None:
    """Adds a note to an exception of a user's function.

    Raises:
        RuntimeError: In place of an exception that would silently end a loop or the program. A StopIteration looks like
            the end of the data (PEP 479 does the same for generators), and a `sys.exit()` on a worker thread looks like
            that of the training script.
    """
    if not isinstance(error, StopIteration | SystemExit | GeneratorExit):
        error.add_note(note)
        return
    made = RuntimeError(f"{what} raised {error!r}")
    made.add_note(note)
    raise made from error


@final
class LastRow:
    """The leaves that a function last returned, as far as they own their memory, and copies of their values."""

    def __init__(self) -> None:
        self.leaves_and_values: tuple[list[Any], list[Any]] = [], []  # one tuple: threads replace it atomically

    def __reduce__(self) -> Any:
        return LastRow, ()  # a copy, or one in another process, starts empty

    def keep(self, leaves: list[Any], values: list[Any]) -> None:
        """Stores leaves and copies of their values."""
        # Views are skipped: they would keep their base alive.
        own = [leaf if type(leaf) is np.ndarray and leaf.base is None else None for leaf in leaves]
        self.leaves_and_values = (
            own,
            [None if leaf is None else value.copy() for leaf, value in zip(own, values, strict=True)],
        )


def generator(seed: int, place: int, epoch: int, row: int) -> np.random.Generator:
    """The random stream of one row, a function of these four integers only.

    Philox (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011) is a keyed function of a counter. The
    key is the seed and the map's index in the chain, and row and epoch are the upper half of the counter, so no two
    streams overlap.
    """
    key = np.array([seeds.derive(seed, "map"), place], np.uint64)
    counter = np.array([0, 0, row, epoch], np.uint64)
    return np.random.Generator(np.random.Philox(key=key, counter=counter))


@final
@dataclass(frozen=True)
class Map:
    """A function that is applied to each row.

    Args:
        function: `function(example)`, `function(example, rng)`, `function(example, row)` or
            `function(example, row, rng)`.
        rng: Whether it takes a `numpy.random.Generator`, one per row.
        seed: Seed of the generators.
        place: Index of this map in the chain.
        spec: Spec of its result; None: inferred by calling it once.
        with_index: Whether it takes the row number, a Python int.
    """

    function: Callable[..., Tree]
    rng: bool
    seed: int
    place: int
    spec: Tree | None
    with_index: bool = False
    last: LastRow = field(default_factory=LastRow, init=False, repr=False, compare=False)
    elementwise = False

    def results(self, examples: list[Tree], visits: Visits) -> list[Tree]:
        """Applies the function to each example.

        Raises:
            LeafError: If it returns one array for several rows and modifies it in between.
        """
        first_results, reused = self._apply_watching_reuse(examples[:2], visits)
        if reused:
            other_results, _ = self._apply_watching_reuse(examples[2:], visits, 2)
        elif self.rng or self.with_index:
            calls = zip(examples[2:], visits.rows.tolist()[2:], visits.epochs.tolist()[2:], strict=True)
            other_results = [self.one(*call) for call in calls]
        else:
            other_results = self._apply(examples[2:], visits, 2)
        return first_results + other_results

    def _apply_watching_reuse(self, examples: list[Tree], visits: Visits, first: int = 0) -> tuple[list[Tree], bool]:
        """The results for the examples, and whether the function returned the same array more than once.

        A repeated array is copied, since it may be a constant or a reused buffer. A function that reuses a buffer does
        so from its second row on, so it is enough to compare the first two rows of a call and the last row of the
        previous call.
        """
        results: list[Tree] = []
        reused = False
        previous, previous_values = self.last.leaves_and_values
        for index, example in enumerate(examples, first):
            row = int(visits.rows[index])
            result = self.one(example, row, int(visits.epochs[index]))
            try:
                leaves, structure = flatten(result)
            except ArgumentError:  # a dict whose keys can't be sorted, which only another map accepts
                results.append(result)
                continue
            values = [leaf.copy() if isinstance(leaf, np.ndarray) else leaf for leaf in leaves]
            repeated = self._check_unchanged(leaves, previous, previous_values, values, row)
            results.append(structure.build(values) if repeated else result)
            reused |= repeated
            previous, previous_values = leaves, values
        self.last.keep(previous, previous_values)
        return results, reused

    def _apply(self, inputs: list[Tree], visits: Visits, first: int) -> list[Tree]:
        """Applies a function of examples alone to the inputs, which start at index `first` of `visits`."""
        results: list[Tree] = []
        function, keep = self.function, results.append
        try:
            for example in inputs:
                keep(function(example))
        except RAISED as error:
            failed = first + len(results)
            blame(error, f"map {name_of(function)}", self._note(int(visits.rows[failed]), int(visits.epochs[failed])))
            raise
        if type(None) in {*map(type, results)}:
            failed = first + next(index for index, result in enumerate(results) if result is None)
            raise self._none_error(int(visits.rows[failed]))
        return results

    def _check_unchanged(
        self, leaves: list[Any], previous: list[Any], previous_values: list[Any], values: list[Any], row: int
    ) -> bool:
        """Whether the function returned an array that it also returned for the previous row.

        Args:
            leaves: Leaves that it returned.
            previous: Leaves that it returned for the previous row.
            previous_values: Values of those leaves at that time.
            values: Values of the leaves now.
            row: Row, for the message.

        Raises:
            LeafError: If it has modified the array since.
        """
        repeated = False
        for index, (leaf, earlier) in enumerate(zip(leaves, previous, strict=False)):
            if not same_memory(leaf, earlier):
                continue
            repeated = True
            if not values[index].dtype.hasobject and values[index].tobytes() != previous_values[index].tobytes():
                raise LeafError(
                    f"map {name_of(self.function)} returned one array for several rows and changed it in between, "
                    f"so rows overwrite each other; return a new array (a copy): row {row}, leaf {index}"
                )
        return repeated

    def one(self, example: Tree, row: int, epoch: int) -> Tree:
        """Applies the function to one example. An exception gets a note with the row."""
        try:
            index = (row,) if self.with_index else ()
            rng = (generator(self.seed, self.place, epoch, row),) if self.rng else ()
            result = self.function(example, *index, *rng)
        except RAISED as error:
            blame(error, f"map {name_of(self.function)}", self._note(row, epoch))
            raise
        if result is None:
            raise self._none_error(row)
        return result

    def _note(self, row: int, epoch: int) -> str:
        return f"loadax: in map {name_of(self.function)}, on row {row} in epoch {epoch}"

    def _none_error(self, row: int) -> LeafError:
        return LeafError(
            f"map {name_of(self.function)} returned None for row {row}; did you forget to return the example?"
        )

    def describe(self) -> list[Any]:
        return ["map", self.rng, self.seed if self.rng else None, *["with_index"] * self.with_index]


@final
@dataclass(frozen=True)
class BatchMap:
    """A function that is applied to many rows at once and must treat each row independently.

    Args:
        function: `function(batch)`, `function(batch, rngs)` with one generator per row, `function(batch, rows)` with
            the row numbers, int64[n], or `function(batch, rows, rngs)`.
        rng: Whether it takes generators.
        seed: Seed of the generators.
        place: Index of this map in the chain.
        spec: Spec of one row of its result; None: inferred by calling it once.
        elementwise: Promise that every element of every leaf depends only on the same element of the same leaf. It may
            then be called with some columns of the rows, and with leaves of different numbers of rows.
        with_index: Whether it takes row numbers.
    """

    function: Callable[..., Tree]
    rng: bool
    seed: int
    place: int
    spec: Tree | None
    elementwise: bool
    with_index: bool = False

    def __call__(self, batch: Tree, visits: Visits, spec: Tree) -> Tree:
        """Maps `batch`; each leaf of the result has the shape of `spec` after the dimension of rows."""
        result = self.raw(batch, visits)
        return check_batch(result, len(visits.rows), spec, f"map_batch {name_of(self.function)}")

    def raw(self, batch: Tree, visits: Visits) -> Tree:
        """Calls the function without checking its result. An exception gets a note with the rows."""
        try:
            index = (visits.rows.copy(),) if self.with_index else ()  # the function may change its argument
            pairs = zip(visits.rows.tolist(), visits.epochs.tolist(), strict=True)
            rngs = ([generator(self.seed, self.place, epoch, row) for row, epoch in pairs],) if self.rng else ()
            result = self.function(batch, *index, *rngs)
        except RAISED as error:
            name = f"map_batch {name_of(self.function)}"
            blame(error, name, f"loadax: in {name}, on {rows_text(visits.rows)}")
            raise
        if result is None:
            raise LeafError(f"map_batch {name_of(self.function)} returned None; did you forget to return the batch?")
        return result

    def describe(self) -> list[Any]:
        return ["map_batch", self.rng, self.seed if self.rng else None, *["with_index"] * self.with_index]


Transform = Map | BatchMap
