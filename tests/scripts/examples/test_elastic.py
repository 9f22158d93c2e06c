"""A run that is harmed again and again, on other numbers of processes, has the losses of one that is not."""

import re
from pathlib import Path

from tests import forkserver
from tests.scripts.examples import quick

ELASTIC = Path(__file__).parents[3] / "examples" / "elastic.py"
ROW = re.compile(r" +(\d+) +(\d+) +(\d+) +(\d+) +(\d+)  (.*)")


def test_a_harmed_run_has_the_losses_of_an_uninterrupted_one(tmp_path: Path) -> None:
    arguments = ["--rounds", "2", "--seed", "34", "--patience", "60"]  # nothing is stopped, and tests share the machine
    result = forkserver.run([ELASTIC, *arguments], cwd=tmp_path, env=quick.ENVIRONMENT)
    assert result.returncode == 0, result.stdout + result.stderr
    title, *lines, last = result.stdout.splitlines()
    assert title.split("  ") == ["start", "processes", "from step", "to step", "done again", "what happened"]
    rows = [row.groups() for row in map(ROW.fullmatch, lines) if row is not None]
    assert [row[-1] for row in rows[:2]] == [
        "SIGKILL to process 0 in a step: some died, the others were ended",
        "SIGTERM to process 0 in an evaluation: all saved the same step",
    ]
    assert [row[1] for row in rows] == ["1", "2", "1"]
    assert int(rows[1][2]) % 8 == 0, "it resumes from a checkpoint"
    assert rows[2][2:5:2] == (rows[1][3], "0"), "a preemption costs no step"
    assert rows[-1][3] == "80"
    assert rows[-1][-1] == "finished"
    assert re.fullmatch(
        r"80 losses and 8 evaluations equal those of the uninterrupted run, to a relative \d\.\de[-+]0\d", last
    )
