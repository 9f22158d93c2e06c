"""Verbs of groups of rows: windows within them, splits and shuffles by them."""

from typing import Any

import numpy as np

from loadax.composition.padded_windows import PaddedWindowSource
from loadax.composition.windowed import WindowOptions, WindowSource
from loadax.core.arguments import choice, refuse_given
from loadax.core.distributed import this_process
from loadax.core.formatting import count_text
from loadax.errors import ArgumentError
from loadax.plan.groups.chosen import split_offsets, split_words
from loadax.plan.groups.offsets import above_lists, group_starts, seams, union
from loadax.plan.groups.shuffled import GroupsShuffled
from loadax.plan.order import depth_first
from loadax.plan.select import Selected
from loadax.plan.split import checked_group_split
from loadax.protocols import Integers, Order
from loadax.reader import Reader
from loadax.row_index.build import scan_options
from loadax.row_index.group_offsets import given_offsets, leaf_groups, torn_groups
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
        starts = union(starts, order.runs)
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
        f"{count_text(options.span, 'row')} of a window ({options}), such as that "
        f"of rows {offsets[first]} to {offsets[first + 1] - 1}; pass pad='edge' or "
        "pad='zeros' to pad their windows, or short='drop' to have none of them"
    )


def split_together(
    order: Order,
    reader: Reader,
    by: Any,
    fraction: Any,
    seed: int,
    contiguous: bool,
    gap: int,
    index: Any,
) -> list[Order] | None:
    """Splits into orders that share no group; None if rows of a group are not together, which `split_by` can split.

    Args:
        order: Order to split.
        reader: Reader of the rows.
        by: Offsets of the groups, the name of a leaf, or a function of a row.
        fraction: Share of the groups in the first of two parts, counts of groups, or a number of equal parts.
        seed: Seed of the draws of groups.
        contiguous: Whether the parts are spans of groups, and none is drawn.
        gap: Number of groups between such parts.
        index: Folder that keeps the groups of a leaf; None: they are not kept.

    Raises:
        ArgumentError: When a value can't be used, there is no such leaf, a part would be empty, or each of several
            processes would read all rows.
    """
    if callable(by):
        return None
    share, between = checked_group_split(fraction, seed, contiguous, gap)
    if not isinstance(by, str):
        return split_offsets(order, by, share, seed, between)
    processes = this_process().count
    if processes > 1 and index is None:
        raise ArgumentError(
            f"split(by={by!r}) would read all rows in each of "
            f"{count_text(processes, 'process', 'processes')}; pass index=, a "
            "folder that they share, so that each reads a part",
            argument="index",
        )
    if order.varies or order.repeats:
        return None
    options = scan_options(index, None, None, None)
    starts, words = leaf_groups(order, reader, by, "by", options)
    if len(torn_groups(words)[0]):
        return None
    offsets = np.append(starts, order.size)
    return split_words(order, offsets, words, share, seed, between)


def shuffle_groups(
    order: Order, reader: Reader, by: Any, seed: int, blocks: dict[str, Any]
) -> Order:
    """Shuffles groups, whose rows keep their order.

    Args:
        order: Order that does not vary.
        reader: Reader of the rows.
        by: Offsets of the groups, or the name of a leaf.
        seed: Seed of the permutations.
        blocks: Arguments of a block shuffle, which this is not; None where they were left out.

    Raises:
        ArgumentError: When an argument can't be used, or rows of a group are not together.
    """
    refuse_given("shuffles of blocks, and by= for those of groups", **blocks)
    offsets = given_offsets(order, reader, by, "by", "shuffle")
    return GroupsShuffled(order, offsets, seed)
