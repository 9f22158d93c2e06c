"""Checks of the whole contract of a source, and of a batch map, which must treat each row by itself."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from loadax.core.arguments import function, integer
from loadax.core.formatting import count_text, name_of
from loadax.core.tree import flatten
from loadax.errors import ArgumentError
from loadax.io import as_dataset
from loadax.protocols import Integers, Tree, Visits
from loadax.sources.arrays import ArraySource
from loadax.testing.laws import Law, difference, show_rows
from loadax.testing.read_laws import (
    EXAMPLES,
    check_claims,
    check_columns,
    check_reads,
    check_wrapper,
)
from loadax.testing.subject import LENGTH, Subject
from loadax.testing.workers import check_process, check_threads
from loadax.transforms import BatchMap

ROWS = Law(
    "each row by itself",
    "map_batch gets any rows of a step, and must return as many; each row's result "
    "must depend on that row alone (and on its generator, with rng=True); operations "
    "across rows belong in the jitted step",
)
STAY = Law(
    "results stay",
    "a map must not write to its earlier results: allocate a new array in every call",
)


def check_source(
    source: Any,
    *,
    seed: int = 0,
    rows: int = 64,
    loader: bool = True,
    pickled: bool = True,
    timeout: float = 60.0,
) -> None:
    """Checks all laws of the contract of `loadax.Source`. Call it in your tests.

    It reads rows in many ways and compares them bitwise with the same rows read one by one. Test yourself that those
    values are right.

    Args:
        source: Source, or anything else that `loadax.Dataloader` accepts: arrays, an object with `__len__` and
            `__getitem__`, a `Dataset`. For a dataset, its source is checked, and runs through a loader include its
            order and maps.
        seed: Seed of all random choices.
        rows: Number of different rows to read: the first, the last, and some between. Their values are kept in memory.
        loader: Whether to check runs through a `Dataloader` too: resumed, with other workers, in shards.
        pickled: Whether to check that the source can be pickled and reads the same in a fresh process.
        timeout: Timeout in seconds of the threads, the fresh process and the runs each; a hang is an error.

    Raises:
        ConformanceError: When a law is broken; shows the rows, the leaf and both values, and states the contract.
        ArgumentError: When an argument is invalid.

    Examples:
        >>> import numpy as np
        >>> from loadax.testing import check_source
        >>> class Squares:
        ...     spec = np.zeros((), np.int32)
        ...
        ...     def __len__(self):
        ...         return 10
        ...
        ...     def read(self, rows):
        ...         return np.arange(10, dtype=np.int32)[rows] ** 2
        >>> check_source({"x": np.arange(20.0)})
        >>> check_source(Squares(), pickled=False)
        Traceback (most recent call last):
        ...
        loadax.errors.ConformanceError: Squares breaks the law 'rows out of range': read([-1]), with len() 10, ...
    """
    integer("rows", rows, 1)
    if timeout <= 0:
        raise ArgumentError(f"timeout={timeout}: pass seconds, more than 0")
    dataset = as_dataset(source)
    subject = Subject(dataset.source, seed, rows)
    check_claims(subject)
    if subject.alike:  # other rows can only be read one by one
        check_reads(subject)
        check_columns(subject)
        check_threads(subject, timeout)
        if pickled:
            check_process(subject, timeout)
    for some in (
        subject.sample,
        subject.sample[::-1].copy(),
        subject.draw(len(subject.sample) + 2),
    ):
        subject.check_examples(subject.source, some, EXAMPLES, "in read_examples")
    check_wrapper(subject)
    if loader:
        from loadax.testing.runs import check_runs

        check_runs(subject, dataset, seed, rows, timeout)
    if (after := subject.measure()) != subject.length:
        raise LENGTH.broken(
            subject.name,
            f"len() was {subject.length} at first, but {after} after some reads",
        )


def check_map(
    fn: Callable[..., Tree],
    examples: Tree,
    *,
    rng: bool = False,
    seed: int = 0,
    rtol: float = 0.0,
    with_index: bool = False,
    with_epoch: bool = False,
) -> None:
    """Checks that a function for `Dataset.map_batch` treats each row independently.

    Cutting the batch and permuting its rows must not change the results.

    Args:
        fn: Function of a tree of arrays, rows first, that returns one with as many rows. It may write to its input.
        examples: Tree of arrays with at least two rows, as diverse as possible.
        rng: Whether `fn` also takes a list of generators, one per row.
        seed: Seed of the generators, and of the cuts.
        rtol: Relative tolerance of floating-point results. 0: bitwise equality; NaN equals NaN.
        with_index: Whether `fn` also takes the row numbers, int64[n].
        with_epoch: Whether `fn` also takes the epochs, int64[n].

    Raises:
        ConformanceError: When a law is broken; shows the rows, the leaf and both values.
        ArgumentError: When `fn` is not callable, or there are fewer than two rows.
        SourceError: When `examples` are not arrays with equally many rows.

    Examples:
        >>> import numpy as np
        >>> from loadax.testing import check_map
        >>> examples = {"x": np.array([[1.0, 2.0], [3.0, 5.0]])}
        >>> check_map(lambda batch: {"x": batch["x"] / 255}, examples)
        >>> check_map(lambda batch: {"x": batch["x"] / batch["x"].max()}, examples)
        Traceback (most recent call last):
        ...
        loadax.errors.ConformanceError: <lambda> ... breaks the law 'each row by itself': ...
    """
    given = *["rows"] * with_index, *["epochs"] * with_epoch, *["rng"] * rng
    function("fn", fn, "a function of a batch", "batch", *given)
    source = ArraySource(examples)
    name = name_of(fn)
    count = len(source)
    if count < 2:
        raise ArgumentError(
            f"examples has rows: {count}; pass two or more, which can be cut and "
            "permuted"
        )
    mapping = BatchMap(fn, rng, seed, 0, None, with_index, with_epoch)

    def call(rows: Integers) -> Any:
        # A new read for each call, because a map may write to its input.
        return flatten(
            mapping.raw(source.read(rows), Visits(rows, np.zeros_like(rows)))
        )

    every = np.arange(count)
    # an exception of this call is the function's own, not a broken law
    first, structure = call(every)
    whole = [np.array(leaf) for leaf in first]
    for path, leaf in zip(structure.paths, whole, strict=True):
        if leaf.shape[:1] != (count,):
            raise ROWS.broken(
                name,
                f"for {count_text(count, 'row')} it returned leaf {path or 'given'} "
                f"of shape {list(leaf.shape)}",
            )
    for rows in _pieces(every, np.random.default_rng(seed)):
        called = f"called with the rows {show_rows(rows)}"
        with ROWS.during(name, f"it was {called}, which"):
            leaves, its_structure = call(rows)
        if its_structure != structure:
            raise ROWS.broken(
                name,
                f"{called} it returned the leaves {its_structure.paths}, else "
                f"{structure.paths}",
            )
        expected = [leaf[rows] for leaf in whole]
        mismatch = difference(
            list(map(np.asarray, leaves)), expected, structure.paths, rows, rtol
        )
        if mismatch:
            raise ROWS.broken(name, f"{called}, {mismatch}, its value among all rows")
    mismatch = difference(list(map(np.asarray, first)), whole, structure.paths, every)
    if mismatch:
        raise STAY.broken(
            name, f"after later calls, in the first call's result {mismatch}"
        )


def _pieces(every: Integers, random: np.random.Generator) -> Iterator[Integers]:
    """All rows again, single ones, those of cuts, permutations, and repeated ones."""
    yield from (every, every[:1], every[-1:])
    for _ in range(4):
        number = min(len(every) - 1, int(random.integers(1, 4)))
        yield from np.split(
            every, np.sort(random.choice(every[1:], number, replace=False))
        )
        yield random.permutation(every)
    yield random.choice(every, len(every) + 1)
