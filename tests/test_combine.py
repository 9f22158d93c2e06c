"""`mix` and `zip`, from the outside: weights of any form, what is refused, and both in a run."""

import json
from collections.abc import Callable, Iterable
from fractions import Fraction
from pathlib import Path
from typing import Any

import datasets
import grain
import ml_dtypes
import numpy as np
import pytest
import xarray

import loadax
from loadax import Dataloader, from_arrays, mix
from loadax.errors import ArgumentError, LeafError, StateError
from loadax.plan.mix import Segment
from tests.loader.oracle import mesh_of
from tests.sources.advice import follow


def data(first: int, count: int) -> loadax.Dataset:
    return from_arrays({"x": np.arange(first, first + count, dtype=np.int32)})


def web_and_code(weights: Any = (3, 1), **more: Any) -> loadax.Dataset:
    return mix({"web": data(0, 600).shuffle(0), "code": data(1000, 300).shuffle(1)}, weights, **more)


def units_of(weights: Any, names: Iterable[str], version: int = 3) -> tuple[int, ...]:
    """Integers in place of the weights of a mixture."""
    order: Any = mix({name: data(0, 8) for name in names}, weights, stop="never", version=version).order
    weights_of_segment: tuple[int, ...] = order.segments[0].weights
    return weights_of_segment


@pytest.mark.parametrize(
    ("weights", "units"),
    [
        ((3, 1), (3, 1)),
        ((6, 2), (3, 1)),
        ({"b": 1, "a": 3}, (3, 1)),
        ((0.3, 0.7), (3, 7)),
        ((0.1, 0.2), (1, 2)),
        ((1 / 3, 2 / 3), (1, 2)),
        ((0.7071067811865476, 1), (7286922051388, 10305263993028)),
        ((Fraction(1, 3), Fraction(2, 3)), (1, 2)),
        ((np.float32(0.5), np.int64(1)), (1, 2)),
        (np.array([0.1, 0.2]), (1, 2)),
        ((1, 0), (1, 0)),
        ((1e-9, 1), (1, 10**9)),
        ((10**30, 10**30), (1, 1)),
    ],
)
def test_weights_become_integers(weights: Any, units: tuple[int, ...]) -> None:
    assert units_of(weights, "ab") == units


def test_weights_become_integers_of_sixteen_bits_before_version_3() -> None:
    for version in (1, 2):
        assert units_of((2**-0.5, 1), "ab", version) == (27146, 38390)
        assert units_of(np.array([0.7, 0.3], np.float32), "ab", version) == (45875, 19661)
        with pytest.warns(UserWarning, match="drawn 1.53e\\+04 times as often"):
            assert units_of((1e-9, 1), "ab", version) == (1, 65535)


def test_every_weight_that_is_given_counts() -> None:
    weights = [1e-6] * 50 + [1.0, 2 / 3, 0.0]
    with pytest.warns(UserWarning, match="dataset '0' is drawn"):
        units = units_of(weights, [str(number) for number in range(53)], 1)
    assert units[:50] == (1,) * 50
    assert units[52] == 0
    assert abs(units[51] / units[50] - 2 / 3) < 1e-4


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: mix({}, ()), r"mix\(\) got no datasets"),
        (lambda: web_and_code((1,)), "weights has 1 number for 2 datasets"),
        (
            lambda: web_and_code({"web": 1, "cod": 1}),
            r"weights are for \['cod', 'web'\], not \['web', 'code'\]; pass one",
        ),
        (lambda: web_and_code((-1, 1)), r"weights\['web'\]=-1: pass a number of at least 0"),
        (lambda: web_and_code((1, float("nan"))), r"weights\['code'\]=nan: pass a number"),
        (lambda: web_and_code(("1", 1)), r"weights\['web'\]='1': pass a number"),
        (lambda: web_and_code((0, 0)), "weights are all zero; give at least one dataset a positive weight"),
        (lambda: web_and_code({0: (1, 1), 5: (0, 0.0)}), r"weights\[5\] are all zero"),
        (lambda: web_and_code({5: (1, 1)}), r"scheduled from the examples \[5\]; begin at 0, in ascending order"),
        (lambda: web_and_code({0: (1, 1), 9: (1, 2), 5: (1, 1)}), "begin at 0, in ascending order"),
        (lambda: web_and_code(3), "weights=3: pass a dict of weights by name, or a sequence"),
        (lambda: web_and_code(version=4), "version=4: pass 3, or 1 or 2 to go on with a run that began with it"),
        (lambda: web_and_code(stop="last"), "stop='last': pass 'first', 'all' or 'never'"),
        (lambda: web_and_code(by="batch"), "by='batch': pass 'example' or 'step', what a schedule counts, or 'tokens'"),
        (
            lambda: web_and_code({0: (1, 1), 9: (1, 0)}, stop="all"),
            "the weights never draw all of 'code', or it is endless; pass another stop=",
        ),
        (lambda: mix({"web": data(0, 5), "none": data(0, 5)[:0]}, (1, 1)), "dataset 'none' has no rows; leave it out"),
        (
            lambda: web_and_code().shuffle(0),
            r"shuffle\(\) after mix\(\) would break its proportions; call it before: mix",
        ),
        (lambda: web_and_code().subset_per_epoch(range(10)).shuffle(0), r"shuffle\(\) after mix\(\)"),
        (
            lambda: web_and_code().split(0.5),
            r"split\(\) after mix\(\) .* proportions; call it before: mix\(\{name: ds\.split\(…\)\[0\]\}, …\)",
        ),
    ],
)
def test_what_is_refused(make: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        make()


def test_specs_that_differ_name_the_dataset_and_the_leaf() -> None:
    with pytest.raises(
        LeafError,
        match=r"mix: leaf \['x'\] is float64\[\] in dataset 'b' and int32\[\] in dataset 'a'; map them to one",
    ):
        mix({"a": data(0, 5), "b": from_arrays({"x": np.arange(5.0)})}, (1, 1))
    with pytest.raises(LeafError, match=r"mix: dataset 'b' has the leaves \[.*y.*\], dataset 'a' has \[.*x.*\]"):
        mix({"a": data(0, 5), "b": from_arrays({"y": np.arange(5)})}, (1, 1))


def test_weights_by_step() -> None:
    mixed = web_and_code({0: (1, 0), 5: (1, 3)}, by="step")
    assert "step-scheduled rows" in repr(mixed)
    with pytest.raises(TypeError, match="scheduled by step"):
        len(mixed)
    for batch_size in (16, 32):
        loader = Dataloader(mixed, batch_size=batch_size, mesh=mesh_of({"data": 8}))
        shares = [int((np.asarray(loader[step]["x"]) < 1000).sum()) for step in (0, 4, 5, 6)]
        assert shares == [batch_size, batch_size, batch_size // 4, batch_size // 4]
    with pytest.raises(
        ArgumentError,
        match=r"scheduled from step 5 on, which is example 1280, but an epoch has only 6\d\d examples; "
        r"schedule by example",
    ):
        Dataloader(mixed, batch_size=256, num_epochs=2)
    with pytest.raises(TypeError, match="without another verb after"):
        Dataloader(mixed[:100], batch_size=8)
    assert mixed.map(lambda each: {"x": each["x"] * 2}).order is mixed.order  # a map is no such verb


@pytest.mark.parametrize("weight", [1, 2, 3, 9])
def test_a_part_that_never_ends(weight: int) -> None:
    endless = mix([data(0, 8), data(100, 4)], (1, 1), stop="never")
    mixed = mix({"endless": endless, "short": data(1000, 12)}, (1, weight))
    rows = mixed.read(range(len(mixed)))["x"]
    assert (rows >= 1000).sum() == 12  # it ends when the other part would begin anew
    with pytest.raises(ArgumentError, match="the weights never draw all of 'endless', or it is endless"):
        mix({"endless": endless, "short": data(1000, 12)}, (1, weight), stop="all")
    with pytest.raises(ArgumentError, match="part 0 is endless; pass it last, mix"):
        loadax.concat([endless, data(0, 4)])


def test_names_are_text() -> None:
    with pytest.raises(ArgumentError, match="a dataset is named 0; pass a str, since weights by int are a schedule"):
        mix({0: data(0, 4), 1: data(0, 4)}, {0: 3, 1: 1})  # type: ignore[dict-item]


PAIRS = {"x": np.arange(40, dtype=np.int32), "y": np.arange(40, dtype=np.int32) ** 2}


def pairs() -> loadax.Dataset:
    return loadax.zip(PAIRS)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: loadax.zip({}), r"zip\(\) got no datasets"),
        (lambda: loadax.zip(pairs()), r"datasets=Dataset\(40 rows .*: pass a dict, tuple or list of datasets"),
        (lambda: loadax.zip(pairs(), pairs()), r"datasets=Dataset\(40 .* list of datasets: zip\(\(one, other\)\)$"),
        (lambda: loadax.zip({"a": pairs(), "b": {"c": "x.npy"}}), r"^\['b'\]\['c'\]: data='x.npy' is a path; open it"),
        (lambda: loadax.zip((pairs(), None)), r"^\[1\]: the data is a NoneType without __len__"),
        (
            lambda: loadax.zip({"b": [np.zeros(4)], "a": np.zeros(3)}),
            r"one length: \['a'\] has 3 rows, and \['b'\]\[0\] has 4; cut the longer one: ds\[:3\]",
        ),
        (lambda: pairs().zip(pairs()[:30]), r"\[0\] has 40 rows, and \[1\] has 30; cut the longer one: ds\[:30\]"),
        (lambda: pairs().zip(PAIRS), r"other=.* is not a Dataset; loadax.zip\(\(ds, other\)\) takes other"),  # type: ignore[arg-type]
        (
            lambda: pairs().zip(mix({"a": pairs()}, {"a": 1}, stop="never")),
            r"zip\(\) needs datasets that end, and \[1\] never does; cut it: ds.subset_per_epoch\(range\(n\)\)",
        ),
        (
            lambda: pairs().shuffle(1).zip(pairs()).filter(bool),
            r"filter\(\) needs the same rows in every epoch, but the order of zipped datasets changes",
        ),
        (
            lambda: mix({"a": pairs()}, {"a": 1}).zip(pairs()).shuffle(0),
            r"shuffle\(\) after mix\(\) would break its proportions",
        ),
    ],
)
def test_what_zip_refuses(make: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        make()


def test_the_advice_for_lengths_that_differ_works() -> None:
    assert len(pairs()[:30].zip(pairs()[:30])) == 30
    assert len(pairs().zip(mix({"a": pairs()}, {"a": 1}, stop="never").subset_per_epoch(range(40)))) == 40


def test_a_list_of_examples_is_handed_to_zip_as_the_error_says() -> None:
    labels = [{"label": row} for row in range(40)]
    with pytest.raises(ArgumentError, match=r"^\['b'\]\[0\]\['label'\]: the data is an int .*; in zip") as caught:
        loadax.zip({"a": pairs(), "b": labels})
    (examples,) = follow(caught.value, examples=labels)
    assert loadax.zip({"a": pairs(), "b": examples})[3]["b"] == {"label": 3}


def test_splits_are_not_zipped_and_a_dataset_of_xarray_is() -> None:
    table = datasets.Dataset.from_dict({"z": list(range(40))})
    splits = datasets.DatasetDict(train=table, test=table)
    with pytest.raises(ArgumentError, match=r"^\['b'\]: the data is a DatasetDict of 'train', 'test'") as caught:
        loadax.zip({"a": pairs(), "b": splits})
    assert loadax.zip({"a": pairs(), "b": follow(caught.value, data=splits)[0]})[3]["b"] == {"z": 3}
    with pytest.raises(ArgumentError, match=r"^datasets: the data is a DatasetDict of 'train', 'test'"):
        loadax.zip(splits)
    weather = xarray.Dataset({"u": ("time", np.arange(40))})
    assert loadax.zip({"a": pairs(), "b": weather})[3]["b"] == {"u": 3}


VERBS: dict[str, Callable[[loadax.Dataset, Path], loadax.Dataset]] = {
    "split()": lambda zipped, _: zipped.split(0.5)[0],
    "filter()": lambda zipped, _: zipped.filter(lambda pair: pair["x"][0] % 2 == 0),
    "cache()": lambda zipped, folder: zipped.cache(folder / "cache"),
    "windows()": lambda zipped, _: zipped.windows(2),
    "pack()": lambda zipped, _: zipped.pack(8),
}


@pytest.mark.parametrize("verb", VERBS)
def test_verbs_about_rows_of_zipped_shuffles_say_what_to_do_first(verb: str, tmp_path: Path) -> None:
    rows = from_arrays(np.arange(40, dtype=np.int32).reshape(20, 2))
    for changing in (rows.shuffle(1), mix({"a": rows[:10], "b": rows[10:]}, (1, 1), stop="all")):
        with pytest.raises(ArgumentError) as caught:
            VERBS[verb](loadax.zip({"x": rows, "y": changing}), tmp_path)
        assert str(caught.value) == (
            f"{verb} needs the same rows in every epoch, but the order of zipped datasets changes with the epoch, so "
            "row 5 is another record in every epoch; zip the datasets before they are shuffled or mixed, "
            f"and shuffle and map with loadax after {verb}: .shuffle(seed).map(fn, rng=True)"
        )
    # To the letter.
    chosen = VERBS[verb](loadax.zip({"x": rows, "y": rows}), tmp_path)
    made = chosen.shuffle(0).map(lambda row, rng: row | {"noise": rng.random()}, rng=True)
    batch = made.read(range(4), epoch=1)
    np.testing.assert_array_equal(batch["x"], batch["y"])


def test_zipped_shuffles_are_kept_on_devices_as_the_error_says() -> None:
    rows = data(0, 40)
    with pytest.raises(ArgumentError) as caught:
        Dataloader(rows.zip(rows.shuffle(1)), 8, keep_on_device=True)
    assert str(caught.value) == (
        "keep_on_device needs the same rows in every epoch, but the order of zipped datasets changes with the epoch, "
        "so row 5 is another record in every epoch; zip the datasets before they are shuffled or mixed, "
        "and shuffle with loadax after that: .shuffle(seed), or leave keep_on_device out"
    )
    assert Dataloader(rows.zip(rows.shuffle(1)), 8)[0][0]["x"].tolist() == list(range(8))
    pairs = rows[:20].zip(rows[:20]), rows[20:].zip(rows[20:])
    for kept in (rows.zip(rows).shuffle(2), mix(pairs, (3, 1))):
        batch = Dataloader(kept, 8, keep_on_device=True)[1]
        np.testing.assert_array_equal(batch[0]["x"], batch[1]["x"])
        np.testing.assert_array_equal(batch[0]["x"], Dataloader(kept, 8)[1][0]["x"])


def test_a_shuffle_of_grain_within_a_zip_is_named() -> None:
    with pytest.raises(ArgumentError, match=r"the Grain dataset shuffles or maps at random, .* without that step"):
        loadax.zip((grain.MapDataset.range(40).shuffle(seed=1), data(0, 40).shuffle(1))).exclude([1])
    assert len(loadax.zip((grain.MapDataset.range(40), data(0, 40))).exclude([1]).shuffle(0)) == 39


def test_rows_of_another_part_order_are_other_rows() -> None:
    """An index of a filter is made of them, and the maps alone would not tell."""
    described = [
        json.dumps(data(0, 40)[:20].zip(data(0, 40)[start : start + 20]).source.describe()) for start in (0, 9)
    ]
    assert len(set(described)) == 2


@pytest.mark.parametrize("versions", [(1, 2), (1, 3), (3, 1), (2, 3)])
def test_a_state_is_of_the_version_that_it_began_with(versions: tuple[int, int]) -> None:
    old, new = (Dataloader(web_and_code((3, 1), version=version), 8, num_workers=0) for version in versions)
    with new.iterate(3) as batches:
        state = batches.get_state()
        expected = np.asarray(next(batches)["x"]).tolist()
    with new.iterate(state) as batches:
        assert np.asarray(next(batches)["x"]).tolist() == expected
    with pytest.raises(StateError, match=r"mix\(seed=0, stop='first'.*\) 3:1.*` differs from the saved run"):
        old.iterate(state)
    assert old.rows(0).tolist() != new.rows(0).tolist()
    for loader in (old, new):
        assert [int((loader.rows(step) >= 600).sum()) for step in range(20)] == [2] * 20


def test_state_of_former_default_names_the_version_that_goes_on() -> None:
    """Advice followed to the letter: such a run goes on with the same batches."""
    former = Dataloader(web_and_code((7, 3), version=1), 8, num_workers=0)
    with former.iterate(3) as batches:
        state = json.loads(json.dumps(batches.get_state()))
    with pytest.raises(StateError, match=r"whose defaults were others, pass version=1 to mix\(\)$"):
        Dataloader(web_and_code((7, 3)), 8).iterate(state)
    with Dataloader(web_and_code((7, 3), version=1), 8, num_workers=0).iterate(state) as batches:
        assert np.asarray(next(batches)["x"]).tolist() == np.asarray(former[3]["x"]).tolist()


SIZES = [1_000_000, 300_000, 20_000, 700, 31]


@pytest.mark.parametrize("stop", ["first", "all"])
@pytest.mark.parametrize("sizes", [SIZES, [60_000, 40_000], [131_073, 7]])
def test_lengths_as_weights_give_every_row_once(sizes: list[int], stop: Any) -> None:
    mixed = mix([np.arange(size) for size in sizes], sizes, stop=stop)
    rows = mixed.order.visits(np.zeros(len(mixed), np.int64), np.arange(len(mixed))).rows
    assert (np.bincount(rows, minlength=sum(sizes)) == 1).all()


@pytest.mark.parametrize(
    "weights",
    [
        np.array([0.7, 0.3], np.float32),
        np.array([0.7, 0.3], np.float16),
        np.array([0.7, 0.3], ml_dtypes.bfloat16),
        [ml_dtypes.bfloat16(0.7), np.float32(0.3)],
        [np.float64(0.7), Fraction(3, 10)],
        [np.int8(7), np.uint64(3)],
        [7_000_000, 3_000_000],
        [7e-9, 3e-9],
    ],
)
def test_weights_mean_the_decimals_that_they_are_written_as(weights: Any) -> None:
    order: Any = web_and_code(weights).order
    assert order.segments == (Segment(0, (7, 3)),)


def test_weights_with_a_sum_of_up_to_two_to_the_44_are_exact() -> None:
    order: Any = web_and_code([1, (1 << 44) - 1], stop="never").order
    assert order.segments == (Segment(0, (1, (1 << 44) - 1)),)


@pytest.mark.parametrize(
    ("version", "weights", "message"),
    [
        (
            1,
            [1e-7, 1],
            "sum than 65,536, .* dataset 'web' is drawn 153 times as often .*; a new run can pass version=3",
        ),
        (2, [1, 1e-7], "dataset 'code' is drawn 153 times as often as its weight says; a new run can pass version=3"),
        (3, [1, 1e-15], "dataset 'code' is drawn 56.8 times as often .*; leave out datasets of such tiny weights"),
    ],
)
def test_warning_of_weights_that_are_rounded(version: int, weights: Any, message: str) -> None:
    with pytest.warns(UserWarning, match=message):
        web_and_code(weights, stop="never", version=version)
    web_and_code([0.123456789, 1], stop="never", version=version)  # by less than a hundredth
