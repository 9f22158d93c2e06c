"""A run on a stream is killed in two processes and goes on in one."""

from pathlib import Path

from tests import forkserver

SCRIPT = Path(__file__).parents[3] / "examples" / "stream_training.py"


def test_it_is_killed_and_goes_on_in_another_number_of_processes(tmp_path: Path) -> None:
    result = forkserver.run([SCRIPT], cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    killed, goes_on, learned = result.stdout.splitlines()
    assert killed == "killed 2 processes after step 50"
    assert goes_on == "1 process goes on at step 40"
    assert learned.startswith("weights off by 0.0")
