"""The main job trains the same in one process and in two, and says so with numbers."""

import json
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

DIGITS = Path(__file__).parents[2] / "examples" / "digits.py"


def train(folder: Path, *arguments: str) -> tuple[list[float], str]:
    """The losses of two epochs, and what the script printed."""
    losses = folder / "losses.json"
    command = [sys.executable, str(DIGITS), "--epochs", "2", "--at-least", "0.8", "--losses", str(losses), *arguments]
    result = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder, timeout=55)
    assert result.returncode == 0, result.stderr
    return json.loads(losses.read_text()), result.stdout


@pytest.mark.timeout(120)
def test_two_processes_reach_the_same_losses(tmp_path: Path) -> None:
    alone, printed_alone = train(tmp_path)
    together, printed_together = train(tmp_path, "--processes", "2")
    assert alone[1] < alone[0]
    # Rows are bit-equal; the sums over them are taken in another order.
    assert together == pytest.approx(alone, abs=1e-4)
    for printed in (printed_alone, printed_together):
        last = printed.splitlines()[-1]
        assert re.fullmatch(r"training waited \d+\.\d+ s of \d+\.\d+ s for data \(\d+\.\d%\)", last), printed
    assert "[Gloo]" not in printed_together
    assert printed_together.count("accuracy") == 1, "one process speaks for all"


def test_an_accuracy_that_is_too_low_fails(tmp_path: Path) -> None:
    command = [sys.executable, str(DIGITS), "--epochs", "1", "--at-least", "1.1"]
    result = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, timeout=50)
    assert result.returncode == 1
    assert "accuracy" in result.stdout, result.stderr


def test_interrupting_ends_every_process(tmp_path: Path) -> None:
    command = [sys.executable, str(DIGITS), "--processes", "2", "--epochs", "1000"]
    with (tmp_path / "output").open("w") as output:
        script = psutil.Popen(command, cwd=tmp_path, stdout=output, stderr=output)
    children: list[psutil.Process] = []
    deadline = time.monotonic() + 40
    try:
        while "step/s" not in (tmp_path / "output").read_text():  # the progress bar: both are training
            assert time.monotonic() < deadline, (tmp_path / "output").read_text()
            time.sleep(0.1)
        children = script.children()
        assert len(children) == 2
        script.send_signal(signal.SIGINT)
        assert script.wait(timeout=10) == 130
        assert not any(child.is_running() for child in children)
        assert "Traceback" not in (tmp_path / "output").read_text()
    finally:
        for process in (script, *children):
            with suppress(psutil.NoSuchProcess):
                process.kill()
