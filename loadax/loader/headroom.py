"""Headroom: measures what a perfect loader would gain, with the same training loop on replayed batches."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from time import perf_counter
from typing import Any, final

import jax

from loadax.core.formatting import percent_text
from loadax.core.tree import flatten
from loadax.errors import ArgumentError, ClosedError, LeafError
from loadax.loader.host_rows import HostRows, host_leaves_of
from loadax.loader.iterator import DataIterator
from loadax.loader.metrics.stats import Stats
from loadax.protocols import Tree

_FEWEST = 10  # measured steps
_NOTHING = 0.02
_TWICE, _TENFOLD = 2, 9.95


@final
@dataclass(frozen=True, repr=False)
class Headroom:
    """The speedup of training if batches cost nothing. `str()` is one sentence.

    Args:
        seconds: Seconds per step now.
        perfect: Seconds per step with batches that are already on the devices.
    """

    seconds: float
    perfect: float

    @property
    def gain(self) -> float:
        """Speedup as a fraction of the current speed: 0.16 for 16%. Noise may make it slightly negative."""
        return self.seconds / self.perfect - 1 if self.perfect else 0.0

    def __str__(self) -> str:
        perfect, now = f"{self.perfect * 1e3:.3g} ms a step", f"{self.seconds * 1e3:.3g} ms"
        if self.gain < _NOTHING:
            return f"a perfect loader would take {perfect}, and this one takes {now}: there is nothing to gain"
        times = self.gain + 1
        factor = f"{times:.0f}" if times >= _TENFOLD else f"{times:.2g}"
        speedup = f"{percent_text(self.gain)} faster" if times < _TWICE else f"{factor} times as fast"
        return f"a perfect loader would take {perfect} instead of {now}: {speedup}"

    __repr__ = __str__


@final
class Replay(Iterator[Tree]):
    """Repeats a run's first batches for as many steps as the run has. Made by `loader.replay`.

    Args:
        batches: Iterator of the run, which is closed after the first batches.
        count: Number of batches to repeat.
        host_leaves: Whether batches have leaves on the host.

    Attributes:
        num_steps: Number of steps of the run; None: infinite.
        batch_size: Rows per batch.
    """

    def __init__(self, batches: DataIterator, count: int, host_leaves: bool = False):
        self.num_steps = batches.num_steps
        self._step = batches.step
        if self.num_steps is not None:
            count = min(count, self.num_steps - self._step)
        self.batch_size = batches.batch_size
        self._batches: list[tuple[Tree, HostRows | None]] = []
        self._has_host_leaves = host_leaves
        self._host: HostRows | None = None  # of the latest batch
        with batches:
            for _ in range(count):
                batch = jax.block_until_ready(next(batches))
                self._batches.append((batch, batches.host if host_leaves else None))
        self._stats = Stats()
        self._began = self._left = perf_counter()
        self._closed = False

    def __next__(self) -> Tree:
        """The next batch.

        Raises:
            StopIteration: After the run's last step.
            LeafError: If the training step has donated the batch.
            ClosedError: After `close()`.
        """
        began = perf_counter()
        if self._step == self.num_steps:
            raise StopIteration
        if self._closed:
            raise ClosedError("this replay is closed; make a new one with loader.replay()")
        batch, self._host = self._batches[self._step % len(self._batches)]
        leaves, structure = flatten(batch)
        for leaf, path in zip(leaves, structure.paths, strict=True):
            if leaf.is_deleted():
                raise LeafError(
                    f"leaf {path or 'of the batch'} is deleted: the training step donates its batch, but a replay "
                    "hands out each batch many times; leave the batch out of donate_argnums while you measure"
                )
        now = perf_counter()
        self._stats.took(self._step, now - began, began - self._left)
        self._stats.active = now - self._began
        self._step += 1
        self._left = now
        return batch

    @property
    def step(self) -> int:
        """Next step."""
        return self._step

    @property
    def host(self) -> HostRows:
        """The host leaves of the latest batch, with the step that it was read for.

        Raises:
            ArgumentError: If no batch was handed out yet, or the loader has no `host_leaves`.
        """
        if not self._has_host_leaves:
            host_leaves_of(None)  # raises
        if self._host is None:
            raise ArgumentError("no batch was handed out yet; call next() first")
        return self._host

    def stats(self) -> Stats:
        """Statistics like those of an iterator: `step_seconds` is the time of training alone."""
        return self._stats.plus(Stats(elapsed=self._left - self._began, cores=self._stats.cores))

    def headroom(self, batches: Any) -> Headroom:
        """The gain of this replay over an iterator (or its `Stats`), in the same training loop.

        Raises:
            ArgumentError: If either was used for too few steps.
        """
        return compare(batches if isinstance(batches, Stats) else batches.stats(), self.stats())

    def close(self) -> None:
        """Frees the batches."""
        self._batches, self._closed = [], True

    def __enter__(self) -> "Replay":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Replay(step={self.step}, {len(self._batches)} batches)"


def compare(real: Stats, perfect: Stats) -> Headroom:
    """Computes the headroom from the statistics of a run and of its replay.

    Raises:
        ArgumentError: If either was used for too few steps.
    """
    for name, stats in (("the run", real), ("the replay", perfect)):
        if stats.measured < _FEWEST:
            raise ArgumentError(
                f"{name} has handed out {stats.steps} batches, too few to measure; run at least {_FEWEST + 2} steps"
            )
    return Headroom(real.step_seconds, perfect.step_seconds)


def measure(real: DataIterator, replay: Callable[[], Replay], train: Callable[[Tree], Any], steps: int) -> Headroom:
    """Trains `steps` steps on a run, then on its replay, and waits for each step."""
    with real:
        _go(real, train, steps)
    with replay() as perfect:
        _go(perfect, train, steps)
        return compare(real.stats(), perfect.stats())


def _go(batches: DataIterator | Replay, train: Callable[[Tree], Any], steps: int) -> None:
    # The statistics leave out the first `UNMEASURED` steps.
    for _, batch in zip(range(steps), batches, strict=False):
        jax.block_until_ready(train(batch))
