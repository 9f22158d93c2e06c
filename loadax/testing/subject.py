"""A source under test: what it is known to hold, and reads that are watched."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import final

import numpy as np

from loadax.core.formatting import count_text
from loadax.core.spec import check_batch, flatten_spec, spec_or_object, stack
from loadax.core.tree import Structure, flatten
from loadax.errors import LeafError
from loadax.protocols import Array, Integers, Tree, Visits
from loadax.reader import Reader
from loadax.sources.base import BaseSource
from loadax.testing.laws import Law, difference, show_rows

LENGTH = Law(
    "length",
    "len() must always give the same int, 1 or more, since orders and steps follow "
    "from it",
)
SPEC = Law(
    "spec",
    "read([row]) must give a tree of arrays with one row, of the structure, shapes "
    "and dtypes that spec states",
)
ROWS_STAY = Law(
    "rows stay as they are",
    "a source must not write to the rows it is given: copy them first",
)

Leaves = Sequence[Array]


@final
class Subject:
    """Source under test, and the expected values of a sample of its rows, each read separately.

    Args:
        source: Source under test.
        seed: Seed of all random choices.
        rows: Maximum number of rows in the sample: the first, the last, and some between.
    """

    def __init__(self, source: BaseSource, seed: int, rows: int):
        self.source = source
        self.name = source.type_name
        self.random = np.random.default_rng(seed)
        self.length = self.measure()
        with SPEC.during(self.name, "finding it"):
            self.spec = Reader(
                source, (), Visits(np.zeros(1, np.int64), np.zeros(1, np.int64))
            ).spec
        self.leaves, self.structure = flatten_spec(self.spec)
        self.sample = self._choose(rows)
        self._known: dict[int, tuple[Leaves, Structure]] = {}
        # Whether the rows of the sample can be stacked.
        self.alike = not source.traits.reads_examples
        if not self.alike:
            self._known = dict(
                zip(
                    self.sample.tolist(),
                    self.examples(source, self.sample, SPEC),
                    strict=True,
                )
            )
            forms = [
                (one, [(leaf.shape, leaf.dtype) for leaf in leaves])
                for leaves, one in self._known.values()
            ]
            self.alike = all(form == (self.structure, forms[0][1]) for form in forms)
        if self.alike:
            for row in self.sample.tolist():
                self._known[row] = (
                    list(map(np.array, self.read(np.array([row]), SPEC))),
                    self.structure,
                )

    def read(
        self, rows: Integers, law: Law, read: Callable[[Integers], Tree] | None = None
    ) -> Leaves:
        """Leaves of `read(rows)`, by default of the source's, checked against the spec; any error breaks `law`."""
        with self.watched(rows, law, "read") as (asked, shown):
            batch = (read or self.source.read)(asked)
        try:
            return flatten(check_batch(batch, len(rows), self.spec, shown))[0]
        except LeafError as error:
            raise law.broken(self.name, str(error)) from error

    @contextmanager
    def watched(
        self, rows: Integers, law: Law, method: str
    ) -> Iterator[tuple[Integers, str]]:
        """Copy of the rows for a read, and its text; checks that the read neither fails nor writes to them."""
        asked = rows.copy()
        shown = f"{method}({show_rows(rows)})"
        with law.during(self.name, shown):
            yield asked, shown
        if not np.array_equal(rows, asked):
            raise ROWS_STAY.broken(
                self.name, f"{shown} changed them to {show_rows(asked)}"
            )

    def compare(self, got: Leaves, rows: Integers, law: Law, how: str) -> None:
        """Checks that `got` are the expected leaves of `rows`."""
        if len(rows):
            structure = self._known[rows.tolist()[0]][1]
        else:
            structure = self.structure
        mismatch = difference(got, self.expected(rows), structure.paths, rows)
        if mismatch:
            raise law.broken(
                self.name,
                f"{how} {mismatch}, the value of that row when it is read alone",
            )

    def expected(self, rows: Integers) -> Leaves:
        """Expected leaves of `read(rows)`, for rows of the sample."""
        known = [self._known[row][0] for row in rows.tolist()] or [
            [leaf[:0] for leaf in self._known[0][0]]
        ]
        return [np.concatenate(leaves) for leaves in zip(*known, strict=True)]

    def examples(
        self, source: BaseSource, rows: Integers, law: Law
    ) -> list[tuple[Leaves, Structure]]:
        """Rows that are read one by one, each as a batch of one row. Writes to them, which later reads must not see."""
        batches: list[tuple[Leaves, Structure]] = []
        with self.watched(rows, law, "examples") as (asked, shown):
            examples = source.read_examples(Visits(asked, np.zeros_like(rows)))
            if len(examples) != len(rows):
                raise law.broken(
                    self.name,
                    f"{shown} gave {count_text(len(examples), 'example')} for "
                    f"{count_text(len(rows), 'row')}",
                )
            for row, example in zip(rows.tolist(), examples, strict=True):
                batches.append(
                    flatten(stack([example], spec_or_object(example), [row]))
                )
                # written to once their values are known
                for leaf in flatten(example)[0] if self._known else ():
                    if isinstance(leaf, np.ndarray) and not leaf.dtype.hasobject:
                        leaf[...] = np.zeros((), leaf.dtype)
        return batches

    def check_examples(
        self, source: BaseSource, rows: Integers, law: Law, how: str
    ) -> None:
        """Checks that rows of a source that are read one by one are the expected ones."""
        for row, (leaves, structure) in zip(
            rows.tolist(), self.examples(source, rows, law), strict=True
        ):
            known = self._known[row][1]
            if structure == known:
                self.compare(leaves, np.array([row]), law, how)
            elif not any(
                leaf.dtype.hasobject for leaf in self.leaves
            ):  # an object may be a container with leaves
                raise law.broken(
                    self.name,
                    f"{how} row {row} has the leaves {structure.paths}, not "
                    f"{known.paths}",
                )

    def draw(self, count: int) -> Integers:
        """Rows of the sample in random order, with repeats."""
        return self.random.choice(self.sample, count)

    def _choose(self, count: int) -> Integers:
        """The first and the last rows, contiguous as for a sequential reader, and random ones between, ascending."""
        if self.length <= count:
            return np.arange(self.length)
        edge = max(1, count // 4)
        between = self.random.integers(0, self.length, max(0, count - 2 * edge))
        return np.unique(
            np.concatenate(
                [np.arange(edge), np.arange(self.length - edge, self.length), between]
            )
        )

    def measure(self) -> int:
        """The length of the source; raises unless it is the same int, 1 or more, each time."""
        with LENGTH.during(self.name, "len()"):
            lengths = [len(self.source) for _ in range(3)]
        if len(set(lengths)) > 1 or lengths[0] < 1:
            raise LENGTH.broken(self.name, f"three calls of len() returned {lengths}")
        return lengths[0]
