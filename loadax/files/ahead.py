"""Ahead: byte ranges of remote files that a run requests before its steps read them."""

import threading
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import TYPE_CHECKING, NamedTuple, Protocol, final

from loadax.files.byte_ranges import NEAR, ByteRange, FileInfo

if TYPE_CHECKING:
    from loadax.files.remote import Answer
    from loadax.files.requests import Pending

# Bytes of a request that joins several ranges: a part of the window, so that many requests are in flight.
_LEAST_JOINED = 256 << 10
_MOST_JOINED = 4 << 20
_REQUESTS_IN_WINDOW = 16


@final
@dataclass(eq=False, slots=True)
class _RequestedBlock:
    """One request.

    Args:
        range: Its range.
        request: The request, and its answer.
        window: Number of the window that it was requested in.
        steps: Steps that read from it, unless ranges are read once.
        left: Bytes that are to be read once, and were not yet.
        readers: Threads that wait for it or copy from it.
        freed: Whether nobody needs it any more.
    """

    range: ByteRange
    request: "Pending"
    window: int
    steps: set[int] = field(default_factory=set)
    left: int = 0
    readers: int = 0
    freed: bool = False


class _Missing(NamedTuple):
    """A range that is to be requested, and the first step that reads it."""

    range: ByteRange
    step: int


class _File:
    """The blocks of a file, which don't overlap, sorted."""

    def __init__(self) -> None:
        self.starts: list[int] = []
        self.blocks: list[_RequestedBlock] = []

    def covering(self, wanted: ByteRange) -> list[_RequestedBlock] | None:
        """The blocks that have all bytes of a range; None if there are none."""
        index = bisect_right(self.starts, wanted.start) - 1
        start = wanted.start
        found = []
        while start < wanted.stop:
            if not 0 <= index < len(self.blocks):
                return None
            block = self.blocks[index]
            if not block.range.start <= start < block.range.stop:
                return None
            found.append(block)
            start = block.range.stop
            index += 1
        return found

    def missing(self, wanted: ByteRange) -> Iterator[ByteRange]:
        """The parts of a range that no block has, each longer by a small gap between it and a block."""
        index = bisect_right(self.starts, wanted.start) - 1
        start = wanted.start
        if index >= 0 and start - (before := self.blocks[index].range.stop) <= NEAR:
            start = before
        for block in islice(self.blocks, index + 1, None):
            if start >= wanted.stop or block.range.start >= wanted.stop + NEAR:
                break
            if start < block.range.start:
                yield ByteRange(wanted.location, start, block.range.start)
            start = block.range.stop
        if start < wanted.stop:
            yield ByteRange(wanted.location, start, wanted.stop)

    def has_between(self, start: int, stop: int) -> bool:
        """Whether a block begins in this gap."""
        index = bisect_left(self.starts, start)
        return index < len(self.starts) and self.starts[index] < stop

    def add(self, block: _RequestedBlock) -> None:
        index = bisect_right(self.starts, block.range.start)
        self.starts.insert(index, block.range.start)
        self.blocks.insert(index, block)

    def remove(self, block: _RequestedBlock) -> None:
        index = bisect_left(self.starts, block.range.start)
        del self.starts[index]
        del self.blocks[index]


class Sender(Protocol):
    """Sender of requests, as `RemoteFiles` is one."""

    def begin(self, ranges: Sequence[ByteRange], urgent: bool) -> Sequence["Pending"]:
        """Requests ranges, each with one request, and does not wait."""

    def wait(
        self, pending: Sequence["Pending"], ranges: Sequence[ByteRange]
    ) -> Sequence["Answer | None"]:
        """Waits for the answers of `begin`."""

    def gap(self, location: str) -> int:
        """Gap in bytes between two ranges of a file up to which they are joined."""


@final
class Ahead:
    """Ranges that one run has requested of one reader, and that its steps have not read yet. Thread-safe.

    The bytes of a request are freed when the steps that read from it are over, or once all was read that is read once.

    Args:
        remote: Sender of the requests.
    """

    def __init__(self, remote: Sender):
        self._remote = remote
        self._lock = threading.Lock()
        self._files: defaultdict[str, _File] = defaultdict(_File)
        self._of_step: dict[int, set[_RequestedBlock]] = {}
        # ranges that were read once since `mark`
        self._read: set[ByteRange] = set()
        self._closed = False
        # Bytes of all requests that are not freed.
        self.bytes_at_hand = 0
        # How often a reader waited for a request that was sent since the last time.
        self.waits = 0

    @property
    def unanswered(self) -> int:
        """Number of requests without an answer."""
        with self._lock:
            return sum(
                not block.request.done()
                for file in self._files.values()
                for block in file.blocks
            )

    def mark(self) -> None:
        """Tells that the ranges of further steps are looked up: those that are read once meanwhile are not needed."""
        with self._lock:
            self._read.clear()

    def start(
        self,
        wanted: Iterable[tuple[int, Sequence[ByteRange]]],
        once: bool,
        window: int,
    ) -> None:
        """Requests the ranges of steps, as far as they are not requested yet.

        Args:
            wanted: Steps, ascending, each with its ranges.
            once: Whether each range is read once.
            window: Bytes that the run requests ahead at present.
        """
        most = min(max(window // _REQUESTS_IN_WINDOW, _LEAST_JOINED), _MOST_JOINED)
        with self._lock:
            if self._closed:
                return
            needed = [
                (step, each)
                for step, ranges in wanted
                for each in ranges
                if not (once and self._is_known(each))
            ]
            missing = [
                _Missing(part, step)
                for step, each in needed
                for part in self._files[each.location].missing(each)
            ]
            # All gaps together must fit into the window: what is held is bounded.
            room = (
                window
                - self.bytes_at_hand
                - sum(_size(each.range) for each in missing)
            )
            gap = 0
            if missing:
                measured = self._remote.gap(missing[0].range.location)
                gap = min(measured, max(0, room) // len(missing))
            requests = sorted(
                self._joined(missing, most, gap), key=lambda each: each.step
            )
            begun = self._remote.begin(
                [each.range for each in requests], urgent=False
            )
            for (part, _), request in zip(requests, begun, strict=True):
                self._files[part.location].add(
                    _RequestedBlock(part, request, self.waits)
                )
                self.bytes_at_hand += _size(part)
            for step, each in needed:
                for block in self._files[each.location].covering(each) or ():
                    if once:
                        block.left += _overlap(block.range, each)
                    block.steps.add(step)
                    self._of_step.setdefault(step, set()).add(block)

    def take(
        self, ranges: Sequence[ByteRange]
    ) -> tuple[dict[ByteRange, bytes], dict[str, FileInfo]]:
        """Takes the bytes of those of some ranges that were requested; waits for those that are under way.

        Returns:
            The bytes, and what the answers told about the files.

        Raises:
            StorageError: When the store refuses a request; names the range.
        """
        with self._lock:
            covered = {
                each: blocks
                for each in ranges
                if (file := self._files.get(each.location)) is not None
                and (blocks := file.covering(each)) is not None
            }
            blocks = list(dict.fromkeys(chain.from_iterable(covered.values())))
            late = [block for block in blocks if not block.request.done()]
            self.waits += any(block.window == self.waits for block in late)
            for block in blocks:
                block.readers += 1
        try:
            if late:
                self._remote.wait(
                    [block.request for block in late], [block.range for block in late]
                )
            infos = {
                block.range.location: answer.info
                for block in blocks
                if (answer := block.request.result()) is not None
                and answer.info is not None
            }
            cut = {wanted: _cut(wanted, found) for wanted, found in covered.items()}
            contents = {
                wanted: content
                for wanted, content in cut.items()
                if content is not None
            }
        except CancelledError:
            # this run is closed, or another reader's request failed
            return {}, {}
        except BaseException:
            with self._lock:
                for block in blocks:
                    self._free(block)
            raise
        finally:
            with self._lock:
                for block in blocks:
                    block.readers -= 1
        with self._lock:
            for wanted in contents:
                self._was_read(wanted, covered[wanted])
        return contents, infos

    def finish(self, step: int) -> None:
        """Frees what no later step reads."""
        with self._lock:
            for block in self._of_step.pop(step, ()):
                block.steps.remove(step)
                if not block.steps:
                    self._free(block)

    def close(self) -> None:
        """Frees all, and cancels the requests that no thread waits for. Idempotent."""
        with self._lock:
            self._closed = True
            for file in self._files.values():
                for block in file.blocks:
                    block.freed = True
                    if not block.readers:
                        block.request.cancel()
            self._files.clear()
            self._of_step.clear()
            self.bytes_at_hand = 0

    # The methods below are called with the lock held.

    def _joined(
        self, missing: Sequence[_Missing], most: int, gap: int
    ) -> Iterator[_Missing]:
        """Joins nearby ranges to requests of at most `most` bytes, and cuts larger ones."""
        last: _Missing | None = None
        for each, step in sorted(missing):
            start = each.start
            if last is not None and last.range.location == each.location:
                end = last.range.stop
                start = max(start, end)
                if start >= each.stop:
                    last = last._replace(step=min(last.step, step))
                    continue
                if not self._files[each.location].has_between(end, start):
                    if start - end <= gap and each.stop - last.range.start <= most:
                        whole = last.range.start, each.stop
                        last = _Missing(
                            ByteRange(each.location, *whole), min(last.step, step)
                        )
                        continue
                    # a reader may join both, and read what is between them
                    if start - end <= NEAR:
                        start = end
            if last is not None:
                yield last
            while each.stop - start > most:
                yield _Missing(ByteRange(each.location, start, start + most), step)
                start += most
            last = _Missing(ByteRange(each.location, start, each.stop), step)
        if last is not None:
            yield last

    def _is_known(self, wanted: ByteRange) -> bool:
        return (
            wanted in self._read
            or self._files[wanted.location].covering(wanted) is not None
        )

    def _was_read(self, wanted: ByteRange, blocks: Sequence[_RequestedBlock]) -> None:
        for block in blocks:
            if block.left:
                self._read.add(wanted)
                block.left -= _overlap(block.range, wanted)
                if block.left <= 0:
                    self._free(block)

    def _free(self, block: _RequestedBlock) -> None:
        if block.freed:
            return
        block.freed = True
        file = self._files[block.range.location]
        file.remove(block)
        for step in block.steps:
            self._of_step[step].discard(block)
        self.bytes_at_hand -= _size(block.range)
        if not file.blocks:
            del self._files[block.range.location]
        if not block.readers:
            block.request.cancel()


def _cut(wanted: ByteRange, blocks: Sequence[_RequestedBlock]) -> bytes | None:
    """The bytes of a range; None if an answer lacks some: the file is missing, or ends before."""
    parts = []
    for block in blocks:
        answer = block.request.result()
        if answer is None:
            return None
        start = max(wanted.start, block.range.start)
        stop = min(wanted.stop, block.range.stop)
        first = block.range.start
        if stop - first > len(answer.content):
            return None
        parts.append(answer.content[start - first : stop - first])
    if len(parts) == 1:
        return parts[0]
    return b"".join(parts)


def _size(wanted: ByteRange) -> int:
    return wanted.stop - wanted.start


def _overlap(one: ByteRange, other: ByteRange) -> int:
    return min(one.stop, other.stop) - max(one.start, other.start)
