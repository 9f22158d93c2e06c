"""States of runs whose weights were set in mid-run, as the first version that had them wrote them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loadax import Dataloader, from_arrays, from_documents, mix

KEPT = Path(__file__).parent / "weights.json"


def loader_of(by: str) -> Dataloader:
    parts: list[Any] = [from_arrays({"x": np.arange(40)}).shuffle(1), from_arrays({"x": np.arange(40, 100)}).shuffle(2)]
    if by == "tokens":
        offsets = np.cumsum([0, *(1 + np.arange(60) * 7 % 11)])
        parts = [from_documents(np.arange(offsets[-1]), offsets).shuffle(seed) for seed in (1, 2)]
        return Dataloader(mix(parts, [2, 1], stop="never", by=by).map(len), 8)
    return Dataloader(mix(parts, [2, 1], stop="never", by=by), 8)


def written(by: str) -> dict[str, Any]:
    """What `weights.json` has of a mixture."""
    loader = loader_of(by)
    with loader.iterate(2) as batches:
        batches.set_weights([0.1, 0.9])
        batches.set_state(5)
        batches.set_weights([1, 1])
        batches.set_state(6)
        state = batches.get_state()
    changed = loader.with_weights(state)
    return {"state": state, "rows": [changed.rows(step).tolist() for step in range(8)]}


@pytest.mark.parametrize("by", ["example", "tokens"])
def test_saved_weights_go_on(by: str) -> None:
    kept = json.loads(KEPT.read_text())[by]
    assert kept == written(by)
    assert loader_of(by).iterate(kept["state"]).get_state() == kept["state"]
