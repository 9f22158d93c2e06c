"""A tqdm progress bar for training loops, with throughput and the share of time spent waiting for data."""

import weakref
from collections.abc import Iterator, Sized
from functools import cache, partial
from typing import Any, final

from loadax.core.formatting import percent_text
from loadax.errors import ArgumentError
from loadax.loader.dataloader import Dataloader
from loadax.protocols import Tree

_BAR_NAMES = {
    "set_postfix",
    "set_postfix_str",
    "set_description",
    "set_description_str",
    "update",
    "refresh",
    "write",
}


def progress(loader: Any, *, start: Any = None, **options: Any) -> "LoaderProgress":
    """Iterates over the batches of a loader with a progress bar: steps, rows/s, share of waiting, and remaining time.

    It works in terminals and notebooks, and is redrawn a few times per second, however short steps are.

    Args:
        loader: `Dataloader`, or an iterator of one, such as an epoch, which may have started already.
        start: Step or state to start from, as for `loader.iterate`.
        options: Options of `tqdm`: `desc=`, `disable=`, `file=`, `leave=`, ….

    Raises:
        ArgumentError: If `loader` is neither, or `start` is given for an iterator.

    Examples:
        >>> import numpy as np
        >>> from loadax import Dataloader, progress
        >>> for batch in progress(Dataloader(np.zeros((64, 2), np.float32), 8), disable=True):
        ...     pass
    """
    if isinstance(loader, Dataloader):
        return LoaderProgress(
            iter(loader) if start is None else loader.iterate(start), options
        )
    if not all(
        hasattr(loader, name) for name in ("__next__", "step", "batch_size", "stats")
    ):
        raise ArgumentError(
            f"loader={loader!r}: pass a Dataloader, or its iterator: "
            "loader.iterate(), or an epoch"
        )
    if start is not None:
        raise ArgumentError(
            f"start={start!r}: this iterator has begun; pass the Dataloader, or call "
            "set_state(start)"
        )
    return LoaderProgress(loader, options)


@cache
def _bar_class() -> type[Any]:
    from tqdm.auto import tqdm

    class StatisticsBar(tqdm):  # type: ignore[type-arg]
        """A bar that computes its figures only when it is drawn; tqdm documents this override of `format_dict`."""

        statistics: Any = None

        @property
        def format_dict(self) -> Any:
            shown = dict(super().format_dict)
            texts = [
                text
                for text in (
                    shown.get("postfix"),
                    self.statistics and self.statistics(shown),
                )
                if text
            ]
            return shown | {"postfix": ", ".join(texts)}

    return StatisticsBar


def _statistics(batches: Any, shown: Any) -> str:
    """The rows/s that match the bar's step rate, and the share of waiting once it is measured."""
    done = shown["n"] - shown["initial"]
    elapsed = shown["elapsed"]
    rate = shown["rate"] or (done / elapsed if elapsed else 0.0)
    stats = batches.stats()
    if done:
        texts = [f"{rate * batches.batch_size:,.0f} rows/s"]
    else:
        texts = []
    if stats.measured:
        texts.append(f"waited {percent_text(stats.waited_share)}")
    return ", ".join(texts)


@final
class LoaderProgress(Iterator[Tree]):
    """Yields batches and advances a bar.

    Forwards the methods of both: `set_postfix`, `set_description`, `write`, … and `get_state`, `report`, ….

    Args:
        batches: Iterator of batches. `close()` closes it too, if it has that method.
        options: Options of tqdm.
    """

    def __init__(self, batches: Any, options: dict[str, Any]):
        self._batches = batches
        # An epoch is sized and gets its own bar. Otherwise the bar is that of the run, which may have started before.
        if isinstance(batches, Sized):
            whole: dict[str, Any] = {"total": len(batches)}
        else:
            whole = {
                "total": getattr(batches, "num_steps", None),
                "initial": batches.step,
            }
        self._bar = _bar_class()(
            **{"unit": "step", "dynamic_ncols": True, **whole, **options}
        )
        self._bar.statistics = partial(_statistics, batches)
        # Also runs at exit. Later, tqdm would draw the bar with modules that are gone.
        weakref.finalize(self, self._bar.close)

    def __next__(self) -> Tree:
        try:
            batch = next(self._batches)
        except (
            BaseException
        ):  # KeyboardInterrupt too: the bar must not be left half drawn
            self._bar.close()
            raise
        self._bar.update()
        return batch

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # __init__ may have failed before _bar was set
            raise AttributeError(name)
        return getattr(self._bar if name in _BAR_NAMES else self._batches, name)

    def close(self) -> None:
        """Closes the bar and the iterator."""
        self._bar.close()
        close = getattr(self._batches, "close", None)
        if close is not None:
            close()

    def __enter__(self) -> "LoaderProgress":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
