"""Keras 3 on JAX: the batches of a loader for `Model.fit`, each at the step of the optimizer."""

from typing import Any, final

from loadax.errors import ArgumentError
from loadax.loader.dataloader import Dataloader
from loadax.sources.library import require

require(
    "loadax.interop.keras",
    {"keras": "keras.utils"},
    hint="set the environment variable KERAS_BACKEND to jax before Keras is imported",
)
from keras.utils import PyDataset  # noqa: E402


@final
class Batches(PyDataset):  # type: ignore[misc] # Keras ships no types
    """The batches of a loader, for `Model.fit` and `evaluate`. Rows are `(x, y)`, or as the model takes them.

    An epoch of Keras begins at the step that the model's optimizer has reached, and has as many steps as one of the
    loader. So `keras.callbacks.BackupAndRestore`, or weights that are loaded with the optimizer's, bring the position
    in the data with them: step t of the optimizer is batch t of the loader, however often the run is interrupted. The
    order is the loader's; `shuffle=` of `fit` has no effect. A context manager: leaving it ends reading ahead.

    Args:
        loader: The loader, with `num_epochs=None` for training.
        model: Model that is trained. None: each epoch begins at step 0, for evaluation.

    Raises:
        ArgumentError: If the loader reads a stream, which has no steps per epoch.

    Examples:
        >>> import keras  # doctest: +SKIP
        >>> from loadax.interop.keras import Batches  # doctest: +SKIP
        >>> with Batches(loader, model) as batches:  # doctest: +SKIP
        ...     model.fit(batches, epochs=4)
    """

    def __init__(self, loader: Dataloader, model: Any = None):
        # one thread, which is the loader's consumer: it reads ahead by itself
        super().__init__(workers=1, use_multiprocessing=False)
        self._loader = loader
        self._model = model
        self._next = 0
        self._batches: Any = None
        if loader.dataset.is_stream:
            raise ArgumentError(
                f"loader={loader!r}: a stream has no steps per epoch; pass a generator "
                "and steps_per_epoch= to fit() instead"
            )
        self._steps = loader.steps_per_epoch

    def __len__(self) -> int:
        return self._steps

    def __enter__(self) -> "Batches":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def on_epoch_begin(self) -> None:
        """Begins an epoch at the optimizer's step. Keras has read a batch before, to build the model."""
        self._next = 0
        if self._model is not None:
            optimizer = self._model.optimizer
            # it counts updates
            batches_per_update = optimizer.gradient_accumulation_steps or 1
            self._next = int(optimizer.iterations) * batches_per_update

    def __getitem__(self, index: int) -> Any:
        """The next batch of the epoch. Keras shuffles indices, unless `shuffle=False`; the loader has an order."""
        step = self._next
        self._next += 1
        if self._batches is None or self._batches.step != step:
            self.close()
            self._batches = self._loader.iterate(start=step)
        return next(self._batches)

    def close(self) -> None:
        """Ends reading ahead. The next batch begins it again."""
        if self._batches is not None:
            self._batches.close()
        self._batches = None
