"""Meshes, partition specs and placement of host data on devices."""

from loadax.sharding.constraint import with_sharding_constraint
from loadax.sharding.fetch import global_to_host_array
from loadax.sharding.mesh import PlannedMesh, data_parallel, fully_sharded, hybrid, plan_mesh
from loadax.sharding.partition import DataPartitionType
from loadax.sharding.placement import host_local_to_global, host_to_global_device_array

__all__ = [
    "DataPartitionType",
    "PlannedMesh",
    "data_parallel",
    "fully_sharded",
    "global_to_host_array",
    "host_local_to_global",
    "host_to_global_device_array",
    "hybrid",
    "plan_mesh",
    "with_sharding_constraint",
]
