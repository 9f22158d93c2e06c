"""A tqdm progress bar for training loops: loss, throughput, the share of waiting for data, and what is waited for."""

import weakref
from collections.abc import Iterator, Sized
from functools import cache, partial
from typing import Any, SupportsFloat, final

from jax import Array
from jax.core import Tracer
from jax.dtypes import issubdtype, prng_key

from loadax.core.arguments import dimensions, shown
from loadax.core.formatting import percent_text
from loadax.errors import ArgumentError
from loadax.interop.latest_values import LatestValues
from loadax.loader.dataloader import Dataloader
from loadax.loader.reports.bottleneck import report
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

# What training waits for, by the bottleneck that a report names.
_WORK = {
    "read": "reading",
    "transform": "maps",
    "assemble": "copying rows",
    "place": "placing",
    "memory": "room in prefetch_bytes",
}


def progress(loader: Any, *, start: Any = None, **options: Any) -> "LoaderProgress":
    """Iterates over the batches of a loader with a progress bar: steps, remaining time, rows/s, and share of waiting.

    If training waits, the bar says for what: reading, maps, copying rows, placing, or room in `prefetch_bytes`.
    `show(loss=loss)` shows the loss, too. It works in terminals and notebooks, and is redrawn a few times per second,
    however short steps are.

    Args:
        loader: `Dataloader`, or an iterator of one, such as an epoch, which may have started already.
        start: Step or state to start from, as for `loader.iterate`.
        options: Options of `tqdm`: `desc=`, `disable=`, `file=`, `leave=`, ….

    Raises:
        ArgumentError: If `loader` is neither, or `start` is given for an iterator.

    Examples:
        >>> import numpy as np
        >>> from loadax import Dataloader, progress
        >>> with progress(Dataloader(np.zeros((64, 2), np.float32), 8), disable=True) as bar:
        ...     for batch in bar:
        ...         bar.show(loss=batch.mean())
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

        # Functions of this state.
        texts: Any = ()

        @property
        def format_dict(self) -> Any:
            state = dict(super().format_dict)
            texts = [state.get("postfix"), *(text(state) for text in self.texts)]
            return state | {"postfix": ", ".join(filter(None, texts))}

    return StatisticsBar


def _statistics(batches: Any, state: Any) -> str:
    """The rows/s that match the bar's step rate, and the share of waiting once it is measured."""
    done = state["n"] - state["initial"]
    elapsed = state["elapsed"]
    rate = state["rate"] or (done / elapsed if elapsed else 0.0)
    stats = batches.stats()
    if done:
        # of the batches so far, which may be of several sizes
        rows = stats.batch_rows / max(1, stats.steps)
        texts = [f"{rate * rows:,.0f} rows/s"]
    else:
        texts = []
    if stats.measured:
        bottleneck = report(stats).bottleneck
        if bottleneck is None:
            work = ""
        else:
            work = f" for {_WORK[bottleneck]}"
        texts.append(f"waited {percent_text(stats.waited_share)}{work}")
    return ", ".join(texts)


def _check_value(name: str, value: Any) -> None:
    """Refuses what has no text now, which would end the training where the bar is drawn."""
    if dimensions(value):
        raise ArgumentError(
            f"{name}={shown(value)}: pass a number, such as {name}.mean()"
        )
    if isinstance(value, Tracer):
        raise ArgumentError(
            f"{name}={shown(value)}: return it from the jitted function, and show the "
            "result"
        )
    if not isinstance(value, str | SupportsFloat) or _is_key(value):
        raise ArgumentError(
            f"{name}={shown(value)}: pass a number, a scalar array, or text"
        )


def _is_key(value: Any) -> bool:
    return isinstance(value, Array) and issubdtype(value.dtype, prng_key)


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
        self._values = values = LatestValues()
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
        self._bar.texts = (lambda _state: str(values), partial(_statistics, batches))
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

    def show(self, **values: Any) -> None:
        """Shows values beside the bar, such as the loss, as soon as the devices have computed them.

        Does not wait for the devices, unlike `set_postfix` with arrays of JAX, so it is cheap in every step.

        Args:
            values: Numbers, scalar arrays, or text, by name. None shows nothing.

        Raises:
            ArgumentError: If a value is none of these, such as an array of one dimension or more, or an array that
                `jax.jit` traces.

        Examples:
            >>> import io, numpy as np
            >>> from loadax import Dataloader, progress
            >>> screen = io.StringIO()
            >>> with progress(Dataloader(np.ones((64, 2)), 8), file=screen, mininterval=0) as bar:
            ...     for batch in bar:
            ...         bar.show(loss=float(batch.mean()))
            >>> "loss=1, " in screen.getvalue()
            True
        """
        known = {name: value for name, value in values.items() if value is not None}
        for name, value in known.items():
            _check_value(name, value)
        self._values.add(known)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # __init__ may have failed before _bar was set
            raise AttributeError(name)
        return getattr(self._bar if name in _BAR_NAMES else self._batches, name)

    def __repr__(self) -> str:
        told = report(self._batches.stats())
        return f"<LoaderProgress of {self._batches!r}: {told}>"

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
