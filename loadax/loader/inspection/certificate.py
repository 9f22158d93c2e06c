"""Certificates: which records were where in a run, as a few numbers that hosts compute for their own part and add up.

Every (step, position, row, epoch) has a 128-bit hash, and a certificate holds their sum: so the parts of hosts and of
stretches of a run add up to what one process finds for all of it, in whatever order, on any number of hosts. The hashes
guard against mistakes, not against somebody who wants two runs to look alike.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, final

import numpy as np

from loadax import seeds
from loadax.errors import ArgumentError, SourceError
from loadax.loader.state import OrderHash, make_state
from loadax.plan.batches import BatchPlan
from loadax.protocols import Integers, Visits
from loadax.seeds import Words
from loadax.sources.io.files import open_regular
from loadax.sources.io.paths import path_text

_VERSION = 1  # of the file and of the hashes
_AT_ONCE = 1 << 18  # visits that are hashed at a time
_HALF = (1 << 64) - 1


class Digests(NamedTuple):
    """Sums of 128-bit hashes, the halves added up apart.

    Args:
        visits: of (step, position, row, epoch): equal when every batch is.
        records: of (row, epoch) alone: equal when the same records were met equally often, in whatever order and
            batches.
        contents: of (step, position) and the bytes of the record there; 0 where they were not read.
    """

    visits: int = 0
    records: int = 0
    contents: int = 0

    def __add__(self, other: Any) -> "Digests":
        return Digests(*(_plus(one, another) for one, another in zip(self, other, strict=True)))


class Span(NamedTuple):
    """What one process certified: some steps, and of each some positions that lie together.

    Args:
        steps: `(first, behind the last)`.
        positions: `(first, behind the last)`.
        batch_size: of these steps.
        order: a hash of what decides them.
        rows: how many records there are; padding is none.
        total: of all of it.
        each: of every step, where that was asked for; else empty.
        copies: how many processes certified just this.
    """

    steps: tuple[int, int]
    positions: tuple[int, int]
    batch_size: int
    order: str
    rows: int
    total: Digests
    each: tuple[Digests, ...] = ()
    copies: int = 1

    def __str__(self) -> str:
        return (
            f"positions {self.positions[0]} to {self.positions[1] - 1} of steps {self.steps[0]} to {self.steps[1] - 1}"
        )


@final
@dataclass(frozen=True)
class Certificate:
    """What a run's batches are made of; of all of it, or of one process's part. Made by `loader.certificate()`.

    Args:
        run: what the run is called, "8 processes" unless something else was said: parts of one run have one name.
        contents: whether the bytes of the records were read, too.
        spans: what is certified; no two overlap.

    Examples:
        >>> from loadax import Dataloader, from_arrays
        >>> data = from_arrays(np.arange(64)).shuffle(seed=0)
        >>> loaders = [Dataloader(data, 8, shard_index=host, shard_count=2) for host in range(2)]
        >>> hosts = [loader.certificate(run="two hosts") for loader in loaders]
        >>> hosts[0].merge(hosts[1]).digest == Dataloader(data, 8, shard_index=0, shard_count=1).certificate().digest
        True
    """

    run: str
    contents: bool
    spans: tuple[Span, ...]

    @property
    def total(self) -> Digests:
        """The sums over all of it."""
        return _summed(span.total for span in self.spans)

    @property
    def digest(self) -> str:
        """The visits' digest, and the contents' if there is one, as text."""
        return f"{self.total.visits:032x}" + (f"{self.total.contents:032x}" if self.contents else "")

    @property
    def rows(self) -> int:
        """How many records were met."""
        return sum(span.rows for span in self.spans)

    @property
    def steps(self) -> list[tuple[int, int]]:
        """Which steps it is about, as `(first, behind the last)`."""
        found: list[tuple[int, int]] = []
        for start, stop in sorted({span.steps for span in self.spans}):
            if found and start <= found[-1][1]:
                found[-1] = found[-1][0], max(stop, found[-1][1])
            else:
                found.append((start, stop))
        return found

    def per_step(self) -> dict[int, Digests] | None:
        """The sums of every step; None when it was made without."""
        if not all(span.each for span in self.spans):
            return None
        found: dict[int, Digests] = {}
        for span in self.spans:
            for step, digests in zip(range(*span.steps), span.each, strict=True):
                found[step] = found.get(step, Digests()) + digests
        return dict(sorted(found.items()))

    def missing(self) -> list[str]:
        """What is in no part, of the steps that it is about: empty when all positions of all batches are certified."""
        ends = sorted({end for span in self.spans for end in span.steps})
        found = []
        for start, stop in pairwise(ends):
            here = sorted(
                (*span.positions, span.batch_size)
                for span in self.spans
                if span.steps[0] <= start and stop <= span.steps[1]
            )
            reached = 0
            for first, last, _ in [*here, *((size, size, size) for *_, size in here[:1])]:
                if first > reached:
                    found.append(f"positions {reached} to {first - 1} of steps {start} to {stop - 1}")
                reached = last
            if not here:
                found.append(f"steps {start} to {stop - 1}")
        return found

    def merge(self, *others: "Certificate") -> "Certificate":
        """All parts of a run as one; what several processes certified, since they all hold it, counts once.

        Raises:
            ArgumentError: when they can't be parts of one run; says why.
        """
        spans: dict[tuple[tuple[int, int], tuple[int, int]], Span] = {}
        of_steps: dict[tuple[int, int], Span] = {}
        for part in (self, *others):
            if part.contents != self.contents:
                raise ArgumentError(
                    "some hold the contents of the records and some do not; make all with contents=True, or none"
                )
            for span in part.spans:
                first = of_steps.setdefault(span.steps, span)
                if (first.order, first.batch_size) != (span.order, span.batch_size):
                    raise ArgumentError(
                        f"{first} and {span} are of different orders: "
                        "those processes had other data, seeds, verbs or batch sizes"
                    )
                same = spans.get((span.steps, span.positions))
                if same is not None and same.total != span.total:
                    raise ArgumentError(f"two processes certify {span}, and found different records there")
                copies = span.copies + (same.copies if same is not None else 0)
                each = span.each or (same.each if same is not None else ())
                spans[span.steps, span.positions] = span._replace(copies=copies, each=each)
        _check_apart(spans.values())
        return replace(self, spans=tuple(sorted(spans.values())))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes it to a JSON file, which `load` and `loadax audit` read."""
        Path(path_text(path)).write_text(json.dumps(self.to_dict()) + "\n")

    @staticmethod
    def load(path: str | os.PathLike[str]) -> "Certificate":
        """The certificate of a file that `save` wrote.

        Raises:
            SourceError: when there is none.
        """
        file = Path(path_text(path))
        try:
            os.close(open_regular(file))  # a pipe would be waited for
            return Certificate.from_dict(json.loads(file.read_text()))
        except OSError as error:
            raise SourceError(
                f"{path}: it can't be read: {error.strerror}; pass a file that loader.certificate().save(path) wrote"
            ) from error
        except ArgumentError as error:
            raise SourceError(f"{path}: {error}") from error
        except ValueError as error:
            raise SourceError(
                f"{path}: this is no JSON ({error}); write it with loader.certificate().save(path)"
            ) from error

    def to_dict(self) -> dict[str, Any]:
        """The same, as JSON takes it."""
        spans = [
            {**span._asdict(), "total": _texts(span.total), "each": [_texts(each) for each in span.each]}
            for span in self.spans
        ]
        return {"version": _VERSION, "run": self.run, "contents": self.contents, "spans": spans}

    @staticmethod
    def from_dict(values: Any) -> "Certificate":
        """What `to_dict` gave.

        Raises:
            ArgumentError: when it is something else, or of another version of loadax.
        """
        version = values.get("version") if isinstance(values, dict) else None
        if version != _VERSION:
            hint = (
                "is no certificate"
                if version is None
                else f"is of version {version!r}, and this loadax reads {_VERSION}"
            )
            raise ArgumentError(f"this {hint}; make one with loader.certificate()")
        try:
            return Certificate(values["run"], values["contents"], tuple(map(_span, values["spans"])))
        except (KeyError, TypeError, ValueError) as error:
            raise ArgumentError(f"this certificate is damaged ({error!r}); make it anew") from error


def certify(
    plan: BatchPlan,
    order: OrderHash,
    run: str,
    pieces: Mapping[range, list[tuple[int, int]]],
    read: Callable[[Visits], list[Any]] | None,
    per_step: bool,
) -> Certificate:
    """The certificate of some steps and positions.

    Args:
        plan: of the run.
        order: hashes what decides it.
        run: what it is called.
        pieces: Positions of the batches of steps that are alike (`alike_steps`), as stretches `(first, behind the
            last)`, ascending: a span for each. What several processes hold must be cut alike.
        read: gives the leaves of a batch of such visits; None: without contents.
        per_step: whether the sums of every step are kept.
    """
    spans: list[Span] = []
    for steps, reaches in pieces.items():
        start, stop = steps.start, steps.stop
        batch_size = plan.stretch(start)[0].batch_size
        of_step = np.concatenate([np.empty(0, np.int64), *(np.arange(*each) for each in reaches)])
        ends = np.cumsum([0, *(last - first for first, last in reaches)]).tolist()
        columns = list(pairwise(ends))
        sums = [_Sums(len(steps)) for _ in columns]
        for some in _runs(steps, max(1, _AT_ONCE // max(1, len(of_step)))):
            visits = plan.visits_of(some, of_step)
            there = (visits.rows >= 0).reshape(len(some), -1)
            words = _hashed(visits, some, of_step) * there.reshape(-1)
            contents = None if read is None else _contents(visits, some, of_step, read)
            for (low, high), sums_here in zip(columns, sums, strict=True):
                sums_here.add(some.start - start, words.reshape(4, len(some), -1)[..., low:high], there[:, low:high])
                if contents is not None:
                    sums_here.add_contents(some.start - start, contents[..., low:high])
        described = _described(make_state(plan, order, stop))
        for reach, found in zip(reaches, sums, strict=True):
            each = found.each()
            span = Span(
                (start, stop), reach, batch_size, described, found.rows, _summed(each), each if per_step else ()
            )
            spans.append(span)
    return Certificate(run, read is not None, tuple(spans))


def alike_steps(plan: BatchPlan, steps: range) -> list[range]:
    """These steps, cut where the shapes of their batches change."""
    cuts = [step for step in plan.first_steps if steps.start < step < steps.stop]
    return [range(*ends) for ends in pairwise([steps.start, *cuts, steps.stop])]


def stretches(positions: Integers, heights: Iterable[int] = ()) -> list[tuple[int, int]]:
    """Ascending positions as stretches without gaps, cut at all multiples of each of `heights`.

    Examples:
        >>> stretches(np.array([0, 1, 2, 3, 6, 7]), [2])
        [(0, 2), (2, 4), (6, 8)]
    """
    if not len(positions):
        return []
    begins = np.diff(positions, prepend=positions[0]) != 1
    for height in heights:
        begins |= positions % height == 0
    places = [*np.flatnonzero(begins).tolist(), len(positions)]
    return [(int(positions[low]), int(positions[high - 1]) + 1) for low, high in pairwise(places)]


def _check_apart(spans: Iterable[Span]) -> None:
    """Refuses spans that have something in common."""
    groups: dict[tuple[int, int], list[Span]] = {}
    for span in spans:
        groups.setdefault(span.steps, []).append(span)
    ranges = sorted(groups)
    for number, steps in enumerate(ranges):
        for other in ranges[number:]:
            if other[0] >= steps[1]:
                break
            both = groups[steps] + (groups[other] if other != steps else [])
            for one, another in pairwise(sorted(both, key=lambda span: span.positions)):
                if another.positions[0] < one.positions[1]:
                    raise ArgumentError(
                        f"{one} and {another} overlap in part; "
                        "make all of equal steps=, and of positions= that are equal or apart"
                    )


class _Sums:
    """Sums of hashes of every step of a span, while they come in."""

    def __init__(self, steps: int):
        self.rows = 0
        self._words = np.zeros((6, steps), np.uint64)

    def add(self, first: int, words: Words, there: Any) -> None:
        self.rows += int(there.sum())
        self._words[:4, first : first + words.shape[1]] = words.sum(axis=2, dtype=np.uint64)

    def add_contents(self, first: int, words: Words) -> None:
        self._words[4:, first : first + words.shape[1]] = words.sum(axis=2, dtype=np.uint64)

    def each(self) -> tuple[Digests, ...]:
        columns = self._words.T.tolist()
        return tuple(
            Digests(*(high << 64 | low for high, low in zip(column[::2], column[1::2], strict=True)))
            for column in columns
        )


def _hashed(visits: Visits, steps: range, positions: Integers) -> Words:
    """uint64[4, n]: the halves of the hashes of visits, and of those of records."""
    step = np.repeat(np.arange(steps.start, steps.stop), len(positions))
    position = np.tile(positions, len(steps))
    # Of padding the row is -1, which has a hash as well; nobody adds it.
    places = [seeds.derive(0, "visit", half, step, position, visits.rows, visits.epochs) for half in (0, 1)]
    records = [seeds.derive(0, "record", half, visits.rows, visits.epochs) for half in (0, 1)]
    return np.array([*places, *records], np.uint64)


def _contents(visits: Visits, steps: range, positions: Integers, read: Callable[[Visits], list[Any]]) -> Words:
    """uint64[2, steps, positions]: the halves of the hashes of the records' bytes; 0 for padding."""
    found = np.zeros((2, len(steps), len(positions)), np.uint64)
    each = len(positions)
    for number, step in enumerate(steps):
        here = slice(number * each, (number + 1) * each)
        mine = Visits(visits.rows[here], visits.epochs[here])
        leaves = [np.ascontiguousarray(leaf) for leaf in read(mine)]
        for place in np.flatnonzero(mine.rows >= 0).tolist():
            digest = hashlib.blake2b(np.array([step, positions[place]], "<i8").tobytes(), digest_size=16)
            for leaf in leaves:
                digest.update(leaf[place].tobytes())
            found[:, number, place] = np.frombuffer(digest.digest(), "<u8")
    return found


def _runs(steps: range, most: int) -> Iterator[range]:
    return (steps[first : first + most] for first in range(0, len(steps), most))


def _described(state: Any) -> str:
    decisive = {name: value for name, value in state.items() if name != "verbs"}  # which the hash of the order covers
    return hashlib.sha256(json.dumps(decisive).encode()).hexdigest()[:16]


def _summed(digests: Iterable[Digests]) -> Digests:
    found = Digests()
    for each in digests:
        found = found + each
    return found


def _plus(one: int, other: int) -> int:
    return ((one >> 64) + (other >> 64) & _HALF) << 64 | one + other & _HALF


def _span(values: dict[str, Any]) -> Span:
    digests = {"total": _numbers(values["total"]), "each": tuple(map(_numbers, values["each"]))}
    return Span(**{**values, **digests, "steps": tuple(values["steps"]), "positions": tuple(values["positions"])})


def _texts(digests: Digests) -> list[str]:
    return [f"{each:032x}" for each in digests]


def _numbers(texts: Sequence[str]) -> Digests:
    return Digests(*(int(each, 16) for each in texts))
