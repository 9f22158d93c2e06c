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
from loadax.core.digest import digest_values
from loadax.errors import ArgumentError
from loadax.plan.order import VerbOrder, equal_pairs, join_hits
from loadax.protocols import Array, Hits, Integers, NarrowRule, Order, Visits

_VERSION = 1  # of this order, in saved states
# sum of rounded weights: draws are reduced modulo the sum, with a bias of at most sum / 2**64
_TOTAL = 1 << 44
CHUNK = 1 << 16  # positions per pass of the inverse: few enough for the CPU cache


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
        offsets: Offsets of groups of positions, int64[groups + 1], where weights are those of groups: a draw is one of
            the positions of a group, which is not empty if it has a weight. None: weights are those of positions.
    """

    ends: Integers
    size: int
    seed: int
    digest: str
    offsets: Integers | None = None
    varies = True
    repeats = True

    def visits(self, epochs: Integers, positions: Integers) -> Visits:
        # To random maps every draw is an epoch of its own, or all draws of a row would be augmented alike.
        return self.parent.visits(
            epochs * self.size + positions, self._drawn(epochs, positions)
        )

    def _drawn(self, epochs: Integers, positions: Integers) -> Integers:
        """The parent's position that each position draws."""
        drawn = np.searchsorted(
            self.ends, self._points(epochs, positions), side="right"
        )
        return self._inner(drawn, epochs, positions)

    def _inner(self, drawn: Integers, epochs: Any, positions: Integers) -> Integers:
        """Positions of the parent: what was drawn, or one of each group that was."""
        if self.offsets is None:
            return drawn
        starts = self.offsets[drawn]
        sizes = (self.offsets[drawn + 1] - starts).astype(np.uint64)
        words = seeds.derive(self.seed, "sample in group", epochs, positions)
        return starts + (np.asarray(words) % sizes).astype(np.int64)

    def _points(self, epochs: Any, positions: Integers) -> Integers:
        """Points of the range of all weights, of which each position of the parent has as many as its weight is."""
        words = np.asarray(
            seeds.derive(self.seed, "sample", epochs, positions), np.uint64
        )
        total = self.ends[-1]
        # NumPy divides by a constant faster than it computes a remainder.
        return (words - words // np.uint64(total) * np.uint64(total)).view(np.int64)

    def inverse(
        self, rows: Integers, epochs: Integers, window: tuple[int, int]
    ) -> Hits:
        below = self.parent.inverse(
            rows, np.zeros_like(epochs), (0, self.parent.size)
        )
        weighed = below.positions
        if self.offsets is not None:
            weighed = np.searchsorted(self.offsets, weighed, side="right") - 1
        # A point is looked up only among the ends of what is asked for.
        asked = np.unique(weighed)
        edges = np.stack(
            [self.ends[asked - 1] * (asked > 0), self.ends[asked]], axis=1
        ).reshape(-1)
        hits = []
        for epoch in np.unique(epochs[below.asked]).tolist():
            chosen = np.flatnonzero(epochs[below.asked] == epoch)
            chosen = chosen[np.argsort(below.positions[chosen], kind="stable")]
            for start in range(window[0], window[1], CHUNK):
                positions = np.arange(start, min(start + CHUNK, window[1]))
                places = np.searchsorted(
                    edges, self._points(epoch, positions), side="right"
                )
                drawn = places % 2 == 1
                found = self._inner(
                    asked[places[drawn] // 2], epoch, positions[drawn]
                )
                met, again = equal_pairs(below.positions[chosen], found)
                hits.append(Hits(below.asked[chosen[met]], positions[drawn][again]))
        return join_hits(hits)

    def narrow(self, verb: str, rule: NarrowRule, first_row: int = 0) -> Order:  # noqa: ARG002
        raise ArgumentError(
            f"{verb}() after sample() would drop some of its draws; call {verb}() "
            "first, then sample()"
        )

    def _described(self) -> tuple[list[Any], str]:
        text = f"sample(size={self.size}, seed={self.seed})"
        described = ["sample", self.digest, self.size, self.seed, _VERSION]
        if self.offsets is not None:
            described.append(digest_values(self.offsets))
        return described, text


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
    scaled = np.empty(len(weights), np.float64)
    most = np.float64(weights.max())
    chunks = [slice(start, start + CHUNK) for start in range(0, len(weights), CHUNK)]
    for chunk in chunks:
        scaled[chunk] = np.rint(weights[chunk].astype(np.float64) / most * 2.0**52)
    share = _TOTAL / sum(
        _exact_sum(scaled[chunk].astype(np.int64)) for chunk in chunks
    )
    # the same memory, as each chunk is read before it is written
    whole = scaled.view(np.int64)
    for chunk in chunks:
        whole[chunk] = np.maximum(
            np.rint(scaled[chunk] * share).astype(np.int64), weights[chunk] > 0
        )
    return whole


def _exact_sum(values: Integers) -> int:
    """Sum of integers of at most 2**52, without overflow."""
    return (int((values >> 26).sum()) << 26) + int((values & ((1 << 26) - 1)).sum())
