"""Maps: user functions over single rows or batches of rows. Independent of steps, hosts and meshes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol, final

import numpy as np

from loadax.core.arguments import function, integer
from loadax.core.formatting import name_of, rows_text
from loadax.core.spec import check_batch, same_memory
from loadax.core.tree import flatten
from loadax.core.user_object import RAISED, UserObject, blame
from loadax.errors import ArgumentError, LeafError
from loadax.protocols import Tree, Visits
from loadax.seeds import derive, row_generator


@final
class LastRow:
    """The leaves that a function last returned, as far as they own their memory, and copies of their values."""

    def __init__(self) -> None:
        # one tuple: threads replace it atomically
        self.leaves_and_values: tuple[list[Any], list[Any]] = [], []

    def __reduce__(self) -> Any:
        return LastRow, ()  # a copy, or one in another process, starts empty

    def store(self, leaves: list[Any], values: list[Any]) -> None:
        """Stores leaves and copies of their values."""
        # Views are skipped: they would keep their base alive.
        own = [
            leaf if type(leaf) is np.ndarray and leaf.base is None else None
            for leaf in leaves
        ]
        copies = [
            None if leaf is None else value.copy()
            for leaf, value in zip(own, values, strict=True)
        ]
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
        if self.parts:
            seed = derive(0, "parts", *self.parts)
        else:
            seed = 0
        if self.phase:
            return derive(seed, "phase", self.phase)
        return seed


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
        object.__setattr__(
            self,
            "generator_seed",
            self.seed if self.stream is None else self.stream.seed,
        )

    @property
    def _options(self) -> list[Any]:
        """The options as JSON."""
        names = *["with_index"] * self.with_index, *["with_epoch"] * self.with_epoch
        return [self.rng, self.generator_seed if self.rng else None, *names]

    def _text(self) -> str:
        rng, _, *names = self._options
        return name_of(self.function) + "".join(
            f", {name}=True" for name in [*["rng"] * rng, *names]
        )


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

    last: LastRow = field(
        default_factory=LastRow, init=False, repr=False, compare=False
    )
    kind: ClassVar[Literal["map"]] = "map"
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
            calls = zip(
                examples[2:],
                visits.rows.tolist()[2:],
                visits.epochs.tolist()[2:],
                strict=True,
            )
            other_results = [self.one(*call) for call in calls]
        else:
            other_results = self._apply(examples[2:], visits, 2)
        return first_results + other_results

    def _apply_watching_reuse(
        self, examples: list[Tree], visits: Visits, first: int = 0
    ) -> tuple[list[Tree], bool]:
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
            except (
                ArgumentError
            ):  # a dict whose keys can't be sorted, which only another map accepts
                results.append(result)
                continue
            values = [
                leaf.copy() if isinstance(leaf, np.ndarray) else leaf
                for leaf in leaves
            ]
            repeated = self._check_unchanged(
                leaves, previous, previous_values, values, row
            )
            results.append(structure.build(values) if repeated else result)
            reused |= repeated
            previous = leaves
            previous_values = values
        self.last.store(previous, previous_values)
        return results, reused

    def _apply(self, inputs: list[Tree], visits: Visits, first: int) -> list[Tree]:
        """Applies a function of examples alone to the inputs, which start at index `first` of `visits`."""
        results: list[Tree] = []
        function = self.function
        add = results.append
        try:
            for example in inputs:
                add(function(example))
        except RAISED as error:
            failed = first + len(results)
            blame(
                error,
                f"map {name_of(function)}",
                self._note(int(visits.rows[failed]), int(visits.epochs[failed])),
            )
            raise
        if type(None) in {*map(type, results)}:
            failed = first + next(
                index for index, result in enumerate(results) if result is None
            )
            raise self._none_error(int(visits.rows[failed]))
        return results

    def _check_unchanged(
        self,
        leaves: list[Any],
        previous: list[Any],
        previous_values: list[Any],
        values: list[Any],
        row: int,
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
            if (
                not values[index].dtype.hasobject
                and values[index].tobytes() != previous_values[index].tobytes()
            ):
                raise LeafError(
                    f"map {name_of(self.function)} returned one array for several "
                    "rows and changed it in between, so rows overwrite each other; "
                    f"return a new array (a copy): row {row}, leaf {index}"
                )
        return repeated

    def one(self, example: Tree, row: int, epoch: int) -> Tree:
        """Applies the function to one example. An exception gets a note with the row."""
        try:
            visit = *[row] * self.with_index, *[epoch] * self.with_epoch
            rng = (
                (row_generator(self.generator_seed, self.place, epoch, row),)
                if self.rng
                else ()
            )
            result = self.function(example, *visit, *rng)
        except RAISED as error:
            blame(error, f"map {name_of(self.function)}", self._note(row, epoch))
            raise
        if result is None:
            raise self._none_error(row)
        return result

    def _note(self, row: int, epoch: int) -> str:
        return (
            f"loadax: in map {name_of(self.function)}, on row {row} in epoch {epoch}"
        )

    def _none_error(self, row: int) -> LeafError:
        return LeafError(
            f"map {name_of(self.function)} returned None for row {row}; did you "
            "forget to return the example?"
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
    kind: ClassVar[Literal["map_batch"]] = "map_batch"

    def __call__(self, batch: Tree, visits: Visits, spec: Tree) -> Tree:
        """Maps `batch`; each leaf of the result has the shape of `spec` after the dimension of rows."""
        result = self.raw(batch, visits)
        return check_batch(
            result, len(visits.rows), spec, f"map_batch {name_of(self.function)}"
        )

    def raw(self, batch: Tree, visits: Visits) -> Tree:
        """Calls the function without checking its result. An exception gets a note with the rows."""
        return self.calls.call(self._raw, batch, visits)

    def _raw(self, batch: Tree, visits: Visits) -> Tree:
        try:
            # the function may change its arguments
            copies = visits.rows.copy(), visits.epochs.copy()
            given = *copies[:1] * self.with_index, *copies[1:] * self.with_epoch
            pairs = zip(visits.rows.tolist(), visits.epochs.tolist(), strict=True)
            seed = self.generator_seed
            rngs = (
                (
                    [
                        row_generator(seed, self.place, epoch, row)
                        for row, epoch in pairs
                    ],
                )
                if self.rng
                else ()
            )
            result = self.function(batch, *given, *rngs)
        except RAISED as error:
            name = f"map_batch {name_of(self.function)}"
            blame(error, name, f"loadax: in {name}, on {rows_text(visits.rows)}")
            raise
        if result is None:
            raise LeafError(
                f"map_batch {name_of(self.function)} returned None; did you forget "
                "to return the batch?"
            )
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
        return (
            f"pad({self.lengths}, "
            f"value={self.value}{', truncate=True' * self.truncate})"
        )


def checked_function(
    fn: Any, gets: Sequence[str], *passed: bool
) -> Callable[..., Any]:
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
    names = [
        example.split()[-1],
        *(("rows", "epoch", "rng")[index] for index in chosen),
    ]
    remedy = (
        "a function of "
        f"{' and '.join([example, *(gets[1 + index] for index in chosen)])}"
    )
    passing = (
        f"with_index=True passes {rows}, with_epoch=True {epochs}, and rng=True "
        f"{rngs}"
    )
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
        raise ArgumentError(
            f"seed={seed!r} is for random generators; leave it out, or pass rng=True "
            "as well"
        )
    return checked, None


class Stacker(Protocol):
    """The members of `loadax.padding.Pad` and `loadax.decoding.Decode` that reading needs."""

    @property
    def kind(self) -> Literal["pad", "decode"]:
        """Tells it from other transforms."""

    @property
    def function(self) -> Any:
        """Its arguments: a `Padding` or a `Decoding`."""

    @property
    def spec(self) -> None:
        """Its spec depends on the examples."""

    @property
    def rng(self) -> bool:
        """Whether it draws random numbers."""

    @property
    def stream(self) -> Stream | None:
        """The stream of its random numbers, if their seed was not given."""

    @property
    def with_epoch(self) -> bool:
        """Whether it takes the epoch: False."""

    @property
    def elementwise(self) -> bool:
        """Whether it is elementwise: False."""

    def __call__(
        self, examples: list[Tree], visits: Visits, spec: Tree, names: Sequence[Any]
    ) -> Tree:
        """Transforms and stacks examples; `names` are those of the rows, for errors."""

    def results(
        self, examples: list[Tree], visits: Visits, spec: Tree, names: Sequence[Any]
    ) -> list[Tree]:
        """Transforms examples, whose other leaves may differ from row to row."""

    def spec_of(self, example: Tree, row: int, stacked: bool) -> Tree:
        """The spec of an example after the transform."""

    def spec_of_tree(self, spec: Tree) -> Tree | None:
        """The spec of transformed examples from that of others; None: it depends on the examples."""

    def pads_empty_list(self, example: Tree) -> bool:
        """Whether a leaf to pad is an empty list, which has no dtype."""

    def describe(self) -> list[Any]:
        """The transform as JSON."""

    def text(self) -> str:
        """The transform as text."""


class Selector(Protocol):
    """The members of `loadax.core.leaf_selection.LeafSelection` that reading needs."""

    @property
    def kind(self) -> Literal["select"]:
        """Tells it from other transforms."""

    @property
    def function(self) -> Any:
        """The selection itself."""

    @property
    def spec(self) -> None:
        """Its spec depends on the examples."""

    @property
    def rng(self) -> bool:
        """Whether it draws random numbers: False."""

    @property
    def stream(self) -> None:
        """The stream of its random numbers: it has none."""

    @property
    def with_epoch(self) -> bool:
        """Whether it takes the epoch: False."""

    @property
    def elementwise(self) -> bool:
        """Whether it is elementwise: True."""

    def of_tree(self, tree: Tree) -> Tree:
        """The selected leaves of an example, a batch or a spec."""

    def of_rows(self, examples: Sequence[Tree], rows: Sequence[int]) -> list[Tree]:
        """The selected leaves of each example; errors name its row."""

    def describe(self) -> list[Any]:
        """The transform as JSON."""

    def text(self) -> str:
        """The transform as text."""


@final
@dataclass(frozen=True)
class Examples:
    """Separate rows, in memory that nothing else references."""

    items: list[Tree]


def select(
    transform: Selector, read: Tree | Examples, visits: Visits
) -> Tree | Examples:
    """Rows or a batch with the selected leaves."""
    if isinstance(read, Examples):
        return Examples(transform.of_rows(read.items, visits.rows.tolist()))
    return transform.of_tree(read)


# Those that users' functions don't make are known by their members alone: their rooms are opened by their verbs.
Transform = Map | BatchMap | Stacker | Selector
