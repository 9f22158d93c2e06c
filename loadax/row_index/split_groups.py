"""Splits by groups whose rows are together, which keep offsets of groups in place of lists of rows."""

from typing import Any

import numpy as np

from loadax.core.distributed import this_process
from loadax.plan.groups.chosen import split_offsets, split_words
from loadax.plan.split import checked_group_split
from loadax.protocols import Order
from loadax.reader import Reader
from loadax.row_index.build import scan_options
from loadax.row_index.offsets import leaf_groups


def split_together(
    order: Order,
    reader: Reader,
    by: Any,
    fraction: Any,
    seed: int,
    contiguous: bool,
    gap: int,
) -> list[Order] | None:
    """Splits into orders that share no group; None if rows of a group are not together, which `split_by` can split.

    Args:
        order: Order to split.
        reader: Reader of the rows.
        by: Offsets of the groups, the name of a leaf, or a function of a row.
        fraction: Share of the groups in the first of two parts, counts of groups, or a number of equal parts.
        seed: Seed of the draws of groups.
        contiguous: Whether the parts are runs of groups, and none is drawn.
        gap: Number of groups between such parts.

    Raises:
        ArgumentError: When a value can't be used, there is no such leaf, or a part would be empty.
    """
    if callable(by):
        return None
    share, between = checked_group_split(fraction, seed, contiguous, gap)
    if not isinstance(by, str):
        return split_offsets(order, by, share, seed, between)
    # several processes share a pass by its index
    if order.varies or order.repeats or this_process().count > 1:
        return None
    options = scan_options(None, None, None, None)
    groups = leaf_groups(order, reader, by, "by", options)
    if len(groups.torn()[0]):
        return None
    offsets = np.append(groups.starts, order.size)
    return split_words(order, offsets, groups.words, share, seed, between)
