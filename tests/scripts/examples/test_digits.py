"""The main job trains in two processes, and says so with numbers. `.ci/run` kills and resumes it."""

import json
import math
import re
import signal
import time
from contextlib import suppress
from pathlib import Path

import psutil

from tests import forkserver
from tests.limits import HANG

DIGITS = Path(__file__).parents[3] / "examples" / "digits.py"


def test_two_processes_learn_one_of_them_speaks_and_an_accuracy_that_is_too_low_fails(tmp_path: Path) -> None:
    path = tmp_path / "losses.json"
    result = forkserver.run(
        [DIGITS, "--epochs", "1", "--at-least", "1.1", "--losses", path, "--processes", "2"], cwd=tmp_path
    )
    assert result.returncode == 1, result.stdout
    (loss,) = json.loads(path.read_text())
    assert loss < math.log(10), "better than any digit for all"
    last = result.stdout.splitlines()[-1]
    assert re.fullmatch(r"training waited \d+\.\d+ s of \d+\.\d+ s for data \(\d+\.\d%\)", last), result.stdout
    assert "[Gloo]" not in result.stdout
    assert result.stdout.count("accuracy") == 1, "one process speaks for all"


def test_interrupting_ends_every_process(tmp_path: Path) -> None:
    """The fork server gives a program the usual signal handlers, also where this process ignores an interrupt."""
    with (tmp_path / "output").open("w") as output:
        script = forkserver.Child(
            [DIGITS, "--processes", "2", "--epochs", "1000"],
            cwd=tmp_path,
            stdout=output,
            stderr=output,
        )
    children: list[psutil.Process] = []
    deadline = time.monotonic() + HANG
    try:
        # Both import JAX, and the program waits for them.
        while len(children := psutil.Process(script.pid).children()) < 2 or any(map(_is_new, children)):
            assert time.monotonic() < deadline, (tmp_path / "output").read_text()
            time.sleep(0.1)
        script.send_signal(signal.SIGINT)
        assert script.wait(HANG) == 130
        assert not any(child.is_running() for child in children)
        assert "Traceback" not in (tmp_path / "output").read_text()
    finally:
        script.kill()
        for process in children:
            with suppress(psutil.NoSuchProcess):
                process.kill()


def _is_new(child: psutil.Process) -> bool:
    return sum(child.cpu_times()[:2]) < 0.5
