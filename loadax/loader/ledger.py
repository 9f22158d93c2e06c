"""Statistics of an iterator that outlive it, for observers."""

from dataclasses import replace
from typing import final

from loadax.loader.execution.scheduler import PrefetchScheduler
from loadax.loader.metrics.stats import Stats


@final
class Ledger:
    """The statistics of an iterator, and where it is.

    It holds neither the iterator nor what that has read ahead once it is closed.
    """

    def __init__(self) -> None:
        # In one: another thread that asks must not find steps counted twice, or not at all.
        self._page: tuple[Stats, PrefetchScheduler, int, tuple[int, int] | None] | None = None

    def turn(self, earlier: Stats, window: PrefetchScheduler, step: int, processes: tuple[int, int] | None) -> None:
        """Goes on with another window.

        Args:
            earlier: what was counted before it.
            window: that counts from here on.
            step: its first one.
            processes: how many read, and how many threads wait for them; None where threads read.
        """
        self._page = earlier, window, step, processes

    def stats(self) -> Stats:
        """What was counted so far."""
        assert self._page is not None
        earlier, window, _, processes = self._page
        found = earlier.plus(window.snapshot())
        if processes is None:
            return found
        # The window counts threads, of which each process has several, so that it need not wait for the next piece.
        workers, threads = processes
        at_work, tried = (-(-count * workers // threads) for count in (found.at_work, found.tried))
        return replace(found, worker_type="process", workers=workers, at_work=at_work, tried=tried)

    @property
    def step(self) -> int:
        """The number of the next step."""
        assert self._page is not None
        _, window, step, _ = self._page
        return step + window.snapshot().steps
