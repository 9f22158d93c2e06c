"""JSON of TensorStore's specs is that of `to_json`, which leaks what it returns, at each call."""

import gc
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorstore as ts

from loadax import from_zarr, write_zarr
from loadax.files import spec_json as module
from loadax.files.spec_json import spec_json

SPECS: list[dict[str, Any]] = [
    {"driver": "zarr", "kvstore": "file:///tmp/ü%20'%22.zarr/", "metadata": {"fill_value": "NaN", "dtype": "<f4"}},
    {"driver": "zarr3", "kvstore": {"driver": "memory", "path": "x/"}, "schema": {"dtype": "bool"}},
    {"driver": "array", "array": [1.5, float("inf")], "dtype": "float32"},
    {"driver": "array", "array": list(range(20_000)), "dtype": "int32"},
    {"driver": "cast", "dtype": "float32", "base": {"driver": "array", "array": [1, 2], "dtype": "int32"}},
]


@pytest.mark.parametrize("given", SPECS, ids=lambda spec: spec["driver"])
def test_json_is_that_of_the_spec(given: dict[str, Any]) -> None:
    spec = ts.Spec(given)
    expected = spec.to_json()
    found = spec_json(spec)
    assert found == expected
    found.clear()
    assert spec_json(ts.Spec(given)) == expected
    kvstore = ts.KvStore.Spec("file:///tmp/a/")
    assert spec_json(kvstore) == kvstore.to_json()


def test_only_so_much_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST", 3)
    monkeypatch.setattr(module, "_known", {})
    for number in range(10):
        spec = ts.KvStore.Spec(f"memory://{number}/")
        assert spec_json(spec) == {"driver": "memory", "path": f"{number}/"}
        assert len(module._known) <= 3


def test_opening_a_store_again_leaks_nothing(tmp_path: Path) -> None:
    write_zarr({"x": np.arange(3)}, tmp_path / "x.zarr", progress=False)

    def blocks(times: int) -> int:
        for _ in range(times):
            from_zarr(tmp_path / "x.zarr")
        gc.collect()
        return sys.getallocatedblocks()

    before = blocks(5)
    assert blocks(20) - before < 20 * 100  # it was 660 each time
