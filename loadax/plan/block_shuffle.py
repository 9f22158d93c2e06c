"""A shuffle for data that is read in blocks: rows move far, but few blocks are open at a time.

Blocks of rows are permuted over the whole epoch and assigned to `lanes` round-robin. In every lane the rows of `window`
blocks at a time are permuted together. A step of B positions takes B / lanes rows from each lane (see
`loadax.plan.lanes`), so only `lanes * window` blocks are open at once: a reader that keeps those fetches each block
once. All of it follows from the arguments; no host, cache or chunk layout has a say.

Lanes don't come to the ends of their windows together, or else all blocks would have to be fetched at the same few
steps: the first window of the lane at place p of a step is shorter by `p % window` blocks.

Lanes are not equally long: some have a block more, and one holds the last, ragged block. When the shorter ones have run
out, the rest go on in turn, so that every row is served, once.
"""

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from loadax import seeds
from loadax.plan.lanes import LaneAssignments, assign_lanes, lane_places
from loadax.protocols import Blocks, Hits, Integers, LaneAssignment, NarrowRule, Order, Shuffle, Visits

# Version of this order, which saved states hold. In version 1 all lanes began their windows together, and the turn went
# through them from first to last.
_VERSION = 2


@final
@dataclass(frozen=True, eq=False)
class _Epoch:
    """Where the blocks stand in one epoch.

    Args:
        key: Key of everything random in it.
        missing: Rows that the last block lacks.
        lane: Lane of that block.
        index: Number of that block among the blocks of its lane.
        lane_blocks: Number of blocks of each lane.
        shifts: Blocks that each lane's first window lacks.
        assignments: Lanes of the positions.
    """

    key: int
    missing: int
    lane: int
    index: int
    lane_blocks: Integers
    shifts: Integers
    assignments: LaneAssignments


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
    shifts = lane_places(lanes) % window
    return _Epoch(int(key), missing, slot % lanes, slot // lanes, lane_blocks, shifts, assign_lanes(lane_rows))


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
    changing_rows = None
    parts = ()
    row_range = None
    schedule = None

    @property
    def size(self) -> int:
        return self.parent.size

    @property
    def blocks(self) -> int:
        """Number of blocks, the ragged one included."""
        return -(-self.size // self.block)

    @property
    def lanes(self) -> int:
        return max(1, min(self.most_lanes, self.blocks))

    @property
    def shuffle(self) -> Shuffle:
        return Shuffle(self.seed, Blocks(self.block, self.blocks, self.window, self.lanes))

    def visits(self, epochs: Integers, positions: Integers) -> Visits:
        below = np.empty_like(positions)
        for epoch in np.unique(epochs):
            chosen = np.flatnonzero(epochs == epoch)
            below[chosen] = self._to_parent(self._at(int(epoch)), positions[chosen])
        return self.parent.visits(epochs, below)

    def inverse(self, rows: Integers, epochs: Integers, window: tuple[int, int]) -> Hits:  # noqa: ARG002
        below = self.parent.inverse(rows, epochs, (0, self.size))
        positions = np.empty_like(below.positions)
        epoch_of = epochs[below.asked]
        for epoch in np.unique(epoch_of).tolist():
            chosen = np.flatnonzero(epoch_of == epoch)
            positions[chosen] = self._from_parent(self._at(epoch), below.positions[chosen])
        return Hits(below.asked, positions)

    def narrow(self, verb: str, rule: NarrowRule, first_row: int = 0) -> Order:
        return replace(self, parent=self.parent.narrow(verb, rule, first_row))

    def _from_parent(self, at: _Epoch, positions: Integers) -> Integers:
        """The positions in an epoch of the parent's `positions`."""
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
        return at.assignments.positions(lane, turn)

    def lane_assignments(self, epoch: int, start: int, stop: int) -> list[LaneAssignment]:
        runs = self._at(epoch).assignments.runs if stop > start else ()
        ends = [*(run.start for run in runs[1:]), self.size]
        return [run for run, end in zip(runs, ends, strict=False) if run.start < stop and end > start]

    def describe(self) -> list[Any]:
        return [*self.parent.describe(), ["shuffle", self.seed, self.block, self.window, self.most_lanes, _VERSION]]

    def text(self) -> list[str]:
        sizes = f"block={self.block}, window={self.window}, lanes={self.most_lanes}"
        return [*self.parent.text(), f"shuffle({self.seed}, {sizes})"]

    def _at(self, epoch: int) -> _Epoch:
        return _epoch(self.seed, self.size, self.block, self.window, self.lanes, epoch)

    def _to_parent(self, at: _Epoch, positions: Integers) -> Integers:
        """The parent's positions at `positions` of an epoch."""
        lane, turn = at.assignments.at(positions)
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
