"""What the real processes of `test_launch.py` do."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from tests.processes.launch import settle

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
