"""Streams of blocks of rows: the batches of their rows, resumed at any row, and blocks that are none."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from loadax import Dataloader, Dataset, from_stream
from loadax.errors import LeafError, SourceError
from tests.limits import examples
from tests.streams import row_of

KEPT = Path(__file__).parents[2] / "kept" / "stream_blocks.json"
BATCH = 12


class BlockLane:
    """Blocks of one lane: rows `row_of(lane, row)`, in blocks whose lengths repeat.

    Args:
        lane: Number of the lane.
        lengths: Lengths of its blocks.
        blocks: Number of blocks.
    """

    def __init__(self, lane: int, lengths: list[int], blocks: int):
        self._lane, self._lengths, self._blocks = lane, lengths, blocks
        self._block = self._row = 0
        self._state = [0, 0]

    def __iter__(self) -> "BlockLane":
        return self

    def __next__(self) -> Any:
        if self._block == self._blocks:
            raise StopIteration
        length = self._lengths[(self._block + self._lane) % len(self._lengths)]
        numbers = np.arange(self._row, self._row + length)
        self._block += 1
        self._row += length
        self._state[:] = self._block, self._row
        x = np.array([row_of(self._lane, number) for number in numbers.tolist()], np.int32)
        return {"x": x, "y": np.stack([x, -x], 1)}

    def get_state(self) -> list[int]:
        return self._state  # which changes with the next block

    def set_state(self, state: list[int]) -> None:
        self._block, self._row = self._state[:] = state


def stream_of(lengths: list[int], lanes: int, blocks: int = 20, stateful: bool = True, batched: bool = True) -> Dataset:
    def open_lane(lane: int, count: int) -> Iterator[Any]:
        given = BlockLane(lane, lengths, blocks)
        if not batched:
            return ({"x": x, "y": y} for block in given for x, y in zip(block["x"], block["y"], strict=True))
        return given if stateful else (block for block in given)

    return from_stream(open_lane, lanes, batched=batched)


def batches_of(data: Dataset, start: Any = 0, most: int = 10**6, **options: Any) -> list[Any]:
    loader = Dataloader(data, BATCH, shard_index=0, shard_count=1, **options)
    with loader.host_batches(start) as batches:
        return [batch for _, batch in zip(range(most), batches, strict=False)]


LENGTHS = st.lists(st.integers(0, 9), min_size=1, max_size=4).filter(any)


@given(LENGTHS, st.integers(1, 5), st.sampled_from([0, 2]), st.sampled_from(["drop", "pad"]))
def test_law_batches_are_those_of_the_rows(lengths: list[int], lanes: int, workers: int, remainder: Any) -> None:
    options: Any = {"num_workers": workers, "remainder": remainder}
    given = batches_of(stream_of(lengths, lanes), **options)
    np.testing.assert_equal(given, batches_of(stream_of(lengths, lanes, batched=False), **options))


@settings(max_examples=examples(40))
@given(LENGTHS, st.integers(1, 5), st.booleans())
def test_law_run_resumed_at_every_step_is_the_uninterrupted_one(lengths: list[int], lanes: int, stateful: bool) -> None:
    data = stream_of(lengths, lanes, stateful=stateful)
    loader = Dataloader(data, BATCH, shard_index=0, shard_count=1, num_epochs=2, num_workers=0)
    states, batches = [], []
    with loader.host_batches() as iterator:
        states.append(iterator.get_state())
        for batch in iterator:
            batches.append(batch)
            states.append(json.loads(json.dumps(iterator.get_state())))
    for step, state in enumerate(states):
        resumed = batches_of(data, state, 2, num_epochs=2, num_workers=0)
        np.testing.assert_equal(resumed, batches[step : step + 2])


@pytest.mark.parametrize("hosts", [2, 3])
def test_batches_do_not_depend_on_hosts(hosts: int) -> None:
    data = stream_of([5, 0, 3, 8], 6)
    parts = []
    for host in range(hosts):
        loader = Dataloader(data, BATCH, shard_index=host, shard_count=hosts, num_epochs=None)
        with loader.host_batches() as batches:
            parts.append([next(batches) for _ in range(5)])
    joined = [np.concatenate([batch["y"] for batch in step]) for step in zip(*parts, strict=True)]
    expected = [batch["y"] for batch in batches_of(data, most=5, num_epochs=None)]
    np.testing.assert_equal(joined, expected)


def test_maps_get_the_rows() -> None:
    def double(row: Any) -> Any:
        assert row["y"].shape == (2,)
        return {"x": row["x"] * 2}

    mapped = batches_of(stream_of([5, 2], 3).map(double))
    expected = [batch["x"] * 2 for batch in batches_of(stream_of([5, 2], 3, batched=False))]
    np.testing.assert_equal([batch["x"] for batch in mapped], expected)
    batch_mapped = batches_of(stream_of([5, 2], 3).map_batch(lambda rows: {"x": rows["x"] * 2}))
    np.testing.assert_equal([batch["x"] for batch in batch_mapped], expected)


@pytest.mark.parametrize("stateful", [True, False])
def test_documents_of_blocks_are_packed(stateful: bool) -> None:
    packed = stream_of([5, 0, 2], 3, stateful=stateful).map(lambda row: row["y"]).pack(6)
    expected = batches_of(stream_of([5, 0, 2], 3, batched=False).map(lambda row: row["y"]).pack(6))
    loader = Dataloader(packed, BATCH, shard_index=0, shard_count=1)
    with loader.host_batches() as batches:
        given, states = [next(batches)], [batches.get_state()]
        for batch in batches:
            given.append(batch)
            states.append(batches.get_state())
    np.testing.assert_equal(given, expected)
    np.testing.assert_equal(batches_of(packed, states[0], 1), expected[1:2])


@pytest.mark.parametrize("stateful", [True, False])
def test_shuffled_rows_of_blocks_resume(stateful: bool) -> None:
    data = stream_of([5, 0, 300, 700], 2, blocks=12, stateful=stateful).shuffle(0, buffer_size=90)
    loader = Dataloader(data, BATCH, shard_index=0, shard_count=1, num_workers=0)
    with loader.host_batches() as batches:
        given = [(batch, batches.get_state()) for batch in batches]
    for index in range(0, len(given) - 1, 13):
        resumed = batches_of(data, json.loads(json.dumps(given[index][1])), 1)
        np.testing.assert_equal(resumed, [given[index + 1][0]])


def test_state_of_a_run_of_earlier_version() -> None:
    """Of commit 277d2b1, the last version with blocks before they were left out for some days."""
    kept = json.loads(KEPT.read_text())
    for state, steps in kept:
        resumed = batches_of(stream_of([5, 0, 7], 4), state, len(steps), num_epochs=2)
        assert [batch["x"].tolist() for batch in resumed] == steps


@pytest.mark.parametrize(
    ("block", "message"),
    [
        ({"x": np.zeros(3), "y": np.zeros(4)}, r"leaf \['y'\] has 4 rows, but leaf \['x'\] has 3; yield leaves of one"),
        ({"x": np.zeros(3), "y": 5.0}, r"leaf \['y'\] is 5.0, which has no rows, but batched=True; yield trees of arr"),
        ({"x": np.zeros(3), "y": np.float32(5)}, r"leaf \['y'\] is .*5.0.*, which has no rows, .*or leave out batched"),
        (None, r"batched=True, but this item is None; yield trees of arrays whose first dimension is rows, or leave"),
        ({}, r"batched=True, but this item is {}; yield trees of arrays whose first dimension is rows, or leave out"),
    ],
)
def test_item_that_is_no_block_is_named(block: Any, message: str) -> None:
    good = {"x": np.zeros(12), "y": np.zeros(12)}
    with pytest.raises(LeafError, match=rf"^the first block of lane 0: {message}"):
        batches_of(from_stream(lambda lane, lanes: [block], 1, batched=True))
    with pytest.raises(LeafError, match=rf"^lane 0, block at row 12: {message}"):
        batches_of(from_stream(lambda lane, lanes: [good, block, good], 1, batched=True))


def test_block_of_another_spec_is_named() -> None:
    blocks = [{"x": np.zeros((12, 2))}, {"x": np.zeros((12, 2), np.int8)}]
    with pytest.raises(LeafError, match=r"lane 0, block at row 12, gave leaf \['x'\] as int8\[12, 2\] for 12 rows"):
        batches_of(from_stream(lambda lane, lanes: blocks, 1, batched=True))
    with pytest.raises(SourceError, match=r"the stream has no rows"):
        batches_of(from_stream(lambda lane, lanes: [{"x": np.zeros((0, 2))}], 1, batched=True))


def test_lane_that_writes_over_its_blocks_is_refused() -> None:
    def blocks(lane: int, lanes: int) -> Iterator[Any]:
        block = np.zeros(5)
        for _ in range(9):
            block += 1
            yield block

    with pytest.raises(LeafError, match="so rows overwrite each other; yield new arrays for each row"):
        batches_of(from_stream(blocks, 1, batched=True))


@pytest.mark.parametrize("workers", [0, 2])
def test_live_generator_of_blocks_loses_no_row(workers: int) -> None:
    live = (np.arange(row, min(row + 5, 60)) for row in [60, *range(0, 60, 5)])
    got = batches_of(from_stream(lambda lane, lanes: live, 1, batched=True), num_workers=workers)
    np.testing.assert_array_equal(np.concatenate(got), np.arange(60))


def test_leaves_of_other_kinds() -> None:
    block = (np.arange(BATCH), {"text": np.array(["a"] * BATCH), "deep": np.zeros((BATCH, 0))})
    ((numbers, rest),) = batches_of(
        from_stream(lambda lane, lanes: [block], 1, batched=True).map(lambda row: (row[0], row[1]["deep"]))
    )
    assert numbers.tolist() == list(range(BATCH))
    assert rest.shape == (BATCH, 0)
