"""Computes what hosts request of remote storage, by what joins the requests of a run, without sending any."""

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from typing import Any, NamedTuple, final

from loadax.core.spec import all_columns, flatten_spec
from loadax.files.ahead import Ahead
from loadax.files.byte_ranges import ByteRange, joined
from loadax.files.opened import opening_of
from loadax.files.remote import Answer, RemoteFiles
from loadax.files.remote_ranges import RemoteRanges
from loadax.files.requests import Pending, Request
from loadax.loader.ahead.step_requests import MOST_REQUESTS, PART_OF_PREFETCH
from loadax.loader.assembly.chunk_budget import shard_columns
from loadax.loader.inspection.all_hosts import AllHosts
from loadax.loader.inspection.chunk_reads import spaced
from loadax.loader.inspection.explanation import Storage, spread_of
from loadax.loader.options import LoaderOptions
from loadax.plan.steps import Steps
from loadax.protocols import Integers, Visits
from loadax.reader import Reader
from loadax.sources.base import BaseSource, walk

_MOST_HOSTS = 4  # to sample
_MOST_STEPS = 512  # of a host, one after the other
_MOST_RANGES = 1 << 14  # of a host: they take a quarter of a second


class _StepRanges(NamedTuple):
    """Requests of a step that are not known yet.

    Args:
        ranges: Ranges by their reader.
        chunks: Number of chunks that a library requests.
        chunk_bytes: Bytes of these chunks.
    """

    ranges: dict[RemoteRanges, list[ByteRange]]
    chunks: int
    chunk_bytes: int

    @property
    def nbytes(self) -> int:
        """Bytes of ranges and chunks."""
        ranges = chain.from_iterable(self.ranges.values())
        return self.chunk_bytes + sum(map(_size, ranges))

    @property
    def number(self) -> int:
        """Number of ranges and chunks."""
        return self.chunks + sum(map(len, self.ranges.values()))


def storage_of(
    reader: Reader,
    plan: Steps,
    hosts: AllHosts,
    at: int,
    options: LoaderOptions,
    chunks_stay: bool,
) -> Storage | None:
    """Computes what hosts request from step `at` on, in the rest of its epoch; None if no rows are in remote files.

    Args:
        reader: Reader of the rows.
        plan: Plan of the run.
        hosts: Hosts of the run.
        at: First step.
        options: Options of the loader.
        chunks_stay: Whether chunks are kept until a block shuffle has used them up.
    """
    source = reader.source
    found = {opening_of(each.addresses) for each in walk(source)}
    openings = [opening for opening in found if opening is not None]
    epoch = plan.epoch_steps(plan.position_of_step(at)[0])
    alike = plan.alike(at)
    first = bisect_left(alike, at)
    steps = [step for step in alike[first : first + _MOST_STEPS] if step < epoch.stop]
    groups = hosts.rows.alike
    sampled = []
    for index in spaced(range(len(groups)), _MOST_HOSTS):
        host = int(groups[index][0])
        needed = _Needed(source, plan, hosts.rows.positions(host), chunks_stay)
        if _is_ahead(reader, plan, hosts, host, options):
            requested = _ahead(
                needed.steps(steps), options.prefetch_bytes // PART_OF_PREFETCH
            )
        else:
            requested = _by_step(needed.steps(steps))
        sampled.append(_Requested.of(requested))
    if not openings and not any(host.requests for host in sampled):
        return None
    count = len(hosts.processes)
    whole = [host.over(len(epoch)) for host in sampled]
    share = count / len(whole)
    return Storage(
        requests=sum(one.requests for one in openings),
        nbytes=sum(one.nbytes for one in openings),
        apart=sum(
            one.requests
            + (count - 1) * (one.requests if one.again is None else one.again)
            for one in openings
        ),
        step_requests=spread_of([host.requests / host.steps for host in sampled]),
        step_bytes=spread_of([host.nbytes / host.steps for host in sampled]),
        epoch_requests=round(share * sum(host.requests for host in whole)),
        epoch_bytes=round(share * sum(host.nbytes for host in whole)),
        steps=min(host.steps for host in sampled),
    )


class _StepGroup(NamedTuple):
    """Requests that are sent together.

    Args:
        steps: Number of steps that they are for.
        requests: Number of them.
        nbytes: Their bytes.
    """

    steps: int
    requests: int
    nbytes: int


@final
class _Requested(NamedTuple):
    """Requests of a host.

    Args:
        steps: Number of steps.
        requests: Number of their requests.
        nbytes: Bytes of these.
        first: Those of the first group, in which chunks of later steps may be.
    """

    steps: int
    requests: int
    nbytes: int
    first: _StepGroup

    @classmethod
    def of(cls, groups: Iterator[_StepGroup]) -> "_Requested":
        """Adds up groups."""
        found = list(groups) or [_StepGroup(1, 0, 0)]
        steps, requests, nbytes = map(sum, zip(*found, strict=True))
        return cls(steps, requests, nbytes, found[0])

    def over(self, steps: int) -> "_Requested":
        """The requests of `steps` steps, of which these are the first ones."""
        later = self.steps - self.first.steps
        if later:
            times = (steps - self.first.steps) / later
            requests = self.first.requests + times * (
                self.requests - self.first.requests
            )
            nbytes = self.first.nbytes + times * (self.nbytes - self.first.nbytes)
        else:
            requests = self.requests * steps / self.steps
            nbytes = self.nbytes * steps / self.steps
        return self._replace(
            steps=steps, requests=round(requests), nbytes=round(nbytes)
        )


@final
class _Needed:
    """Ranges that a host's steps need, but for those of chunks that it has kept since a step before.

    Args:
        source: Source of the rows.
        plan: Plan of the run.
        positions: Positions of the batch that the host reads.
        chunks_stay: Whether all chunks are kept.
    """

    def __init__(
        self, source: BaseSource, plan: Steps, positions: Integers, chunks_stay: bool
    ):
        self._source = source
        self._plan = plan
        self._positions = positions
        self._chunks_stay = chunks_stay
        # by who keeps them; those used last are last
        self._kept: dict[Any, OrderedDict[Any, None]] = {}

    def steps(self, steps: Sequence[int]) -> Iterator[_StepRanges]:
        """Yields what steps request, 16,384 ranges in all, but one step at least."""
        left = _MOST_RANGES
        for number in steps:
            visits = self._plan.visits(number, self._positions)
            real = visits.rows >= 0
            step = self._of(Visits(visits.rows[real], visits.epochs[real]))
            yield step
            left -= step.number
            if left <= 0:
                return

    def _of(self, visits: Visits) -> _StepRanges:
        ranges: dict[RemoteRanges, list[ByteRange]] = {}
        for wanted in self._source.wanted(visits):
            needed = list(wanted.ranges)
            if wanted.once:
                needed = self._new(wanted.reader, needed, wanted.kept)
            ranges.setdefault(wanted.reader, []).extend(needed)
        number = 0
        nbytes = 0
        for stored in self._source.chunks_of(visits):
            new = self._new(stored.store, stored.chunks, stored.kept)
            number += len(new)
            nbytes += len(new) * stored.nbytes
        return _StepRanges(ranges, number, nbytes)

    def _new(self, keeper: Any, needed: Sequence[Any], most: float) -> list[Any]:
        """Those that are not kept; all of them are kept now, but for those used before the last `most`."""
        kept = self._kept.setdefault(keeper, OrderedDict())
        new = [each for each in needed if each not in kept]
        for each in needed:
            kept[each] = None
            kept.move_to_end(each)
        while len(kept) > most and not self._chunks_stay:
            kept.popitem(last=False)
        return new


@final
class _Counter:
    """Sender of requests that counts them only. Gaps are those that the reader joins at present.

    Args:
        remote: Remote files of the reader.
    """

    def __init__(self, remote: RemoteFiles):
        self._remote = remote
        self.requests = 0
        self.nbytes = 0

    def gap(self, location: str) -> int:
        return self._remote.gap(location)

    def begin(
        self,
        ranges: Sequence[ByteRange],
        urgent: bool,  # noqa: ARG002
    ) -> Sequence[Pending]:
        self.requests += len(ranges)
        self.nbytes += sum(each.stop - each.start for each in ranges)
        begun = [Pending(Request(str, each, "", 0, False, False)) for each in ranges]
        for each in begun:
            each.outcome = (None, None)
        return begun

    def wait(
        self,
        pending: Sequence[Pending],
        ranges: Sequence[ByteRange],  # noqa: ARG002
    ) -> Sequence[Answer | None]:
        return [each.result() for each in pending]


def _ahead(steps: Iterator[_StepRanges], window: int) -> Iterator[_StepGroup]:
    """Requests steps ahead, as a run does whose window is full; each group while those before are read."""
    aheads: dict[RemoteRanges, tuple[Ahead, _Counter]] = {}
    first = 0
    before = range(0)
    for group in _grouped(steps, window):
        for reader in dict.fromkeys(
            chain.from_iterable(each.ranges for each in group)
        ):
            if reader not in aheads:
                counter = _Counter(reader.remote)
                aheads[reader] = (Ahead(counter), counter)
            wanted = [
                (first + index, each.ranges.get(reader, []))
                for index, each in enumerate(group)
            ]
            aheads[reader][0].start(wanted, False, window)
        for ahead, _ in aheads.values():
            for step in before:
                ahead.finish(step)
        yield _with_chunks(group, *_taken(aheads))
        before = range(first, first + len(group))
        first = before.stop


def _grouped(
    steps: Iterator[_StepRanges], window: int
) -> Iterator[list[_StepRanges]]:
    """Yields steps as a run requests them: the first one, as many as the window has room for, and later half as many.

    Of small ranges a group has about as many as a run requests at a time.
    """
    yield list(islice(steps, 1))
    room = window
    group: list[_StepRanges] = []
    for step in steps:
        nbytes = step.nbytes + sum(each.nbytes for each in group)
        number = sum(each.number for each in group)
        if group and (nbytes > room or number > MOST_REQUESTS):
            yield group
            group = []
            room = window // 2
        group.append(step)
    if group:
        yield group


def _with_chunks(
    group: Sequence[_StepRanges], requests: int, nbytes: int
) -> _StepGroup:
    """A group of steps with these requests for ranges, and those for chunks."""
    return _StepGroup(
        len(group),
        requests + sum(each.chunks for each in group),
        nbytes + sum(each.chunk_bytes for each in group),
    )


def _taken(aheads: dict[RemoteRanges, tuple[Ahead, _Counter]]) -> tuple[int, int]:
    """Requests and bytes that were counted since the last call."""
    requests = 0
    nbytes = 0
    for _, counter in aheads.values():
        requests += counter.requests
        nbytes += counter.nbytes
        counter.requests = 0
        counter.nbytes = 0
    return requests, nbytes


def _by_step(steps: Iterator[_StepRanges]) -> Iterator[_StepGroup]:
    """Requests each step when it is read."""
    for step in steps:
        wholes = [
            whole
            for reader, ranges in step.ranges.items()
            if ranges
            for whole, _ in joined(ranges, reader.remote.gap(ranges[0].location))
        ]
        yield _with_chunks([step], len(wholes), sum(map(_size, wholes)))


def _size(wanted: ByteRange) -> int:
    return wanted.stop - wanted.start


def _is_ahead(
    reader: Reader, plan: Steps, hosts: AllHosts, host: int, options: LoaderOptions
) -> bool:
    """Whether a host requests the ranges of steps before they are read."""
    specs = flatten_spec(reader.specs[0])[0]
    return (
        options.worker_type == "thread"
        and not plan.buckets
        and reader.traits.concurrent_reads > 1
        and shard_columns(reader, hosts.shard(host))
        == [all_columns(spec.shape) for spec in specs]
    )
