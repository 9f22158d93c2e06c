"""`check_map`: checks that a batch map treats each row independently."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from loadax.core.arguments import function
from loadax.core.formatting import name_of
from loadax.core.tree import flatten
from loadax.errors import ArgumentError
from loadax.protocols import Integers, Tree, Visits
from loadax.sources.arrays import ArraySource
from loadax.testing.comparison import difference
from loadax.testing.laws import Law, show_rows
from loadax.transforms import BatchMap

COUNT = Law("as many rows", "every leaf that a map returns must have as many rows as its input")
ROWS = Law(
    "each row by itself",
    "map_batch gets any rows of a step, so each row's result must depend on that row alone (and on its generator, with "
    "rng=True); operations across rows belong in the jitted step",
)
STAY = Law("results stay", "a map must not write to its earlier results: allocate a new array in every call")

_TRIALS = 4  # cuts, and permutations


def check_map(
    fn: Callable[..., Tree],
    examples: Tree,
    *,
    rng: bool = False,
    seed: int = 0,
    rtol: float = 0.0,
    with_index: bool = False,
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
    function("fn", fn, "a function of a batch", "batch", *["rows"] * with_index, *["rng"] * rng)
    source, name = ArraySource(examples), name_of(fn)
    count = len(source)
    if count < 2:
        raise ArgumentError(f"examples has rows: {count}; pass two or more, which can be cut and permuted")
    mapping = BatchMap(fn, rng, seed, 0, None, False, with_index)

    def call(rows: Integers) -> Any:
        # A new read for each call, because a map may write to its input.
        return flatten(mapping.raw(source.read(rows), Visits(rows, np.zeros_like(rows))))

    every = np.arange(count)
    first, structure = call(every)  # an exception of this call is the function's own, not a broken law
    whole = [np.array(leaf) for leaf in first]
    for path, leaf in zip(structure.paths, whole, strict=True):
        if leaf.shape[:1] != (count,):
            raise COUNT.broken(name, f"for {count} rows it returned leaf {path or 'given'} of shape {list(leaf.shape)}")
    for rows in _pieces(every, np.random.default_rng(seed)):
        called = f"called with the rows {show_rows(rows)}"
        with ROWS.during(name, f"it was {called}, which"):
            leaves, its_structure = call(rows)
        if its_structure != structure:
            raise ROWS.broken(name, f"{called} it returned the leaves {its_structure.paths}, else {structure.paths}")
        expected = [leaf[rows] for leaf in whole]
        mismatch = difference(list(map(np.asarray, leaves)), expected, structure.paths, rows, rtol)
        if mismatch:
            raise ROWS.broken(name, f"{called}, {mismatch}, its value among all rows")
    mismatch = difference(list(map(np.asarray, first)), whole, structure.paths, every)
    if mismatch:
        raise STAY.broken(name, f"after later calls, in the first call's result {mismatch}")


def _pieces(every: Integers, random: np.random.Generator) -> Iterator[Integers]:
    """All rows again, single ones, those of cuts, permutations, and repeated ones."""
    yield from (every, every[:1], every[-1:])
    for _ in range(_TRIALS):
        number = min(len(every) - 1, int(random.integers(1, 4)))
        yield from np.split(every, np.sort(random.choice(every[1:], number, replace=False)))
        yield random.permutation(every)
    yield random.choice(every, len(every) + 1)
