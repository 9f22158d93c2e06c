"""One contestant in a process of its own: takes a command a line from stdin, answers each with a line of JSON on stdout.

Started through turns.py, with the contestant's name, the kind of workload, the workload and its folder.
"""

import gc
import hashlib
import itertools
import json
import logging
import os
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, final

import jax
import numpy as np
import psutil
from contestants import CONTESTANTS, Prepare
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from readers import READERS
from stores import Stored
from workloads import Workload

_FEWEST = 3  # batches of a lead-in and of a timed window, however slow


@final
class Contestant:
    """What the commands do; every batch that is taken is waited for."""

    def __init__(self, workload: Workload | Stored, folder: Path, prepare: Prepare):
        sharding = NamedSharding(Mesh(np.array(jax.devices()), ("data",)), PartitionSpec("data"))
        self._workload, self._folder = workload, folder
        self._open = prepare(workload, folder, sharding)
        self._batches: Any = None

    def ready(self) -> str:
        """Answers as soon as the process can."""
        return self._workload.name

    def first(self, times: int) -> dict[str, Any]:
        """Seconds from a fresh iterator to its first batch on the devices: the process's very first, and the median of more."""
        seconds = []
        for _ in range(1 + times):
            began = time.perf_counter()
            batches = self._open()
            jax.block_until_ready(next(batches))
            seconds.append(time.perf_counter() - began)
            _end(batches)
            del batches
            gc.collect()
            time.sleep(0.05)  # threads of the one before come to rest
        return {"cold": seconds[0], "warm": statistics.median(seconds[1:])}

    def check(self, batches: int) -> dict[str, Any]:
        """Compares the first batches with the rows they say they hold.

        Raises:
            ValueError: when a row has other contents than the source, or comes twice.
        """
        arrays = self._workload.load(self._folder)
        served = []
        stream = self._open()
        for _ in range(min(batches, self._workload.steps_per_epoch)):
            batch = next(stream)
            rows = self._workload.rows_of(batch)
            for leaf, array in zip(jax.tree.leaves(batch), jax.tree.leaves(arrays), strict=True):
                if leaf.dtype != array.dtype or not np.array_equal(np.asarray(leaf), array[rows]):
                    raise ValueError(f"a batch differs from the source in its rows {rows}")
            served.append(rows)
        _end(stream)
        rows = np.sort(np.concatenate(served))
        if (np.diff(rows) == 0).any():
            raise ValueError("the first epoch served a row twice")
        return {"rows": len(rows), "digest": hashlib.sha256(rows.tobytes()).hexdigest()[:16]}

    def round(self, seconds: float, lead: float, whole: int = 1) -> dict[str, float]:
        """Takes batches for `lead` seconds, until the queues are as they stay, and then for `seconds` against the clock.

        Args:
            seconds: the least that is timed.
            lead: seconds before.
            whole: a multiple of so many batches is timed.
        """
        if self._batches is None:
            self._batches = self._open()
        self._take(lead)
        cpu = _cpu_seconds()
        count, elapsed = self._take(seconds, whole)
        rows = count * self._workload.batch_size
        return {"rows": rows, "seconds": elapsed, "cpu_seconds": _cpu_seconds() - cpu}

    def sleep(self, steps: int, seconds: float) -> dict[str, Any]:
        """What a training step that only sleeps waits for its batch: in `next` and until the batch is there.

        Args:
            steps: how many.
            seconds: that a step sleeps.

        Returns:
            "share" of the time spent waiting, "median" and "most" seconds of a wait; and the same under "floor" for an iterator that
            has nothing to do, which is what the measuring itself costs on this machine.
        """
        batches = self._open()
        waits = self._waits(batches, steps, seconds)
        batch = next(batches)
        _end(batches)
        return {**waits, "floor": self._waits(itertools.repeat(batch), steps // 3, seconds)}

    def _waits(self, batches: Iterator[Any], steps: int, seconds: float) -> dict[str, float]:
        loss = jax.block_until_ready(jax.device_put(np.zeros(1)))
        waits, began = [], 0.0
        for step in range(_FEWEST + steps):
            if step == _FEWEST:
                began = time.perf_counter()
            asked = time.perf_counter()
            batch = jax.block_until_ready(next(batches))
            if step >= _FEWEST:
                waits.append(time.perf_counter() - asked)
            del batch  # what freeing it takes is no waiting
            time.sleep(seconds)
            # Waking up takes a machine up to 0.1 ms, and a training step has it behind it when its result is there.
            jax.block_until_ready(loss)
        share = sum(waits) / (time.perf_counter() - began)
        return {"share": share, "median": statistics.median(waits), "most": max(waits)}

    def _take(self, seconds: float, whole: int = 1) -> tuple[int, float]:
        count, elapsed, began = 0, 0.0, time.perf_counter()
        while elapsed < seconds or count < _FEWEST or count % whole:
            jax.block_until_ready(next(self._batches))
            count += 1
            elapsed = time.perf_counter() - began
        return count, elapsed


def _end(batches: Any) -> None:
    if hasattr(batches, "close"):
        batches.close()


def _cpu_seconds() -> float:
    """Of this process and its children."""
    times = [child.cpu_times() for child in psutil.Process().children(recursive=True)]
    return time.process_time() + sum(each.user + each.system for each in times)


def main() -> None:
    """Answers commands until there are none."""
    # Libraries may print: the answers get the real stdout for themselves, and whatever is printed goes to stderr.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    logging.getLogger("loadax").setLevel(logging.ERROR)  # of a process that is stopped between its turns, every read takes long
    name, kind, text, folder = sys.argv[1:]
    workload = Stored(**json.loads(text)) if kind == "Stored" else Workload(**json.loads(text))
    prepare = READERS[workload.name][name] if isinstance(workload, Stored) else CONTESTANTS[name]
    contestant = Contestant(workload, Path(folder), prepare)
    for line in sys.stdin:
        command = json.loads(line)
        answer = getattr(contestant, command.pop("do"))(**command)
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
