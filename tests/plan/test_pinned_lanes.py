"""Pinned lanes: blocks stay with their lanes for the run, so a host reads the same part of the data in every epoch."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from loadax import Dataloader, from_arrays
from loadax.errors import ArgumentError
from loadax.plan.batches import BatchPlan
from loadax.plan.block_shuffle import BlockShuffled, batch_variance
from loadax.plan.sequential import Sequential
from loadax.seeds import derive
from tests.laws.chain_verbs import block_shuffled
from tests.plan.test_block_shuffle import chi_square, limit

HOSTS = [1, 2, 4, 8, 16]
EPOCHS = 10

SIZES = {
    "size": st.integers(1, 300),
    "block": st.integers(1, 20),
    "window": st.integers(1, 6),
    "lanes": st.integers(1, 12),
    "seed": st.integers(-3, 3),
    "epoch": st.integers(0, 3),
}


def rows_of(order: BlockShuffled, epoch: int) -> Any:
    return order.visits(np.full(order.size, epoch), np.arange(order.size)).rows


@settings(deadline=None)
@given(**SIZES)
def test_pinned_order_equals_the_slow_oracle(
    size: int, block: int, window: int, lanes: int, seed: int, epoch: int
) -> None:
    order = BlockShuffled(Sequential(size), seed, block, window, lanes, pinned=True)
    rows = rows_of(order, epoch)
    slow = block_shuffled(
        list(range(size)), derive(seed, "blocks", epoch), block, window, lanes, derive(seed, "pinned")
    )
    assert rows.tolist() == [row for row, _ in slow]
    assert sorted(rows.tolist()) == list(range(size))
    hits = order.inverse(rows, np.full(size, epoch), (0, size))
    assert hits.positions[np.argsort(hits.asked)].tolist() == list(range(size))


@settings(deadline=None)
@given(**SIZES)
def test_block_keeps_its_lane_in_every_epoch(
    size: int, block: int, window: int, lanes: int, seed: int, epoch: int
) -> None:
    order = BlockShuffled(Sequential(size), seed, block, window, lanes, pinned=True)
    assert lanes_of_blocks(order, epoch) == lanes_of_blocks(order, epoch + 7)


def lanes_of_blocks(order: BlockShuffled, epoch: int) -> dict[int, int]:
    """The lane in which each block's rows are, by the runs of positions that the order names."""
    found: dict[int, int] = {}
    runs = order.lane_assignments(epoch, 0, order.size)
    for position, row in enumerate(rows_of(order, epoch).tolist()):
        run = [run for run in runs if run.start <= position][-1]
        lane = int(run.lanes[(position - run.start) % len(run.lanes)])
        assert found.setdefault(row // order.block, lane) == lane
    return found


def blocks_read(order: BlockShuffled, batch_size: int, hosts: int, epochs: int = EPOCHS) -> list[list[set[int]]]:
    """The blocks that each host has read after each epoch: of its contiguous share of every batch."""
    plan = BatchPlan(order, batch_size)
    met: list[set[int]] = [set() for _ in range(hosts)]
    after: list[list[set[int]]] = [[] for _ in range(hosts)]
    for epoch in range(epochs):
        steps = range(epoch * plan.steps_per_epoch, (epoch + 1) * plan.steps_per_epoch)
        blocks = plan.visits_of(steps, np.arange(batch_size)).rows // order.block
        for host, share in enumerate(np.split(blocks.reshape(-1, batch_size), hosts, axis=1)):
            met[host] |= set(share.ravel().tolist())
            after[host].append(set(met[host]))
    return after


@pytest.mark.parametrize("hosts", HOSTS)
def test_host_reads_its_share_of_the_chunks_over_ten_epochs(hosts: int) -> None:
    """One order for all numbers of hosts; 1 / hosts of all chunks each, whatever the number of epochs."""
    order = BlockShuffled(Sequential(512 * 16), 0, 16, 4, 64, pinned=True)
    read = blocks_read(order, 256, hosts)
    for host in read:
        assert [len(met) for met in host] == [512 // hosts] * EPOCHS
    assert set().union(*(host[-1] for host in read)) == set(range(512))


def test_host_reads_ever_more_chunks_without_pins() -> None:
    """The order that the pins are for: 512 * (1 - (7/8)**10) = 377 of 512 after ten epochs on eight hosts."""
    read = blocks_read(BlockShuffled(Sequential(512 * 16), 0, 16, 4, 64), 256, 8)
    means = [np.mean([len(host[epoch]) for host in read]) for epoch in range(EPOCHS)]
    np.testing.assert_allclose(means, [512 * (1 - (7 / 8) ** (epoch + 1)) for epoch in range(EPOCHS)], rtol=0.03)
    assert all(one < other for one, other in pairwise(means))


@settings(deadline=None, max_examples=30)
@given(
    hosts=st.sampled_from([2, 4, 8]),
    doubled=st.integers(0, 2),
    blocks=st.integers(1, 4),
    share=st.integers(1, 9),
    block=st.integers(1, 5),
    window=st.integers(1, 3),
    seed=st.integers(0, 99),
)
def test_even_lanes_split_the_blocks_among_hosts(
    hosts: int, doubled: int, blocks: int, share: int, block: int, window: int, seed: int
) -> None:
    """For any batch that hosts divide, also one that lanes don't: a full turn of `hosts` lanes meets each host once."""
    lanes = hosts << doubled
    order = BlockShuffled(Sequential(lanes * blocks * block), seed, block, window, lanes, pinned=True)
    batch_size = hosts * share
    if batch_size > order.size:
        return
    read = [host[-1] for host in blocks_read(order, batch_size, hosts, 3)]
    for one, met in enumerate(read):
        assert len(met) <= order.blocks // hosts
        assert not any(met & other for other in read[one + 1 :])


@pytest.mark.parametrize(
    ("blocks", "lanes", "batch_size", "missing"), [(500, 64, 1024, 13), (333, 128, 1024, 7), (517, 64, 96, 3)]
)
@pytest.mark.parametrize("hosts", [4, 8])
def test_hosts_share_blocks_only_where_an_epoch_ends(
    blocks: int, lanes: int, batch_size: int, missing: int, hosts: int
) -> None:
    """Where lanes don't divide the blocks: until the first lane is used up, a host reads its own lanes alone."""
    order = BlockShuffled(Sequential(blocks * 16 - missing), 0, 16, 4, lanes, pinned=True)
    lane_of = lanes_of_blocks(order, 0)
    plan = BatchPlan(order, batch_size)
    for epoch in range(3):
        full = order.lane_assignments(epoch, 0, order.size)[1].start // batch_size
        first = epoch * plan.steps_per_epoch
        found = plan.visits_of(range(first, first + full), np.arange(batch_size)).rows.reshape(full, -1) // 16
        for host, share in enumerate(np.split(found, hosts, axis=1)):
            own = range(host * lanes // hosts, (host + 1) * lanes // hosts)
            assert {lane_of[block] for block in share.ravel().tolist()} <= set(own)
    for met in blocks_read(order, batch_size, hosts):
        assert len(met[-1]) <= blocks / hosts + 0.08 * blocks


def test_pinned_golden_values() -> None:
    """The order is a promise: a run that is resumed with another release of loadax goes on with the same rows."""
    order = BlockShuffled(Sequential(30), 1, 4, 2, 3, pinned=True)
    assert " ".join(map(str, rows_of(order, 2).tolist())) == (
        "19 13 21 16 28 20 11 12 22 17 14 23 8 15 6 9 29 7 10 2 4 18 0 5 25 1 24 3 27 26"
    )


def test_row_lands_everywhere_equally_often_over_seeds() -> None:
    """An epoch by itself is one of an order without pins: over seeds, a row is at each position equally often."""
    runs, size = 240, 12
    found = np.stack([rows_of(BlockShuffled(Sequential(size), seed, 2, 2, 3, True), 3) for seed in range(runs)])
    for row in (0, 7, 11):
        counts = np.bincount(np.argwhere(found == row)[:, 1], minlength=size)
        assert chi_square(counts) < limit(size - 1)


def test_blocks_of_a_lane_take_every_order() -> None:
    """Over epochs, the three blocks of each of two lanes come in every order equally often."""
    order = BlockShuffled(Sequential(6), 5, 1, 1, 2, True)
    rows = np.stack([rows_of(order, epoch) for epoch in range(240)]).reshape(240, 3, 2)
    for lane in range(2):
        _, counts = np.unique(rows[:, :, lane], axis=0, return_counts=True)
        assert len(counts) == 6
        assert chi_square(counts) < limit(5)


@pytest.mark.parametrize(("block", "window", "lanes", "batch_size"), [(16, 4, 32, 256), (64, 8, 32, 1024)])
def test_batches_of_sorted_rows_vary_as_without_pins(block: int, window: int, lanes: int, batch_size: int) -> None:
    size, classes = 1 << 17, 50
    order = BlockShuffled(Sequential(size), 3, block, window, lanes, pinned=True)
    drawn = rows_of(order, 1) * classes // size
    counts = np.stack([np.bincount(batch, minlength=classes) for batch in drawn.reshape(-1, batch_size)])
    measured = ((counts - batch_size / classes) ** 2).sum(axis=1).mean() / (batch_size * (1 - 1 / classes))
    blocks = order.shuffle.blocks
    assert blocks is not None
    assert measured == pytest.approx(batch_variance(blocks, batch_size), rel=0.15)


def test_pinned_trillion_rows_are_computed_where_asked() -> None:
    size = 10**12 + 3
    order = BlockShuffled(Sequential(size), 0, 1000, 4, 128, pinned=True)
    positions = np.linspace(0, size - 1, 1000).astype(np.int64)
    rows = order.visits(np.full(1000, 5), positions).rows
    assert len(set(rows.tolist())) == 1000
    hits = order.inverse(rows, np.full(1000, 5), (0, size))
    assert hits.positions[np.argsort(hits.asked)].tolist() == positions.tolist()


def test_hosts_of_any_number_have_one_order() -> None:
    data = from_arrays(np.arange(640)).shuffle(3, block=8, lanes=16, pinned=True)
    loader = Dataloader(data, batch_size=64, num_epochs=2)
    for step in (0, 7, 15):
        for count in (2, 4, 8):
            hosts = [
                Dataloader(data, batch_size=64, num_epochs=2, shard_index=k, shard_count=count) for k in range(count)
            ]
            joined = np.concatenate([host.local_rows(step) for host in hosts])
            assert joined.tolist() == loader.rows(step).tolist()


def test_unpinned_orders_describe_themselves_as_before() -> None:
    """Saved states depend on it."""
    plain = BlockShuffled(Sequential(12), 0, 3, 2, 2)
    assert plain.describe()[-1] == ["shuffle", 0, 3, 2, 2, 2]
    assert plain.text()[-1] == "shuffle(0, block=3, window=2, lanes=2)"
    pinned = BlockShuffled(Sequential(12), 0, 3, 2, 2, pinned=True)
    assert pinned.describe()[-1] == ["shuffle", 0, 3, 2, 2, 2, ["pinned", 1]]
    assert pinned.text()[-1] == "shuffle(0, block=3, window=2, lanes=2, pinned=True)"


def test_pinned_needs_blocks() -> None:
    data = from_arrays(np.arange(64))
    with pytest.raises(ArgumentError, match="pinned=True needs block=, the number of rows of a block; pass block= as"):
        data.shuffle(0, pinned=True)
    data.shuffle(0, pinned=True, block=4)
    wrong: Any = "yes"
    with pytest.raises(ArgumentError, match="pinned='yes': pass True or False"):
        data.shuffle(0, block=4, pinned=wrong)
