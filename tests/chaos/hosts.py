"""Faults of hosts, each on two real JAX processes over loopback: late, killed, stopped.

The second process is the one at fault: the first has the coordinator, with which JAX ends all others.
"""

import json
import os
import signal
import subprocess
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

import jax
import numpy as np

import loadax
from loadax import Dataloader
from loadax.errors import HostError
from loadax.loader.iterator import DataIterator
from loadax.loader.watch import hosts, status
from tests.chaos.judge import Count, log_to, rows_of
from tests.limits import HANG, until
from tests.processes.launch import output_of, started

ROWS, BATCH = 64, 8
LIMIT = HANG / 3  # seconds, after which a host counts as one that hangs


def load(seed: int, num_epochs: int | None) -> Dataloader:
    """A loader on the devices of both processes."""
    data = loadax.from_arrays(rows_of(ROWS)).shuffle(seed=seed)
    return Dataloader(data, BATCH, num_workers=1, num_epochs=num_epochs)


def late_and_gone(number: signal.Signals, count: Count, folder: Path, random: Random) -> int:
    """A host comes late, to one run, and is gone in another: named both times, and all rows that come are right."""
    shared = Path(tempfile.mkdtemp(dir=folder))
    args = {"folder": str(shared), "seed": random.randrange(100), "step": random.randrange(1, 20), "number": number}
    for told in ended(count, "come_late_and_go", args, [0]):
        count.error(HostError(told["late"]), {"process 1: not there"})
        count.error(HostError(told["gone"]), {"process 1 has been silent"})
        count.wrong += told["wrong"]
        ids = Counter[int](told["ids"])
        ids.update(json.loads((shared / "ids-1").read_text()))
        count.epoch(ids, range(1, ROWS + 1))
    return 2


def ended(count: Count, body: str, args: dict[str, Any], processes: list[int]) -> list[Any]:
    """What these processes of a run told last, as JSON; less of those that hang or fail, which counts."""
    told = []
    with started(f"{__name__}:{body}", 2, 1, args) as (children, logs):
        for process in processes:
            try:
                code = children[process].wait(LIMIT)
            except subprocess.TimeoutExpired:
                count.hangs += 1
                count.told.append(f"process {process} hangs: {output_of(logs[process])[-500:]}")
                continue
            if code:
                count.unclear += 1
                count.told.append(f"process {process} has failed: {output_of(logs[process])[-1500:]}")
            else:
                told.append(json.loads(output_of(logs[process]).splitlines()[-1]))
    return told


# What the processes do.


def come_late_and_go(folder: str, seed: int, step: int, number: int) -> None:
    """The second process begins when the first has named it, and sends itself a signal in the next run."""
    named, through = Path(folder, "named"), Path(folder, "ids-1")
    first, count, ids, lines = jax.process_index() == 0, Count(), Counter[int](), list[str]()

    def said(words: str) -> bool:
        return any(words in line for line in lines)

    with impatient(), log_to(lines.append):
        if not first:
            until(named.exists)
        with load(seed=seed, num_epochs=1).iterate() as batches:
            for batch in own(batches):
                count.batch(batch, ids)
                if first and not named.exists():
                    until(lambda: said("not there"))
                    named.touch()
            if first:
                until(through.exists)
            else:
                write(through, json.dumps(list(ids.elements())))
        with load(seed=seed, num_epochs=None).iterate() as batches:
            for batch in own(batches):
                count.batch(batch, Counter())
                if first and said("silent"):
                    break
                if not first and batches.step == step:
                    until(lambda: "of 2 hosts" in str(batches.report(hosts=True)))
                    os.kill(os.getpid(), number)
            late = next(line for line in lines if "not there" in line)
            gone = next(line for line in lines if "silent" in line)
            told = {"late": late, "gone": gone, "wrong": count.wrong, "ids": list(ids.elements())}
            print(json.dumps(told), flush=True)
            os._exit(0)  # JAX's own way out waits for the other process


def own(batches: DataIterator) -> Iterator[dict[str, Any]]:
    """The rows of each batch that this process holds."""
    for batch in batches:
        yield {name: np.concatenate([shard.data for shard in leaf.addressable_shards]) for name, leaf in batch.items()}


def write(path: Path, text: str) -> None:
    """Whole, or not at all."""
    part = path.with_suffix(".part")
    part.write_text(text)
    part.replace(path)


@contextmanager
def impatient() -> Iterator[None]:
    """Limits of tenths of seconds."""
    with (
        patch.object(hosts, "FIRST_WAIT", 0.2),
        patch.object(hosts, "TICK", 0.1),
        patch.object(hosts, "_STATUS", 0.1),
        patch.object(status, "SILENT", 1.5),
    ):
        yield


Run = Callable[[Count, Path, Random], int]
RUNS: dict[str, Run] = {
    "host late, then killed (SIGKILL)": partial(late_and_gone, signal.SIGKILL),
    "host late, then stopped (SIGSTOP)": partial(late_and_gone, signal.SIGSTOP),
}
