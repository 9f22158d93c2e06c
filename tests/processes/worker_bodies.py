"""What the real processes of `test_jax_runs.py` do: each has worker processes of its own."""

import warnings
from typing import Any

import jax
import numpy as np
import psutil
import pytest
from jax.experimental import multihost_utils
from jax.sharding import AxisType

from loadax import Dataloader, from_arrays
from tests.loader.oracle import NONE, Oracle, ReadSource, arrays, assert_placed
from tests.loader.workers import maps

ROWS, BATCH = 90, 16
TREE = arrays(ROWS)


def deaths() -> None:
    """One host's workers die, and no host notices: the others don't wait, and the batches are the same."""
    padded = Oracle(TREE, from_arrays(TREE).order, NONE, BATCH, "pad")
    mesh = jax.make_mesh((jax.device_count(),), ("data",), (AxisType.Auto,))
    options: Any = {
        "remainder": "pad",
        "num_epochs": 5,
        "num_workers": 1,
        "worker_type": "process",
        "prefetch_bytes": 1,
    }
    loader = Dataloader(ReadSource(TREE), BATCH, mesh=mesh, **options)
    with loader.iterate() as batches, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for step, batch in enumerate(batches):
            assert_placed(batch, padded.batch(step))
            if step == 2 and jax.process_index() == 0:
                for child in psutil.Process().children():
                    child.kill()
    assert step == 5 * -(-ROWS // BATCH) - 1
    assert ["killed by signal 9" in str(each.message) for each in caught] == [True] * (jax.process_index() == 0)


def errors_are_the_hosts_own() -> None:
    """The host whose row fails has the error, at its step; the others go on."""
    data = from_arrays({"x": np.arange(64)}).map(maps.raises("value"))
    mesh = jax.make_mesh((jax.device_count(),), ("data",), (AxisType.Auto,))
    loader = Dataloader(data, 8, mesh=mesh, num_workers=1, worker_type="process")
    mine = [21 in loader.local_rows(step) for step in range(8)]
    with loader.iterate() as batches:
        if any(mine):
            next(batches), next(batches)
            with pytest.raises(ValueError, match="no good"):
                next(batches)
        else:
            assert len(list(batches)) == 8
    failed = multihost_utils.process_allgather(np.array(any(mine)))
    assert int(failed.sum()) == 1


def all_cases() -> None:
    """One launch costs seconds, so all of this is done in one."""
    deaths()
    errors_are_the_hosts_own()
