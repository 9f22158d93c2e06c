"""`loadax plan` as its users meet it."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from loadax.cli import main
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


def plan(capfd: pytest.CaptureFixture[str], *arguments: Any) -> tuple[int, str, str]:
    capfd.readouterr()
    try:
        code = main(["plan", *map(str, arguments)])
    except SystemExit as ended:
        code = int(ended.code or 0)
    return code, *capfd.readouterr()


def test_a_plan_of_tokens(tokens: str, capfd: pytest.CaptureFixture[str]) -> None:
    code, out, err = plan(
        capfd, tokens, "--seq-len", 9, "--dtype", "uint16", *MESH, "--partition", "data,seq", "--shuffle", 3
    )
    assert (code, err) == (0, "")
    assert "order        111 rows\n             shuffle(3)\n" in out
    assert "batches      16 rows, 1 epoch: 6 steps\n" in out
    assert "mesh         data=4, seq=2: 8 devices on 4 hosts\n" in out
    assert "leaves       ['tokens'] uint16[16, 10] by P('data', 'seq')\n" in out
    assert "\nrows read          4      4       4\n" in out
    assert "\nbytes read         80 B   80 B    80 B\n" in out
    assert "rows   0:5" in out
    assert out.endswith(
        "checked all steps on 4 hosts (4 different shares): each row is read by exactly the one host that holds it, "
        "and occurs in these steps at most once\n"
    )


def test_a_plan_of_chunks_as_json(fields: str, capfd: pytest.CaptureFixture[str]) -> None:
    options = (
        "--partition",
        "t2m=data,-,seq;day=data",
        "--shuffle",
        0,
        "--block",
        "chunks",
        "--epochs",
        0,
        "--remainder",
        "pad",
    )
    code, out, err = plan(capfd, fields, *MESH, *options, "--json", "--steps", 3)
    assert code == 0
    assert err.startswith("loadax: block shuffle: 8 lanes x 4 blocks of 16 rows")
    shown = json.loads(out)
    assert shown["order"][1] == "shuffle(0, block=16, window=4, lanes=128)"
    assert shown["batches"]["num_epochs"] is None
    assert shown["reading"]["kept_open"] is True
    assert [leaf["partition"] for leaf in shown["leaves"]] == ["P('data')", "P('data')", "P('data', None, 'seq')"]
    assert shown["check"]["steps"] == 3


def test_a_full_shuffle_is_warned_of_once_with_figures(fields: str, capfd: pytest.CaptureFixture[str]) -> None:
    code, out, err = plan(capfd, fields, *MESH, "--partition", "data", "--variables", "t2m", "--shuffle", 0)
    assert (code, err) == (0, "")
    assert "warning: hosts decode 1" in out
    assert "shuffle(seed, block='chunks') decodes each chunk once an epoch" in out


def test_axes_that_cut_one_dim_together(fields: str, capfd: pytest.CaptureFixture[str]) -> None:
    code, out, _ = plan(
        capfd, fields, *MESH, "--partition", "data+seq", "--variables", "t2m", "--block", 16, "--shuffle", 1
    )
    assert code == 0
    assert "by P(('data', 'seq'))" in out
    assert "shuffle(1, block=16, window=4, lanes=128)" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (MESH, """or over all of them: partition=P(("data", "seq")) (--partition)\n"""),
        (
            ("--mesh", "data=4,data=2", "--batch-size", "8"),
            "'data=4,data=2' is not a mesh; pass axes and their sizes, each once",
        ),
        (("--mesh", "data", "--batch-size", "8"), "'data' is not a mesh"),
        (
            ("--mesh", "data=6", "--batch-size", "8"),
            "error: --batch-size 8: leaf ['day']: dim 0 has 8 rows, but P('data') splits it into 6 equal parts.",
        ),
        (
            ("--mesh", "data=6", "--hosts", "4", "--batch-size", "6"),
            "error: --hosts 4 can't own equal parts of the 6 devices",
        ),
        ((*MESH, "--partition", "data", "--block", "16"), "--block 16 needs a shuffle: pass --shuffle SEED as well"),
        (
            (*MESH, "--partition", "data", "--block", "some"),
            "'some' is not a block; pass a number of rows, or 'chunks'",
        ),
        ((*MESH, "--partition", "data;seq"), "--partition 'data;seq': name the leaf of each part"),
        (
            (*MESH, "--partition", "t2m=data;seq"),
            "'seq' lacks a leaf or its axes; pass LEAF=AXES for each leaf",
        ),
        ((*MESH, "--partition", "t2m=data"), "Give one spec for all leaves, or one for each leaf"),
        (
            (*MESH, "--partition", "rows"),
            "--partition rows: leaf ['day']: P('rows') names the axis 'rows', but the mesh has {'data': 4, 'seq': 2}",
        ),
        ((*MESH, "--partition", "data", "--variables", ","), "',' has no names; pass names separated by commas"),
    ],
)
def test_what_can_not_be_planned(fields: str, arguments: Any, message: str, capfd: pytest.CaptureFixture[str]) -> None:
    code, out, err = plan(capfd, fields, *arguments)
    assert (code, out) == (2, "")
    assert message in err


@pytest.mark.processes
def test_the_command_itself_touches_no_accelerator(tokens: str) -> None:
    """JAX would fail to make any device on this platform."""
    arguments = (
        "plan",
        tokens,
        "--seq-len",
        "9",
        "--dtype",
        "uint16",
        "--mesh",
        "data=512",
        "--hosts",
        "64",
        "--batch-size",
        "512",
    )
    child = subprocess.run(
        [sys.executable, "-W", "error", "-m", "loadax", *arguments, "--epochs", "2", "--remainder", "pad"],
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


def test_its_help_has_examples(capfd: pytest.CaptureFixture[str]) -> None:
    code, out, _ = plan(capfd, "--help")
    assert code == 0
    assert "loadax plan corpus.bin " in out.split("examples:", 1)[1]
