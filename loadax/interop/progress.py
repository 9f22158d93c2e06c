"""A bar for a training loop: how far, how fast, how much of it waiting."""

from collections.abc import Sized
from time import perf_counter
from typing import Any, Protocol, final

from loadax.errors import ArgumentError
from loadax.loader.dataloader import Dataloader
from loadax.loader.report import percent_text
from loadax.loader.stats import Stats
from loadax.protocols import Tree


class Batches(Protocol):
    """An iterator that `iterate`, `epochs` or `replay` of a loader gives."""

    @property
    def step(self) -> int:
        """The number of the next step."""

    @property
    def batch_size(self) -> int:
        """Rows of the next batch."""

    def __next__(self) -> Tree: ...

    def stats(self) -> Stats:
        """Where its time went."""


def progress(loader: Any, *, start: Any = None, **options: Any) -> "Progress":
    """The batches of a loader, with a bar that shows steps, rows a second, the share of waiting, and the time that is left.

    It works on terminals and in notebooks, and is drawn a few times a second, however fast the steps are.

    Args:
        loader: a `Dataloader`; or an iterator of one, such as an epoch, which may have begun before.
        start: where to begin, as for `loader.iterate`.
        options: for `tqdm`: `desc=`, `disable=`, `file=`, `leave=`, ….

    Raises:
        ArgumentError: when that is no loader and none of its iterators, or an iterator comes with a `start`.

    Example:
        >>> import numpy as np
        >>> from loadax import Dataloader
        >>> for batch in progress(Dataloader(np.zeros((64, 2), np.float32), 8), disable=True):
        ...     pass
    """
    if isinstance(loader, Dataloader):
        return Progress(loader.iterate(0 if start is None else start), options)
    if not all(hasattr(loader, name) for name in ("__next__", "step", "batch_size", "stats")):
        raise ArgumentError(f"loader={loader!r}: pass a Dataloader, or an iterator of one: loader.iterate(), or an epoch")
    if start is not None:
        raise ArgumentError(f"start={start!r}: this iterator has begun already; pass the Dataloader, or set_state(start) before")
    return Progress(loader, options)


def _steps(batches: Batches) -> int | None:
    return getattr(batches, "num_steps", None)


@final
class Progress:
    """Yields batches, and moves a bar. What it does not have, such as `get_state` or `report`, it takes from the iterator.

    Args:
        batches: closed with the bar, when they can be.
        options: for tqdm.
    """

    def __init__(self, batches: Batches, options: dict[str, Any]):
        from tqdm.auto import tqdm

        self._batches = batches
        self._shown_at, self._shown_step, self._size = perf_counter(), batches.step, batches.batch_size
        # An epoch is sized, and its bar is that of the epoch; else it is that of the run, of which some may lie behind.
        whole: dict[str, Any] = (
            {"total": len(batches)} if isinstance(batches, Sized) else {"total": _steps(batches), "initial": batches.step}
        )
        settings: dict[str, Any] = {"unit": "step", "dynamic_ncols": True} | whole | options
        self._bar = tqdm(**settings)

    def __iter__(self) -> "Progress":
        return self

    def __next__(self) -> Tree:
        try:
            batch = next(self._batches)
        except BaseException:  # a Ctrl-C in the middle, too: nothing of the bar may be left half drawn
            self._end()
            raise
        # It says when it has drawn, which it does a few times a second: only then are the figures worked out.
        if self._bar.update():
            self._describe()
        return batch

    def _describe(self) -> None:
        now, step = perf_counter(), self._batches.step
        rows = (step - self._shown_step) * self._size / max(now - self._shown_at, 1e-9)
        waited = percent_text(self._batches.stats().waited_share)
        self._bar.set_postfix_str(f"{rows:,.0f} rows/s, waited {waited}", refresh=False)
        self._shown_at, self._shown_step, self._size = now, step, self._batches.batch_size

    def _end(self) -> None:
        if not self._bar.disable:
            waited = percent_text(self._batches.stats().waited_share)
            self._bar.set_postfix_str(f"waited {waited}", refresh=False)
        self._bar.close()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # of a bar that never came to be
            raise AttributeError(name)
        return getattr(self._batches, name)

    def close(self) -> None:
        """Ends the bar, and closes the batches."""
        self._end()
        close = getattr(self._batches, "close", None)
        if close is not None:
            close()

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
