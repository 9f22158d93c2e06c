"""Repetition: tells of loops that begin again at step 0, and so train on the same batches."""

import threading
from collections.abc import Sequence
from functools import partial
from typing import final

from loadax.core.warn import warn_user
from loadax.loader.iterator import DataIterator
from loadax.loader.pipeline import BatchPipeline
from loadax.loader.stretch import Ledger

_EPOCHS = "for whole epochs, pass num_epochs= and use `for epoch in loader.epochs():`. "


@final
class Repetition:
    """Warns once when a loop over a loader begins again, if its later batches would have been others.

    Args:
        pipelines: Pipeline of the loader, or those of a chain.

    Attributes:
        ended: Event that an iterator sets at the end of the run.
    """

    def __init__(self, pipelines: Sequence[BatchPipeline]):
        self._pipelines = pipelines
        self._earlier: Ledger | None = None  # of the latest iterator that a loop began with
        self._warned = False
        self.ended = threading.Event()

    def began(self, call: str, batches: DataIterator) -> DataIterator:
        """Returns the iterator of a loop from step 0; it warns if the run begins there once more, in another order.

        Args:
            call: The call that began it.
            batches: The iterator.
        """
        left = self._earlier is not None and self._earlier.step > 0
        again = left or self.ended.is_set()
        self._earlier = batches.ledger
        if again and not self._warned and self._varies:
            batches.warn_at_first_step = partial(self._warn, call)
        return batches

    def _warn(self, call: str) -> None:
        if self._warned:
            return
        self._warned = True
        streams = any(pipeline.whole.dataset.is_stream for pipeline in self._pipelines)
        warn_user(
            f"{call} starts at step 0 again, so it repeats the batches of the first pass in the same order; "
            "to go on, keep one iterator (`batches = iter(loader)` before the loop), or use "
            f"loader.iterate(start=state) with a state of get_state(); {'' if streams else _EPOCHS}"
            "To repeat the same batches on purpose, as for evaluation, or to look at one before training, use "
            "loader.iterate(), which does not warn"
        )

    @property
    def _varies(self) -> bool:
        """Whether the steps of another epoch, or of a stream, differ from the first ones other than by their rows."""
        return any(self._differs(pipeline) for pipeline in self._pipelines)

    def _differs(self, pipeline: BatchPipeline) -> bool:
        dataset = pipeline.whole.dataset
        if dataset.order.varies or dataset.reader.traits.random or pipeline.options.key_seed is not None:
            return True
        # Whether the rows of a stream are shuffled is not known. A whole pass over one is repeated for evaluation.
        return dataset.is_stream and not self.ended.is_set()
