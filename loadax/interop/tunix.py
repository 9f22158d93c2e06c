"""loadax in Tunix: hooks that hand a loader's batches to a `PeftTrainer`, from the step that it resumes at."""

from typing import Any, final

from loadax.errors import UnsupportedError
from loadax.loader.dataloader import Dataloader
from loadax.loader.iterator import DataIterator
from loadax.protocols import Tree

try:
    from tunix.sft import hooks
except ModuleNotFoundError as error:
    raise UnsupportedError(f"loadax.interop.tunix needs Tunix ({error}); pip install google-tunix") from error


@final
class DataHooks(hooks.DataHooks):  # type: ignore[misc] # Tunix ships no types
    """Hands a loader's batches to a Tunix trainer.

    A `PeftTrainer` also takes a loader itself, but then resuming reads and drops all batches before the step. With
    hooks, training starts at that step at once.

    The trainer leaves batches where they are if their `PartitionSpec` equals its `data_sharding_axis`, so pass
    `partition=P(*config.data_sharding_axis)`. One that is merely equivalent, such as `P("fsdp", None)` for
    `P("fsdp",)`, makes it place every batch again.

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
        self._loader, self._eval_loader = loader, eval_loader
        self._batches: DataIterator | None = None
        self._eval_batches: DataIterator | None = None

    def load_next_train_batch(self, train_ctx: Any) -> Tree | None:
        """The batch of the trainer's step; None at the end."""
        # The trainer alone knows where it is: it has restored its checkpoint, and asks for a batch more than it uses.
        if self._batches is None or self._batches.step != train_ctx.iter_steps:
            if self._batches is not None:
                self._batches.close()
            self._batches = self._loader.iterate(train_ctx.iter_steps)
        return next(self._batches, None)

    def load_next_eval_batch(self, train_ctx: Any) -> Tree | None:  # noqa: ARG002 - the same in every evaluation
        """The next batch of this evaluation; None at its end."""
        if self._eval_batches is None:
            if self._eval_loader is None:
                return None
            self._eval_batches = self._eval_loader.iterate()
        batch = next(self._eval_batches, None)
        if batch is None:
            self._eval_batches = None
        return batch
