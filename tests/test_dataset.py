"""Datasets: the doors through which data comes in, the verbs, and what they refuse."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import tensorstore as ts

import loadax
from loadax import Dataset, concat, from_arrays, from_npy, from_source, from_tensorstore, from_zarr
from loadax.doors import as_dataset
from loadax.errors import ArgumentError, RowIndexError
from loadax.protocols import ArraySpec

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


@pytest.mark.parametrize(
    "chosen",
    [
        *(slice(None), slice(3), slice(3, None), slice(-3, None), slice(None, None, 3), slice(None, None, -1)),
        *(slice(8, 2, -2), slice(5, 5), slice(20, 30), slice(-100, 100, 7), slice(2, 3)),
    ],
)
def test_a_slice_is_that_of_a_list(chosen: slice) -> None:
    assert values(data()[chosen]) == VALUES[chosen].tolist()
    shuffled = data().shuffle(3)
    assert values(shuffled[chosen], 2) == values(shuffled, 2)[chosen]


def test_verbs_make_new_datasets_and_leave_the_old_as_they_were() -> None:
    before = data()
    old = values(before)
    for after in (before.shuffle(0), before[::2], before.repeat(2), *before.split(0.5), before.map(lambda row: row)):
        assert after is not before
    assert values(before) == old
    with pytest.raises(dataclasses.FrozenInstanceError):
        before.maps = ()  # type: ignore[misc]


def test_a_shuffle_of_a_slice_is_of_fixed_rows_and_a_slice_of_a_shuffle_is_not() -> None:
    fixed = {frozenset(values(data()[:4].shuffle(0), epoch)) for epoch in range(8)}
    changing = {frozenset(values(data().shuffle(0)[:4], epoch)) for epoch in range(8)}
    assert fixed == {frozenset([0, 10, 20, 30])}
    assert len(changing) > 1


def test_repeat_shuffles_each_round_anew_and_shuffle_of_a_repeat_mixes_them() -> None:
    repeated = data().shuffle(0).repeat(2)
    assert sorted(values(repeated)[:10]) == sorted(values(repeated)[10:]) == VALUES.tolist()
    assert values(repeated)[:10] != values(repeated)[10:]
    assert values(repeated, 1)[:10] == values(data().shuffle(0), 2)
    mixed = values(data().repeat(2).shuffle(0))
    assert sorted(mixed) == sorted([*VALUES.tolist()] * 2)
    assert len(set(mixed[:10])) < 10


def test_split_means_the_same_before_and_after_shuffle() -> None:
    large = from_arrays(np.arange(200))
    for before, after in zip(large.split(0.3, seed=1), large.shuffle(4).split(0.3, seed=1), strict=True):
        assert values(before.shuffle(4), 3) == values(after, 3)
    first, rest = large.split(0.3)
    assert sorted(values(first) + values(rest)) == list(range(200))


def test_maps_commute_with_every_other_verb() -> None:
    def draw(row: Any, rng: np.random.Generator) -> Any:
        return row["x"] * 1000 + rng.integers(1000)

    early = data().map(draw, rng=True, seed=3)
    late = data()
    verbs: list[Callable[[Dataset], Dataset]] = [
        *(lambda ds: ds.shuffle(0), lambda ds: ds.split(0.8)[0], lambda ds: ds[2:]),
        *(lambda ds: ds.repeat(2), lambda ds: ds.shuffle(1, block=2, window=2, lanes=2)),
    ]
    for verb in verbs:
        early, late = verb(early), verb(late)
    assert values(early, 5) == values(late.map(draw, rng=True, seed=3), 5)


def test_maps_may_have_randomness_of_their_own_even_around_a_concatenation() -> None:
    """The place in the chain counts on, or an outer map would draw what an inner one drew."""

    def draw(row: Any, rng: np.random.Generator) -> Any:
        return np.append(row, rng.random())

    part = from_arrays(np.zeros((3, 0))).map(draw, rng=True).map(draw, rng=True)
    for made in (part.map(draw, rng=True), concat([part, part]).map(draw, rng=True)):
        for row in made.read(range(len(made))):
            assert len(set(row.tolist())) == 3


def test_random_maps_draw_anew_each_epoch_and_the_same_each_time() -> None:
    def draw(row: Any, rng: np.random.Generator) -> Any:
        return rng.random()

    drawn = data().map(draw, rng=True)
    assert values(drawn, 1) == values(drawn, 1) == values(data().map(draw, rng=True), 1)
    assert not set(values(drawn, 0)) & set(values(drawn, 1))
    assert not set(values(drawn)) & set(values(data().map(draw, rng=True, seed=1)))
    assert drawn[4] == drawn.read([4])[0] == values(drawn)[4]


def test_spec_of_a_map_may_be_stated_or_found() -> None:
    assert data().map(lambda row: row["x"] * 1.5).spec == ArraySpec((), np.dtype(float))
    stated = {"y": np.zeros(3, np.float32)}
    assert data().map(lambda row: row, spec=stated).spec == {"y": ArraySpec((3,), np.dtype(np.float32))}
    with pytest.raises(ArgumentError, match=r"spec\['y'\] is 3: pass something with a shape and a dtype"):
        data().map(lambda row: row, spec={"y": 3})


def test_doors(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", VALUES)
    assert values(from_npy(tmp_path / "x.npy")) == VALUES.tolist()
    assert values(from_npy({"x": str(tmp_path / "x.npy")})) == VALUES.tolist()
    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{tmp_path}/z/"}}
    store = ts.open(spec, create=True, dtype=ts.int64, shape=[10]).result()
    store.write(VALUES).result()
    assert values(from_tensorstore(spec)) == values(from_tensorstore({"x": store})) == VALUES.tolist()
    assert values(from_zarr(tmp_path / "z")) == VALUES.tolist()
    assert values(from_zarr(tmp_path, variables=["z"]).map(lambda row: row["z"])) == VALUES.tolist()
    assert values(from_source([{"x": value} for value in VALUES])) == VALUES.tolist()
    assert values(concat([data(), data()[:2]])) == [*VALUES.tolist(), 0, 10]


@pytest.mark.parametrize(
    "given", [{"x": VALUES}, VALUES, (VALUES,), [{"x": int(value)} for value in VALUES], data(), data().source, data().shuffle(0)]
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
    for dataset in (endless.shuffle(0), endless.shuffle(0, block=1024), endless[::-3].shuffle(1).repeat(2)[5:]):
        read = dataset.read([0, 10**9, len(dataset) - 1], epoch=10**6)
        assert len(set(read.tolist())) == 3
        assert 0 <= read.min() <= read.max() < 10**12
    assert endless[::-1][0] == 10**12 - 1


def test_a_dataset_tells_what_it_is() -> None:
    text = repr(data().shuffle(3)[:5].repeat(2).map(values).map_batch(len, rng=True))
    assert text.startswith("Dataset(10 rows of arrays in memory.shuffle(3)[0:5].repeat(2).map(values (")
    assert text.endswith(".map_batch(len, rng=True))")
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
    with pytest.raises(RowIndexError, match=rf"position {position} is not there: positions are at least 0 and below 10"):
        data().read([0, position])


@pytest.mark.parametrize("position", [10, -11])
def test_an_index_that_is_not_there(position: int) -> None:
    with pytest.raises(IndexError, match=rf"position {position} is not there: the dataset has 10"):
        data()[position]
    with pytest.raises(RowIndexError, match="position 0 is not there: the dataset has 0"):
        data()[:0][0]


@pytest.mark.parametrize(
    ("positions", "kind"), [([1.5], "float64"), (np.ones(10, bool), "bool"), (["a"], "<U1"), ([None], "object")]
)
def test_positions_that_are_no_integers(positions: Any, kind: str) -> None:
    with pytest.raises(RowIndexError, match=rf"positions are {kind}; pass integers \(of a mask: numpy\.flatnonzero\(mask\)\)"):
        data().read(positions)


@pytest.mark.parametrize(
    ("verb", "message"),
    [
        (lambda ds: ds["x"], r"index='x': pass an int"),
        (lambda ds: ds[True], r"index=True: pass an int"),
        (lambda ds: ds[1.0], r"index=1\.0: pass an int"),
        (lambda ds: ds.read([0], epoch=-1), r"epoch=-1: pass 0 or more"),
        (lambda ds: ds.shuffle(None), r"seed=None: pass an int"),
        (lambda ds: ds.shuffle(0.5), r"seed=0\.5: pass an int"),
        (lambda ds: ds.shuffle(0, window=2), r"window=2 needs a block: how many rows lie together; pass block= as well"),
        (lambda ds: ds.shuffle(0, block=0), r"block=0: pass 1 or more"),
        (lambda ds: ds.shuffle(0, block=2.5), r"block=2\.5: pass an int"),
        (lambda ds: ds.shuffle(0, block=2, window=0), r"window=0: pass 1 or more"),
        (lambda ds: ds.shuffle(0, block=2, lanes=0), r"lanes=0: pass 1 or more"),
        (lambda ds: ds.repeat(0), r"times=0: pass 1 or more"),
        (lambda ds: ds.repeat(None), r"times=None: pass an int"),
        (lambda ds: ds.split(0), r"fraction=0: pass a number between 0 and 1, the share of the first part"),
        (lambda ds: ds.split(1.0), r"fraction=1\.0: pass a number between 0 and 1"),
        (lambda ds: ds.split("half"), r"fraction='half': pass a number between 0 and 1"),
        (lambda ds: ds.split(float("nan")), r"fraction=nan: pass a number between 0 and 1"),
        (lambda ds: ds.split(0.5, seed="a"), r"seed='a': pass an int"),
        (lambda ds: ds.shuffle(0)[:3].split(0.5), r"split\(\) after a slice of a shuffle"),
        (lambda ds: ds.map(3), r"fn=3 can't be called; pass a function of one example"),
        (lambda ds: ds.map_batch(None), r"fn=None can't be called"),
        (lambda ds: ds.map(len, rng=True, seed=None), r"seed=None: pass an int"),
        (
            lambda ds: ds.map_batch(len, rng=True, elementwise=True),
            r"elementwise=True with rng=True: .*depend on the mesh; choose one",
        ),
        (lambda ds: concat([]), r"concat\(\) got no dataset; pass at least one"),
        (lambda ds: concat([ds, cast(Any, 5)]), "the data is a int without __len__ and __getitem__"),
        (lambda ds: from_source(5), "the data is a int without"),
    ],
)
def test_what_verbs_refuse(verb: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        verb(data())


def test_the_public_names_are_there() -> None:
    for name in (
        "concat",
        "from_arrays",
        "from_npy",
        "from_source",
        "from_tensorstore",
        "from_tokens",
        "from_zarr",
        "write_zarr",
        "Dataset",
    ):
        assert callable(getattr(loadax, name))
