"""Pictures of a dataset or a run, as figures of matplotlib: `loadax.plots.mixture(data).savefig("mixture.png")`.

Nothing is read from the data. Extra `plots`.
"""

import io
from typing import TYPE_CHECKING

import numpy as np

from loadax.core.arguments import integer, shown
from loadax.core.formatting import percent_text
from loadax.dataset import Dataset
from loadax.errors import ArgumentError, ScheduleError
from loadax.loader.epoch import Epoch
from loadax.loader.iterator import DataIterator
from loadax.plan.mix import Mixed
from loadax.sources.library import require

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["mixture", "packing", "shuffle", "waits"]

_COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442", "#999999")  # Okabe and Ito
_WINDOWS = 200  # of a mixture
_ENDLESS = 1 << 40  # positions: a mixture of more has no length
_POINTS = 4000  # of a shuffle
_ROWS = 10_000  # packed rows that are looked at


def mixture(data: Dataset, batch_size: int | None = None, *, positions: int | None = None) -> "Figure":
    """Plots the share of each dataset of `mix` along the mixture: as it is drawn, not as it is asked for.

    Args:
        data: Mixture, as `mix` returned it.
        batch_size: Rows of a batch: the axis counts steps. Needed for weights that are scheduled by step.
        positions: Number of examples to show. None: all of an epoch, or the schedule and as many again if it is
            endless.

    Raises:
        ArgumentError: If `data` is not a mixture, or its weights are scheduled by step and `batch_size` is None.
        UnsupportedError: If matplotlib is not installed.

    Examples:
        >>> import numpy as np
        >>> from loadax import from_arrays, mix, plots
        >>> data = mix({"web": from_arrays(np.arange(900)), "code": from_arrays(np.arange(300))}, {"web": 3, "code": 1})
        >>> [text.get_text() for text in plots.mixture(data).axes[0].get_legend().get_texts()]
        ['web', 'code']
    """
    order = getattr(data, "order", None)
    if not isinstance(order, Mixed):
        raise ArgumentError(f"data={shown(data)} is not a mixture; pass what loadax.mix returned, before other verbs")
    size = 1 if batch_size is None else integer("batch_size", batch_size, 1)
    if order.by_step:
        if batch_size is None:
            raise ArgumentError("the weights are scheduled by step; pass batch_size=", argument="batch_size")
        order = order.at_positions([(0, size)], 1)
    end = order.size if positions is None else integer("positions", positions, 1)
    if positions is None and end >= _ENDLESS:  # the schedule, and as many again
        scheduled = order.segments[-1].start
        end = 2 * scheduled if scheduled else 1000 * sum(order.segments[0].weights)
    edges = np.unique(np.linspace(0, end, min(_WINDOWS, end) + 1).astype(np.int64))
    drawn = np.diff([order.counts(int(edge)) for edge in edges], axis=0)
    shares = drawn / np.diff(edges)[:, None]
    figure = _new_figure()
    axes = figure.subplots()
    below = np.zeros(len(shares))
    for part, (name, share) in enumerate(zip(order.names, shares.T, strict=True)):
        colour = _COLOURS[part % len(_COLOURS)]
        axes.stairs(below + share, edges / size, baseline=below, fill=True, color=colour, label=str(name))
        below = below + share
    axes.set(xlim=(0, end / size), ylim=(0, 1), ylabel="share of the examples")
    axes.set_xlabel("position" if batch_size is None else f"step of {batch_size:,} rows")
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=4, frameon=False)
    return figure


def packing(data: Dataset) -> "Figure":
    """Plots how full the rows of `pack` are, and how many documents they hold. At most 10,000 rows are looked at.

    Args:
        data: Packed dataset.

    Raises:
        ArgumentError: If `data` is not packed, or without `segment_ids`.
        UnsupportedError: If matplotlib is not installed.

    Examples:
        >>> import numpy as np
        >>> from loadax import from_source, plots
        >>> data = from_source([np.arange(3), np.arange(2), np.arange(4)]).pack(5, method="best_fit")
        >>> plots.packing(data).axes[0].get_title()
        '90.0% of all entries are documents'
    """
    source = getattr(data, "source", None)
    if source is None or not len(data) or source.documents(0) is None:
        raise ArgumentError(f"data={shown(data)} is not packed; pass what Dataset.pack returned")
    rows = np.unique(np.linspace(0, len(source) - 1, min(_ROWS, len(source))).astype(np.int64))
    documents = [source.documents(row) for row in rows.tolist()]
    by_leaf = getattr(documents[0][0], "lengths", None)
    names = ["segment_ids"] if by_leaf is None else [f"{name}_segment_ids" for name in by_leaf]
    if names[0] not in source.spec:
        raise ArgumentError(f"data has no leaf {names[0]!r}, which shows how long rows are; pass add=('segment_ids',)")
    seq_len = sum(source.spec[name].shape[0] for name in names)
    fill = np.array([sum(part.length for part in parts) for parts in documents]) / seq_len
    counts = np.array([len(parts) for parts in documents])
    figure = _new_figure()
    left, right = figure.subplots(1, 2)
    left.hist(fill, bins=np.linspace(0, 1, 41).tolist(), color=_COLOURS[0])
    left.set(xlim=(0, 1), xlabel=f"share of a row of {seq_len:,} that is filled", ylabel="rows")
    left.set_title(f"{fill.mean():.1%} of all entries are documents", loc="center")
    right.hist(counts, bins=np.arange(0.5, min(counts.max(), 60) + 1.5).tolist(), color=_COLOURS[2])
    right.set(xlabel="documents in a row", ylabel="rows", title=f"{counts.mean():.1f} documents in a row")
    return figure


def shuffle(data: Dataset, epoch: int = 0) -> "Figure":
    """Plots how well an order mixes rows: where rows of the source go, and how far apart neighbours were in it.

    Args:
        data: Dataset of at least two positions.
        epoch: Epoch to look at.

    Raises:
        ArgumentError: If `data` is no dataset, or has fewer than two positions.
        UnsupportedError: If matplotlib is not installed.

    Examples:
        >>> import numpy as np
        >>> from loadax import from_arrays, plots
        >>> plots.shuffle(from_arrays(np.arange(1000)).shuffle(seed=0)).axes[0].get_xlabel()
        'position in epoch 0'
    """
    if not isinstance(data, Dataset):
        raise ArgumentError(f"data={shown(data)} is not a Dataset; pass one, such as loadax.as_dataset(data)")
    try:
        length = len(data)
    except (ScheduleError, OverflowError, TypeError):
        length = _ENDLESS
    if length < 2:
        raise ArgumentError(f"data={shown(data)} has {length} positions; pass a dataset of two or more")
    epoch = integer("epoch", epoch, 0)
    positions = np.unique(np.linspace(0, length - 2, min(_POINTS, length - 1)).astype(np.int64))
    epochs = np.full_like(positions, epoch)
    rows, following = (data.order.visits(epochs, some).rows for some in (positions, positions + 1))
    figure = _new_figure()
    left, right = figure.subplots(1, 2)
    left.plot(positions, rows, linestyle="none", marker=".", markersize=2, color=_COLOURS[0])
    left.set(xlabel=f"position in epoch {epoch}", ylabel="row of the source", title="where rows go")
    distances = np.abs(following - rows) / max(1, len(data.source) - 1)
    right.hist(distances, bins=np.linspace(0, 1, 41).tolist(), density=True, color=_COLOURS[0], label="this order")
    right.plot([0, 1], [2, 0], color=_COLOURS[5], label="rows drawn at random")
    right.set(xlabel="distance of neighbours in the source, as a share of it", title="how far neighbours were apart")
    right.set(ylabel="density", xlim=(0, 1))
    right.legend(frameon=False)
    return figure


def waits(batches: DataIterator | Epoch) -> "Figure":
    """Plots how long training waited for each batch, and how many were ready, over the time of a run.

    Args:
        batches: Iterator of a Dataloader. At most its last 20,000 events are known.

    Raises:
        ArgumentError: If `batches` is not one, or no batch was handed out.
        UnsupportedError: If matplotlib is not installed.
    """
    if not isinstance(batches, DataIterator | Epoch):
        raise ArgumentError(f"batches={shown(batches)}: pass an iterator of a Dataloader: loader.iterate()")
    timeline = batches.ledger.monitor.timeline()
    if not timeline.ready:
        raise ArgumentError(f"batches={shown(batches)}: no batch was handed out yet; take some first")
    waits = [1000 * bar.seconds for bar in timeline.bars()["training"] if bar.stage == "waiting"]
    times, ready = zip(*timeline.ready[-len(waits) :], strict=True)
    figure = _new_figure()
    above, below = figure.subplots(2, 1, sharex=True)
    above.vlines(times, 0, waits, color=_COLOURS[5])
    share = batches.report().waited
    title = "waits" if share is None else f"training waited {percent_text(share)} of the time"
    above.set(ylabel="wait (ms)", title=title, ylim=(0, None))
    below.step(times, ready, where="post", color=_COLOURS[0])
    below.set(xlabel="seconds since the run began", ylabel="batches ready", ylim=(0, 1 + max(ready)))
    return figure


def _new_figure() -> "Figure":
    """Makes an empty figure without a window, which notebooks show."""
    require("loadax.plots", {"matplotlib": "matplotlib.figure"}, "plots")
    from matplotlib.figure import Figure

    class NotebookFigure(Figure):
        """A figure that shows itself, also in a notebook that never imports `matplotlib.pyplot`."""

        def _repr_png_(self) -> bytes:
            file = io.BytesIO()
            self.savefig(file, format="png")
            return file.getvalue()

    return NotebookFigure(figsize=(9, 4), layout="constrained")
