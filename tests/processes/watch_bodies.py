"""What the real processes of `test_watch_processes.py` do."""

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import jax
import numpy as np
import pytest

from loadax import Dataloader, from_arrays, from_stream
from loadax.errors import StallError
from loadax.loader.watch import hosts, status
from loadax.protocols import ArraySpec
from loadax.sharding import data_parallel
from tests.chaos.judge import log_to
from tests.limits import ENDLESS, HANG, until

BLOCKED = threading.Event()
"""Whether no more rows come."""


def loader(**options: Any) -> Dataloader:
    def read(row: int) -> int:
        if BLOCKED.is_set():
            time.sleep(ENDLESS)
        return row

    return Dataloader(from_arrays(np.arange(8 * 50)).map(read), 8, num_workers=1, num_epochs=None, **options)


def stream(**options: Any) -> Dataloader:
    """Each process has a part of each batch on a mesh of its own."""

    def lane_of(lane: int, lanes: int) -> Iterator[Any]:
        yield from map(np.int32, range(lane, 1000, lanes))

    part: dict[str, Any] = {"shard_index": jax.process_index(), "shard_count": 2}
    data = from_stream(lane_of, lanes=4, spec=ArraySpec((), np.dtype(np.int32)))
    return Dataloader(data, 8, mesh=data_parallel(jax.local_devices()), num_workers=1, **part, **options)


@contextmanager
def impatient() -> Iterator[None]:
    with patch.object(hosts, "TICK", 0.1), patch.object(hosts, "_STATUS", 0.1), patch.object(status, "SILENT", 3.0):
        yield


def first_leaves_and_stops(folder: str) -> None:
    """Process 0 leaves a loop early, which process 1 tells; then it stops, and process 1 waits for data, and for it."""
    first, lines = jax.process_index() == 0, list[str]()
    named, read = Path(folder, "named"), Path(folder, "read")
    with impatient(), log_to(lines.append):
        with loader().iterate() as batches:
            for _ in range(3 + (not first)):
                next(batches)
            if first:
                batches.close()
                until(named.exists)
            else:
                until(
                    lambda: any("process 0 closed its iterator at step 3, and process 1 is" in line for line in lines)
                )
                named.touch()
        with (
            loader(abort_after=2.0).iterate() as batches,
            stream(abort_after=2.0, prefetch=0).iterate() as others,
        ):
            for _ in range(4):
                next(batches)
            next(others)
            if first:
                until(read.exists)  # or process 1 would wait for a coordinator that is stopped
                os.kill(os.getpid(), signal.SIGSTOP)
            read.touch()
            BLOCKED.set()
            with pytest.raises(StallError, match=r"step \d+ has not come .* in map read(.|\n)*time.sleep\(ENDLESS\)"):
                list(batches)
            with pytest.raises(
                StallError, match=r"\[0\] have not read it .*; process 0, which runs the coordinator, do"
            ):
                list(others)
    sys.stdout.write("told")
    sys.stdout.flush()
    os._exit(0)  # JAX's own way out waits for the other process


def suspended(folder: str, steps: int) -> None:
    """Both processes are stopped for longer than `abort_after` while they wait for data."""

    def read(row: int) -> int:
        time.sleep(0.01)
        return row

    data, lines = from_arrays(np.arange(8 * steps)).map(read), list[str]()
    with (
        impatient(),
        patch.object(hosts, "FIRST_WAIT", HANG),  # on a busy machine, one may begin long before the other
        log_to(lines.append),
        Dataloader(data, 8, num_workers=1, stall_after=None, abort_after=3.0).iterate() as batches,
    ):
        for _ in batches:
            Path(folder, f"ready-{jax.process_index()}").touch()
    assert not lines, lines
