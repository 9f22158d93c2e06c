"""A source under test: what it is known to hold, and reads that are watched."""

from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from loadax.core.spec import check_batch, flatten_spec, spec_of
from loadax.core.tree import flatten
from loadax.errors import LeafError
from loadax.protocols import Integers, Tree, Visits
from loadax.reader import Reader
from loadax.sources.base import BaseSource
from loadax.testing.comparison import difference
from loadax.testing.laws import Law, show_rows

LENGTH = Law("length", "len() must always give the same int, 1 or more, since orders and steps follow from it")
SPEC = Law(
    "spec", "read([row]) must give a tree of arrays with one row, of the structure, shapes and dtypes that spec states"
)
ROWS_STAY = Law("rows stay as they are", "a source must not write to the rows it is given: copy them first")


@final
class Subject:
    """Source under test, and the expected values of a sample of its rows, each read separately.

    Args:
        source: Source under test.
        name: Name in messages.
        seed: Seed of all random choices.
        rows: Maximum number of rows in the sample: the first, the last, and some between.
    """

    def __init__(self, source: BaseSource, name: str, seed: int, rows: int):
        self.source = source
        self.name = name
        self.random = np.random.default_rng(seed)
        self.length = measure(source, name)
        self.spec = self._find_spec()
        self.leaves, self.structure = flatten_spec(self.spec)
        self.sample = self._choose(rows)
        self.structures = dict.fromkeys(self.sample.tolist(), self.structure)
        self.alike = not source.traits.reads_examples or self._alike()
        """Whether the rows of the sample can be stacked."""
        if self.alike:
            self._known = {
                int(row): [np.array(leaf) for leaf in self.read(np.array([row]), SPEC)] for row in self.sample
            }

    @property
    def paths(self) -> list[str]:
        """Paths of the leaves."""
        return self.structure.paths

    def read(self, rows: Integers, law: Law) -> list[NDArray[Any]]:
        """Leaves of `source.read(rows)`, checked against the spec; any error breaks `law`."""
        asked = rows.copy()
        shown = f"read({show_rows(asked)})"
        with law.during(self.name, shown):
            batch = self.source.read(rows)
        if not np.array_equal(rows, asked):
            raise ROWS_STAY.broken(self.name, f"{shown} changed them to {show_rows(rows)}")
        try:
            return flatten(check_batch(batch, len(asked), self.spec, shown))[0]
        except LeafError as error:
            raise law.broken(self.name, str(error)) from error

    def expected(self, rows: Integers) -> list[NDArray[Any]]:
        """Expected leaves of `read(rows)`, for rows of the sample."""
        known = [self._known[int(row)] for row in rows]
        return [np.concatenate(leaves) for leaves in zip(*known, strict=True)]

    def compare(self, got: list[NDArray[Any]], rows: Integers, law: Law, method: str = "read") -> None:
        """Checks that `got` are the expected leaves of `rows`."""
        paths = self.structures[int(rows[0])].paths if len(rows) else self.paths
        mismatch = difference(got, self.expected(rows), paths, rows)
        if mismatch:
            raise law.broken(
                self.name, f"in {method}({show_rows(rows)}) {mismatch}, the value of that row when it is read alone"
            )

    def draw(self, count: int) -> Integers:
        """Rows of the sample in random order, with repeats."""
        return self.random.choice(self.sample, count)

    def _alike(self) -> bool:
        """Whether all rows have one structure, shape and dtype; if not, records the expected leaves of each."""
        with SPEC.during(self.name, f"examples({show_rows(self.sample)})"):
            examples = self.source.read_examples(Visits(self.sample, np.zeros_like(self.sample)))
        flattened = [flatten(example) for example in examples]
        forms = [[_form(leaf) for leaf in leaves] for leaves, _ in flattened]
        if all(structure == self.structure for _, structure in flattened) and all(form == forms[0] for form in forms):
            return True
        rows = self.sample.tolist()
        self._known = {
            row: [np.array(leaf)[None] for leaf in leaves] for row, (leaves, _) in zip(rows, flattened, strict=True)
        }
        self.structures = {row: structure for row, (_, structure) in zip(rows, flattened, strict=True)}
        return False

    def _find_spec(self) -> Tree:
        first = Visits(np.zeros(1, np.int64), np.zeros(1, np.int64))
        with SPEC.during(self.name, "finding it"):
            if self.source.traits.reads_examples and self.source.spec is None:
                spec = spec_of(self.source.read_examples(first)[0])
            else:
                spec = Reader(self.source, (), first).spec
        return spec

    def _choose(self, count: int) -> Integers:
        """The first and the last rows, contiguous as for a sequential reader, and random ones between, ascending."""
        if self.length <= count:
            return np.arange(self.length, dtype=np.int64)
        edge = max(1, count // 4)
        ends = np.concatenate([np.arange(edge), np.arange(self.length - edge, self.length)])
        return np.unique(np.concatenate([ends, self.random.integers(0, self.length, max(0, count - 2 * edge))])).astype(
            np.int64
        )


def _form(leaf: Any) -> Any:
    """Shape and kind of dtype, which must be equal to stack leaves."""
    dtype = np.asarray(leaf).dtype
    return np.shape(leaf), "object" if dtype.kind in "OSU" else dtype.newbyteorder("=")


def measure(items: Any, name: str) -> int:
    """`len(items)`; raises unless it is the same int, 1 or more, each time."""
    with LENGTH.during(name, "len()"):
        lengths = [len(items) for _ in range(3)]
    if len(set(lengths)) > 1 or lengths[0] < 1:
        raise LENGTH.broken(name, f"three calls of len() returned {lengths}")
    return lengths[0]
