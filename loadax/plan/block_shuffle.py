"""Block shuffle, for data that is read in blocks: rows move far, but few blocks are open at a time.

Blocks of rows are permuted over the whole epoch and assigned to `lanes` round-robin; pinned ones once for the run (see
`loadax.plan.lane_blocks`). In every lane the rows of `window` blocks at a time are permuted together. A step of B
positions takes B / lanes rows from each lane (see `loadax.plan.lanes`), so only `lanes * window` blocks are open at
once: a reader that caches those fetches each block once. The order depends on the arguments alone, not on hosts, caches
or the chunk layout.

Windows of different lanes end at different steps; otherwise all blocks would be fetched at the same few steps. The
first window of the lane at index p of a step is shorter by `p % window` blocks.

Lanes differ in length: some have one more block, and one has the last, ragged block. When the shorter lanes are
exhausted, the others continue round-robin, so that every row is visited exactly once.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from loadax import seeds
from loadax.core.distinct import distinct
from loadax.plan.lane_blocks import (
    DrawnBlocks,
    LaneBlocks,
    PinnedBlocks,
    lane_sizes,
)
from loadax.plan.lanes import LaneAssignments, assign_lanes, lane_places
from loadax.plan.shuffle import ShuffleOrder
from loadax.protocols import Blocks, Hits, Integers, LaneAssignment, Shuffle, Visits

# Version of this order in saved states. In version 1 all lanes began their windows together, and took turns from first
# to last.
_VERSION = 2
# Of orders with pinned lanes.
_PINNED_VERSION = 1


@final
@dataclass(frozen=True, eq=False)
class _Epoch:
    """Layout of the blocks in one epoch.

    Args:
        key: Key of the permutations of windows.
        blocks: Blocks of the lanes.
        missing: Number of rows that the ragged last block lacks.
        lane: Lane of the ragged block.
        index: Index of the ragged block among the blocks of its lane.
        lane_blocks: Number of blocks of each lane, int64[lanes].
        shifts: Number of blocks that each lane's first window lacks, int64[lanes].
        assignments: Lanes of the positions.
    """

    key: int
    blocks: LaneBlocks
    missing: int
    lane: int
    index: int
    lane_blocks: Integers
    shifts: Integers
    assignments: LaneAssignments


@lru_cache(maxsize=8)
def _epoch(
    seed: int,
    size: int,
    block: int,
    window: int,
    lanes: int,
    pinned: bool,
    epoch: int,
) -> _Epoch:
    """Cached layout of an epoch, since every step of the epoch needs it."""
    key = int(seeds.derive(seed, "blocks", epoch))
    num_blocks = -(-size // block)
    blocks: LaneBlocks
    if pinned:
        span = DrawnBlocks(num_blocks, lanes, int(seeds.derive(seed, "pinned")))
        blocks = PinnedBlocks(span, key)
    else:
        blocks = DrawnBlocks(num_blocks, lanes, key)
    missing = num_blocks * block - size
    (lane,), (index,) = blocks.find(np.array([num_blocks - 1]))
    lane_blocks = lane_sizes(num_blocks, lanes)
    lane_rows = lane_blocks * block
    lane_rows[lane] -= missing
    shifts = lane_places(lanes) % window
    return _Epoch(
        key,
        blocks,
        missing,
        int(lane),
        int(index),
        lane_blocks,
        shifts,
        assign_lanes(lane_rows),
    )


def batch_variance(blocks: Blocks, batch_size: int) -> float:
    """How much more the contents of batches vary than those of random rows do, where neighbouring rows are alike.

    It is the variance of the number of rows of a class in a batch, over that of as many random rows, for data sorted by
    classes: 1 is a full shuffle. A lane gives a batch `batch_size / lanes` of the `window * rows` rows that it mixes,
    and rows of one block are of one class: so it follows from sampling without replacement, and is at most that of
    batches of whole blocks. 1.0 if all blocks are open at once.
    """
    if blocks.lanes * blocks.window >= blocks.num_blocks or blocks.rows == 1:
        return 1.0
    per_lane = max(1.0, batch_size / blocks.lanes)
    variance = 1 + (per_lane - 1) * (blocks.rows - 1) / (
        blocks.window * blocks.rows - 1
    )
    return min(variance, float(blocks.rows))


@final
@dataclass(frozen=True)
class BlockShuffled(ShuffleOrder):
    """Block shuffle, as this module describes it: another order in each epoch.

    Args:
        block: Rows of a block.
        window: Blocks of a lane that are permuted together.
        most_lanes: Number of lanes, if there are as many blocks.
        pinned: Whether a lane has the same blocks in every epoch.
    """

    block: int
    window: int
    most_lanes: int
    pinned: bool = False

    @property
    def blocks(self) -> int:
        """Number of blocks, including the ragged one."""
        return -(-self.size // self.block)

    @property
    def lanes(self) -> int:
        return max(1, min(self.most_lanes, self.blocks))

    @property
    def shuffle(self) -> Shuffle:
        return Shuffle(
            self.seed,
            Blocks(self.block, self.blocks, self.window, self.lanes, self.pinned),
        )

    def visits(self, epochs: Integers, positions: Integers) -> Visits:
        if len(epochs) and (epochs == epochs[0]).all():  # as in nearly every call
            return self.parent.visits(
                epochs, self._to_parent(self._at(int(epochs[0])), positions)
            )
        below = np.empty_like(positions)
        for epoch in np.unique(epochs).tolist():
            chosen = np.flatnonzero(epochs == epoch)
            below[chosen] = self._to_parent(self._at(epoch), positions[chosen])
        return self.parent.visits(epochs, below)

    def inverse(
        self,
        rows: Integers,
        epochs: Integers,
        window: tuple[int, int],  # noqa: ARG002
    ) -> Hits:
        below = self.parent.inverse(rows, epochs, (0, self.size))
        positions = np.empty_like(below.positions)
        epoch_of = epochs[below.asked]
        for epoch in np.unique(epoch_of).tolist():
            chosen = np.flatnonzero(epoch_of == epoch)
            positions[chosen] = self._from_parent(
                self._at(epoch), below.positions[chosen]
            )
        return Hits(below.asked, positions)

    def _from_parent(self, at: _Epoch, positions: Integers) -> Integers:
        """Positions in an epoch of the parent's `positions`; the inverse of `_to_parent`."""
        block, inside = np.divmod(positions, self.block)
        lane, index = at.blocks.find(block)
        window = (index + at.shifts[lane]) // self.window
        first, blocks, rows, in_its_lane, its_window = self._bounds(at, lane, window)
        which = index - first
        offset = at.index - first
        relabelled = np.where(which == offset, blocks - 1, which - (which > offset))
        which = np.where(in_its_lane & (window == its_window), relabelled, which)
        index_in_window = seeds.unpermute(
            which * self.block + inside,
            rows,
            seeds.derive(at.key, "window", lane, window),
        )
        turn = (
            first * self.block
            + index_in_window
            - np.where(in_its_lane & (window > its_window), at.missing, 0)
        )
        return at.assignments.positions(lane, turn)

    def lane_assignments(
        self, epoch: int, start: int, stop: int
    ) -> list[LaneAssignment]:
        if stop > start:
            spans = self._at(epoch).assignments.spans
        else:
            spans = ()
        ends = [*(span.start for span in spans[1:]), self.size]
        return [
            span
            for span, end in zip(spans, ends, strict=False)
            if span.start < stop and end > start
        ]

    def _described(self) -> tuple[list[Any], str]:
        text = (
            f"shuffle({self.seed}, block={self.block}, window={self.window}, "
            f"lanes={self.most_lanes}"
        )
        facts = [
            "shuffle",
            self.seed,
            self.block,
            self.window,
            self.most_lanes,
            _VERSION,
        ]
        if self.pinned:
            return [*facts, ["pinned", _PINNED_VERSION]], f"{text}, pinned=True)"
        return facts, f"{text})"

    def _at(self, epoch: int) -> _Epoch:
        return _epoch(
            self.seed,
            self.size,
            self.block,
            self.window,
            self.lanes,
            self.pinned,
            epoch,
        )

    def _to_parent(self, at: _Epoch, positions: Integers) -> Integers:
        """Positions of the parent at `positions` of an epoch."""
        lane, turn = at.assignments.at(positions)
        lane, window, turn, which = self._windows(at, lane, turn)
        first, blocks, rows, *_ = self._bounds(at, lane, window)
        keys = seeds.derive(at.key, "window", lane, window)
        # Arrays with an element per row are reused: new ones would cost page faults.
        scratch = (first * self.block)[which]
        # of the window
        inside = seeds.permute_by(
            np.subtract(turn, scratch, out=scratch), which, rows, keys
        )
        block = inside // self.block
        # from here on of the block
        inside -= np.multiply(block, self.block, out=scratch)
        block += np.multiply(which, self.window, out=scratch)
        # Rows of a block share its place: few blocks, so what follows is computed once for each.
        pairs, pair = distinct(block)
        which, block = np.divmod(pairs, self.window)
        lane = lane[which]
        first = first[which]
        blocks = blocks[which]
        # In its window, the ragged block counts as the last, so that the full ones divide evenly.
        here = (lane == at.lane) & (first <= at.index) & (at.index < first + blocks)
        offset = at.index - first
        block = np.where(
            here,
            np.where(block == blocks - 1, offset, block + (block >= offset)),
            block,
        )
        inside += (at.blocks.at(lane, first + block) * self.block)[pair]
        return inside

    def _windows(
        self, at: _Epoch, lane: Integers, turn: Integers
    ) -> tuple[Integers, Integers, Integers, Integers]:
        """Lanes and numbers of the windows of the `turn`-th rows of lanes, and the turn and the window of each row.

        After the ragged window, a row's turn counts as if no row were missing: then all windows end at multiples.
        """
        shift = int(at.shifts[at.lane])
        window = (at.index + shift) // self.window
        end = (
            min((window + 1) * self.window - shift, int(at.lane_blocks[at.lane]))
            * self.block
            - at.missing
        )
        if at.missing and turn.max() >= end:
            turn = turn + np.where((lane == at.lane) & (turn >= end), at.missing, 0)
        windows = (turn + (at.shifts * self.block)[lane]) // (
            self.window * self.block
        )
        found, which = distinct(windows * self.lanes + lane)
        windows, lanes = np.divmod(found, self.lanes)
        return lanes, windows, turn, which

    def _bounds(
        self, at: _Epoch, lane: Integers, window: Integers
    ) -> tuple[Integers, Integers, Integers, NDArray[np.bool], int]:
        """First block, and number of blocks and rows, of windows of lanes.

        Also: which of them are in the ragged block's lane, and the window of the ragged block.
        """
        shift = at.shifts[lane]
        in_its_lane = lane == at.lane
        its_window = (at.index + int(at.shifts[at.lane])) // self.window
        first = np.maximum(window * self.window - shift, 0)
        blocks = (
            np.minimum((window + 1) * self.window - shift, at.lane_blocks[lane])
            - first
        )
        rows = blocks * self.block - np.where(
            in_its_lane & (window == its_window), at.missing, 0
        )
        return first, blocks, rows, in_its_lane, its_window
