"""Verbs on orders that take lists of rows, and read none: `exclude`, `select`, `sample`."""

import os
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadax.core.arguments import shown
from loadax.core.digest import digest_values
from loadax.core.formatting import count_text
from loadax.errors import ArgumentError, RowIndexError
from loadax.plan.sample import Sampled, integer_weights
from loadax.plan.select import Selected
from loadax.plan.slice import Sliced
from loadax.plan.subset import leave_out_rows
from loadax.protocols import Integers, Order


def leave_out(order: Order, num_rows: int, rows: Any) -> Order:
    """Drops the rows of a list.

    Raises:
        ArgumentError: When it is not a list of row numbers, or contains all rows.
        RowIndexError: When a row is out of range.
    """
    listed = _integers(_listed(rows, "rows"), "rows")
    wrong = listed[(listed < 0) | (listed >= num_rows)]
    if len(wrong):
        raise RowIndexError(
            f"exclude(): row {wrong[0]} is out of range; pass rows from 0 on, below "
            f"{num_rows}"
        )
    listed = np.unique(listed)
    left = leave_out_rows(order, listed, ("exclude", digest_values(listed)))
    if not left.size:
        raise ArgumentError(
            f"exclude() leaves none of {count_text(order.size, 'row')}; pass fewer "
            "than all"
        )
    return left


def select(order: Order, rows: Any, name: str) -> Sliced | Selected:
    """The listed positions of an order, in every epoch.

    Args:
        order: Any order.
        rows: Positions; negative ones count from the end. Or a mask of bools.
        name: Name of the argument, for messages.

    Raises:
        ArgumentError: When it is neither.
        RowIndexError: When a position is out of range.
    """
    if isinstance(rows, range):  # evenly spaced: no list is kept
        ends = rows[:1].start, rows[-1:].start
        _check_positions(np.array(ends[: len(rows)], object), order.size, name)
        if len(rows) == 0:
            return Sliced(order, 0, 1, 0)
        if (ends[0] < 0) == (ends[1] < 0):
            return Sliced(order, ends[0] % order.size, rows.step, len(rows))
    if isinstance(rows, set | frozenset):
        raise ArgumentError(
            f"{name}={rows!r:.80} is a set, which has no order; pass sorted({name})"
        )
    listed = _listed(rows, name)
    if listed.dtype.kind == "b":
        if len(listed) != order.size:
            what = (
                f"{name} is a mask of {len(listed)} bools, and the dataset has "
                f"{count_text(order.size, 'row')}"
            )
            raise ArgumentError(
                f"{what}; pass one for each row, or a list of positions",
                argument=name,
            )
        listed = np.flatnonzero(listed)
    given = _integers(listed, name)
    _check_positions(listed, order.size, name)
    positions = np.where(given < 0, given + order.size, given)
    return Selected(order, positions, ("select", digest_values(positions)))


def sample(
    order: Order,
    weights: Any,
    size: int,
    seed: int,
    offsets: Integers | None = None,
) -> Order:
    """Draws positions of an order with replacement, in proportion to weights.

    Args:
        order: Order to draw from.
        weights: A weight for each position, or group.
        size: Number of draws in an epoch.
        seed: Seed of the draws.
        offsets: Offsets of the groups that are weighed; None: positions are.

    Raises:
        ArgumentError: When the order changes every epoch, or the weights can't be used; names the position.
    """
    if order.varies:
        raise ArgumentError(
            "sample() weighs positions, which have other rows in every epoch here; "
            "sample before mixing or shuffling"
        )
    if not order.size:
        raise ArgumentError(
            "sample() of a dataset without rows has nothing to draw; pass one with "
            "rows"
        )
    if offsets is None:
        unit = "row"
        total = order.size
    else:
        unit = "group"
        total = len(offsets) - 1
    try:
        given = np.asarray(weights)
    except ValueError:  # ragged
        given = np.asarray(None)
    if given.ndim != 1 or given.dtype.kind not in "biuf":
        raise ArgumentError(
            f"weights={shown(weights)}: pass a flat list of numbers, one a {unit}"
        )
    if len(given) != total:
        raise ArgumentError(
            f"weights has {count_text(len(given), 'entry', 'entries')}; pass "
            f"{total}, one a {unit}",
            argument="weights",
        )
    wrong = np.flatnonzero(~(np.isfinite(given) & (given >= 0)))
    if len(wrong):
        raise ArgumentError(
            f"weights[{wrong[0]}]={given[wrong[0]]}: pass finite numbers from 0"
        )
    if not given.any():
        raise ArgumentError(
            f"weights are all zero; give at least one {unit} a positive weight",
            argument="weights",
        )
    if offsets is not None:
        empty = np.flatnonzero((given > 0) & (np.diff(offsets) == 0))
        if len(empty):
            raise ArgumentError(
                f"weights[{empty[0]}]={given[empty[0]]}: that group has no rows to "
                "draw; pass 0"
            )
    ends = np.cumsum(integer_weights(given))
    return Sampled(order, ends, size, seed, digest_values(ends), offsets)


def _check_positions(listed: NDArray[Any], size: int, name: str) -> None:
    wrong = listed[(listed < -size) | (listed >= size)]
    if len(wrong):
        what = f"position {wrong[0]} is out of range for a dataset of length {size}"
        raise RowIndexError(
            f"{name}: {what}; pass positions from 0 on, or from -1 backwards"
        )


def _listed(rows: Any, name: str) -> NDArray[Any]:
    """The rows of a list, unchecked."""
    if isinstance(rows, str | os.PathLike):
        remedy = (
            "pass the numbers in it: numpy.load(path), or numpy.loadtxt(path, int) "
            "of a text file"
        )
        raise ArgumentError(f"{name}={shown(os.fspath(rows))} is a path; {remedy}")
    try:
        listed = np.asarray(rows if hasattr(rows, "__array__") else list(rows))
    except (TypeError, ValueError):
        raise ArgumentError(
            f"{name}={rows!r:.80}: pass a list or an array of row numbers"
        ) from None
    if listed.ndim != 1:
        dimensions = count_text(listed.ndim, "dimension")
        what = f"{name} has {dimensions}: {listed.dtype}{list(listed.shape)}"
        raise ArgumentError(
            f"{what}; pass a flat list, such as {name}.reshape(-1)", argument=name
        )
    return listed


def _integers(listed: NDArray[Any], name: str) -> Integers:
    if listed.dtype.kind == "b":
        raise ArgumentError(
            f"{name} is a mask of True and False; pass row numbers: "
            "numpy.flatnonzero(mask)"
        )
    if listed.size and listed.dtype.kind not in "iu":
        raise ArgumentError(
            f"{name} contains {listed.dtype}; pass row numbers, as integers"
        )
    return listed.astype(np.int64)
