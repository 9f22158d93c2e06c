"""Meshes, partition specs and placement of host data on devices."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from loadax.sharding.constraint import with_sharding_constraint
    from loadax.sharding.fetch import global_to_host_array
    from loadax.sharding.mesh import (
        PlannedMesh,
        data_parallel,
        fully_sharded,
        hybrid,
        plan_mesh,
    )
    from loadax.sharding.partition import DataPartitionType
    from loadax.sharding.placement import (
        host_local_to_global,
        host_to_global_device_array,
    )

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

# Module of each name, which is imported when the name is first used: a loader needs half of them.
_HOME = {
    "DataPartitionType": "partition",
    "PlannedMesh": "mesh",
    "data_parallel": "mesh",
    "fully_sharded": "mesh",
    "global_to_host_array": "fetch",
    "host_local_to_global": "placement",
    "host_to_global_device_array": "placement",
    "hybrid": "mesh",
    "plan_mesh": "mesh",
    "with_sharding_constraint": "constraint",
}

# so that type checkers see the imports above, and catch misspelt names
if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name in _HOME:
            return getattr(import_module(f"loadax.sharding.{_HOME[name]}"), name)
        if name in _HOME.values():
            return import_module(f"loadax.sharding.{name}")
        raise AttributeError(f"module 'loadax.sharding' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
