"""Every example starts. `.ci/run` runs them whole; here each only says what it takes, so that a broken import shows at once."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


def test_the_main_job_is_there() -> None:
    assert "digits.py" in [example.name for example in EXAMPLES]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)
def test_an_example_says_what_it_takes(example: Path, tmp_path: Path) -> None:
    command = [sys.executable, str(example), "--help"]
    result = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, timeout=50)
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("usage:"), result.stdout
