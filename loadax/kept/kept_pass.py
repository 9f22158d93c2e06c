"""Passes: computes something of all rows or files, in parts, and keeps the result in an index folder.

The parts are kept too until all are finished, so an interrupted pass goes on where it was. All processes that share the
folder do the pass together.
"""

import hashlib
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from time import sleep
from typing import Any, NamedTuple

from loadax.core.context import Caller
from loadax.core.distributed import this_process
from loadax.core.formatting import count_text
from loadax.core.former import former
from loadax.core.log import log
from loadax.core.progress_bar import progress_bar
from loadax.core.threads import thread_pool
from loadax.errors import ArgumentError, LoadaxError, SourceError
from loadax.files.kept_files import delete_folder
from loadax.kept.index_folder import FILES, Entry, IndexFolder, differs
from loadax.kept.parts import (
    GONE,
    Arrays,
    ChangedError,
    PartsFolder,
    PartsInMemory,
    PartStore,
)
from loadax.kept.pass_work import Work, payload_of_pass
from loadax.kept.shared import REMEDY, SharedPass, shared_pass
from loadax.protocols import Engine
from loadax.work.payload import Package
from loadax.work.tasks import TaskRun
from loadax.work.worker import Raised, call_of

WINDOW = 256  # most tasks that an executor has at a time
_POLL = 0.2  # seconds
FEW_PARTS = 64
MANY_PARTS = 512
PART_ROWS = 1 << 17  # of a part of many rows
# of the digest in the name of such a folder
_DIGITS = 16
_HEX = "[0-9a-f]"
_LARGEST = 1 << 20  # bytes of a description
_DESCRIPTION = "pass.json"  # what the parts of a folder belong to


class PassOptions(NamedTuple):
    """How a pass is run.

    Args:
        workers: Number of threads of this process.
        executor: What runs the parts instead of threads; None: threads.
        progress: Whether to show a progress bar; None: if stderr is a terminal.
    """

    workers: int
    executor: Engine | None
    progress: bool | None


def check_index(folder: IndexFolder | None, verb: str, data: str) -> None:
    """Checks that there is an index folder in a run of several processes.

    Raises:
        ArgumentError: When there is none.
    """
    processes = this_process().count
    if folder is None and processes > 1:
        raise ArgumentError(
            f"{verb}() without index=, in a run of "
            f"{count_text(processes, 'process', 'processes')}: each would read all "
            f"{data}; pass index=, a folder that they share, so that each reads a "
            "part",
            argument="index",
        )


def part_size(total: int, together: int) -> int:
    """Rows of a part, of which there are enough for all threads until the end, and not so many that each costs much.

    Args:
        total: Number of rows.
        together: Most rows that are read together.
    """
    return max(
        1,
        min(together, -(-total // FEW_PARTS)),
        min(PART_ROWS, total // MANY_PARTS),
    )


def run_pass(work: Work, parts: PartStore, options: PassOptions) -> None:
    """Computes all parts.

    Args:
        work: What is computed.
        parts: Where the parts are kept; a `PartsFolder` if there is an executor.
        options: How it is run.

    Raises:
        Exception: What a part has raised.
    """
    if options.executor is None:
        over = threading.Event()
        caller = Caller()

        def compute(part: int) -> Raised | float:
            try:
                parts.put(part, work.compute(part, over))
            except BaseException as error:  # noqa: BLE001 - raised again by this pass
                return Raised(error)
            return 0.0  # they run here: none is slow

        with thread_pool(options.workers, "loadax-pass") as pool:
            try:
                run = TaskRun(parts, pool, options.workers, remote=False)
                run.run(lambda part, _: (caller.run, compute, part))
            except BaseException:
                over.set()
                raise
        return
    assert isinstance(parts, PartsFolder)
    # others have executors of their own
    window = min(WINDOW, -(-parts.count // this_process().count))
    with ExitStack() as written:
        payload = Package(
            lambda by_value: written.enter_context(
                payload_of_pass(parts.path, work, by_value)
            )
        )
        run = TaskRun(parts, options.executor, window, remote=True)
        run.run(lambda part, order: call_of(order, payload.latest, part), payload)


def kept_pass(
    folder: IndexFolder | None,
    name: str,
    identity: Callable[[], Mapping[str, Any]],
    check: Callable[[Entry], object],
    begin: Callable[[], Work],
    merge: Callable[[Iterator[Arrays]], Entry],
    options: PassOptions,
    *,
    shared: bool = True,
) -> Entry:
    """Returns an entry of an index folder, or computes it, together with the other processes that share the folder.

    Args:
        folder: The folder; None: the result is not kept.
        name: Name of the entry.
        identity: Identity of what it is made from, as JSON; see `IndexFolder`.
        check: Checks an entry that was read or merged; raises `ValueError`.
        begin: Makes what is computed.
        merge: Makes the entry of the arrays of all parts, in order.
        options: How it is computed.
        shared: Whether all processes of a run need the same folder.

    Raises:
        ArgumentError: When there is an executor, but no folder; or the processes of a run have different folders; or
            another pass is under way in the folder.
        SourceError: When the folder can't be written, or has parts of another pass.
    """
    if folder is None:
        work = begin()
        with progress_bar(
            work.label, sum(work.sizes), work.unit, options.progress
        ) as done:
            parts = PartsInMemory(
                len(work.sizes), lambda part: done(work.sizes[part])
            )
            run_pass(work, parts, options)
        return merge(map(parts.take, range(parts.count)))
    with shared_pass() if shared else nullcontext() as together:
        return _kept_pass(
            folder, name, identity, check, begin, merge, options, together
        )


def _kept_pass(
    folder: IndexFolder,
    name: str,
    identity: Callable[[], Mapping[str, Any]],
    check: Callable[[Entry], object],
    begin: Callable[[], Work],
    merge: Callable[[Iterator[Arrays]], Entry],
    options: PassOptions,
    together: SharedPass | None,
) -> Entry:
    """Returns an entry of a folder, or computes it. `together`: what the processes of a run tell each other."""
    # as it is read again, with lists in place of tuples
    known = json.loads(json.dumps(dict(identity())))
    compared: dict[str, Any] = {"verb": name}
    # hosts may have copies elsewhere
    compared |= {field: value for field, value in known.items() if field != FILES}
    path = folder.parts(name, _digest(known))
    merged = partial(_merged, merge=merge, check=check)
    put = partial(folder.put, name, known)
    is_checked = together is None

    def kept() -> Entry | None:
        return folder.get(name, known, check)

    seen = folder.stamp(name)
    entry = kept()
    while entry is None:
        work = begin()
        is_changed = partial(_is_changed, folder, name, seen)
        with suppress(ChangedError):
            _prepare(path, name, {**known, "parts": _digest({"sizes": work.sizes})})
            # else another process has finished it before the folder was made
            if not is_changed():
                if together is not None and not is_checked:
                    together.check_folder(path, name, compared, is_changed)
                    is_checked = True
                entry = _join(path, work, merged, put, options)
                continue
        seen = folder.stamp(name)
        entry = kept()
    if together is not None and not is_checked:
        together.check_folder(path, name, compared, lambda: True)
    _tidy(path, name)
    return entry


def _is_changed(folder: IndexFolder, name: str, seen: Any) -> bool:
    return folder.stamp(name) != seen


def _join(
    path: Path,
    work: Work,
    merged: Callable[[PartsFolder], Entry],
    put: Callable[[Entry], object],
    options: PassOptions,
) -> Entry:
    """Takes part in a pass until all parts are finished, and puts their entry, or waits until another process has."""
    with progress_bar(
        work.label, sum(work.sizes), work.unit, options.progress
    ) as done:
        parts = PartsFolder(
            path,
            work.label,
            len(work.sizes),
            lambda part: done(work.sizes[part]),
        )
        with parts.joined():
            with _advice(parts):
                run_pass(work, parts, options)
                while not parts.claim_merge():
                    sleep(_POLL)
            entry = merged(parts)
            put(entry)
            return entry


def _merged(
    parts: PartsFolder,
    merge: Callable[[Iterator[Arrays]], Entry],
    check: Callable[[Entry], object],
) -> Entry:
    """The entry of all parts.

    Raises:
        ChangedError: When a part is damaged.
        SourceError: When a part has the arrays of another pass.
    """
    try:
        entry = merge(map(parts.take, range(parts.count)))
        check(entry)
    except (ValueError, TypeError, KeyError) as error:
        if isinstance(error, LoadaxError):
            raise
        raise SourceError(
            f"{parts.path} has parts that are not of this pass ({error}); delete "
            "this folder, and call again"
        ) from error
    return entry


@contextmanager
def _advice(parts: PartsFolder) -> Iterator[None]:
    """Adds to an exception that ends a pass, including Ctrl-C, how to go on."""
    try:
        yield
    except ChangedError:
        raise
    except BaseException as error:
        finished = sum(map(parts.has, range(parts.count)))
        if not finished:
            if not parts.others():
                parts.delete()
            raise
        error.add_note(
            f"loadax: {finished} of {count_text(parts.count, 'part')} are kept in "
            f"{parts.path}; the same call with index={str(parts.path.parent)!r} "
            "goes on from there"
        )
        raise


def _prepare(path: Path, name: str, known: Mapping[str, Any]) -> None:
    """Makes the folder of the parts, and deletes unfinished parts of other data.

    Raises:
        ArgumentError: When another process computes the entry from other data, or by another function.
        ChangedError: When the parts have been merged meanwhile.
    """
    for other in _folders(path.parent, name):
        described = _described(other)
        fields = [
            field
            for field, value in known.items()
            if differs(described.get(field), value, field)
        ]
        if other == path and not (fields and described):
            continue
        differing = ", ".join(fields)
        if PartsFolder(other, name).others():
            one = "pass each its own index="
            # the processes of a run need one folder
            if this_process().count > 1:
                advice = REMEDY
            else:
                advice = one
            raise ArgumentError(
                f"index={str(path.parent)!r} is in use by another {name}(), of which "
                f"{differing} differs; {advice}"
            )
        text = (
            "index %s has unfinished parts of another %s(), of which %s differs; "
            "they are deleted %s"
        )
        log.warning(
            text,
            path.parent,
            name,
            differing,
            "now" if other == path else "when this one is complete",
        )
        if other == path:
            PartsFolder(path, name).delete()
    parts = PartsFolder(path, name)
    try:
        parts.make()
        with parts.written(_DESCRIPTION) as out:
            out.write(json.dumps(dict(known), indent=1).encode())
    except OSError as error:
        is_usable = (
            path.parent.is_dir() and not path.is_symlink() and not path.is_file()
        )
        # it was deleted, maybe made again
        if is_usable and isinstance(error, FileNotFoundError | FileExistsError):
            raise ChangedError from error
        remedy = "pass another path, delete this one, or free space"
        raise SourceError(
            f"index {path} can't be written: {error}; {remedy}"
        ) from error


def _folders(folder: Path, name: str) -> Iterator[Path]:
    """Yields the folders of the parts of passes with this name, and no folder of the user's or of another name."""
    return folder.glob(f"{name}-{_HEX * _DIGITS}.parts")


def _tidy(path: Path, name: str) -> None:
    """Deletes the parts of a pass that is complete, and those that others of its name have left behind."""
    for other in _folders(path.parent, name):
        parts = PartsFolder(other, name)
        if other == path or not parts.others():
            parts.delete()
    for gone in path.parent.glob(f"{name}-{_HEX * _DIGITS}.parts.{_HEX * 2 * GONE}"):
        delete_folder(gone)  # whoever began to may have been killed


def _described(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(PartsFolder(path, "").read(_DESCRIPTION, _LARGEST))
    except (OSError, ValueError, RecursionError):
        return {}
    if isinstance(content, dict):
        return content
    return {}


def _digest(known: Mapping[str, Any]) -> str:
    """Name of a pass among those of an entry, which loadax 0.1.0 gave it too.

    Times and places of files are compared apart: copies may have others.
    """
    named = {field: value for field, value in known.items() if field != FILES}
    text = json.dumps(former(named), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]
