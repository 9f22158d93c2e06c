"""loadax in Kauldron: a `kd.data.Pipeline` over a loadax dataset, for `kd.train.Trainer(train_ds=…)`."""

import dataclasses
from collections.abc import Mapping
from functools import cached_property
from typing import Any, Self, final

import jax
import numpy as np

from loadax.errors import ArgumentError
from loadax.loader.dataloader import Dataloader
from loadax.loader.iterator import DataIterator
from loadax.protocols import Tree
from loadax.sources.library import require

require("loadax.interop.kauldron", {"kauldron": "kauldron.data"})
from etils import enp  # noqa: E402
from kauldron.data import iterators, pipelines  # noqa: E402
from orbax import checkpoint as ocp  # noqa: E402

_PLACING = {
    *("mesh", "partition", "shard_index", "shard_count"),
    *("device_map", "host_leaves", "key_seed", "microbatches"),
}


@final
@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Pipeline(pipelines.Pipeline):  # type: ignore[misc] # Kauldron ships no types
    """A Kauldron pipeline over a loadax dataset.

    Kauldron places batches itself, so each host's batches hold its part of the global batch. In one process they are
    placed as Kauldron wants them, and it does not copy them. In several, they are NumPy arrays, read ahead.

    The position is a part of Kauldron's checkpoints, and is restored on any number of hosts. Kauldron's `seed` is not
    used: the dataset has its own, as in `data.shuffle(seed=0)`. Kauldron's `batch_size` is the number of rows of the
    global batch.

    Args:
        dataset: `Dataset`, or what `loadax.Dataloader` accepts.
        num_epochs: Number of epochs. None: infinite, as Kauldron requires of its `train_ds`. 1 for an evaluation.
        options: More arguments of `Dataloader`, such as `{"num_workers": 8, "worker_type": "process"}`, except those
            that are about placed batches.
    """

    dataset: Any
    num_epochs: int | None = None
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @cached_property
    def loader(self) -> Dataloader:
        """The loader of this host's part of each batch.

        Raises:
            ArgumentError: If there is no batch size, or `options` has an argument that is about placed batches.
        """
        if not self.batch_size:
            raise ArgumentError(
                f"batch_size={self.batch_size!r}: pass the rows of the global batch, "
                "such as 256"
            )
        if placing := sorted(_PLACING & self.options.keys()):
            raise ArgumentError(
                f"options has {', '.join(placing)}, but Kauldron places batches "
                "itself: leave this out; dataset.map(fn) changes rows, and the "
                "trainer's sharding= says where they go"
            )
        mesh = jax.sharding.Mesh(np.array(jax.local_devices()), ("data",))
        shard = {
            "shard_index": jax.process_index(),
            "shard_count": jax.process_count(),
        }
        return Dataloader(
            self.dataset,
            self.batch_size,
            mesh=mesh,
            **shard,
            num_epochs=self.num_epochs,
            **self.options,
        )

    @cached_property
    def element_spec(self) -> Tree:
        """Shapes and dtypes of this host's batches."""
        return jax.tree.map(
            lambda leaf: enp.ArraySpec(leaf.shape, leaf.dtype), self.loader.spec
        )

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> "Iterator":
        # In several processes, Kauldron slices each host's arrays, once per device. JAX slices placed arrays by
        # collective computations, which can deadlock with those of the model.
        several = jax.process_count() > 1
        return Iterator(
            source=self,
            batches=self.loader.host_batches() if several else self.loader.iterate(),
        )


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Iterator(iterators.Iterator):  # type: ignore[misc] # Kauldron ships no types
    """A loader's iterator with the checkpoint methods that Kauldron asks for."""

    batches: DataIterator

    def __next__(self) -> Tree:
        return next(self.batches)

    def __kd_ocp_handlers__(self) -> ocp.CheckpointHandler:
        return ocp.JsonCheckpointHandler()

    def __kd_ocp_save_args__(self) -> ocp.args.CheckpointArgs:
        return ocp.args.JsonSave(self.batches.get_state())

    def __kd_ocp_restore_args__(self) -> ocp.args.CheckpointArgs:
        return ocp.args.JsonRestore()

    def __kd_ocp_restore_post__(self, value: Any) -> Self:
        self.batches.set_state(value)
        return self
