"""What all orders share: walking over the verbs of one, and joining what their inverses find.

An order is a rule that turns positions of a dataset into visits of its source's rows; see `loadax.protocols.Order`.
Every verb of a dataset wraps the order before it, and turns an (epoch, position) of the new dataset into one of the
old. So a chain of verbs is a chain of small arithmetic steps: any position of any epoch is computed at once, nothing is
stored or replayed, and every host that asks gets the same answer. Each verb has a file of its own in this folder.
"""

from collections.abc import Iterable, Sequence

import numpy as np

from loadax.errors import ArgumentError
from loadax.protocols import Hits, Order

_SHOWN_PARTS = 8


def depth(order: Order) -> int:
    """Number of verbs that stand one upon another. Without recursion, since it is there to limit recursion."""
    level, verbs = [order], 0
    while level:
        verbs += 1
        level = [below for above in level for below in orders_below(above)]
    return verbs


def depth_first(order: Order) -> Sequence[Order]:
    """An order and all orders below it."""
    return [order, *(found for below in orders_below(order) for found in depth_first(below))]


def orders_below(order: Order) -> Sequence[Order]:
    """The orders that one reads its positions from."""
    return order.parts if order.parent is None else (order.parent,)


def check_fixed_rows(order: Order, what: str) -> None:
    """Checks that a row is the same record in every epoch.

    Raises:
        ArgumentError: when it is not; says why, and that `what` needs it.
    """
    reason = next((below.changing_rows for below in depth_first(order) if below.changing_rows is not None), None)
    if reason is not None:
        raise ArgumentError(
            f"{what} is about rows, but {reason}, "
            f"and shuffle and map with loadax behind {what}: .shuffle(seed).map(fn, rng=True)"
        )


def no_hits() -> Hits:
    """What the inverse of an order finds where there is nothing."""
    return Hits(np.empty(0, np.int64), np.empty(0, np.int64))


def join_hits(found: Sequence[Hits]) -> Hits:
    """What several inverses found, as one."""
    return Hits(*(np.concatenate(arrays) for arrays in zip(no_hits(), *found, strict=True)))


def parts_text(named: Iterable[tuple[str, Order]]) -> str:
    """The orders of several datasets as text: the first few of them."""
    texts = [f"{name} = {', '.join(part.text())}" for name, part in named]
    more = len(texts) - _SHOWN_PARTS
    return "; ".join(texts[:_SHOWN_PARTS]) + (f"; and {more:,} more" if more > 0 else "")
