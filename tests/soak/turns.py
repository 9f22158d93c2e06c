"""What a soak does again and again: steps, checkpoints, moves, and resumes whose batches must be the same ones."""

import json
import zlib
from pathlib import Path
from typing import Any, final

import jax
import numpy as np
from jax.sharding import Mesh

import loadax
from loadax.sharding import data_parallel
from tests.soak.workloads import Workload

CHECKED = 3
"""Steps of each turn that are read again by resumed runs."""

HOSTS = (1, 2, 4)
"""Numbers of hosts that a run is resumed on, in turn: each is a loader with its share of the batch."""

PREFETCH_BYTES = 4 << 20
"""Read-ahead of each loader, which is then always full. The default follows the machine's speed, up to 256 MiB."""

PROCESSES_EVERY = 10
"""Turns from one resume in worker processes to the next: they take a second to start."""


@final
class LongRun:
    """One iterator that goes on for the whole soak, beside runs that resume from its checkpoints.

    Args:
        name: Of the workload.
        workload: What it reads.
        folder: Where its files are, and where checkpoints are written.
    """

    def __init__(self, name: str, workload: Workload, folder: Path):
        self._name = name
        self._workload = workload
        self._folder = folder / name
        self._folder.mkdir()
        workload.write(self._folder)
        self._meshes = _meshes()
        self._turns = 0
        self._batches = iter(self._loader(mesh=self._meshes[0]))

    def _loader(self, **options: Any) -> loadax.Dataloader:
        data = self._workload.open(self._folder)
        size = self._workload.batch_size
        return loadax.Dataloader(
            data, size, num_epochs=None, partition=jax.P("data"), prefetch_bytes=PREFETCH_BYTES, **options
        )

    @property
    def step(self) -> int:
        """Steps of the long iterator so far."""
        return self._batches.step

    def turn(self) -> None:
        """Steps on, moves, saves, reads some steps, and reads them again from the checkpoint on other hosts.

        Raises:
            AssertionError: When a resumed run has other rows.
        """
        self._turns += 1
        for _ in range(self._workload.steps // 2):
            jax.block_until_ready(next(self._batches))
        self._batches.move_to(self._meshes[self._turns % len(self._meshes)])
        for _ in range(self._workload.steps // 2):
            jax.block_until_ready(next(self._batches))
        checkpoint = self._folder / "state.json"
        checkpoint.write_text(json.dumps(self._batches.get_state()))
        expected = [_rows(next(self._batches)) for _ in range(CHECKED)]
        hosts = HOSTS[self._turns % len(HOSTS)]
        processes = self._workload.pickled and self._turns % PROCESSES_EVERY == 1
        shares = [self._resumed(checkpoint, host, hosts, processes) for host in range(hosts)]
        for number in range(CHECKED):
            found = [row for share in shares for row in share[number]]
            assert found == expected[number], (
                f"{self._name}: turn {self._turns}, step {self.step - CHECKED + number}: resumed on {hosts} hosts, "
                "the rows are others"
            )

    def _resumed(self, checkpoint: Path, host: int, hosts: int, processes: bool) -> list[list[int]]:
        """Digests of one host's rows of the steps after a checkpoint."""
        mesh = data_parallel(jax.devices()[: 8 // hosts])
        options: dict[str, Any] = {"mesh": mesh, "shard_index": host, "shard_count": hosts}
        if processes:
            options.update(worker_type="process", num_workers=1)
        state = json.loads(checkpoint.read_text())
        with self._loader(**options).iterate(start=state) as batches:
            return [_rows(next(batches)) for _ in range(CHECKED)]

    def close(self) -> None:
        """Ends the long iterator."""
        self._batches.close()


def _meshes() -> list[Mesh]:
    devices = jax.devices()
    return [
        data_parallel(devices),
        data_parallel(devices[:4]),
        Mesh(np.array(devices).reshape(4, 2), ("data", "model")),
        data_parallel(devices[4:6]),
        data_parallel(devices[:1]),
    ]


def _rows(batch: Any) -> list[int]:
    """A digest of each row, over all leaves."""
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(batch)]
    digests = []
    for row in range(len(leaves[0])):
        digest = 0
        for leaf in leaves:
            digest = zlib.crc32(leaf[row].tobytes(), digest)
        digests.append(digest)
    return digests
