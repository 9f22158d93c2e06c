"""Steps of blocks that are read together: batches, ends and errors as one by one, and no step waits for later rows."""

from collections import deque
from collections.abc import Iterator
from time import sleep
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from loadax import Dataloader, Dataset, from_stream
from loadax.loader.execution.piece_size import PieceSizes
from loadax.loader.streams.block_steps import write_rows
from tests.streams import row_of

LANES = 4
BATCH = 16  # four rows of each lane, without gaps between the buffers of steps
TOGETHER = 5


@pytest.fixture(autouse=True)
def several_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups of five steps from the second one on, if the producer allows them."""
    monkeypatch.setattr(PieceSizes, "steps", property(lambda sizes: TOGETHER if sizes._weight else 1))


@pytest.fixture
def groups(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Steps of each group that is opened."""
    opened: list[int] = []
    pieces = PieceSizes.pieces

    def counted(sizes: PieceSizes, count: int, *others: Any) -> list[tuple[int, int]]:
        opened.append(count)
        return pieces(sizes, count, *others)

    monkeypatch.setattr(PieceSizes, "pieces", counted)
    return opened


def stream_of(blocks: dict[int, list[int]], batched: bool = True) -> Dataset:
    """Lanes with blocks of these lengths."""

    def open_lane(lane: int, lanes: int) -> Iterator[Any]:
        row = 0
        for length in blocks[lane]:
            x = np.array([row_of(lane, row + each) for each in range(length)], np.int32)
            row += length
            yield from (
                [{"x": x, "y": np.stack([x, -x], 1)}]
                if batched
                else [{"x": each, "y": np.array([each, -each])} for each in x]
            )

    return from_stream(open_lane, LANES, batched=batched)


def batches_of(data: Dataset, workers: int, **options: Any) -> list[Any]:
    sizes = {"batch_size": BATCH, "shard_index": 0, "shard_count": 1}
    with Dataloader(data, num_workers=workers, **(sizes | options)).host_batches() as batches:
        return list(batches)


LENGTHS = st.lists(st.integers(0, 40), min_size=1, max_size=8).filter(any)


@given(st.tuples(*[LENGTHS] * LANES), st.sampled_from([0, 2]), st.integers(1, 2))
def test_law_batches_are_those_of_the_rows(lengths: tuple[list[int], ...], workers: int, epochs: int) -> None:
    blocks = dict(enumerate(lengths))
    expected = batches_of(stream_of(blocks, batched=False), workers, num_epochs=epochs)
    np.testing.assert_equal(batches_of(stream_of(blocks), workers, num_epochs=epochs), expected)


@pytest.mark.parametrize(
    ("options", "most"),
    [({}, TOGETHER), ({"remainder": "pad"}, 1), ({"on_error": "mask"}, 1), ({"batch_size": 12}, 1)],
    ids=["rows alone", "mask", "rows that may be masked", "gaps between steps"],
)
def test_steps_are_read_together_where_only_rows_are_written(groups: list[int], options: Any, most: int) -> None:
    batches_of(stream_of(dict.fromkeys(range(LANES), [20] * 12)), 1, **options)
    assert max(groups) == most


@pytest.mark.parametrize(("batch_size", "shares", "most"), [(64, 2, TOGETHER), (48, 3, 1), (80, 1, 1)])
def test_steps_of_whole_lanes_are_read_together(groups: list[int], batch_size: int, shares: int, most: int) -> None:
    """A third of 48 rows is one lane and a third of one; the blocks have a row too few for 20 of each lane."""
    data = stream_of(dict.fromkeys(range(LANES), [19] * 40))
    loader = Dataloader(data, batch_size, shard_index=1 % shares, shard_count=shares, num_epochs=None, num_workers=1)
    with loader.host_batches() as batches:
        for _ in range(12):
            next(batches)
    assert max(groups) == most


def test_consumer_that_reads_gets_the_steps_of_a_block_together(groups: list[int]) -> None:
    batches_of(stream_of(dict.fromkeys(range(LANES), [16] * 3)), 0)
    assert groups[:5] == [1, 3, 1, 3, 1]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("failing", [1, 2, 3, 5, 6])
def test_error_in_a_later_step_comes_after_the_steps_before_it(workers: int, failing: int) -> None:
    """Blocks are of one step, so that the error is in the middle of those that are read together."""

    def fails(lane: int, lanes: int) -> Iterator[Any]:
        for block in range(failing):
            yield {"x": np.full(4, row_of(lane, block), np.int32)}
        if lane == 1:
            raise OSError("no answer")
        yield {"x": np.full(4, -1, np.int32)}

    data = from_stream(fails, LANES, batched=True)
    loader = Dataloader(data, BATCH, shard_index=0, shard_count=1, num_epochs=None, num_workers=workers)
    with loader.host_batches() as batches:
        for block in range(failing):
            assert set(next(batches)["x"]) == {row_of(lane, block) for lane in range(LANES)}
        with pytest.raises(OSError, match="no answer") as caught:
            next(batches)
    assert f"loadax: in step {failing}" in caught.value.__notes__
    assert f"loadax: reading row {4 * failing} of lane 1" in caught.value.__notes__


@pytest.mark.parametrize("workers", [0, 2])
def test_a_step_does_not_wait_for_blocks_of_later_ones(workers: int, groups: list[int]) -> None:
    """The blocks of a step are made when the batch before it was handed out: a queue that the consumer fills."""
    queues = [deque([block_of(lane, 0)]) for lane in range(LANES)]

    def fed(lane: int, lanes: int) -> Iterator[Any]:
        while True:
            assert queues[lane] or workers, "a block is asked for before its step"
            while not queues[lane]:
                if closed:
                    return
                sleep(0.001)
            yield queues[lane].popleft()

    closed: list[bool] = []
    data = from_stream(fed, LANES, batched=True, spec={"x": np.int32(0)})
    loader = Dataloader(
        data, BATCH, shard_index=0, shard_count=1, num_epochs=None, num_workers=workers, prefetch=int(workers > 0)
    )
    with loader.host_batches() as batches:
        for step in range(12):
            assert set(next(batches)["x"]) == {row_of(lane, step) for lane in range(LANES)}
            for lane in range(LANES):
                queues[lane].append(block_of(lane, step + 1))
        closed.append(True)
    assert max(groups) == (TOGETHER if workers else 1)


@pytest.mark.parametrize(("wait", "most"), [(0.0, 8), (0.005, 3)])
def test_steps_of_one_block_are_read_together_where_blocks_are_waited_for(
    wait: float, most: int, groups: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other threads read the next blocks meanwhile."""
    monkeypatch.setattr(PieceSizes, "steps", property(lambda sizes: 8 if sizes._weight else 1))

    def waits(lane: int, lanes: int) -> Iterator[Any]:
        while True:
            if wait:
                sleep(wait)
            yield {"x": np.zeros(12, np.int32)}

    data = from_stream(waits, LANES, batched=True, spec={"x": np.int32(0)})
    loader = Dataloader(data, BATCH, shard_index=0, shard_count=1, num_epochs=None, num_workers=1, prefetch=1)
    with loader.host_batches() as batches:
        for _ in range(20):
            next(batches)
        for _ in range(0 if wait else 2000):  # where others use the processor, blocks look as if they were waited for
            if max(groups) == most:
                break
            next(batches)
    assert max(groups) == most


def block_of(lane: int, block: int) -> Any:
    return {"x": np.full(4, row_of(lane, block), np.int32)}


@given(st.integers(1, 4), st.integers(1, 5), st.lists(st.integers(0, 7), max_size=8))
def test_law_rows_are_written_in_order(steps: int, rows: int, lengths: list[int]) -> None:
    out = np.full((steps, 2, rows, 2), -1)
    numbers = np.arange(steps * rows * 2).reshape(-1, 2)
    begin = 0
    for length in lengths:
        values = numbers[begin : begin + length]
        write_rows(out[:, 1], begin, values)
        begin += len(values)
    written = out[:, 1].reshape(-1, 2)
    np.testing.assert_array_equal(written[:begin], numbers[:begin])
    assert (written[begin:] == -1).all()
    assert (out[:, 0] == -1).all()
