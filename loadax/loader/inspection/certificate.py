"""Certificate: a mergeable digest of the rows that a run reads at each step and position.

Every (step, position, row, epoch) has a 128-bit hash, and a certificate holds the sum of the hashes. So the parts of
hosts and step ranges add up to the certificate of a single process, in any order and on any number of hosts. The hashes
protect against mistakes, not against forgery.
"""

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, final

import numpy as np

from loadax import seeds
from loadax.core.arguments import path as checked_path, shown
from loadax.core.intervals import merge
from loadax.errors import ArgumentError, SourceError
from loadax.loader.mask_errors import without
from loadax.loader.state import OrderHash, hash_of, make_state
from loadax.plan.batches import BatchPlan
from loadax.protocols import Integers, Interval
from loadax.seeds import Words
from loadax.sources.io.files import open_regular
from loadax.sources.io.paths import writing_file

_VERSION = 2  # of the file format: version 1 has three digests a span, of which the first is this one
_AT_ONCE = 1 << 18  # visits to hash at a time
_HALF = (1 << 64) - 1


class Span(NamedTuple):
    """Digest of a range of steps and a range of positions.

    Args:
        steps: Start and stop of the steps.
        positions: Start and stop of the positions.
        batch_size: Rows per batch.
        order: Hash of the order.
        rows: Number of records, without padding.
        digest: Sum of the 128-bit hashes, whose halves are added separately.
    """

    steps: Interval
    positions: Interval
    batch_size: int
    order: str
    rows: int
    digest: int

    def __str__(self) -> str:
        return (
            f"positions {self.positions[0]} to {self.positions[1] - 1} of steps {self.steps[0]} to {self.steps[1] - 1}"
        )


@final
@dataclass(frozen=True)
class Certificate:
    """Digest of a run's batches: of the whole run, or of one process's part. Made by `loader.certificate()`.

    Args:
        run: Name of the run, shared by all its parts; "8 processes" by default.
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
    spans: tuple[Span, ...]

    @property
    def digest(self) -> str:
        """Digest of all steps, positions, rows and epochs, as hexadecimal text: equal if all batches are equal."""
        return f"{_added(self.spans):032x}"

    @property
    def rows(self) -> int:
        """Number of records."""
        return sum(span.rows for span in self.spans)

    @property
    def steps(self) -> list[Interval]:
        """Covered steps, as `(start, stop)` ranges."""
        return list(merge(span.steps for span in self.spans))

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

    def first_difference(self, other: "Certificate") -> str | None:
        """Text about the first steps that differ from another whole run, as far as ranges of both are equal.

        Returns:
            None if both read the same rows at the same steps and positions.
        """
        if self.steps != other.steps:
            return f"{self.run} has {steps_text(self)}, {other.run} has {steps_text(other)}"
        if self.digest == other.digest:
            return None
        groups = [_grouped(run.spans) for run in (self, other)]
        common = sorted(groups[0].keys() & groups[1].keys())
        differs = (steps for steps in common if len({_added(group[steps]) for group in groups}) > 1)
        start, stop = next(differs, (self.steps[0][0], self.steps[-1][1]))
        first = f"step {start} differs" if stop - start == 1 else f"some of steps {start} to {stop - 1} differ"
        more = "; certificates of shorter ranges, certificate(range(start, stop)), narrow it down" * (stop - start > 1)
        return first + more

    def merge(self, *others: "Certificate") -> "Certificate":
        """Merges the parts of a run; a span of several processes counts once.

        Raises:
            ArgumentError: If they can't be parts of one run.
        """
        spans: dict[tuple[Interval, Interval], Span] = {}
        of_steps: dict[Interval, Span] = {}
        for span in (span for part in (self, *others) for span in part.spans):
            first = of_steps.setdefault(span.steps, span)
            if (first.order, first.batch_size) != (span.order, span.batch_size):
                raise ArgumentError(
                    f"{first} and {span} have different orders: make both with equal data, seeds, verbs and batch sizes"
                )
            if spans.setdefault((span.steps, span.positions), span) != span:
                raise ArgumentError(f"two processes certify {span} with different records")
        for _, together in _by_steps(spans.values()):
            for one, another in pairwise(together):
                if another.positions[0] < one.positions[1]:
                    raise ArgumentError(
                        f"{one} and {another} overlap in part; use equal steps=, and equal or disjoint positions="
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
        except ArgumentError as error:
            raise SourceError(f"{path}: {error}") from error
        except (OSError, ValueError, RecursionError) as error:
            problem = getattr(error, "strerror", error)
            raise SourceError(f"{path} can't be read: {problem}; pass a file of certificate().save(path)") from error

    def to_dict(self) -> dict[str, Any]:
        """The certificate as a JSON-serialisable dict."""
        spans = [{**span._asdict(), "digest": f"{span.digest:032x}"} for span in self.spans]
        return {"version": _VERSION, "run": self.run, "spans": spans}

    @staticmethod
    def from_dict(values: Any) -> "Certificate":
        """Restores a certificate from `to_dict`, also from that of version 1.

        Raises:
            ArgumentError: If it is not a certificate, or has another version.
        """
        version = values.get("version") if isinstance(values, dict) else None
        if version not in (1, _VERSION):
            raise ArgumentError(
                f"this is not a certificate of version 1 or {_VERSION}, but of {shown(version)}; "
                "make one with loader.certificate()"
            )
        try:
            return Certificate(str(values["run"]), tuple(_span(span, version) for span in values["spans"]))
        except (KeyError, TypeError, ValueError) as error:
            raise ArgumentError(f"this certificate is damaged ({error!r}); make a new one by certificate()") from error


def steps_text(run: Certificate) -> str:
    """The covered steps, such as `steps 0 to 3 and 6 to 9`."""
    return f"steps {' and '.join(f'{start} to {stop - 1}' for start, stop in run.steps)}"


def certify(
    plan: BatchPlan, order: OrderHash, run: str, pieces_by_steps: Mapping[range, list[Interval]], quarantine: Integers
) -> Certificate:
    """Certifies some steps and positions. Rows in quarantine count as padding.

    Args:
        plan: Plan of the run.
        order: Hash of the dataset's order.
        run: Name of the run.
        pieces_by_steps: Positions as ascending `(start, stop)` ranges, one span each, by steps with batches of one
            shape (`alike_steps`). Ranges of several processes must be equal or disjoint.
        quarantine: Rows that are never read: sorted int64[n].
    """
    spans: list[Span] = []
    for steps, pieces in pieces_by_steps.items():
        if not pieces:
            continue
        positions = np.concatenate([np.arange(*piece) for piece in pieces])
        begins = np.cumsum([0, *(last - first for first, last in pieces[:-1])])
        at_once = max(1, _AT_ONCE // len(positions))
        sums = np.zeros((3, len(pieces)), np.uint64)
        for first in range(steps.start, steps.stop, at_once):
            some = range(first, min(first + at_once, steps.stop))
            sums += np.add.reduceat(_hashes(plan, some, positions, quarantine), begins, axis=1)
        state = make_state(plan, order, steps.stop)
        # The whole hash of the order, which covers the verbs: a state has a short one.
        decisive = state | {"order": order(state["epoch"], state["position"])}
        del decisive["verbs"]
        batch_size = plan.segment_of(steps.start)[0].batch_size
        for piece, (rows, high, low) in zip(pieces, sums.T.tolist(), strict=True):
            spans.append(Span((steps.start, steps.stop), piece, batch_size, hash_of(decisive), rows, high << 64 | low))
    return Certificate(run, tuple(spans))


def alike_steps(plan: BatchPlan, steps: range) -> list[range]:
    """Splits steps where the shapes of their batches change."""
    cuts = [step for step in plan.first_steps if steps.start < step < steps.stop]
    return [range(*ends) for ends in pairwise([steps.start, *cuts, steps.stop])]


def _added(spans: Iterable[Span]) -> int:
    digests = [span.digest for span in spans]
    return (sum(digest >> 64 for digest in digests) & _HALF) << 64 | sum(digests) & _HALF


def _grouped(spans: Iterable[Span]) -> dict[Interval, list[Span]]:
    groups: dict[Interval, list[Span]] = {}
    for span in spans:
        groups.setdefault(span.steps, []).append(span)
    return groups


def _by_steps(spans: Iterable[Span]) -> Iterator[tuple[Interval, list[Span]]]:
    """Splits all steps into ranges that each span covers wholly or not at all, with their spans by position."""
    groups = _grouped(spans)
    for start, stop in pairwise(sorted({end for steps in groups for end in steps})):
        covering = [group for steps, group in groups.items() if steps[0] <= start and stop <= steps[1]]
        yield (start, stop), sorted((span for group in covering for span in group), key=lambda span: span.positions)


def _hashes(plan: BatchPlan, steps: range, positions: Integers, quarantine: Integers) -> Words:
    """uint64[3, positions]: number of records, and the halves of their hashes, summed over steps; without padding."""
    visits = without(plan.visits_of(steps, positions), quarantine)
    step = np.repeat(np.arange(steps.start, steps.stop), len(positions))
    position = np.tile(positions, len(steps))
    halves = [seeds.derive(0, "visit", half, step, position, visits.rows, visits.epochs) for half in (0, 1)]
    hashes = np.stack([np.ones(len(step), np.uint64), *halves])
    hashes[:, visits.rows < 0] = 0
    return hashes.reshape(3, len(steps), len(positions)).sum(axis=1)


def _span(values: dict[str, Any], version: int) -> Span:
    (first, stop), (low, high) = values["steps"], values["positions"]
    counts = first, stop, low, high, values["batch_size"], values["rows"]
    if any(type(count) is not int or not 0 <= count < 1 << 63 for count in counts):
        raise ValueError(f"not all of {shown(counts)} are ints from 0 to 2^63")
    digest = int(values["total"][0] if version == 1 else values["digest"], 16)
    if not 0 <= digest < 1 << 128:
        raise ValueError(f"{shown(digest)} is not a digest")
    return Span((first, stop), (low, high), values["batch_size"], str(values["order"]), values["rows"], digest)
