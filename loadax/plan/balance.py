"""Balances a step: arranges its rows so that equal cuts of the batch cost nearly the same.

Rows are sorted by cost and dealt to blocks of equal counts, the dearest to the cheapest block (longest processing time
first; Graham, 1969), and blocks swap rows. Then the dearest block is put beside the cheapest one, and so on, and the
pairs likewise, up to the whole batch. So every cut into 2, 4, 8, … contiguous parts is balanced at once, and the
arrangement knows no mesh.
"""

import numpy as np

from loadax.protocols import Array, Integers

_BLOCK = 8  # smallest number of rows of a block; fewer leave no choice
_ROUNDS = 8  # of swaps; more gain nothing
# rows of a block whose pairs with those of another block are all compared
MOST_PAIRED = 64
FEW_BLOCKS = 8  # which are dealt to faster one by one than by a call for each round


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
    if blocks == 1:
        return rounds.T.copy()
    if blocks <= FEW_BLOCKS:
        return _dealt_to_few(costs, rounds)
    dealt = np.empty_like(rounds)
    load = np.zeros(blocks, costs.dtype)
    for index, rows in enumerate(rounds):
        dealt[index, np.argsort(load, kind="stable")] = rows
        load += costs[dealt[index]]
    return dealt.T.copy()


def _dealt_to_few(costs: Array, rounds: Integers) -> Integers:
    """Same as `_dealt`, with a list of loads: the number of rounds grows with the rows."""
    load = [costs.dtype.type(0).item()] * rounds.shape[1]
    turns = range(rounds.shape[1])
    dealt = []
    for row_costs in costs[rounds].tolist():
        order = sorted(turns, key=load.__getitem__)
        turn_of = [0] * len(order)
        for turn, block in enumerate(order):
            turn_of[block] = turn
            load[block] += row_costs[turn]
        dealt.append(turn_of)
    return np.take_along_axis(rounds, np.array(dealt), axis=1).T.copy()


def _targets(costs: Array, groups: Integers) -> Array:
    """Costs that the blocks should have: half of a pair's, or less than its neighbour, if this has a dearer row."""
    cheapest = np.sort(costs)[: groups.shape[1] - 1].sum()
    # that a block of the same dearest row can cost
    least = cheapest + costs[groups].max(axis=1)
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
    half = len(groups) // 2
    width = groups.shape[1]
    group_costs = costs[groups]
    for _ in range(_ROUNDS if half else 0):
        excess = group_costs.sum(axis=1) - targets
        ascending = np.argsort(excess, kind="stable")
        cheap = ascending[:half]
        dear = ascending[::-1][:half]
        wanted = (excess[dear] - excess[cheap]) / 2  # what the dear block should lose
        out, back = (_best_pairs if width <= MOST_PAIRED else _nearest)(
            group_costs[dear], group_costs[cheap], wanted
        )
        gains = (
            np.abs(group_costs[dear, out] - group_costs[cheap, back] - wanted)
            < wanted
        )
        if not gains.any():
            break
        dear, cheap, out, back = (each[gains] for each in (dear, cheap, out, back))
        for each in (groups, group_costs):
            each[dear, out], each[cheap, back] = each[cheap, back], each[dear, out]
    return groups


def _best_pairs(
    dear: Array, cheap: Array, wanted: Array
) -> tuple[Integers, Integers]:
    """For each two blocks, indices of the rows whose costs differ most nearly by `wanted`; all are compared."""
    off = dear[:, :, None] - cheap[:, None, :]
    off -= wanted[:, None, None]
    best = np.abs(off, out=off).reshape(len(off), -1).argmin(axis=1)
    out, back = np.divmod(best, dear.shape[1])
    return out, back


def _nearest(dear: Array, cheap: Array, wanted: Array) -> tuple[Integers, Integers]:
    """Same as `_best_pairs`, for blocks of many rows: by bisection in the sorted costs of the cheap block."""
    order = np.argsort(cheap, axis=1, kind="stable")
    ascending = np.take_along_axis(cheap, order, axis=1)
    sought = dear - wanted[:, None]
    low = np.zeros(dear.shape, np.int64)
    high = np.full(dear.shape, dear.shape[1] - 1)
    for _ in range(dear.shape[1].bit_length()):
        middle = (low + high) // 2
        below = np.take_along_axis(ascending, middle, axis=1) < sought
        low = np.where(below, np.minimum(middle + 1, high), low)
        high = np.where(below, high, middle)
    places = np.stack([np.maximum(high - 1, 0), high])
    off = np.abs(
        np.stack([np.take_along_axis(ascending, place, axis=1) for place in places])
        - sought
    )
    place = np.where(off[0] <= off[1], places[0], places[1])
    out = off.min(axis=0).argmin(axis=1)
    blocks = np.arange(len(dear))
    return out, order[blocks, place[blocks, out]]


def _folded(costs: Array) -> Integers:
    """Order of each row of costs that balances every cut into halves, as far as their number is even: int64[m, n]."""
    order = np.arange(costs.size).reshape(*costs.shape, 1) % costs.shape[1]
    each = np.arange(len(costs))[:, None]
    while costs.shape[1] > 1 and costs.shape[1] % 2 == 0:
        ascending = np.argsort(costs, axis=1, kind="stable")
        half = costs.shape[1] // 2
        # the dearest beside the cheapest
        dear = ascending[:, : half - 1 : -1]
        cheap = ascending[:, :half]
        order = np.concatenate([order[each, dear], order[each, cheap]], axis=2)
        costs = costs[each, dear] + costs[each, cheap]
    return order.reshape(len(order), -1)
