"""A pass of one row a part: `python -m tests.chaos.pass_driver ENGINE INDEX LOG ROWS`; see `tests.engines`.

Each computation of a part is a line of the log: its row, and whether it was finished when it began.
"""

import sys
import time
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

from loadax import Dataset, from_source
from loadax.kept import kept_pass
from loadax.work import tasks
from tests.engines import engine_maker

SILENCE = 3.0  # seconds, so that no test waits a minute for tasks that executorlib has forgotten


def kept_rows(rows: int, index: Path, log: Path | None, **options: object) -> Dataset:
    """Filters the numbers below `rows`."""
    with patch.object(kept_pass, "FEW_PARTS", rows):
        return from_source(range(rows)).filter(noting(index, log), "third", index=index, progress=False, **options)  # type: ignore[arg-type]


def noting(index: Path, log: Path | None) -> Callable[[int], bool]:
    """A filter that writes the log."""

    def is_third(row: int) -> bool:
        if log is not None:
            folders = list(index.glob("filter-*.parts"))
            is_finished = not folders or (folders[0] / f"{row}.npz").exists()
            with log.open("a") as out:
                out.write(f"{row} {'again' if is_finished else 'new'}\n")
            time.sleep(0.002)
        return row % 3 == 0

    return is_third


if __name__ == "__main__":
    engine, index, log, rows = sys.argv[1:]
    tasks.POLICY = tasks.POLICY._replace(starting=SILENCE, silence=SILENCE)
    kept_rows(int(rows), Path(index), Path(log), executor=engine_maker(engine))
