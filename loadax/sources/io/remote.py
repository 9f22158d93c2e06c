"""RemoteFiles: reads byte ranges of files at URLs through TensorStore, all of them concurrently."""

import fnmatch
from collections.abc import Sequence
from enum import Enum
from time import sleep
from typing import Any, final
from urllib.parse import quote

import numpy as np
import tensorstore as ts

from loadax.errors import SourceError
from loadax.redaction import redacted
from loadax.sources.io.files import ByteRange, no_such_file, too_short
from loadax.sources.io.kvstore import new_context, open_key_value_store, wait

_LAST_BYTES = 64 << 10  # width of the search for a file's size below which the rest is read instead
_NO_RANGES = "was ignored by server"  # part of TensorStore's message
_SECOND_TRY = 0.2  # seconds before the one retry of a failed request
_FIRST_PROBES = tuple(1 << bits for bits in range(16, 52, 4))
_PROBES = 15  # concurrent one-byte requests in the search for a file's size: each round leaves a sixteenth


class _Nothing(Enum):
    FILE = "there is no such file"
    BYTES = "the file ends before"


_Outcome = ts.KvStore.ReadResult | _Nothing | SourceError


@final
class RemoteFiles:
    """Files at URLs; see `Files`. Pickles without state: another process opens its own connections."""

    def __init__(self) -> None:
        self._context = new_context(0)
        self._stores: dict[str, ts.KvStore] = {}

    def __reduce__(self) -> Any:
        return RemoteFiles, ()

    def exists(self, locations: Sequence[str]) -> list[bool]:
        return [
            outcome is not _Nothing.FILE for outcome in self._ask([(location, slice(0, 1)) for location in locations])
        ]

    def sizes(self, locations: Sequence[str]) -> list[int]:
        """Finds the sizes of files in bytes.

        TensorStore has no request for a size, so this searches for the last byte with one-byte requests: first at
        powers of 16, then 15 at a time between the last byte that exists and the first that does not. A file of 1 GB
        takes seven round trips.
        """
        # One byte first: a server without range requests would send the whole file for each probe.
        filled = self._reach([(location, 0) for location in locations])
        tops = iter(self._reach([(location, offset) for location in locations for offset in _FIRST_PROBES]))
        bounds = []  # (least, most) size of each file
        for nonempty in filled:
            present = sum(next(tops) for _ in _FIRST_PROBES)
            bounds.append(
                (
                    _FIRST_PROBES[present - 1] + 1 if present else int(nonempty),
                    _FIRST_PROBES[present] if nonempty else 0,
                )
            )
        while wide := [index for index, (least, most) in enumerate(bounds) if most - least > _LAST_BYTES]:
            probes = [np.linspace(*bounds[index], _PROBES + 2).astype(np.int64)[1:-1].tolist() for index in wide]
            reached = self._reach(
                [(locations[index], offset) for index, offsets in zip(wide, probes, strict=True) for offset in offsets]
            )
            for turn, index in enumerate(wide):
                present = sum(reached[turn * _PROBES : (turn + 1) * _PROBES])
                least, most = bounds[index]
                bounds[index] = (
                    probes[turn][present - 1] + 1 if present else least,
                    probes[turn][present] if present < _PROBES else most,
                )
        rest = [index for index, (least, most) in enumerate(bounds) if most > least]
        ends = self._ask([(locations[index], slice(bounds[index][0] - 1, None)) for index in rest])
        sizes = [least for least, _ in bounds]
        for index, end in zip(rest, ends, strict=True):
            sizes[index] += len(_present(end, locations[index]).value) - 1
        return sizes

    def contains(self, ranges: Sequence[ByteRange]) -> list[bool]:
        present = iter(
            self._reach(
                [
                    (byte_range.location, byte_range.stop - 1)
                    for byte_range in ranges
                    if byte_range.stop > byte_range.start
                ]
            )
        )
        return [byte_range.stop == byte_range.start or next(present) for byte_range in ranges]

    def read(self, ranges: Sequence[ByteRange]) -> list[bytes]:
        wanted = [byte_range for byte_range in ranges if byte_range.stop > byte_range.start]
        answers = iter(
            self._ask([(byte_range.location, slice(byte_range.start, byte_range.stop)) for byte_range in wanted])
        )
        return [
            _whole(next(answers), byte_range) if byte_range.stop > byte_range.start else b"" for byte_range in ranges
        ]

    def generations(self, locations: Sequence[str]) -> list[bytes]:
        """Returns the generations (ETags) of files, empty if the server sends none."""
        answers = self._ask([(location, slice(0, 1)) for location in locations])
        return [
            bytes(_present(answer, location).stamp.generation)
            for answer, location in zip(answers, locations, strict=True)
        ]

    def names(self, folder: str, pattern: str) -> list[str]:
        """Returns the URLs of the files in a folder whose names match a pattern.

        Raises:
            SourceError: When the server can't list files (HTTP can't).
        """
        try:
            keys = wait(open_key_value_store(folder, self._context).list(), folder)
        except NotImplementedError as error:
            raise SourceError(f"{folder}: this kind of server can't list its files; pass a list of URLs") from redacted(
                error
            )
        names = [key.decode("utf-8") for key in keys]
        return [folder + quote(name) for name in names if "/" not in name and fnmatch.fnmatchcase(name, pattern)]

    def _reach(self, places: Sequence[tuple[str, int]]) -> list[bool]:
        """Tests whether each byte exists; the files must exist."""
        answers = self._ask([(location, slice(offset, offset + 1)) for location, offset in places])
        for answer, (location, _) in zip(answers, places, strict=True):
            if answer is _Nothing.FILE:
                raise no_such_file(location)
        return [answer is not _Nothing.BYTES for answer in answers]

    def _ask(self, wanted: Sequence[tuple[str, slice]]) -> list[Any]:
        """Runs all requests; retries once the failures that TensorStore doesn't retry, such as a stray 404."""
        outcomes = self._once(wanted)
        stray = [index for index, outcome in enumerate(outcomes) if _may_be_stray(outcome)]
        if stray:
            sleep(_SECOND_TRY)
            for index, outcome in zip(stray, self._once([wanted[index] for index in stray]), strict=True):
                outcomes[index] = outcome
        for outcome in outcomes:
            if isinstance(outcome, SourceError):
                raise outcome
        return outcomes

    def _once(self, wanted: Sequence[tuple[str, slice]]) -> list[_Outcome]:
        futures = [self._store(location).read("", byte_range=span) for location, span in wanted]
        return [_outcome(future, location, span) for future, (location, span) in zip(futures, wanted, strict=True)]

    def _store(self, location: str) -> ts.KvStore:
        store = self._stores.get(location)
        if store is None:
            store = self._stores[location] = open_key_value_store(location, self._context)
        return store


def _outcome(future: Any, location: str, span: slice) -> _Outcome:
    name = f"{location}, bytes {span.start} to {'the end' if span.stop is None else span.stop - 1}"
    try:
        answer: ts.KvStore.ReadResult = wait(future, name)
    except SourceError as error:
        cause = str(error.__cause__)
        if _NO_RANGES in cause:
            problem = "the server ignores Range requests and sends whole files"
            raise SourceError(f"{name}: {problem}; use a server that supports Range requests") from error
        return _Nothing.BYTES if "OUT_OF_RANGE" in cause else error
    return _Nothing.FILE if answer.state == "missing" else answer


def _may_be_stray(outcome: _Outcome) -> bool:
    """Whether a retry may help: not after TensorStore's own retries or a timeout, nor past the end of a file."""
    if isinstance(outcome, SourceError):
        cause = outcome.__cause__
        return not isinstance(cause, TimeoutError) and "retry attempts failed" not in str(cause)
    return outcome is _Nothing.FILE


def _present(answer: Any, location: str) -> ts.KvStore.ReadResult:
    if isinstance(answer, _Nothing):
        raise no_such_file(location) if answer is _Nothing.FILE else too_short(ByteRange(location, 0, 1))
    return answer


def _whole(answer: Any, byte_range: ByteRange) -> bytes:
    if answer is _Nothing.FILE:
        raise no_such_file(str(byte_range))
    if answer is _Nothing.BYTES:
        raise too_short(byte_range)
    return bytes(answer.value)
