"""Which block of a block shuffle each lane has at each of its turns, in one epoch.

Lane k of n has the slots k, k + n, k + 2n, … of a permutation of all blocks. `DrawnBlocks` draws that permutation anew
in every epoch, so that a lane meets every block sooner or later. `PinnedBlocks` draws it once for the run, and permutes
the slots of each lane in every epoch: a lane, and so the host that reads it, keeps its blocks.

An epoch of one is like an epoch of the other: a uniform permutation stays one when its parts are permuted, whatever
permutes them. They differ in what epochs have in common.
"""

from dataclasses import dataclass
from typing import Protocol, final

import numpy as np

from loadax import seeds
from loadax.protocols import Integers


class LaneBlocks(Protocol):
    """A one-to-one map of all blocks to (lane, index of the block in its lane)."""

    def at(self, lanes: Integers, indices: Integers) -> Integers:
        """Blocks at `indices` of `lanes`, int64[n]."""

    def find(self, blocks: Integers) -> tuple[Integers, Integers]:
        """Lanes of `blocks`, and their indices in them: the inverse of `at`."""


@final
@dataclass(frozen=True)
class DrawnBlocks:
    """Blocks that belong to other lanes in every epoch.

    Args:
        num_blocks: Number of blocks.
        lanes: Number of lanes.
        key: Key of the permutation of an epoch.
    """

    num_blocks: int
    lanes: int
    key: int

    def at(self, lanes: Integers, indices: Integers) -> Integers:
        slots: Integers = indices * self.lanes + lanes
        blocks: Integers = seeds.permute(slots, self.num_blocks, self.key)
        return blocks

    def find(self, blocks: Integers) -> tuple[Integers, Integers]:
        slots = seeds.unpermute(blocks, self.num_blocks, self.key)
        indices, lanes = np.divmod(slots, self.lanes)
        return lanes, indices


@final
@dataclass(frozen=True)
class PinnedBlocks:
    """Blocks that belong to the same lane in every epoch, in another order.

    Args:
        run: Blocks of the lanes for the whole run.
        key: Key of the permutations of an epoch.
    """

    run: DrawnBlocks
    key: int

    def at(self, lanes: Integers, indices: Integers) -> Integers:
        keys = seeds.derive(self.key, "lane", lanes)
        return self.run.at(lanes, seeds.permute(indices, self._sizes(lanes), keys))

    def find(self, blocks: Integers) -> tuple[Integers, Integers]:
        lanes, indices = self.run.find(blocks)
        keys = seeds.derive(self.key, "lane", lanes)
        return lanes, seeds.unpermute(indices, self._sizes(lanes), keys)

    def _sizes(self, lanes: Integers) -> Integers:
        return lane_sizes(self.run.num_blocks, self.run.lanes)[lanes]


def lane_sizes(num_blocks: int, lanes: int) -> Integers:
    """Number of blocks of each lane, int64[lanes]."""
    sizes = np.full(lanes, num_blocks // lanes)
    sizes[: num_blocks % lanes] += 1
    return sizes
