"""Finds the block shuffles of a dataset, whose open chunks are cached: those of its order, and below it."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from loadax.protocols import Blocks, Order
from loadax.sources.base import BaseSource


class BlockShuffle(NamedTuple):
    """A block shuffle of the rows of a source.

    Args:
        order: Its order.
        blocks: Its blocks.
        source: Source of the rows that it shuffles.
    """

    order: Order
    blocks: Blocks
    source: BaseSource


def block_shuffles(
    order: Order, source: BaseSource, shuffled: bool = False
) -> Iterator[BlockShuffle]:
    """Every block shuffle of an order of a source; `shuffled`: another shuffle comes after it."""
    shuffle = order.shuffle
    if shuffle is not None:
        shuffled = True
        if shuffle.blocks is not None:
            yield BlockShuffle(order, shuffle.blocks, source)
    # What is below is looked at only where it is needed: a concatenation may have many parts.
    if (
        order.parts
        and (joined := _same_rows(source, lambda below: below.in_parts)) is not None
    ):
        for part, child in zip(order.parts, joined.children, strict=True):
            yield from block_shuffles(part, child.source, shuffled)
    elif order.parent is not None:
        yield from block_shuffles(order.parent, source, shuffled)
    elif (
        not shuffled
        and (
            packed := _same_rows(source, lambda below: below.child_order is not None)
        )
        is not None
    ):
        assert packed.child_order is not None
        yield from block_shuffles(packed.child_order, packed.children[0].source)


def _same_rows(
    source: BaseSource, wanted: Callable[[BaseSource], bool]
) -> BaseSource | None:
    """The source that is wanted, also below wrappers that keep rows. None: there is none."""
    while not wanted(source):
        below = source.children
        if len(below) != 1 or below[0].first_row != 0:
            return None
        source = below[0].source
    return source
