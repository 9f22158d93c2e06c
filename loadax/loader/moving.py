"""Checks of a run that goes on on another mesh."""

from collections.abc import Sequence

from loadax.errors import MeshError, PartitionError
from loadax.loader.stretch import Target


def check_shards(
    targets: Sequence[Target],
    at: tuple[int, int],
    chosen: bool,
) -> None:
    """Checks that all remaining batches can be placed.

    Args:
        targets: Targets of all phases, on the new mesh.
        at: Phase of the next step, and the step counted in that phase.
        chosen: Whether the partition was chosen for this mesh.

    Raises:
        MeshError, PartitionError: As of `DataIterator.move_to`.
    """
    phase, step = at
    try:
        for target in targets[phase:]:
            last = target.shape_step(step)
            step = 0
            for first in [
                last,
                *(
                    first
                    for first in target.pipeline.plan.first_steps
                    if first > last
                ),
            ]:
                _ = target.shard(first).shardings
    except (MeshError, PartitionError) as error:
        if chosen:
            raise
        message = (
            f"{error}; or move to another mesh, or with another partition: "
            "it.move_to(mesh, partition=…)"
        )
        raise type(error)(message) from error
