"""Traces of records, finding records, and skipped steps. That `find` inverts `rows` is tested by the laws."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from loadax import Dataloader, Dataset, concat, from_arrays, from_documents, from_npy, from_source, from_tokens, mix
from loadax.errors import ArgumentError, RowIndexError, StateError
from loadax.plan.find import StepPosition
from loadax.protocols import Location
from loadax.sharding import data_parallel


def line(rows: int, start: int = 0) -> Dataset:
    return from_arrays({"x": np.arange(start, start + rows)})


PARTS = {
    "web": concat([line(30).shuffle(1), line(20, 100).shuffle(2)]),
    "code": line(40, 1000).shuffle(3).repeat(2),
    "books": line(9, 2000),
}
ALONE = data_parallel(jax.devices()[:1])
VALUES = {"web/part 0": (0, 30), "web/part 1": (100, 20), "code": (1000, 40), "books": (2000, 9)}  # first, and rows


def loader_of(data: Any, batch_size: Any, **how: Any) -> Dataloader:
    """On one device, which cuts no batch."""
    return Dataloader(data, batch_size, **{"mesh": ALONE, **how})


def mixture(**how: Any) -> Dataset:
    return mix(PARTS, {"web": 3, "code": 2, "books": 1}, seed=4, **how)


# trace


def test_trace_names_nested_parts_and_find_inverts_it() -> None:
    loader = loader_of(mixture(stop="all"), 8, num_epochs=2)
    found: dict[tuple[str, int], list[StepPosition]] = {}
    epochs: dict[str, set[int]] = {}
    for step in range(len(loader)):
        trace = loader.trace(step)
        assert [record.id for record in trace] == loader.rows(step).tolist()
        assert [VALUES[record.dataset][0] + record.row for record in trace] == loader.host_batch(step)["x"].tolist()
        for record in trace:
            assert trace[record.position] == record
            epochs.setdefault(record.dataset, set()).add(record.epoch)
            found.setdefault((record.dataset, record.row), []).append(StepPosition(step, record.position))
    # Each part has its own epochs. Of 480 positions, 240, 160 and 80 are theirs; one epoch repeats a part twice.
    last = {name: max(numbers) for name, numbers in epochs.items()}
    assert last == {"web/part 0": 4, "web/part 1": 4, "code": 3, "books": 8}
    for name, (_, rows) in VALUES.items():
        for row in range(rows):
            assert loader.find(row, name) == found.get((name, row), [])
    assert loader.find(33, "web") == loader.find(3, "web/part 1")
    assert loader.find(53) == loader.find(3, "code")


def test_positions_may_be_chosen() -> None:
    loader = loader_of(mixture(), 8)
    whole, some = loader.trace(2), loader.trace(2, [5, 0, 5])
    assert list(some) == [whole[5], whole[0], whole[5]]
    assert some[0] == whole[0]
    assert len(loader.trace(2, [])) == 0
    with pytest.raises(RowIndexError, match=r"position 3 is not in this trace of 3 positions; pass one"):
        some[3]


def test_padding_says_so() -> None:
    trace = loader_of(line(10), 8, remainder="pad").trace(1)
    assert [record.padding for record in trace] == [False] * 2 + [True] * 6
    assert trace[7][:5] == (7, "", -1, 1 - 1, -1)
    assert repr(trace).splitlines()[4] == "2         padding"


def test_files_are_named_when_the_source_knows_them(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(40, dtype=np.int32))
    np.arange(100, dtype=np.uint16).tofile(tmp_path / "c.bin")
    loader = loader_of(from_npy(tmp_path / "x.npy").shuffle(1), 4)
    for record in loader.trace(3):
        assert record.where is not None
        (place,) = record.where
        assert place.first is not None
        assert (tmp_path / "x.npy").read_bytes()[place.first :][:4] == np.int32(record.row).tobytes()
    tokens = loader_of(from_tokens(tmp_path / "c.bin", 8, dtype="uint16"), 4)
    assert tokens.trace(1)[2].where == (Location(str(tmp_path / "c.bin"), 96, 113),)
    assert loader_of(line(8), 4).trace(0)[0].where is None
    assert loader_of(from_source(list(range(8))), 4).trace(0)[0].where is None


def test_packed_rows_have_documents() -> None:
    data = from_documents(np.arange(10, 30), offsets=[0, 3, 3, 7, 10, 20])
    record = loader_of(mix({"packs": data.pack(5)}, [1]), 2).trace(0)[1]
    assert record.documents is not None
    assert [tuple(part) for part in record.documents] == [(2, 2, 2, 0), (3, 0, 3, 2)]
    assert json.loads(json.dumps(record.to_dict()))["documents"][0] == {"row": 2, "start": 2, "length": 2, "column": 0}


def test_trace_as_table_and_json(tmp_path: Path) -> None:
    for name in "ab":
        np.save(tmp_path / f"{name}.npy", np.arange(40, dtype=np.int64))
    data = mix({"web": from_npy(tmp_path / "a.npy"), "code": np.arange(40)}, [3, 1])
    trace = loader_of(data, 16).trace(0)
    lines = repr(trace).splitlines()
    assert lines[:2] == ["step 0", "position  dataset  row  epoch  where"]
    assert lines[2] == f"0         web      0    0      {tmp_path}/a.npy bytes 128 to 135"
    assert sum(text.endswith("code     0    0      unknown") for text in lines) == 1
    assert lines[12:] == ["… and 6 more"]
    where = [{"file": f"{tmp_path}/a.npy", "first": 128, "last": 135, "part": ""}]
    first = {"position": 0, "dataset": "web", "row": 0, "epoch": 0, "id": 0, "where": where, "documents": None}
    assert json.loads(json.dumps(trace[0].to_dict())) == first
    both = from_npy({"a": tmp_path / "a.npy", "b": tmp_path / "b.npy"})
    assert repr(loader_of(both, 4).trace(0)).splitlines()[2].endswith("a.npy bytes 128 to 135 ['a'] and 1 more")


# find


def test_find_looks_where_it_is_told() -> None:
    loader = loader_of(line(20).shuffle(1), 6, num_epochs=None)
    everything = [
        StepPosition(step, at) for step in range(30) for at in np.flatnonzero(loader.rows(step) == 7).tolist()
    ]
    assert loader.find(7, epochs=range(10)) == everything
    assert loader.find(7, epochs=4) == [place for place in everything if place.step // 3 == 4]
    assert loader.find(7, steps=range(5, 12)) == [place for place in everything if 5 <= place.step < 12]
    assert loader.find(7, steps=everything[0].step) == everything[:1]
    finite = loader_of(line(20).shuffle(1), 6, num_epochs=10)
    assert finite.find(7) == finite.find(7, epochs=range(3000)) == finite.find(7, steps=range(3000)) == everything
    assert finite.find(7, epochs=10) == finite.find(7, steps=range(40, 50)) == finite.find(7, epochs=range(0)) == []
    never = loader_of(mixture(stop="never"), 8)
    (place, *_) = never.find(3, "books", steps=range(100))
    assert never.trace(place.step)[place.position][1:3] == ("books", 3)


LINE = loader_of(line(8), 4)
ENDLESS = loader_of(line(8), 4, num_epochs=None)


@pytest.mark.parametrize(
    ("ask", "error", "message"),
    [
        (lambda: LINE.find(8), RowIndexError, "row 8 is out of range: pass a row of at least 0 and below 8"),
        (lambda: LINE.find(-1), RowIndexError, "row -1 is out of range"),
        (lambda: LINE.find(0, "web"), ArgumentError, "it is neither mixed nor concatenated, so leave dataset= out"),
        (lambda: LINE.find(0, epochs=1, steps=2), ArgumentError, "epochs=1 and steps=2: pass one of them"),
        (lambda: LINE.find(0, epochs=-1), ArgumentError, "epochs=-1: pass an int, or a range of consecutive ints from"),
        (lambda: LINE.find(0, steps=range(0, 9, 2)), ArgumentError, r"steps=range\(0, 9, 2\): pass an int, or a range"),
        (
            lambda: loader_of(mixture(), 4).find(9, "books"),
            RowIndexError,
            "row 9 of 'books' is out of range: .* below 9",
        ),
        (
            lambda: loader_of(mixture(), 4).find(0, "part 0"),
            ArgumentError,
            r"dataset='part 0' is not a part .*: the parts are \['books', 'code', 'web', 'web/part 0', 'web/part 1'\]",
        ),
        (lambda: ENDLESS.find(0), ArgumentError, r"the run is infinite: pass steps=range\(start, stop\)"),
        (lambda: loader_of(mixture(stop="never"), 4).find(0), ArgumentError, "the run is infinite: pass steps="),
        (lambda: LINE.trace(2), RowIndexError, "step 2 is out of range: steps are at least 0 and below 2"),
        (lambda: LINE.trace(0, [4]), RowIndexError, r"positions=\[4\]: pass ints of 0 or more, below 4, the batch"),
        (lambda: LINE.trace(0, [-1]), RowIndexError, r"positions=\[-1\]"),
        (lambda: LINE.trace(0, [0.5]), RowIndexError, r"positions=\[0\.5\]"),
    ],
)
def test_unsuitable_arguments_of_find_and_trace(ask: Callable[[], Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        ask()


# skip


def test_skip_takes_steps_in_many_forms() -> None:
    loader = loader_of(line(64).shuffle(5), 8, num_epochs=2)

    def steps_of(shorter: Dataloader) -> list[int]:
        kept = {tuple(loader.rows(step)): step for step in range(16)}
        return [kept[tuple(shorter.rows(step))] for step in range(len(shorter))]

    shorter = loader.skip([3, range(5, 7), slice(-6, -4)])
    assert steps_of(shorter) == [step for step in range(16) if step not in (3, 5, 6, 10, 11)]
    assert (len(loader), loader.steps_per_epoch, shorter.steps_per_epoch) == (16, 8, 8)
    assert repr(shorter).endswith("batch_size=8, 11 steps)")
    # Steps of a shorter run are numbered without the skipped ones.
    assert steps_of(shorter.skip({0, 3}).skip(np.arange(2))) == [7, 8, 9, 12, 13, 14, 15]
    assert steps_of(loader.skip([]).skip(range(0)).skip(slice(0, 0)).skip(range(6, 2, -2))) == [
        step for step in range(16) if step not in (4, 6)
    ]


def test_epochs_are_as_long_as_what_is_left_of_them() -> None:
    loader = loader_of(line(20), 4, num_epochs=4).skip([1, 2, *range(5, 10), 19])
    found = [(epoch.number, len(epoch), [int(batch["x"][0]) for batch in epoch]) for epoch in loader.epochs()]
    assert found == [(0, 3, [0, 12, 16]), (2, 5, [0, 4, 8, 12, 16]), (3, 4, [0, 4, 8, 12])]
    left = [(epoch.number, len(epoch), epoch.step, int(next(epoch)["x"][0])) for epoch in loader.epochs(start=1)]
    assert left == [(0, 2, 1, 12), (2, 5, 3, 0), (3, 4, 8, 0)]
    with loader.iterate(3) as batches:
        assert batches.epoch == 2


def states(loader: Dataloader, step: int) -> dict[str, Any]:
    with loader.iterate(step) as batches:
        found: dict[str, Any] = json.loads(json.dumps(batches.get_state()))
    return found


def values(loader: Dataloader, start: Any, count: int) -> list[list[int]]:
    with loader.iterate(start) as batches:
        return [np.asarray(next(batches)["x"]).tolist() for _ in range(count)]


def test_what_will_be_skipped_may_be_changed_and_what_was_skipped_may_not() -> None:
    loader = loader_of(line(400).shuffle(3), 4)
    careful = loader.skip(range(20, 30))
    before, after = states(careful, 20), states(careful, 21)
    assert (before["step"], before["position"], before.get("skipped")) == (20, 80, None)
    assert (after["step"], after["position"], after["skipped"]) == (21, 124, [[0, 80, 0, 120]])
    # The step after the last batch is not decided yet.
    for other, step in ((loader, 20), (careful, 30), (loader.skip(range(20, 25)), 25), (loader.skip([20, 50]), 21)):
        assert values(other, before, 1) == [loader.rows(step).tolist()]
    # Later ones may be left out as well, also of a run that goes on.
    for other in (careful, loader.skip([*range(20, 30), *range(31, 40)]), careful.skip(range(21, 30))):
        with other.iterate(after) as batches:
            assert batches.step == 21
    assert values(careful.skip(range(21, 30)), after, 1) == [loader.rows(40).tolist()]
    for other in (loader, loader.skip(range(20, 29)), loader.skip([5, *range(20, 30)])):
        message = r"before step 31, the saved run skipped steps 20 to 29, .*; pass the state to loader.skip\("
        with pytest.raises(StateError, match=message):
            other.iterate(after)
    with pytest.raises(StateError, match=r"skipped none, .* only this loader skips step 20, whose first row"):
        careful.iterate(states(loader, 21))
    with careful.iterate(5) as batches:
        batches.set_state(after)
        assert batches.get_state() == after


def test_a_state_of_a_run_with_skips_is_good_for_other_batch_sizes() -> None:
    small = loader_of(line(400).shuffle(3), 4, num_epochs=2).skip(range(90, 110))
    large = loader_of(line(400).shuffle(3), 8, num_epochs=2).skip(range(45, 55))
    state = states(small, 100)
    assert state["skipped"] == [[0, 360, 1, 40]]
    with large.iterate(state) as batches:
        assert batches.step == 50
        assert np.asarray(next(batches)["x"]).tolist() == [*small.rows(100), *small.rows(101)]
    with pytest.raises(StateError, match=r"skipped steps 45 to 54, and .* only this loader skips step 44, whose first"):
        loader_of(line(400).shuffle(3), 8, num_epochs=2).skip(range(44, 54)).iterate(state)


def test_other_skips_name_the_row_with_its_dataset_and_file(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(80))
    web = from_npy({"x": str(tmp_path / "x.npy")})
    data = mix({"web": web, "code": line(80)}, [1, 1], seed=0)
    careful = loader_of(data, 4).skip([3, 7, *range(9, 12)])
    with pytest.raises(StateError) as caught:
        loader_of(data, 4).iterate(states(careful, 8))
    (record,) = [one for one in loader_of(data, 4).trace(3) if one.position == 0]
    file = f" ({tmp_path}/x.npy)" if record.dataset == "web" else ""
    assert f"step 3, whose first row is row {record.row} of {record.dataset!r}{file}, of epoch 0" in str(caught.value)
    assert "skipped steps 3, 7, 9 to 11, and" in str(caught.value)
    assert ".skip([range(3, 4), range(7, 8), range(9, 12)])" in str(caught.value)


@pytest.mark.parametrize("skipped", [7, [[0, 4]], [[0, 4, 0, "8"]], [[0, 6, 0, 8]], [[0, 4, 0, 7]], [[0, 400, 0, 402]]])
def test_skipped_positions_that_are_not_steps_are_refused(skipped: Any) -> None:
    loader = loader_of(line(400), 4)
    state = {**states(loader, 9), "skipped": skipped}
    with pytest.raises(StateError, match=r"'skipped' is .*, which are not steps of batch_size=4; pass the batch_size"):
        loader.iterate(state)


def test_endless_runs_and_schedules_skip_too() -> None:
    endless = loader_of(line(20).shuffle(1), 4, num_epochs=None)
    shorter = endless.skip(slice(2, 10, 2)).skip(range(1000, 1001))
    assert [shorter.rows(step).tolist() for step in (2, 6, 999, 1000)] == [
        endless.rows(step).tolist() for step in (3, 10, 1003, 1005)
    ]
    scheduled = loader_of(line(120), {0: 4, 5: 8, 10: 2})
    without = scheduled.skip(range(3, 10))
    assert list(without.specs) == [0, 3]
    assert [batch["x"].shape[0] for batch in without.iterate(1)][:4] == [4, 4, 2, 2]
    assert list(scheduled.skip(range(3, 7)).specs) == [0, 3, 6]
    assert list(scheduled.skip(slice(10, None)).specs) == [0, 5]


@pytest.mark.parametrize(
    ("loader", "steps", "message"),
    [
        (LINE, 2, "step 2 can't be skipped: steps are at least 0 and below 2"),
        (LINE, [0, range(1, 5)], "step 4 can't be skipped"),
        (LINE, -1, "step -1 can't be skipped"),
        (LINE, slice(1, 3), r"steps=slice\(1, 3, None\): the run has only 2 steps"),
        (LINE, range(2), r"steps=range\(0, 2\) skips all steps of the run; keep at least one"),
        (LINE, "3", "steps='3': pass an int, a range, a slice, or a list or set of these"),
        (LINE, [1.5], r"steps=1\.5: pass an int"),
        (LINE, True, "steps=True: pass an int"),
        (ENDLESS, slice(5, None), "the run is endless; pass a stop"),
        (ENDLESS, slice(-5, 3), "the run is endless; pass a stop"),
        (ENDLESS, -2, "step -2 can't be skipped: steps are at least 0$"),
    ],
)
def test_steps_that_cannot_be_skipped(loader: Dataloader, steps: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        loader.skip(steps)
