"""Mixtures by the numbers that no folder beside this file has: their states and rows, as 0.1.0 wrote them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loadax import Dataloader, from_arrays, mix

KEPT = Path(__file__).parent / "mixtures.json"
MIXTURES: dict[str, dict[str, Any]] = {
    "2": {"version": 1, "stop": "never"},
    "3": {"version": 2},
    "3, endless": {"version": 2, "stop": "never"},
}


def loader_of(name: str) -> Dataloader:
    parts: list[Any] = [from_arrays({"x": np.arange(40)}).shuffle(1), from_arrays({"x": np.arange(40, 100)}).shuffle(2)]
    return Dataloader(mix(parts, [2, 1], seed=6, **MIXTURES[name]), 8)


def written(name: str) -> dict[str, Any]:
    """What `mixtures.json` has of a mixture."""
    loader = loader_of(name)
    return {"state": loader.iterate(5).get_state(), "rows": [loader.rows(step).tolist() for step in range(5)]}


@pytest.mark.parametrize("name", MIXTURES)
def test_state_and_rows_of_a_mixture_of_earlier_version(name: str) -> None:
    kept = json.loads(KEPT.read_text())[name]
    assert kept == written(name)
    batches = loader_of(name).iterate(kept["state"])
    assert batches.get_state() == kept["state"]
    batches.close()
