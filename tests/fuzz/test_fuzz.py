"""Law: a changed file opens and its rows can be read, or an error of loadax names it.

Never another exception, a crash, a hang, or more memory than the file can need.
"""

import shutil
from pathlib import Path

import pytest

from tests.forkserver import run
from tests.fuzz.formats import FORMATS, SEED
from tests.fuzz.law import Cases

CORPUS = sorted(path for path in (Path(__file__).parent / "corpus").rglob("*") if path.is_file())
"""Files that broke the law once, by format."""


@pytest.mark.parametrize("path", CORPUS, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_what_broke_the_law_is_refused_by_name(path: Path, tmp_path: Path) -> None:
    name = path.parent.name.replace("_", " ")
    cases = Cases(name, 0, tmp_path)
    (valid,) = (tmp_path / "valid").glob(FORMATS[name].files)
    shutil.copy(path, valid)
    assert SEED in cases.check(tmp_path / "valid")


def test_a_hundred_changed_files() -> None:
    """In a program of its own: memory is limited there, and a parser of C might end it."""
    done = run(["-m", "tests.fuzz", "--cases", "5"])
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    assert "findings: none" in done.stdout


def test_a_finding_is_told_and_can_be_tried_again() -> None:
    code = (
        "import sys\nfrom tests.fuzz import __main__ as command\nfrom tests.fuzz.formats import FORMATS\n"
        "from tests.fuzz.law import Cases\n"
        "def run(self, number):\n"
        "    if number == 2: raise AssertionError('no good')\n"
        "    if number == 3:\n"
        "        import os; os.abort()\n"
        "    return 'opened'\n"
        "Cases.run = run\n"
        "sys.exit(command.main(['--format', 'npy', '--cases', '5', '--seed', '7']))\n"
    )
    done = run(["-c", code])
    assert done.returncode == 1, done.stderr
    assert "npy: no good" in done.stdout
    assert 'again: python -m tests.fuzz --format "npy" --seed 7 --first 2 --cases 1' in done.stdout
    assert "npy: the process ended by SIGABRT" in done.stdout
    assert 'again: python -m tests.fuzz --format "npy" --seed 7 --first 3 --cases 1' in done.stdout
    assert "5 cases, 3 of them opened" in done.stdout
    assert "findings: 2" in done.stdout
