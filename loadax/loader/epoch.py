"""Epoch: one epoch of a run, with a length."""

from collections.abc import Iterator
from typing import Any, final

from loadax.core.formatting import count_text
from loadax.errors import ClosedError
from loadax.loader.host_rows import HostRows
from loadax.loader.iterator import DataIterator
from loadax.protocols import Tree


def epochs(batches: DataIterator) -> Iterator["Epoch"]:
    """Yields the remaining epochs of a run, and closes its iterator afterwards."""
    with batches:
        while batches.step != batches.num_steps:
            epoch = Epoch(batches)
            yield epoch
            epoch.leave()


@final
class Epoch(Iterator[Tree]):
    """Iterator over the remaining batches of one epoch, with a length. Made by `loader.epochs()`.

    Its `get_state`, `move_to`, `stats`, `metrics`, `report`, `timeline` and `ledger` are those of the run's
    `DataIterator`. Statistics restart after an epoch that is left early.

    Attributes:
        number: Number of the epoch, from 0.
    """

    def __init__(self, batches: DataIterator):
        self._batches = batches
        self._stop = batches.epoch_stop
        self._left = False
        self.number: int = batches.epoch
        self.get_state = batches.get_state
        self.move_to = batches.move_to
        self.ledger = batches.ledger
        self.stats = batches.stats
        self.metrics = batches.metrics
        self.report = batches.report
        self.timeline = batches.timeline

    def __len__(self) -> int:
        """Number of remaining batches of this epoch."""
        return max(0, self._stop - self._batches.step)

    def __next__(self) -> Tree:
        """The next batch of the epoch.

        Raises:
            StopIteration: After its last batch.
            ClosedError: If `epochs()` has continued with the next epoch before this one was over.
        """
        if self._left:
            raise ClosedError(
                f"epoch {self.number} was left before its end, when epochs() "
                "continued with the next one; finish each epoch before the next, as "
                "in `for epoch in loader.epochs(): for batch in epoch: …`"
            )
        if self._batches.step >= self._stop:
            raise StopIteration
        return next(self._batches)

    def set_weights(self, weights: Any) -> None:
        """Sets the weights of the mixture, as `DataIterator.set_weights`; the epoch may end at another step then."""
        batches = self._batches
        batches.set_weights(weights)
        if batches.epoch == self.number:
            self._stop = batches.epoch_stop
        else:
            self._stop = batches.step

    def leave(self) -> None:
        """Skips the remaining batches of this epoch."""
        if self._batches.step < self._stop:
            self._left = True
            self._batches.set_state(self._stop)

    @property
    def step(self) -> int:
        """Next step of the run: number of batches handed out so far, in all epochs."""
        return self._batches.step

    @property
    def host(self) -> HostRows:
        """The host leaves of the latest batch; see `DataIterator.host`."""
        return self._batches.host

    @property
    def batch_size(self) -> int:
        """Rows of the next global batch."""
        return self._batches.batch_size

    def __repr__(self) -> str:
        return (
            f"Epoch({self.number}, {count_text(len(self), 'batch', 'batches')} left)"
        )
