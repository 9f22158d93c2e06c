"""Balances a step: arranges its rows so that equal cuts of the batch cost nearly the same.

Rows are sorted by cost and dealt to blocks of equal counts, the dearest to the cheapest block (longest processing time
first; Graham, 1969), and blocks swap rows. Then the dearest block is put beside the cheapest one, and so on, and the
pairs likewise, up to the whole batch. So every cut into 2, 4, 8, … contiguous parts is balanced at once, and the
arrangement knows no mesh.
"""

from collections.abc import Callable

import numpy as np

from loadax.protocols import Array, Integers, Visits

_BLOCK = 8  # smallest number of rows of a block; fewer leave no choice
_ROUNDS = 8  # of swaps; more gain nothing

# Costs of visits: numbers of 0 or more, of shape (n,).
Costs = Callable[[Visits], Array]


def arrangement(costs: Array) -> Integers:
    """Indices of the rows in their new order, int64[n].

    Args:
        costs: Costs of the rows of a step, of shape (n,).

    Examples:
        >>> import numpy as np
        >>> from loadax.plan.balance import arrangement
        >>> costs = np.array([9, 1, 1, 1, 8, 1, 1, 2])
        >>> costs[arrangement(costs)].reshape(2, 4).sum(axis=1)
        array([12, 12])
    """
    blocks = 1
    while len(costs) % (2 * blocks) == 0 and len(costs) >= 2 * blocks * _BLOCK:
        blocks *= 2
    groups = _dealt(costs, blocks)
    groups = groups[_folded(costs[groups].sum(axis=1, keepdims=True).T)[0]]
    groups = _swapped(costs, groups, _targets(costs, groups))
    return np.take_along_axis(groups, _folded(costs[groups]), axis=1).reshape(-1)


def _dealt(costs: Array, blocks: int) -> Integers:
    """Rows of each block, int64[blocks, n / blocks]: in every round the cheapest block gets the dearest row."""
    rounds = np.argsort(-costs, kind="stable").reshape(-1, blocks)
    dealt, load = np.empty_like(rounds), np.zeros(blocks, costs.dtype)
    for index, rows in enumerate(rounds):
        dealt[index, np.argsort(load, kind="stable")] = rows
        load += costs[dealt[index]]
    return dealt.T.copy()


def _targets(costs: Array, groups: Integers) -> Array:
    """Costs that the blocks should have: half of a pair's, or less than its neighbour, if this has a dearer row."""
    cheapest = np.sort(costs)[: groups.shape[1] - 1].sum()
    least = cheapest + costs[groups].max(axis=1)  # that a block of the same dearest row can cost
    levels = [least]
    while len(levels[-1]) > 1:
        levels.append(levels[-1].reshape(-1, 2).sum(axis=1))
    targets = costs.sum(keepdims=True)
    for least in levels[-2::-1]:
        left, right = least.reshape(-1, 2).T
        first = np.minimum(np.maximum(targets / 2, left), targets - right)
        targets = np.stack([first, targets - first], axis=1).reshape(-1)
    return targets


def _swapped(costs: Array, groups: Integers, targets: Array) -> Integers:
    """Blocks after some rounds in which those above their targets swap a row with those below, side by side."""
    half, width = len(groups) // 2, groups.shape[1]
    held, pairs = costs[groups], np.arange(half)
    for _ in range(_ROUNDS if half else 0):
        excess = held.sum(axis=1) - targets
        ascending = np.argsort(excess, kind="stable")
        cheap, dear = ascending[:half], ascending[::-1][:half]
        wanted = (excess[dear] - excess[cheap]) / 2  # what the dear block should lose
        off = held[dear][:, :, None] - held[cheap][:, None, :]
        off -= wanted[:, None, None]
        off = np.abs(off, out=off).reshape(half, -1)
        best = off.argmin(axis=1)
        gains = off[pairs, best] < wanted
        if not gains.any():
            break
        dear, cheap, (out, back) = dear[gains], cheap[gains], np.divmod(best[gains], width)
        for each in (groups, held):
            each[dear, out], each[cheap, back] = each[cheap, back], each[dear, out]
    return groups


def _folded(costs: Array) -> Integers:
    """Order of each row of costs that balances every cut into halves, as far as their number is even: int64[m, n]."""
    order = np.arange(costs.size).reshape(*costs.shape, 1) % costs.shape[1]
    each = np.arange(len(costs))[:, None]
    while costs.shape[1] > 1 and costs.shape[1] % 2 == 0:
        ascending, half = np.argsort(costs, axis=1, kind="stable"), costs.shape[1] // 2
        dear, cheap = ascending[:, : half - 1 : -1], ascending[:, :half]  # the dearest beside the cheapest
        order = np.concatenate([order[each, dear], order[each, cheap]], axis=2)
        costs = costs[each, dear] + costs[each, cheap]
    return order.reshape(len(order), -1)
