"""A table is written to Parquet files, and a run on it is stopped and goes on."""

import re
from pathlib import Path

from tests import forkserver

SCRIPT = Path(__file__).parents[3] / "examples" / "parquet_training.py"


def test_it_learns_from_parquet_files_and_resumes(tmp_path: Path) -> None:
    result = forkserver.run([SCRIPT], cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "20000 houses in 10 row groups, styles ['cottage', 'loft', 'villa']" in result.stdout
    assert "stopped after 60 steps, in epoch 1; goes on at step 60" in result.stdout
    found = re.search(r"error (\S+) on .* held-out houses, where the mean has (\S+)\n", result.stdout)
    assert found is not None
    assert float(found[1]) < float(found[2]) / 2
