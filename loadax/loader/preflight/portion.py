"""Portion: the distinct rows of a run that one reader reads. Does not import JAX, so that workers can use it."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from loadax.errors import ArgumentError
from loadax.loader.batch_spec import BatchLeaf
from loadax.protocols import Integers, Visits
from loadax.reader import Reader
from loadax.sources.base import BaseSource

# A visit is one number, `row << EPOCH_BITS | epoch`, so that sorting and comparing visits is that of numbers.
EPOCH_BITS = 24
_EPOCH = (1 << EPOCH_BITS) - 1
_MOST_REPEATED = 1 << 22  # numbers that are gathered before repeated ones are dropped


class Part(NamedTuple):
    """Rows of one source in a mixture or concatenation.

    Args:
        name: Its name as in `trace`; "" if the dataset has no parts.
        source: Its source.
        first_row: Row of the dataset that is its row 0.
        by_epoch: Whether a row may have other values in another epoch.
    """

    name: str
    source: BaseSource
    first_row: int
    by_epoch: bool


def parts_of(reader: Reader) -> tuple[Part, ...]:
    """The sources whose rows are rows of a reader, by first row."""
    return tuple(_parts("", reader.source, 0, _is_random(reader.maps)))


def _is_random(maps: Iterable[Any]) -> bool:
    return any(each.rng or each.with_epoch for each in maps)


def _parts(
    name: str,
    source: BaseSource,
    first_row: int,
    by_epoch: bool,
) -> Iterator[Part]:
    inner = [child for child in source.children if child.first_row is not None]
    own = source.traits.random or source.traits.own_epochs
    if not inner:
        yield Part(name, source, first_row, by_epoch or own)
        return
    below = [
        child.source.traits.random
        or child.source.traits.own_epochs
        or _is_random(child.maps)
        for child in inner
    ]
    # the source itself draws random numbers, not what it reads from
    by_epoch = by_epoch or (own and not any(below))
    for child in inner:
        assert child.first_row is not None
        yield from _parts(
            "/".join(filter(None, (name, child.name))),
            child.source,
            first_row + child.first_row,
            by_epoch or _is_random(child.maps),
        )


@final
class DistinctVisits:
    """Gathers the visits of some steps, each once.

    A row whose values are the same in every epoch counts as one visit, of epoch 0.

    Args:
        parts: Parts of the rows.
        num_rows: Number of rows.

    Attributes:
        counts: Number of visits that were added of each part, repeated ones included: int64[parts].
    """

    def __init__(self, parts: Sequence[Part], num_rows: int):
        self.counts = np.zeros(len(parts), np.int64)
        self._firsts = np.array([part.first_row for part in parts], np.int64)
        self._by_epoch = np.array([part.by_epoch for part in parts])
        self._met = np.zeros(num_rows, bool)
        self._numbers = [np.empty(0, np.int64)]
        self._gathered = 0

    def add(self, visits: Visits) -> None:
        """Adds visits; those of padding have row -1.

        Raises:
            ArgumentError: If an epoch is 2^24 or later, of rows with other values in each.
        """
        present = visits.rows >= 0
        rows = visits.rows[present]
        owner = np.searchsorted(self._firsts, rows, side="right") - 1
        self.counts += np.bincount(owner, minlength=len(self.counts))
        if not self._by_epoch.any():
            self._met[rows] = True
            return
        changing = self._by_epoch[owner]
        self._met[rows[~changing]] = True
        epochs = visits.epochs[present][changing]
        if epochs.size and epochs.max() > _EPOCH:
            raise ArgumentError(
                f"preflight() of epoch {epochs.max()} of random maps: pass steps= of "
                f"epochs below {_EPOCH + 1}",
                argument="steps",
            )
        self._numbers.append(np.unique(rows[changing] << EPOCH_BITS | epochs))
        self._gathered += len(self._numbers[-1])
        if self._gathered > _MOST_REPEATED:
            self._numbers = [np.unique(np.concatenate(self._numbers))]
            self._gathered = 0

    @property
    def numbers(self) -> Integers:
        """The distinct visits as numbers, ascending: int64[n]."""
        steady = np.flatnonzero(self._met) << EPOCH_BITS
        changing = np.unique(np.concatenate(self._numbers))
        if not len(changing):
            return steady
        return np.union1d(steady, changing)


@final
@dataclass(frozen=True, eq=False)
class Portion:
    """Distinct rows of a run that one reader reads.

    Args:
        reader: Reader of the rows.
        leaves: Leaves of a batch on the host that are made of rows.
        names: Their names: keys joined by dots.
        parts: Sources of the rows.
        numbers: The visits as numbers, ascending: int64[n].
        counts: Number of visits of each part in the run, repeated ones included: int64[parts].
        phases: Phases of the run that read these rows.
        is_remote: Whether some of the files are in remote storage.
    """

    reader: Reader
    leaves: tuple[BatchLeaf, ...]
    names: tuple[str, ...]
    parts: tuple[Part, ...]
    numbers: Integers
    counts: Integers
    phases: tuple[int, ...]
    is_remote: bool

    @property
    def row_bytes(self) -> int:
        """Bytes of a row: of the source, or of the batch if that is more."""
        of_batch = sum(leaf.spec.nbytes for leaf in self.leaves)
        return max(1, of_batch, self.reader.source_row_bytes)

    def visits(self, low: int, high: int) -> Visits:
        """Some of the visits."""
        numbers = self.numbers[low:high]
        return Visits(numbers >> EPOCH_BITS, numbers & _EPOCH)

    def owners(self, rows: Integers) -> Integers:
        """Index of the part of each row, int64[n]."""
        firsts = np.array([part.first_row for part in self.parts])
        return np.searchsorted(firsts, rows, side="right") - 1


def chunk_numbers(
    starts: Integers | range | None, rows: Integers
) -> NDArray[np.int64] | None:
    """Number of the chunk of each row, int64[n]; None: rows are decoded one by one."""
    if starts is None:
        return None
    if isinstance(starts, range):
        return rows // starts.step
    return np.searchsorted(starts, rows, side="right")
