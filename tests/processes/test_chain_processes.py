"""A chain of loaders in real JAX processes that are killed: one process goes on, on another mesh."""

import json
from pathlib import Path

import jax
import pytest

from loadax.sharding import data_parallel
from tests.limits import until
from tests.loader.oracle import assert_placed
from tests.processes.chain_bodies import FIRST_STEPS, chained
from tests.processes.launch import output_of, started


@pytest.mark.processes
def test_run_that_was_killed_resumes_at_any_seam_on_one_process(tmp_path: Path) -> None:
    run, wanted = chained(data_parallel(jax.devices()[:4]))
    with started("tests.processes.chain_bodies:train", 2, 4, {"folder": str(tmp_path)}) as (children, logs):
        last = [tmp_path / f"{len(wanted)}-{process}.json" for process in range(2)]
        until(lambda: all(path.exists() for path in last) or any(child.poll() for child in children))
        assert all(path.exists() for path in last), [output_of(log) for log in logs]
    for step in (9, *FIRST_STEPS[1:], 11, len(wanted)):
        one, other = (json.loads((tmp_path / f"{step}-{process}.json").read_text()) for process in range(2))
        assert one == other
        with run.iterate(one) as batches:
            assert batches.step == step
            for batch, whole in zip(batches, wanted[step:], strict=True):
                assert_placed(batch, whole, batches.mesh)
