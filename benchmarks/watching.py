"""Measures what watching a run costs on two hosts: `python benchmarks/watching.py`.

Two processes of one JAX run, with tokens and with photographs. Each process has two iterators of the same loader: one
compares hosts, looks for stalls and masks bad rows; the other does none of that. They take turns, and the ratio of
their times is taken turn by turn: of wall time, and of the CPU time of all threads, which other programs disturb less.
See README.md.
"""

import os

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["JAX_NUM_CPU_DEVICES"] = "1"

import argparse
import json
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from unittest.mock import patch

import jax
import numpy as np
from numpy.typing import NDArray
from workloads.jpegs import SIZE, Jpegs

from loadax import Dataloader, Dataset, from_images, from_tokens
from loadax.loader.iterator import DataIterator
from loadax.loader.watch import hosts

_WARMUP = 10  # batches
_WATCHED: dict[str, Any] = {"on_error": "mask", "stall_after": 60, "abort_after": 600}
_PHOTOGRAPHS = Jpegs("photographs", 256, 32)


def main() -> None:
    """Prints the medians of both processes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=41, help="of each iterator")
    parser.add_argument("--worker", nargs=3, metavar=("PROCESS", "PORT", "FOLDER"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        process, port, folder = options.worker
        jax.distributed.initialize(f"127.0.0.1:{port}", num_processes=2, process_id=int(process))
        print(json.dumps(measure(Path(folder), options.turns)))
        return
    with tempfile.TemporaryDirectory(prefix="loadax-benchmark-") as name:
        rng = np.random.default_rng(0)
        rng.integers(0, 50_000, 4_000_001, np.uint16).tofile(Path(name) / "tokens.bin")
        _PHOTOGRAPHS.write(Path(name))
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        command = [sys.executable, __file__, "--turns", str(options.turns), "--worker"]
        workers = [
            subprocess.Popen([*command, str(process), str(port), name], stdout=subprocess.PIPE, text=True)
            for process in range(2)
        ]
        results = [json.loads(worker.communicate()[0].splitlines()[-1]) for worker in workers]
    for workload in results[0]:
        for clock in ("wall time", "CPU time"):
            ratios = " and ".join(f"{result[workload][clock]:.3f}" for result in results)
            print(f"{workload}: watched takes {ratios} times the {clock} (process 0 and 1)")


def measure(folder: Path, turns: int) -> dict[str, dict[str, float]]:
    """Median ratios of the times of turns, watched to not watched, by workload and clock."""
    tokens = from_tokens(folder / "tokens.bin", 1024, dtype=np.uint16).map_batch(lambda rows: {"tokens": rows})
    images = from_images(_PHOTOGRAPHS.folder(folder), SIZE)
    return {"tokens": compare(tokens, 256, 200, turns), "images": compare(images, _PHOTOGRAPHS.batch_size, 4, turns)}


def compare(data: Dataset, batch_size: int, steps: int, turns: int) -> dict[str, float]:
    """Median ratios of the times of turns of `steps` batches, by clock."""
    # Without workers, no iterator reads ahead in the other's turn.
    options: dict[str, Any] = {"num_epochs": None, "num_workers": 0, "remainder": "pad"}
    shuffled = data.shuffle(seed=0)
    watched = Dataloader(shuffled, batch_size, **options, **_WATCHED).iterate()
    with patch.object(hosts, "key_value_store", lambda *_: None):
        plain = Dataloader(shuffled, batch_size, **options, stall_after=None).iterate()
    with watched, plain:
        for batches in (watched, plain):
            run(batches, _WARMUP)
        ratios = []
        for turn in range(turns):
            # Each is first in every other turn.
            order = (watched, plain) if turn % 2 else (plain, watched)
            took = {id(batches): run(batches, steps) for batches in order}
            ratios.append(took[id(watched)] / took[id(plain)])
    return dict(zip(("wall time", "CPU time"), np.median(ratios, axis=0).tolist(), strict=True))


def run(batches: DataIterator, steps: int) -> NDArray[np.float64]:
    """float64[2]: wall and CPU seconds of some batches."""
    began = np.array([time.perf_counter(), time.process_time()])
    for _ in range(steps):
        jax.block_until_ready(next(batches))
    return np.array([time.perf_counter(), time.process_time()]) - began


if __name__ == "__main__":
    main()
