"""Streams shuffled in a buffer: every row once an epoch, orders that follow from numbers, resumes at every step."""

import json
from collections.abc import Iterator
from typing import Any

import datasets
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from loadax import Dataloader, Dataset, from_arrays, from_huggingface, from_stream, mix
from loadax.errors import ArgumentError
from loadax.sources.stream.shuffled_lanes import ShuffledLane
from tests.limits import examples
from tests.streams import CountedLanes, row_of

BATCH = 6


def loader_of(data: Any, host: int = 0, hosts: int = 1, **options: Any) -> Dataloader:
    return Dataloader(data, BATCH, shard_index=host, shard_count=hosts, **options)


def steps_of(loader: Dataloader, most: int = 10**6, start: Any = 0) -> list[Any]:
    with loader.host_batches(start) as batches:
        return [batch for _, batch in zip(range(most), batches, strict=False)]


def rows_of(steps: list[Any]) -> list[int]:
    return [
        int(x) for step in steps for x, real in zip(step["x"], step.get("mask", step["x"] >= 0), strict=True) if real
    ]


def stream_of(lengths: list[int], stateful: bool = True) -> Dataset:
    return from_stream(CountedLanes(lengths, stateful), len(lengths))


LENGTHS = st.lists(st.integers(1, 40), min_size=1, max_size=5)


@given(LENGTHS, st.integers(1, 50), st.booleans(), st.integers(-5, 5))
def test_law_every_row_is_served_once_an_epoch(lengths: list[int], size: int, stateful: bool, seed: int) -> None:
    data = stream_of(lengths, stateful).shuffle(seed, buffer_size=size)
    steps = steps_of(loader_of(data, remainder="pad", num_workers=2))
    expected = [row_of(lane, row) for lane, length in enumerate(lengths) for row in range(length)]
    assert sorted(rows_of(steps)) == expected


def check_resumes(data: Dataset, most: int = 60, epochs: int | None = 2) -> list[Any]:
    """Checks that the run resumed at every step is the uninterrupted one; returns the batches."""
    loader = loader_of(data, num_epochs=epochs, num_workers=0)
    states, steps = [], []
    with loader.host_batches() as batches:
        states.append(batches.get_state())
        for _, batch in zip(range(most), batches, strict=False):
            steps.append(batch)
            states.append(json.loads(json.dumps(batches.get_state())))
    for step, state in enumerate(states[:-1]):
        np.testing.assert_equal(steps_of(loader, 2, state)[: most - step], steps[step : step + 2])
    return steps


@settings(max_examples=examples(40))
@given(LENGTHS, st.integers(1, 50), st.booleans())
def test_law_run_resumed_at_every_step_is_the_uninterrupted_one(lengths: list[int], size: int, stateful: bool) -> None:
    check_resumes(stream_of(lengths, stateful).shuffle(3, buffer_size=size))


def test_resume_of_a_long_run_reads_its_buffer_again() -> None:
    """States of lanes are kept as long as rows behind them are in the buffer."""
    given = CountedLanes([8_000], stateful=True)
    loader = loader_of(from_stream(given, 1).shuffle(0, buffer_size=200), num_workers=0)
    steps, states = [], []
    with loader.host_batches() as batches:
        for batch in batches:
            steps.append(batch)
            states.append(json.loads(json.dumps(batches.get_state())))
    for index in range(0, len(steps) - 2, 211):
        given.rows_read = 0
        np.testing.assert_equal(steps_of(loader, 2, states[index]), steps[index + 1 : index + 3])
        row = states[index]["lanes"][0]["0"][0]  # that of the latest state: taking one at each row would cost too much
        assert given.rows_read < 3 * 200 + 1024 + (index + 1) * BATCH - row + 3 * BATCH


@pytest.mark.parametrize("size", [1, 7, 64, 1100])
def test_lane_resumed_at_any_row(size: int) -> None:
    """Alone, over many rounds; a resume reads two buffers and 1,024 rows again, or three of the first ones."""
    length = 5 * size + 2500

    def opened() -> tuple[CountedLanes, ShuffledLane]:
        given = CountedLanes([length], stateful=True)
        return given, ShuffledLane(given(0, 1), size, 7)

    _, lane = opened()
    states, rows = [], []
    for row in lane:
        rows.append(int(row["x"]))
        states.append(json.loads(json.dumps(lane.get_state())))
    assert sorted(rows) == list(range(length))
    for index in [*range(40), *range(40, length, 97 + size), *range(length - 30, length)]:
        given, resumed = opened()
        resumed.set_state(states[index])
        buffers = 3 if index < 2 * size else 2
        assert given.rows_read <= buffers * size + 1024
        assert [int(row["x"]) for row in resumed][:50] == rows[index + 1 : index + 51]
    waited = np.argsort(rows) - np.arange(length)
    assert waited[size:].max() < size  # each row was read `size` turns before its own
    assert waited[:size].max() < 2 * size
    assert waited.min() > -2 * size - 1


def test_rows_wait_for_a_buffer_on_average() -> None:
    given = CountedLanes([100_000])
    rows = np.array([row["x"] for row in ShuffledLane(given(0, 1), 1000, 7)])
    read = np.argsort(rows)  # turn at which each row was served
    waits = read - (np.arange(100_000) - 1000)
    assert waits[1000:].min() >= 0
    assert waits[1000:].max() < 2000
    assert abs(waits[2000:90_000].mean() - 1000) < 20
    for distance in (1, 100, 500, 900):  # pairs in another order than they were read in, as in windows of 1,000 rows
        inverted = np.mean(read[2000 : 90_000 - distance] > read[2000 + distance : 90_000])
        assert abs(inverted - 0.5 * (1 - distance / 1000)) < 0.02


def test_order_is_pinned() -> None:
    data = stream_of([12, 12]).shuffle(1, buffer_size=4)
    assert rows_of(steps_of(loader_of(data), 4)) == [
        *(2, 3, 4, 1000, 1001, 1004),
        *(1, 0, 5, 1005, 1003, 1002),
        *(6, 7, 8, 1009, 1006, 1007),
        *(9, 11, 10, 1008, 1011, 1010),
    ]


def test_orders_differ_by_seed_epoch_and_lane() -> None:
    def order(seed: int) -> list[Any]:
        steps = steps_of(loader_of(stream_of([30, 30]).shuffle(seed, buffer_size=8), num_epochs=2))
        rows = rows_of(steps)
        lanes = [[row for row in rows if row // 1000 == lane] for lane in range(2)]
        return [[row % 1000 for row in lane[epoch * 30 : epoch * 30 + 30]] for lane in lanes for epoch in range(2)]

    assert order(0) == order(0)
    orders = [*order(0), *order(1)]
    assert len({tuple(each) for each in orders}) == 8
    assert all(sorted(each) == list(range(30)) for each in orders)


@pytest.mark.parametrize("hosts", [2, 3])
@pytest.mark.parametrize("stateful", [True, False])
def test_run_resumes_on_another_number_of_hosts(hosts: int, stateful: bool) -> None:
    data = stream_of([60] * 6, stateful).shuffle(0, buffer_size=9)
    expected = [step["x"] for step in steps_of(loader_of(data, num_epochs=None), 12)]
    parts, states = [], []
    for host in range(hosts):
        with loader_of(data, host, hosts, num_epochs=None).host_batches() as batches:
            parts.append([next(batches)["x"] for _ in range(5)])
            states.append(batches.get_state())
    np.testing.assert_equal([np.concatenate(step) for step in zip(*parts, strict=True)], expected[:5])
    resumed = [step["x"] for step in steps_of(loader_of(data, num_epochs=None), 7, states)]
    np.testing.assert_equal(resumed, expected[5:])


def document(row: Any) -> Any:
    return np.full(1 + int(row["x"]) % 5, row["x"])


@pytest.mark.parametrize("stateful", [True, False])
def test_packed_rows_resume(stateful: bool) -> None:
    data = stream_of([40, 50], stateful).shuffle(0, buffer_size=8).map(document).pack(8)
    steps = check_resumes(data, epochs=1)
    tokens = np.concatenate([step["tokens"][step["segment_ids"] > 0] for step in steps])
    assert len({*tokens.tolist()}) > 60
    check_resumes(
        stream_of([40, 50], stateful).map(document).pack(8, method="best_fit").shuffle(0, buffer_size=5), epochs=1
    )


def test_shuffled_lanes_of_a_dataset_and_of_blocks_resume() -> None:
    data = from_arrays({"x": np.arange(100)}).shuffle(0).to_stream(4).shuffle(1, buffer_size=10)
    assert sorted(rows_of(check_resumes(data, epochs=1))) != list(range(100))
    assert sorted(rows_of(steps_of(loader_of(data, remainder="pad")))) == list(range(100))

    def blocks(lane: int, lanes: int) -> Iterator[Any]:
        for begin in range(lane, 40, lanes):
            yield {"x": np.arange(begin * 5, begin * 5 + 5), "y": np.zeros((5, 2))}

    data = from_stream(blocks, 2, batched=True).shuffle(0, buffer_size=30)
    check_resumes(data)
    assert sorted(rows_of(steps_of(loader_of(data, remainder="pad")))) == list(range(200))


def test_shuffled_stream_of_hugging_face_resumes() -> None:
    stream = datasets.Dataset.from_dict({"x": list(range(120))}).to_iterable_dataset(num_shards=4)
    data = from_huggingface(stream).shuffle(0, buffer_size=10)
    steps = check_resumes(data, 15)
    assert rows_of(steps) != sorted(rows_of(steps))
    inexact = from_huggingface(stream.shuffle(seed=0, buffer_size=5)).shuffle(0, buffer_size=10)
    check_resumes(inexact, 8)


def test_spec_takes_one_row_and_loses_none() -> None:
    given = CountedLanes([100])
    data = from_stream(given, 1).shuffle(0, buffer_size=50).map(lambda row: {"x": row["x"] + 1})
    assert data.spec["x"].dtype == np.int32
    assert given.rows_read == 1
    live = iter(range(60))
    shuffled = from_stream(lambda lane, lanes: ({"x": np.int32(row)} for row in live), 1).shuffle(0, buffer_size=9)
    assert sorted(rows_of(steps_of(loader_of(shuffled)))) == list(range(60))


def test_text_and_state_name_seed_and_buffer() -> None:
    data = stream_of([20, 20]).map(document).shuffle(3, buffer_size=8)
    assert ".shuffle(3, buffer_size=8).map(" in repr(data)
    data = stream_of([20, 20]).shuffle(3, buffer_size=8)
    with loader_of(data).host_batches() as batches:
        next(batches)
        state = batches.get_state()
    for other in (stream_of([20, 20]), stream_of([20, 20]).shuffle(4, buffer_size=8)):
        with pytest.raises(ValueError, match="order"):
            steps_of(loader_of(other), 1, state)


def test_refused_arguments() -> None:
    stream = stream_of([20, 20])
    with pytest.raises(
        ArgumentError, match=r"shuffle\(\) of a stream needs buffer_size=.*: data.shuffle\(seed=5, buff"
    ):
        stream.shuffle(5)
    others: list[dict[str, Any]] = [{"block": 8}, {"window": 2}, {"lanes": 4}, {"pinned": True}]
    for options in others:
        with pytest.raises(ArgumentError, match=r"is for a dataset with random access; .* in a buffer; leave it out$"):
            stream.shuffle(0, buffer_size=8, **options)
    with pytest.raises(ArgumentError, match="buffer_size=0: pass 1 or more"):
        stream.shuffle(0, buffer_size=0)
    with pytest.raises(
        ArgumentError, match=r"buffer_size=8 is for streams; .*without a buffer: data.shuffle\(seed=0\)"
    ):
        from_arrays(np.arange(9)).shuffle(0, buffer_size=8)
    with pytest.raises(ArgumentError, match=r"shuffle\(\) after mix\(\) would break its proportions"):
        mix([stream, stream], [1, 1]).shuffle(0, buffer_size=8)
