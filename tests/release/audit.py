"""What a bare installation consists of, as an SBOM, and what is known of its vulnerabilities."""

import json
import subprocess
from pathlib import Path

from tests.limits import HANG
from tests.release.build import run_tool
from tests.release.pages import ROOT


def write_sbom(tools: Path, python: Path, wheel: Path) -> Path:
    """Writes the packages of an environment beside the wheel, as CycloneDX.

    Args:
        tools: Folder with `cyclonedx-py`.
        python: Interpreter of the environment, which has the wheel and what it needs.
        wheel: Path of the wheel.

    Returns:
        Path of the SBOM.

    Raises:
        AssertionError: if it lacks loadax or JAX.
    """
    path = wheel.with_name(wheel.name.split("-py3")[0] + ".cdx.json").absolute()
    options: list[str | Path] = ["--output-reproducible", "--pyproject", ROOT / "pyproject.toml", "-o", path]
    run_tool([tools / "cyclonedx-py", "environment", *options, python], ROOT)
    parts = json.loads(path.read_text("utf-8"))["components"]
    names = {part["name"] for part in parts}
    assert {"jax", "numpy", "tensorstore"} <= names, names
    print(f"{path.name}: {len(parts)} packages")
    return path


def find_vulnerabilities(tools: Path, python: Path) -> None:
    """Asks the package index for known vulnerabilities of the packages of an environment.

    Says that it was not run where the index gives no answer.

    Raises:
        AssertionError: if there are some.
    """
    (packages,) = python.parents[1].glob("lib/python*/site-packages")
    command: list[str | Path] = [
        tools / "pip-audit",
        "--path",
        packages,
        "--progress-spinner",
        "off",
        "--timeout",
        "10",
    ]
    try:
        run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=HANG)
    except subprocess.TimeoutExpired:
        print("NOT RUN: pip-audit, which got no answer in time")
        return
    if run.returncode and "Found" not in run.stderr + run.stdout:
        print(f"NOT RUN: pip-audit, which got no answer: {run.stderr.strip().rpartition(chr(10))[2][:200]}")
        return
    assert run.returncode == 0, f"{run.stdout}{run.stderr}"
    print(f"pip-audit: {run.stderr.strip()}")
