"""Kills workers and drivers of passes on real engines: `python -m tests.chaos.passes`.

Law: the index is that of one thread to the byte, nothing that was finished is done again, and nothing else stays.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random
from typing import Self

import psutil

from tests.chaos.pass_driver import kept_rows
from tests.engines import NAMES, ROOT, WORKERS, DaskCluster, worker_pids
from tests.limits import HANG, until


def kill_in_pass(name: str, folder: Path, rows: int, workers: int, drivers: int, random: Random) -> int:
    """Runs a pass on an engine, and kills processes at moments that are evenly spaced; see `tests.engines.NAMES`.

    Args:
        name: Name of the engine.
        folder: An empty folder.
        rows: Number of rows, which is that of parts.
        workers: Number of workers to kill. Threads have none.
        drivers: Number of drivers to kill, each followed by a new one.
        random: What chooses.

    Returns:
        Number of parts whose computation was lost, so that they were computed more than once.
    """
    index, log, whole = folder / "index", folder / "log", folder / "whole"
    kept_rows(rows, whole, None, workers=1)
    kills = ["worker"] * (0 if name == "threads" else workers) + ["driver"] * drivers
    random.shuffle(kills)
    with _engine(name) as (engine, nanny), _Driver([engine, str(index), str(log), str(rows)]) as driver:
        for number, kill in enumerate(kills, 1):
            least = rows * number // (len(kills) + 1)
            until(lambda least=least: _finished(index) >= least or driver.has_ended())  # type: ignore[misc]
            assert not driver.has_ended()
            if kill == "driver":
                driver.kill()
                driver.start()
            else:
                of = nanny or driver.process.pid
                until(lambda of=of: worker_pids(of))  # type: ignore[misc]
                with suppress(psutil.NoSuchProcess):
                    psutil.Process(random.choice(worker_pids(of))).kill()
        assert driver.process.wait(HANG) == 0
    assert _contents(index) == _contents(whole)
    lines = log.read_text().splitlines()
    assert not [line for line in lines if line.endswith("again")]
    computed = Counter(int(line.split()[0]) for line in lines)
    assert {*computed} == {*range(rows)}
    return computed.total() - rows


class _Driver:
    """The program of a pass, which may be killed and started again; its workers end with it."""

    def __init__(self, arguments: list[str]):
        self._command = [sys.executable, "-m", "tests.chaos.pass_driver", *arguments]
        self._workers: set[int] = set()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def start(self) -> None:
        self.process = subprocess.Popen(self._command, cwd=ROOT)

    def has_ended(self) -> bool:
        return self.process.poll() is not None

    def kill(self) -> None:
        """Kills it, and its workers: those of executorlib would wait for it."""
        workers = worker_pids(self.process.pid)
        self.process.kill()
        self.process.wait()
        for worker in workers:
            with suppress(psutil.NoSuchProcess):
                psutil.Process(worker).kill()


@contextmanager
def _engine(name: str) -> Iterator[tuple[str, int | None]]:
    """The text of an engine, and the process that starts its workers; None: the driver."""
    if name != "dask":
        yield f"{name}:{WORKERS}", None
        return
    cluster = DaskCluster()
    try:
        yield cluster.engine, cluster.nanny
    finally:
        cluster.close()


def _finished(index: Path) -> int:
    return sum(1 for _ in index.glob("filter-*.parts/*.npz"))


def _contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def main() -> None:
    """Runs the law with 1,000 parts, ten workers and three drivers on each engine."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.passes", description=__doc__)
    parser.add_argument("engines", nargs="*", default=NAMES, metavar="ENGINE", help=", ".join(NAMES))
    parser.add_argument("--rows", type=int, default=1000, help="rows, each a part (default: 1000)")
    parser.add_argument("--workers", type=int, default=10, help="workers to kill (default: 10)")
    parser.add_argument("--drivers", type=int, default=3, help="drivers to kill (default: 3)")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    for name in options.engines:
        began = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            random = Random(f"{options.seed} {name}")
            lost = kill_in_pass(name, Path(folder), options.rows, options.workers, options.drivers, random)
        print(f"{name}: {lost} of {options.rows} parts computed again, {time.perf_counter() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
