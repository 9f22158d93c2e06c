"""`loadax plan` as its users meet it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import zarr

from tests.cli.conftest import Command
from tests.limits import HANG

ROOT = Path(__file__).parents[2]
MESH = ("--mesh", "data=4,seq=2", "--hosts", "4", "--batch-size", "16")


@pytest.fixture
def tokens(tmp_path: Path) -> str:
    np.arange(1001, dtype=np.uint16).tofile(tmp_path / "corpus.bin")
    return str(tmp_path / "corpus.bin")


@pytest.fixture
def fields(tmp_path: Path) -> str:
    """Two arrays in chunks of 16 rows."""
    group = zarr.open_group(tmp_path / "fields.zarr", mode="w")
    group.create_array("t2m", shape=(128, 16, 64), chunks=(16, 16, 64), dtype="f4")[:] = 1
    group.create_array("day", shape=(128,), chunks=(128,), dtype="i4")[:] = 2
    return str(tmp_path / "fields.zarr")


def test_a_plan_of_tokens(tokens: str, command: Command) -> None:
    code, out, err = command(
        "plan", tokens, "--seq-len", 9, "--dtype", "uint16", *MESH, "--partition", "data,seq", "--shuffle", 3
    )
    assert (code, err) == (0, "")
    assert "order        111 rows\n             shuffle(3)\n" in out
    assert "batches      16 rows, 1 epoch: 6 steps\n" in out
    assert "mesh         data=4, seq=2: 8 devices on 4 hosts\n" in out
    assert "leaves       ['tokens'] uint16[16, 10] by P('data', 'seq')\n" in out
    assert "\nrows read          4      4       4\n" in out
    assert "\nbytes read         80 B   80 B    80 B\n" in out
    assert out.endswith(
        "checked all steps on 4 hosts (4 different shares): each row is read by exactly the one host that holds it, "
        "and occurs in these steps at most once\n"
    )


def test_a_plan_of_chunks_as_json(fields: str, command: Command) -> None:
    options = "--partition t2m=data,-,seq;day=data --shuffle 0 --block chunks --epochs 0 --remainder pad"
    code, out, err = command("plan", fields, *MESH, *options.split(), "--json", "--steps", 3)
    assert code == 0
    assert err.startswith("loadax: block shuffle: 8 lanes x 4 blocks of 16 rows")
    shown = json.loads(out)
    assert shown["order"][1] == "shuffle(0, block=16, window=4, lanes=128)"
    assert shown["batches"]["num_epochs"] is None
    assert shown["reading"]["kept_open"] is True
    assert [leaf["partition"] for leaf in shown["leaves"]] == ["P('data')", "P('data')", "P('data', None, 'seq')"]
    assert shown["check"]["steps"] == 3


def test_a_full_shuffle_is_warned_of_once_with_figures(fields: str, command: Command) -> None:
    code, out, err = command("plan", fields, *MESH, "--partition", "data", "--variables", "t2m", "--shuffle", 0)
    assert (code, err) == (0, "")
    assert "warning: hosts decode 1" in out
    assert "shuffle(seed, block='chunks') decodes each chunk once an epoch" in out


def test_axes_that_cut_one_dim_together(fields: str, command: Command) -> None:
    code, out, _ = command(
        "plan", fields, *MESH, "--partition", "data+seq", "--variables", "t2m", "--block", 16, "--shuffle", 1
    )
    assert code == 0
    assert "by P(('data', 'seq'))" in out
    assert "shuffle(1, block=16, window=4, lanes=128)" in out


@pytest.mark.processes
def test_the_command_itself_touches_no_accelerator(tokens: str) -> None:
    """JAX would fail to make any device on this platform."""
    options = "--seq-len 9 --dtype uint16 --mesh data=512 --hosts 64 --batch-size 512 --epochs 2"
    child = subprocess.run(
        [sys.executable, "-W", "error", "-m", "loadax", "plan", tokens, *options.split(), "--remainder", "pad"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=HANG,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "none_of_them"},
    )
    assert (child.returncode, child.stderr) == (0, "")
    assert "mesh         data=512: 512 devices on 64 hosts" in child.stdout
    assert "['mask'] bool[512] by P('data')" in child.stdout


@pytest.mark.processes
def test_other_commands_import_no_jax() -> None:
    code = "import sys; from loadax.cli.commands import parser; parser(); sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False, timeout=HANG).returncode == 0
