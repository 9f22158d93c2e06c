"""Certificate: mergeable digests of the records that a run reads at each step and position.

Every (step, position, row, epoch) has a 128-bit hash, and a certificate holds the sum of the hashes. So the parts of
hosts and step ranges add up to the certificate of a single process, in any order and on any number of hosts. The hashes
protect against mistakes, not against forgery.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, final

import numpy as np

from loadax import seeds
from loadax.core.arguments import path as checked_path
from loadax.core.arguments import shown
from loadax.errors import ArgumentError, SourceError
from loadax.loader.mask_errors import without
from loadax.loader.state import OrderHash, make_state
from loadax.plan.batches import BatchPlan
from loadax.protocols import Integers, Visits
from loadax.seeds import Words
from loadax.sources.io.files import open_regular
from loadax.sources.io.paths import writing_file

_VERSION = 1  # of the file format and the hashes
_AT_ONCE = 1 << 18  # visits to hash at a time
_HALF = (1 << 64) - 1

Read: TypeAlias = Callable[[Visits], list[Any]]


class Digests(NamedTuple):
    """Sums of 128-bit hashes, whose halves are added separately.

    Args:
        visits: Sum over (step, position, row, epoch): equal if all batches are equal.
        records: Sum over (row, epoch): equal if the same records are read equally often, in any order.
        contents: Sum over (step, position, bytes of the record); 0 if contents were not read.
    """

    visits: int = 0
    records: int = 0
    contents: int = 0

    def __add__(self, other: Any) -> "Digests":
        halves = (
            ((one >> 64) + (another >> 64) & _HALF, one + another & _HALF)
            for one, another in zip(self, other, strict=True)
        )
        return Digests(*(high << 64 | low for high, low in halves))


class Span(NamedTuple):
    """Digests of a range of steps and a range of positions.

    Args:
        steps: Start and stop of the steps.
        positions: Start and stop of the positions.
        batch_size: Rows per batch.
        order: Hash of the order.
        rows: Number of records, without padding.
        total: Sums over the span.
        each: Sums per step, if requested; else empty.
        copies: Number of processes that certified this span.
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
    """Digests of a run's batches: of the whole run, or of one process's part. Made by `loader.certificate()`.

    Args:
        run: Name of the run, shared by all its parts; "8 processes" by default.
        contents: Whether the bytes of the records are certified too.
        spans: Certified spans, without overlaps.

    Examples:
        >>> import numpy as np
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
        """Sums over all spans."""
        return sum((span.total for span in self.spans), Digests())

    @property
    def digest(self) -> str:
        """Digest of the visits, followed by that of the contents if there is one, as hexadecimal text."""
        return f"{self.total.visits:032x}" + (f"{self.total.contents:032x}" if self.contents else "")

    @property
    def rows(self) -> int:
        """Number of records."""
        return sum(span.rows for span in self.spans)

    @property
    def steps(self) -> list[tuple[int, int]]:
        """Covered steps, as `(start, stop)` ranges."""
        covered: list[tuple[int, int]] = []
        for (start, stop), spans in _by_steps(self.spans):
            if spans and covered and covered[-1][1] == start:
                covered[-1] = covered[-1][0], stop
            elif spans:
                covered.append((start, stop))
        return covered

    def per_step(self) -> dict[int, Digests] | None:
        """Sums of every step; None if the certificate does not have them."""
        if not all(span.each for span in self.spans):
            return None
        sums: dict[int, Digests] = {}
        for span in self.spans:
            for step, digests in zip(range(*span.steps), span.each, strict=True):
                sums[step] = sums.get(step, Digests()) + digests
        return dict(sorted(sums.items()))

    def missing(self) -> list[str]:
        """Uncovered steps and positions between the first and the last step, as text."""
        gaps = []
        for (start, stop), spans in _by_steps(self.spans):
            if not spans:
                gaps.append(f"steps {start} to {stop - 1}")
                continue
            firsts = [*(span.positions[0] for span in spans), spans[0].batch_size]
            for reached, first in zip([0, *(span.positions[1] for span in spans)], firsts, strict=True):
                if first > reached:
                    gaps.append(f"positions {reached} to {first - 1} of steps {start} to {stop - 1}")
        return gaps

    def merge(self, *others: "Certificate") -> "Certificate":
        """Merges the parts of a run; a span of several processes counts once.

        Raises:
            ArgumentError: If they can't be parts of one run.
        """
        spans: dict[tuple[tuple[int, int], tuple[int, int]], Span] = {}
        of_steps: dict[tuple[int, int], Span] = {}
        for part in (self, *others):
            if part.contents != self.contents:
                raise ArgumentError(
                    "some certificates have the contents of the records and some do not; make all with contents=True, "
                    "or none"
                )
            for span in part.spans:
                first = of_steps.setdefault(span.steps, span)
                if (first.order, first.batch_size) != (span.order, span.batch_size):
                    raise ArgumentError(
                        f"{first} and {span} have different orders: make both with the same data, seeds, verbs and "
                        "batch sizes"
                    )
                same = spans.get((span.steps, span.positions))
                if same is not None and same.total != span.total:
                    raise ArgumentError(f"two processes certify {span} with different records")
                copies, per_step = (0, ()) if same is None else (same.copies, same.each)
                spans[span.steps, span.positions] = span._replace(
                    copies=span.copies + copies, each=span.each or per_step
                )
        for _, together in _by_steps(spans.values()):
            for one, another in pairwise(together):
                if another.positions[0] < one.positions[1]:
                    raise ArgumentError(
                        f"{one} and {another} overlap in part; "
                        "make all with equal steps=, and with positions= that are equal or disjoint"
                    )
        return replace(self, spans=tuple(sorted(spans.values())))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the certificate to a JSON file for `load` and `loadax audit`.

        Raises:
            ArgumentError: If the file can't be written.
        """
        with writing_file(path := checked_path("path", path)):
            Path(path).write_text(json.dumps(self.to_dict()) + "\n")

    @staticmethod
    def load(path: str | os.PathLike[str]) -> "Certificate":
        """Reads a certificate from a file of `save`.

        Raises:
            SourceError: If the file can't be read or is not a certificate.
        """
        file = Path(checked_path("path", path))
        try:
            os.close(open_regular(file))  # refuses a pipe, which would block
            return Certificate.from_dict(json.loads(file.read_text()))
        except OSError as error:
            raise SourceError(
                f"{path} can't be read: {error.strerror}; pass a file written by loader.certificate().save(path)"
            ) from error
        except ArgumentError as error:
            raise SourceError(f"{path}: {error}") from error
        except (ValueError, RecursionError) as error:
            raise SourceError(
                f"{path} is not a JSON file ({error}); write it with loader.certificate().save(path)"
            ) from error

    def to_dict(self) -> dict[str, Any]:
        """The certificate as a JSON-serialisable dict."""
        spans = [
            {**span._asdict(), "total": _texts(span.total), "each": list(map(_texts, span.each))} for span in self.spans
        ]
        return {"version": _VERSION, "run": self.run, "contents": self.contents, "spans": spans}

    @staticmethod
    def from_dict(values: Any) -> "Certificate":
        """Restores a certificate from `to_dict`.

        Raises:
            ArgumentError: If it is not a certificate, or has another version.
        """
        version = values.get("version") if isinstance(values, dict) else None
        if version != _VERSION:
            other = f"has version {shown(version)}, but this loadax reads {_VERSION}"
            hint = "is not a certificate" if version is None else other
            raise ArgumentError(f"this {hint}; make one with loader.certificate()")
        try:
            return Certificate(values["run"], values["contents"], tuple(map(_span, values["spans"])))
        except (KeyError, TypeError, ValueError) as error:
            raise ArgumentError(
                f"this certificate is damaged ({error!r}); make a new one with loader.certificate()"
            ) from error


def certify(
    plan: BatchPlan,
    order: OrderHash,
    run: str,
    pieces_by_steps: Mapping[range, list[tuple[int, int]]],
    read: Callable[[Visits], list[Any]] | None,
    per_step: bool,
    quarantine: Integers,
) -> Certificate:
    """Certifies some steps and positions. Rows in quarantine count as padding.

    Args:
        plan: Plan of the run.
        order: Hash of the dataset's order.
        run: Name of the run.
        pieces_by_steps: Positions as ascending `(start, stop)` ranges, one span each, by steps with batches of one
            shape (`alike_steps`). Ranges of several processes must be equal or disjoint.
        read: Reads the leaves of these visits; None: without contents.
        per_step: Whether to keep the sums of every step.
        quarantine: Rows that are never read: sorted int64[n].
    """
    spans: list[Span] = []
    for steps, pieces in pieces_by_steps.items():
        if not pieces:
            continue
        positions = np.concatenate([np.arange(*piece) for piece in pieces])
        begins = np.cumsum([0, *(last - first for first, last in pieces[:-1])])
        at_once = max(1, _AT_ONCE // len(positions))
        hashed = [
            np.add.reduceat(
                _hashes(plan, range(first, min(first + at_once, steps.stop)), positions, read, quarantine),
                begins,
                axis=2,
            )
            for first in range(steps.start, steps.stop, at_once)
        ]
        state = make_state(plan, order, steps.stop)
        # The whole hash of the order, which covers the verbs: a state has a short one.
        decisive = state | {"order": order(state["epoch"], state["position"])}
        del decisive["verbs"]
        described = hashlib.sha256(json.dumps(decisive).encode()).hexdigest()[:16]
        batch_size = plan.segment_of(steps.start)[0].batch_size
        for piece, (rows, *halves) in zip(pieces, np.moveaxis(np.concatenate(hashed, axis=1), 2, 0), strict=True):
            digests = tuple(
                Digests(*(high << 64 | low for high, low in zip(step[::2], step[1::2], strict=True)))
                for step in np.transpose(halves).tolist()
            )
            total = sum(digests, Digests())
            kept = digests if per_step else ()
            spans.append(Span((steps.start, steps.stop), piece, batch_size, described, int(rows.sum()), total, kept))
    return Certificate(run, read is not None, tuple(spans))


def alike_steps(plan: BatchPlan, steps: range) -> list[range]:
    """Splits steps where the shapes of their batches change."""
    cuts = [step for step in plan.first_steps if steps.start < step < steps.stop]
    return [range(*ends) for ends in pairwise([steps.start, *cuts, steps.stop])]


def _by_steps(spans: Iterable[Span]) -> Iterator[tuple[tuple[int, int], list[Span]]]:
    """Splits all steps into ranges that each span covers wholly or not at all, with their spans by position."""
    groups: dict[tuple[int, int], list[Span]] = {}
    for span in spans:
        groups.setdefault(span.steps, []).append(span)
    for start, stop in pairwise(sorted({end for steps in groups for end in steps})):
        covering = [group for steps, group in groups.items() if steps[0] <= start and stop <= steps[1]]
        yield (start, stop), sorted((span for group in covering for span in group), key=lambda span: span.positions)


def _hashes(plan: BatchPlan, steps: range, positions: Integers, read: Read | None, quarantine: Integers) -> Words:
    """uint64[7, steps, positions]: 1 and the halves of the hashes of each record; 0 for padding."""
    visits = without(plan.visits_of(steps, positions), quarantine)
    step = np.repeat(np.arange(steps.start, steps.stop), len(positions))
    position = np.tile(positions, len(steps))
    hashes = np.zeros((7, len(step)), np.uint64)
    hashes[0] = 1
    for half in (0, 1):
        hashes[1 + half] = seeds.derive(0, "visit", half, step, position, visits.rows, visits.epochs)
        hashes[3 + half] = seeds.derive(0, "record", half, visits.rows, visits.epochs)
    hashes[:, visits.rows < 0] = 0
    by_step = hashes.reshape(7, len(steps), len(positions))
    if read is not None:
        all_rows, all_epochs = (array.reshape(len(steps), -1) for array in (visits.rows, visits.epochs))
        for index, (rows, epochs) in enumerate(zip(all_rows, all_epochs, strict=True)):
            by_step[5:, index] = _contents(Visits(rows, epochs), steps[index], positions, read)
    return by_step


def _contents(visits: Visits, step: int, positions: Integers, read: Read) -> Words:
    """uint64[2, positions]: the halves of the hashes of the records' bytes; 0 for padding."""
    hashes = np.zeros((2, len(positions)), np.uint64)
    leaves = [np.ascontiguousarray(leaf) for leaf in read(visits)]
    for index in np.flatnonzero(visits.rows >= 0).tolist():
        digest = hashlib.blake2b(np.array([step, positions[index]], "<i8").tobytes(), digest_size=16)
        for leaf in leaves:
            digest.update(leaf[index].tobytes())
        hashes[:, index] = np.frombuffer(digest.digest(), "<u8")
    return hashes


def _span(values: dict[str, Any]) -> Span:
    total, *per_step = (Digests(*(int(text, 16) for text in texts)) for texts in [values["total"], *values["each"]])
    ranges = {name: tuple(values[name]) for name in ("steps", "positions")}
    (first, stop), (low, high) = ranges["steps"], ranges["positions"]
    counts = first, stop, low, high, values["batch_size"], values["rows"], values.get("copies", 1)
    if any(type(count) is not int or not 0 <= count < 1 << 63 for count in counts):
        raise ValueError(f"not all of {shown(counts)} are ints from 0 to 2^63")
    return Span(**{**values, **ranges, "total": total, "each": tuple(per_step)})


def _texts(digests: Digests) -> list[str]:
    return [f"{digest:032x}" for digest in digests]
