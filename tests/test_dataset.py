"""Datasets: the doors through which data comes in, the verbs, and what they refuse."""

import dataclasses
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from loadax import (
    Dataloader,
    Dataset,
    concat,
    from_arrays,
    from_source,
    from_zarr,
    mix,
)
from loadax.core.tree import flatten
from loadax.errors import ArgumentError, RowIndexError, SourceError, StreamError
from loadax.io import as_dataset
from loadax.protocols import ArraySpec
from loadax.seeds import ORDER_VERSION
from loadax.sharding import data_parallel
from tests.sources.chunked import ChunkedSource

VALUES = np.arange(10) * 10


def data() -> Dataset:
    return from_arrays({"x": VALUES})


def values(dataset: Dataset, epoch: int = 0) -> list[int]:
    read: Any = dataset.read(range(len(dataset)), epoch)
    return list((read["x"] if isinstance(read, dict) else read).tolist())


def test_one_example_and_a_batch_of_them() -> None:
    assert data()[3] == {"x": 30}
    assert data()[-1] == {"x": 90}
    assert data()[np.int32(3)] == {"x": 30}
    assert data().read([3, 0, 3])["x"].tolist() == [30, 0, 30]
    assert data().read(np.array([[1, 2], [3, 4]], np.uint8))["x"].tolist() == [10, 20, 30, 40]
    assert data().read([])["x"].shape == (0,)
    assert data().read(4)["x"].tolist() == [40]
    assert [example["x"] for example in data()] == VALUES.tolist()
    assert len(data()) == 10


def test_verbs_make_new_datasets_and_leave_the_old_as_they_were() -> None:
    before = data()
    old = values(before)
    for after in (before.shuffle(0), before[::2], before.repeat(2), *before.split(0.5), before.map(lambda row: row)):
        assert after is not before
    assert values(before) == old
    with pytest.raises(dataclasses.FrozenInstanceError):
        before.maps = ()


def test_what_has_no_rows_is_shuffled_without_looking_at_one() -> None:
    source = ChunkedSource({"x": np.arange(8.0)}, 4)
    source.spec = None
    empty = from_source(source)[:0].map(lambda row: row)
    for shuffled in (empty.shuffle(0), empty.shuffle(0, block="chunks"), empty.shuffle(0, block=2)):
        assert len(shuffled) == 0


def test_split_by_counts_and_into_parts() -> None:
    large = from_arrays(np.arange(103))
    assert [len(part) for part in large.split([80, 13, 10])] == [80, 13, 10]
    assert [len(part) for part in large.split(5)] == [21, 21, 21, 20, 20]
    folds = large.shuffle(3).split(4, seed=7)
    assert sorted(value for fold in folds for value in values(fold)) == list(range(103))
    assert values(large.split(np.array([53, 50]).tolist())[0]) == values(large.split((53, 50))[0])
    described = [part.order_facts for part in (*large.split([53, 50]), *large.split([53, 50], seed=1), *large.split(2))]
    assert len({json.dumps(part) for part in described}) == 6
    assert repr(large.split([53, 50])[1]).endswith(".split([53, 50], seed=0, part 1, 50 rows))")


def test_the_index_of_a_row_is_the_sources_and_stays_in_every_order_and_epoch() -> None:
    def beside(value: Any, row: int) -> Any:
        assert type(row) is int
        return value * 100 + row

    def beside_all(batch: Any, rows: Any) -> Any:
        assert rows.dtype == np.int64
        result = batch * 100 + rows
        rows[:] = -1
        return result

    plain = from_arrays(VALUES)
    for indexed in (plain.map(beside, with_index=True), plain.map_batch(beside_all, with_index=True)):
        expected = [value * 100 + row for row, value in enumerate(VALUES.tolist())]
        assert values(indexed) == expected
        for epoch in (0, 3):
            assert sorted(values(indexed.shuffle(0), epoch)) == expected
        assert values(indexed[::-2]) == expected[::-2]
        assert values(indexed.filter(lambda value: value > 5500)) == expected[6:]
        assert values(concat([indexed, indexed])) == expected * 2
    joined = concat([plain, plain]).map(beside, with_index=True)
    assert [value % 100 for value in values(joined)] == list(range(20))


def test_a_map_may_take_the_epoch() -> None:
    def beside(value: Any, epoch: int) -> Any:
        assert type(epoch) is int
        return value * 100 + epoch

    def beside_all(batch: Any, epochs: Any) -> Any:
        assert epochs.dtype == np.int64
        result = batch * 100 + epochs
        epochs[:] = -1
        return result

    plain = from_arrays(VALUES)
    for mapped in (plain.map(beside, with_epoch=True), plain.map_batch(beside_all, with_epoch=True)):
        for epoch in (0, 3):
            assert values(mapped, epoch) == [value * 100 + epoch for value in VALUES.tolist()]
        own = [value % 100 for value in values(mapped.repeat(3), 1)]
        assert own == [epoch for epoch in (3, 4, 5) for _ in VALUES]
        mixed = mix({"a": mapped[:3], "b": mapped}, [1, 1], stop="all")
        begun = [value % 100 for value in values(mixed, 0) if value // 1000 < 3]  # a's rows are read again and again
        assert begun[:3] == [0, 0, 0]
        assert max(begun) >= 2
        draws = mapped.sample(np.ones(len(VALUES)), size=4)
        assert [value % 100 for value in values(draws, 2)] == [8, 9, 10, 11]  # epoch * size + position
        flat = plain.flat_map(lambda value, epoch: [value, value + epoch], 2, with_epoch=True)
        assert values(flat, 5)[1::2] == [value + 5 for value in VALUES.tolist()]


def test_the_epoch_comes_between_the_row_and_the_generator() -> None:
    def draw(value: Any, row: int, epoch: int, rng: np.random.Generator) -> Any:
        return value * 0 + row + 100 * epoch + rng.random()

    def draw_all(batch: Any, rows: Any, epochs: Any, rngs: Any) -> Any:
        return batch * 0 + rows + 100 * epochs + [rng.random() for rng in rngs]

    plain, options = from_arrays(VALUES), {"rng": True, "with_index": True, "with_epoch": True}
    one = plain.map(draw, **options)
    assert values(one, 2) == values(plain.map_batch(draw_all, **options), 2)
    assert repr(one).endswith(", rng=True, with_index=True, with_epoch=True))")
    names = ("with_index", "with_epoch")
    made = [plain.map(lambda value, _: value, **{name: True}).order_facts for name in names]
    assert made[0] != made[1]


@pytest.mark.parametrize(
    "verb",
    [
        lambda ds: ds.filter(bool),
        lambda ds: ds.split_by(int, 0.5),
        lambda ds: ds.map(lambda value: value[None]).pack(4),
        lambda ds: ds.cache("nowhere"),
        lambda ds: Dataloader(ds, 4, keep_on_device=True),
    ],
)
def test_what_reads_rows_once_refuses_maps_of_the_epoch(verb: Callable[[Dataset], Any]) -> None:
    with pytest.raises(ArgumentError, match="with_epoch=True"):
        verb(from_arrays(VALUES).map(lambda value, epoch: value + epoch, with_epoch=True))
    joined = concat([from_arrays(VALUES).map(lambda value, epoch: value + epoch, with_epoch=True), VALUES])
    with pytest.raises(ArgumentError, match="with_epoch=True"):
        verb(joined)


def test_streams_pass_the_epoch_of_maps_before_them() -> None:
    data = from_arrays(VALUES)
    lanes = data.map(_add_epoch, with_epoch=True).to_stream(lanes=2)
    loader = Dataloader(lanes, 10, num_epochs=3, mesh=data_parallel(jax.devices()[:1]))
    assert [(batch % 100).tolist() for batch in loader] == [[epoch] * 10 for epoch in range(3)]
    for mapped in (data.to_stream(lanes=2).map, data.to_stream(lanes=2).map_batch):
        with pytest.raises(StreamError, match=r"^with_epoch=True: .*; map before to_stream\(\), or in the lanes of"):
            mapped(_add_epoch, with_epoch=True)


def _add_epoch(value: Any, epoch: int) -> Any:
    return value * 100 + epoch


@pytest.mark.processes
def test_worker_processes_pass_the_epoch_after_a_resume() -> None:
    data = from_arrays(VALUES).shuffle(0).map(_add_epoch, with_epoch=True)
    loader = Dataloader(data, 8, num_epochs=4, mesh=data_parallel(jax.devices()[:1]))
    with loader.iterate() as batches:
        want = [batch.tolist() for batch in batches]
    again = Dataloader(
        data, 8, num_epochs=4, mesh=data_parallel(jax.devices()[:1]), num_workers=1, worker_type="process"
    )
    with again.iterate(2) as batches:
        assert [batch.tolist() for batch in batches] == want[2:]
    assert {value % 100 for batch in want for value in batch} == {0, 1, 2, 3}


def test_the_index_comes_before_the_generator() -> None:
    def draw(value: Any, row: int, rng: np.random.Generator) -> Any:
        return value * 0 + row + rng.random()

    def draw_all(batch: Any, rows: Any, rngs: Any) -> Any:
        return batch * 0 + rows + [rng.random() for rng in rngs]

    plain = from_arrays(VALUES)
    one = plain.map(draw, rng=True, with_index=True)
    assert values(one, 2) == values(plain.map_batch(draw_all, rng=True, with_index=True), 2)
    assert [int(value) for value in values(one.shuffle(0), 1)] == values(plain.shuffle(0).map(lambda v: v // 10), 1)
    assert repr(one).endswith(", rng=True, with_index=True))")


def test_spec_of_a_map_may_be_stated_or_found() -> None:
    assert data().map(lambda row: row["x"] * 1.5).spec == ArraySpec((), np.dtype(float))
    stated = {"y": np.zeros(3, np.float32)}
    assert data().map(lambda row: row, spec=stated).spec == {"y": ArraySpec((3,), np.dtype(np.float32))}
    with pytest.raises(ArgumentError, match=r"spec\['y'\] is 3: pass an object with a shape and a dtype"):
        data().map(lambda row: row, spec={"y": 3})


@pytest.mark.parametrize(
    "given",
    [
        {"x": VALUES},
        VALUES,
        (VALUES,),
        [{"x": int(value)} for value in VALUES],
        data(),
        data().source,
        data().shuffle(0),
    ],
)
def test_what_stands_for_a_dataset(given: Any) -> None:
    dataset = as_dataset(given)
    assert isinstance(dataset, Dataset)
    assert len(dataset) == 10
    assert concat([given]).read([0, 1]) is not None


def test_a_trillion_rows_are_no_trouble() -> None:
    class Endless:
        spec = np.zeros((), np.int64)

        def __len__(self) -> int:
            return 10**12

        def read(self, rows: Any) -> Any:
            return np.asarray(rows)

    endless = from_source(Endless())
    for dataset in (endless.shuffle(0), endless.shuffle(0, block=1024), endless[::-3].shuffle(1)[5:].repeat(2)):
        read = dataset.read([0, 10**9, len(dataset) - 1], epoch=10**6)
        assert len(set(read.tolist())) == 3
        assert 0 <= read.min() <= read.max() < 10**12
    assert endless[::-1][0] == 10**12 - 1


def test_a_dataset_tells_what_it_is() -> None:
    text = repr(data().shuffle(3)[:5].repeat(2).map(values).map_batch(divmod, rng=True))
    fixed = "[rows fixed: those of epoch 0][0:5][another order in each later epoch]"
    assert text.startswith(f"Dataset(10 rows of arrays in memory.shuffle(3){fixed}.repeat(2).map(values (")
    assert text.endswith(".map_batch(divmod, rng=True))")
    assert repr(from_source([1, 2])) == "Dataset(2 rows of list object)"
    assert "concatenation of 2" in repr(concat([data(), data()]))

    class Mine:
        spec = np.zeros(())

        def __len__(self) -> int:
            return 3

        def read(self, rows: Any) -> Any:
            return np.zeros(len(rows))

    assert repr(from_source(Mine())) == "Dataset(3 rows of Mine)"


@pytest.mark.parametrize("position", [10, -1, 2**62])
def test_a_position_that_is_not_there(position: int) -> None:
    with pytest.raises(
        RowIndexError, match=rf"position {position} is out of range: positions are at least 0 and below 10"
    ):
        data().read([0, position])


@pytest.mark.parametrize("position", [10, -11])
def test_an_index_that_is_not_there(position: int) -> None:
    with pytest.raises(IndexError, match=rf"position {position} is out of range for a dataset of length 10"):
        data()[position]
    with pytest.raises(RowIndexError, match="position 0 is out of range for a dataset of length 0"):
        data()[:0][0]


@pytest.mark.parametrize(
    ("positions", "kind"), [([1.5], "float64"), (np.ones(10, bool), "bool"), (["a"], "<U1"), ([None], "object")]
)
def test_positions_that_are_no_integers(positions: Any, kind: str) -> None:
    with pytest.raises(
        RowIndexError, match=rf"positions are {kind}; pass integers \(for a mask: numpy\.flatnonzero\(mask\)\)"
    ):
        data().read(positions)


@pytest.mark.parametrize(
    ("verb", "message"),
    [
        (
            lambda ds: ds["x"],
            r"index='x': pass a position, an int; a leaf of its example is data\[0\]\['name'\]",
        ),
        (lambda ds: ds[True], r"index=True: pass a position, an int"),
        (lambda ds: ds.shuffle(None), r"seed=None: pass an int"),
        (
            lambda ds: ds.shuffle(0, window=2),
            r"window=2 needs block=, the number of rows of a block; pass block= as well",
        ),
        (lambda ds: ds.split(0), r"fraction=0: pass a number between 0 and 1, the fraction in the first part"),
        (
            lambda ds: ds.split(1),
            r"fraction=1: pass a number between .*; a number of equal parts, 2 or more; or a list of",
        ),
        (lambda ds: ds.split([]), r"fraction=\[\]: pass a number between"),
        (lambda ds: ds.split([9, 0, 1]), r"fraction\[1\]=0: pass a number, at least 1"),
        (lambda ds: ds.split([0.8, 0.2]), r"fraction\[0\]=0\.8: pass .* for fractions, split twice: first with 0.8"),
        (lambda ds: ds.split([9, 2]), r"fraction=\[9, 2\]: the counts add up to 11, and the dataset has 10 rows; pass"),
        (lambda ds: ds.split(11), r"fraction=11: 11 parts of 10 rows would leave some empty; pass at most 10"),
        (
            lambda ds: ds[:1].split(2),
            r"fraction=2: 2 parts of 1 row would leave some empty; split a dataset of 2 or more",
        ),
        (lambda ds: ds.shuffle(0).subset_per_epoch(range(3)).split([2, 1]), r"split\(\) after \[0:3\] of a shuffle"),
        (lambda ds: ds.split(float("nan")), r"fraction=nan: pass a number between 0 and 1"),
        (lambda ds: ds.shuffle(0).subset_per_epoch(range(3)).split(0.5), r"split\(\) after \[0:3\] of a shuffle"),
        (lambda ds: concat([]), r"concat\(\) got no datasets; pass at least one"),
        (lambda ds: ds.map(3), r"fn=3 can't be called; pass a function of an example"),
        (lambda ds: ds.map(divmod, rng=True, seed=None), r"seed=None: pass an int"),
        (
            lambda ds: ds.map(divmod),
            r"fn=divmod has the arguments .*, but is called as fn\(example\); .*True passes its row, with_epoch",
        ),
        (
            lambda ds: ds.map(len, rng=True),
            r"fn\(example, rng\); pass a function of an example and a generator; with_index",
        ),
        (
            lambda ds: ds.map_batch(divmod),
            r"fn\(batch\); pass .*True passes their rows, with_epoch=True their epochs, and rng=True a list of gen",
        ),
        (lambda ds: ds.map_batch(len, rng=True), r"fn\(batch, rng\); pass .* of a batch and a list of generators;"),
        (lambda ds: ds.map(divmod, True, with_index=True), r"an example and its row and a generator"),
        (
            lambda ds: ds.map_batch(divmod, with_index=True, elementwise=True),
            r"elementwise=True with with_index=True: such a function sees elements alone; choose one",
        ),
        (
            lambda ds: ds.map_batch(divmod, with_epoch=True, elementwise=True),
            r"elementwise=True with with_epoch=True: such a function sees elements alone; choose one",
        ),
        (lambda ds: ds.map(abs, with_epoch=True), r"fn\(example, epoch\); pass a function of an example and its epoch"),
        (lambda ds: ds.map_batch(lambda a, *, b: a), r"the arguments \(a, \*, b\), but is called as fn\(batch\); pass"),
        (lambda ds: ds.filter(lambda a, b: True), r"the arguments \(a, b\), but is called as fn\(example\); pass"),
        (
            lambda ds: ds.split_by(divmod, 0.5),
            r"key=divmod has the arguments .*, but is called as key\(example\);",
        ),
        (lambda ds: ds.map(len, seed=3), r"seed=3 is for random generators; leave it out, or pass"),
        (lambda ds: ds.map_batch(len, seed=-1), r"seed=-1 is .*, or pass rng=True as well$"),
        (
            lambda ds: ds.map_batch(len, rng=True, elementwise=True),
            r"elementwise=True with rng=True: .*sees elements alone; choose one",
        ),
    ],
)
def test_what_verbs_refuse(verb: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        verb(data())


class Lookup(dict[str, Any]):
    """What a map closes over without its contents being told apart."""


class TestCache:
    """The result of a costly map, written once and read from then on."""

    def counted(self, factor: int = 2, rows: Any = VALUES) -> tuple[Dataset, list[int]]:
        """A dataset with a map, and the rows that the map has seen."""
        seen: list[int] = []
        told = threading.Event()  # counts by its type in the fingerprint of the function, unlike a list
        vars(told)["tell"] = seen.append

        def scale(row: Any) -> Any:
            vars(told)["tell"](int(row["x"]))
            return {"x": row["x"] * factor, "deep": {"y": np.full((2, 3), row["x"], np.float32)}}

        return from_arrays({"x": rows}).map(scale), seen

    def test_is_written_once_and_read_from_then_on(self, tmp_path: Path) -> None:
        first, seen = self.counted()
        cached = first.cache(tmp_path / "c", progress=False)
        assert sorted(seen) == [0, 0, *VALUES.tolist()]  # the first one twice more, which shows the spec
        before = {file: file.stat().st_mtime_ns for file in tmp_path.rglob("*") if file.is_file()}
        seen.clear()
        for dataset in (cached, first.cache(tmp_path / "c"), self.counted()[0].cache(f"{tmp_path}/c", progress=False)):
            seen.clear()
            assert dataset.spec == first.spec
            read = dataset.read(range(10))
            assert read["x"].tolist() == (VALUES * 2).tolist()
            np.testing.assert_array_equal(read["deep"]["y"], np.broadcast_to(VALUES[:, None, None], (10, 2, 3)))
            assert dataset.maps == ()
            assert seen == []
        assert before == {file: file.stat().st_mtime_ns for file in tmp_path.rglob("*") if file.is_file()}
        assert values(cached.shuffle(1)[:3]) == (np.array(values(data().shuffle(1)[:3])) * 2).tolist()

    @pytest.mark.parametrize(
        "tree",
        [
            VALUES,
            np.arange(20, dtype=np.float16).reshape(10, 2),
            (VALUES, VALUES * 1.5),
            {"b": VALUES, "a": (VALUES > 3, [VALUES + 1, {"c": VALUES + 2}])},
        ],
    )
    def test_examples_come_back_as_they_were(self, tree: Any, tmp_path: Path) -> None:
        before = from_arrays(tree)
        for _ in range(2):
            after = before.cache(tmp_path / "c", progress=False)
            assert after.spec == before.spec
            was, now = before.read([9, 0, 3]), after.read([9, 0, 3])
            assert flatten(was)[1] == flatten(now)[1]
            for one, other in zip(flatten(was)[0], flatten(now)[0], strict=True):
                assert one.dtype == other.dtype
                np.testing.assert_array_equal(one, other)

    @pytest.mark.parametrize(
        ("other", "problem"),
        [
            (
                lambda self: self.counted(factor=3)[0],
                r"data\.functions = \[\".*scale [\w+]{33}\"\], but now it is \[\".*scale [\w+]{33}\"\]",
            ),
            (lambda self: self.counted()[0].map(lambda row: row), r"data\.maps = .*, but now it is "),
            (lambda self: self.counted(rows=VALUES + 1)[0], r"data\.sample = \"\w{16}\", but now it is \"\w{16}\""),
            (lambda self: self.counted(rows=VALUES[:9])[0], r"rows = 10, but now it is 9"),
            (
                lambda self: self.counted(rows=VALUES.astype(np.int32))[0],
                r"arrays\.x\.dtype = \"int64\", but now it is \"int32\"",
            ),
            (lambda self: self.counted()[0][::-1], r"data\.order = .*, but now it is "),
        ],
        ids=["another function", "another map", "other data", "fewer rows", "another dtype", "another order"],
    )
    def test_of_something_else_is_refused_and_kept(self, other: Any, problem: str, tmp_path: Path) -> None:
        self.counted()[0].cache(tmp_path / "c", progress=False)
        with pytest.raises(
            ArgumentError,
            match=rf"c was started with {problem}.*; resume with the same data and arguments, "
            r"or pass overwrite=True to start over",
        ):
            other(self).cache(tmp_path / "c", progress=False)
        assert values(self.counted()[0].cache(tmp_path / "c", progress=False)) == (VALUES * 2).tolist()
        anew = other(self)
        assert values(anew.cache(tmp_path / "c", overwrite=True, progress=False)) == values(anew)

    def test_with_other_chunks_is_refused(self, tmp_path: Path) -> None:
        data().cache(tmp_path / "c", chunk_rows=2, shard_rows=4, compression=None, progress=False)
        with pytest.raises(ArgumentError, match=r"c was started with shard_rows = 4, but now it is 8"):
            data().cache(tmp_path / "c", chunk_rows=2, shard_rows=8, compression=None, progress=False)

    def test_of_a_map_that_gives_something_else_by_now(self, tmp_path: Path) -> None:
        """Also where its code does not show that: in what it calls, or finds in globals and objects."""
        factor = {"value": 2}  # not a plain value that it closes over: its contents change

        def scale(row: Any) -> Any:
            return {"x": row["x"] * lookup["it"]["value"]}

        lookup = Lookup(it=factor)
        data().map(scale).cache(tmp_path / "c", progress=False)
        factor["value"] = 3
        with pytest.raises(ArgumentError, match=r"started with data\..* now it is .*overwrite=True to start over"):
            data().map(scale).cache(tmp_path / "c", progress=False)

    def test_that_was_stopped_is_gone_on_with(self, tmp_path: Path) -> None:
        dataset, seen = self.counted()
        options: dict[str, Any] = {"chunk_rows": 1, "shard_rows": 2, "progress": False, "ragged": False}

        def stop(row: Any) -> Any:
            if row["x"] == 140 and switch.exists():
                raise RuntimeError("stopped")
            return row

        switch = tmp_path / "stop"
        switch.touch()
        costly = dataset.map(stop)
        with pytest.raises(RuntimeError, match="stopped"):
            costly.cache(tmp_path / "c", **options)
        with pytest.raises(SourceError, match="the store is unfinished"):
            from_zarr(tmp_path / "c")
        switch.unlink()
        seen.clear()
        assert values(costly.cache(tmp_path / "c", **options)) == (VALUES * 2).tolist()
        assert not {10, 20, 30} & set(seen)  # what was stored is not made again

    @pytest.mark.parametrize(
        ("dataset", "what"),
        [
            (data().shuffle(0), "the order changes every epoch"),
            (data().shuffle(0)[:5].repeat(2), "the order changes every epoch"),
            (data().map(lambda row, rng: row, rng=True), "a map is random or has with_epoch=True"),
            (concat([data().map(lambda row, rng: row, rng=True), data()]), "a map is random or has with_epoch=True"),
        ],
    )
    def test_of_what_is_never_the_same_is_refused(self, dataset: Dataset, what: str, tmp_path: Path) -> None:
        with pytest.raises(
            ArgumentError,
            match=rf"cache\(\) writes every row once, but {what}; call .*data.map\(\w+\).cache\(path\)",
        ):
            dataset.cache(tmp_path / "c")
        assert not (tmp_path / "c").exists()

    def test_advice_for_a_random_order_calls_slow_maps_once_a_row(self, tmp_path: Path) -> None:
        calls = []

        def slow(row: Any) -> Any:
            calls.append(1)
            return row

        with pytest.raises(ArgumentError, match="first, then shuffle") as caught:
            data().shuffle(0).map(slow).cache(tmp_path / "c")
        advised = str(caught.value).rpartition(": ")[2]
        calls.clear()
        known = {"data": data(), "fn": slow, "path": tmp_path / "c"}
        loader = Dataloader(eval(advised, known), 8, num_epochs=2)
        assert sorted(loader.rows(0)) != list(range(8))
        for _ in loader:
            pass
        assert len(calls) <= len(VALUES) + 2  # two more of the first row, for the spec

    def test_advice_for_a_random_map_works(self, tmp_path: Path) -> None:
        with pytest.raises(ArgumentError, match=r"call cache\(\) before that map") as caught:
            data().map(lambda row, rng: row, rng=True).cache(tmp_path / "c")
        advised = str(caught.value).rpartition(": ")[2]
        known = {"data": data(), "slow": dict, "path": tmp_path / "c"}
        made = eval(advised, known | {"augment": lambda row, rng: {**row, "u": rng.random()}})
        assert 0 <= made[3]["u"] < 1

    def test_of_rows_that_lie_at_addresses(self, tmp_path: Path) -> None:
        """What the source holds may be objects, as long as the maps make numbers of them."""
        for _ in range(2):
            words = from_source([{"word": np.array(word, object)} for word in ("a", "bb", "ccc")])
            lengths = words.map(lambda row: np.int64(len(row["word"].item())))
            assert values(lengths.cache(tmp_path / "c", progress=False)) == [1, 2, 3]

    def test_at_a_place_that_is_taken(self, tmp_path: Path) -> None:
        (tmp_path / "mine.txt").write_text("mine")
        with pytest.raises(ArgumentError, match="is not empty and not a store of loadax"):
            data().cache(tmp_path)


def test_what_decides_the_examples_and_their_order_is_described() -> None:
    described = data().shuffle(3)[:5].map(lambda row: {"y": row["x"] * 1.5}).order_facts
    assert json.loads(json.dumps(described)) == described
    assert described[0] == ORDER_VERSION
    assert described[1][0] == ["rows", 10]
    assert described[2:] == [[["map", False, None]], [["['y']", [], "float64"]]]
    drawn = [data().map(lambda row, rng: row, rng=True, seed=seed).order_facts for seed in (0, 1)]
    assert drawn[0] != drawn[1]
    # Not contents, nor functions: the same run goes on with corrected ones.
    assert (
        from_arrays({"x": VALUES + 1}).map(lambda row: row).order_facts == data().map(lambda row: {**row}).order_facts
    )


def test_a_map_is_not_asked_what_its_signature_does_not_tell() -> None:
    """Its own error says it better."""
    assert len(data().map(dict)) == len(data().map(dict, rng=True)) == 10
    assert data().map(lambda row, scale=2: row["x"] * scale)[3] == 60


@pytest.mark.parametrize(
    "use", [lambda data: data.spec, lambda data: Dataloader(data, 4), lambda data: next(iter(data))]
)
def test_an_attribute_error_of_a_map_is_not_taken_for_one_of_the_dataset(use: Callable[[Dataset], Any]) -> None:
    data = from_arrays({"x": np.arange(8)}).map(lambda row: {"x": row["x"].width})
    with pytest.raises(AttributeError, match="object has no attribute 'width'") as caught:
        use(data)
    assert "in map" in caught.value.__notes__[0]
