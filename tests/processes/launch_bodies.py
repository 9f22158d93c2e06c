"""What the real processes of `test_launch.py` do."""

import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import multihost_utils
from jax.sharding import NamedSharding, PartitionSpec as P

from tests.processes.launch import settle

WORKS = """
import time

def works():
    print("begun", flush=True)
    time.sleep(3600)

works()
"""
TURNS = 5_000_000
"""Steps of a loop that take some 0.1 s."""


def collectives_go_on() -> None:
    """A collective has a result on one device, and is awaited on all others."""
    mesh = jax.make_mesh((jax.device_count(),), ("all",))
    rows = NamedSharding(mesh, P("all"))

    def sum_and_last_device_slowly(numbers: jax.Array) -> jax.Array:
        total = lax.psum(numbers, "all")
        slow = lax.axis_index("all") % jax.local_device_count() == jax.local_device_count() - 1
        return lax.fori_loop(0, jnp.where(slow, TURNS, 1), lambda _, value: jnp.sin(value), total)

    ones = jax.make_array_from_callback((mesh.size,), rows, lambda _: np.ones(1, np.float32))
    program = jax.shard_map(sum_and_last_device_slowly, mesh=mesh, in_specs=P("all"), out_specs=P("all"))
    result = jax.jit(program)(ones)
    np.asarray(result.addressable_data(0))
    settle()
    assert all(shard.data.is_ready() for shard in result.addressable_shards)


def fails_on_one() -> None:
    """One process fails, and the others wait for it."""
    print(f"hello from {jax.process_index()}", flush=True)  # noqa: T201
    multihost_utils.sync_global_devices("both have said so")
    if jax.process_index() == 1:
        raise ValueError("only here")
    multihost_utils.sync_global_devices("never")


def hangs(folder: str) -> None:
    """Waits for a process that sleeps for an hour; a file of `folder` says that this has begun."""
    print("before", flush=True)  # noqa: T201
    with subprocess.Popen([sys.executable, "-c", WORKS], stdout=subprocess.PIPE) as worker:
        assert worker.stdout is not None
        worker.stdout.readline()
        Path(folder, str(jax.process_index())).touch()
        worker.wait()
