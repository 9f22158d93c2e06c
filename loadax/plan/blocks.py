"""A shuffle for data that is read in blocks: rows move far, but each block is fetched once.

Blocks of rows are permuted over the whole epoch, dealt to `lanes`, and in every lane the rows of `window` blocks at a time are
permuted together. Position p of the epoch belongs to lane p mod lanes (as long as all lanes last), so a step of B positions
takes B / lanes rows from each lane, and only `lanes * window` blocks are open at once. All of it follows from the arguments;
no host, cache or chunk layout has a say.

Lanes are not equally long: some have a block more, and one holds the last, ragged block. When the shorter ones have run out,
the rest go on in turn, so that every row is served, once.
"""

from dataclasses import dataclass
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from loadax import seeds
from loadax.protocols import Integers, Order, Visits


@final
@dataclass(frozen=True)
class _Ragged:
    """Where the last block, which lacks `missing` rows, came to stand in an epoch."""

    missing: int
    lane: int
    index: int  # among the blocks of its lane


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
            shuffled[mine] = self._shuffled(int(epoch), positions[mine])
        return self.parent.visits(epochs, shuffled)

    def describe(self) -> list[Any]:
        return [*self.parent.describe(), ["shuffle", self.seed, self.block, self.window, self.most_lanes]]

    def _shuffled(self, epoch: int, positions: Integers) -> Integers:
        key = seeds.derive(self.seed, "blocks", epoch)
        missing = self.blocks * self.block - self.size
        slot = int(seeds.unpermute(self.blocks - 1, self.blocks, key))
        ragged = _Ragged(missing, slot % self.lanes, slot // self.lanes)

        lane_blocks = np.full(self.lanes, self.blocks // self.lanes)
        lane_blocks[: self.blocks % self.lanes] += 1
        lane_rows = lane_blocks * self.block
        lane_rows[ragged.lane] -= missing
        lane, turn = _deal(positions, lane_rows)

        window, place, blocks, rows = self._window(lane, turn, lane_blocks, ragged)
        place = seeds.permute(place, rows, seeds.derive(key, "window", lane, window))
        which, inside = np.divmod(place, self.block)
        # In the window of the ragged block, that one counts as the last, so that the full ones divide evenly.
        here = (lane == ragged.lane) & (window == ragged.index // self.window)
        offset = ragged.index % self.window
        which = np.where(here, np.where(which == blocks - 1, offset, which + (which >= offset)), which)
        slots = (window * self.window + which) * self.lanes + lane
        return seeds.permute(slots, self.blocks, key) * self.block + inside

    def _window(
        self, lane: Integers, turn: Integers, lane_blocks: Integers, ragged: _Ragged
    ) -> tuple[Integers, Integers, Integers, Integers]:
        """For the `turn`-th row of a lane: its window, its place there, and how many blocks and rows that window has."""
        its_window = ragged.index // self.window
        its_end = min((its_window + 1) * self.window, int(lane_blocks[ragged.lane])) * self.block - ragged.missing
        in_its_lane = lane == ragged.lane
        # Behind the ragged window count as if no row were missing: then all windows begin at multiples.
        turn = np.where(in_its_lane & (turn >= its_end), turn + ragged.missing, turn)
        window, place = np.divmod(turn, self.window * self.block)
        blocks = np.minimum(self.window, lane_blocks[lane] - window * self.window)
        rows = blocks * self.block - np.where(in_its_lane & (window == its_window), ragged.missing, 0)
        return window, place, blocks, rows


def _deal(positions: Integers, lane_rows: Integers) -> tuple[Integers, Integers]:
    """Deals positions to lanes in turn, leaving out lanes that have run out: (lane, how many it had before)."""
    ends: NDArray[np.int64] = np.unique(lane_rows)  # at most three different lengths
    begins = np.concatenate([[0], ends[:-1]])
    alive = [np.flatnonzero(lane_rows >= end) for end in ends]
    width = np.array([len(lanes) for lanes in alive])
    bounds = np.cumsum((ends - begins) * width)
    phase = np.searchsorted(bounds, positions, side="right")
    turn, which = np.divmod(positions - (bounds - (ends - begins) * width)[phase], width[phase])
    starts = np.concatenate([[0], np.cumsum(width)[:-1]])
    return np.concatenate(alive)[starts[phase] + which], turn + begins[phase]
