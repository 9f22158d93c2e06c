"""`check_map`: whether a function of many rows acts on each row by itself."""

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
    "map_batch gets some rows of some step, so each row's result must follow from that row alone; "
    "what mixes rows belongs in the jitted step"
)
COUNT = Law("as many rows", "the first dimension of every leaf that a map returns must be that of what it got")
AGAIN = Law(
    "the same again",
    "a map must give the same for the same rows: what is random must come from the generators of rng=True",
)
ONE = Law("one row", _ALONE)
CUT = Law("cutting changes nothing", _ALONE)
PERMUTED = Law("permuting changes nothing", _ALONE)
REPEATED = Law("repeated rows", _ALONE)
STAY = Law("results stay", "a map must not write to what it returned before: allocate its result anew")

_CUTS = 4
_PERMUTATIONS = 4


def check_map(fn: Callable[..., Tree], examples: Tree, *, rng: bool = False, seed: int = 0, rtol: float = 0.0) -> None:
    """Checks that a function for `Dataset.map_batch` acts on each row by itself.

    Cutting and permuting rows changes nothing.

    Args:
        fn: Function of a tree of arrays, rows first, that returns one with as many rows. It may write to its input.
        examples: Tree of arrays with two rows or more, as different as rows can be.
        rng: Whether `fn` gets a list of generators too, one a row.
        seed: Seed of those, and of the cuts.
        rtol: Relative tolerance of floating-point results. 0: bit by bit; NaN equals NaN.

    Raises:
        ConformanceError: when a law is broken; names it, shows the rows, the leaf and both values.
        ArgumentError: when `fn` can't be called or there are fewer than two rows.
        SourceError: when `examples` are no arrays of equally many rows.

    Examples:
        >>> import numpy as np
        >>> examples = {"x": np.array([[1.0, 2.0], [3.0, 5.0]])}
        >>> check_map(lambda batch: {"x": batch["x"] / 255}, examples)
        >>> check_map(lambda batch: {"x": batch["x"] / batch["x"].max()}, examples)
        Traceback (most recent call last):
        ...
        loadax.errors.ConformanceError: <lambda> ... breaks the law 'one row': ...
    """
    function("fn", fn, "a function of a batch")
    source = ArraySource(examples)
    count = len(source)
    if count < 2:
        raise ArgumentError(
            f"examples has rows: {count}; pass two or more, so that there is something to cut and permute"
        )
    check = _Check(BatchMap(fn, rng, seed, 0, None, elementwise=False), source, rtol)
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
    """A map, what it made of all rows at once, and comparisons with that."""

    def __init__(self, function: BatchMap, source: ArraySource, rtol: float):
        self._map = function
        self._name = name_of(function.function)
        self._source = source
        self._rtol = rtol
        self._every = np.arange(len(source), dtype=np.int64)
        # The first call's exception is the function's own: it is not about cutting.
        first, self._structure = flatten(self._call(self._every))
        self._first = [np.asarray(leaf) for leaf in first]
        self._whole = [np.array(leaf) for leaf in first]
        self._counted(self._whole, self._every)

    def same(self, law: Law, *pieces: Integers) -> None:
        """The results for the rows of each piece must be what they are within the whole."""
        for rows in pieces:
            expected = [leaf[rows] for leaf in self._whole]
            found = difference(self._result(law, rows), expected, self._structure.paths, rows, self._rtol)
            if found:
                raise law.broken(
                    self._name, f"called with the rows {show_rows(rows)}, {found}, which is what it was among all rows"
                )

    def stays(self) -> None:
        """What the first call returned must not have been changed by the later ones."""
        found = difference(self._first, self._whole, self._structure.paths, self._every)
        if found:
            raise STAY.broken(self._name, f"after later calls, in what the first one returned {found}")

    def _call(self, rows: Integers) -> Tree:
        # Read anew each time: a map may write to what it gets.
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
