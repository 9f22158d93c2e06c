"""Checks that the processes of a JAX run have one index folder in common, before they do a pass together."""

import importlib
import os
import secrets
import socket
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from math import inf
from pathlib import Path
from time import sleep
from typing import Any

from loadax.core.distributed import this_process
from loadax.core.patience import Patience, wait_until
from loadax.errors import ArgumentError
from loadax.sources.io.kept_files import kept_folder

_VISIBLE = 10.0  # seconds after which a file that one host has written is there on all others
_POLL = 0.1  # seconds

_calls: Counter[str] = Counter()  # passes of this process by name; other processes count the same


def check_shared(path: Path, label: str, is_kept: Callable[[], bool]) -> None:
    """Waits until process 0 begins a pass, and checks that its folder is the one of this process.

    Process 0 writes a file into the folder, and its name into the key-value store of the coordination service.

    Args:
        path: Folder of the parts of a pass, which exists in process 0.
        label: Name of the pass, for messages.
        is_kept: Says whether the index folder has the result.

    Raises:
        ArgumentError: When another folder has this path here.
    """
    # By name, because sources never import JAX; a run of several processes has.
    store: Any = importlib.import_module("loadax.sharding.key_value").key_value_store()
    if store is None:
        return
    _calls[path.name] += 1
    directory = f"passes/{path.name}/{_calls[path.name]}"
    process = this_process()
    if process.index == 0:
        token = secrets.token_hex(8)
        with suppress(FileNotFoundError), kept_folder(path) as folder:  # else the result is kept already
            os.close(os.open(f"{token}.shared", os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=folder))
        store.set(f"{directory}/{token}", socket.gethostname())
        return
    if is_kept():
        return
    tokens = wait_until(partial(store.list, directory), "%s: waiting for process 0 to begin it", label)
    patience = Patience(inf, _VISIBLE)
    while not (is_kept() or any(os.path.lexists(path / f"{token}.shared") for token in tokens)):
        if patience.over:
            host = ", ".join(tokens.values())
            raise ArgumentError(
                f"index={str(path.parent)!r} is not one folder: process {process.index} on {socket.gethostname()} does "
                f"not see what process 0 on {host} has written there; pass a folder that all {process.count} processes "
                "share, or one that has the index already"
            )
        sleep(_POLL)
