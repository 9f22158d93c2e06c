"""Weighted sampling with replacement: every position draws a row independently.

A position's draw is a keyed hash of its epoch and itself, reduced to the range of the sum of the weights, and looked up
in their cumulative sums. So any draw is computed directly, and all draws are independent. Weights become integers once,
by operations that round alike on every machine, and integers alone decide the order.

The inverse is not arithmetic: it looks at every position that is searched, and only for the rows that are asked for.
"""

from dataclasses import dataclass
from typing import Any, final

import numpy as np

from loadax import seeds
from loadax.errors import ArgumentError
from loadax.plan.order import VerbOrder, equal_pairs, join_hits
from loadax.protocols import Array, Hits, Integers, NarrowRule, Order, Visits

_VERSION = 1  # of this order, in saved states
_TOTAL = 1 << 44  # sum of rounded weights: draws are reduced modulo the sum, with a bias of at most sum / 2**64
_CHUNK = 1 << 20  # positions per pass of the inverse: bounds its memory


@final
@dataclass(frozen=True, eq=False)
class Sampled(VerbOrder):
    """Independent draws of the parent's positions, in proportion to their weights.

    Args:
        parent: Order that is the same in every epoch.
        ends: Cumulative sums of the integer weights of its positions, int64[parent.size].
        size: Number of draws in an epoch.
        seed: Seed of the draws.
        digest: Hash of `ends`, for `describe`.
    """

    ends: Integers
    size: int
    seed: int
    digest: str
    varies = True

    def visits(self, epochs: Integers, positions: Integers) -> Visits:
        # To random maps every draw is an epoch of its own, or all draws of a row would be augmented alike.
        return self.parent.visits(epochs * self.size + positions, self._drawn(epochs, positions))

    def _drawn(self, epochs: Integers, positions: Integers) -> Integers:
        """The parent's position that each position draws."""
        words = np.asarray(seeds.derive(self.seed, "sample", epochs, positions), np.uint64)
        drawn = (words % np.uint64(self.ends[-1])).astype(np.int64)
        return np.searchsorted(self.ends, drawn, side="right")

    def inverse(self, rows: Integers, epochs: Integers, window: tuple[int, int]) -> Hits:
        below = self.parent.inverse(rows, np.zeros_like(epochs), (0, self.parent.size))
        hits = []
        for epoch in np.unique(epochs[below.asked]).tolist():
            chosen = np.flatnonzero(epochs[below.asked] == epoch)
            chosen = chosen[np.argsort(below.positions[chosen], kind="stable")]
            for start in range(window[0], window[1], _CHUNK):
                positions = np.arange(start, min(start + _CHUNK, window[1]))
                met, drawn = equal_pairs(
                    below.positions[chosen], self._drawn(np.full_like(positions, epoch), positions)
                )
                hits.append(Hits(below.asked[chosen[met]], positions[drawn]))
        return join_hits(hits)

    def narrow(self, verb: str, rule: NarrowRule, first_row: int = 0) -> Order:  # noqa: ARG002
        raise ArgumentError(f"{verb}() after sample() would drop some of its draws; call {verb}() first, then sample()")

    def describe(self) -> list[Any]:
        return [*self.parent.describe(), ["sample", self.digest, self.size, self.seed, _VERSION]]

    def text(self) -> list[str]:
        return [*self.parent.text(), f"sample(size={self.size}, seed={self.seed})"]


def integer_weights(weights: Array) -> Integers:
    """Weights as integers: unchanged if they are integers with a sum of at most 2**44, else rounded to such ones.

    Args:
        weights: Finite weights of at least 0, not all 0. A positive one stays positive.
    """
    if weights.dtype.kind in "iub" and (weights <= _TOTAL).all():
        whole = weights.astype(np.int64)
        if _exact_sum(whole) <= _TOTAL:
            return whole
    # Only elementwise operations, and sums of integers: NumPy adds floats in an order that depends on the machine.
    scaled = np.rint(weights.astype(np.float64) / np.float64(weights.max()) * 2.0**52)
    share = _TOTAL / _exact_sum(scaled.astype(np.int64))
    return np.maximum(np.rint(scaled * share).astype(np.int64), weights > 0)


def _exact_sum(values: Integers) -> int:
    """Sum of integers of at most 2**52, without overflow."""
    return (int((values >> 26).sum()) << 26) + int((values & ((1 << 26) - 1)).sum())
