"""Hosts that stop, leave, fail or are suspended, as real processes with real signals."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.limits import HANG, until
from tests.processes.launch import ROOT, free_port, output_of, started

pytestmark = pytest.mark.processes


def test_the_watch_needs_no_answer_of_a_stopped_coordinator(tmp_path: Path) -> None:
    with started("tests.processes.watch_bodies:first_leaves_and_stops", 2, 1, {"folder": str(tmp_path)}) as (
        children,
        logs,
    ):
        assert children[1].wait(HANG / 2) == 0, output_of(logs[1])  # JAX would end it after 100 s
        assert output_of(logs[1]) == "told"


def test_hosts_that_are_suspended_go_on(tmp_path: Path) -> None:
    body = "tests.processes.watch_bodies:suspended"
    with started(body, 2, 1, {"folder": str(tmp_path), "steps": 60}) as (children, logs):
        until(lambda: len(list(tmp_path.iterdir())) == 2)
        for child in children:
            os.kill(child.pid, signal.SIGSTOP)
        time.sleep(5)
        for child in children:
            os.kill(child.pid, signal.SIGCONT)
        assert [child.wait(HANG) for child in children] == [0, 0], [output_of(log) for log in logs]


PROGRAM = """
import sys, time
import jax, numpy as np
from loadax import Dataloader, from_arrays
from loadax.loader.watch import hosts, process_exit

hosts.TICK = 0.1
hosts.GRACE = process_exit.GRACE = 1.0
process_exit._LONGEST = 2.0
process, port, how = int(sys.argv[1]), sys.argv[2], sys.argv[3]
jax.distributed.initialize("127.0.0.1:" + port, num_processes=2, process_id=process)

def read(row):
    if how == "map" and process == 1 and row >= 400:
        raise ValueError("diverged")
    return row

def train():
    total = jax.jit(lambda batch: batch.sum())
    for batch in Dataloader(from_arrays(np.arange(4000)).map(read), 8, num_workers=1):
        total(batch).block_until_ready()
        if how == "training" and process == 1 and batch.addressable_shards[0].data.max() >= 400:
            raise ValueError("diverged")

try:
    train()
except ValueError:
    if how == "map":
        sys.exit(3)
    raise
"""


@pytest.mark.parametrize("how", ["map", "training"])
def test_others_end_soon_after_a_process_that_exits_with_an_error_and_name_it(how: str, tmp_path: Path) -> None:
    """Whether the iterator or the training code raises, and whether Python or the program ends the process."""
    port, logs = str(free_port()), [tmp_path / "0", tmp_path / "1"]
    program = tmp_path / "train.py"
    program.write_text(PROGRAM)
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "1", "PYTHONPATH": str(ROOT)}
    children = []
    try:
        for number, log in enumerate(logs):
            with log.open("wb") as output:
                command = [sys.executable, str(program), str(number), port, how]
                children.append(
                    subprocess.Popen(
                        command, env=environment, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
                    )
                )
        codes = [child.wait(HANG / 2) for child in children]  # JAX would end them after five minutes
    finally:
        for child in children:
            child.kill()
            child.wait()
    told = output_of(logs[0])
    assert 0 not in codes, told
    assert "process 1 ended before step 5" in told
    assert "ValueError: diverged" in told
