"""Offsets of groups: the first position of each, and the number of positions at the end, int64[groups + 1]."""

from dataclasses import replace
from typing import Any

import numpy as np

from loadax.core.arguments import shown
from loadax.core.formatting import count_text
from loadax.errors import ArgumentError
from loadax.plan.select import Selected
from loadax.plan.sequential import Sequential
from loadax.protocols import Integers, Order

_CHUNK = 1 << 20  # positions per pass
_FORM = (
    "pass the first row of each group, and the number of rows at the end: "
    "numpy.append(0, numpy.cumsum(lengths))"
)


def checked_offsets(given: Any, size: int, name: str) -> Integers:
    """The offsets of groups, which may be empty.

    Args:
        given: Anything.
        size: Number of positions of the groups.
        name: Name of the argument, for messages.

    Raises:
        ArgumentError: When these are no offsets of so many positions; says where.
    """
    try:
        offsets = np.asarray(given)
    except ValueError:  # ragged
        offsets = np.asarray(None)
    if offsets.ndim != 1 or offsets.dtype.kind not in "iu" or not len(offsets):
        raise ArgumentError(
            f"{name}={shown(given)}: pass the name of a leaf, or offsets of groups as "
            "a flat list of integers: numpy.append(0, numpy.cumsum(lengths))"
        )
    descents = np.flatnonzero(offsets[1:] < offsets[:-1])
    if len(descents):
        at = int(descents[0])
        raise ArgumentError(
            f"{name}[{at + 1}]={offsets[at + 1]} is below {name}[{at}]={offsets[at]}; "
            f"offsets ascend: {_FORM}"
        )
    if offsets[0] != 0 or offsets[-1] != size:
        raise ArgumentError(
            f"{name} goes from {offsets[0]} to {offsets[-1]}, and the dataset has "
            f"{count_text(size, 'row')}; {_FORM}",
            argument=name,
        )
    return offsets.astype(np.int64)


def union(*positions: Integers) -> Integers:
    """All positions of some lists, each once and ascending. `np.unique` hashes them, which takes ten times as long."""
    listed = np.sort(np.concatenate(positions))
    return listed[np.diff(listed, prepend=-1) > 0]


def group_starts(offsets: Integers) -> Integers:
    """First positions of the groups that are not empty."""
    return offsets[:-1][np.diff(offsets) > 0]


def seams(order: Order, groups: Integers | None = None) -> Integers:
    """Positions of a fixed order where a span begins, or another group of the source, from 0, ascending.

    Args:
        order: Order that does not vary. Where it has no `spans`, one begins where a row does not follow the last.
        groups: First rows of the source's groups, ascending; None: it has none.
    """
    if order.runs is not None and groups is None:
        return order.runs
    rows = order.row_range
    if rows is not None and rows.step == 1 and groups is not None:
        inner = groups[(groups > rows.start) & (groups < rows.stop)]
        return np.append(np.arange(min(1, order.size)), inner - rows.start)
    found = [np.arange(min(1, order.size))]
    if order.runs is not None:
        found.append(order.runs)
    for start in range(0, order.size, _CHUNK):
        positions = np.arange(max(start - 1, 0), min(start + _CHUNK, order.size))
        visited = order.visits(np.zeros_like(positions), positions).rows
        if order.runs is None:
            found.append(positions[1:][np.diff(visited) != 1])
        if groups is not None:
            numbers = np.searchsorted(groups, visited, side="right")
            found.append(positions[1:][np.diff(numbers) != 0])
    return union(*found)


def above_lists(order: Order) -> Order:
    """The order above the last list of positions in it: rows that were listed follow each other as they are listed."""
    if isinstance(order, Selected):
        return Sequential(order.size)
    if order.parent is None:
        return order
    above: Any = order
    return replace(above, parent=above_lists(order.parent))
