"""Origins: the rows that rows of a source are made of, in the sources below it that have no children.

Two windows that overlap, two chunks of a document, or a row and its augmented copy have origins in common. A split must
put such rows on one side.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, final

import numpy as np

from loadax.protocols import Integers, Visits
from loadax.sources.base import BaseSource, Below, walk


class SharedRow(NamedTuple):
    """A row that two parts have in common.

    Args:
        row: The row.
        source: Its source.
        parts: Numbers of the two parts.
        rows: A row of each part that is made of it.
    """

    row: int
    source: BaseSource
    parts: tuple[int, int]
    rows: tuple[int, int]


def origins(source: BaseSource, visits: Visits) -> Iterator[Below]:
    """Visits of the sources without children that visits of a source are made of."""
    pending = [Below(source, np.arange(len(visits.rows)), visits)]
    while pending:
        above = pending.pop()
        if above.source.children:
            below = above.source.visits_below(above.visits)
        else:
            below = []
        if not below:
            yield above
        pending += [each._replace(asked=above.asked[each.asked]) for each in below]


def identities(source: BaseSource, files: bool = False) -> set[Any]:
    """Identities of a source without children: of the object, of its arrays in memory, and of its files if asked for.

    Two sources with the same number of rows and an identity in common have the same rows.
    """
    arrays = source.memory or ()
    memory = {
        (array.__array_interface__["data"][0], array.strides)
        for array in arrays
        if array.size
    }
    return {id(source), *memory, *(source.addresses if files else ())}


def have_common_origins(sources: Sequence[BaseSource]) -> bool:
    """Whether two sources may be made of the same rows."""
    known: set[Any] = set()
    for source in sources:
        own = {
            (len(leaf), identity)
            for leaf in walk(source)
            if not leaf.children
            for identity in identities(leaf)
        }
        if known & own:
            return True
        known |= own
    return False


@final
class SourceNumbers:
    """Numbers of sources without children, from 0; those of the same rows have the same one.

    Args:
        files: Whether sources of the same files are the same.
    """

    def __init__(self, files: bool = False):
        self._files = files
        self._known: dict[tuple[int, Any], int] = {}
        self.sources: list[BaseSource] = []

    def __call__(self, source: BaseSource) -> int:
        """The number of a source."""
        keys = [
            (len(source), identity) for identity in identities(source, self._files)
        ]
        number = next(
            (self._known[key] for key in keys if key in self._known),
            len(self.sources),
        )
        if number == len(self.sources):
            self.sources.append(source)
        self._known.update((key, number) for key in keys)
        return number


@final
class Owners:
    """The part that each row of the sources below belongs to, and a row of the part.

    Args:
        files: Whether sources of the same files are the same.
    """

    def __init__(self, files: bool = False):
        self.numbers = SourceNumbers(files)
        # Part and row, plus one: pages of zeros take no memory until they are written to.
        self._owners: list[tuple[Integers, Integers]] = []

    def add(
        self, source: BaseSource, parts: Integers, visits: Visits
    ) -> SharedRow | None:
        """Adds rows of parts.

        Args:
            source: Source of the rows.
            parts: Part of each row, int64[n].
            visits: The rows.

        Returns:
            A row below that two parts have in common; None if there is none so far.
        """
        for below in origins(source, visits):
            part, above = self._owners_of(below.source)
            rows = below.visits.rows
            own = parts[below.asked] + 1
            earlier = part[rows], above[rows]
            part[rows], above[rows] = own, visits.rows[below.asked] + 1
            # Rows that are here several times have the part that was written last.
            for its_part, its_row in (earlier, (part[rows], above[rows])):
                shared = np.flatnonzero((its_part > 0) & (its_part != own))
                if len(shared):
                    at = int(shared[0])
                    pair = int(its_part[at]) - 1, int(own[at]) - 1
                    made = int(its_row[at]) - 1, int(visits.rows[below.asked[at]])
                    return SharedRow(int(rows[at]), below.source, pair, made)
        return None

    def _owners_of(self, source: BaseSource) -> tuple[Integers, Integers]:
        number = self.numbers(source)
        if number == len(self._owners):
            self._owners.append(
                (np.zeros(len(source), np.int64), np.zeros(len(source), np.int64))
            )
        return self._owners[number]


def first_shared(
    source: BaseSource, batches: Iterable[tuple[Integers, Visits]]
) -> SharedRow | None:
    """The first row below that two parts of the rows of a source have in common; None if there is none.

    Args:
        source: Source of the rows.
        batches: Part of each row, int64[n], and the rows.
    """
    owners = Owners()
    found = (owners.add(source, parts, visits) for parts, visits in batches)
    return next((shared for shared in found if shared is not None), None)


def first_shared_of(
    parts: Sequence[tuple[BaseSource, Iterable[tuple[Integers, Visits]]]],
) -> SharedRow | None:
    """The first row below that two parts have in common; None if there is none.

    Args:
        parts: Source of each part, and batches of positions and visits of it.
    """
    owners = Owners()
    for part, (source, batches) in enumerate(parts):
        for positions, visits in batches:
            shared = owners.add(source, np.full_like(positions, part), visits)
            if shared is not None:
                return shared
    return None


def largest_distance(
    source: BaseSource, batches: Iterable[tuple[Integers, Visits]]
) -> int:
    """Largest distance of two positions whose rows have a row below in common.

    Args:
        source: Source of the rows.
        batches: Ascending positions, int64[n], and their rows.
    """
    numbers = SourceNumbers()
    firsts: list[Integers] = []
    largest = 0
    for positions, visits in batches:
        for below in origins(source, visits):
            number = numbers(below.source)
            if number == len(firsts):
                firsts.append(np.zeros(len(below.source), np.int64))
            first = firsts[number]
            rows = below.visits.rows
            at = positions[below.asked] + 1
            new = np.flatnonzero(first[rows] == 0)[::-1]
            # the first position is written last
            order = np.argsort(-at[new], kind="stable")
            first[rows[new[order]]] = at[new[order]]
            largest = max(largest, int((at - first[rows]).max(initial=0)))
    return largest
