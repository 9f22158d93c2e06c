"""Shuffle of whole groups of rows."""

from typing import Any

from loadax.core.arguments import shown
from loadax.errors import ArgumentError
from loadax.plan.groups.shuffled import GroupsShuffled
from loadax.protocols import Order
from loadax.reader import Reader
from loadax.row_index.offsets import given_offsets

_BLOCKS = ("block", "window", "lanes", "pinned")


def shuffle_groups(
    order: Order, reader: Reader, by: Any, seed: int, blocks: tuple[Any, ...]
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
    for name, value in zip(_BLOCKS, blocks, strict=True):
        if value is not None:
            raise ArgumentError(
                f"{name}={shown(value)} is for shuffles of blocks, and by= for those "
                f"of groups; leave {name}= out"
            )
    offsets = given_offsets(order, reader, by, "by", "shuffle")
    return GroupsShuffled(order, offsets, seed)
