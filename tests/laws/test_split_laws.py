"""Law: the parts of a split read no row of the data in common, in any epoch, or they are refused."""

from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

import loadax
from loadax import Dataset
from loadax.testing import disjoint
from tests.laws.chain_splits import Splits, check
from tests.limits import examples

pytestmark = pytest.mark.filterwarnings("ignore:split\\(")  # chains of few rows have empty parts


@settings(max_examples=examples(400), deadline=None, suppress_health_check=list(HealthCheck))
@given(st.integers(0, 1 << 40))
def test_parts_of_a_split_share_no_row(number: int) -> None:
    check(Random(number), Splits())


def test_the_law_is_about_parts_of_all_kinds() -> None:
    counts = Splits()
    for number in range(300):
        check(Random(number), counts)
    assert set(counts.compared) == {"_fraction", "_counts", "_folds", "_runs", "_groups", "_offsets", "_slices"}
    assert counts.compared.total() > 60
    assert counts.refused["the slice "] > 10
    assert counts.refused["split"] > 10


def _check_many(count: int) -> None:
    for number in range(count):
        check(Random(number), Splits())


def _unchanged(part: Any) -> Any:
    return part


@pytest.mark.parametrize(
    ("name", "without"),
    [
        ("loadax.plan.fixed_part.fixed_part", _unchanged),
        ("loadax.composition.shared_rows.check_parts", lambda *_: None),
        ("loadax.composition.shared_rows.check_rows_apart", lambda *_: None),
        ("loadax.plan.fixed_part._check", lambda _: None),
    ],
)
def test_the_law_finds_what_leaks(monkeypatch: pytest.MonkeyPatch, name: str, without: Callable[..., Any]) -> None:
    monkeypatch.setattr(name, without)
    with pytest.raises(AssertionError):
        _check_many(600)


@pytest.mark.parametrize(
    "parts",
    [
        lambda ds: (ds.shuffle(0)[:9], ds.shuffle(0)[9:]),
        lambda ds: (ds.shuffle(0)[::2], ds.shuffle(0)[1::2]),
        lambda ds: (ds.shuffle(0)[[3, 1, 2]], ds.shuffle(0)[[0, 5, -1]]),
        lambda ds: (ds.shuffle(0).map(lambda row: row + 1)[:9], ds.shuffle(0).map(lambda row: row)[9:]),
        lambda ds: (ds.shuffle(0)[:20][:9], ds.shuffle(0)[9:][:5]),
        lambda ds: (ds.shuffle(0)[:9].shuffle(1).repeat(2), ds.shuffle(0)[9:].shuffle(2)),
        lambda ds: ds.shuffle(0)[:20].split(0.5),
        lambda ds: ds.shuffle(0).split(0.5, contiguous=True),
        lambda ds: (loadax.concat(ds.split(5)[1:]).shuffle(0), ds.split(5)[0]),
        lambda ds: [part.windows(3) for part in ds.split(0.5, contiguous=True)],
        lambda ds: ds.windows(3).split(0.5, contiguous=True, gap=2),
        lambda ds: [part.flat_map(lambda row: [row, row], 2).shuffle(0) for part in ds.split(0.5)],
    ],
)
def test_disjoint_agrees_with_the_values_that_are_read(parts: Callable[[Dataset], Any]) -> None:
    one, other = parts(loadax.from_arrays(np.arange(40) * 100))
    disjoint(one, other, epochs=3)
    seen = [
        {value // 100 for epoch in range(3) for value in np.ravel(part.read(range(len(part)), epoch)).tolist()}
        for part in (one, other)
    ]
    assert not seen[0] & seen[1]
