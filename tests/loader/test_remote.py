"""`Dataloader(remote=)`: batches are those of a loader without it, whatever becomes of the workers."""

import logging
import multiprocessing
import os
import pickle
import re
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor, wait
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from loadax import Buckets, Dataloader, Dataset, MaskErrors, from_arrays, from_source, from_stream
from loadax.errors import ArgumentError, ClosedError, SourceError, UnsupportedError, WorkerError
from loadax.loader.assembly.buffer_layout import BatchBuffers, BufferLayout
from loadax.loader.execution.masked_rows import MaskedRows
from loadax.loader.metrics.stats import Stats
from loadax.loader.remote import engine, remote_executor
from loadax.loader.remote.row_cache import RowCache
from loadax.loader.reports import bottleneck
from loadax.work import worker
from loadax.work.payload import Payload
from tests.engines import engine_maker
from tests.limits import HANG, until

BATCH = 16


def processes(count: int = 2) -> Callable[[], Executor]:
    return engine_maker(f"processes:{count}")


def equal(batches: Any, wanted: Any, steps: int | None = None) -> bool:
    """Compares the next batches; true, so that it may be part of a condition."""
    for step, (batch, local) in enumerate(zip(batches, wanted, strict=steps is None)):
        jax.tree.map(np.testing.assert_array_equal, batch, local)
        if steps is not None and step + 1 == steps:
            break
    return True


def numbers(rows: int = 320) -> Dataset:
    """Numbers with noise of their own, in a random order."""

    def noisy(example: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        return {**example, "noise": rng.random(3, np.float32)}

    return from_arrays({"row": np.arange(rows, dtype=np.int32)}).shuffle(seed=0).map(noisy, rng=True, seed=1)


class Hung(Executor):
    """An executor whose workers never answer, until `answer` is set; `given` has its tasks."""

    def __init__(self) -> None:
        self.given: list[Future[Any]] = []
        self.answers: ThreadPoolExecutor | None = None

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        if self.answers is not None:
            return self.answers.submit(fn, *args, **kwargs)
        self.given.append(Future())
        return self.given[-1]


def policy(monkeypatch: pytest.MonkeyPatch, **times: Any) -> None:
    monkeypatch.setattr(engine, "POLICY", engine.POLICY._replace(**times))


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """What workers have time for is short, so that no test waits for those that never answer."""
    policy(monkeypatch, first=0.01, least=0.05)
    monkeypatch.setattr(engine, "RETRY", 0.02)
    monkeypatch.setattr(engine, "FORGOTTEN", 1.0)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch, quick: None) -> None:
    """Nothing is late."""
    policy(monkeypatch, first=HANG, least=HANG)


# Batches


@pytest.mark.usefixtures("patient")
def test_process_pool_reads_the_batches_of_a_local_loader() -> None:
    options: dict[str, Any] = {"num_epochs": 2, "remainder": "pad", "key_seed": 3}
    remote = Dataloader(numbers(), 24, remote=processes(), **options)
    with closing(remote.iterate()) as batches:
        equal(batches, Dataloader(numbers(), 24, **options))
        stats, report = batches.stats(), batches.report()
    assert (stats.worker_type, stats.given_again, stats.read_here) == ("remote", 0, 0)
    assert stats.rows == 2 * 320
    for text in (stats, report):
        assert "; the workers of remote= read all rows (640)" in str(text)


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize(
    "options",
    [
        {"host_leaves": ["name"]},
        {"microbatches": 2},
        {"partition": {"row": PartitionSpec("rows"), "table": PartitionSpec("rows", "columns")}},
        {"on_error": "mask"},
    ],
    ids=["objects", "microbatches", "columns", "masked"],
)
def test_rows_arrive_in_any_layout(options: dict[str, Any]) -> None:
    mesh = jax.make_mesh((2, 4), ("rows", "columns")) if "partition" in options else None
    names = np.array([f"row {row}" for row in range(64)], object)

    def fails(example: dict[str, Any]) -> dict[str, Any]:
        if "on_error" in options and example["row"] % 10 == 3:
            raise ValueError("a bad row")
        return example

    arrays = {"row": np.arange(64), "table": np.arange(64 * 4.0).reshape(64, 4)}
    data = from_arrays({**arrays, "name": names} if "host_leaves" in options else arrays).map(fails)
    with ThreadPoolExecutor(2) as pool:
        remote, local = (Dataloader(data, BATCH, mesh=mesh, remote=given, **options) for given in (pool, None))
        with closing(remote.iterate()) as batches, closing(local.iterate()) as wanted:
            for batch, expected in zip(batches, wanted, strict=True):
                jax.tree.map(np.testing.assert_array_equal, batch, expected)
                if "host_leaves" in options:
                    assert batches.host["name"].tolist() == wanted.host["name"].tolist()
            assert batches.stats().masked == wanted.stats().masked
            assert batches.stats().read_here == 0


@pytest.mark.usefixtures("patient")
def test_run_is_resumed_with_and_without_remote() -> None:
    with ThreadPoolExecutor(2) as pool:
        remote, local = Dataloader(numbers(), BATCH, remote=pool), Dataloader(numbers(), BATCH)
        with closing(remote.iterate()) as batches, closing(local.iterate()) as wanted:
            equal(batches, wanted, 5)
            state = batches.get_state()
            assert state == wanted.get_state()
        for loader in (remote, local):
            with closing(loader.iterate(state)) as batches, closing(local.iterate(5)) as wanted:
                equal(batches, wanted)


@pytest.mark.usefixtures("patient")
def test_large_recipe_is_sent_once_and_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    sent, opened = Counter[str](), Counter[bytes]()
    make, open_ = worker.content_of, worker.open_payload

    def content_of(payload: Payload) -> Any:
        sent["recipe"] += 1
        return make(payload)

    def opening(payload: Payload, digest: str) -> Any:
        opened[payload.message] += 1
        return open_(payload, digest)

    monkeypatch.setattr(remote_executor, "content_of", content_of)
    monkeypatch.setattr(worker, "open_payload", opening)
    data = numbers(336)  # which no other test has had opened in this process
    with ThreadPoolExecutor(1) as pool:
        equal(Dataloader(data, BATCH, remote=pool, num_workers=1), Dataloader(data, BATCH))
    assert [*opened.values()] == [1]
    assert 2 <= sent["recipe"] <= 3  # to compute its digest, and for the first tasks


@pytest.mark.usefixtures("patient")
def test_buckets_are_read_by_workers_that_open_the_data_once(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Any] = []
    open_ = worker.open_payload

    def opening(payload: Payload, digest: str) -> Any:
        opened.append(payload)
        return open_(payload, digest)

    monkeypatch.setattr(worker, "open_payload", opening)
    lengths = np.random.default_rng(0).integers(1, 33, 200).tolist()
    data = from_source([{"tokens": np.arange(length)} for length in lengths]).shuffle(seed=0)
    sizes = Buckets("tokens", {8: 32, 16: 16, 32: 8})
    with ThreadPoolExecutor(2) as pool, closing(Dataloader(data, sizes, remote=pool).iterate()) as batches:
        equal(batches, Dataloader(data, sizes))
        assert batches.stats().read_here == 0
    assert len(opened) == 1


# Sharing


@pytest.mark.usefixtures("patient")
def test_jobs_with_one_recipe_decode_each_row_once(tmp_path: Path) -> None:
    log = tmp_path / "log"

    def decode(row: int) -> dict[str, Any]:
        with log.open("a") as out:
            out.write(f"{row}\n")
        return {"row": np.int32(row)}

    data = from_source(range(320)).shuffle(seed=0).map(decode, spec={"row": np.int32(0)})
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        for _ in range(3):
            with closing(Dataloader(data, BATCH, remote=pool).iterate()) as batches:
                assert sum(len(batch["row"]) for batch in batches) == 320
    assert Counter(Counter(log.read_text().split()).values()) == {1: 320}


def test_row_cache_is_bounded_and_prefers_new_rows() -> None:
    layout = BufferLayout((), ())
    pieces = [BatchBuffers(layout, np.empty(64, np.uint8), 1) for _ in range(5)]
    cache = RowCache(3 * 64)
    for row, piece in enumerate(pieces):
        cache.add([("a", 0, row), ("a", 0, 9), ("a", 0, -1)], piece)
    kept = cache.find([("a", 0, row) for row in (0, 1, 2, 3, 4, 9, -1)])
    assert kept == [None, None, (pieces[2], 0), (pieces[3], 0), (pieces[4], 0), (pieces[4], 1), None]
    assert cache.find([("b", 0, 4), ("a", 1, 4)]) == [None, None]


# Losses


def test_rows_are_read_here_while_workers_are_silent(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    hung = Hung()
    policy(monkeypatch, starting=0.2)
    with (
        caplog.at_level(logging.INFO, "loadax"),
        closing(Dataloader(numbers(), BATCH, num_epochs=None, remote=hung, num_workers=2).iterate()) as batches,
        closing(Dataloader(numbers(), BATCH, num_epochs=None).iterate()) as wanted,
        ThreadPoolExecutor(2) as pool,
    ):
        until(lambda: equal(batches, wanted, 1) and "are gone" in caplog.text)
        assert len(hung.given) <= 2 * 2 + 1  # as much as workers may have to do, and one to look for them
        assert batches.stats().read_here == batches.stats().rows > 0
        assert f"rows that this process read itself: {batches.stats().rows:,}" in str(batches.report())
        hung.answers = pool
        before = batches.stats()
        # a row of the workers is counted before it is told that they answer
        until(
            lambda: (
                equal(batches, wanted, 1)
                and batches.stats().rows - batches.stats().read_here > 0
                and "workers answer again" in caplog.text
            )
        )
        assert batches.stats().rows > before.rows
        assert batches.get_state() == wanted.get_state()
    assert [record.levelname for record in caplog.records].count("WARNING") == 1
    assert all(future.cancelled() for future in hung.given)


# Python 3.11 can't break a pool some of whose futures were cancelled.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_report_and_stats_tell_of_remote_reading_after_a_worker_was_killed() -> None:
    pools: list[ProcessPoolExecutor] = []

    def make() -> Executor:
        pools.append(ProcessPoolExecutor(1, multiprocessing.get_context("spawn")))
        return pools[-1]

    with closing(Dataloader(numbers(), BATCH, num_epochs=None, remote=make).iterate()) as batches:
        until(lambda: next(batches) is not None and batches.stats().rows > batches.stats().read_here)
        here = batches.stats().read_here
        next(iter(pools[0]._processes.values())).kill()
        until(lambda: next(batches) is not None and batches.stats().read_here > here)
        stats, report = batches.stats(), batches.report()
    text = rf"; tasks .+ remote= got again: {stats.given_again}; rows that this process read itself: .+ of .+"
    assert re.search(text, str(stats))
    assert re.search(text, str(report))


def test_broken_pool_is_made_again_and_an_instance_is_not(caplog: pytest.LogCaptureFixture) -> None:
    made: list[Executor] = []

    class Breaks(ThreadPoolExecutor):
        def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
            if len(made) == 1:
                raise BrokenExecutor("a process in the process pool was terminated")
            return super().submit(fn, *args, **kwargs)

    def make() -> Executor:
        made.append(Breaks(1))
        return made[-1]

    loader, local = (Dataloader(numbers(), BATCH, num_epochs=None, remote=remote) for remote in (make, None))
    with closing(loader.iterate()) as batches, closing(local.iterate()) as wanted:
        until(lambda: equal(batches, wanted, 1) and batches.stats().rows > batches.stats().read_here)
    assert len(made) == 2
    made.pop()
    with closing(Dataloader(numbers(), BATCH, remote=made[0]).iterate()) as batches:
        equal(batches, Dataloader(numbers(), BATCH))
        assert batches.stats().read_here == 320
    assert "remote=lambda: Breaks(…) is made again" in caplog.text


class Late(ThreadPoolExecutor):
    """Answers when this process has begun to read."""

    begun, given = threading.Event(), list[Future[Any]]()

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        def run() -> Any:
            assert self.begun.wait(HANG)
            return fn(*args, **kwargs)

        self.given.append(super().submit(run))
        return self.given[-1]


def read_after_workers(row: int) -> Any:
    if threading.current_thread().name.startswith("loadax"):  # of this process
        Late.begun.set()
        wait(Late.given, HANG)
        Late.begun.clear()
    return np.int32(row)


def test_late_answers_are_taken_while_other_rows_are_read_here() -> None:
    """Workers answer only while this process reads, so whatever they fill is late."""
    data = from_source(range(32)).map(read_after_workers, spec=np.int32(0))
    Late.begun.clear()
    Late.given.clear()
    with Late(4) as pool:
        try:
            loader = Dataloader(data, 16, remote=pool, num_workers=1, num_epochs=None)
            with closing(loader.iterate()) as batches:
                until(
                    lambda: (
                        [*range(16)] == next(batches).tolist()
                        and [*range(16, 32)] == next(batches).tolist()
                        and batches.stats().rows > batches.stats().read_here > 0
                    )
                )
        finally:
            Late.begun.set()


def test_late_task_is_given_to_another_worker() -> None:
    begun = threading.Event()

    class FirstIsStuck(ThreadPoolExecutor):
        def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
            if begun.is_set() or len(args) < 2 or len(args[1]["arguments"]) < 2:
                return super().submit(fn, *args, **kwargs)
            begun.set()
            return Future()

    with FirstIsStuck(2) as pool, closing(Dataloader(numbers(), BATCH, remote=pool).iterate()) as batches:
        equal(batches, Dataloader(numbers(), BATCH))
        stats = batches.stats()
    assert stats.given_again + stats.read_here > 0


def test_pool_that_starts_slowly_decodes_few_rows_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All tasks wait for its only worker, for longer than one takes that is not late."""
    policy(monkeypatch, least=1.0)  # as it is
    started, log = threading.Event(), tmp_path / "log"

    class Cold(ThreadPoolExecutor):
        def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
            return super().submit(lambda: started.wait(HANG) and fn(*args, **kwargs))

    def decode(row: int) -> np.int32:
        time.sleep(0.001)
        with log.open("a") as out:
            out.write(f"{row}\n")
        return np.int32(row)

    data = from_source(range(4096)).map(decode, spec=np.int32(0))
    with Cold(1) as pool, closing(Dataloader(data, BATCH, remote=pool, num_workers=8).iterate()) as batches:
        threading.Timer(0.1, started.set).start()
        assert sum(len(batch) for batch in batches) == 4096
    assert len(log.read_text().split()) <= 1.1 * 4096


# Errors and ends


def test_limits_of_masked_rows_are_checked_before_a_batch_is_handed_out(monkeypatch: pytest.MonkeyPatch) -> None:
    count, wait = MaskedRows.count, threading.Event().wait

    def slow(*given: Any) -> None:
        wait(0.05)  # in which a batch that was said to be full would be taken
        count(*given)

    monkeypatch.setattr(MaskedRows, "count", slow)
    policy(monkeypatch, starting=0.001)

    def fails(row: int) -> Any:
        if 16 <= row < 32:
            raise ValueError("a bad row")
        return {"row": np.int32(row)}

    data = from_source(range(64)).map(fails, spec={"row": np.int32(0)})
    loader = Dataloader(data, BATCH, remote=Hung(), num_workers=1, on_error=MaskErrors(max_in_a_row=5, max_share=1))
    with closing(loader.iterate()) as batches:
        next(batches)
        with pytest.raises(SourceError, match="in a row"):
            next(batches)


@pytest.mark.usefixtures("patient")
def test_error_of_a_map_arrives_with_its_row_and_traceback() -> None:
    def fails(row: int) -> int:
        if row == 37:
            raise ZeroDivisionError("a bad row")
        return row

    data = from_source(range(64)).map(fails)
    with ThreadPoolExecutor(1) as pool, closing(Dataloader(data, 8, remote=pool).iterate()) as batches:
        for step in range(4):
            assert next(batches).tolist() == [*range(8 * step, 8 * step + 8)]
        with pytest.raises(ZeroDivisionError, match="a bad row") as caught:
            next(batches)
    notes = "".join(caught.value.__notes__)
    assert "row 37" in notes
    assert "a worker of remote=" in notes
    assert "in fails" in notes
    assert "in step 4" in notes


@pytest.mark.usefixtures("patient")
def test_modules_that_workers_lack_are_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lacking_in_remote_workers.py").write_text("def double(row):\n    return 2 * row\n")
    with processes(1)() as pool:
        pool.submit(os.getpid).result()  # its processes have started, and don't get the path
        monkeypatch.syspath_prepend(tmp_path)
        import lacking_in_remote_workers  # type: ignore[import-not-found]

        doubled = from_source(range(8)).map(lacking_in_remote_workers.double)
        with closing(Dataloader(doubled, 8, remote=pool).iterate()) as batches:
            assert next(batches).tolist() == [*range(0, 16, 2)]
            assert batches.stats().read_here == 0


class WithoutLoadax(ThreadPoolExecutor):
    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        return super().submit(exec, "import loadax.no_such_module")


@pytest.mark.usefixtures("patient")
def test_workers_without_loadax_or_with_another_version_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with WithoutLoadax(1) as pool, pytest.raises(ArgumentError, match=r"can't import loadax .* install it there"):
        next(Dataloader(numbers(), BATCH, remote=pool).iterate())
    other = {"loadax": "0.0.1", "Python": "3.11"}
    monkeypatch.setattr(remote_executor, "versions", lambda: other)
    with ThreadPoolExecutor(1) as pool, pytest.raises(ArgumentError, match=r"loadax 0\.0\.1.* install the same"):
        next(Dataloader(numbers(), BATCH, remote=pool).iterate())


def test_a_function_that_makes_no_executor_is_told(tmp_path: Path) -> None:
    made: Any = lambda: 5  # noqa: E731
    remedy = r"; return a concurrent\.futures\.Executor, such as Dask's client\.get_executor\(\)"
    with pytest.raises(ArgumentError, match=f"the function of remote= returned 5{remedy}"):
        next(Dataloader(numbers(), BATCH, remote=made).iterate())
    with pytest.raises(ArgumentError, match=f"the function of executor= returned 5{remedy}"):
        len(from_source(range(64)).filter(bool, index=tmp_path / "index", executor=made))


class Unloadable:
    def __call__(self, row: int) -> int:
        return row

    def __setstate__(self, state: Any) -> None:
        raise OSError("no such device")

    def __getstate__(self) -> dict[str, int]:
        return {"state": 1}


@pytest.mark.usefixtures("patient")
def test_data_that_cant_be_sent_or_loaded_is_named() -> None:
    lock = threading.Lock()
    with ThreadPoolExecutor(1) as pool:
        with pytest.raises(WorkerError, match=r"map .* can't be sent"):
            next(Dataloader(from_source(range(8)).map(lambda row: (row, lock)[0]), 8, remote=pool).iterate())
        with pytest.raises(WorkerError, match="could not load the data: OSError: no such device; make it picklable"):
            next(Dataloader(from_source(range(8)).map(Unloadable(), spec=np.int32(0)), 8, remote=pool).iterate())


@pytest.mark.usefixtures("patient")
def test_stall_is_told_with_rows_and_task_and_close_cancels(caplog: pytest.LogCaptureFixture) -> None:
    hung = Hung()
    batches = Dataloader(np.arange(64), 8, remote=hung, num_workers=1, stall_after=0.1).iterate()
    failed: list[BaseException] = []

    def wait() -> None:
        try:
            next(batches)
        except BaseException as error:  # noqa: BLE001 - it is looked at below
            failed.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    with closing(batches):
        until(lambda: "step 0 has not come" in caplog.text)
    assert "reads 8 rows (0, 1, 2, 3, 4, 5, 6, 7)" in caplog.text
    assert "by task loadax-" in caplog.text
    thread.join(HANG)
    assert isinstance(failed[0], ClosedError)
    assert all(future.cancelled() for future in hung.given)


def test_executors_made_by_a_function_are_shut_down_and_others_are_not() -> None:
    made: list[ThreadPoolExecutor] = []

    def make() -> Executor:
        made.append(ThreadPoolExecutor(1))
        return made[-1]

    with closing(Dataloader(numbers(), BATCH, remote=make).iterate()) as batches:
        next(batches)
    with pytest.raises(RuntimeError, match="shutdown"):
        made[0].submit(os.getpid)
    with ThreadPoolExecutor(1) as pool:
        with closing(Dataloader(numbers(), BATCH, remote=pool).iterate()) as batches:
            next(batches)
        assert pool.submit(os.getpid).result() == os.getpid()


def test_failure_to_make_an_executor_is_raised() -> None:
    def make() -> Executor:
        raise OSError("no scheduler there")

    with pytest.raises(OSError, match="no scheduler there"):
        Dataloader(numbers(), BATCH, remote=make).iterate()


def test_arguments_that_contradict_remote_are_refused() -> None:
    def loader(data: Any = None, **options: Any) -> Dataloader:
        return Dataloader(np.arange(64) if data is None else data, 8, **{"remote": processes(), **options})

    with pytest.raises(ArgumentError, match="remote=8 is not an executor; pass an instance"):
        loader(remote=8)
    with pytest.raises(
        ArgumentError, match="worker_type='process': the workers of remote= read; leave worker_type out"
    ):
        loader(worker_type="process")
    with pytest.raises(ArgumentError, match="num_workers=0 reads on the caller's thread; leave it out"):
        loader(num_workers=0)
    with pytest.raises(UnsupportedError, match=r"keep_on_device: .*; leave out remote="):
        loader(keep_on_device=True)
    with pytest.raises(UnsupportedError, match="remote=: the lanes of a stream are open in this process"):
        loader(from_stream(lambda lane, lanes: iter(range(8)), lanes=2))
    with ThreadPoolExecutor(1) as pool, pytest.raises(ArgumentError, match="pass a function that makes one"):
        pickle.dumps(loader(remote=pool))
    assert len(pickle.loads(pickle.dumps(loader(remote=_make)))) == 8


def _make() -> Executor:
    return ThreadPoolExecutor(1)


def test_advice_is_to_start_more_workers() -> None:
    slow = Stats(steps=102, measured=100, waited=9.0, trained=1.0, transform=9.0, transform_cpu=9.0, workers=8)
    report = bottleneck.report(replace(slow, worker_type="remote", at_work=8, tried=8))
    assert "on 8 remote workers at most; start more workers, and raise num_workers if you pass it" in str(report)
