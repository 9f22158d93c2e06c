"""Iterations: begins the iterators of a loader, and tells of loops that begin again at step 0."""

import threading
from collections import deque
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, final

from loadax.core.warn import warn_user
from loadax.loader.iterator import DataIterator, at_state
from loadax.loader.phase import Phase
from loadax.loader.phases import Phases
from loadax.loader.stretch import Ledger, Target

if TYPE_CHECKING:
    from loadax.loader.epoch import Epoch

_EPOCHS = (
    "for whole epochs, pass num_epochs= and use `for epoch in loader.epochs():`. "
)


@final
class Iterations:
    """Begins the iterators of a loader; see `Dataloader` for what each does.

    Warns once when a loop begins again, if its later batches would have been others.

    Args:
        steps: Steps and states of the phases.
        phases: The phases.

    Attributes:
        ledger: Counters of the latest iterator, for monitoring from outside.
    """

    def __init__(self, steps: Phases, phases: Sequence[Phase]):
        self._steps = steps
        self._phases = phases
        self.ledger: Ledger | None = None
        # of the latest iterator that a loop began with
        self._earlier: Ledger | None = None
        self._warned = False
        self._ended = threading.Event()  # set at the end of a run
        # An iterator that reads ahead already, and the mesh and weights of each phase; or none.
        self._warm: deque[tuple[list[Any], DataIterator]] = deque()

    def iterate(
        self, targets: Sequence[Target], start: Any = 0, loop: str = ""
    ) -> DataIterator:
        """The iterator that `warmup` has begun at a step or a saved state, or a new one. None: step 0.

        Args:
            targets: Where the batches of each phase go.
            start: Step or state.
            loop: The call that begins a loop over the loader, for the warning; empty for other iterators.
        """
        if start is None:
            start = 0
        batches = self._take_warm(targets, start)
        if batches is None:
            batches = DataIterator(targets, self._steps, self._ended, start)
        if loop:
            self._watch(loop, batches)
        self.ledger = batches.ledger
        return batches

    def epochs(self, targets: Sequence[Target], start: Any) -> "Iterator[Epoch]":
        """Yields one sized iterator per epoch."""
        from loadax.loader.epoch import epochs

        batches = self.iterate(
            targets, start, "loader.epochs()" if start is None else ""
        )
        yield from epochs(batches)

    def warmup(self, targets: Sequence[Target], start: Any) -> None:
        """Begins the iterator that the next call of `iterate` continues with, if it is for the same batches."""
        self._drop_warm()
        batches = DataIterator(
            targets, self._steps, self._ended, 0 if start is None else start
        )
        targets, _ = at_state(targets, self._steps, start)
        self._warm.append((_places(targets), batches))

    def _take_warm(
        self, targets: Sequence[Target], start: Any
    ) -> DataIterator | None:
        """The iterator that `warmup` has begun, when it is for these meshes and this step; else it is closed."""
        # placed batches alone are read ahead
        if not self._warm or targets[0].mesh is None:
            return None
        targets, steps = at_state(targets, self._steps, start)
        step = steps.start_of(start)
        try:
            # atomic: of several threads, one gets it
            meshes, batches = self._warm.pop()
        except IndexError:
            return None
        if batches.step == step and meshes == _places(targets):
            batches.ledger.monitor.restart()
            return batches
        batches.close()
        return None

    def _drop_warm(self) -> None:
        try:
            _, batches = self._warm.pop()
        except IndexError:
            return
        batches.close()

    def _watch(self, call: str, batches: DataIterator) -> None:
        """Has the iterator of a loop warn if the run begins at step 0 once more, in another order.

        Args:
            call: The call that began it.
            batches: The iterator.
        """
        left = self._earlier is not None and self._earlier.step > 0
        again = left or self._ended.is_set()
        self._earlier = batches.ledger
        if again and not self._warned and self._varies:
            batches.warn_at_first_step = partial(self._warn, call)

    def _warn(self, call: str) -> None:
        if self._warned:
            return
        self._warned = True
        streams = any(phase.dataset.is_stream for phase in self._phases)
        warn_user(
            f"{call} starts at step 0 again, so it repeats the batches of the first "
            "pass in the same order; to go on, keep one iterator (`batches = "
            "iter(loader)` before the loop), or use loader.iterate(start=state) with "
            f"a state of get_state(); {'' if streams else _EPOCHS}To repeat the same "
            "batches on purpose, as for evaluation, or to look at one before "
            "training, use loader.iterate(), which does not warn"
        )

    @property
    def _varies(self) -> bool:
        """Whether the steps of another epoch, or of a stream, differ from the first ones other than by their rows."""
        return any(self._differs(phase) for phase in self._phases)

    def _differs(self, phase: Phase) -> bool:
        dataset = phase.dataset
        if (
            dataset.order.varies
            or dataset.reader.traits.random
            or phase.pipeline.options.key_seed is not None
        ):
            return True
        # Whether the rows of a stream are shuffled is not known. A whole pass over one is repeated for evaluation.
        return dataset.is_stream and not self._ended.is_set()


def _places(targets: Sequence[Target]) -> list[Any]:
    return [(target.mesh, [*target.phase.order.weights]) for target in targets]
