"""Shares a scan among the processes of one run; they meet in files beside the index.

Process i writes `<index>.part-i-of-n` when its share is done, and until then now and then how far it is, so that the
others can tell slow from dead. Process 0 puts the parts together; the others wait for that.
"""

import logging
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from time import monotonic, sleep
from typing import Any, TypeVar, final

import numpy as np
from numpy.typing import NDArray

from loadax.core.distributed import Process
from loadax.core.formatting import some
from loadax.errors import SourceError
from loadax.row_index.store import Identity, Loaded, load, save

PATIENCE = 600.0
"""Seconds without any progress of the others until waiting for them is an error."""

_BEAT = 1.0  # seconds between two signs of life
_NOTICE = 10.0  # seconds of waiting until a log line says so; twice as long for each one that follows
_POLL, _LONGEST_POLL = 0.02, 1.0

_log = logging.getLogger("loadax")
_Found = TypeVar("_Found")


@final
class Heartbeat:
    """The file in which a process says how far it is."""

    def __init__(self, path: Path):
        self.path = path
        self._said = -_BEAT
        self._count = 0

    def __call__(self, more: int) -> None:
        """Counts on; written at most once a second."""
        self._count += more
        if monotonic() - self._said >= _BEAT:
            self._said = monotonic()
            with suppress(OSError):  # a sign of life that could not be given is no reason to die
                self.path.parent.mkdir(parents=True, exist_ok=True)
                self.path.write_text(str(self._count))

    def end(self) -> None:
        """Takes the file away."""
        self.path.unlink(missing_ok=True)


def compute_together(
    path: Path, identity: Identity, process: Process, compute: Callable[[Callable[[int], None]], NDArray[Any]]
) -> Loaded:
    """The whole array, of which this process computes its share, unless it did so in a run before.

    Args:
        path: of the index, on a file system that all processes see.
        identity: of the whole.
        process: this one.
        compute: gives this process's share; calls its argument with what was done.

    Raises:
        SourceError: when others make no progress for too long; names them.
    """
    parts = [path.with_name(f"{path.name}.part-{number}-of-{process.count}") for number in range(process.count)]
    beats = [part.with_name(f"{part.name}.at") for part in parts]
    mine, beat = parts[process.index], Heartbeat(beats[process.index])
    try:
        if load(mine, _share(identity, process)).values is None:
            beat(0)
            save(mine, _share(identity, process), compute(beat))
        if process.index == 0:
            found = _merged(path, identity, parts, beats, beat)
        else:
            found = _waited_for(
                lambda: _whole(path, identity),
                [path, beats[0]],
                lambda: "process 0, which puts the index together",
                path,
            )
    finally:
        beat.end()
    for part in parts if process.index == 0 else [mine]:
        part.unlink(missing_ok=True)
    return found


def _share(identity: Identity, process: Process) -> Identity:
    return {**identity, "share": [process.index, process.count]}


def _merged(path: Path, identity: Identity, parts: list[Path], beats: list[Path], beat: Heartbeat) -> Loaded:
    there: dict[int, NDArray[Any]] = {}

    def all_parts() -> list[NDArray[Any]] | None:
        for number, part in enumerate(parts):
            if number not in there:
                values = load(part, _share(identity, Process(number, len(parts)))).values
                if values is not None:
                    there[number] = values
        return [there[number] for number in range(len(parts))] if len(there) == len(parts) else None

    def missing() -> str:
        numbers = [number for number in range(len(parts)) if number not in there]
        return f"the shares of {len(numbers)} of {len(parts)} processes: {some(numbers)}"

    found = _waited_for(all_parts, [*parts, *beats[1:]], missing, path, beat)
    values = np.concatenate(found)
    return Loaded(values, save(path, identity, values), None)


def _whole(path: Path, identity: Identity) -> Loaded | None:
    loaded = load(path, identity)
    return None if loaded.values is None else loaded


def _waited_for(
    look: Callable[[], _Found | None],
    watched: list[Path],
    missing: Callable[[], str],
    path: Path,
    beat: Heartbeat | None = None,
) -> _Found:
    """What `look` finds at last. Others are alive as long as the watched files change; `beat` passes that on."""
    began = progress = monotonic()
    notice, poll = _NOTICE, _POLL
    signs = _signs(watched)
    while (found := look()) is None:
        now = _signs(watched)
        if now != signs:
            signs, progress = now, monotonic()
            if beat is not None:
                beat(1)
        if monotonic() - progress > PATIENCE:
            raise SourceError(
                f"index {path}: no sign of {missing()} for {PATIENCE:g} s; "
                "has a process ended, do all of them see this folder, and do all build the same dataset?"
            )
        if monotonic() - began > notice:
            _log.info("index %s: waiting for %s", path, missing())
            notice *= 2
        sleep(poll)
        poll = min(2 * poll, _LONGEST_POLL)
    return found


def _signs(watched: list[Path]) -> list[Any]:
    signs: list[Any] = []
    for each in watched:
        try:
            status = each.stat()
            signs.append((status.st_ino, status.st_size, status.st_mtime_ns))
        except OSError:
            signs.append(None)
    return signs
