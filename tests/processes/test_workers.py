"""Worker processes: what they are, what becomes of errors and deaths, and that none of them stays."""

import functools
import gc
import importlib
import os
import re
import signal
import socket
import sys
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import loadax
from loadax import Dataloader, from_arrays, from_source
from loadax.errors import ArgumentError, ClosedError, WorkerError
from loadax.loader.iterator import DataIterator
from loadax.loader.workers import process_pool
from tests.limits import HANG, until
from tests.loader.workers import maps
from tests.loader.workers.children import worker_processes

ROWS = 64 * 8


def loader(function: Any = None, rows: int = ROWS, **options: Any) -> Dataloader:
    data = from_arrays({"x": np.arange(rows)})
    spec = {"x": np.int64(0)} if isinstance(function, maps.Stuck) else None
    data = data if function is None else data.map(function, spec=spec)
    return Dataloader(data, 8, **{"num_workers": 2, "worker_type": "process", **options})


def wait_for_the_end() -> None:
    """Until no worker is left, whatever it had in hand."""
    until(lambda: not worker_processes())


def numbers(step: int) -> list[int]:
    return list(range(8 * step, 8 * step + 8))


def reads_on(batches: DataIterator, step: int, most: int = 5) -> None:
    """The batches from that step on are those that they should be."""
    for number in range(step, step + most):
        assert next(batches)["x"].tolist() == numbers(number)


# What they are


def test_a_worker_has_no_jax_sees_no_accelerator_and_ignores_interrupts() -> None:
    with iter(loader(maps.environment)) as batches:
        batch = next(batches)
        (pid,) = set(batch["pid"].tolist())
        assert "loadax.loader.workers.main" in psutil.Process(pid).cmdline()
    assert not batch["jax"].any()
    assert all(batch[name].all() for name in ("cpu", "deaf", "open"))


def test_worker_keeps_memory_between_pieces() -> None:
    """The system clears every page that it hands out, which takes longer than the rest of such an array."""
    with iter(loader(maps.pages_of_arrays)) as batches:
        next(batches)
        assert next(batches)["pages"].max() < 10


def test_an_interrupt_while_workers_begin_ends_none_of_them(capfd: pytest.CaptureFixture[str]) -> None:
    """A Ctrl-C in a terminal reaches all of its processes, also those that can't say yet that they ignore it."""
    for pause in (0.0, 0.1):
        with iter(loader()) as batches:
            time.sleep(pause)
            children = {child.pid for child in worker_processes()}
            for pid in children:
                os.kill(pid, signal.SIGINT)
            reads_on(batches, 0)
            assert {child.pid for child in worker_processes()} == children
    assert capfd.readouterr().err == ""


def test_interrupts_reach_the_trainer_again_when_workers_have_begun() -> None:
    with iter(loader()):
        assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


def test_prints_of_functions_arrive(capfd: pytest.CaptureFixture[str]) -> None:
    def talks(example: Any) -> Any:
        if os.getpid() != trainer:
            print("row", example["x"])  # noqa: T201
        return example

    trainer = os.getpid()
    with iter(loader(talks, rows=8)) as batches:
        next(batches)
    assert "".join(sorted(re.findall(r"row (\d)\n", capfd.readouterr().out))) == "01234567"


def helper(value: Any) -> Any:
    return value * BASE


BASE = 7


def by_name(example: Any) -> Any:
    return {"x": helper(example["x"])}


def test_functions_come_with_what_they_use() -> None:
    """Functions of this module, lambdas, closures, and arrays in closures and modules."""
    added, table = np.arange(1 << 14), np.arange(ROWS, dtype=np.int64)[::-1]
    functions = (
        by_name,
        lambda row: {"x": helper(row["x"])},
        lambda row: {"x": row["x"] * 7 + added[0]},
        lambda row: {"x": 7 * (ROWS - 1 - table[row["x"]])},
        lambda row: {"x": 7 * maps.looked_up(row)["x"]},
    )
    data = from_arrays({"x": np.arange(ROWS)})
    every = loadax.zip(tuple(data.map(function) for function in functions))
    with iter(Dataloader(every, 8, num_workers=1, worker_type="process")) as batches:
        for leaf in next(batches):
            assert leaf["x"].tolist() == [7 * number for number in range(8)]


def test_arguments_that_can_not_be_used() -> None:
    with pytest.raises(ArgumentError, match=r"worker_type='fork': pass 'thread' or 'process'"):
        loader(worker_type="fork")


def set_interpreter(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", path)
    monkeypatch.setattr("multiprocessing.spawn._python_exe", os.fsencode(path))


def test_no_interpreter_to_start(monkeypatch: pytest.MonkeyPatch) -> None:
    set_interpreter("", monkeypatch)
    with pytest.raises(WorkerError, match=r"no interpreter to start .*; use worker_type='thread'"):
        iter(loader())
    wait_for_the_end()


def test_default_timeout_of_sockets_is_not_that_of_workers() -> None:
    socket.setdefaulttimeout(0.5)
    try:
        with iter(loader(maps.slow_who, num_workers=1)) as batches:
            reads_on(batches, 0, 2)
    finally:
        socket.setdefaulttimeout(None)


def test_missing_interpreter_while_workers_are_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that can't be started is an error, and later ones are started again."""
    with iter(loader(maps.slow_who, num_workers=1)) as batches:
        reads_on(batches, 0, 2)
        with monkeypatch.context() as there:
            set_interpreter("/nowhere/python", there)
            for child in worker_processes():
                child.kill()
            message = (
                r"worker_type='process': can't start /nowhere/python: .*No such file.*; "
                r"use fewer workers, or 'thread'"
            )
            with pytest.raises(WorkerError, match=message):  # noqa: PT012 - what was ready comes first
                while True:
                    next(batches)
            with pytest.raises(WorkerError, match="can't start /nowhere"):
                iter(loader())
        batches.set_state(20)
        reads_on(batches, 20)
    wait_for_the_end()


def test_interpreter_that_can_not_begin_is_tried_a_few_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    count = 3
    (tmp_path / "python").symlink_to("/bin/false")
    set_interpreter(str(tmp_path / "python"), monkeypatch)
    message = (
        rf"{count + 2} worker processes ended before they had loaded the data; the last one \(\d+\) "
        r"ended with exit code 1\. Their output on stderr may say why; or use worker_type='thread'"
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with iter(loader(num_workers=count)) as batches, pytest.raises(WorkerError, match=message):
            next(batches)
    assert count + 1 <= len(caught)
    warned = r"a worker process \(\d+\) ended with exit code 1 before it had loaded the data; a new worker replaces it"
    assert all(re.fullmatch(warned, str(each.message)) for each in caught)
    wait_for_the_end()


def test_workers_share_the_arrays_that_their_functions_hold() -> None:
    """The very memory, not copies of it."""
    table = np.arange(1 << 20)
    with iter(loader(lambda row: maps.slow_who({"x": table[row["x"]]}))) as batches:
        pids: set[int] = set()
        while len(pids) < 2:
            pids |= set(next(batches)["pid"].tolist())
        private = [_nameless_files(pid, "p") for pid in pids]
    assert private[0] == private[1]
    assert len(private[0]) == 1


# Errors of the user's


@pytest.mark.parametrize(
    ("way", "kind", "message", "count"),
    [
        ("value", ValueError, "no good", 1),
        ("user", maps.UnluckyError, "no good", 2),
        ("cause", RuntimeError, "no good", 1),
        ("two", WorkerError, "a worker process raised TwoError: row 21: no good", 2),
        ("closed", WorkerError, "a worker process raised ClosedError: no good", 1),
        ("exit", RuntimeError, "raised SystemExit(3)", 1),
    ],
)
def test_an_error_keeps_its_type_and_comes_at_its_step(
    way: str, kind: type[Exception], message: str, count: int
) -> None:
    with iter(loader(maps.raises(way), num_workers=count)) as batches:
        assert [next(batches)["x"].tolist() for _ in range(2)] == [numbers(0), numbers(1)]
        with pytest.raises(kind) as caught:
            next(batches)
        assert type(caught.value) is kind
        assert str(caught.value).endswith(message)
        notes = "\n".join(caught.value.__notes__)
        for part in ("loadax: in step 2", "worker process", "Traceback", "maps.py", "raises.<locals>.fails", "row 21"):
            assert part in notes, part
        with pytest.raises(kind):
            next(batches)
        batches.set_state(3)
        reads_on(batches, 3)


@pytest.mark.parametrize("way", ["mute", "interrupt", "stop"])
def test_odd_errors_do_not_hang(way: str) -> None:
    message = {"mute": "MuteError", "interrupt": "KeyboardInterrupt", "stop": "StopIteration"}[way]
    with iter(loader(maps.raises(way), num_workers=1)) as batches:
        reads_on(batches, 0, 2)
        with pytest.raises(RuntimeError, match=message):
            next(batches)


# What can't be sent


class Elsewhere(maps.Numbers):
    """Asks for a module that is not even here."""

    def __reduce__(self) -> Any:
        return __import__, ("nobody_has_this",)


def locked() -> Any:
    lock = threading.Lock()

    def guarded(example: Any) -> Any:
        with lock:
            return example

    return from_arrays(np.arange(64)).map(guarded)


def dispatched() -> Any:
    @functools.singledispatch
    def times(value: Any) -> Any:
        return value * 5

    return from_arrays(np.arange(64)).map(times)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: from_source(maps.Unwilling(64)),
            (
                r"the source, Unwilling\(64\) can't be sent .* TypeError: cannot pickle '_thread.lock' object; make it "
                r"picklable: open files .* on first use, .* in __setstate__; or use worker_type='thread'"
            ),
        ),
        (locked, r"map .*guarded \(.*\) can't be sent to a worker process: TypeError: cannot pickle '_thread.lock'"),
        (
            lambda: from_source(maps.Spoilt(64)),
            "a worker process could not load the data: LookupError: not here; make it picklable",
        ),
        (
            lambda: from_source(Elsewhere(64)),
            r"a worker process can't import 'nobody_has_this', which the data or its maps need; install it, or add",
        ),
    ],
)
def test_data_that_can_not_be_sent_is_named(make: Callable[[], Any], message: str) -> None:
    with (
        pytest.raises(WorkerError, match=message),
        iter(Dataloader(make(), 8, num_workers=1, worker_type="process")) as batches,
    ):
        next(batches)
    wait_for_the_end()


def test_a_dispatched_function_of_a_block_reaches_workers() -> None:
    with iter(Dataloader(dispatched(), 8, num_workers=1, worker_type="process")) as batches:
        assert next(batches).tolist() == list(range(0, 40, 5))
    wait_for_the_end()


def module_that_workers_lack(folder: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> Any:
    """Imported here, and then its folder is taken from the path."""
    (folder / "only_here.py").write_text(text)
    monkeypatch.syspath_prepend(str(folder))
    module = importlib.import_module("only_here")
    del sys.modules["only_here"]
    monkeypatch.setitem(sys.modules, "only_here", module)
    monkeypatch.setattr("sys.path", [each for each in sys.path if each != str(folder)])
    return module


@pytest.mark.parametrize("count", [1, 2])
def test_functions_of_a_module_that_workers_lack_go_by_value(
    count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (
        "class Low(Exception): pass\n"
        "BASE = 40\n"
        "def top(row):\n"
        "    if row['x'] == 9: raise Low('nine')\n"
        "    return {'x': row['x'] + BASE}\n"
    )
    module = module_that_workers_lack(tmp_path, monkeypatch, text)
    with iter(loader(module.top, num_workers=count)) as batches:
        assert next(batches)["x"].tolist() == list(range(40, 48))
        with pytest.raises(module.Low, match="nine"):
            next(batches)


def test_missing_module_of_a_map_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = module_that_workers_lack(tmp_path, monkeypatch, "def top(row):\n    import gone_by_now\n    return row\n")
    data = from_arrays({"x": np.arange(64)}).map(module.top, spec={"x": np.int64(0)})
    with (
        iter(Dataloader(data, 8, num_workers=1, worker_type="process")) as batches,
        pytest.raises(ModuleNotFoundError, match="gone_by"),
    ):
        next(batches)  # at work, it is an error as others are


def test_path_objects_in_sys_path_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.path", [*sys.path, Path("/nowhere")])
    with iter(loader()) as batches:
        reads_on(batches, 0)


# Deaths


def test_a_worker_that_is_killed_is_replaced() -> None:
    killed: list[int] = []
    with iter(loader(maps.slow_who)) as batches, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for step in range(40):
            batch = next(batches)
            assert batch["x"].tolist() == numbers(step)
            reader = int(batch["pid"][0])
            if step >= 3 and len(killed) < 2 and reader not in killed:  # batches that it read before its end still come
                killed.append(reader)
                os.kill(reader, signal.SIGKILL)
        assert len(killed) == 2
        assert not {child.pid for child in worker_processes()} & set(killed)
    told = [str(each.message) for each in caught]
    assert len(told) == len(killed)
    for pid in killed:
        (message,) = (each for each in told if f"({pid})" in each)
        assert re.fullmatch(
            rf"a worker process \({pid}\) was killed by signal 9 \(SIGKILL: "
            r"often the OOM killer, when memory is short\) while it (read (row \d+|\d+ rows \([\d, …]+\)); "
            r"a new worker retries them|was idle; a new worker replaces it)",
            message,
        ), message


@pytest.mark.parametrize("count", [1, 3])
def test_idle_workers_that_are_all_killed_are_replaced(count: int) -> None:
    with iter(loader(maps.who, rows=80, num_workers=count)) as batches:
        reads_on(batches, 0, 10)  # all that there is
        until(lambda: _all_there(batches))

        def go_on_without_them() -> None:
            killed = worker_processes()
            for child in killed:
                child.kill()
            until(lambda: all(_ended(child.pid) for child in killed))
            batches.set_state(0)
            reads_on(batches, 0, 10)

        with pytest.warns(
            RuntimeWarning,
            match=r"killed by signal 9 .* (while it was idle|before it had loaded the data); a new worker replaces it",
        ):
            go_on_without_them()


@pytest.mark.parametrize("pause", [0.0, 0.1])
def test_starting_workers_that_are_all_killed_are_replaced(pause: float, tmp_path: Path) -> None:
    held_up = tmp_path / "held up"  # or they may have read it all by now, on a machine that is busy
    held_up.touch()

    def killed(batches: DataIterator) -> None:
        for child in worker_processes():
            child.kill()
        held_up.unlink()
        reads_on(batches, 0, 10)

    with iter(loader(maps.Awaited(held_up), num_workers=2)) as batches:
        time.sleep(pause)
        with pytest.warns(
            RuntimeWarning, match=r"killed by signal 9 .* before it had loaded the data; a new worker replaces it"
        ):
            killed(batches)


def test_busy_workers_that_are_all_killed_are_replaced() -> None:
    """Each has a piece of its own, which counts as one death of that."""

    def killed(batches: DataIterator) -> None:
        for child in worker_processes():
            child.kill()
        reads_on(batches, 6, 12)

    with iter(loader(maps.slow_who, rows=16_000, num_workers=3, prefetch_bytes=4096)) as batches:
        reads_on(batches, 0, 6)
        with pytest.warns(RuntimeWarning, match="killed by signal 9"):
            killed(batches)


@pytest.mark.parametrize(
    ("way", "ended", "count"),
    [
        ("_exit", "ended with exit code 7", 1),
        ("kill", r"was killed by signal 9 \(SIGKILL: often the OOM killer, when memory is short\)", 2),
        ("segfault", "was killed by signal 11", 2),
    ],
)
def test_row_that_kills_its_workers_is_named(way: str, ended: str, count: int) -> None:
    message = (
        r"2 worker processes died, one after the other, reading (row 21|8 rows \(16, .*23\)|\d rows \(.*21.*\)); "
        rf"the last one \(\d+\) {ended}\. Debug these rows and their maps with num_workers=0, "
        r"or use fewer workers"
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with iter(loader(maps.raises(way), num_workers=count)) as batches:
            reads_on(batches, 0, 2)
            with pytest.raises(WorkerError, match=message) as error:
                next(batches)
            batches.set_state(3)
            reads_on(batches, 3)
    assert {each.category for each in caught} == {RuntimeWarning}
    assert all(re.search(ended, str(each.message)) for each in caught)
    assert "loadax: in step 2" in error.value.__notes__
    wait_for_the_end()


# Ends


Stuck = Callable[[], DataIterator]


@pytest.fixture
def stuck(tmp_path: Path) -> Stuck:
    """Makes an iterator whose workers are all in the middle of a map that does not end."""

    def make() -> DataIterator:
        batches = iter(loader(maps.Stuck(tmp_path)))
        until(lambda: len(list(tmp_path.iterdir())) == 2)
        return batches

    return make


def test_close_while_they_are_busy(stuck: Stuck, capfd: pytest.CaptureFixture[str]) -> None:
    batches = stuck()
    batches.close()
    wait_for_the_end()
    with pytest.raises(ClosedError):
        next(batches)
    assert capfd.readouterr() == ("", "")


def test_garbage_collected_iterator_ends_busy_workers(stuck: Stuck) -> None:
    batches = stuck()
    del batches
    gc.collect()
    wait_for_the_end()


def test_suspended_worker_is_killed_on_close() -> None:
    """SIGSTOP, as a system does to processes that it freezes."""
    batches = iter(loader(maps.who))
    next(batches)
    for child in worker_processes():
        child.suspend()
    batches.close()
    wait_for_the_end()


def test_close_from_another_thread_while_the_consumer_waits(stuck: Stuck) -> None:
    batches = stuck()

    def close() -> None:
        until(lambda: batches._stretch.scheduler._consumer_waiting)
        batches.close()

    closing = threading.Thread(target=close)
    closing.start()
    with pytest.raises(ClosedError):
        next(batches)
    closing.join(HANG)
    wait_for_the_end()


def test_an_interrupt_while_the_consumer_waits_loses_nothing() -> None:
    with iter(loader(maps.slow_who, rows=160_000)) as batches:
        reads_on(batches, 0, 2)
        timer = threading.Timer(0.02, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        step = 2
        with pytest.raises(KeyboardInterrupt):  # noqa: PT012 - wherever it comes
            while True:
                assert next(batches)["x"].tolist() == numbers(step)
                step += 1
        timer.join()
        pids = {child.pid for child in worker_processes()}
        reads_on(batches, batches.step, 5)
        assert {child.pid for child in worker_processes()} == pids


def test_a_reopened_iterator_starts_as_many_as_were_at_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loadax.loader.loader_arguments.usable_cores", lambda: 2)
    batches = iter(loader(maps.who, rows=8000, num_workers=None))
    next(batches)
    assert batches._stretch.autotuner is not None
    batches._stretch.autotuner.size = 4  # two processes, as if a trial had shown that they are of use
    batches.close()
    wait_for_the_end()
    batches.set_state(3)
    with batches:
        reads_on(batches, 3)
        until(lambda: len(worker_processes()) == 2)


# Python 3.12 and later warn.
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded, use of fork:DeprecationWarning")
def test_a_copy_of_the_trainer_by_fork_ends_none_of_them() -> None:
    """At its own end it runs what this process would have run at its end."""
    with iter(loader(maps.slow_who)) as batches:
        reads_on(batches, 0, 2)
        reader, writer = os.pipe()
        with pytest.warns(RuntimeWarning, match="fork"):
            child = os.fork()
        if child == 0:
            batches.close()
            os.write(writer, b"x")
            os._exit(0)
        assert os.read(reader, 1) == b"x"
        os.waitpid(child, 0)
        os.close(reader)
        os.close(writer)
        reads_on(batches, 2, 10)  # a warning of a death would be an error here


def test_memory_is_freed_when_no_batch_is_held() -> None:
    batches = iter(loader(maps.who))
    held = list(batches)
    batches.close()
    del batches
    assert _segments() > 0
    del held
    gc.collect()
    until(lambda: _segments() == 0)  # JAX may let go of memory on a thread of its own


def test_waiting_for_closed_workers_raises() -> None:
    group = process_pool.ProcessPool(1)
    for _ in range(group.capacity.concurrency):
        group._next_worker()  # now its hand is full
    refused = []

    def wait() -> None:
        with pytest.raises(ClosedError, match="the worker processes were closed"):
            group._next_worker()
        refused.append(1)

    waiting = [threading.Thread(target=wait) for _ in range(5)]
    for thread in waiting:
        thread.start()
    group.close()
    for thread in waiting:
        thread.join(HANG)
    assert len(refused) == len(waiting)
    assert group.closed


def _nameless_files(pid: int, kind: str) -> set[str]:
    """Inodes of the nameless memory that a process has mapped: shared (s), or to write to a copy of it (p)."""
    lines = [line.split() for line in Path(f"/proc/{pid}/maps").read_text().splitlines() if "memfd:loadax" in line]
    return {inode for _, mode, _, _, inode, *_ in lines if mode.endswith(kind)}


def _segments() -> int:
    """How many maps of nameless memory this process has."""
    return Path("/proc/self/maps").read_text().count("memfd:loadax")


def _ended(pid: int) -> bool:
    """Whether a child has ended, with all its threads.

    It stays a zombie, so that loadax can ask the same, if it has not yet.
    """
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None
    except ChildProcessError:
        return True


def _all_there(batches: DataIterator) -> bool:
    """Whether all workers are started, and have answered all that they were asked."""
    pool = batches._stretch.executor
    assert isinstance(pool, process_pool.ProcessPool)
    return len(pool._handles) == pool.capacity.workers and not any(handle.pending for handle in pool._handles)
