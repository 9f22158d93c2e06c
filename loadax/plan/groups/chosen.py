"""Orders of some groups of positions, and splits into such orders that share no group."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from loadax import seeds
from loadax.core.arguments import shown
from loadax.core.digest import digest_values
from loadax.core.formatting import count_text
from loadax.plan.groups.finder import GroupFinder
from loadax.plan.groups.offsets import checked_offsets, union
from loadax.plan.order import VerbOrder
from loadax.plan.split import again, fixed_size, group_parts
from loadax.protocols import Hits, Integers, Order, Visits


@final
@dataclass(frozen=True, eq=False)
class ChosenGroups(VerbOrder):
    """Listed groups of the parent's positions, one after the other, each in its order.

    Args:
        parent: Order that is the same in every epoch.
        starts: First position of each group, int64[groups], ascending. No group is empty.
        ends: Own position after the last one of each group, int64[groups].
        rule: Verb and the arguments that decide its list, as JSON, for `describe`.
    """

    starts: Integers
    ends: Integers
    rule: tuple[Any, ...]

    @cached_property
    def _group_of(self) -> GroupFinder:
        return GroupFinder(self.ends)

    @cached_property
    def _shifts(self) -> Integers:
        """Distance of each group's positions from those of the parent."""
        return self.starts - np.append(0, self.ends)[:-1]

    @property
    def size(self) -> int:
        return int(self.ends[-1]) if len(self.ends) else 0

    @property
    def runs(self) -> Integers | None:
        """First positions of the groups, and of the parent's runs in them."""
        inner = self.parent.runs
        if inner is None:
            return None
        firsts = np.append(0, self.ends)[:-1]
        return union(firsts, self._positions_of(inner)[1])

    def visits(self, epochs: Integers, positions: Integers) -> Visits:
        groups = self._group_of(positions)
        return self.parent.visits(epochs, positions + self._shifts[groups])

    def inverse(
        self,
        rows: Integers,
        epochs: Integers,
        window: tuple[int, int],  # noqa: ARG002
    ) -> Hits:
        found = self.parent.inverse(rows, epochs, (0, self.parent.size))
        met, positions = self._positions_of(found.positions)
        return Hits(found.asked[met], positions)

    def _positions_of(self, parents: Integers) -> tuple[NDArray[np.bool_], Integers]:
        """Which of the parent's positions are in the groups, and own positions of those."""
        if not len(self.starts):
            return np.zeros(len(parents), bool), parents[:0]
        groups = np.searchsorted(self.starts, parents, side="right") - 1
        positions = parents - self._shifts[groups]
        met = (groups >= 0) & (positions < self.ends[groups])
        return met, positions[met]

    def _described(self) -> tuple[list[Any], str]:
        lengths = np.diff(self.ends, prepend=0)
        digest = digest_values(np.append(self.starts, lengths))
        arguments = ", ".join(map(shown, self.rule[1:]))
        groups = count_text(len(self.starts), "group")
        return [
            *self.rule,
            "groups",
            digest,
        ], f"{self.rule[0]}({arguments}, {groups})"


def split_offsets(
    order: Order, given: Any, fraction: Any, seed: int, gap: int | None
) -> list[Order]:
    """Splits an order by offsets of groups of its positions below shuffles and repeats; see `split_words`.

    Raises:
        ArgumentError: When these are no offsets, a part would be empty, or the rows depend on the epoch.
    """
    offsets = checked_offsets(given, fixed_size(order), "by")
    words = np.asarray(
        seeds.derive(0, "group", np.arange(len(offsets) - 1)), np.uint64
    )
    return split_words(order, offsets, words, fraction, seed, gap)


def split_words(
    order: Order,
    offsets: Integers,
    words: NDArray[np.uint64],
    fraction: Any,
    seed: int,
    gap: int | None,
) -> list[Order]:
    """Splits an order into parts that share no group, on the sides that `split_by` puts them.

    Args:
        order: Order to split.
        offsets: Offsets of groups of its positions, int64[groups + 1].
        words: Hash of each group, from which its part follows.
        fraction: Share of the groups in the first of two parts, counts of groups, or a number of equal parts.
        seed: Seed of the draws of groups.
        gap: Number of groups between the parts, which are spans of groups; None: groups are drawn.
    """
    key = (seed, "split_by", *again(order, "split_by"))
    share, parts = group_parts(words, fraction, key, gap)
    facts: list[Any] = [seed]
    if gap is not None:
        facts = ["contiguous", gap]
    return [
        _part(
            order,
            offsets,
            np.flatnonzero(parts == index),
            ("split_by", fraction, *facts, index),
        )
        for index in range(len(share) if isinstance(share, list) else 2)
    ]


def _part(
    order: Order, offsets: Integers, groups: Integers, rule: Sequence[Any]
) -> Order:
    """The groups of a part, whose offsets are those of positions below shuffles and over all parts of the order."""
    before = 0

    def cut(fixed: Order, _: int) -> Order:
        nonlocal before
        low, high = (
            np.clip(edges[groups], before, before + fixed.size) - before
            for edges in (offsets[:-1], offsets[1:])
        )
        before += fixed.size
        filled = high > low
        low, high = low[filled], high[filled]
        return ChosenGroups(fixed, low, np.cumsum(high - low), tuple(rule))

    return order.narrow("split", cut)
