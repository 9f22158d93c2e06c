"""The engines of `tests.engines`: they run functions, and leave no process behind."""

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from tests.engines import NAMES, ROOT, WORKERS, DaskCluster, engine_maker, worker_pids
from tests.forkserver import Child
from tests.limits import HANG, until


@pytest.fixture(params=NAMES)
def engine(request: pytest.FixtureRequest) -> Iterator[tuple[str, int]]:
    """The text of an engine, and the process that starts its workers."""
    if request.param == "dask":
        with closing(DaskCluster()) as cluster:
            yield cluster.engine, cluster.nanny
    else:
        yield f"{request.param}:{WORKERS}", os.getpid()


def test_engine_runs_equal_calls_each_time(engine: tuple[str, int], tmp_path: Path) -> None:
    text, starts_workers = engine
    with engine_maker(text)() as executor:
        futures = [executor.submit(note, tmp_path, 0.05) for _ in range(8)]
        pids = {future.result(HANG) for future in futures}
        assert len(list(tmp_path.iterdir())) == 8  # Dask runs equal calls once, unless they are impure
        assert isinstance(executor.submit(fail).exception(HANG), ZeroDivisionError)
        if text.startswith("threads"):
            assert pids == {os.getpid()}
        else:
            assert pids == set(worker_pids(starts_workers))


DRIVER = """
import os, time
from tests.engines import engine_maker
from tests.forkserver import Child
from tests.limits import ENDLESS

if __name__ == "__main__":
    executor = engine_maker("processes:1")()  # one that is garbage ends its workers
    print(executor.submit(os.getpid).result(), flush=True)
    time.sleep(ENDLESS)
"""


def test_worker_process_ends_with_killed_driver(tmp_path: Path) -> None:
    script = tmp_path / "driver.py"
    script.write_text(DRIVER)
    with Child([script], env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE) as driver:
        assert driver.stdout is not None
        worker = psutil.Process(int(driver.stdout.readline()))
        assert worker.pid in worker_pids(driver.pid)
        driver.kill()
        until(lambda: not worker.is_running() or worker.status() == psutil.STATUS_ZOMBIE)


def note(folder: Path, seconds: float) -> int:
    time.sleep(seconds)
    (folder / str(time.time_ns())).touch()
    return os.getpid()


def fail() -> None:
    raise ZeroDivisionError
