"""Splits by groups whose rows are together, which keep offsets of groups in place of lists of rows."""

from typing import Any

import numpy as np

from loadax.core.distributed import this_process
from loadax.plan.groups.chosen import split_offsets, split_words
from loadax.protocols import Order
from loadax.reader import Reader
from loadax.row_index.build import scan_options
from loadax.row_index.offsets import leaf_groups


def split_together(
    order: Order, reader: Reader, by: Any, fraction: Any, seed: int, gap: int | None
) -> list[Order] | None:
    """Splits into orders that share no group; None if rows of a group are not together, which `split_by` can split.

    Args:
        order: Order to split.
        reader: Reader of the leaf that `by` names, alone.
        by: Offsets of the groups, or the name of a leaf.
        fraction: Share of the groups in the first of two parts, counts of groups, or a number of equal parts.
        seed: Seed of the draws of groups.
        gap: Number of groups between the parts, which are runs of groups; None: groups are drawn.

    Raises:
        ArgumentError: When these are no offsets, there is no such leaf, or a part would be empty.
    """
    if not isinstance(by, str):
        return split_offsets(order, by, fraction, seed, gap)
    # several processes share a pass by its index
    if order.varies or order.repeats or this_process().count > 1:
        return None
    options = scan_options(None, None, None, None)
    groups = leaf_groups(order, reader, by, "by", options)
    if len(groups.torn()[0]):
        return None
    offsets = np.append(groups.starts, order.size)
    return split_words(order, offsets, groups.words, fraction, seed, gap)
