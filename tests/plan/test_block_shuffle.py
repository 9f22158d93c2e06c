"""Block shuffles: every row once, blocks met within one window of one lane, and evenly."""

import itertools
import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from loadax.plan import lanes as lane_module
from loadax.plan.batches import BatchPlan
from loadax.plan.block_shuffle import BlockShuffled, batch_variance
from loadax.plan.sequential import Sequential
from loadax.protocols import Blocks


def shuffled(size: int, block: int, window: int, lanes: int, seed: int = 0, epoch: int = 0) -> Any:
    order = BlockShuffled(Sequential(size), seed, block, window, lanes)
    return order.visits(np.full(size, epoch), np.arange(size)).rows


SIZES = {
    "size": st.integers(1, 300),
    "block": st.integers(1, 20),
    "window": st.integers(1, 6),
    "lanes": st.integers(1, 12),
    "seed": st.integers(-3, 3),
    "epoch": st.integers(0, 3),
}


@settings(deadline=None)
@given(**SIZES)
def test_each_block_is_met_within_one_window_of_one_lane(
    size: int, block: int, window: int, lanes: int, seed: int, epoch: int
) -> None:
    """While all lanes last, what stands at positions of one lane comes in runs of `window` whole blocks."""
    rows = shuffled(size, block, window, lanes, seed, epoch)
    blocks = -(-size // block)
    lanes = min(lanes, blocks)
    # The shortest lane has blocks // lanes blocks, of which one may be ragged.
    safe = max(0, (blocks // lanes - 1) * block + (size - (blocks - 1) * block)) * lanes
    met: dict[int, int] = {}
    for lane in range(lanes):
        mine = rows[:safe][lane::lanes] // block
        for one in set(mine.tolist()):
            assert met.setdefault(one, lane) == lane
            places = np.flatnonzero(mine == one)
            assert places[-1] - places[0] < window * block
    # A lane's windows follow each other without overlap: blocks leave before the blocks of the next window come.
    for lane in range(lanes):
        mine = rows[:safe][lane::lanes] // block
        # A missing (ragged) row moves the boundary by less than a block.
        bounds = [
            0,
            *range((window - lane_module.lane_places(lanes)[lane] % window) * block, len(mine), window * block),
            len(mine),
        ]
        for start, stop in itertools.pairwise(bounds):
            assert len(set(mine[start:stop].tolist())) <= window + (size % block > 0) * window


def test_lanes_open_their_windows_at_different_times() -> None:
    """No step has to fetch the blocks of all lanes at once."""
    size, block, window, lanes = 8 * 4 * 4 * 50, 8, 4, 16
    blocks = shuffled(size, block, window, lanes) // block
    first = np.sort(np.unique(blocks, return_index=True)[1])
    # After the beginning, in a quarter of a window's rows (of all lanes), about a quarter of a window's blocks are new.
    quarter = lanes * block
    opened = np.bincount(first // quarter)[window:-window]
    assert opened.max() <= 1.5 * lanes


@pytest.mark.parametrize("batch_size", [32, 48, 100, 256])
@pytest.mark.parametrize("blocks", [333, 1000])
def test_a_host_meets_few_blocks_of_others(blocks: int, batch_size: int) -> None:
    """With a contiguous share of any batch, however many blocks there are for 128 lanes."""
    order = BlockShuffled(Sequential(blocks * 64 - 13), 0, 64, 4, 128)
    plan = BatchPlan(order, batch_size)
    share = batch_size // 4
    for host in range(4):
        rows = plan.visits_of(range(plan.steps_per_epoch), np.arange(host * share, (host + 1) * share)).rows
        assert len(np.unique(rows // 64)) * 64 <= 1.1 * len(rows)


def test_block_shuffle_golden_values() -> None:
    """The order is a promise: a run that is resumed with another release of loadax goes on with the same rows."""
    found = shuffled(30, 4, 2, 3, seed=1, epoch=2)
    assert " ".join(map(str, found)) == (
        "3 25 5 0 24 4 23 12 6 1 26 7 20 15 28 21 13 29 22 14 2 27 17 10 16 8 19 9 18 11"
    )


def test_few_blocks_are_open_at_once() -> None:
    size, block, window, lanes = 64 * 100, 64, 4, 5
    blocks = shuffled(size, block, window, lanes) // block
    first = {one: index for index, one in reversed(list(enumerate(blocks.tolist())))}
    last = {one: index for index, one in enumerate(blocks.tolist())}
    open_at = [sum(first[one] <= place <= last[one] for one in first) for place in range(0, size, 50)]
    assert max(open_at) == lanes * window


def test_rows_of_a_window_are_mixed() -> None:
    rows = shuffled(64 * 8, 64, 8, 1)
    runs = np.sum(np.diff(rows) == 1)
    assert runs < 10  # about one pair in 512 follows each other by chance
    assert not np.array_equal(rows, shuffled(64 * 8, 64, 8, 1, epoch=1))
    assert not np.array_equal(rows, shuffled(64 * 8, 64, 8, 1, seed=1))


def test_a_row_lands_everywhere_equally_often() -> None:
    epochs = 600
    order = BlockShuffled(Sequential(24), 7, 4, 2, 3)
    rows = order.visits(np.repeat(np.arange(epochs), 24), np.tile(np.arange(24), epochs)).rows.reshape(epochs, 24)
    for row in (0, 11, 23):
        counts = np.bincount(np.argwhere(rows == row)[:, 1], minlength=24)
        assert chi_square(counts) < limit(23)


def test_a_ragged_block_stands_in_every_place_equally_often() -> None:
    """Over seeds: the last, short block is drawn as any other."""
    size, block, seeds = 22, 4, 600
    slots = []
    for seed in range(seeds):
        order = BlockShuffled(Sequential(size), seed, block, 1, 1)
        blocks = order.visits(np.zeros(size, np.int64), np.arange(size)).rows // block
        slots.append(list(dict.fromkeys(blocks.tolist())).index(5))
    assert chi_square(np.bincount(slots, minlength=6)) < limit(5)


def test_who_follows_whom_is_even_within_a_window() -> None:
    epochs = 600
    order = BlockShuffled(Sequential(8), 3, 4, 2, 1)
    rows = order.visits(np.repeat(np.arange(epochs), 8), np.tile(np.arange(8), epochs)).rows.reshape(epochs, 8)
    pairs = np.zeros((8, 8), int)
    np.add.at(pairs, (rows[:, :-1].ravel(), rows[:, 1:].ravel()), 1)
    counts = pairs[~np.eye(8, dtype=bool)]
    assert chi_square(counts) < limit(55)
    assert (pairs.diagonal() == 0).all()


def chi_square(counts: Any) -> float:
    expected = counts.sum() / len(counts)
    return float(((counts - expected) ** 2 / expected).sum())


def limit(freedom: int) -> float:
    """A chi-square this large happens to fewer than one in 10,000 fair draws (Wilson and Hilferty, 1931)."""
    return freedom * (1 - 2 / (9 * freedom) + 3.72 * (2 / (9 * freedom)) ** 0.5) ** 3


def test_a_trillion_rows_cost_no_more_than_a_thousand() -> None:
    size = 10**12 + 3
    order = BlockShuffled(Sequential(size), 0, 1000, 4, 128)
    positions = np.linspace(0, size - 1, 1000).astype(np.int64)
    epochs = np.zeros(1000, np.int64)
    order.visits(epochs, positions)
    tracemalloc.start()
    rows = order.visits(epochs, positions).rows
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20
    assert len(set(rows.tolist())) == 1000
    assert 0 <= rows.min() <= rows.max() < size


@pytest.mark.parametrize(
    ("block", "window", "lanes", "batch_size"),
    [(16, 4, 32, 256), (64, 4, 32, 1024), (16, 1, 64, 256), (16, 2, 16, 4096), (64, 8, 32, 1024), (16, 4, 128, 128)],
)
def test_the_variance_of_batches_of_sorted_rows_is_as_told(
    block: int, window: int, lanes: int, batch_size: int
) -> None:
    size, classes = 1 << 17, 50
    order = BlockShuffled(Sequential(size), 3, block, window, lanes)
    drawn = order.visits(np.zeros(size, np.int64), np.arange(size)).rows * classes // size
    batches = drawn.reshape(-1, batch_size)
    counts = np.stack([np.bincount(batch, minlength=classes) for batch in batches])
    measured = ((counts - batch_size / classes) ** 2).sum(axis=1).mean() / (batch_size * (1 - 1 / classes))
    blocks = order.shuffle.blocks
    assert blocks is not None
    assert measured == pytest.approx(batch_variance(blocks, batch_size), rel=0.15)


def test_the_variance_of_what_is_mixed_wholly_is_that_of_random_rows() -> None:
    for blocks in (Blocks(64, 512, 4, 128), Blocks(1, 10**6, 1, 1), Blocks(64, 10**6, 1, 4096)):
        assert batch_variance(blocks, 4096) == 1.0
