"""Streams: every row exactly once, batches that depend on lanes alone, and runs that resume on other hosts."""

import json
from itertools import chain
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from loadax import Dataloader, from_arrays, from_stream, mix
from loadax.protocols import ArraySpec
from tests.streams import CountedLanes, expected_steps, row_of

SPEC = {"x": ArraySpec((), np.dtype(np.int32))}
LENGTHS = st.lists(st.integers(1, 12), min_size=1, max_size=9)


def loader_of(lanes: CountedLanes, number: int, batch_size: Any, host: int = 0, hosts: int = 1, **options: Any) -> Any:
    data = from_stream(lanes, lanes=number, spec=SPEC)
    return Dataloader(data, batch_size, shard_index=host, shard_count=hosts, **options)


def values(batch: Any) -> list[int]:
    rows = batch["x"].tolist()
    return rows if "mask" not in batch else [x if real else -1 for x, real in zip(rows, batch["mask"], strict=True)]


def steps_of(loader: Any, most: int | None = None, start: Any = 0) -> list[list[int]]:
    with loader.host_batches(start) as batches:
        return [values(batch) for _, batch in zip(range(10**6 if most is None else most), batches, strict=False)]


def joined(hosts: list[list[list[int]]]) -> list[list[int]]:
    """The batches of all hosts together."""
    return [list(chain(*parts)) for parts in zip(*hosts, strict=True)]


@given(LENGTHS, st.integers(1, 12), st.sampled_from(["drop", "pad"]), st.sampled_from([0, 3]))
def test_every_row_is_served_once_in_the_order_of_the_lanes(
    lengths: list[int], batch_size: int, remainder: Any, workers: int
) -> None:
    batch_size = batch_size if remainder == "drop" else max(batch_size, len(lengths))
    lanes = CountedLanes(lengths)
    loader = loader_of(lanes, len(lengths), batch_size, remainder=remainder, num_workers=workers)
    expected = expected_steps(lengths, batch_size, remainder)
    steps = steps_of(loader, len(expected) + 1)  # a run that does not end has one more
    assert steps == expected
    if remainder == "pad":
        served = sorted(row for step in steps for row in step if row >= 0)
        assert served == [row_of(lane, row) for lane, length in enumerate(lengths) for row in range(length)]


@given(st.integers(1, 9), st.integers(1, 4), st.sampled_from([1, 2, 3]))
def test_batches_do_not_depend_on_hosts(number: int, per_host: int, hosts: int) -> None:
    batch_size = per_host * hosts
    expected = expected_steps([100] * number, batch_size, "drop")[:4]
    parts = [
        steps_of(loader_of(CountedLanes(), number, batch_size, host, hosts, num_epochs=None, num_workers=2), 4)
        for host in range(hosts)
    ]
    assert joined(parts) == expected


def test_a_host_opens_its_own_lanes_alone() -> None:
    opened = []
    for host in range(4):
        lanes = CountedLanes()
        steps_of(loader_of(lanes, 128, 512, host, 4, num_epochs=None, num_workers=0), 3)
        assert lanes.rows_read == 3 * 128
        opened.append(set(lanes.opened))
    assert [len(lanes) for lanes in opened] == [32] * 4
    assert set.union(*opened) == set(range(128))


@given(
    LENGTHS,
    st.booleans(),
    st.integers(0, 6),
    st.sampled_from([1, 2, 4]),
    st.sampled_from([1, 2, 4]),
    st.sampled_from([(4, 4), (8, 4), (4, 8)]),
)
def test_a_run_resumes_on_another_number_of_hosts(
    lengths: list[int], stateful: bool, steps: int, before: int, after: int, sizes: tuple[int, int]
) -> None:
    first, second = sizes
    steps = steps * 2 if second > first else steps  # a state must be between batches
    states = []
    for host in range(before):
        lanes = CountedLanes(lengths, stateful)
        loader = loader_of(lanes, len(lengths), first, host, before, num_epochs=None, num_workers=2)
        with loader.host_batches() as batches:
            for _ in range(steps):
                next(batches)
            states.append(json.loads(json.dumps(batches.get_state())))
    parts = []
    for host in range(after):
        lanes = CountedLanes(lengths, stateful)
        loader = loader_of(lanes, len(lengths), second, host, after, num_epochs=None, num_workers=2)
        parts.append(steps_of(loader, 3, states))
    resumed = joined(parts)
    begin = steps * first
    width = len(lengths)
    for index, step in enumerate(resumed):
        low = begin + index * second
        positions = range(low, low + second)
        turns = [divmod(position, width) for position in positions]
        expected = sorted(row_of(lane, turn % lengths[lane]) for turn, lane in turns)
        assert sorted(step) == expected


def test_lanes_with_states_continue_without_reading_their_rows_again(caplog: pytest.LogCaptureFixture) -> None:
    for stateful in (True, False):
        lanes = CountedLanes(stateful=stateful)
        loader = loader_of(lanes, 4, 8, num_epochs=None, num_workers=0)
        with loader.host_batches() as batches:
            for _ in range(200):
                next(batches)
            state = batches.get_state()
        lanes.rows_read, lanes.opened = 0, []
        caplog.clear()
        with caplog.at_level("WARNING", "loadax"), loader.host_batches(state) as batches:
            assert values(next(batches)) == expected_steps([900] * 4, 8, "drop")[200]
        if stateful:
            assert lanes.rows_read < 1000
        else:
            assert lanes.rows_read == 1608
            text = "reading and skipping 1,600 rows of 4 lanes, to reach the step; lanes without a saved state: 4"
            assert text in caplog.text


def test_a_batch_size_schedule_and_set_state_continue_the_lanes() -> None:
    lanes = CountedLanes()
    loader = loader_of(lanes, 3, {0: 3, 2: 6, 4: 9}, num_epochs=None, num_workers=2)
    with loader.host_batches() as batches:
        rows = [values(next(batches)) for _ in range(6)]
        batches.set_state(batches.get_state())
        rows.append(values(next(batches)))
    assert [len(step) for step in rows] == [3, 3, 6, 6, 9, 9, 9]
    served = sorted(chain.from_iterable(rows))
    assert served == [row_of(lane, row) for lane in range(3) for row in range(45 // 3)]
    assert sorted(lanes.opened) == [0, 0, 1, 1, 2, 2]


@pytest.mark.parametrize("stop", ["first", "never"])
def test_a_mixture_takes_from_streams_and_datasets(stop: Any) -> None:
    stored = from_arrays({"x": np.arange(-100, 0, dtype=np.int32)})
    parts = {"stream": from_stream(CountedLanes([30] * 4), lanes=4, spec=SPEC), "stored": stored.shuffle(0)}
    data = mix(parts, {"stream": 2, "stored": 1}, stop=stop)
    one = steps_of(Dataloader(data, 12, shard_index=0, shard_count=1, num_workers=2), 9)
    options: Any = {"num_epochs": None, "num_workers": 0, "shard_count": 2}
    halves = [steps_of(Dataloader(data, 12, shard_index=host, **options), 9) for host in range(2)]
    assert one == joined(halves)
    assert all(sum(x >= 0 for x in step) == 8 for step in one)
    served = sorted(x for step in one for x in step if x >= 0)
    assert served == sorted(row_of(position % 4, position // 4) for position in range(72))
    with Dataloader(data, 12, shard_index=0, shard_count=1).host_batches() as batches:
        for _ in range(5):
            next(batches)
        state = batches.get_state()
    assert steps_of(Dataloader(data, 12, shard_index=0, shard_count=1), 4, state) == one[5:9]


def test_a_mixture_ends_with_a_lane_of_a_stream() -> None:
    stored = from_arrays({"x": np.full(10**6, -1, np.int32)})
    data = mix([from_stream(CountedLanes([5, 3]), lanes=2, spec=SPEC), stored], [1, 1])
    steps = steps_of(Dataloader(data, 4, shard_index=0, shard_count=1))
    assert sorted(x for step in steps for x in step if x >= 0) == [0, 1, 2, 1000, 1001, 1002]


def test_first_row_behind_a_stream_is_of_the_next_part() -> None:
    stored = from_arrays({"x": np.arange(-100, 0, dtype=np.int32)})
    data = mix([from_stream(CountedLanes(), lanes=3, spec=SPEC), stored], [3, 1])
    steps = steps_of(Dataloader(data, 4, num_epochs=None, shard_index=0, shard_count=1, num_workers=0), 5)
    rows = [[-100 + turn, *(row_of(lane, turn) for lane in range(3))] for turn in range(5)]
    assert [sorted(step) for step in steps] == rows


def test_mixture_that_never_stops_reads_streams_again() -> None:
    stored = from_arrays({"x": np.full(7, -1, np.int32)})
    data = mix([from_stream(CountedLanes([5, 3]), lanes=2, spec=SPEC), stored], [1, 1], stop="never")
    steps = steps_of(Dataloader(data, 4, shard_index=0, shard_count=1), 20)
    again = [[row_of(0, turn % 5), row_of(1, turn % 3)] for turn in range(20)]
    assert [sorted(x for x in step if x >= 0) for step in steps] == again


def test_a_mixture_may_have_the_same_stream_twice() -> None:
    stream = from_stream(CountedLanes(), lanes=3, spec=SPEC)
    data = mix([stream, stream.map(lambda row: {"x": -1 - row["x"]})], [2, 1])
    steps = steps_of(Dataloader(data, 9, num_epochs=None, shard_index=0, shard_count=1, num_workers=2), 3)
    served = sorted(chain.from_iterable(steps))
    twice = (
        [row_of(lane, row) for lane in range(3) for row in range(6)],
        [-1 - row_of(lane, row) for lane in range(3) for row in range(3)],
    )
    assert served == sorted(chain(*twice))
