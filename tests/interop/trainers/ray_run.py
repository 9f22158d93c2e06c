"""Runs functions on the real Ray, for which the suite has a stand-in: results, errors, killed workers, cancelling."""

import os
import signal
import tempfile
import time
from concurrent import futures
from pathlib import Path

import numpy as np
import ray

import loadax
from loadax.errors import LeafTypeError
from loadax.interop.ray import executor

LIMIT = 120.0


def fail() -> None:
    raise LeafTypeError("row 7", argument="fn")


def die_once(mark: str) -> int:
    """Kills its process in the first call; returns 7 in the second."""
    if not Path(mark).exists():
        Path(mark).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return 7


def doze(seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        time.sleep(0.05)


def map_in_thread(pool: futures.Executor) -> list[int]:
    """Runs two tasks from a thread that ends."""
    with futures.ThreadPoolExecutor(1) as thread:
        return thread.submit(lambda: list(pool.map(abs, (-1, -2), timeout=LIMIT))).result(LIMIT)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
        with executor() as pool:
            assert list(pool.map(pow, range(200), [2] * 200)) == [number**2 for number in range(200)]
            error = pool.submit(fail).exception(LIMIT)
            assert type(error) is LeafTypeError
            assert (str(error), error.argument) == ("row 7", "fn")
            assert pool.submit(die_once, f"{folder}/mark").result(LIMIT) == 7
            dozing = [pool.submit(doze, LIMIT) for _ in range(4)]
            time.sleep(2)
            assert all(future.cancel() for future in dozing)
            assert not futures.wait(dozing, LIMIT).not_done
            start = time.monotonic()
            assert pool.submit(pow, 2, 5).result(LIMIT) == 32  # the two that ran were interrupted
            assert time.monotonic() - start < LIMIT / 2
        with executor(num_cpus=1, max_retries=0) as pool:
            error = pool.submit(die_once, f"{folder}/other").exception(LIMIT)
            assert isinstance(error, ray.exceptions.WorkerCrashedError), error
        ray.shutdown()
    with executor() as pool:  # starts Ray, which outlives the thread of the first task
        assert map_in_thread(pool) == map_in_thread(pool) == [1, 2]
        loader = loadax.Dataloader(np.arange(64), 8, remote=pool, num_workers=2)
        for _ in range(2):
            with loader.iterate() as batches:
                assert [int(batch[0]) for batch in batches] == list(range(0, 64, 8))
                assert batches.stats().read_here < 64, "workers have read some"
    ray.shutdown()
    print("ray: 200 results, an error of the function, a killed worker, four cancelled tasks, two runs of a loader")


if __name__ == "__main__":
    main()
