"""Photographs and a volume go to zarr and come back by chunks.

A model that learned nothing from them is told from one that did.
"""

import re
import subprocess
from pathlib import Path

from tests import forkserver

VOLUMES = Path(__file__).parents[3] / "examples" / "volumes.py"


def denoise(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return forkserver.run([VOLUMES, *arguments], cwd=folder)


def test_chunks_are_decoded_once_patches_are_cut_over_devices_and_a_gain_that_is_too_low_fails(tmp_path: Path) -> None:
    """In one run, of a model that two steps have taught nothing; `.ci/run` trains one that succeeds."""
    result = denoise(tmp_path, "--steps", "2")
    assert result.returncode == 1, result.stderr
    shuffles = re.findall(
        r"chunks of 16; this process has 32 chunks open, .* decodes (\d\.\d\d) rows for each one", result.stdout
    )
    assert len(shuffles) == 2, result.stdout
    assert all(float(amplification) <= 1.02 for amplification in shuffles), result.stdout
    # Each batch mixes what was written one behind the other.
    batches = re.findall(r"(\w+): a batch is (\(.*?\)) from ([3-8]) places; each device holds (\(.*?\))", result.stdout)
    assert [(name, whole, part) for name, whole, _, part in batches] == [
        ("photographs", "(32, 32, 32, 3)", "(16, 8, 32, 3)"),
        ("volume", "(32, 16, 16, 16)", "(16, 4, 16, 16)"),
    ], result.stdout
    reached = re.findall(r"dB on (\d+) held-out patches, where the best blur has (\d+\.\d+) dB", result.stdout)
    assert [int(patches) for patches, _ in reached] == [9 * 14, 64]
    # The blur is better than the noise alone, which is 20.5 dB where no value is near 0 or 255.
    assert all(float(blur) > 22 for _, blur in reached), result.stdout
    assert result.stdout.count("training waited") == 2


def test_no_steps_are_refused(tmp_path: Path) -> None:
    result = denoise(tmp_path, "--steps", "0")
    assert result.returncode == 2
    assert "--steps 0: pass 1 or more" in result.stderr
