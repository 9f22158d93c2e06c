"""SharedPass: what the processes of a JAX run tell each other of a pass that they do together.

They count the passes that they begin. Process 0 tells what its n-th one is, and of which folder; the others compare
that with their own n-th one. A process whose pass fails tells the others, and so does process 0 when it exits: none
waits for it then. A pass may take as long as it likes.
"""

import atexit
import hashlib
import json
import os
import secrets
import socket
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from itertools import count
from math import inf
from pathlib import Path
from time import sleep
from typing import Any, final

from loadax.core.distributed import this_process
from loadax.core.formatting import count_text
from loadax.core.key_value import (
    CoordinatorError,
    KeyValueStore,
    key_value_store,
    runs_without,
)
from loadax.core.log import log
from loadax.core.patience import NOTICE, Patience
from loadax.errors import ArgumentError, HostError
from loadax.files.kept_files import kept_folder
from loadax.redaction import redact

# seconds after which a file that one host has written is there on all others
VISIBLE = 10.0
POLL = 0.1  # seconds
# seconds between two looks for runs of process 0 that this process has not begun
_LOOK = 3.0
# seconds without an answer of the coordinator, after which the wait for others ends
SILENT = 60.0
_LONGEST = 80  # characters of a value in a message
# Advice for processes of a run that do different passes.
REMEDY = (
    "start all processes with the same data, functions and arguments, and call the "
    "same verbs in the same order; where only a path or a process index makes "
    "functions differ, pass key=, a text that says what they do"
)

_AGAIN = "mend its cause, and start all processes again: finished parts are kept"
# Directory of the processes that have ended.
EXITS = "passes/exits"

# Passes of this process by kind; other processes count the same.
_numbers: defaultdict[str, Iterator[int]] = defaultdict(lambda: count(1))


@final
class SharedPass:
    """A pass of several processes, as one of them sees it.

    Args:
        store: Key-value store of the coordination service.
        key: Directory of this pass in the store.
        number: Number of this pass among those of its kind, from 1 on.
    """

    def __init__(self, store: KeyValueStore, key: str, number: int):
        self._store = store
        self._key = key
        self._number = number
        self._process = this_process()
        register_exit()

    def fail(self, error: BaseException) -> None:
        """Tells the other processes that this one has failed in the pass."""
        text = redact(f"{type(error).__name__}: {error}")
        with suppress(RuntimeError):  # the coordinator has ended
            self._store.set(f"{self._key}/failed/{self._process.index}", text)

    def check_folder(
        self,
        path: Path,
        label: str,
        identity: Mapping[str, Any],
        is_kept: Callable[[], bool],
    ) -> None:
        """Waits until process 0 begins this pass, and checks that it is the same, in the same folder.

        Process 0 writes a file into the folder, and its name into the store.

        Args:
            path: Folder of the parts of the pass, which exists in process 0.
            label: Name of the pass, for messages.
            identity: What the pass is made from, as JSON.
            is_kept: Says whether the index folder has the result.

        Raises:
            ArgumentError: When another folder has this path here.
            HostError: When process 0 does another pass, has failed in it, or has ended.
        """
        if self._process.index == 0:
            token = secrets.token_hex(8)
            # else the result is kept already
            with suppress(FileNotFoundError), kept_folder(path) as folder:
                os.close(
                    os.open(
                        f"{token}.shared",
                        os.O_CREAT | os.O_EXCL | os.O_CLOEXEC,
                        0o600,
                        dir_fd=folder,
                    )
                )
            begun = {
                "token": token,
                "host": socket.gethostname(),
                "identity": briefly(identity),
            }
            self._store.set(f"{self._key}/begun/0", json.dumps(begun))
            return

        def found() -> str | None:
            begun = self._begun()
            # Process 0 begins before it keeps a result, which may be that of another pass.
            if begun is None and is_kept():
                return self._begun() or ""
            return begun

        answer = self._wait_for(found, label, "process 0 to begin it")
        if not answer:
            return
        begun = json.loads(answer)
        self._check_alike(label, briefly(identity), begun)
        patience = Patience(inf, VISIBLE)
        while not (is_kept() or os.path.lexists(path / f"{begun['token']}.shared")):
            if patience.over:
                raise ArgumentError(
                    f"index={str(path.parent)!r} is not one folder: process "
                    f"{self._process.index} on {socket.gethostname()} does not see "
                    f"what process 0 on {begun['host']} has written there; pass a "
                    "folder that all "
                    f"{count_text(self._process.count, 'process', 'processes')} "
                    "share, or one that has the index already"
                )
            sleep(POLL)

    def wait_until(self, done: Callable[[], bool], label: str, what: str) -> None:
        """Waits for what all processes do together, unless one of them has failed.

        Args:
            done: Says whether it is done.
            label: Name of the work, for messages.
            what: What is waited for, for messages.

        Raises:
            HostError: When a process has failed, or process 0 has ended.
        """
        self._wait_for(lambda: done() or None, label, what)

    def _wait_for(self, found: Callable[[], Any], label: str, what: str) -> Any:
        patience = Patience(NOTICE, inf)
        answered = Patience(inf, SILENT)
        look = Patience(inf, _LOOK)
        runs: set[str] = set()
        while True:
            try:
                # Before the look at what is waited for: it may have come before a failure.
                failures = self._listed("failed")
                exits = self._store.list(EXITS)
                earlier = runs
                if look.over and self._process.index > 0:
                    look = Patience(inf, _LOOK)
                    runs = runs_without(
                        self._store, self._process.index, self._process.count
                    )
                if (answer := found()) is not None:
                    return answer
            except CoordinatorError as error:
                if answered.over:
                    text = (
                        f"{label}: process 0, which runs the coordinator, has not "
                        f"answered for {SILENT:g} s"
                    )
                    raise HostError(f"{text} ({error}); {_AGAIN}") from error
            else:
                answered = Patience(inf, SILENT)
                for process, message in failures.items():
                    raise HostError(
                        f"{label}: process {process} has failed with {message}; "
                        f"{_AGAIN}"
                    )
                if "0" in exits and self._process.index != 0:
                    how = (
                        f"process 0 has ended{exits['0']} while others waited for "
                        f"{what}"
                    )
                    raise HostError(f"{label}: {how}; {REMEDY}")
                # this process has had the time to begin it
                if runs is not earlier and runs & earlier:
                    raise HostError(
                        f"{label}: process 0 iterates over a loader of all "
                        f"processes, while process {self._process.index} waits for "
                        f"{what}; {REMEDY}"
                    )
            if patience.due():
                log.warning(
                    "%s: waiting for %s, for %.0f s", label, what, patience.waited
                )
            sleep(POLL)

    def _begun(self) -> str | None:
        """JSON of what process 0 does; None: it has not begun."""
        return self._listed("begun").get("0")

    def _listed(self, directory: str) -> dict[str, str]:
        return dict(self._store.list(f"{self._key}/{directory}"))

    def _check_alike(
        self, label: str, own: Mapping[str, str], begun: Mapping[str, Any]
    ) -> None:
        theirs = begun["identity"]
        fields = [
            field
            for field in dict.fromkeys([*theirs, *own])
            if theirs.get(field) != own.get(field)
        ]
        if fields:
            field = fields[0]
            if fields[1:]:
                also = f" (also in: {', '.join(fields[1:])})"
            else:
                also = ""
            raise HostError(
                f"hosts differ in {field} of {label}, pass {self._number} of this "
                f"run: {theirs.get(field)} on process 0; {own.get(field)} on process "
                f"{self._process.index}{also}; {REMEDY}"
            )


@contextmanager
def shared_pass(kind: str = "passes") -> Iterator[SharedPass | None]:
    """The next pass of all processes of a JAX run; None: there is one process. Others learn of an exception in it.

    Args:
        kind: Kind of passes that are counted together.
    """
    store = key_value_store()
    if store is None:
        yield None
        return
    number = next(_numbers[kind])
    together = SharedPass(store, f"{kind}/{number}", number)
    try:
        yield together
    except BaseException as error:
        together.fail(error)
        raise


@cache
def register_exit() -> None:
    """Has process 0 tell the others when it exits, which JAX does not do for minutes."""
    if this_process().index == 0:
        atexit.register(_tell_exit)


def _tell_exit() -> None:
    # Python sets it to the exception that ends the program
    error = getattr(sys, "last_value", None)
    if error is None:
        text = ""
    else:
        text = redact(f" with {type(error).__name__}: {error}")
    with suppress(Exception):  # whatever it is, this process ends
        if (store := key_value_store()) is not None:
            store.set(f"{EXITS}/0", text)


def briefly(identity: Mapping[str, Any]) -> dict[str, str]:
    """Text of each field: short ones as they are, long ones as a digest."""
    texts = {
        field: json.dumps(value, sort_keys=True) for field, value in identity.items()
    }
    digests = {
        field: hashlib.sha256(text.encode()).hexdigest()[:8]
        for field, text in texts.items()
    }
    return {
        field: text
        if len(text) <= _LONGEST
        else f"{text[:_LONGEST]}… (digest {digests[field]})"
        for field, text in texts.items()
    }
