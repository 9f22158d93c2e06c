"""Shuffle of whole groups, whose rows keep their order."""

from dataclasses import dataclass, field
from typing import Any, final

import numpy as np

from loadax import seeds
from loadax.core.digest import digest_values
from loadax.core.formatting import count_text
from loadax.errors import ArgumentError
from loadax.plan.groups.finder import GroupFinder
from loadax.plan.order import VerbOrder, join_hits
from loadax.protocols import Hits, Integers, NarrowRule, Order, Visits

_VERSION = 1  # of this order, in saved states
_KEPT = 2  # epochs whose order of groups is kept: 8 bytes a group each, and 4 for the table of a finder
_CHUNK = 1 << 20  # positions per pass


@final
@dataclass(frozen=True, eq=False)
class GroupsShuffled(VerbOrder):
    """The groups of the parent's positions in another order, a different one in each epoch; each with its own order.

    An epoch's order takes one sum over the sizes of all groups, when its first position is asked for.

    Args:
        parent: Order that is the same in every epoch.
        offsets: Offsets of the groups, int64[groups + 1].
        seed: Seed of the permutations.
    """

    offsets: Integers
    seed: int
    _finders: dict[int, GroupFinder] = field(default_factory=dict, init=False)
    varies = True

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_finders": {}}

    @property
    def size(self) -> int:
        return self.parent.size

    @property
    def _num_groups(self) -> int:
        return len(self.offsets) - 1

    def _key(self, epoch: int) -> int:
        return int(seeds.derive(self.seed, "shuffle groups", epoch))

    def _finder(self, epoch: int) -> GroupFinder:
        """Finds the place of positions in an epoch's order of groups."""
        finder = self._finders.get(epoch)
        if finder is None:
            places = np.arange(self._num_groups)
            groups = seeds.permute(places, self._num_groups, self._key(epoch))
            finder = GroupFinder(np.cumsum(np.diff(self.offsets)[groups]))
            self._finders[epoch] = finder
            for old in list(self._finders)[:-_KEPT]:
                self._finders.pop(old, None)
        return finder

    def visits(self, epochs: Integers, positions: Integers) -> Visits:
        inner = np.empty_like(positions)
        for epoch in np.unique(epochs).tolist():
            chosen = np.flatnonzero(epochs == epoch)
            inner[chosen] = self._inner(epoch, positions[chosen])
        return self.parent.visits(epochs, inner)

    def _inner(self, epoch: int, positions: Integers) -> Integers:
        finder = self._finder(epoch)
        places = finder(positions)
        groups = seeds.permute(places, self._num_groups, self._key(epoch))
        # from the end of the group: its begin is the end of another one
        return self.offsets[groups + 1] - (finder.ends[places] - positions)

    def inverse(
        self,
        rows: Integers,
        epochs: Integers,
        window: tuple[int, int],  # noqa: ARG002
    ) -> Hits:
        below = self.parent.inverse(rows, epochs, (0, self.size))
        groups = np.searchsorted(self.offsets, below.positions, side="right") - 1
        hits = []
        for epoch in np.unique(epochs[below.asked]).tolist():
            chosen = np.flatnonzero(epochs[below.asked] == epoch)
            own = groups[chosen]
            places = seeds.unpermute(own, self._num_groups, self._key(epoch))
            left = self.offsets[own + 1] - below.positions[chosen]
            ends = self._finder(epoch).ends[places]
            hits.append(Hits(below.asked[chosen], ends - left))
        return join_hits(hits)

    def narrow(self, verb: str, rule: NarrowRule, first_row: int = 0) -> Order:
        narrowed = self.parent.narrow(verb, rule, first_row)
        kept = np.zeros(self.size + 1, bool)
        for start in range(0, self.size if narrowed.size else 0, _CHUNK):
            positions = np.arange(start, min(start + _CHUNK, self.size))
            zeros = np.zeros_like(positions)
            rows = self.parent.visits(zeros, positions).rows
            hits = narrowed.inverse(rows, zeros, (0, narrowed.size))
            kept[start + hits.asked] = True
        before = np.append(0, np.cumsum(kept))[self.offsets]
        if before[-1] != narrowed.size:
            raise ArgumentError(
                f"{verb}() after shuffle(by=) of rows that are listed several times "
                f"can't tell which are kept; call {verb}() before it"
            )
        return GroupsShuffled(narrowed, before, self.seed)

    def _described(self) -> tuple[list[Any], str]:
        described = [
            "shuffle groups",
            digest_values(self.offsets),
            self.seed,
            _VERSION,
        ]
        groups = count_text(self._num_groups, "group")
        return described, f"shuffle({self.seed}, by={groups})"
