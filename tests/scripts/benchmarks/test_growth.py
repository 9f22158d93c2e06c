"""Costs grow as they should: each is counted at two sizes, and a test fails when one bends."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.scripts.benchmarks.scripts import load, run

MARGIN = 0.35  # of an exponent that comes from CPU times, on a busy machine

GROWTH: Any = load("growth")


@pytest.mark.parametrize("name", [name for name, cost in GROWTH.COSTS.items() if cost.small])
def test_cost_does_not_bend(name: str) -> None:
    cost = GROWTH.COSTS[name]
    if cost.unit == "bytes":
        assert cost.figure(cost.small[-1]) <= cost.most
        return
    figures = [cost.figure(n, cost.tested) for n in cost.small]
    assert GROWTH.exponent(cost.small, figures) <= cost.exponent + (MARGIN if cost.tested == "ms" else 0), figures
    if cost.calls is not None:
        assert figures[-1] / cost.small[-1] <= cost.calls


def test_exponent_is_that_of_the_last_two_sizes() -> None:
    assert GROWTH.exponent((1, 10, 100), (1, 1, 1)) == 0
    assert GROWTH.exponent((1, 10, 100), (5, 1, 100)) == pytest.approx(2)


def test_every_call_is_counted() -> None:
    assert GROWTH.calls(lambda: [abs(number) for number in range(500)]) - 500 == pytest.approx(
        GROWTH.calls(lambda: [abs(number) for number in range(1500)]) - 1500
    )


def test_script_measures_another_checkout_beside_this_one(tmp_path: Path) -> None:
    path = tmp_path / "growth.json"
    text = run("growth.py", "replicated", "--package", str(Path(__file__).parents[3]), "--json", str(path))
    found = json.loads(path.read_text())["growth"]["replicated"]
    assert all(len(found[side]["figures"]) == 3 for side in ("before", "after"))
    assert f"{found['after']['figures'][-1]:,.4g} ms" in text


def test_unknown_cost_is_named() -> None:
    with pytest.raises(AssertionError, match="no cost is called 'lane'; there are quarantine, "):
        run("growth.py", "lane")
