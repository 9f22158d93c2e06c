"""A soak reads the same rows after each resume, and finds what grows; for hours: `python -m tests.soak --hours 2`."""

import gc
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.limits import HANG
from tests.soak.__main__ import main
from tests.soak.measure import sample
from tests.soak.table import findings
from tests.soak.trend import trend
from tests.soak.turns import LongRun
from tests.soak.workloads import WORKLOADS

ROOT = Path(__file__).parents[2]


def test_turn_with_move_and_resume_on_two_hosts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "log.jsonl"
    assert main(["--hours", "1e-6", "--every", "0", "--only", "stream", "--log", str(log)], None) == 0
    entries = [json.loads(line) for line in log.read_text().splitlines()]
    assert [entry["kind"] for entry in entries] == ["start", "sample", "trim", "closed"]
    assert entries[1]["steps"] == {"stream": 63}
    told = capsys.readouterr().out
    assert main(["--read", str(log)]) == 0
    assert capsys.readouterr().out in told
    assert "| 0 to 10 | 63 |" in told
    assert "grown: nothing" in told


def test_resume_with_other_rows_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = LongRun("stream", WORKLOADS["stream"], tmp_path)
    monkeypatch.setattr(run, "_resumed", lambda *given: [[0] * 32] * 3)
    try:
        with pytest.raises(AssertionError, match="stream: turn 1, step 60: resumed on 2 hosts, the rows are others"):
            run.turn()
    finally:
        run.close()


def grown_while(grow: Callable[[], object]) -> list[str]:
    """What grows, by samples that are taken at once and dated ten seconds apart."""
    samples = []
    gc.collect()
    for seconds in range(10, 370, 10):
        grow()
        samples.append(json.dumps({"seconds": seconds, "steps": {}, "owners": {}, **sample()}))
    return findings([json.loads(line) for line in samples])


PLANTED = """
import os
import numpy as np
from tests.soak.test_soak import grown_while

kept = []

def leak():
    kept.append(np.ones(1 << 18))  # 2 MiB
    kept.append(os.open(os.devnull, os.O_RDONLY))

print(*grown_while(lambda: None), sep="\\n")
print(*grown_while(leak), sep="\\n")
"""


def test_planted_leaks_of_memory_and_descriptors_are_found() -> None:
    """In a process of its own: what other tests have freed is used again, or given back meanwhile."""
    done = subprocess.run(
        [sys.executable, "-c", PLANTED], cwd=ROOT, capture_output=True, text=True, timeout=HANG, check=True
    )
    nothing, memory, descriptors = done.stdout.splitlines()
    (hourly,) = re.findall(r"held grows: \+([\d.]+) ", memory)
    assert not nothing
    assert float(hourly) == pytest.approx(720, rel=0.1)  # 2 MiB every ten seconds
    assert descriptors.startswith("descriptors grows: +360.0 ± 0.0 an hour")


def test_noise_and_warm_up_are_no_growth() -> None:
    random = np.random.default_rng(0)
    seconds = np.arange(1.0, 361) * 10
    noise = random.normal(0, 20, 360)
    flat = trend(seconds.tolist(), (400 + noise).tolist())
    warmed = trend(seconds.tolist(), (400 - 300 * np.exp(-seconds / 200) + noise).tolist())
    growing = trend(seconds.tolist(), (400 + seconds / 36 + noise).tolist())
    linear = trend(seconds.tolist(), seconds.tolist())
    assert not flat.grows
    assert not warmed.grows
    assert growing.grows
    assert abs(growing.hourly - 100) < 4 * growing.error
    assert abs(flat.exponent) < 0.03
    assert linear.exponent == pytest.approx(1)
    assert linear.hourly == pytest.approx(3600)
    with pytest.raises(ValueError, match="6 samples after the warm-up; a trend needs 24"):
        trend([1.0, 2, 3, 4, 5, 6, 7], [1.0] * 7)
