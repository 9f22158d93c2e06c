"""Batches are the same under JAX's debugging modes, with empty leaves, and with dtypes of less than a byte."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest

from loadax import Dataloader, from_arrays

ROWS, BATCH = 32, 16


def doubled(row: Any) -> Any:
    return {**row, "y": row["x"].astype(np.float32) * 2}


OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "microbatches": {"microbatches": 2},
    "keep_on_device": {"keep_on_device": True},
    "device_map": {"device_map": doubled},
    "all": {"keep_on_device": True, "device_map": doubled, "microbatches": 2},
}
MODES: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "disable_jit": jax.disable_jit,
    "debug_nans": lambda: jax.debug_nans(True),
    "debug_infs": lambda: jax.debug_infs(True),
    "transfer_guard": lambda: jax.transfer_guard("disallow"),
    "none": nullcontext,
}


def check(arrays: dict[str, np.ndarray], mode: Callable[[], Any], **options: Any) -> None:
    """Compares the batches of a run with the rows."""
    mesh = jax.make_mesh((2,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    with mode():
        batches = list(Dataloader(from_arrays({"row": np.arange(ROWS), **arrays}), BATCH, mesh=mesh, **options))
    assert len(batches) == ROWS // BATCH
    for batch in batches:
        rows = np.asarray(batch["row"])
        for name, array in arrays.items():
            assert batch[name].dtype == array.dtype
            np.testing.assert_array_equal(np.asarray(batch[name]), array[rows])
        if "device_map" in options:
            np.testing.assert_array_equal(np.asarray(batch["y"]), arrays["x"][rows].astype(np.float32) * 2)


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("mode", MODES)
def test_batches_under_debugging_modes(mode: str, options: str) -> None:
    x = np.arange(ROWS * 2, dtype=np.float32).reshape(ROWS, 2)
    x[3, 1], x[4, 0] = np.nan, np.inf
    empty, cube = np.zeros((ROWS, 0), np.float32), np.zeros((ROWS, 0, 3), np.int8)
    check({"x": x, "empty": empty, "cube": cube}, MODES[mode], **OPTIONS[options])


@pytest.mark.parametrize("options", ["plain", "all"])
@pytest.mark.parametrize("dtype", ["int4", "uint4", "int2", "uint2", "float4_e2m1fn"])
def test_batches_of_dtypes_of_less_than_a_byte(dtype: str, options: str) -> None:
    x = (np.arange(ROWS * 4) % 2).reshape(ROWS, 4).astype(getattr(ml_dtypes, dtype))
    check({"x": x}, nullcontext, **OPTIONS[options])


def test_int4_beside_int64_on_devices() -> None:
    x, big = np.ones((ROWS, 4), ml_dtypes.int4), np.arange(ROWS) + 2**40
    check({"x": x, "big": big}, lambda: jax.enable_x64(True), **OPTIONS["all"])
