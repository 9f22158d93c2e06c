"""Upper bound for two cores: the user's function in two processes that do nothing else.

Run as a script, this file is one of them.
"""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from workloads.transform import Transform, Worked, work

_PROCESSES = 2


def two_processes(workload: Transform, folder: Path, _sharding: Any) -> Any:
    """Processes the rows of a batch in two processes, repeatedly; nothing is placed on devices."""
    share = workload.batch_size // _PROCESSES

    def batches() -> Iterator[None]:
        command = [sys.executable, __file__, str(folder / "rows.npy"), str(share)]
        processes = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(_PROCESSES)]
        try:
            while all(process.stdout is not None and process.stdout.read(1) for process in processes):
                yield None
            raise RuntimeError("one of the two plain processes ended")
        finally:
            for process in processes:
                process.kill()
                process.communicate()

    return batches


def _work_for_ever(rows: Any, share: int) -> None:
    while True:
        for row in range(share):
            work(rows[row])
        sys.stdout.buffer.write(b".")
        sys.stdout.flush()


if __name__ == "__main__":
    _work_for_ever([Worked(Path(sys.argv[1])).raw(row) for row in range(int(sys.argv[2]))], int(sys.argv[2]))
