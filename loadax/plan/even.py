"""Even patterns: orders of the slots of a block in which every run of slots has nearly its share of each part.

The parts are the leaves of a binary tree, which is cut near half of the weight at every node. Of the first p slots of a
node with `total` slots, `(p * left + offset) // total` go to its left child, which has `left` of them, and so on down
to a part (the line of Bresenham, 1965, at each node). So the part of a slot, the slots of a part before it, and the
slot of a row are a few divisions for each level, of integers alone, and nothing is counted or stored.

Such a pattern nearly repeats itself: with weights of 0.7 and 0.3, every ten slots. So a block is cut into cells of 64
slots. A cell has as many slots of each node as the block has there, and orders them by offsets of its own.
"""

from typing import Any, NamedTuple, final

import numpy as np

from loadax import seeds
from loadax.protocols import Array, Integers

MOST_SLOTS = 1 << 44  # of a block: `_share` is exact up to here
_CELL = 64
_HALF = np.uint64(32)


class _Split(NamedTuple):
    """Slots of a node in one cell: `left_count` of its `count` go to the left child, spread from `offset` on."""

    count: Any
    left_count: Any
    offset: Any


class _Descent(NamedTuple):
    """From roots to leaves.

    Args:
        node: Leaf of each slot.
        rank: Number of earlier slots of that leaf in the block.
        begin: Number of slots of that leaf before the cell.
        splits: Splits at each level.
        left: Whether the left child was taken, at each level.
    """

    node: Integers
    rank: Integers
    begin: Integers
    splits: list[_Split]
    left: list[Array]


@final
class EvenPatterns:
    """Patterns of blocks with some weights, one tree for each list of weights; `part` is an index in that list.

    Args:
        seed: Seed of the mixture.
        weights: Number of slots of each part, in sum at most `MOST_SLOTS`, int64[trees, parts]; no tree is empty.

    Attributes:
        weights: Those of the first tree.
        size: Number of slots of its block.
    """

    def __init__(self, seed: int, weights: Integers):
        self.weights: Integers = weights[0]
        self.size = int(self.weights.sum())
        self._all_weights = weights
        self._seed = seed
        tree, self._part = np.nonzero(weights)
        self._tree = tree
        leaves = np.count_nonzero(weights, axis=1)
        # of each part that has slots
        self._leaf = np.cumsum(weights > 0).reshape(weights.shape) - 1
        bounds = np.concatenate([[0], np.cumsum(weights[tree, self._part])])
        high: Integers = np.cumsum(leaves)
        low: Integers = high - leaves
        origin = low
        levels = list[tuple[Array, ...]]()
        first = 0
        while len(low):
            inner = high - low > 1
            middle = _middles(bounds, low, high)
            count = len(low)
            total = bounds[high] - bounds[low]
            # A leaf is its own left child.
            left = np.where(inner, bounds[middle] - bounds[low], total)
            child = np.where(
                inner,
                first + count + 2 * (np.cumsum(inner) - 1),
                first + np.arange(count),
            )
            levels.append((total, left, child, middle, middle - origin, low))
            first += count
            low = _interleaved(low, middle, inner)
            high = _interleaved(middle, high, inner)
            origin = np.repeat(origin[inner], 2)
        self._levels = np.cumsum([0, *(len(level[0]) for level in levels)])
        columns = [np.concatenate(column) for column in zip(*levels, strict=True)]
        self._total, self._left, self._child, self._middle, cut, self._low = columns
        self._keys = seeds.derive(seed, "even", cut)

    def draws(
        self, pattern: Integers, slot: Integers, tree: Any = 0
    ) -> tuple[Integers, Integers]:
        """Part of a slot of a pattern, and the number of earlier slots of that part."""
        walk = self._walk(pattern, slot, np.zeros_like(slot) + tree, None)
        return self._part[self._low[walk.node]], walk.rank

    def before(
        self, pattern: Integers, part: Integers, slot: Integers, tree: Any = 0
    ) -> Integers:
        """Number of slots of a part, which has some, before a slot of a pattern."""
        return self._walk(
            pattern, slot, np.zeros_like(slot) + tree, self._leaf[tree, part]
        ).rank

    def slots(
        self, pattern: Integers, part: Integers, rank: Integers, tree: Any = 0
    ) -> Integers:
        """Slot of a pattern that has `rank` earlier slots of its part."""
        root = np.zeros_like(rank) + tree
        leaf = self._leaf[tree, part]
        words = self._pattern_words(pattern)
        # The cell comes first: it has the slots that the block has there without cells.
        path = []
        node = root
        slot = rank
        for _ in self._levels[2:]:
            goes_left = leaf < self._middle[node]
            path.append((node, goes_left))
            node = self._child[node] + np.where(goes_left, 0, 1)
        for node, goes_left in reversed(path):
            total = self._total[node]
            left = self._left[node]
            slot = _unshare(
                slot,
                _Split(total, left, self._offsets(words, node, total)),
                goes_left,
            )
        cell = slot // _CELL * _CELL
        walk = self._walk(pattern, cell, root, leaf)
        slot = rank - walk.begin
        for split, goes_left in zip(
            reversed(walk.splits), reversed(walk.left), strict=True
        ):
            slot = _unshare(slot, split, goes_left)
        return cell + slot

    def counts(self, pattern: Integers, slot: Integers) -> Integers:
        """Number of slots of every part before one slot for each tree, int64[trees, parts]."""
        counts = np.zeros_like(self._all_weights)
        cell, edges = _cells(slot, self._total[: len(slot)])
        index = slot - edges[0]
        words = self._pattern_words(pattern)
        cell_words = _cell_words(words, cell)
        for first, stop in zip(self._levels, self._levels[1:], strict=False):
            node = np.arange(first, stop)
            inner = self._child[node] != node
            low = self._low[node[~inner]]
            counts[self._tree[low], self._part[low]] = (edges[0] + index)[~inner]
            split, shares = self._split(node, edges, words, cell_words)
            lefts = (index * split.left_count + split.offset) // np.maximum(
                split.count, 1
            )
            edges = _interleaved(shares, edges - shares, inner)
            index = _interleaved(lefts, index - lefts, inner)
            words, cell_words = (
                np.repeat(each[inner], 2) for each in (words, cell_words)
            )
        return counts

    def _walk(
        self, pattern: Integers, slot: Integers, node: Integers, leaf: Integers | None
    ) -> _Descent:
        """Walks down from roots: to the leaf of a slot, or to a given leaf, counting its slots before the slot."""
        cell, edges = _cells(slot, self._total[node])
        index = slot - edges[0]
        words = self._pattern_words(pattern)
        cell_words = _cell_words(words, cell)
        splits = list[_Split]()
        path = list[Array]()
        for _ in self._levels[2:]:
            split, shares = self._split(node, edges, words, cell_words)
            count = np.maximum(split.count, 1)
            product = index * split.left_count + split.offset
            lefts = product // count
            if leaf is None:
                goes_left = product - lefts * count + split.left_count >= count
            else:
                goes_left = leaf < self._middle[node]
            edges = np.where(goes_left, shares, edges - shares)
            index = np.where(goes_left, lefts, index - lefts)
            node = self._child[node] + np.where(goes_left, 0, 1)
            splits.append(split)
            path.append(goes_left)
        return _Descent(node, edges[0] + index, edges[0], splits, path)

    def _split(
        self, node: Integers, edges: Integers, words: Array, cell_words: Array
    ) -> tuple[_Split, Integers]:
        """The split of nodes in cells, and the slots of their left children before the edges of the cells."""
        total = self._total[node]
        left = self._left[node]
        shares = _share(edges, left, self._offsets(words, node, total), total)
        count = edges[1] - edges[0]
        return _Split(
            count, shares[1] - shares[0], self._cell_offsets(cell_words, node, count)
        ), shares

    def _offsets(self, words: Array, node: Integers, total: Integers) -> Integers:
        """An offset of each node in its pattern, below `total`."""
        offsets = seeds.scramble(words ^ self._keys[node])
        offsets %= total.view(np.uint64)
        return offsets.view(np.int64)

    def _cell_offsets(
        self, words: Array, node: Integers, count: Integers
    ) -> Integers:
        """An offset of each node in its cell, below `count`, which is small; 0 if that is 0."""
        offsets = seeds.scramble(words ^ self._keys[node])
        offsets >>= _HALF
        offsets *= count.view(np.uint64)
        offsets >>= _HALF
        return offsets.view(np.int64)

    def _pattern_words(self, pattern: Integers) -> Array:
        words: Array = seeds.derive(self._seed, "even pattern", pattern)
        return words


def _cells(slot: Integers, total: Integers) -> tuple[Integers, Integers]:
    """Cells of slots of a block of `total` slots, and their first slots and their ends, int64[2, n]."""
    cell = slot // _CELL
    return cell, np.minimum(np.stack([cell, cell + 1]) * _CELL, total)


def _cell_words(words: Array, cell: Integers) -> Array:
    return seeds.scramble(words + cell.view(np.uint64))


def _middles(bounds: Integers, low: Integers, high: Integers) -> Integers:
    """Cuts of runs of leaves that are nearest to half of their weight; beyond their end for single leaves."""
    half = bounds[low] + (bounds[high] - bounds[low]) // 2
    above = np.clip(
        np.searchsorted(bounds, half), low + 1, np.maximum(high - 1, low + 1)
    )
    below = np.maximum(above - 1, low + 1)
    return np.where(half - bounds[below] < bounds[above] - half, below, above)


def _interleaved(left: Array, right: Array, chosen: Array) -> Array:
    """`left[0], right[0], left[1], …` of those that are chosen, along the last axis."""
    pairs = np.stack([left[..., chosen], right[..., chosen]], axis=-1)
    return pairs.reshape(*pairs.shape[:-2], -1)


def _share(
    index: Integers, part: Integers, offset: Integers, total: Integers
) -> Integers:
    """`(index * part + offset) // total`, if that and `index` are at most 2**44 and `offset` is below `total`.

    The product may have 88 bits. Floating point tells the quotient but for 1, so that of the rest, 64 bits are enough.
    """
    quotient: Integers = (index * (part / total)).astype(np.int64)
    quotient += (index * part + offset - quotient * total) // total
    return quotient


def _unshare(rank: Integers, split: _Split, goes_left: Array) -> Integers:
    """Slot of a node that has `rank` earlier slots of its left child, or of the right one."""
    count, left_count, offset = split
    # ((rank + 1) * count - offset - 1) // left, and (rank * count + count - 1 - (count - 1 - offset)) // right
    part = np.where(goes_left, left_count, count - left_count)
    rest = np.where(goes_left, count - offset - 1, offset)
    return _share(rank, count, rest, np.maximum(part, 1))
