"""Every example starts. `.ci/run` runs them whole.

Here each only says what it takes, so that a broken import shows at once.
"""

from pathlib import Path

import pytest

from tests import forkserver

EXAMPLES = sorted((Path(__file__).parents[3] / "examples").glob("*.py"))


def test_the_main_job_is_there() -> None:
    assert "digits.py" in [example.name for example in EXAMPLES]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)
def test_an_example_says_what_it_takes(example: Path, tmp_path: Path) -> None:
    result = forkserver.run([example, "--help"], cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("usage:"), result.stdout
