"""What users' functions do to rows: one row at a time, or many at once. Rows in, rows out; no step, no host, no mesh."""

import functools
import hashlib
import inspect
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from loadax import seeds
from loadax.errors import LeafError
from loadax.protocols import Tree, Visits
from loadax.specs import check_batch


def name_of(function: Callable[..., Any]) -> str:
    """A function as a reader would look it up: its name, and where it was written when that is known."""
    name = getattr(function, "__qualname__", None) or repr(function)
    code = getattr(function, "__code__", None)
    return f"{name} ({code.co_filename}:{code.co_firstlineno})" if code else name


def fingerprint(function: Callable[..., Any]) -> str:
    """A short text that tells a function from another one, or from itself before it was edited.

    It follows from the code, and from the plain values, arrays and functions that it closes over or has as defaults. Not from more: what it
    calls by name, and what it reads from files or globals, does not show.
    """
    return hashlib.sha256(repr(_plain(function, ())).encode()).hexdigest()[:16]


def _plain(value: Any, above: tuple[Any, ...]) -> Any:
    """A value as something whose text is the same in every process; `above`: the functions it stands in, which may stand in it."""
    match value:
        case None | str() | bytes() | int() | float() | complex():
            return value
        case np.ndarray() | np.generic() if not value.dtype.hasobject:
            parts = [value.dtype.str, value.shape, value.tobytes()]
        case tuple() | list() if isinstance(value, tuple) or type(value) is list:
            parts = [_plain(each, above) for each in value]
        case set() | frozenset():
            parts = sorted(repr(_plain(each, above)) for each in value)
        case dict():
            parts = [_plain(each, above) for each in value.items()]
        case functools.partial():
            parts = [_plain(each, above) for each in (value.func, value.args, value.keywords)]
        case types.CodeType():
            parts = [value.co_code, value.co_names, *(_plain(each, above) for each in value.co_consts)]
        case types.FunctionType() if value not in above:
            cells = [cell.cell_contents for cell in value.__closure__ or ()]
            held = (value.__code__, value.__defaults__, value.__kwdefaults__, cells)
            parts = [_plain(each, (*above, value)) for each in held]
        case types.MethodType():
            parts = [_plain(value.__func__, above)]
        case _:
            parts = [getattr(value, "__qualname__", "")]
    return [type(value).__qualname__, *parts]


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


def generator(seed: int, place: int, epoch: int, row: int) -> np.random.Generator:
    """The random stream of one row: a function of these four numbers, so of no worker, host or order.

    Philox (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011) is a keyed function of a counter: the key is the
    seed and the place in the chain, and row and epoch are the counter's upper half, so that no two streams ever overlap.
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
    elementwise = False

    def results(self, examples: list[Tree], visits: Visits) -> list[Tree]:
        """What the function returns for each example, as it is."""
        if not self.rng:
            return self._all(examples, visits)
        numbers = zip(examples, visits.rows.tolist(), visits.epochs.tolist(), strict=True)
        return [self.one(*each) for each in numbers]

    def _all(self, given: list[Tree], visits: Visits) -> list[Tree]:
        """The function's results for many examples, where it gets nothing else."""
        examples: list[Tree] = []
        function, keep = self.function, examples.append
        try:
            for example in given:
                keep(function(example))
        except Exception as error:
            failed = len(examples)
            error.add_note(self._where(int(visits.rows[failed]), int(visits.epochs[failed])))
            raise
        for number, example in enumerate(examples):
            if example is None:
                raise self._gave_none(int(visits.rows[number]))
        return examples

    def one(self, example: Tree, row: int, epoch: int) -> Tree:
        """The function's result for one example; what it raises gets a note that names the row."""
        try:
            arguments = (generator(self.seed, self.place, epoch, row),) if self.rng else ()
            result = self.function(example, *arguments)
        except Exception as error:
            error.add_note(self._where(row, epoch))
            raise
        if result is None:
            raise self._gave_none(row)
        return result

    def _where(self, row: int, epoch: int) -> str:
        return f"loadax: in map {name_of(self.function)}, on row {row} in epoch {epoch}"

    def _gave_none(self, row: int) -> LeafError:
        return LeafError(f"map {name_of(self.function)} returned None for row {row}; did you forget to return the example?")

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
        elementwise: promises that every element of every leaf follows from the same element of the same leaf alone, so that
            it may be given some columns of the rows, and leaves with different numbers of rows.
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
        except Exception as error:
            rows = visits.rows.tolist()
            shown = f"{rows[:8]}"[:-1] + (", …]" if len(rows) > 8 else "]")
            error.add_note(f"loadax: in map_batch {name_of(self.function)}, on {len(rows)} rows, {shown}")
            raise
        if result is None:
            raise LeafError(f"map_batch {name_of(self.function)} returned None; did you forget to return the batch?")
        return result

    def describe(self) -> list[Any]:
        return ["map_batch", self.rng, self.seed if self.rng else None]


Transform = Map | BatchMap
