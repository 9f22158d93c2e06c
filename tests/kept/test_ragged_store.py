"""A store of ragged rows that was written by 0.1.0 is read: number 2 of the formats of stores."""

import json
from pathlib import Path

import numpy as np

import loadax

KEPT = Path(__file__).parent / "ragged"


def test_ragged_store_of_earlier_version_is_read() -> None:
    assert json.loads((KEPT / "loadax.json").read_text())["version"] == 2
    data = loadax.from_zarr(KEPT)
    assert [row["x"].tolist() for row in data] == [[0, 1, 2], [], [3, 4, 5, 6, 7], [8]]
    assert [row["y"] for row in data] == [3, 0, 5, 1]
    assert data[0]["x"].dtype == np.int32
    assert data[0]["y"].dtype == np.float32
