"""`check_map`: checks that a batch map treats each row independently."""

from collections.abc import Callable
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from loadax.core.arguments import function
from loadax.core.formatting import name_of
from loadax.core.tree import flatten
from loadax.errors import ArgumentError
from loadax.protocols import Integers, Tree, Visits
from loadax.sources.arrays import ArraySource
from loadax.testing.comparison import difference
from loadax.testing.laws import Law, show_rows
from loadax.transforms import BatchMap

_ALONE = (
    "map_batch gets any rows of a step, so each row's result must depend on that row alone; "
    "operations across rows belong in the jitted step"
)
COUNT = Law("as many rows", "every leaf that a map returns must have as many rows as its input")
AGAIN = Law(
    "the same again",
    "a map must give the same for the same rows: draw random numbers from the generators of rng=True only",
)
ONE = Law("one row", _ALONE)
CUT = Law("cutting changes nothing", _ALONE)
PERMUTED = Law("permuting changes nothing", _ALONE)
REPEATED = Law("repeated rows", _ALONE)
STAY = Law("results stay", "a map must not write to its earlier results: allocate a new array in every call")

_CUTS = 4
_PERMUTATIONS = 4


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
        loadax.errors.ConformanceError: <lambda> ... breaks the law 'one row': ...
    """
    function("fn", fn, "a function of a batch", "batch", *["rows"] * with_index, *["rng"] * rng)
    source = ArraySource(examples)
    count = len(source)
    if count < 2:
        raise ArgumentError(f"examples has rows: {count}; pass two or more, which can be cut and permuted")
    check = _Check(BatchMap(fn, rng, seed, 0, None, False, with_index), source, rtol)
    random = np.random.default_rng(seed)
    every = np.arange(count, dtype=np.int64)
    check.same(AGAIN, every)
    for row in (0, count - 1):
        check.same(ONE, every[row : row + 1])
    for _ in range(_CUTS):
        cuts = np.sort(random.choice(np.arange(1, count), min(count - 1, int(random.integers(1, 4))), replace=False))
        check.same(CUT, *np.split(every, cuts))
    for _ in range(_PERMUTATIONS):
        check.same(PERMUTED, random.permutation(every))
    check.same(REPEATED, random.choice(every, count + 1))
    check.stays()


@final
class _Check:
    """Compares results of a map for some rows with its result for all rows at once."""

    def __init__(self, function: BatchMap, source: ArraySource, rtol: float):
        self._map = function
        self._name = name_of(function.function)
        self._source = source
        self._rtol = rtol
        self._every = np.arange(len(source), dtype=np.int64)
        # An exception of the first call is the function's own, not a broken law.
        first, self._structure = flatten(self._call(self._every))
        self._first = [np.asarray(leaf) for leaf in first]
        self._whole = [np.array(leaf) for leaf in first]
        self._counted(self._whole, self._every)

    def same(self, law: Law, *pieces: Integers) -> None:
        """Checks that each piece's results equal those of the same rows in the whole batch."""
        for rows in pieces:
            expected = [leaf[rows] for leaf in self._whole]
            mismatch = difference(self._result(law, rows), expected, self._structure.paths, rows, self._rtol)
            if mismatch:
                raise law.broken(
                    self._name, f"called with the rows {show_rows(rows)}, {mismatch}, its value among all rows"
                )

    def stays(self) -> None:
        """Checks that later calls did not change the first call's result."""
        mismatch = difference(self._first, self._whole, self._structure.paths, self._every)
        if mismatch:
            raise STAY.broken(self._name, f"after later calls, in the first call's result {mismatch}")

    def _call(self, rows: Integers) -> Tree:
        # A new read for each call, because a map may write to its input.
        return self._map.raw(self._source.read(rows), Visits(rows, np.zeros_like(rows)))

    def _result(self, law: Law, rows: Integers) -> list[NDArray[Any]]:
        with law.during(self._name, f"the rows {show_rows(rows)} alone"):
            leaves, structure = flatten(self._call(rows))
        if structure != self._structure:
            raise law.broken(
                self._name,
                f"for the rows {show_rows(rows)} it returned the leaves {structure.paths}, for all rows "
                f"{self._structure.paths}",
            )
        arrays = [np.asarray(leaf) for leaf in leaves]
        self._counted(arrays, rows)
        return arrays

    def _counted(self, leaves: list[NDArray[Any]], rows: Integers) -> None:
        for path, leaf in zip(self._structure.paths, leaves, strict=True):
            if leaf.shape[:1] != (len(rows),):
                raise COUNT.broken(
                    self._name, f"for {len(rows)} rows it returned leaf {path or 'given'} of shape {list(leaf.shape)}"
                )
