"""Windows within groups of rows, and the padding at their ends."""

from typing import Any

import numpy as np

from loadax.composition.padded_windows import PaddedWindowSource
from loadax.composition.windows import WindowOptions, WindowSource
from loadax.core.arguments import choice
from loadax.core.formatting import count_text
from loadax.errors import ArgumentError
from loadax.plan.groups.offsets import above_lists, group_starts, seams
from loadax.plan.order import depth_first
from loadax.plan.select import Selected
from loadax.protocols import Integers, Order
from loadax.reader import Reader
from loadax.row_index.offsets import given_offsets
from loadax.sources.base import BaseSource


def group_windows(
    reader: Reader,
    order: Order,
    options: WindowOptions,
    within: Any,
    short: Any,
) -> BaseSource:
    """Source of windows that have rows of one group each.

    Args:
        reader: Reader of the rows.
        order: Order that does not vary.
        options: Rows of a window.
        within: Offsets of the groups, or the name of a leaf; None: it was left out.
        short: What happens with groups without enough rows for a window: "error" or "drop".

    Raises:
        ArgumentError: When a value can't be used, rows are left out or reordered within a group, or one is shorter than
            a window; names it.
        SourceError: When no group has enough rows for a window.
    """
    choice("short", short, ["error", "drop"])
    if within is None:
        if options.pad is None:
            what = f"short={short!r}"
        else:
            what = f"pad={options.pad!r}"
        raise ArgumentError(
            f"{what} is for windows within groups; pass within= as well, such as "
            "within=data.offsets()"
        )
    starts = group_starts(given_offsets(order, reader, within, "within", "windows"))
    if order.runs is None:
        _check_seams(order, starts, seams(above_lists(order)))
        if any(isinstance(below, Selected) for below in depth_first(order)):
            # rows that were listed may have any distance
            options = options._replace(seams="cross")
    elif options.seams == "avoid":
        starts = np.union1d(starts, order.runs)
    if options.pad is None and short == "error":
        _check_lengths(np.append(starts, order.size), options)
    windows = WindowSource(reader, reader.spec, order, options, starts)
    if options.pad is None:
        return windows
    return PaddedWindowSource(windows, options.pad)


def _check_seams(order: Order, starts: Integers, own_seams: Integers) -> None:
    """Checks that rows which follow each other in a group do so in the data."""
    inner = own_seams[~np.isin(own_seams, starts)]
    if not len(inner):
        return
    positions = np.array([inner[0] - 1, inner[0]])
    before, after = order.visits(np.zeros_like(positions), positions).rows.tolist()
    raise ArgumentError(
        f"windows() within groups after {order.text()[-1]}: in the group at position "
        f"{starts[np.searchsorted(starts, inner[0], side='right') - 1]}, row {after} "
        f"follows row {before}; call windows() before the verb that leaves out or "
        "reorders rows of a group"
    )


def _check_lengths(offsets: Integers, options: WindowOptions) -> None:
    lengths = np.diff(offsets)
    short = np.flatnonzero(lengths < options.span)
    # without any window, the source says so
    if not len(short) or len(short) == len(lengths):
        return
    first = int(short[0])
    raise ArgumentError(
        f"{len(short):,} of {count_text(len(lengths), 'group')} lack the "
        f"{options.span} rows of a window ({options}), such as that of rows "
        f"{offsets[first]} to {offsets[first + 1] - 1}; pass pad='edge' or pad='zeros' to pad their "
        "windows, or short='drop' to have none of them"
    )
