"""A loop over batches leaves no thread and prints nothing, however it ends, and the program exits without a wait.

Work that the workers still do does not hold up the exit. The fixture `no_leaks` checks for threads around every test
too.
"""

import _thread
import gc
import signal
import subprocess
import sys
import textwrap
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

import jax
import numpy as np
import psutil
import pytest

from loadax import Dataloader, from_arrays
from loadax.errors import LoadaxError
from loadax.loader.execution import monitor, thread_pool
from loadax.loader.iterator import DataIterator
from loadax.loader.metrics.stats import Timing
from tests.limits import ENDLESS, HANG, until
from tests.loader.workers.children import worker_processes
from tests.worker_types import WORKER_TYPES

ROOT = Path(__file__).parents[2]


def loader(slow: float = 0.0, **options: Any) -> Dataloader:
    """Steps of 8 rows, each of which takes `slow` seconds but for the first one ever read."""

    def sleepy(example: Any) -> Any:
        time.sleep(slow)
        return example

    data = from_arrays({"x": np.arange(8 * 1000)})
    return Dataloader(data.map(sleepy, spec={"x": np.int64(0)}) if slow else data, 8, **{"num_workers": 3, **options})


def workers() -> int:
    """The threads that read, and the processes that do it for them."""
    threads = sum(thread.name.startswith("loadax-worker") for thread in threading.enumerate())
    return threads + len(worker_processes())


def wait_for_the_end(*, collecting: bool = False) -> None:
    """Until all workers have ended; with `collecting`, once the garbage is collected."""

    def ended() -> bool:
        if collecting:
            # Again and again: it does nothing while a worker is in the middle of a collection, perhaps of the youngest.
            gc.collect()
        return workers() == 0

    until(ended)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Closing waits for the threads, however long these need on a busy machine."""
    monkeypatch.setattr(thread_pool, "CLOSE_TIMEOUT", HANG)


def end_of_the_data(made: Dataloader) -> None:
    assert sum(1 for _ in made) == 1000


def leave_a_loop(made: Dataloader) -> None:
    for batch in made:  # noqa: B007 - the last one outlives its iterator
        break
    gc.collect()
    assert jax.device_get(batch["x"]).tolist() == list(range(8))


def leave_an_epoch(made: Dataloader) -> None:
    for epoch in made.epochs():
        for _ in epoch:
            return


def exception_in_a_loop(made: Dataloader) -> None:
    def train() -> None:
        for _ in made:
            raise ValueError("diverged")

    with pytest.raises(ValueError, match="diverged"):
        train()


def exception_inside_with(made: Dataloader) -> None:
    with pytest.raises(ValueError, match="diverged"), iter(made) as batches:  # noqa: PT012
        next(batches)
        raise ValueError("diverged")
    with pytest.raises(LoadaxError, match="closed"):
        next(batches)
    assert repr(batches) == "DataIterator(step=1, epoch=0, closed)"


def close_at_once_and_again(made: Dataloader) -> None:
    for pause in (0.0, 0.02):
        batches = iter(made)
        time.sleep(pause)
        batches.close()
        batches.close()


def garbage_in_a_cycle(made: Dataloader) -> None:
    class Holder:
        pass

    for _ in range(2):
        holder: Any = Holder()
        holder.me, holder.batches = holder, iter(made)
        next(holder.batches)
        del holder


ENDS = (
    end_of_the_data,
    leave_a_loop,
    leave_an_epoch,
    exception_in_a_loop,
    exception_inside_with,
    close_at_once_and_again,
    garbage_in_a_cycle,
)


@pytest.mark.parametrize("worker_type", WORKER_TYPES)
@pytest.mark.parametrize("end", ENDS)
def test_loop_leaves_no_worker_and_prints_nothing(
    end: Callable[[Dataloader], None], worker_type: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """Also on threads: pytest makes an exception that nobody caught an error of the test."""
    end(loader(worker_type=worker_type, num_workers=2))
    wait_for_the_end(collecting=True)
    assert capfd.readouterr() == ("", "")


def test_with_waits_for_its_workers(patient: None) -> None:
    with iter(loader(0.02)) as batches:
        next(batches)
        assert workers() == 3
    assert workers() == 0


def test_workers_end_with_a_failing_map(patient: None) -> None:
    def fails(example: Any) -> Any:
        if example["x"] == 20:
            raise ValueError("bad row")
        return example

    with pytest.raises(ValueError, match="bad row"):
        list(Dataloader(from_arrays({"x": np.arange(6400)}).map(fails), 8, num_workers=3))
    assert workers() == 0


def test_close_lets_go_of_batches_and_their_memory() -> None:
    batches = iter(loader())
    next(batches)
    scheduler = weakref.ref(batches._stretch.scheduler)
    batches.close()
    del batches
    gc.collect()
    assert scheduler() is None


def test_a_cycle_that_a_worker_collects(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever allocates collects: also a worker of this very iterator, with its window's lock in hand."""

    class Holder:
        pass

    class Collecting:
        """Sizes of pieces, asked for under the lock; the garbage is collected right there."""

        def __init__(self, rows_per_step: int, *_: Any):
            self._rows = rows_per_step

        def measured(self, rows: int, timing: Timing) -> None:
            pass

        @property
        def steps(self) -> int:
            if threading.current_thread() is not threading.main_thread():
                gc.collect()
            return 1

        def pieces(self, count: int, active: int, rows_per_step: int | None = None) -> list[tuple[int, int]]:
            return [(0, self._rows)]

    monkeypatch.setattr(monitor, "PieceSizes", Collecting)
    gc.collect()
    gc.freeze()  # collections look at what comes from here on, not at a session's worth of compiled functions
    gc.disable()
    try:
        for _ in range(5):
            holder: Any = Holder()
            # One run at a time: in a long session of tests a collection takes most of a second.
            holder.me, holder.batches = holder, iter(loader(num_workers=2, prefetch_bytes=1))
            next(holder.batches)
            scheduler = holder.batches._stretch.scheduler
            del holder
            with suppress(LoadaxError):  # it may be closed by now
                scheduler.next_batch()  # makes room, so a worker opens the next run
            wait_for_the_end()
    finally:
        gc.enable()


def test_keyboard_interrupt_of_a_map_reaches_the_caller() -> None:
    """It must not leave the consumer waiting for a thread that is gone."""

    def leaves(example: Any) -> Any:
        if example["x"] == 20:
            raise KeyboardInterrupt
        return example

    for count in (0, 1, 2):
        data = from_arrays({"x": np.arange(64)}).map(leaves)
        with iter(Dataloader(data, 8, num_workers=count)) as batches, pytest.raises(KeyboardInterrupt):
            list(batches)


class _Interrupted(KeyboardInterrupt):
    """Ctrl-C that only ever strikes inside `next()`."""


def test_going_on_after_an_interrupted_wait() -> None:
    """No batch is lost and none comes twice."""
    armed = [False]
    here = sys._getframe()

    def handler(_: int, frame: FrameType | None) -> None:
        # Between the return of `next` and the assignment, Python itself would lose the batch.
        if armed[0] and frame is not here:
            armed[0] = False
            raise _Interrupted

    before = signal.signal(signal.SIGUSR1, handler)
    seen: list[int] = []
    interrupted = [0, 0, 0]
    main, stop = threading.main_thread().ident, threading.Event()
    assert main is not None

    def strike() -> None:
        while not stop.wait(0.007):
            signal.pthread_kill(main, signal.SIGUSR1)

    striker = threading.Thread(target=strike)
    try:
        for case, workers in enumerate((0, 1, 3)):
            # Endless, since a busy machine may hold the striker up for longer than an epoch.
            batches = loader(0.0003, num_workers=workers, num_epochs=None).iterate(0)
            seen.clear()
            if not striker.is_alive():
                striker.start()
            while len(seen) < 15 or interrupted[case] < 3:
                try:
                    armed[0] = True
                    batch = next(batches)
                    armed[0] = False
                except _Interrupted:
                    interrupted[case] += 1
                    continue
                seen.append(int(batch["x"][0]))
            assert seen == [8 * (step % 1000) for step in range(len(seen))]
            assert batches.step == len(seen)
            batches.close()
    finally:
        armed[0] = False
        stop.set()
        striker.join()
        signal.signal(signal.SIGUSR1, before)


def test_an_interrupt_after_the_batch_was_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller has not got the batch, so it comes again."""
    count, after = DataIterator._count, iter([False, True, False, True, True])

    def interrupted(*arguments: Any) -> None:
        count(*arguments)
        if next(after, False):
            raise _Interrupted

    monkeypatch.setattr(DataIterator, "_count", interrupted)
    batches = loader(0).iterate(0)
    seen: list[int] = []
    interrupts = 0
    while len(seen) < 4:
        try:
            seen.append(int(next(batches)["x"][0]))
        except _Interrupted:
            interrupts += 1
        assert batches.step == len(seen)
    assert seen == [0, 8, 16, 24]
    assert interrupts == 3
    batches.close()


def test_an_interrupt_where_a_wait_has_given_its_lock_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """The `with` around it has no lock to release then, and would raise a RuntimeError in place of the interrupt."""
    batches = loader(0.001).iterate(0)
    seen = [int(next(batches)["x"][0])]
    arrived = batches._stretch.scheduler._arrived
    release: Callable[[], Any] = arrived._release_save  # type: ignore[attr-defined]

    def released() -> Any:
        release()
        raise _Interrupted

    with monkeypatch.context() as patched:
        patched.setattr(arrived, "_release_save", released)
        with pytest.raises(_Interrupted):
            seen.extend(int(batch["x"][0]) for batch in batches)
    seen.extend(int(next(batches)["x"][0]) for _ in range(3))
    assert seen == [8 * step for step in range(len(seen))]
    batches.close()


def test_an_interrupt_while_a_thread_starts_that_then_never_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    """It leaves the lock of the thread's `Event` held. Closing ends all the others."""
    start, free = threading.Thread.start, threading.Event()

    def interrupted(thread: threading.Thread) -> None:
        if thread.name != "loadax-watch":
            start(thread)
            return
        _thread.start_new_thread(free.wait, ())
        thread._ident = 1  # type: ignore[attr-defined]
        raise _Interrupted

    batches = loader(0.001).iterate(0)
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", interrupted)
        with pytest.raises(_Interrupted):
            next(batches)
    assert workers() == 3
    batches.close()
    batches.close()
    free.set()
    assert workers() == 0


@pytest.mark.parametrize("count", [0, 2])
def test_closing_again_after_an_interrupt_anywhere_in_close(count: int) -> None:
    """At every call and every return from C code, which is where Python looks for signals."""
    points = 0

    def in_finalizer(frame: FrameType | None) -> bool:
        """Where Python says "ignored" of any error, and goes on."""
        while frame is not None and frame.f_code is not weakref.finalize.__call__.__code__:
            frame = frame.f_back
        return frame is not None

    while True:
        batches = loader(0.0001, num_workers=count).iterate(0)
        for _ in range(2):
            next(batches)
        left = points

        def interrupt(frame: FrameType, event: str, _argument: Any) -> None:
            nonlocal left
            if event in ("call", "c_return") and not in_finalizer(frame):
                left -= 1
                if left == 0:
                    sys.setprofile(None)
                    raise _Interrupted

        points += 1
        gc.disable()
        sys.setprofile(interrupt)
        try:
            batches.close()
        except _Interrupted:
            pass
        else:
            if left > 0:
                break
        finally:
            sys.setprofile(None)
            gc.enable()
        batches.close()
        until(lambda: workers() == 0)
        with pytest.raises(LoadaxError, match="this iterator is closed"):
            next(batches)
    assert points > 20


# Whole programs


def run(body: str, act: Callable[[subprocess.Popen[str]], None] = lambda child: None) -> tuple[int, str]:
    """A program that ends, although its workers would sleep for an hour: its exit code, and what it wrote to stderr."""
    lines = f"""
        import os, sys, threading, time
        import numpy as np
        from loadax import Dataloader, from_arrays

        def sleepy(example):
            if awake[0] and example["x"] >= 16:
                sleeping.set()
                time.sleep({ENDLESS})
            return example

        awake, sleeping = [False], threading.Event()
        data = from_arrays({{"x": np.arange(800)}})
    """
    program = textwrap.dedent(lines) + textwrap.dedent(body)
    command = [sys.executable, "-W", "error", "-X", "faulthandler", "-c", program]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout is not None
            line = child.stdout.readline()
            assert line == "ready\n", child.stderr.read() if child.stderr else ""
            act(child)
            _, errors = child.communicate(timeout=HANG)
            return child.returncode, errors
        finally:
            child.kill()


NOT_CLOSED = """
    batches = iter(Dataloader(data, 8, num_workers=3))
    next(batches)
    print("ready", flush=True)
"""
ASLEEP = """
    loader = Dataloader(data.map(sleepy), 8, num_workers=3)
    awake[0] = True
    batches = iter(loader)
    next(batches)
    sleeping.wait()
    print("ready", flush=True)
"""
BUSY = """
    keep = [iter(Dataloader(data.shuffle(seed=0).map(lambda x: x), 8, num_epochs=None)) for _ in range(4)]
    for batches in keep:
        next(batches)
    print("ready", flush=True)
"""


@pytest.mark.parametrize("body", [NOT_CLOSED, ASLEEP, BUSY], ids=["not closed", "asleep", "busy"])
def test_program_ends_while_its_workers_are(body: str) -> None:
    assert run(body) == (0, "")


def test_a_program_that_raises_ends() -> None:
    body = """
        for batch in Dataloader(data, 8, num_workers=3, num_epochs=None):
            print("ready", flush=True)
            raise ValueError("diverged")
    """
    code, errors = run(body)
    assert code == 1
    assert errors.rstrip().endswith("ValueError: diverged")
    assert errors.count("Traceback") == 1


@pytest.mark.parametrize(("where", "workers"), [("training", 2), ("waiting", 0), ("waiting", 2)])
def test_ctrl_c(where: str, workers: int) -> None:
    body = f"""
        loader = Dataloader(data.map(sleepy), 8, num_workers={workers}, num_epochs=None)
        awake[0] = {where == "waiting"}

        def announce():
            sleeping.wait()
            # Not by print: at exit Python aborts when a daemon thread still holds the lock of sys.stdout.
            os.write(1, b"ready\\n")

        # In a thread: the step before the rows that sleep may be in one read task with them, and then never reaches
        # the loop.
        threading.Thread(target=announce, daemon=True).start()
        for batch in loader:
            if not awake[0] and batch["x"][0] == 8:
                sleeping.set()
                time.sleep({ENDLESS})
    """

    def interrupt(child: subprocess.Popen[str]) -> None:
        main_thread = psutil.Process(child.pid)

        def sleeps() -> bool:
            # Not the wait for the GIL just before: it ends every 5 ms. A signal then may be seen only after the sleep.
            before = main_thread.num_ctx_switches()
            time.sleep(0.1)
            return main_thread.status() == psutil.STATUS_SLEEPING and main_thread.num_ctx_switches() == before

        until(sleeps)
        child.send_signal(signal.SIGINT)

    code, errors = run(body, interrupt)
    assert code == -signal.SIGINT, errors
    assert errors.rstrip().endswith("KeyboardInterrupt")
    assert errors.count("Traceback") == 1


def test_ctrl_c_that_is_caught_leaves_no_thread() -> None:
    body = """
        import gc
        def train():
            with iter(Dataloader(data, 8, num_workers=2, num_epochs=None)) as batches:
                for batch in batches:
                    if batches.step == 20:
                        print("ready", flush=True)
                    time.sleep(0.001)
        try:
            train()
        except KeyboardInterrupt:
            left = [thread.name for thread in threading.enumerate() if thread.name.startswith("loadax")]
            sys.exit(f"left: {left}" if left else 7)
    """

    def interrupt(child: subprocess.Popen[str]) -> None:
        time.sleep(0.1)  # at any moment
        child.send_signal(signal.SIGINT)

    code, errors = run(body, interrupt)
    assert (code, errors) == (7, "")


def test_set_state_does_not_wait_for_busy_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    def busy(example: Any) -> Any:
        if 8 <= example["x"] < 800:
            time.sleep(ENDLESS)
        return example

    data = from_arrays({"x": np.arange(8 * 1000)}).map(busy)
    with iter(Dataloader(data, 8, num_workers=1, worker_type="process")) as batches:
        next(batches)
        monkeypatch.setattr(thread_pool, "CLOSE_TIMEOUT", 0.1)
        before = [thread for thread in threading.enumerate() if thread.name.startswith("loadax")]
        assert before
        batches.set_state(100)
        until(lambda: not any(thread.is_alive() for thread in before))
        assert jax.device_get(next(batches)["x"]).tolist() == list(range(800, 808))
    wait_for_the_end()


def test_interrupt_while_threads_start_leaves_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    loader_ = loader(num_workers=3)
    batches = iter(loader_)
    next(batches)
    start = threading.Thread.start
    started: list[threading.Thread] = []

    def interrupted(thread: threading.Thread) -> None:
        if len(started) == 1:
            raise KeyboardInterrupt
        started.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        batches.set_state(2)
    monkeypatch.setattr(threading.Thread, "start", start)
    assert batches.step == 2
    next(batches)
    assert batches.step == 3
    batches.close()
    wait_for_the_end()
