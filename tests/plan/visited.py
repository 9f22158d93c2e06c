"""What an order visits, as lists."""

import numpy as np

from loadax.protocols import Order


def epoch(order: Order, number: int) -> list[tuple[int, int]]:
    """All visits of an epoch, as pairs of row and epoch."""
    positions = np.arange(order.size)
    visits = order.visits(np.full(order.size, number), positions)
    assert visits.rows.dtype == visits.epochs.dtype == np.int64
    return list(zip(visits.rows.tolist(), visits.epochs.tolist(), strict=True))


def rows(order: Order, number: int = 0) -> list[int]:
    return [row for row, _ in epoch(order, number)]
