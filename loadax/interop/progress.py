"""A bar for a training loop: how far, how fast, how much of it waiting."""

from collections.abc import Sized
from functools import cache, partial
from typing import Any, Protocol, final

from loadax.errors import ArgumentError
from loadax.loader.dataloader import Dataloader
from loadax.loader.metrics.stats import Stats
from loadax.loader.reports.bottleneck import percent_text
from loadax.protocols import Tree

_OF_THE_BAR = {"set_postfix", "set_postfix_str", "set_description", "set_description_str", "update", "refresh", "write"}


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
    """The batches of a loader, with a bar that shows steps, rows a second, the share of waiting and the time left.

    It works on terminals and in notebooks, and is drawn a few times a second, however fast the steps are.

    Args:
        loader: a `Dataloader`; or an iterator of one, such as an epoch, which may have begun before.
        start: where to begin, as for `loader.iterate`.
        options: for `tqdm`: `desc=`, `disable=`, `file=`, `leave=`, ….

    Raises:
        ArgumentError: when that is no loader and none of its iterators, or an iterator comes with a `start`.

    Examples:
        >>> import numpy as np
        >>> from loadax import Dataloader
        >>> for batch in progress(Dataloader(np.zeros((64, 2), np.float32), 8), disable=True):
        ...     pass
    """
    if isinstance(loader, Dataloader):
        return Progress(loader.iterate(0 if start is None else start), options)
    if not all(hasattr(loader, name) for name in ("__next__", "step", "batch_size", "stats")):
        raise ArgumentError(
            f"loader={loader!r}: pass a Dataloader, or an iterator of one: loader.iterate(), or an epoch"
        )
    if start is not None:
        raise ArgumentError(
            f"start={start!r}: this iterator has begun already; pass the Dataloader, or set_state(start) before"
        )
    return Progress(loader, options)


def _steps(batches: Batches) -> int | None:
    return getattr(batches, "num_steps", None)


@cache
def _bar_class() -> type[Any]:
    from tqdm.auto import tqdm

    class Bar(tqdm):  # type: ignore[type-arg]
        """A bar that works out its figures when it is drawn.

        To be derived from for that is how tqdm provides for it.
        """

        figures: Any = None

        @property
        def format_dict(self) -> Any:
            shown = dict(super().format_dict)
            texts = [text for text in (shown.get("postfix"), self.figures and self.figures(shown)) if text]
            return shown | {"postfix": ", ".join(texts)}

    return Bar


def _figures(batches: Batches, shown: Any) -> str:
    """Rows a second, at the rate that the bar shows beside them, and the share of waiting once it is measured."""
    done, elapsed = shown["n"] - shown["initial"], shown["elapsed"]
    rate = shown["rate"] or (done / elapsed if elapsed else 0.0)
    stats = batches.stats()
    texts = [f"{rate * batches.batch_size:,.0f} rows/s"] if done else []
    if stats.measured:
        texts.append(f"waited {percent_text(stats.waited_share)}")
    return ", ".join(texts)


@final
class Progress:
    """Yields batches, and moves a bar.

    Has the methods of both: `set_postfix`, `set_description`, `write`, … and `get_state`, `report`, ….

    Args:
        batches: closed with the bar, when they can be.
        options: for tqdm.
    """

    def __init__(self, batches: Batches, options: dict[str, Any]):
        self._batches = batches
        # An epoch is sized, and its bar is that of the epoch; else it is that of the run, of which some may lie behind.
        whole: dict[str, Any] = (
            {"total": len(batches)}
            if isinstance(batches, Sized)
            else {"total": _steps(batches), "initial": batches.step}
        )
        settings: dict[str, Any] = {"unit": "step", "dynamic_ncols": True} | whole | options
        self._bar = _bar_class()(**settings)
        self._bar.figures = partial(_figures, batches)

    def __iter__(self) -> "Progress":
        return self

    def __next__(self) -> Tree:
        try:
            batch = next(self._batches)
        except BaseException:  # a Ctrl-C in the middle, too: nothing of the bar may be left half drawn
            self._bar.close()
            raise
        self._bar.update()
        return batch

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # of a bar that never came to be
            raise AttributeError(name)
        return getattr(self._bar if name in _OF_THE_BAR else self._batches, name)

    def close(self) -> None:
        """Ends the bar, and closes the batches."""
        self._bar.close()
        close = getattr(self._batches, "close", None)
        if close is not None:
            close()

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
