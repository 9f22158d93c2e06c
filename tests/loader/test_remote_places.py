"""`Dataloader(remote=)` on a Dask cluster: the same rows of all steps are read by the same worker."""

import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loadax import Dataloader, Dataset, MaskErrors, from_source
from loadax.errors import SourceError
from loadax.loader.remote import engine
from loadax.loader.remote.affinity import options_for, ordered, worker_of, workers_of
from tests.engines import DaskCluster, engine_maker
from tests.limits import HANG, until

pytestmark = [pytest.mark.processes, pytest.mark.timeout(200)]

CHUNK = 64


class Chunks:
    """Rows in chunks, that notes in a log which process decodes which chunk."""

    def __init__(self, rows: int, log: Path):
        self.rows, self.log = rows, log
        self.chunks, self.spec = range(0, rows, CHUNK), np.int32(0)

    def __len__(self) -> int:
        return self.rows

    def read(self, rows: Any) -> Any:
        chunks = np.unique(rows // CHUNK)
        note(self.log, chunks)
        time.sleep(0.004 * len(chunks))
        return rows.astype(np.int32)


def note(log: Path, numbers: Any) -> None:
    with log.open("a") as out:
        out.write("".join(f"{os.getpid()} {number}\n" for number in numbers))


def noted(log: Path) -> Counter[int]:
    """How often the workers have read each number; this process reads too, while they start."""
    pairs = [map(int, line.split()) for line in log.read_text().splitlines()]
    return Counter(number for process, number in pairs if process != os.getpid())


def warm_up(loader: Dataloader) -> None:
    """Has the workers open the data, which they keep."""
    with closing(loader.iterate()) as batches:
        until(lambda: next(batches) is not None and batches.stats().rows > batches.stats().read_here)


@pytest.fixture(scope="module")
def dask() -> Iterator[Executor]:
    """An executor of a cluster whose workers have imported loadax."""
    with closing(DaskCluster()) as cluster, engine_maker(cluster.engine)() as executor:
        until(lambda: len(workers_of(executor) or ()) == 2)
        for worker in workers_of(executor) or ():
            executor.submit(eval, "__import__('loadax.work.worker')", **options_for(worker)).result()
        yield executor


def test_lanes_of_a_block_shuffle_stay_with_a_worker(dask: Executor, tmp_path: Path) -> None:
    log, rows = tmp_path / "log", 128 * CHUNK
    data = from_source(Chunks(rows, log)).shuffle(0, block="chunks", window=2, lanes=16)
    loader = Dataloader(data, 128, remote=dask, num_workers=2)
    warm_up(Dataloader(data, 128, num_epochs=None, remote=dask, num_workers=2))
    times = Counter[int]()

    def workers_read() -> bool:
        """Whether they did: on a busy machine, all may be read here before they answer."""
        nonlocal times
        log.write_text("")
        seen = []
        with closing(loader.iterate()) as batches:
            for step, batch in enumerate(batches):
                np.testing.assert_array_equal(batch, loader.rows(step))
                seen += np.asarray(batch).tolist()
        assert sorted(seen) == [*range(rows)]
        times = Counter(noted(log).values())
        return times.total() > 0

    until(workers_read)
    assert times[1] > times.total() / 2  # by one of them, once: idle workers may take tasks of others


class Placed(ThreadPoolExecutor):
    """Takes the name of a worker with a task, as Dask's executor does, and notes it with the task's rows."""

    __module__ = "distributed.none"

    def __init__(self, workers: list[str]):
        super().__init__(2)
        self.workers, self.given = workers, list[tuple[int, int, str]]()
        self._client, self._kwargs = self, {"pure": False}

    def scheduler_info(self, n_workers: int) -> dict[str, Any]:
        return {"workers": dict.fromkeys(self.workers)}

    def submit(  # type: ignore[override]
        self, fn: Any, /, *args: Any, workers: Any = None, allow_other_workers: bool = False
    ) -> Any:
        if len(arguments := args[-1]["arguments"]) > 1:
            low, steps = arguments[-2:]
            assert allow_other_workers
            self.given.append((low, low + len(arguments[3]) // 8 // steps, *workers))
        return super().submit(fn, *args)


@pytest.mark.parametrize(("count", "options"), [(1, {}), (3, {}), (5, {"num_workers": 2})])
def test_a_row_of_each_step_is_for_the_same_worker(count: int, options: dict[str, Any]) -> None:
    data = from_source(range(4000)).map(lambda row: np.int32(row % 1000))
    used: list[list[set[str]]] = []
    for names in ("abcde"[:count], "edcba"[-count:]):  # in another order in another job
        with Placed([*names]) as executor:
            loader = Dataloader(data, 40, remote=executor, **options)
            with closing(loader.iterate()) as batches:
                assert sum(int(batch.sum()) for batch in batches) == 4 * 999 * 500
                assert batches.stats().read_here < 4000
        used.append([{name for low, high, name in executor.given if low <= row < high} for row in range(40)])
    assert used[0] == used[1]
    assert all(len(names) == 1 for names in used[0])
    most = min(count, options.get("num_workers", count))
    assert Counter(len(names) for names in [set.union(*used[0])]) == {most: 1}
    shares = Counter(next(iter(names)) for names in used[0])
    assert max(shares.values()) - min(shares.values()) <= 1  # the rows of a step are shared out evenly


def test_pieces_of_any_size_of_a_row_are_for_the_same_worker() -> None:
    for rows in range(1, 70):
        for count in range(1, min(rows, 9) + 1):
            workers = [str(number) for number in range(count)]
            found = set()
            for pieces in {count, 2 * count, 5 * count, rows}:
                cuts = [rows * piece // pieces for piece in range(pieces + 1)] if pieces <= rows else [*range(rows + 1)]
                found.add(
                    tuple(worker_of(workers, low, rows) for low, high in pairwise(cuts) for _ in range(low, high))
                )
            assert len(found) == 1
            shares = Counter(found.pop())
            assert len(shares) == count
            assert max(shares.values()) - min(shares.values()) <= 1
    assert worker_of([], 0, 1) is None


def test_masked_rows_that_follow_each_other_are_counted_as_such() -> None:
    """220 in a row, in one step, which several workers read."""

    def fails(row: int) -> Any:
        if 20 <= row - 2560 < 240:
            raise ValueError("a bad row")
        return {"row": np.int32(row)}

    data = from_source(range(5120)).map(fails, spec={"row": np.int32(0)})
    limits = MaskErrors(max_in_a_row=100, max_share=1)
    with (
        Placed([*"abcd"]) as executor,
        closing(Dataloader(data, 256, remote=executor, on_error=limits).iterate()) as run,
    ):
        with pytest.raises(SourceError, match="in a row"):
            for _ in run:
                pass
        assert run.stats().steps <= 10


def test_ctrl_c_while_workers_are_looked_for_shuts_down_what_was_made(monkeypatch: pytest.MonkeyPatch) -> None:
    # Not HANG: a signal that comes between the last look for signals and the wait is noticed when the wait ends.
    monkeypatch.setattr(engine, "POLICY", engine.POLICY._replace(first=10.0))
    made, asked, go, main = list[Placed](), threading.Event(), threading.Event(), threading.get_ident()

    class Slow(Placed):
        __module__ = Placed.__module__

        def scheduler_info(self, n_workers: int) -> dict[str, Any]:
            asked.set()
            assert go.wait(HANG)
            return super().scheduler_info(n_workers)

    def make() -> Executor:
        made.append(Slow(["a"]))
        return made[-1]

    def interrupt() -> None:
        assert asked.wait(HANG)
        until(lambda: sys._current_frames()[main].f_code is threading.Condition.wait.__code__)
        time.sleep(0.1)  # Python notices a signal that comes just before it waits for a lock at the end of the wait
        signal.pthread_kill(main, signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        Dataloader(from_source(range(64)), 8, remote=make).iterate()
    assert time.monotonic() - began < HANG
    thread.join()
    go.set()
    with pytest.raises(RuntimeError, match="shutdown"):
        made[0].submit(os.getpid, {"arguments": ()})
    until(lambda: all(thread.name != "loadax-workers" for thread in threading.enumerate()))


def test_an_instance_that_breaks_is_not_opened_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loadax.loader.remote.engine.RETRY", 0.01)

    class Breaks(Placed):
        __module__ = Placed.__module__
        refused = 0
        is_broken = False

        def submit(self, fn: Any, /, *args: Any, **options: Any) -> Any:
            if self.is_broken:
                self.refused += 1
                raise RuntimeError("the client is closed")
            return super().submit(fn, *args, **options)

    with Breaks(["a", "b"]) as executor:
        loader = Dataloader(from_source(range(64)).map(np.int32), 8, remote=executor, num_epochs=None)
        with closing(loader.iterate()) as batches:
            until(lambda: next(batches) is not None and batches.stats().rows > batches.stats().read_here)
            executor.is_broken = True
            until(lambda: next(batches) is not None and executor.refused > 0)
            refused = executor.refused
            for _ in range(200):
                next(batches)
            names = [thread.name for thread in threading.enumerate()]
        assert names.count("loadax-workers") <= 1
        assert executor.refused <= refused + 2 * 64  # what threads were about to give out


def test_jobs_with_one_recipe_decode_a_row_once_on_all_workers(dask: Executor, tmp_path: Path) -> None:
    log, rows = tmp_path / "log", 2048

    def decode(row: int) -> Any:
        note(log, [row])
        return np.int32(row)

    data = from_source(range(rows)).shuffle(0).map(decode, spec=np.int32(0))
    with (
        closing(Dataloader(data, 32, remote=dask, num_workers=2).iterate()) as one,
        closing(Dataloader(data, 32, remote=dask, num_workers=2).iterate()) as other,
    ):
        for batch, again in zip(one, other, strict=True):
            np.testing.assert_array_equal(batch, again)
    decoded = noted(log)
    assert decoded.total() < 1.2 * len(decoded)


def test_stall_names_the_worker_and_the_rows(
    dask: Executor, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    go, training = tmp_path / "go", os.getpid()

    def waits(row: int) -> Any:
        while os.getpid() != training and not go.exists():
            time.sleep(0.01)
        return np.int32(row)

    monkeypatch.setattr(engine, "POLICY", engine.POLICY._replace(first=100.0, least=100.0))
    loader = Dataloader(
        from_source(range(64)).map(waits, spec=np.int32(0)), 8, remote=dask, num_workers=2, stall_after=0.1
    )
    with closing(loader.iterate()) as batches:
        thread = threading.Thread(target=next, args=(batches,))
        thread.start()
        until(lambda: "step 0 has not come" in caplog.text)
        go.touch()
        thread.join()
    assert "reads 4 rows (0, 1, 2, 3)" in caplog.text
    assert any(f" for {worker}, given out " in caplog.text for worker in workers_of(dask) or ())


def test_an_executor_with_limits_of_its_own_keeps_them(dask: Executor) -> None:
    workers = workers_of(dask)
    assert workers is not None
    limited = dask._client.get_executor(workers=[workers[0]])  # type: ignore[attr-defined]
    assert workers_of(limited) is None
    process = limited.submit(os.getpid).result()
    with closing(Dataloader(processes(), 8, remote=limited).iterate()) as batches:
        assert {*next(batches).tolist()} <= {process, os.getpid()}


def processes() -> Dataset:
    return from_source(range(64)).map(lambda row: np.int32(os.getpid()), spec=np.int32(0))


def test_recipes_prefer_different_workers_and_jobs_the_same() -> None:
    workers = tuple(f"tcp://10.0.0.{number}:8786" for number in range(32))
    chosen = [ordered(workers, f"recipe {number}", 8) for number in range(20)]
    assert all(len({*few}) == 8 for few in chosen)
    assert len({worker for few in chosen for worker in few}) == 32
    assert ordered(workers[::-1], "recipe 3", 8) == chosen[3]
    without = tuple(worker for worker in workers if worker != chosen[3][5])
    assert ordered(without, "recipe 3", 8)[:7] == chosen[3][:5] + chosen[3][6:]
