"""The language model trains the same in one process and in two that hold different stretches of the text, and goes on where it was."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

LANGUAGE_MODEL = Path(__file__).parents[2] / "examples" / "language_model.py"


def run(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, str(LANGUAGE_MODEL), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder, timeout=55)


def train(folder: Path, *arguments: str) -> tuple[list[float], str]:
    """The bits per byte of six steps, and what the script printed."""
    losses = folder / "losses.json"
    result = run(folder, "--steps", "6", "--at-most", "9", "--losses", str(losses), *arguments)
    assert result.returncode == 0, result.stderr
    return json.loads(losses.read_text()), result.stdout


@pytest.mark.timeout(120)
def test_two_processes_of_half_the_text_each_reach_the_same_losses(tmp_path: Path) -> None:
    alone, printed_alone = train(tmp_path)
    together, printed_together = train(tmp_path, "--processes", "2")
    assert len(alone) == 6
    assert alone[-1] < alone[0]
    # Tokens are equal; the sums over them are taken in another order.
    assert together == pytest.approx(alone, abs=1e-3)
    parts = r"rows +(\d+) to +(\d+), tokens +(\d+) to +(\d+), 1024 bytes"
    held = [tuple(map(int, part)) for part in re.findall(parts, printed_alone)]
    everything = [(row, row + 8, token, token + 64) for row in (0, 8) for token in (0, 64, 128, 192)]
    assert sorted(held) == everything
    held = [tuple(map(int, part)) for part in re.findall(parts, printed_together)]
    assert sorted(held) == [part for part in everything if part[3] <= 128], "process 0 holds the first half of every window"
    for printed in (printed_alone, printed_together):
        assert len(re.findall(r'the very batch that came next, from \{.*"step": 3,', printed)) == 1, printed
        assert re.search(r"\d\.\d{3} bits per byte on 256 held-out windows, where bigrams take 3\.\d{3}\n", printed), printed
        last = printed.splitlines()[-1]
        assert re.fullmatch(r"training waited \d+\.\d+ s of \d+\.\d+ s for data \(\d+\.\d%\)", last), printed
    assert "[Gloo]" not in printed_together


def test_a_model_that_is_no_better_than_bigrams_fails(tmp_path: Path) -> None:
    result = run(tmp_path, "--steps", "2")
    assert result.returncode == 1, result.stderr
    assert "where bigrams take" in result.stdout


def test_a_run_too_short_to_stop_is_refused(tmp_path: Path) -> None:
    result = run(tmp_path, "--steps", "1")
    assert result.returncode == 2
    assert "--steps 1: pass 2 or more, since the run stops half-way and goes on" in result.stderr
