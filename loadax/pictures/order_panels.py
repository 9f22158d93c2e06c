"""Panels of an order by itself: mixtures, packed rows, lengths of documents, and which row is where."""

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np

from loadax.core.formatting import count_text
from loadax.packing.packed import PackedSource
from loadax.pictures.panels import (
    Histogram,
    PackedRow,
    PackingBars,
    Panel,
    Panels,
    Points,
    Shares,
)
from loadax.plan.mix import ENDLESS, Mixed
from loadax.protocols import Integers, Order
from loadax.reader import Reader
from loadax.sources.base import BaseSource, all_parts

MOST_BINS = 64  # of the shares of a mixture
_BIN = 50  # fewest positions of a bin, whose shares are not even in fewer
_MOST_POSITIONS = 1 << 20  # of an epoch that are shown
_MOST_DATASETS = 7  # of a mixture that are shown by themselves
_MOST_ROWS = 1 << 15  # whose fill or length is looked up
_DRAWN_ROWS = 16  # of packed rows
_DRAWN_PARTS = 400  # of the documents of these
_POINTS = 200  # of an epoch


def order_panels(order: Order, reader: Reader) -> Panels:
    """Panels of the order of a dataset."""
    mixed = mixture_of(order)
    if mixed is not None:
        panels = {"mixture": [_mixture(order, mixed)]}
    else:
        panels = {"rows": [_rows_at_positions(order)]}
    return {
        **panels,
        "packing": [*packed_panels(reader.source)],
        "lengths": [*_lengths(order, reader)],
    }


def mixture_of(order: Order) -> Mixed | None:
    """The mixture whose rows an order has; None: there is none."""
    below: Order | None = order
    while below is not None and not isinstance(below, Mixed):
        below = below.parent
    return below


def drawn(mixed: Mixed, begin: int, end: int) -> Integers:
    """Rows, or tokens of a mixture by tokens, of each dataset between two positions, counted over all epochs."""
    before = mixed.counts(begin)
    after = mixed.counts(end)
    if mixed.tokens is None:
        return after - before
    tokens = [
        part.before(int(last)) - part.before(int(first))
        for part, first, last in zip(mixed.tokens, before, after, strict=True)
    ]
    return np.array(tokens, np.int64)


def rows_by_dataset(mixed: Mixed, rows: Integers) -> Integers:
    """Number of some rows that are of each dataset of a mixture; -1 is of none."""
    ends = np.cumsum(mixed.rows)
    owners = np.searchsorted(ends, rows[rows >= 0], side="right")
    return np.bincount(owners, minlength=len(mixed.rows))


def shares_panel(
    mixed: Mixed,
    edges: Sequence[int],
    counts: Sequence[Integers],
    epochs: Integers | None,
    x: str,
    note: str,
) -> Shares:
    """Shares of the datasets of a mixture.

    Args:
        mixed: The mixture.
        edges: Bounds of the bins.
        counts: Rows or tokens of each dataset in each bin.
        epochs: Epochs of each dataset in all bins; None: unknown.
        x: Label of the bins.
        note: Of which bins the shares are.
    """
    table = np.array(counts, np.float64)
    total = table.sum(axis=0)
    table /= np.maximum(table.sum(axis=1, keepdims=True), 1)
    largest = np.argsort(-total, kind="stable")
    shown = np.sort(largest[:_MOST_DATASETS])
    shares = {}
    for index in shown.tolist():
        label = f"{mixed.names[index]}: {total[index] / max(1, total.sum()):.1%}"
        if epochs is not None:
            label += f", {epochs[index]:.2f} epochs"
        shares[label] = table[:, index].tolist()
    others = largest[_MOST_DATASETS:]
    if len(others):
        rest = total[others].sum() / max(1, total.sum())
        label = f"{count_text(len(others), 'other')}: {rest:.1%}"
        shares[label] = table[:, others].sum(axis=1).tolist()
    if mixed.tokens is None:
        what = "rows"
    else:
        what = "tokens"
    return Shares(f"Mixture: shares of {what}", note, x, list(edges), shares)


def _mixture(order: Order, mixed: Mixed) -> Panel:
    end = min(order.size, _MOST_POSITIONS)
    if order.size >= ENDLESS:
        end = min(end, 2 * mixed.segments[-1].start or end)
    bins = min(MOST_BINS, -(-end // _BIN))
    edges = np.linspace(0, end, bins + 1).astype(int).tolist()
    counts = []
    for begin, stop in pairwise(edges):
        if order is mixed:
            counts.append(drawn(mixed, begin, stop))
            continue
        positions = np.arange(begin, stop, dtype=np.int64)
        rows = order.visits(np.zeros_like(positions), positions).rows
        counts.append(rows_by_dataset(mixed, rows))
    note = f"epoch 0, in {count_text(len(edges) - 1, 'bin')}"
    if end < order.size:
        first = count_text(end, "position")
        note = f"first {first}, in {count_text(len(edges) - 1, 'bin')}"
    return shares_panel(mixed, edges, counts, None, "position", note)


def packed_panels(source: BaseSource) -> Iterator[Panel]:
    """Some rows of each packed dataset, a panel for each budget."""
    for name, part, _ in all_parts(source):
        if not isinstance(part, PackedSource):
            continue
        rows = _spaced(len(part), _MOST_ROWS)
        filled = part.tokens(rows).sum() / (len(rows) * sum(part.seq_lens.values()))
        which = _of_all(len(rows), len(part), "row")
        note = f"{which}: {filled:.1%} filled, {1 - filled:.1%} padding"
        for budget, length in part.seq_lens.items():
            title = " of ".join(filter(None, ("Documents in packed rows", name)))
            x = "column"
            if len(part.seq_lens) > 1:
                x = f"column of {budget}"
            yield PackingBars(title, note, x, length, _drawn_rows(part, budget))


def _drawn_rows(part: PackedSource, budget: str) -> list[PackedRow]:
    found: list[PackedRow] = []
    parts = 0
    for row in _spaced(len(part), _DRAWN_ROWS).tolist():
        segments = part.segments_of(row, budget)
        parts += len(segments)
        if found and parts > _DRAWN_PARTS:
            break
        found.append(PackedRow(f"row {row:,}", segments))
    return found


def _lengths(order: Order, reader: Reader) -> Iterator[Panel]:
    """Lengths of documents, if the source knows them."""
    if not 0 < order.size < ENDLESS:
        return
    positions = _spaced(order.size, _MOST_ROWS)
    rows = order.visits(np.zeros_like(positions), positions).rows
    lengths = reader.lengths(rows)
    if lengths is None:
        return
    least, median, most = np.percentile(lengths, (0, 50, 100), method="nearest")
    edges = np.linspace(0, most + 1, min(40, most + 1) + 1)
    counts = np.histogram(lengths, edges)[0]
    which = _of_all(len(rows), order.size, "document")
    note = f"{which}: {least:,} to {most:,}, median {median:,}"
    yield Histogram(
        "Lengths of documents",
        note,
        "length",
        "documents",
        edges.tolist(),
        counts.tolist(),
    )


def _rows_at_positions(order: Order) -> Panel:
    positions = _spaced(order.size, _POINTS)
    rows = {}
    for epoch in range(2 if order.varies else 1):
        visits = order.visits(np.full_like(positions, epoch), positions)
        rows[f"epoch {epoch}"] = visits.rows.tolist()
    note = _of_all(len(positions), order.size, "position")
    return Points(
        "Row at each position", note, "position", "row", positions.tolist(), rows
    )


def _of_all(number: int, all_of_them: int, noun: str) -> str:
    whole = count_text(all_of_them, noun)
    if number < all_of_them:
        return f"{number:,} of {whole}"
    if number > 1:
        return f"all {whole}"
    return whole


def _spaced(size: int, most: int) -> Integers:
    """Evenly spaced numbers below `size`, at most so many."""
    count = min(size, most)
    return np.array([number * size // count for number in range(count)], np.int64)
