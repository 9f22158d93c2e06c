"""Weighted sampling with replacement: the draws are the oracle's, independent, and in proportion to their weights."""

from typing import Any

import numpy as np
import pytest

from loadax import Dataloader, Dataset, concat, from_arrays, mix
from loadax import seeds as loadax_seeds
from loadax.errors import ArgumentError
from loadax.plan import sample as module
from loadax.plan.sample import Sampled, integer_weights
from loadax.plan.sequential import Sequential
from loadax.plan.slice import Sliced
from tests.plan.visited import epoch, rows

WEIGHTS = [3, 0, 1, 5, 0, 1]


def sampled(weights: Any, size: int, seed: int = 0) -> Sampled:
    return Sampled(Sequential(len(weights)), np.cumsum(weights), size, seed, "digest")


@pytest.mark.parametrize("seed", [0, -3, 12345678901234567890])
def test_a_draw_is_a_hash_among_the_weights(seed: int) -> None:
    urn = [row for row, weight in enumerate(WEIGHTS) for _ in range(weight)]
    for number in (0, 1, 7):
        expected = [
            urn[int(loadax_seeds.derive(seed, "sample", number, position)) % len(urn)] for position in range(40)
        ]
        assert rows(sampled(WEIGHTS, 40, seed), number) == expected


def test_golden_draws() -> None:
    assert rows(sampled(WEIGHTS, 12), 0) == [3, 3, 0, 3, 3, 2, 0, 3, 0, 3, 0, 0]
    assert rows(sampled(WEIGHTS, 12), 1) == [3, 5, 2, 0, 0, 3, 5, 2, 3, 3, 3, 3]


def test_proportions_and_independence() -> None:
    drawn = np.array(rows(sampled(WEIGHTS, 100_000)))
    counts = np.bincount(drawn, minlength=6)
    expected = np.array(WEIGHTS) / 10 * 100_000
    assert counts[[1, 4]].tolist() == [0, 0]
    some = expected > 0
    assert ((counts - expected)[some] ** 2 / expected[some]).sum() < 24  # chi-square of 3 degrees, p = 2.5e-5
    pairs = np.bincount(drawn[:-1] * 6 + drawn[1:], minlength=36).reshape(6, 6)
    assert abs(pairs / 1e5 - np.outer(expected, expected) / 1e10).max() < 5 * (0.25 / 1e5) ** 0.5
    assert rows(sampled([1] * 50, 50)) != sorted(set(rows(sampled([1] * 50, 50))))
    assert len(set(rows(sampled([1] * 50, 50)))) < 50  # with replacement


def test_every_draw_is_an_epoch_of_its_own_to_what_is_below() -> None:
    order = sampled([1, 1], 8)
    assert [below for _, below in epoch(order, 3)] == list(range(24, 32))


def test_the_inverse_looks_at_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_CHUNK", 7)
    order = Sampled(Sliced(Sequential(12), 11, -2, 6), np.cumsum(WEIGHTS), 40, 1, "digest")
    asked = np.array([11, 7, 7, 0, 5, 99])
    epochs = np.array([0, 0, 2, 0, 2, 0])
    hits = order.inverse(asked, epochs, (5, 33))
    expected = [
        (number, position)
        for number, (row, at) in enumerate(zip(asked.tolist(), epochs.tolist(), strict=True))
        for position, met in enumerate(rows(order, at))
        if met == row and 5 <= position < 33
    ]
    assert sorted(zip(hits.asked.tolist(), hits.positions.tolist(), strict=True)) == expected


@pytest.mark.parametrize(
    "weights",
    [
        np.array([0.5, 0.25, 0.25]),
        np.array([1e-300, 1.0, 1e300]),
        np.array([2**60, 2**60, 1], np.uint64),
        np.array([5e-324, 0.0]),
        np.full(1000, 0.1, np.float32),
        np.random.default_rng(0).random(10_000) ** 8,
    ],
)
def test_weights_become_integers_once(weights: Any) -> None:
    whole = integer_weights(weights)
    assert whole.dtype == np.int64
    assert ((whole > 0) == (weights > 0)).all()
    assert abs(int(whole.sum()) - 2**44) <= len(weights)
    most = float(max(weights))
    shares = [float(weight) / most for weight in weights]
    expected = np.array(shares) / sum(shares) * 2**44
    assert (abs(whole - expected) <= 1 + expected * 1e-12).all()


def test_integers_stay() -> None:
    assert integer_weights(np.array(WEIGHTS, np.uint8)).tolist() == WEIGHTS
    assert integer_weights(np.array([True, False])).tolist() == [1, 0]


def data() -> Dataset:
    return from_arrays({"x": np.arange(6)})


def draw(example: Any, rng: np.random.Generator) -> Any:
    return {"x": example["x"] + rng.random()}


def test_a_row_that_is_drawn_again_is_augmented_anew() -> None:
    made = data().sample(WEIGHTS, size=64).map(draw, rng=True)
    whole = np.concatenate([made.read(range(64), number)["x"] for number in (0, 1)])
    assert len(set(whole.tolist())) == 128
    assert (made.read(range(64), 1)["x"] == whole[64:]).all()


def test_a_loader_resumes_with_another_batch_size_and_finds_draws() -> None:
    made = data().sample(WEIGHTS, size=48, seed=4)
    loader = Dataloader(made, 8, num_epochs=2, num_workers=0)
    expected = np.concatenate([made.read(range(48), number)["x"] for number in (0, 1)])
    got = np.concatenate([np.asarray(batch["x"]) for batch in loader])
    assert got.tolist() == expected.tolist()
    with loader.iterate(8) as batches:
        state = batches.get_state()
    with Dataloader(made, 16, num_epochs=2, num_workers=0).iterate(state) as batches:
        assert np.asarray(next(batches)["x"]).tolist() == expected[64:80].tolist()
    assert loader.find(2) == [divmod(position, 8) for position in np.flatnonzero(expected == 2).tolist()]
    assert (loader.trace(3)[5].row, 5) == (expected[29], 5)


def test_it_is_cut_shuffled_joined_and_mixed_like_any_order() -> None:
    made = data().sample(WEIGHTS, size=20)
    plain = made.read(range(20))["x"].tolist()
    assert made[3:9].read(range(6))["x"].tolist() == plain[3:9]
    assert sorted(made.shuffle(0).read(range(20))["x"].tolist()) == sorted(plain)
    assert concat([data(), made]).read(range(6, 26))["x"].tolist() == plain
    assert len(mix([made, data()], [1, 1], stop="all")) > 20
    assert repr(made) == "Dataset(20 rows of arrays in memory.sample(size=20, seed=0))"
    described = [data().sample(*each).describe() for each in ((WEIGHTS,), (WEIGHTS, 7), (WEIGHTS, 6, 1), ([1] * 6,))]
    assert len({str(each) for each in described}) == 4


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda ds: ds.sample([1, 2]), r"weights has 2 entries, and the dataset has 6 rows; pass one for each"),
        (lambda ds: ds.sample([1, 1, -1, 1, 1, 1]), r"weights\[2\]=-1: pass finite numbers of at least 0"),
        (lambda ds: ds.sample([1, 1, 1, np.nan, 1, 1]), r"weights\[3\]=nan: pass finite"),
        (lambda ds: ds.sample([1, np.inf, 1, 1, 1, 1]), r"weights\[1\]=inf: pass finite"),
        (lambda ds: ds.sample([0] * 6), r"weights are all zero; give at least one row a positive weight"),
        (lambda ds: ds.sample("abcdef"), r"weights='abcdef': pass a flat list or array of numbers"),
        (lambda ds: ds.sample([["a"]]), r"weights=\[\['a'\]\]: pass a flat list"),
        (lambda ds: ds.sample([[1], [1, 2]]), r"weights=.*: pass a flat list"),
        (lambda ds: ds.sample(WEIGHTS, size=0), r"size=0: pass 1 or more"),
        (lambda ds: ds.sample(WEIGHTS, size=2.0), r"size=2\.0: pass an int"),
        (lambda ds: ds.sample(WEIGHTS, seed="a"), r"seed='a': pass an int"),
        (lambda ds: ds[:0].sample([]), r"sample\(\) of a dataset without rows has nothing to draw; pass one with rows"),
        (
            lambda ds: ds.shuffle(0).sample(WEIGHTS),
            r"sample\(\) draws positions by their weights, but here other rows .*leave a shuffle before sample\(\) out",
        ),
        (
            lambda ds: mix([ds, ds], [1, 1]).sample(WEIGHTS),
            r"sample\(\) draws positions by their weights, .*; sample datasets before they are mixed",
        ),
        *(
            (
                call,
                r"\(\) after sample\(\) would drop some of its draws; call (split|filter|exclude)\(\) first, and",
            )
            for call in (
                lambda ds: ds.sample(WEIGHTS).split(0.5),
                lambda ds: ds.sample(WEIGHTS).shuffle(0).split([3, 3]),
                lambda ds: ds.sample(WEIGHTS).filter(lambda example: True),
                lambda ds: ds.sample(WEIGHTS).exclude([0]),
            )
        ),
    ],
)
def test_what_cant_be_sampled(call: Any, match: str) -> None:
    with pytest.raises(ArgumentError, match=match):
        call(data())


def test_the_advice_for_mixtures_works() -> None:
    ds = data()
    assert len(mix({"one": ds.sample(WEIGHTS), "other": ds}, {"one": 1, "other": 1})) > 0
