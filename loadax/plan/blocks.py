"""A shuffle for data that is read in blocks: rows move far, but few blocks are open at a time.

Blocks of rows are permuted over the whole epoch, dealt to `lanes`, and in every lane the rows of `window` blocks at a
time are permuted together. A step of B positions takes B / lanes rows from each lane (see `loadax.plan.lanes`), so only
`lanes * window` blocks are open at once: a reader that keeps those fetches each block once. All of it follows from the
arguments; no host, cache or chunk layout has a say.

Lanes don't come to the ends of their windows together, or else all blocks would have to be fetched at the same few
steps: the first window of the lane at place p of a step is shorter by `p % window` blocks.

Lanes are not equally long: some have a block more, and one holds the last, ragged block. When the shorter ones have run
out, the rest go on in turn, so that every row is served, once.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from loadax import seeds
from loadax.plan.lanes import LaneAssignments, deal, places
from loadax.protocols import Integers, LaneAssignment, Order, Visits

# Version of this order, which saved states hold. In version 1 all lanes began their windows together, and the turn went
# through them from first to last.
_VERSION = 2


@final
@dataclass(frozen=True, eq=False)
class _Epoch:
    """Where the blocks stand in one epoch.

    Args:
        key: of everything random in it.
        missing: rows that the last block lacks.
        lane: where that block came to stand.
        index: its number among the blocks of its lane.
        lane_blocks: how many blocks each lane has.
        shifts: how many blocks each lane's first window lacks.
        dealing: of the positions.
    """

    key: int
    missing: int
    lane: int
    index: int
    lane_blocks: Integers
    shifts: Integers
    dealing: LaneAssignments


@lru_cache(maxsize=8)
def _epoch(seed: int, size: int, block: int, window: int, lanes: int, epoch: int) -> _Epoch:
    """A function of these numbers alone; asked for again and again while an epoch lasts."""
    key = seeds.derive(seed, "blocks", epoch)
    blocks = -(-size // block)
    missing = blocks * block - size
    slot = int(seeds.unpermute(blocks - 1, blocks, key))
    lane_blocks = np.full(lanes, blocks // lanes)
    lane_blocks[: blocks % lanes] += 1
    lane_rows = lane_blocks * block
    lane_rows[slot % lanes] -= missing
    return _Epoch(int(key), missing, slot % lanes, slot // lanes, lane_blocks, places(lanes) % window, deal(lane_rows))


@final
@dataclass(frozen=True)
class BlockShuffled:
    """Positions in blocks of `block`, shuffled as this module's docstring says; another order each epoch."""

    parent: Order
    seed: int
    block: int
    window: int
    most_lanes: int
    varies = True
    parts = ()
    by_step = False

    @property
    def size(self) -> int:
        return self.parent.size

    @property
    def blocks(self) -> int:
        """How many blocks there are, the ragged one included."""
        return -(-self.size // self.block)

    @property
    def lanes(self) -> int:
        return max(1, min(self.most_lanes, self.blocks))

    def visits(self, epochs: Integers, positions: Integers) -> Visits:
        shuffled = np.empty_like(positions)
        for epoch in np.unique(epochs):
            mine = np.flatnonzero(epochs == epoch)
            shuffled[mine] = self._shuffled(self._at(int(epoch)), positions[mine])
        return self.parent.visits(epochs, shuffled)

    def shuffled(self, epoch: int, positions: Integers) -> Integers:
        """Where in an epoch the parent's `positions` come to stand: the inverse of what `visits` does to positions."""
        at = self._at(epoch)
        block, inside = np.divmod(positions, self.block)
        index, lane = np.divmod(seeds.unpermute(block, self.blocks, at.key), self.lanes)
        window = (index + at.shifts[lane]) // self.window
        first, blocks, rows, in_its_lane, its_window = self._bounds(at, lane, window)
        which = index - first
        offset = at.index - first
        relabelled = np.where(which == offset, blocks - 1, which - (which > offset))
        which = np.where(in_its_lane & (window == its_window), relabelled, which)
        place = seeds.unpermute(which * self.block + inside, rows, seeds.derive(at.key, "window", lane, window))
        turn = first * self.block + place - np.where(in_its_lane & (window > its_window), at.missing, 0)
        return at.dealing.positions(lane, turn)

    def deals(self, epoch: int, start: int, stop: int) -> list[LaneAssignment]:
        deals = self._at(epoch).dealing.deals if stop > start else ()
        ends = [*(deal.start for deal in deals[1:]), self.size]
        return [deal for deal, end in zip(deals, ends, strict=False) if deal.start < stop and end > start]

    def describe(self) -> list[Any]:
        return [*self.parent.describe(), ["shuffle", self.seed, self.block, self.window, self.most_lanes, _VERSION]]

    def _at(self, epoch: int) -> _Epoch:
        return _epoch(self.seed, self.size, self.block, self.window, self.lanes, epoch)

    def _shuffled(self, at: _Epoch, positions: Integers) -> Integers:
        lane, turn = at.dealing.at(positions)
        window, first, place, blocks, rows = self._window(at, lane, turn)
        place = seeds.permute(place, rows, seeds.derive(at.key, "window", lane, window))
        which, inside = np.divmod(place, self.block)
        # In the window of the ragged block, that one counts as the last, so that the full ones divide evenly.
        here = (lane == at.lane) & (first <= at.index) & (at.index < first + blocks)
        offset = at.index - first
        which = np.where(here, np.where(which == blocks - 1, offset, which + (which >= offset)), which)
        slots = (first + which) * self.lanes + lane
        return seeds.permute(slots, self.blocks, at.key) * self.block + inside

    def _window(
        self, at: _Epoch, lane: Integers, turn: Integers
    ) -> tuple[Integers, Integers, Integers, Integers, Integers]:
        """For the `turn`-th row of a lane.

        Its window, the first block of that, its place there, and how many blocks and rows there are.
        """
        shift, ragged_shift = at.shifts[lane], int(at.shifts[at.lane])
        its_window = (at.index + ragged_shift) // self.window
        its_end = (
            min((its_window + 1) * self.window - ragged_shift, int(at.lane_blocks[at.lane])) * self.block - at.missing
        )
        in_its_lane = lane == at.lane
        # Behind the ragged window count as if no row were missing: then all windows end at multiples.
        turn = np.where(in_its_lane & (turn >= its_end), turn + at.missing, turn)
        window = (turn + shift * self.block) // (self.window * self.block)
        first, blocks, rows, *_ = self._bounds(at, lane, window)
        return window, first, turn - first * self.block, blocks, rows

    def _bounds(
        self, at: _Epoch, lane: Integers, window: Integers
    ) -> tuple[Integers, Integers, Integers, NDArray[np.bool], int]:
        """Of windows of lanes: the first block, how many blocks and rows there are.

        Which have the ragged block's lane, and its window.
        """
        shift, in_its_lane = at.shifts[lane], lane == at.lane
        its_window = (at.index + int(at.shifts[at.lane])) // self.window
        first = np.maximum(window * self.window - shift, 0)
        blocks = np.minimum((window + 1) * self.window - shift, at.lane_blocks[lane]) - first
        rows = blocks * self.block - np.where(in_its_lane & (window == its_window), at.missing, 0)
        return first, blocks, rows, in_its_lane, its_window
