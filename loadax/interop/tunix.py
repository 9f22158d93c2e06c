"""loadax in Tunix: hooks that hand a loader's batches to a `PeftTrainer`, from the step that it resumes at."""

import warnings
from typing import Any, final

import jax
from jax.sharding import PartitionSpec

from loadax.loader.dataloader import Dataloader
from loadax.loader.iterator import DataIterator
from loadax.protocols import Tree
from loadax.sharding.compat import legacy_mesh
from loadax.sources.library import require

require("loadax.interop.tunix", {"google-tunix": "tunix.sft"})
from tunix.sft import hooks  # noqa: E402


@final
class DataHooks(hooks.DataHooks):  # type: ignore[misc] # Tunix ships no types
    """Hands a loader's batches to a Tunix trainer.

    A `PeftTrainer` also takes a loader itself, but then resuming reads and drops all batches before the step. With
    hooks, training starts at that step at once.

    The trainer leaves batches where they are if they are on its mesh and their `PartitionSpec` equals its
    `data_sharding_axis`, so pass `partition=P(*config.data_sharding_axis)`. It places all other batches again, also if
    the spec is merely equivalent, such as `P("fsdp", None)` for `P("fsdp",)`. A `UserWarning` says so, once per loader.

    Args:
        loader: Batches to train on.
        eval_loader: Batches of each evaluation. Tunix evaluates only if its `eval_ds` is not empty, see the example.

    Examples:
        ```python
        trainer.with_data_hooks(DataHooks(loader, eval_loader))
        trainer.train([], eval_ds=["from the hooks"])
        ```
    """

    def __init__(self, loader: Dataloader, eval_loader: Dataloader | None = None):
        self._loader = loader
        self._eval_loader = eval_loader
        self._batches: DataIterator | None = None
        self._eval_batches: DataIterator | None = None
        # loaders whose placement was compared with the trainer's
        self._compared: set[str] = set()

    def load_next_train_batch(self, train_ctx: Any) -> Tree | None:
        """The batch of the trainer's step; None at the end."""
        # The trainer alone knows where it is: it has restored its checkpoint, and asks for a batch more than it uses.
        if self._batches is None or self._batches.step != train_ctx.iter_steps:
            if self._batches is not None:
                self._batches.close()
            self._compare("loader", self._loader, train_ctx)
            self._batches = self._loader.iterate(train_ctx.iter_steps)
        return next(self._batches, None)

    def load_next_eval_batch(self, train_ctx: Any) -> Tree | None:
        """The next batch of this evaluation; None at its end."""
        if self._eval_batches is None:
            if self._eval_loader is None:
                return None
            self._compare("eval_loader", self._eval_loader, train_ctx)
            self._eval_batches = self._eval_loader.iterate()
        batch = next(self._eval_batches, None)
        if batch is None:
            self._eval_batches = None
        return batch

    def _compare(self, name: str, loader: Dataloader, train_ctx: Any) -> None:
        """Warns once if Tunix will place the batches of a loader again: the rules of `tunix.sft.sharding_utils`.

        It compares specs as they are written, and the mesh with that of the enclosing `with mesh:`. Without one, and
        where arrays span several processes, it places nothing. Leaves of fewer dims than the spec are replicated.
        """
        mesh = legacy_mesh()
        wanted = PartitionSpec(*train_ctx.config.data_sharding_axis)
        if mesh is None or name in self._compared:
            leaves = []
        else:
            leaves = jax.tree.leaves(loader.spec)
        self._compared.add(name)
        for leaf in leaves:
            found = leaf.sharding
            if (
                found.is_fully_addressable
                and leaf.ndim >= len(wanted)
                and (found.mesh, found.spec) != (mesh, wanted)
            ):
                if found.mesh == mesh:
                    elsewhere, remedy = ("", "")
                else:
                    elsewhere, remedy = (" on another mesh", "mesh=mesh, ")
                warnings.warn(
                    f"Tunix places every batch of {name} a second time: the loader's "
                    f"partition is {found.spec}{elsewhere}, and the trainer's "
                    f"data_sharding_axis is {wanted}, which Tunix compares as they "
                    "are written; make the loader by Dataloader(…, "
                    f"{remedy}partition={wanted})",
                    UserWarning,
                    stacklevel=3,
                )
                return
