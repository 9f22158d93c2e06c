"""RemoteFiles: reads ranges of files behind URLs through TensorStore, all of them concurrently."""

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

_LAST_BYTES = 64 << 10  # of a file that may be more than it has: so many are asked for rather than searched
_NO_RANGES = "was ignored by server"  # part of TensorStore's message
_SECOND_TRY = 0.2  # seconds until what failed is asked for once more
_FIRST_PROBES = tuple(1 << bits for bits in range(16, 52, 4))
_PROBES = 15  # bytes of a file that are asked for at once to find where it ends: each round leaves a sixteenth


class _Nothing(Enum):
    FILE = "there is no such file"
    BYTES = "the file ends before"


_Outcome = ts.KvStore.ReadResult | _Nothing | SourceError


@final
class RemoteFiles:
    """Files behind URLs; see `Files`. Pickles as nothing but itself: another process opens its own connections."""

    def __init__(self) -> None:
        self._context = new_context(0)
        self._stores: dict[str, ts.KvStore] = {}

    def __reduce__(self) -> Any:
        return RemoteFiles, ()

    def exists(self, locations: Sequence[str]) -> list[bool]:
        return [each is not _Nothing.FILE for each in self._ask([(where, slice(0, 1)) for where in locations])]

    def sizes(self, locations: Sequence[str]) -> list[int]:
        """The sizes of files in bytes.

        No request of TensorStore's tells a size, so single bytes are asked for, many at once: those at powers of 16
        first, then 15 between the last that is there and the first that is not, again and again. A file of 1 GB takes
        seven round trips.
        """
        # One byte alone at first: a server that knows no ranges would send the whole file for each.
        filled = self._reach([(where, 0) for where in locations])
        tops = iter(self._reach([(where, place) for where in locations for place in _FIRST_PROBES]))
        bounds = []  # of each file: how many bytes are there at least, and at most
        for some in filled:
            there = sum(next(tops) for _ in _FIRST_PROBES)
            bounds.append((_FIRST_PROBES[there - 1] + 1 if there else int(some), _FIRST_PROBES[there] if some else 0))
        while wide := [number for number, (least, most) in enumerate(bounds) if most - least > _LAST_BYTES]:
            places = [np.linspace(*bounds[number], _PROBES + 2).astype(np.int64)[1:-1].tolist() for number in wide]
            found = self._reach(
                [(locations[number], place) for number, each in zip(wide, places, strict=True) for place in each]
            )
            for turn, number in enumerate(wide):
                there = sum(found[turn * _PROBES : (turn + 1) * _PROBES])
                least, most = bounds[number]
                bounds[number] = (
                    places[turn][there - 1] + 1 if there else least,
                    places[turn][there] if there < _PROBES else most,
                )
        rest = [number for number, (least, most) in enumerate(bounds) if most > least]
        ends = self._ask([(locations[number], slice(bounds[number][0] - 1, None)) for number in rest])
        sizes = [least for least, _ in bounds]
        for number, end in zip(rest, ends, strict=True):
            sizes[number] += len(_found(end, locations[number]).value) - 1
        return sizes

    def contains(self, ranges: Sequence[ByteRange]) -> list[bool]:
        found = iter(self._reach([(each.location, each.stop - 1) for each in ranges if each.stop > each.start]))
        return [each.stop == each.start or next(found) for each in ranges]

    def read(self, ranges: Sequence[ByteRange]) -> list[bytes]:
        wanted = [each for each in ranges if each.stop > each.start]
        answers = iter(self._ask([(each.location, slice(each.start, each.stop)) for each in wanted]))
        return [_whole(next(answers), each) if each.stop > each.start else b"" for each in ranges]

    def generations(self, locations: Sequence[str]) -> list[bytes]:
        """What changes when a file changes, as far as its server says so (ETags and the like)."""
        answers = self._ask([(where, slice(0, 1)) for where in locations])
        return [bytes(_found(answer, where).stamp.generation) for answer, where in zip(answers, locations, strict=True)]

    def names(self, folder: str, pattern: str) -> list[str]:
        """The URLs of the files in a folder whose names match a pattern.

        Raises:
            SourceError: when the server can't list files (HTTP can't).
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
        """Whether each byte is there; the file must be."""
        answers = self._ask([(where, slice(place, place + 1)) for where, place in places])
        for answer, (where, _) in zip(answers, places, strict=True):
            if answer is _Nothing.FILE:
                raise no_such_file(where)
        return [answer is not _Nothing.BYTES for answer in answers]

    def _ask(self, wanted: Sequence[tuple[str, slice]]) -> list[Any]:
        """An answer to each request: what was read, or what was not there.

        What TensorStore doesn't try again by itself, such as a stray 404, is asked for once more.
        """
        outcomes = self._once(wanted)
        stray = [number for number, outcome in enumerate(outcomes) if _may_be_stray(outcome)]
        if stray:
            sleep(_SECOND_TRY)
            for number, outcome in zip(stray, self._once([wanted[number] for number in stray]), strict=True):
                outcomes[number] = outcome
        for outcome in outcomes:
            if isinstance(outcome, SourceError):
                raise outcome
        return outcomes

    def _once(self, wanted: Sequence[tuple[str, slice]]) -> list[_Outcome]:
        futures = [self._store(where).read("", byte_range=span) for where, span in wanted]
        return [_outcome(future, where, span) for future, (where, span) in zip(futures, wanted, strict=True)]

    def _store(self, location: str) -> ts.KvStore:
        store = self._stores.get(location)
        if store is None:
            store = self._stores[location] = open_key_value_store(location, self._context)
        return store


def _outcome(future: Any, where: str, span: slice) -> _Outcome:
    name = f"{where}, bytes {span.start} to {'the end' if span.stop is None else span.stop - 1}"
    try:
        answer: ts.KvStore.ReadResult = wait(future, name)
    except SourceError as error:
        cause = str(error.__cause__)
        if _NO_RANGES in cause:
            problem = "the server sends whole files only, and loadax asks for parts of them"
            raise SourceError(f"{name}: {problem}; use a server that knows Range requests") from error
        return _Nothing.BYTES if "OUT_OF_RANGE" in cause else error
    return _Nothing.FILE if answer.state == "missing" else answer


def _may_be_stray(outcome: _Outcome) -> bool:
    """Whether a second try may help.

    Not after TensorStore's own tries or a time limit, nor for bytes behind the end.
    """
    if isinstance(outcome, SourceError):
        cause = outcome.__cause__
        return not isinstance(cause, TimeoutError) and "retry attempts failed" not in str(cause)
    return outcome is _Nothing.FILE


def _found(answer: Any, where: str) -> ts.KvStore.ReadResult:
    if isinstance(answer, _Nothing):
        raise no_such_file(where) if answer is _Nothing.FILE else too_short(ByteRange(where, 0, 1))
    return answer


def _whole(answer: Any, where: ByteRange) -> bytes:
    if answer is _Nothing.FILE:
        raise no_such_file(str(where))
    if answer is _Nothing.BYTES:
        raise too_short(where)
    return bytes(answer.value)
