"""Begins the agreement of the processes of a run on the end of its streams."""

from collections.abc import Callable

import numpy as np
from jax.sharding import Mesh

from loadax.core.distributed import this_process
from loadax.core.key_value import key_value_store
from loadax.errors import ArgumentError
from loadax.loader.assembly.host_shard import ShardSpec
from loadax.loader.slots import Agreement, EndRule
from loadax.loader.streams.agreement import end_agreement
from loadax.loader.watch.process_exit import process_exit
from loadax.sharding.mesh import grid_of

# seconds of waiting for the coordinator, after which limits of waiting are looked at
_LIMIT = 1.0


def agree_on_end(
    rule: EndRule,
    share: ShardSpec | None,
    mesh: Mesh | None,
    abort_after: float | None,
    step: Callable[[], int],
) -> Agreement | None:
    """The agreement of the processes that read parts of the batches; None if this one is alone.

    Args:
        rule: When the run ends.
        share: Part of each batch that this process was given. None: the mesh decides.
        mesh: Mesh that batches are placed on. None: they are not placed.
        abort_after: Seconds of waiting for a batch after which to raise.
        step: Function that returns the next step.

    Raises:
        ArgumentError: If others read parts too, and this process can't ask them.
    """
    store = key_value_store(_LIMIT)
    if store is None:
        if share is not None and share.count > 1:
            raise ArgumentError(
                f"shard_index={share.index}, shard_count={share.count}: this stream "
                "ends, and this process is not part of a jax.distributed run, so it "
                "can't agree with the other processes on the last step: they would "
                "end at different steps. Pass num_epochs=None, and stop all of them "
                "at the same step; or make them processes of one jax.distributed "
                "run; or, to read this part alone to its end, leave shard_index and "
                "shard_count out, and open only the lanes of this part"
            )
        return None
    process = this_process().index
    everyone = range(this_process().count)
    if mesh is None:
        owners = everyone
    else:
        owners = np.unique(grid_of(mesh).owners).tolist()
    if list(owners) == [process] and share is not None:
        # every process has a mesh of its own, and a part of each batch
        owners = everyone
    if len(owners) == 1:
        return None
    process_exit.begin(step, abort_after)
    return end_agreement(store, process, owners, rule)
