"""A run whose prompts take different times: it is killed at any moment, and goes on from its latest checkpoint."""

import heapq
import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from loadax import Dataloader, from_arrays
from tests.limits import ENDLESS, HANG

IN_FLIGHT, SAVED_AFTER = 64, 16  # rollouts at once, and those after which a checkpoint is written


def train(folder: Path, prompts: int) -> None:
    """Acknowledges all prompts, in the order in which their rollouts end; prompt p takes about p % 97 squared."""
    checkpoint = folder / "checkpoint.json"
    saved: dict[str, Any] = json.loads(checkpoint.read_text()) if checkpoint.exists() else {"state": 0, "trained": []}
    data = from_arrays({"prompt": np.arange(prompts)}).shuffle(seed=1)
    durations = np.random.default_rng(2).permutation((np.arange(prompts) % 97.0) ** 2)
    running: list[tuple[float, int, int]] = []  # end, position, prompt
    now = 0.0
    with Dataloader(data, batch_size=1, num_workers=1).lease(saved["state"]) as lease:
        while True:
            while len(running) < IN_FLIGHT and (leased := next(lease, None)) is not None:
                prompt = int(leased.examples["prompt"][0])
                heapq.heappush(running, (now + durations[prompt], int(leased.positions[0]), prompt))
            if not running:
                break
            now, position, prompt = heapq.heappop(running)
            lease.ack(position)
            saved["trained"].append(prompt)
            if len(saved["trained"]) % SAVED_AFTER == 0:
                write(checkpoint, saved | {"state": lease.get_state()})
        write(checkpoint, saved | {"state": lease.get_state()})
    (folder / "done").touch()


def write(checkpoint: Path, saved: dict[str, object]) -> None:
    """Replaces the checkpoint at once."""
    checkpoint.with_suffix(".new").write_text(json.dumps(saved))
    checkpoint.with_suffix(".new").replace(checkpoint)


def trained(folder: Path, prompts: int, kills: int, seed: int) -> list[int]:
    """The prompts that a run has trained on which is killed that many times, once it trains."""
    draw = random.Random(seed)
    command = [sys.executable, "-m", "tests.processes.lease_bodies", str(folder), str(prompts)]
    checkpoint = folder / "checkpoint.json"
    for _ in range(kills):
        before = checkpoint.stat().st_mtime_ns if checkpoint.exists() else 0
        with subprocess.Popen(command) as child:
            deadline = time.monotonic() + HANG
            while (not checkpoint.exists() or checkpoint.stat().st_mtime_ns == before) and child.poll() is None:
                assert time.monotonic() < deadline, "the run has written no checkpoint"
                time.sleep(0.001)
            time.sleep(draw.random() * 0.05)
            assert not (folder / "done").exists(), "the run ended before it was killed often enough"
            child.send_signal(signal.SIGKILL)
    subprocess.run(command, check=True, timeout=ENDLESS)
    found: list[int] = json.loads(checkpoint.read_text())["trained"]
    return found


if __name__ == "__main__":
    train(Path(sys.argv[1]), int(sys.argv[2]))
