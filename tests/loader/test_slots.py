"""What fills a slot of a run is imported when it is asked for, and not before."""

import json
import os
import subprocess
import sys
from functools import cache

import pytest

from tests.limits import HANG

pytestmark = pytest.mark.processes

RUN = """
import json, sys
import numpy as np
import loadax

data = loadax.from_arrays({"x": np.arange(64.0)}).shuffle(seed=0).map(lambda row: row)
loader = loadax.Dataloader(data, 8, %s)
for batch in loader:
    pass
%s
print(json.dumps([name for name in sys.modules if name.startswith("loadax.") or "." not in name]))
"""
PLAIN = "num_workers=2"

# Rooms of fillers and reports, of which a plain run needs none.
ROOMS = [
    "loadax.composition",
    "loadax.work.tasks",
    "loadax.loader.assembly.chunk_budget",
    "loadax.loader.assembly.maskable",
    "loadax.loader.assembly.seq_len",
    "loadax.loader.buckets",
    "loadax.loader.chain",
    "loadax.loader.checkpoint",
    "loadax.loader.device",
    "loadax.loader.epoch",
    "loadax.loader.execution.alternating",
    "loadax.loader.execution.masked_rows",
    "loadax.loader.inspection",
    "loadax.loader.lease",
    "loadax.loader.mask_errors",
    "loadax.loader.other_order",
    "loadax.loader.remote",
    "loadax.loader.reports",
    "loadax.loader.row_costs",
    "loadax.loader.streams",
    "loadax.loader.watch.hosts",
    "loadax.loader.workers",
    "loadax.packing",
    "loadax.plan.balance",
    "loadax.plan.buckets",
    "loadax.plan.find",
    "loadax.plan.mix",
    "loadax.row_index",
    "loadax.writing",
]


@cache
def imported(options: str, calls: str = "") -> set[str]:
    """Names of the modules that a program has imported at its end."""
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-c", RUN % (options, calls)]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=HANG, check=True)
    return set(json.loads(run.stdout.splitlines()[-1]))


@pytest.mark.parametrize("room", ROOMS)
def test_a_plain_run_imports_no_room_of_another_filler(room: str) -> None:
    assert room not in imported(PLAIN)


@pytest.mark.parametrize(
    ("options", "calls", "room"),
    [
        ("num_workers=1, worker_type='process'", "", "loadax.loader.workers.process_pool"),
        (PLAIN, "loader.explain()", "loadax.loader.inspection.explain"),
        ("num_workers=1, on_error='mask'", "", "loadax.loader.execution.masked_rows"),
    ],
)
def test_a_room_is_imported_when_it_is_asked_for(options: str, calls: str, room: str) -> None:
    assert room in imported(options, calls)


def test_the_trunk_of_the_loader_is_small() -> None:
    trunk = [name for name in imported(PLAIN) if name.startswith(("loadax.loader", "loadax.sharding"))]
    assert len(trunk) <= 45
