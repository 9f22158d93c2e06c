"""A run that is harmed again and again, on other numbers of processes, has the losses of one that is not."""

import re
from pathlib import Path

from tests import forkserver
from tests.scripts.examples import quick

ELASTIC = Path(__file__).parents[3] / "examples" / "elastic.py"
ROW = re.compile(r" +(\d+) +(\d+) +(\d+) +(\d+) +(\d+)  (.*)")


def test_a_harmed_run_has_the_losses_of_an_uninterrupted_one(tmp_path: Path) -> None:
    arguments = ["--rounds", "2", "--seed", "5", "--patience", "60"]  # nothing is stopped, and tests share the machine
    result = forkserver.run([ELASTIC, *arguments], cwd=tmp_path, env=quick.ENVIRONMENT)
    assert result.returncode == 0, result.stdout + result.stderr
    title, *lines, last = result.stdout.splitlines()
    assert title.split("  ") == ["start", "processes", "from step", "to step", "done again", "what happened"]
    rows = [row.groups() for row in map(ROW.fullmatch, lines) if row is not None]
    assert [row[-1] for row in rows[:2]] == [
        "SIGTERM to process 2 in the first compile: all saved the same step",
        "SIGKILL to process 0 in a step: some died, the others were ended",
    ]
    assert [row[1] for row in rows[:3]] == ["3", "1", "2"]
    assert rows[1][4] == "0", "a preemption costs no step"
    assert rows[-1][3] == "48"
    assert rows[-1][-1] == "finished"
    assert re.fullmatch(
        r"48 losses and 4 evaluations equal those of the uninterrupted run, to a relative \d\.\de-0\d", last
    )
