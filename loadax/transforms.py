"""Maps: user functions over single rows or batches of rows. Independent of steps, hosts and meshes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from loadax.core.arguments import flag, function, integer
from loadax.core.casting import fill_value, fill_values
from loadax.core.formatting import name_of, rows_text
from loadax.core.leaf_names import Path, path_of, unknown_leaf, value_at, with_value
from loadax.core.leaf_selection import LeafSelection
from loadax.core.spec import array_or_object, check_batch, entries_like, same_memory, spec_of, spec_or_object, stack
from loadax.core.tree import flatten
from loadax.core.user_object import RAISED, UserObject, blame
from loadax.errors import ArgumentError, LeafError
from loadax.protocols import ArraySpec, Tree, Visits
from loadax.seeds import derive, row_generator


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
        copies = [None if leaf is None else value.copy() for leaf, value in zip(own, values, strict=True)]
        self.leaves_and_values = own, copies


@final
class _DefaultSeed(int):
    """A seed that was not given, which tells it from a 0 that was."""


DEFAULT_SEED = _DefaultSeed(0)


@final
@dataclass(frozen=True)
class Stream:
    """The stream of random numbers of a map whose seed nobody gave.

    Args:
        parts: Index of the part that the map is in, for each `mix`, `zip` and `concat` around it, from the inside.
        phase: Index of the phase of a chain.
    """

    parts: tuple[int, ...] = ()
    phase: int = 0

    @property
    def seed(self) -> int:
        """Seed of the generators: 0 outside of all of these."""
        seed = derive(0, "parts", *self.parts) if self.parts else 0
        return derive(seed, "phase", self.phase) if self.phase else seed


@dataclass(frozen=True)
class _Function:
    """A function of users with its options; see `Map` and `BatchMap`."""

    function: Callable[..., Tree]
    rng: bool
    seed: int
    place: int
    spec: Tree | None
    with_index: bool = False
    with_epoch: bool = False
    stream: "Stream | None" = None
    calls: UserObject = field(init=False, repr=False, compare=False)
    generator_seed: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "calls", UserObject(self.function))
        object.__setattr__(self, "generator_seed", self.seed if self.stream is None else self.stream.seed)

    @property
    def _options(self) -> list[Any]:
        """The options as JSON."""
        names = *["with_index"] * self.with_index, *["with_epoch"] * self.with_epoch
        return [self.rng, self.generator_seed if self.rng else None, *names]

    def _text(self) -> str:
        rng, _, *names = self._options
        return name_of(self.function) + "".join(f", {name}=True" for name in [*["rng"] * rng, *names])


@final
@dataclass(frozen=True)
class Map(_Function):
    """A function that is applied to each row.

    Args:
        function: `function(example)`, with the row, the epoch and a generator after it, as far as it takes them.
        rng: Whether it takes a `numpy.random.Generator`, one per row.
        seed: Seed of the generators.
        place: Index of this map in the chain.
        spec: Spec of its result; None: inferred by calling it once.
        with_index: Whether it takes the row number, a Python int.
        with_epoch: Whether it takes the epoch, a Python int.
        stream: In place of `seed`, the stream of random numbers of a map whose seed was not given.
    """

    last: LastRow = field(default_factory=LastRow, init=False, repr=False, compare=False)
    elementwise = False

    def results(self, examples: list[Tree], visits: Visits) -> list[Tree]:
        """Applies the function to each example.

        Raises:
            LeafError: If it returns one array for several rows and modifies it in between.
        """
        return self.calls.call(self._results, examples, visits)

    def _results(self, examples: list[Tree], visits: Visits) -> list[Tree]:
        first_results, reused = self._apply_watching_reuse(examples[:2], visits)
        if reused:
            other_results, _ = self._apply_watching_reuse(examples[2:], visits, 2)
        elif self.rng or self.with_index or self.with_epoch:
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
            visit = *[row] * self.with_index, *[epoch] * self.with_epoch
            rng = (row_generator(self.generator_seed, self.place, epoch, row),) if self.rng else ()
            result = self.function(example, *visit, *rng)
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
        return ["map", *self._options]

    def text(self) -> str:
        return f"map({self._text()})"


@final
@dataclass(frozen=True)
class BatchMap(_Function):
    """A function that is applied to many rows at once and must treat each row independently.

    Args:
        function: `function(batch)`, with the row numbers, the epochs, both int64[n], and a list of generators, one per
            row, after it, as far as it takes them.
        rng: Whether it takes generators.
        seed: Seed of the generators.
        place: Index of this map in the chain.
        spec: Spec of one row of its result; None: inferred by calling it once.
        with_index: Whether it takes row numbers.
        with_epoch: Whether it takes epochs.
        stream: As of `Map`.
        elementwise: Promise that every element of every leaf depends only on the same element of the same leaf. It may
            then be called with some columns of the rows, and with leaves of different numbers of rows.
    """

    elementwise: bool = False

    def __call__(self, batch: Tree, visits: Visits, spec: Tree) -> Tree:
        """Maps `batch`; each leaf of the result has the shape of `spec` after the dimension of rows."""
        result = self.raw(batch, visits)
        return check_batch(result, len(visits.rows), spec, f"map_batch {name_of(self.function)}")

    def raw(self, batch: Tree, visits: Visits) -> Tree:
        """Calls the function without checking its result. An exception gets a note with the rows."""
        return self.calls.call(self._raw, batch, visits)

    def _raw(self, batch: Tree, visits: Visits) -> Tree:
        try:
            copies = visits.rows.copy(), visits.epochs.copy()  # the function may change its arguments
            given = *copies[:1] * self.with_index, *copies[1:] * self.with_epoch
            pairs = zip(visits.rows.tolist(), visits.epochs.tolist(), strict=True)
            seed = self.generator_seed
            rngs = ([row_generator(seed, self.place, epoch, row) for row, epoch in pairs],) if self.rng else ()
            result = self.function(batch, *given, *rngs)
        except RAISED as error:
            name = f"map_batch {name_of(self.function)}"
            blame(error, name, f"loadax: in {name}, on {rows_text(visits.rows)}")
            raise
        if result is None:
            raise LeafError(f"map_batch {name_of(self.function)} returned None; did you forget to return the batch?")
        return result

    def describe(self) -> list[Any]:
        return ["map_batch", *self._options]

    def text(self) -> str:
        return f"map_batch({self._text()}{', elementwise=True' * self.elementwise})"


@final
@dataclass(frozen=True, repr=False)
class Padding:
    """Arguments of `Pad`, by which fingerprints and messages know it.

    Args:
        lengths: Length of each padded leaf by name; an int for bare arrays.
        value: Value of the padding; or a dict of values by name, 0 for other leaves.
        truncate: Whether to truncate longer leaves; False: they are an error.
    """

    lengths: dict[str, int] | int
    value: Any
    truncate: bool

    def __repr__(self) -> str:
        return f"pad({self.lengths}, value={self.value}{', truncate=True' * self.truncate})"


@final
@dataclass(frozen=True)
class Pad:
    """Pads leaves of ragged rows at one side of their first dimension. Other leaves stay as they are.

    Examples are dicts, and each padded leaf "x" gets a leaf "x_length" (int32) beside it. Or they are bare arrays,
    which become dicts of "data" and "length", or stay bare without lengths.

    While it works, a leaf of a subtree has its whole name as a key of the example, and None is in its place.

    Args:
        function: Its arguments, a `Padding`, where other transforms have their function.
        left: Whether it pads and truncates at the start.
        add_lengths: Whether it adds the lengths.
        equal: Whether it is of `Buckets`, where the leaves of a row must be equally long, and the length of the first
            alone is added.
    """

    function: Any
    # Not in `Padding`, whose class is in the fingerprints of old indices; `describe` tells of them.
    left: bool = False
    add_lengths: bool = True
    equal: bool = False
    spec = None
    rng = elementwise = with_index = with_epoch = False

    @property
    def _leaves(self) -> list[tuple[str, str | None, int]]:
        """Name, name of the added length, if there is one, and padded length of every leaf."""
        lengths = self.function.lengths
        if isinstance(lengths, int):
            return [("data", "length" if self.add_lengths else None, lengths)]
        told = [*lengths][:1] if self.equal else [*lengths]
        told = told if self.add_lengths else []
        return [(name, f"{name}_length" if name in told else None, most) for name, most in lengths.items()]

    @property
    def _made(self) -> list[str]:
        """Names of the padded leaves and of the lengths."""
        return [made for name, length_name, _ in self._leaves for made in (name, length_name) if made is not None]

    def spec_of(self, example: Tree, row: int, stacked: bool) -> Tree:
        """The spec of an example after padding.

        Args:
            example: The example.
            row: Its row.
            stacked: Whether its rows are stacked next; else other leaves may be any objects.

        Raises:
            LeafError: When a leaf is missing, exists already, or can't be padded; names the row.
            ArgumentError: When the value does not fit its dtype.
        """
        named, places = self._named(example, row)
        padded = {}
        for name, length_name, most in self._leaves:
            array = _paddable(named.pop(name), f"row {row}: leaf {name!r}")
            padded[name] = ArraySpec((most, *array.shape[1:]), array.dtype.newbyteorder("="))
            if length_name is not None:
                padded[length_name] = ArraySpec((), np.dtype(np.int32))
            fill_value(name, self.function.value, array.dtype)
        others = spec_of(named) if stacked else {name: spec_or_object(leaf) for name, leaf in named.items()}
        return self._finished({**others, **padded}, places)

    def pads_empty_list(self, example: Tree) -> bool:
        """Whether a leaf to pad is an empty list, which has no dtype, as arrays have."""
        named = example if isinstance(example, Mapping) else {"data": example}
        return any(isinstance(leaf, list) and not leaf for leaf in (named.get(name) for name, *_ in self._leaves))

    def results(self, examples: list[Tree], visits: Visits, spec: Tree) -> list[Tree]:
        """Pads examples, whose other leaves may differ from row to row.

        Raises:
            LeafError: When a padded leaf is missing, has another dtype or trailing dimensions than in `spec`, or is
                longer; names the row.
        """
        rows = visits.rows.tolist()
        pairs = [self._named(example, row) for example, row in zip(examples, rows, strict=True)]
        padded = self._padded([named for named, _ in pairs], rows, self._taken_apart(spec)[0]).items()
        finished = []
        for index, (named, places) in enumerate(pairs):
            finished.append(self._finished(named | {name: column[index] for name, column in padded}, places))
        return finished

    def __call__(self, examples: list[Tree], visits: Visits, spec: Tree) -> Tree:
        """Pads and stacks examples; each leaf of the result has the shape of `spec` after the dimension of rows.

        Raises:
            LeafError: When an example has other leaves, dtypes or trailing dimensions, or is longer; names the row.
        """
        rows, by_name = visits.rows.tolist(), isinstance(self.function.lengths, dict)
        spec, places = self._taken_apart(spec)
        named = [
            example if by_name and not places and type(example) is dict else self._named(example, row)[0]
            for example, row in zip(examples, rows, strict=True)
        ]
        others = {name: leaf for name, leaf in spec.items() if name not in self._made} if by_name else {}
        expected = {*others, *(name for name, _, _ in self._leaves)}
        for row, example in zip(rows, named, strict=True):
            if example.keys() != expected:
                raise LeafError(
                    f"row {row} has the leaves {sorted(example)}, and the first row had {sorted(expected)}; "
                    "return the same leaves for every row"
                )
        rest = self._stacked(named, others, rows) if others else {}
        return self._finished({**rest, **self._padded(named, rows, spec)}, places)

    def _stacked(self, named: list[dict[str, Any]], others: dict[str, Any], rows: list[int]) -> Tree:
        """The leaves that are not padded, rows first."""
        rest = [{name: example[name] for name in others} for example in named]
        try:
            return stack(rest, others, rows)
        except LeafError as error:
            leading = next(iter(self.function.lengths))
            ragged = _as_long(rest, others, [example[leading] for example in named]) if self.equal else []
            if not ragged:
                raise
            raise LeafError(
                f"{str(error).partition(';')[0]}; a leaf as long as {leading!r} is padded with it if it is named: "
                f"Buckets({(*self.function.lengths, *ragged)}, …)"
            ) from error

    def _taken_apart(self, spec: Tree) -> tuple[Tree, dict[str, Path]]:
        """A spec of padded rows as `_named` gives an example, and the places of what is made in a subtree."""
        places: dict[str, Path] = {}
        if not isinstance(self.function.lengths, dict) or not isinstance(spec, dict):
            return spec, places
        for name, length_name, _ in self._leaves:
            path = path_of(spec, name)
            if path is not None and len(path) > 1:
                places[name] = path
                if length_name is not None:
                    places[length_name] = _beside(path)
        for name, path in places.items():
            spec = {**with_value(spec, path, None), name: value_at(spec, path)}
        return spec, places

    def _finished(self, named: dict[str, Any], places: dict[str, Path]) -> Tree:
        """An example, a batch or a spec with everything in its place."""
        if isinstance(self.function.lengths, int) and not self.add_lengths:
            return named["data"]
        for name, path in places.items():
            value = named.pop(name)
            named = with_value(named, path, value)
        return named

    def _padded(self, named: list[dict[str, Any]], rows: list[int], spec: Tree) -> dict[str, NDArray[Any]]:
        """The padded leaves of all examples and their lengths, rows first."""
        batch: dict[str, NDArray[Any]] = {}
        first: NDArray[np.int64] | None = None
        for name, length_name, most in self._leaves:
            column_spec = spec[name] if type(spec) is dict else spec
            column = _entries([example[name] for example in named], rows, name, column_spec)
            lengths = np.fromiter(map(len, column), np.int64, len(column))
            first = lengths if first is None else first
            if self.equal:
                self._check_equal(first, lengths, rows, name)
            batch[name] = self._pad(column, lengths, rows, name, column_spec)
            if length_name is not None:
                batch[length_name] = np.minimum(lengths, most).astype(np.int32)
        return batch

    def _check_equal(self, first: NDArray[np.int64], lengths: NDArray[np.int64], rows: list[int], name: str) -> None:
        """Checks that a leaf is as long as the first one in every row.

        Raises:
            LeafError: When it is not; names the row.
        """
        for index in np.flatnonzero(lengths != first)[:1].tolist():
            leading, most = next(iter(self.function.lengths.items()))
            others = tuple(other for other in self.function.lengths if other != name)
            raise LeafError(
                f"row {rows[index]}: leaf {name!r} has {lengths[index]} entries, but {leading!r} has {first[index]}, "
                "and Buckets pads them together; make them equally long in a map, or pad the leaf before, to one "
                f"length: .pad({{{name!r}: {max(most, lengths.max())}}}) and Buckets({others}, …)"
            )

    def _named(self, example: Tree, row: int) -> tuple[dict[str, Any], dict[str, Path]]:
        """An example as a dict that may be changed, with the leaves to pad, and the places of those of subtrees."""
        named, places = self._as_dict(example, row), dict[str, Path]()
        for name, length_name, _ in self._leaves:
            path = (name,) if name in named else path_of(named, name)
            if path is None:
                known = flatten(named, is_leaf=lambda node: type(node) is list)[1].names
                raise LeafError(f"pad(), row {row}: {unknown_leaf(name, known)}")
            beside = _beside(path)
            if length_name is not None and path_of(value_at(named, path[:-1]), beside[-1]) is not None:
                raise LeafError(
                    f"row {row} has a leaf {length_name!r} already, where pad() adds the length of "
                    f"{name!r}; rename it, or pass add_lengths=False to add none"
                )
            if len(path) > 1:
                places[name] = path
                named = {**with_value(named, path, None), name: value_at(named, path)}
                if length_name is not None:
                    self._check_dict(named, path, name, row)
                    named = with_value(named, beside, None)
                    places[length_name] = beside
        return named, places

    def _check_dict(self, named: dict[str, Any], path: Path, name: str, row: int) -> None:
        """Checks that a length can be added beside a leaf.

        Raises:
            LeafError: When it can't.
        """
        around = value_at(named, path[:-1])
        if not isinstance(around, dict):
            what = f"row {row}: the length of {name!r} can't be added to a {type(around).__name__}"
            raise LeafError(f"{what}; make it a dict in a map, or pass add_lengths=False to add none")

    def _as_dict(self, example: Tree, row: int) -> dict[str, Any]:
        if isinstance(self.function.lengths, int):
            if isinstance(example, Mapping):
                raise LeafError(
                    f"row {row} is a dict of {list(example)}; pass the lengths of its leaves by name: "
                    f"pad({{{next(iter(example), 'tokens')!r}: {self.function.lengths}}})"
                )
            return {"data": example}
        if not isinstance(example, Mapping):
            bare = type(example) is list or (not isinstance(example, tuple | str | bytes) and np.ndim(example))
            remedy = "pass one int for bare arrays" if bare else "return a dict in a map before pad()"
            raise LeafError(f"row {row} is a {type(example).__name__}; pad() by name needs dicts: {remedy}")
        return dict(example)

    def _pad(
        self, column: list[Any], lengths: NDArray[np.int64], rows: list[int], name: str, spec: ArraySpec
    ) -> NDArray[Any]:
        """One leaf of all examples, padded."""
        most = spec.shape[0]
        if not self.function.truncate and lengths.max(initial=0) > most:
            worst = int(np.argmax(lengths))
            raise LeafError(
                f"row {rows[worst]}: leaf {name!r} has {lengths[worst]} entries, more than {most}, its padded length; "
                "pass a larger length, or truncate=True to drop the excess entries"
            )
        padded = np.full((len(column), *spec.shape), fill_value(name, self.function.value, spec.dtype), spec.dtype)
        for row, leaf in zip(padded, column, strict=True):
            if self.left:
                row[max(0, most - len(leaf)) :] = leaf[max(0, len(leaf) - most) :]
            else:
                row[: len(leaf)] = leaf[:most]
        return padded

    def describe(self) -> list[Any]:
        options = ["side='left'"] * self.left + ["add_lengths=False"] * (not self.add_lengths)
        if self.equal and len(self.function.lengths) > 1:  # states of one leaf stay as they are
            options.append("equal=True")
        return ["pad", self.function.lengths, self.function.value, self.function.truncate, *options]

    def text(self) -> str:
        return ", ".join([repr(self.function)[:-1], *self.describe()[4:]]) + ")"


def _as_long(examples: list[dict[str, Any]], spec: dict[str, Any], leading: list[Any]) -> list[str]:
    """Names of the leaves that are ragged, and as long as the leading one in all of these examples."""
    specs, structure = flatten(spec, is_leaf=lambda node: isinstance(node, ArraySpec))
    found = []
    for name, leaf_spec in zip(structure.names, specs, strict=True):
        places = [path_of(example, name) for example in examples]
        leaves = [np.shape(value_at(example, path or ())) for example, path in zip(examples, places, strict=True)]
        as_long = all(shape[:1] == (len(leaf),) for shape, leaf in zip(leaves, leading, strict=True))
        if as_long and any(shape != leaf_spec.shape for shape in leaves):
            found.append(name)
    return found


def _entries(column: list[Any], rows: list[int], name: str, spec: ArraySpec) -> list[Any]:
    """One leaf of all examples, as arrays of its dtype.

    Raises:
        LeafError: When an example has another dtype or trailing dimensions; names the row.
    """
    trailing = spec.shape[1:]
    for index, leaf in enumerate(column):
        if type(leaf) is not np.ndarray or leaf.dtype != spec.dtype or leaf.shape[1:] != trailing or not leaf.ndim:
            label = f"row {rows[index]}: leaf {name!r}"
            column[index] = entries_like(_paddable(leaf, label), spec.dtype, trailing, label)
    return column


def _beside(path: Path) -> Path:
    """Path of the length of the leaf at a path."""
    return (*path[:-1], f"{path[-1]}_length")


def checked_function(fn: Any, gets: Sequence[str], *passed: bool) -> Callable[..., Any]:
    """The function of a map, if it takes what it is called with: checked now, not on the first row.

    Args:
        fn: What the user passed.
        gets: What it is called with: examples, rows, epochs and generators.
        passed: Whether it gets rows, epochs and generators.

    Raises:
        ArgumentError: When it does not; says which options pass what.
    """
    example, rows, epochs, rngs = gets
    chosen = [index for index, passes in enumerate(passed) if passes]
    names = [example.split()[-1], *(("rows", "epoch", "rng")[index] for index in chosen)]
    remedy = f"a function of {' and '.join([example, *(gets[1 + index] for index in chosen)])}"
    passing = f"with_index=True passes {rows}, with_epoch=True {epochs}, and rng=True {rngs}"
    return function("fn", fn, f"{remedy}; {passing}", *names)


def checked_seed(seed: Any, rng: bool) -> tuple[int, Stream | None]:
    """The seed of a map's generators, and the stream that they are drawn from if it was not given.

    Raises:
        ArgumentError: When it is not an int, or the map gets no generators.
    """
    if seed is DEFAULT_SEED:
        return 0, Stream() if rng else None
    checked = integer("seed", seed, most=None)
    if checked and not rng:
        raise ArgumentError(f"seed={seed!r} is for random generators; leave it out, or pass rng=True as well")
    return checked, None


def padding(lengths: Any, value: Any, truncate: Any) -> Padding:
    """The arguments of `Dataset.pad`.

    Raises:
        ArgumentError: When a value can't be used.
    """
    remedy = "a length for each leaf by name, such as {'tokens': 512}, or one int for bare arrays"
    checked: dict[str, int] | int
    if isinstance(lengths, Mapping):
        if not lengths or not all(isinstance(name, str) for name in lengths):
            raise ArgumentError(f"lengths={lengths!r}: pass {remedy}")
        checked = {name: integer(f"lengths[{name!r}]", length, 1) for name, length in lengths.items()}
    else:
        checked = integer("lengths", lengths, 1, remedy=remedy)
    value = fill_values(value)
    for name in value if isinstance(value, dict) else ():
        if name not in (checked if isinstance(checked, dict) else ("data",)):
            raise ArgumentError(f"value has the key {name!r}, which is not padded; leave it out", argument="value")
    return Padding(checked, value, flag("truncate", truncate))


def _paddable(leaf: Any, label: str) -> NDArray[Any]:
    array = array_or_object(leaf, label)
    if not array.ndim or array.dtype.kind in "OSUMm":
        remedy = "leave it out of pad()"
        if isinstance(leaf, tuple):  # a row of several leaves, as datasets of torch return them
            remedy = "return a dict in a map, and pad its leaves by name: pad({'tokens': 512})"
        raise LeafError(
            f"{label} is {array.dtype}{list(array.shape)}, but pad() pads the first dimension of numeric arrays; "
            f"{remedy}"
        )
    return array


Transform = Map | BatchMap | Pad | LeafSelection
