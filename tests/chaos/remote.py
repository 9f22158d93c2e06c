"""Kills the workers that read for a loader, on a Dask cluster: `python -m tests.chaos.remote`.

Law: every batch and state is that of a loader without them, and no step waits for long.
"""

import argparse
import random
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import psutil

from loadax import Dataloader, Dataset, from_source
from tests.engines import DaskCluster, engine_maker, worker_pids
from tests.limits import until

ROWS, BATCH = 4096, 16


class Outcome(NamedTuple):
    """What a run took.

    Attributes:
        steps: Steps.
        longest: Longest wait for a step, in seconds, from the second one on.
        again: Tasks that were given out again.
        here: Rows that the training process read.
        extra: Rows that were decoded more than once, beyond those.
    """

    steps: int
    longest: float
    again: int
    here: int
    extra: int


def noted(log: Path, seconds: float) -> Dataset:
    """Numbers in a random order, each with noise of its own; each decoding appends its row to a log."""

    def decode(row: Any, rng: np.random.Generator) -> dict[str, Any]:
        time.sleep(seconds)
        with log.open("a") as out:
            out.write(f"{row}\n")
        return {"row": np.int32(row), "noise": rng.integers(0, 1 << 30, 64, np.int32)}

    return from_source(range(ROWS)).shuffle(seed=0).map(decode, rng=True, seed=1)


def kill_while_reading(
    cluster: DaskCluster, folder: Path, kills: int, every: float, seconds: float, say: Callable[[str], object]
) -> Outcome:
    """Trains while workers are killed, all at once in the middle, and compares each batch with a local one."""
    log, local = folder / "log", folder / "local"
    remote = Dataloader(noted(log, seconds), BATCH, num_epochs=None, remote=engine_maker(cluster.engine))
    plain = Dataloader(noted(local, 0.0), BATCH, num_epochs=None)
    over, killed = threading.Event(), 0

    def kill() -> None:
        nonlocal killed
        for number in range(kills):
            over.wait(every)
            until(lambda: worker_pids(cluster.nanny))
            pids = worker_pids(cluster.nanny)
            chosen = pids if number == kills // 2 else [random.Random(number).choice(pids)]
            for pid in chosen:
                with suppress(psutil.NoSuchProcess):
                    psutil.Process(pid).kill()
                    killed += 1
            say(f"killed {len(chosen)} of {len(pids)} workers")
        over.set()

    longest, steps, wanted = 0.0, 0, plain.iterate()
    killer = threading.Thread(target=kill)
    with closing(remote.iterate()) as batches, closing(wanted):
        jax.tree.map(np.testing.assert_array_equal, next(batches), next(wanted))
        killer.start()
        while not over.is_set():
            began = time.perf_counter()
            batch = next(batches)
            longest = max(longest, time.perf_counter() - began)
            jax.tree.map(np.testing.assert_array_equal, batch, next(wanted))
            assert batches.get_state() == wanted.get_state()
            steps += 1
        killer.join()
        stats, state = batches.stats(), batches.get_state()
    for loader in (plain, remote):  # a run goes on without the workers, and with them
        with closing(loader.iterate(state)) as batches:
            jax.tree.map(np.testing.assert_array_equal, next(batches), remote[state["step"]])
    decoded = Counter(map(int, log.read_text().split()))
    say(f"{decoded.total()} decoded, {stats.rows} rows, {stats}")
    return Outcome(steps, longest, stats.given_again, stats.read_here, decoded.total() - stats.rows)


def main() -> None:
    """Kills a worker every second for twenty seconds, and all of them once."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.remote", description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--every", type=float, default=1.0, metavar="SECONDS")
    parser.add_argument("--row", type=float, default=0.002, metavar="SECONDS", help="time that a row takes")
    options = parser.parse_args()
    # workers write into the folder until they are killed
    with tempfile.TemporaryDirectory() as folder, closing(DaskCluster()) as cluster:
        print(kill_while_reading(cluster, Path(folder), options.kills, options.every, options.row, print), flush=True)


if __name__ == "__main__":
    main()
