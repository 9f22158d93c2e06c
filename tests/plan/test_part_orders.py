"""Visits of many parts: equal to those of each part by itself, and without work for parts that are not met."""

from typing import Any

import numpy as np
import pytest

from loadax import Dataloader, concat, from_arrays
from loadax.dataset import Dataset
from loadax.loader.mask_errors import quarantined_rows
from loadax.loader.options import without
from loadax.plan.sequential import Sequential
from loadax.protocols import Visits


def part(index: int) -> Dataset:
    rows = from_arrays({"x": np.arange(7) + 10 * index, "y": np.full((7, 2), index, np.float32)})
    kinds: list[Any] = [
        rows,
        rows.shuffle(index),
        rows[1:6:2],
        rows[::-1],
        rows.shuffle(index)[2:],
        rows.repeat(2).shuffle(1),
        rows.shuffle(0, block=2),
    ]
    return kinds[index % len(kinds)]


@pytest.mark.parametrize("count", [1, 3, 60])
def test_concat_reads_positions_of_each_part(count: int) -> None:
    parts = [part(index) for index in range(count)]
    whole = concat(parts)
    for epoch in (0, 3):
        expected = np.concatenate([each.read(range(len(each)), epoch)["x"] for each in parts])
        positions = np.random.default_rng(0).permutation(len(whole))
        read = whole.read(positions, epoch)
        np.testing.assert_array_equal(read["x"], expected[positions])
        np.testing.assert_array_equal(read["y"], np.repeat(expected[positions, None] // 10, 2, axis=1))
        visits = whole.order.visits(np.full(len(positions), epoch), positions)
        hits = whole.order.inverse(visits.rows, np.full(len(positions), epoch), (0, len(whole)))
        for asked, position in zip(*hits, strict=True):
            assert visits.rows[asked] == whole.order.visits(np.array([epoch]), np.array([position])).rows[0]


def test_step_calls_no_part_that_it_does_not_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = concat([np.arange(2) for _ in range(2000)])
    whole.order.visits(np.zeros(1, np.int64), np.zeros(1, np.int64))  # what is computed once
    calls: list[Any] = []
    monkeypatch.setattr(Sequential, "row_range", property(calls.append))
    monkeypatch.setattr(Sequential, "visits", lambda *arguments: calls.append(arguments))
    whole.order.visits(np.zeros(5, np.int64), np.arange(0, 4000, 800))
    assert not calls


def test_state_describes_parts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    loader = Dataloader(concat([np.arange(2) for _ in range(100)]), 8, num_workers=0)
    with iter(loader) as iterator:
        first = iterator.get_state()
        calls: list[Any] = []
        monkeypatch.setattr(Sequential, "describe", calls.append)
        next(iterator)
        assert iterator.get_state()["order"] == first["order"]
        first["verbs"].clear()  # a copy
        assert iterator.get_state()["verbs"]
        assert not calls


@pytest.mark.parametrize("rows", [[], [3], [0, 2, 9]])
def test_quarantined_rows_are_looked_up(rows: list[int]) -> None:
    quarantine = quarantined_rows(np.array([*rows, *rows], np.uint8), 10)
    assert quarantine.tolist() == rows
    visits = without(Visits(np.array([9, 2, -1, 0, 1, 3, 9]), np.zeros(7, np.int64)), quarantine)
    assert visits.rows.tolist() == [-1 if row in rows else row for row in (9, 2, -1, 0, 1, 3, 9)]
