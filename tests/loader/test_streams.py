import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import loadax
from loadax import Dataloader, from_arrays, from_stream, mix, write_zarr
from loadax.errors import ArgumentError, ClosedError, LeafError, SourceError, StateError, StreamError, UnsupportedError
from loadax.loader.execution import thread_pool
from loadax.loader.execution.scheduler import PrefetchScheduler
from loadax.loader.iterator import DataIterator
from loadax.sharding import data_parallel
from loadax.sources.stream.lane import json_copy
from tests.limits import HANG, until
from tests.streams import CountedLanes, StatefulLane, expected_steps, row_of

BATCH = 8
WRONG_PLACES = (-5, 0), (float("inf"), 0), (5, 0), (0, 5)  # of a lane without a state: row and epoch


def rows(lane: int, lanes: int, count: int = 100) -> Iterator[Any]:
    for row in range(count):
        yield {"x": np.array([lane, row], np.int32)}


def batches_of(
    data: Any, batch_size: int = BATCH, start: Any = 0, most: int | None = None, **options: Any
) -> list[Any]:
    with Dataloader(data, batch_size, shard_index=0, shard_count=1, **options).host_batches(start) as batches:
        return list(islice(batches, most))


@pytest.mark.parametrize(
    "use",
    [
        len,
        lambda ds: ds[0],
        lambda ds: ds[:4],
        lambda ds: ds.select([1]),
        lambda ds: ds.sample([1.0]),
        lambda ds: ds.filter(lambda row: True),
        lambda ds: ds.exclude([1]),
        lambda ds: ds.split(0.5),
        lambda ds: ds.split_by(lambda row: 0, 0.5),
        lambda ds: ds.repeat(2),
        lambda ds: ds.zip(ds),
        lambda ds: ds.cache("/tmp/nowhere"),
        lambda ds: loadax.concat([ds, ds]),
        lambda ds: Dataloader(ds, BATCH)[0],
        lambda ds: Dataloader(ds, BATCH).rows(0),
        lambda ds: Dataloader(ds, BATCH).find(0),
        lambda ds: Dataloader(ds, BATCH).explain(),
        lambda ds: Dataloader(ds, BATCH).check_plan(),
        lambda ds: Dataloader(ds, BATCH).digest(),
        lambda ds: Dataloader(ds, BATCH).steps_per_epoch,
        lambda ds: len(Dataloader(ds, BATCH)),
        lambda ds: next(Dataloader(ds, BATCH).epochs()),
    ],
)
def test_what_needs_random_access_says_why(use: Any) -> None:
    with pytest.raises(StreamError, match=r"no length and no random access.*loader\.iterate\(start=state\)"):
        use(from_stream(rows, lanes=4))


def test_batches_are_placed_and_mapped() -> None:
    data = from_stream(rows, lanes=4).map(lambda row: {"y": row["x"].astype(np.float32) * 2})
    with iter(Dataloader(data, BATCH, num_workers=3)) as batches:
        first = next(batches)["y"]
        assert first.shape == (BATCH, 2)
        assert np.asarray(first)[:, 0].tolist() == [0, 0, 4, 4, 2, 2, 6, 6]
        assert repr(data).startswith("Dataset(a stream of 4 lanes from rows")
        assert len(list(batches)) == 49
        with pytest.raises(StopIteration):
            next(batches)


@pytest.mark.parametrize("event", ["end and move", "Ctrl-C", "set_state"])
def test_batch_that_a_thread_holds_while_another_reopens_the_run(event: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lengths, held, reopened = [8, 8] if "end" in event else [16, 16], threading.Event(), threading.Event()
    next_batch, main = PrefetchScheduler.next_batch, threading.current_thread()

    def next_batch_held_at_step_1(scheduler: PrefetchScheduler) -> Any:
        if event == "Ctrl-C" and held.is_set() and threading.current_thread() is main and not interrupted:
            interrupted.append(True)
            raise KeyboardInterrupt
        step, *rest = next_batch(scheduler)
        if step == 1 and not held.is_set():
            held.set()
            assert reopened.wait(HANG)
        return step, *rest

    interrupted: list[bool] = []
    monkeypatch.setattr(PrefetchScheduler, "next_batch", next_batch_held_at_step_1)
    loader = Dataloader(from_stream(CountedLanes(lengths, True), lanes=2), BATCH, num_workers=2)
    with iter(loader) as batches, ThreadPoolExecutor(1) as pool:
        given = [next(batches)]
        other = pool.submit(next, batches)
        assert held.wait(HANG)
        try:
            if event == "end and move":
                with pytest.raises(StopIteration):
                    next(batches)
                batches.move_to(data_parallel(jax.devices()[:2]))
            elif event == "Ctrl-C":
                with pytest.raises(KeyboardInterrupt):
                    next(batches)
                given.append(next(batches))
            else:
                batches.set_state(batches.get_state())
        finally:
            reopened.set()
        given += [other.result(HANG), *batches]
    assert sorted(np.asarray(batch["x"]).tolist() for batch in given) == sorted(expected_steps(lengths, BATCH, "drop"))


@pytest.mark.parametrize("remainder", ["drop", "pad"])
def test_threads_that_share_a_moving_run_get_each_batch_once(remainder: Any) -> None:
    """And states that other threads ask for are those of a step."""
    lengths = [48, 60, 34]
    expected = sorted(expected_steps(lengths, BATCH, remainder))
    loader = Dataloader(from_stream(CountedLanes(lengths, True), lanes=3), BATCH, remainder=remainder, num_workers=2)
    meshes = [data_parallel(jax.devices()[:count]) for count in (1, 2, 4)]

    def ask(batches: DataIterator, over: threading.Event) -> bool:
        while not over.is_set():
            batches.get_state()
        return True

    for _ in range(6):
        batches, over = iter(loader), threading.Event()
        with ThreadPoolExecutor(4) as pool:
            reads = [pool.submit(list[Any], batches) for _ in range(3)]
            asked = pool.submit(ask, batches, over)
            try:
                for mesh in meshes:
                    batches.move_to(mesh)
                got = [batch for read in reads for batch in read.result(HANG)]
            finally:
                over.set()
                batches.close()
            assert asked.result(HANG)
        masks = [batch.get("mask", np.ones(BATCH, bool)) for batch in got]
        rows = [np.where(mask, batch["x"], -1).tolist() for batch, mask in zip(got, masks, strict=True)]
        assert sorted(rows) == expected


@pytest.mark.parametrize("remainder", ["drop", "pad"])
def test_batches_that_are_stacked_in_parts_have_the_rows_of_their_lanes(remainder: Any) -> None:
    """Lanes end between, at and within the parts, and rows are written beside what they lack."""
    lengths = [180, 150, 160, 200, 131, 122, 140]
    expected = expected_steps(lengths, 427, remainder)
    assert len(expected) == (4 if remainder == "pad" else 2)
    for options in ({"num_workers": 0}, {"num_workers": 3}, {"on_error": "mask"}):
        data = from_stream(CountedLanes(lengths), lanes=len(lengths))
        given = batches_of(data, 427, remainder=remainder, **options)
        masks = [batch.get("mask", np.ones(427, bool)) for batch in given]
        assert [np.where(mask, batch["x"], -1).tolist() for mask, batch in zip(masks, given, strict=True)] == expected


def test_more_threads_are_tried_where_lanes_wait() -> None:
    def slow(lane: int, lanes: int) -> Iterator[Any]:
        for row in rows(lane, lanes, 10**6):
            time.sleep(0.001)
            yield row

    data = from_stream(slow, lanes=4)
    with iter(Dataloader(data, BATCH, num_epochs=None)) as batches:
        assert batches.stats().at_work == 1
        until(lambda: next(batches) and batches.stats().tried > 1)
    with iter(Dataloader(data, BATCH, num_workers=3)) as batches:
        assert batches.stats().at_work == 3


def test_a_lane_that_raises_is_named_after_the_steps_before_it() -> None:
    def broken(lane: int, lanes: int) -> Iterator[Any]:
        yield from rows(lane, lanes, 5)
        raise OSError(f"no answer for {lane}")

    for workers in (0, 3):
        loader = Dataloader(from_stream(broken, lanes=4), BATCH, num_workers=workers)
        with iter(loader) as batches:
            next(batches), next(batches)
            with pytest.raises(OSError, match="no answer for 0") as caught:
                next(batches)
            assert "loadax: reading row 5 of lane 0" in caught.value.__notes__
            assert batches.step == 2
            with pytest.raises(OSError, match="no answer"):
                next(batches)


def test_rows_of_another_spec_are_named() -> None:
    def ragged(lane: int, lanes: int) -> Iterator[Any]:
        yield from rows(lane, lanes, 3)
        yield {"x": np.zeros(3 if lane == 2 else 2, np.int32)}
        yield from rows(lane, lanes, 3)

    with pytest.raises(LeafError, match=r"row 3 of lane 2: leaf \['x'\] is int32\[3\], expected int32\[2\]"):
        batches_of(from_stream(ragged, lanes=4))
    padded = batches_of(from_stream(ragged, lanes=4).pad({"x": 4}))
    assert padded[0]["x"].shape == (BATCH, 4)


def test_a_masked_row_keeps_its_position() -> None:
    def fails(row: Any) -> Any:
        if row["x"].tolist() == [1, 1]:
            raise ValueError("bad row")
        return row

    batch = batches_of(from_stream(rows, lanes=2).map(fails), on_error="mask")[0]
    assert batch["mask"].tolist() == [True] * 5 + [False] + [True] * 2


@pytest.mark.parametrize("workers", [0, 2])
def test_close_ends_the_lanes(workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """They may have files open. Threads that do not end in time keep them."""
    monkeypatch.setattr(thread_pool, "CLOSE_TIMEOUT", HANG)
    left: list[int] = []

    def opened(lane: int, lanes: int) -> Iterator[Any]:
        try:
            yield from rows(lane, lanes, 1 << 40)  # none is read to its end ahead of time
        finally:
            left.append(lane)

    with iter(Dataloader(from_stream(opened, lanes=4), BATCH, num_workers=workers)) as batches:
        left.clear()  # of the first row, which was read for the spec
        next(batches)
        assert not left
    assert sorted(left) == [0, 1, 2, 3]
    assert batches.get_state()["step"] == 1


def test_a_lane_that_hangs_ends_with_close_and_others_do_not_wait() -> None:
    waiting, hang = threading.Event(), threading.Event()

    def hangs(lane: int, lanes: int) -> Iterator[Any]:
        yield from rows(lane, lanes, 10)
        waiting.set()
        hang.wait(HANG)

    with iter(Dataloader(from_stream(hangs, lanes=4), BATCH, num_workers=3)) as batches:
        for _ in range(5):
            next(batches)
        assert waiting.wait(HANG)
        batches.close()
        with pytest.raises(ClosedError):
            next(batches)
    hang.set()


def lane_of_epoch(lane: int, lanes: int, epoch: int) -> list[int]:
    return [100 * epoch + 10 * lane + row for row in range(3)]


@pytest.mark.parametrize("open_lane", [lane_of_epoch, lambda lane, lanes, epoch=0: lane_of_epoch(lane, lanes, epoch)])
def test_epochs_read_every_lane_again(open_lane: Any) -> None:
    served = [batch.tolist() for batch in batches_of(from_stream(open_lane, lanes=2), 6, num_epochs=2)]
    assert served == [[0, 1, 2, 10, 11, 12], [100, 101, 102, 110, 111, 112]]


def test_an_end_within_a_batch_is_an_error_if_asked() -> None:
    even, uneven = (from_stream(CountedLanes(lengths), lanes=4) for lengths in ([20] * 4, [20, 21, 20, 20]))
    for remainder, last in (("drop", []), ("pad", [1]), ("error", None)):
        assert len(batches_of(even, remainder=remainder)) == 10
        if last is not None:
            masks = [batch.get("mask", np.ones(8, bool)) for batch in batches_of(uneven, remainder=remainder)]
            assert [int(mask.sum()) for mask in masks] == [8] * 10 + last
    with pytest.raises(SourceError, match="lane 0 ended after 20 rows, and the batch of step 10 has only some"):
        batches_of(uneven, remainder="error")


def test_a_lane_that_yields_one_array_again_is_an_error() -> None:
    def open_lane(lane: int, lanes: int) -> Iterator[Any]:
        row, constant = {"x": np.zeros(2)}, np.ones(2)
        for number in range(40):
            row["x"][:] = number
            yield {"x": row["x"], "constant": constant}

    with pytest.raises(LeafError, match=r"lane \d changed row 0 after it had yielded it, so rows overwrite each other"):
        batches_of(from_stream(open_lane, lanes=2))
    steady = from_stream(lambda lane, lanes: (one | {"x": one["x"].copy()} for one in open_lane(lane, lanes)), lanes=2)
    assert len(batches_of(steady)) == 80 // BATCH


def numbered() -> Iterator[Any]:
    yield from ({"x": np.int32(row)} for row in range(64))


def test_bad_arguments() -> None:
    with pytest.raises(ArgumentError, match="lanes=0"):
        from_stream(rows, lanes=0)
    with pytest.raises(ArgumentError, match="can't be called; pass a function of a lane and the number of lanes"):
        from_stream([1, 2])  # type: ignore[arg-type]
    for opener in (numbered, numbered()):
        with pytest.raises(ArgumentError, match=r"function without arguments .*: loadax.as_dataset\(function\)"):
            from_stream(opener)  # type: ignore[arg-type]
    assert batches_of(loadax.as_dataset(numbered))[0]["x"].tolist() == list(range(BATCH))
    with pytest.raises(ArgumentError, match=r"is called as open_lane\(lane, lanes\)"):
        from_stream(lambda lane: [lane])  # type: ignore[misc, arg-type]
    with pytest.raises(ArgumentError, match=r"give its third argument a default, or call it epoch: open_lane\(lane"):
        from_stream(lambda lane, lanes, number: [lane])  # type: ignore[misc, arg-type]
    with pytest.raises(SourceError, match=r"lane 0 of 4 has no rows; pass fewer lanes, each of which has rows: loadax"):
        Dataloader(from_stream(lambda lane, lanes: [], lanes=4), BATCH)
    with pytest.raises(SourceError, match="lane 3 of 4 has no rows"):
        batches_of(from_stream(CountedLanes([9, 9, 9, 0]), lanes=4))
    with pytest.raises(SourceError, match="lane 0 of 4: open_lane returned None; yield rows in it, or return an iter"):
        Dataloader(from_stream(lambda lane, lanes: None, lanes=4), BATCH)  # type: ignore[arg-type, return-value]
    with pytest.raises(SourceError, match="lane 2 of 4: open_lane returned 2; yield rows"):
        batches_of(from_stream(lambda lane, lanes: [1] * 9 if lane != 2 else lane, lanes=4))  # type: ignore[arg-type, return-value]
    with pytest.raises(StreamError, match=r"^write_zarr\(\): a stream has no length"):
        write_zarr(from_stream(rows), "never.zarr")
    with pytest.raises(UnsupportedError, match="worker_type='process'"):
        Dataloader(from_stream(rows), BATCH, worker_type="process")
    with pytest.raises(UnsupportedError, match="keep_on_device"):
        Dataloader(from_stream(rows), BATCH, keep_on_device=True)
    with pytest.raises(ArgumentError, match=r"a batch of 8 rows has none of some of the 128 lanes.*, lanes=8\)$"):
        Dataloader(from_stream(rows), BATCH, remainder="pad")
    Dataloader(from_stream(rows, lanes=8), BATCH, remainder="pad")
    Dataloader(from_stream(rows), BATCH, remainder="pad", num_epochs=None)  # lanes of endless epochs do not end


def test_a_state_that_is_none_is_not_saved() -> None:
    """Some iterators have no state before their first row, or after their last one."""

    class Forgetful(StatefulLane):
        def get_state(self) -> Any:
            return super().get_state() if self._row == 2 else None

    lanes = CountedLanes(stateful=True)
    data = from_stream(lambda lane, _: Forgetful(lanes, lane), lanes=2)
    with Dataloader(data, 4, num_workers=0, shard_index=0, shard_count=1).host_batches() as batches:
        for step in (1, 2, 3):
            next(batches)
            again = batches_of(data, 4, start=batches.get_state(), most=1)[0]["x"]
            assert again.tolist() == [row_of(lane, 2 * step + row) for lane in range(2) for row in range(2)]


NO_STATES = "which is not a list of states by lane; pass a state of"
WRONG_STATES: list[tuple[dict[str, Any], str]] = [
    ({"lanes": [{"4": [0, 0, 0, None]}]}, "lane 4, but the stream has the lanes 0 to 1"),
    ({"lanes": [{"-1": [0, 0, 0, None]}]}, "lane -1, but the stream has the lanes 0 to 1"),
    *[
        ({"lanes": lanes}, NO_STATES)
        for lanes in ("x", [1], [{"0": 3}], *[[{"0": [row, epoch, 0, None]}] for row, epoch in WRONG_PLACES])
    ],
    ({"lanes": [{"1": [10**15, 0, 0, 1]}]}, "the state of lane 1 is at its row 1000000000000000, but the step begins"),
    ({"step": 10**12, "position": 8 * 10**12}, "would have to read .* rows to skip them"),
]


@pytest.mark.parametrize(("change", "match"), WRONG_STATES)
def test_states_of_lanes_that_can_not_be(change: dict[str, Any], match: str) -> None:
    loader = Dataloader(from_stream(CountedLanes(stateful=True), lanes=2), BATCH, num_epochs=None, num_workers=0)
    with iter(loader) as batches:
        next(batches)
        state = batches.get_state()
        for restore in (loader.iterate, batches.set_state):
            with pytest.raises(StateError, match=match):
                next(restore(state | change) or batches)
        batches.set_state(state)
        assert np.asarray(next(batches)["x"]).tolist() == [row_of(lane, row) for lane in (0, 1) for row in range(4, 8)]


def test_states_of_other_lanes_and_steps() -> None:
    kept = Dataloader(from_stream(CountedLanes(stateful=True), lanes=2), BATCH, num_epochs=None)
    with kept.iterate(3) as batches:
        next(batches)
        state = batches.get_state()
    plain = Dataloader(from_stream(CountedLanes(), lanes=2), BATCH, num_epochs=None)
    with plain.iterate(state) as batches, pytest.raises(StateError, match="the state of lane 0 needs set_state"):
        next(batches)
    with plain.iterate(state["step"]) as batches:
        assert np.asarray(next(batches)["x"]).tolist()[:2] == [16, 17]
    with pytest.raises(StateError, match=r"states of the steps \[0, 4\]"):
        kept.iterate([state, kept.iterate().get_state()])
    with pytest.raises(StateError, match="the part `a stream of 4 lanes` differs from the saved run"):
        Dataloader(from_stream(CountedLanes(), lanes=4), BATCH).iterate(state)


def test_state_that_is_not_json() -> None:
    class Odd:
        def __iter__(self) -> "Odd":
            return self

        def __next__(self) -> Any:
            return {"x": np.int32(1)}

        def state_dict(self) -> Any:
            return {"rows": {1, 2}}

        def load_state_dict(self, state: Any) -> None:
            raise AssertionError(state)

    with pytest.raises(StateError, match="lane 0: the state of Odd is not JSON"):
        batches_of(from_stream(lambda lane, lanes: Odd(), lanes=2))


STATES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: (
        st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text() | st.integers() | st.none(), inner)
    ),
    max_leaves=8,
)


@settings(max_examples=40)
@given(STATES)
def test_states_of_lanes_are_copied_as_json_copies_them(state: Any) -> None:
    try:
        expected = json.loads(json.dumps(state))
    except TypeError:
        with pytest.raises(TypeError):
            json_copy(state)
        return
    copied = json_copy(state)
    assert repr(copied) == repr(expected)  # also the types, and the order of keys
    assert copied is not state or not isinstance(state, list | dict)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("remainder", ["drop", "pad", "error"])
def test_a_step_whose_rows_are_all_quarantined_is_not_the_end(workers: int, remainder: str) -> None:
    data = from_stream(lambda lane, lanes: rows(lane, lanes, 6), lanes=2)
    options: Any = {"num_workers": workers, "remainder": remainder, "quarantine": [4, 5, 6, 7]}
    first, middle, last = batches_of(data, 4, **options)
    assert first["x"].tolist() == [[0, 0], [0, 1], [1, 0], [1, 1]]
    assert middle["mask"].tolist() == [False] * 4
    assert last["x"].tolist() == [[0, 4], [0, 5], [1, 4], [1, 5]]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_ctrl_c_while_going_back_to_an_earlier_step(workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lanes that have read on have no states of that step any more; those that are set have."""
    data = from_stream(CountedLanes(stateful=True), lanes=4)
    loader = Dataloader(data, BATCH, shard_index=0, shard_count=1, num_workers=workers, num_epochs=None)
    with loader.host_batches() as batches:
        begin = [next(batches) for _ in range(2)]
        state = batches.get_state()
        expected = [next(batches)["x"].tolist() for _ in range(40)]
        with monkeypatch.context() as interrupted:
            interrupted.setattr(DataIterator, "_begin", _interrupt)
            with pytest.raises(KeyboardInterrupt):
                batches.set_state(state)
        assert batches.step == len(begin)
        assert [next(batches)["x"].tolist() for _ in range(40)] == expected


def _interrupt(*_: Any) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("form", ["generator", "iterator", "behind a generator"])
def test_live_generator_loses_no_row_to_the_probe(form: str, workers: int) -> None:
    live = iter(range(64))
    taken = (np.int32(row) for row in live)
    opened: dict[str, Any] = {
        "generator": lambda lane, lanes: taken,
        "iterator": lambda lane, lanes: live,
        "behind a generator": lambda lane, lanes: (row for row in taken),
    }
    data = from_stream(opened[form], lanes=1).map(lambda row: row + 1)
    got = list(Dataloader(data, 8, num_workers=workers))
    np.testing.assert_array_equal(np.concatenate(got), np.arange(1, 65))


def test_later_passes_open_lanes_again() -> None:
    lanes = CountedLanes((12, 12, 12))
    data = from_stream(lanes, lanes=3)
    first, second = (batches_of(data) for _ in range(2))
    np.testing.assert_equal(first, second)
    assert sorted(lanes.opened) == [0, 0, 1, 1, 2, 2]  # that of the probe is read on


def test_lanes_that_have_ended_or_skip_few_rows_are_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    def open_lane(lane: int, lanes: int) -> Any:
        return iter([{"x": np.int64(lane)} for _ in range(4 if lane % 2 else 40)])

    def loader() -> Any:
        return Dataloader(from_stream(open_lane, lanes=4), 8, num_workers=0, remainder="pad")

    with caplog.at_level("INFO", "loadax"), loader().host_batches() as batches:
        for _ in range(15):
            next(batches)
        assert "skipping" not in caplog.text  # nothing was skipped
        state = json.loads(json.dumps(batches.get_state()))
    with caplog.at_level("INFO", "loadax"), loader().host_batches(state) as batches:
        next(batches)
    told = [record for record in caplog.records if "skipping" in record.message]
    assert [record.levelname for record in told] == ["INFO"] * len(told)
    assert all("of 2 lanes" in record.message for record in told)
    assert told


def test_resumed_later_epoch_skips_rows_of_that_epoch_alone(caplog: pytest.LogCaptureFixture) -> None:
    options: Any = {"shard_index": 0, "shard_count": 1, "num_workers": 0, "num_epochs": 3}
    loader = Dataloader(from_stream(CountedLanes([10, 10]), lanes=2), 4, **options)
    with loader.host_batches() as batches:
        for _ in range(7):
            next(batches)
        state = batches.get_state()
    with caplog.at_level("INFO", "loadax"), loader.host_batches(state) as batches:
        next(batches)
    assert "reading and skipping 8 rows of 2 lanes" in caplog.text  # rows 10 to 13 of each lane


@pytest.mark.parametrize("remainder", ["drop", "pad", "error"])
@pytest.mark.parametrize("door", ["host_batches", "iterate", "iter"])
def test_parts_of_a_stream_that_ends_are_refused_outside_of_a_run(door: str, remainder: Any) -> None:
    """Lanes 0 and 1 have 9 rows, and 2 and 3 have 5: one host would end at step 5, the other at step 9."""
    lengths = [9, 9, 5, 5]

    def open_lane(lane: int, lanes: int) -> Any:
        return iter([{"x": np.float32(row)} for row in range(lengths[lane])])

    lanes = from_stream(open_lane, lanes=4)
    mesh = data_parallel(jax.devices()[:1])
    mixed = mix([lanes, from_arrays({"x": np.zeros(100, np.float32)})], [1, 1])
    for data in (lanes, lanes.map(lambda row: row), mixed):
        part = Dataloader(data, 4, mesh=mesh, shard_index=1, shard_count=2, remainder=remainder, num_workers=0)
        begin = {"host_batches": part.host_batches, "iterate": part.iterate, "iter": part.__iter__}[door]
        with pytest.raises(ArgumentError, match=r"shard_index=1, shard_count=2: this stream ends"):
            begin()
        # As it advises, and where there is one part, or no end.
        endless = Dataloader(data, 4, shard_index=1, shard_count=2, num_epochs=None, num_workers=0)
        whole = Dataloader(data, 4, shard_index=0, shard_count=1, num_workers=0)
        for loader in (endless, whole):
            loader.host_batches().close()
        with endless.host_batches() as batches:
            assert len(list(islice(batches, 30))) == 30
    # Also as it advises: one part alone, to its end.
    for index, steps in enumerate([9, 5]):

        def open_one(lane: int, lanes: int, index: int = index) -> Any:
            return open_lane(2 * index + lane, lanes)

        alone = from_stream(open_one, lanes=2)
        assert len(list(Dataloader(alone, 2, mesh=mesh, num_workers=0))) == steps
