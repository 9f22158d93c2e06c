"""`loadax audit`: what it says about certificates of runs that agree, and of those that don't."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loadax import Dataloader, from_arrays
from tests.cli.conftest import Command

DATA = from_arrays({"x": np.arange(100)}).shuffle(2)


@pytest.fixture
def audit(tmp_path: Path, command: Command) -> Command:
    return lambda *names: command("audit", *(path for name in names for path in sorted(tmp_path.glob(name))))


def save(
    folder: Path, name: str, hosts: int, data: Any = DATA, batch_size: int = 12, skip: Any = (), **how: Any
) -> None:
    for host in range(hosts):
        loader = Dataloader(data, batch_size, shard_index=host, shard_count=hosts).skip(skip)
        loader.certificate(**how).save(folder / f"{name}-{host}.json")


def test_runs_on_other_numbers_of_hosts_that_saw_the_same(tmp_path: Path, audit: Command) -> None:
    save(tmp_path, "before", 4)
    save(tmp_path, "after", 3)
    done = audit("*.json")
    digest = Dataloader(DATA, 12, shard_index=0, shard_count=1).certificate().digest
    assert done.out.splitlines() == [
        f"3 processes: 3 certificates, steps 0 to 7, 96 records; digest {digest}",
        f"4 processes: 4 certificates, steps 0 to 7, 96 records; digest {digest}",
        "3 processes and 4 processes: the same rows in the same batches: yes",
    ]
    assert (done.code, done.err) == (0, "")


def test_one_run_alone_and_a_host_that_is_missing(tmp_path: Path, audit: Command) -> None:
    save(tmp_path, "run", 4)
    assert audit("*.json").code == 0
    (tmp_path / "run-2.json").unlink()
    save(tmp_path, "other", 1)
    done = audit("*.json")
    assert done.out.splitlines()[2:] == ["4 processes: MISSING: no certificate has positions 6 to 8 of steps 0 to 7"]
    assert done.code == 1


def test_the_first_steps_that_differ_are_named(tmp_path: Path, audit: Command) -> None:
    save(tmp_path, "a", 2)
    save(tmp_path, "b", 3, skip=[6])
    done = audit("*.json")
    assert done.out.splitlines()[2] == (
        "2 processes and 3 processes: the same rows in the same batches: "
        "NO: 2 processes has steps 0 to 7, 3 processes has steps 0 to 6"
    )
    assert done.code == 1
    save(tmp_path, "b", 3, from_arrays({"x": np.arange(100)}).shuffle(3))
    done = audit("*.json")
    advice = "; certificates of shorter ranges, certificate(range(start, stop)), narrow it down"
    assert done.out.splitlines()[2].endswith(f"NO: some of steps 0 to 7 differ{advice}")
    # The advice, followed: one certificate per host and step.
    for file in tmp_path.glob("*.json"):
        file.unlink()
    skipping = [Dataloader(DATA, 12, num_epochs=2, shard_index=0, shard_count=1).skip(skip) for skip in ([], [5])]
    for loader, name in zip(skipping, ("a", "b"), strict=True):
        for step in range(8):
            loader.certificate(range(step, step + 1), run=name).save(tmp_path / f"{name}-{step}.json")
    assert audit("*.json").out.splitlines()[2] == "a and b: the same rows in the same batches: NO: step 5 differs"


def test_runs_have_names(tmp_path: Path, audit: Command) -> None:
    save(tmp_path, "a", 2, run="monday")
    save(tmp_path, "b", 2, from_arrays({"x": np.arange(100)}).shuffle(3), run="tuesday")
    save(tmp_path, "c", 2, run="friday")
    done = audit("*.json")
    assert [line.partition(": digest")[0].partition(":")[0] for line in done.out.splitlines()] == [
        "monday",
        "tuesday",
        "friday",
        "monday and tuesday",
        "monday and friday",
    ]
    assert done.out.splitlines()[3].startswith("monday and tuesday: the same rows in the same batches: NO")
    assert done.out.splitlines()[4].endswith("yes")
    assert done.code == 1


def test_two_runs_of_one_name(tmp_path: Path, audit: Command) -> None:
    save(tmp_path, "a", 2)
    save(tmp_path, "b", 2)
    assert audit("*.json").out.splitlines()[0].startswith("2 processes: 4 certificates, steps 0 to 7, 96 records;")
    save(tmp_path, "b", 2, from_arrays({"x": np.arange(100)}).shuffle(3))
    done = audit("*.json")
    assert done.out.splitlines()[0].startswith("2 processes: NOT ONE RUN: positions 0 to 5 of steps 0 to 7 and")
    assert done.out.splitlines()[0].endswith("; if these are several runs, name each with certificate(run=…)")
    assert (len(done.out.splitlines()), done.code) == (1, 1)


def test_file_that_is_not_a_certificate(tmp_path: Path, audit: Command) -> None:
    (tmp_path / "a.json").write_text("[]")
    done = audit("*.json")
    assert (done.code, done.out.splitlines()) == (2, [])
    assert done.err.startswith(f"loadax: error: {tmp_path}/a.json: this is not a certificate of version 1 or 2, but")


@pytest.mark.processes
def test_audit_does_not_import_jax(tmp_path: Path) -> None:
    """Certificates may be compared on a machine without accelerators."""
    save(tmp_path, "a", 1)
    script = (
        "import sys; from loadax.cli import main; code = main(sys.argv[1:]); "
        "assert 'jax' not in sys.modules; sys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, "audit", str(tmp_path / "a-0.json")], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("1 process: 1 certificate, steps 0 to 7, 96 records")
