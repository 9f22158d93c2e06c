"""Faults of hosts, each on two real JAX processes over loopback: other data, late, killed, stopped.

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


def load(rows: int = ROWS, seed: int = 0, batch_size: int = BATCH, added: int = 0, **options: Any) -> Dataloader:
    """A loader on the devices of both processes; `added` to the last row makes its contents others."""
    content = rows_of(rows)
    content["x"][-1] += added
    return Dataloader(loadax.from_arrays(content).shuffle(seed=seed), batch_size, num_workers=1, **options)


OTHERS: dict[str, dict[str, int]] = {
    "number of rows": {"rows": ROWS + BATCH},
    "dataset": {"seed": 1},
    "batch_size": {"batch_size": 2 * BATCH},
    f"contents of row {ROWS - 1}": {"added": 1},
}
"""What is made otherwise, by the field that both hosts must name."""


def other_data(count: Count, folder: Path, random: Random) -> int:
    """Both hosts must say before their first batch that they differ, and in which field."""
    fields = random.sample(list(OTHERS), len(OTHERS))
    for told in ended(count, "differ", {"fields": fields}, [0, 1]):
        for field, text in zip(fields, told, strict=True):
            count.error(HostError(text), {f"hosts differ in {field}"})
    return len(fields)


def late_and_killed(count: Count, folder: Path, random: Random) -> int:
    return late_and_gone(count, folder, random, signal.SIGKILL)


def late_and_stopped(count: Count, folder: Path, random: Random) -> int:
    return late_and_gone(count, folder, random, signal.SIGSTOP)


def late_and_gone(count: Count, folder: Path, random: Random, number: signal.Signals) -> int:
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


def differ(fields: list[str]) -> None:
    """Prints the error of each run in which the second process has something else."""
    told = []
    for field in fields:
        other = OTHERS[field] if jax.process_index() else {}
        with load(**other).iterate() as batches:
            try:
                next(batches)
                told.append("no error")
            except HostError as error:
                told.append(str(error))
    print(json.dumps(told))


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
    "host with other data": other_data,
    "host late, then killed (SIGKILL)": late_and_killed,
    "host late, then stopped (SIGSTOP)": late_and_stopped,
}
