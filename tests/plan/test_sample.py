"""Weighted sampling with replacement: the draws are the oracle's, independent, and in proportion to their weights."""

from typing import Any

import numpy as np
import pytest

from loadax import Dataset, from_arrays, mix
from loadax.errors import ArgumentError
from loadax.plan import sample as module
from loadax.plan.sample import Sampled, integer_weights
from loadax.plan.sequential import Sequential
from loadax.plan.slice import Sliced
from tests.plan.visited import rows

WEIGHTS = [3, 0, 1, 5, 0, 1]


def sampled(weights: Any, size: int, seed: int = 0) -> Sampled:
    return Sampled(Sequential(len(weights)), np.cumsum(weights), size, seed, "digest")


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


def test_the_inverse_looks_at_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHUNK", 7)
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


def test_samples_describe_weights_size_and_seed() -> None:
    made = data().sample(WEIGHTS, size=20)
    assert repr(made) == "Dataset(20 rows of arrays in memory.sample(size=20, seed=0))"
    described = [data().sample(*each).order_facts for each in ((WEIGHTS,), (WEIGHTS, 7), (WEIGHTS, 6, 1), ([1] * 6,))]
    assert len({str(each) for each in described}) == 4


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda ds: ds.sample([1, 2]), r"weights has 2 entries; pass 6, one a row"),
        (lambda ds: ds.sample([1, 1, -1, 1, 1, 1]), r"weights\[2\]=-1: pass finite numbers from 0"),
        (lambda ds: ds.sample([1, 1, 1, np.nan, 1, 1]), r"weights\[3\]=nan: pass finite"),
        (lambda ds: ds.sample([1, np.inf, 1, 1, 1, 1]), r"weights\[1\]=inf: pass finite"),
        (lambda ds: ds.sample([0] * 6), r"weights are all zero; give at least one row a positive weight"),
        (lambda ds: ds.sample("abcdef"), r"weights='abcdef': pass a flat list of numbers"),
        (lambda ds: ds.sample([["a"]]), r"weights=\[\['a'\]\]: pass a flat list"),
        (lambda ds: ds.sample([[1], [1, 2]]), r"weights=.*: pass a flat list"),
        (lambda ds: ds[:0].sample([]), r"sample\(\) of a dataset without rows has nothing to draw; pass one with rows"),
        (
            lambda ds: ds.shuffle(0).sample(WEIGHTS),
            r"sample\(\) weighs positions, which have other rows in every epoch here; sample before mixing",
        ),
        (
            lambda ds: mix([ds, ds], [1, 1]).sample(WEIGHTS),
            r"sample\(\) weighs positions, .*; sample before mixing",
        ),
        *(
            (
                call,
                r"\(\) after sample\(\) would drop some of its draws; call (split|filter|exclude)\(\) first, then",
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


def test_inverse_looks_up_no_row_of_the_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lookup among all weights costs about a microsecond a position where they don't fit the CPU cache."""
    order = sampled(WEIGHTS, 1000)
    expected = np.flatnonzero(np.array(rows(order)) == 2).tolist()
    monkeypatch.setattr(Sampled, "_drawn", None)
    assert order.inverse(np.array([2]), np.array([0]), (0, 1000)).positions.tolist() == expected
