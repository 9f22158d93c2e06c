"""The main job trains the same in one process and in two, and says so with numbers."""

import json
import re
import signal
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests import forkserver
from tests.limits import HANG
from tests.scripts.examples import quick

DIGITS = Path(__file__).parents[3] / "examples" / "digits.py"


Run = tuple[list[float], str, int]


def train(folder: Path, at_least: float, *arguments: str, devices: int = 8) -> Run:
    """The losses of two epochs, what the script printed, and its exit code."""
    losses = folder / "losses.json"
    result = forkserver.run(
        [DIGITS, "--epochs", "2", "--at-least", str(at_least), "--losses", losses, *arguments],
        cwd=folder,
        env={**quick.ENVIRONMENT, "JAX_NUM_CPU_DEVICES": str(devices)},
    )
    return json.loads(losses.read_text()) if losses.exists() else [], result.stdout, result.returncode


@pytest.fixture(scope="module")
def one_process(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return train(tmp_path_factory.mktemp("alone"), 1.1)


def test_two_processes_reach_the_same_losses_and_an_accuracy_that_is_too_low_fails(
    one_process: Run, tmp_path: Path
) -> None:
    alone, printed_alone, failed = one_process
    together, printed_together, passed = train(tmp_path, 0.8, "--processes", "2")
    assert (failed, passed) == (1, 0), (printed_alone, printed_together)
    assert alone[1] < alone[0]
    # Rows are bit-equal; the sums over them are taken in another order.
    assert together == pytest.approx(alone, abs=1e-4)
    for printed in (printed_alone, printed_together):
        last = printed.splitlines()[-1]
        assert re.fullmatch(r"training waited \d+\.\d+ s of \d+\.\d+ s for data \(\d+\.\d%\)", last), printed
    assert "[Gloo]" not in printed_together
    assert printed_together.count("accuracy") == 1, "one process speaks for all"


def test_a_killed_run_resumes_on_another_mesh_and_ends_with_the_same_losses(one_process: Run, tmp_path: Path) -> None:
    kept = ("--checkpoints", str(tmp_path / "kept"))
    _, printed, code = train(tmp_path, 0, *kept, "--processes", "2", "--die-at", "25")
    assert code != 0, printed
    assert "accuracy" not in printed
    saved = [int(path.name) for path in (tmp_path / "kept").iterdir() if path.name.isdigit()]
    assert saved, "a checkpoint was whole when the run was killed"
    assert max(saved) < 25
    resumed, printed, code = train(tmp_path, 0.8, *kept, devices=4)
    assert code == 0, printed
    assert resumed == pytest.approx(one_process[0], abs=1e-4)


def test_interrupting_ends_every_process(tmp_path: Path) -> None:
    """The fork server gives a program the usual signal handlers, also where this process ignores an interrupt."""
    with (tmp_path / "output").open("w") as output:
        script = forkserver.Child(
            [DIGITS, "--processes", "2", "--epochs", "1000"],
            cwd=tmp_path,
            env=quick.ENVIRONMENT,
            stdout=output,
            stderr=output,
        )
    children: list[psutil.Process] = []
    deadline = time.monotonic() + HANG
    try:
        while "step/s" not in (tmp_path / "output").read_text():  # the progress bar: both are training
            assert time.monotonic() < deadline, (tmp_path / "output").read_text()
            time.sleep(0.1)
        children = psutil.Process(script.pid).children()
        assert len(children) == 2
        script.send_signal(signal.SIGINT)
        assert script.wait(HANG) == 130
        assert not any(child.is_running() for child in children)
        assert "Traceback" not in (tmp_path / "output").read_text()
    finally:
        script.kill()
        for process in children:
            with suppress(psutil.NoSuchProcess):
                process.kill()
