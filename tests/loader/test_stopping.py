"""However a loop over batches ends, no thread is left, nothing is printed, and the program exits at once.

That no thread is left is also seen to by the fixture `no_leaks`, around every test.
"""

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
from typing import Any

import jax
import numpy as np
import pytest

from loadax import Dataloader, from_arrays
from loadax.errors import LoadaxError
from loadax.loader import prefetch

ROOT = Path(__file__).parents[2]
AT_ONCE = 3.0
"""Seconds, on a machine that is busy with other things; what would hang or wait for a sleeper takes longer."""


def loader(slow: float = 0.0, **options: Any) -> Dataloader:
    """Steps of 8 rows, each of which takes `slow` seconds but for the first one ever read."""

    def sleepy(example: Any) -> Any:
        time.sleep(slow)
        return example

    data = from_arrays({"x": np.arange(8 * 1000)})
    return Dataloader(data.map(sleepy, spec={"x": np.int64(0)}) if slow else data, 8, **{"num_workers": 3, **options})


def workers() -> int:
    return sum(thread.name.startswith("loadax") for thread in threading.enumerate())


def none_left(seconds: float = AT_ONCE, *, collecting: bool = False) -> bool:
    """Whether all workers end in time; with `collecting`, once the garbage is collected."""
    deadline = time.monotonic() + seconds
    while workers() and time.monotonic() < deadline:
        if collecting:
            gc.collect()  # again and again: it does nothing while a worker is in the middle of a collection, perhaps of the youngest only
        time.sleep(0.005)
    return workers() == 0


def test_the_tests_below_would_see_a_thread() -> None:
    batches = iter(loader())
    assert workers() == 3
    batches.close()


def test_the_end_of_the_data() -> None:
    assert sum(1 for _ in loader()) == 1000
    assert none_left(0.5)


@pytest.mark.parametrize("slow", [0.0, 0.02])
def test_break(slow: float) -> None:
    for batch in loader(slow):  # noqa: B007 - the last one is looked at below
        assert workers() == 3
        break
    assert none_left()
    assert batch["x"].tolist() == list(range(8))


def test_break_out_of_an_epoch() -> None:
    def train() -> None:
        for epoch in loader().epochs():
            for _ in epoch:
                return

    train()
    gc.collect()
    assert none_left()


def test_an_exception_in_the_loop() -> None:
    def train() -> None:
        for _ in loader():
            raise ValueError("diverged")

    with pytest.raises(ValueError, match="diverged"):
        train()
    gc.collect()
    assert none_left()


def test_an_exception_inside_with() -> None:
    with pytest.raises(ValueError, match="diverged"), iter(loader()) as batches:  # noqa: PT012
        next(batches)
        raise ValueError("diverged")
    assert workers() == 0
    with pytest.raises(LoadaxError, match="closed"):
        next(batches)


def test_with_and_close_and_close_again() -> None:
    with iter(loader()) as batches:
        next(batches)
    assert workers() == 0
    batches.close()
    batches.close()
    assert repr(batches) == "DataIterator(step=1, epoch=0, closed)"


@pytest.mark.parametrize("slow", [0.0, 0.05])
def test_close_in_the_middle_of_reading_says_nothing(slow: float, capfd: pytest.CaptureFixture[str]) -> None:
    """Also on threads: pytest makes an exception that nobody caught an error of the test."""
    for _ in range(3):
        batches = iter(loader(slow))
        time.sleep(0.02)
        batches.close()
        assert none_left()
    assert capfd.readouterr() == ("", "")


def test_close_lets_go_of_batches_and_their_memory() -> None:
    batches = iter(loader())
    next(batches)
    window = weakref.ref(batches._window)
    batches.close()
    del batches
    gc.collect()
    assert window() is None


def test_garbage_collection_of_a_cycle() -> None:
    class Holder:
        pass

    for _ in range(20):
        holder: Any = Holder()
        holder.me, holder.batches = holder, iter(loader())
        next(holder.batches)
        del holder
    assert none_left(collecting=True)


def test_a_cycle_that_a_worker_collects(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever allocates collects: also a worker of this very iterator, with its window's lock in hand."""

    class Holder:
        pass

    class Collecting:
        """Sizes of pieces, asked for under the lock; the garbage is collected right there."""

        def __init__(self, rows_per_step: int, workers: int):
            self._rows = rows_per_step

        def measured(self, rows: int, seconds: float) -> None:
            pass

        @property
        def steps(self) -> int:
            if threading.current_thread() is not threading.main_thread():
                gc.collect()
            return 1

        def slices(self, count: int) -> list[tuple[int, int]]:
            return [(0, count * self._rows)]

    monkeypatch.setattr(prefetch, "PieceSizes", Collecting)
    gc.disable()
    try:
        for _ in range(5):
            holder: Any = Holder()
            # One run at a time: in a long session of tests a collection takes most of a second.
            holder.me, holder.batches = holder, iter(loader(num_workers=2, prefetch_bytes=1))
            next(holder.batches)
            window = holder.batches._window
            del holder
            with suppress(LoadaxError):  # it may be closed by now
                window.take()  # makes room, so a worker opens the next run
            assert none_left()
    finally:
        gc.enable()


def test_what_a_map_raises_that_is_no_exception_reaches_the_caller() -> None:
    """It must not leave the consumer waiting for a thread that is gone."""

    def leaves(example: Any) -> Any:
        if example["x"] == 20:
            raise KeyboardInterrupt
        return example

    for count in (0, 1, 2):
        data = from_arrays({"x": np.arange(64)}).map(leaves)
        with iter(Dataloader(data, 8, num_workers=count)) as batches, pytest.raises(KeyboardInterrupt):
            list(batches)


def test_workers_end_with_a_failing_map() -> None:
    def fails(example: Any) -> Any:
        if example["x"] == 20:
            raise ValueError("bad row")
        return example

    batches = iter(Dataloader(from_arrays({"x": np.arange(6400)}).map(fails), 8, num_workers=3))
    with pytest.raises(ValueError, match="bad row"):
        for _ in batches:
            pass
    assert workers() == 0


class _Interrupted(KeyboardInterrupt):
    """Ctrl-C that only ever strikes inside `next()`."""


def test_going_on_after_an_interrupted_wait() -> None:
    """No batch is lost and none comes twice."""
    armed = [False]

    def handler(*_: object) -> None:
        if armed[0]:
            armed[0] = False
            raise _Interrupted

    before = signal.signal(signal.SIGUSR1, handler)
    seen: list[int] = []
    interrupted = 0
    main, stop = threading.main_thread().ident, threading.Event()
    assert main is not None

    def strike() -> None:
        while not stop.wait(0.007):
            signal.pthread_kill(main, signal.SIGUSR1)

    striker = threading.Thread(target=strike)
    try:
        for workers in (0, 1, 3):
            batches = loader(0.0003, num_workers=workers).iterate(0)
            seen.clear()
            if not striker.is_alive():
                striker.start()
            while len(seen) < 15:
                try:
                    armed[0] = True
                    batch = next(batches)
                    armed[0] = False
                except _Interrupted:
                    interrupted += 1
                    continue
                seen.append(int(batch["x"][0]))
            assert seen == [8 * step for step in range(15)]
            assert batches.step == 15
            batches.close()
    finally:
        armed[0] = False
        stop.set()
        striker.join()
        signal.signal(signal.SIGUSR1, before)
    assert interrupted > 5


# Whole programs


def run(body: str, act: Callable[[subprocess.Popen[str]], None] = lambda child: None) -> tuple[int, float, str]:
    """A program: its exit code, how long it went on after printing `ready`, and what it wrote to stderr."""
    lines = """
        import sys, threading, time
        import numpy as np
        from loadax import Dataloader, from_arrays

        def sleepy(example):
            if awake[0] and example["x"] >= 16:
                sleeping.set()
                time.sleep(30)
            return example

        awake, sleeping = [False], threading.Event()
        data = from_arrays({"x": np.arange(800)})
    """
    program = textwrap.dedent(lines) + textwrap.dedent(body)
    command = [sys.executable, "-W", "error", "-X", "faulthandler", "-c", program]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout is not None
            line = child.stdout.readline()
            start = time.monotonic()
            assert line == "ready\n", child.stderr.read() if child.stderr else ""
            act(child)
            _, errors = child.communicate(timeout=45)
            return child.returncode, time.monotonic() - start, errors
        finally:
            child.kill()


def test_a_program_ends_with_an_iterator_that_nobody_closed() -> None:
    body = """
        batches = iter(Dataloader(data, 8, num_workers=3))
        next(batches)
        print("ready", flush=True)
    """
    code, took, errors = run(body)
    assert (code, errors) == (0, "")
    assert took < AT_ONCE


def test_a_program_ends_though_its_workers_sleep() -> None:
    body = """
        loader = Dataloader(data.map(sleepy), 8, num_workers=3)
        awake[0] = True
        batches = iter(loader)
        next(batches)
        sleeping.wait()
        print("ready", flush=True)
    """
    code, took, errors = run(body)
    assert (code, errors) == (0, "")
    assert took < AT_ONCE


def test_a_program_ends_in_the_middle_of_much_work() -> None:
    body = """
        keep = [iter(Dataloader(data.shuffle(seed=0).map(lambda x: x, rng=False), 8, num_epochs=None)) for _ in range(4)]
        for batches in keep:
            next(batches)
        print("ready", flush=True)
    """
    code, took, errors = run(body)
    assert (code, errors) == (0, "")
    assert took < AT_ONCE


def test_a_program_that_raises_ends() -> None:
    body = """
        for batch in Dataloader(data, 8, num_workers=3, num_epochs=None):
            print("ready", flush=True)
            raise ValueError("diverged")
    """
    code, took, errors = run(body)
    assert code == 1
    assert errors.rstrip().endswith("ValueError: diverged")
    assert errors.count("Traceback") == 1
    assert took < AT_ONCE


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("where", ["training", "waiting"])
def test_ctrl_c(workers: int, where: str) -> None:
    body = f"""
        loader = Dataloader(data.map(sleepy), 8, num_workers={workers}, num_epochs=None)
        awake[0] = {where == "waiting"}

        def announce():
            sleeping.wait()
            print("ready", flush=True)

        # By itself: the step before the rows that sleep may be read in one piece with them, and then never reaches the loop.
        threading.Thread(target=announce, daemon=True).start()
        for batch in loader:
            if not awake[0] and batch["x"][0] == 8:
                sleeping.set()
                time.sleep(30)
    """

    def interrupt(child: subprocess.Popen[str]) -> None:
        time.sleep(0.3)
        child.send_signal(signal.SIGINT)

    code, took, errors = run(body, interrupt)
    assert code == -signal.SIGINT
    assert errors.rstrip().endswith("KeyboardInterrupt")
    assert errors.count("Traceback") == 1
    assert took < AT_ONCE


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
        time.sleep(0.1)
        child.send_signal(signal.SIGINT)

    code, took, errors = run(body, interrupt)
    assert (code, errors) == (7, "")
    assert took < AT_ONCE


def test_a_batch_outlives_its_iterator_and_its_loader() -> None:
    batch = next(iter(loader()))
    gc.collect()
    assert none_left()
    assert jax.device_get(batch["x"]).tolist() == list(range(8))


def test_processes_that_are_busy_for_long_do_not_hold_up_another_state() -> None:
    with iter(loader(slow=0.2, num_workers=1, worker_type="process")) as batches:
        next(batches)  # pieces of 1.6 s are under way now, one behind the other
        before = [thread for thread in threading.enumerate() if thread.name.startswith("loadax")]
        assert before
        batches.set_state(100)
        assert not any(thread.is_alive() for thread in before)
        assert jax.device_get(next(batches)["x"]).tolist() == list(range(800, 808))


def test_an_interrupt_while_threads_start_leaves_none_and_hangs_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert none_left()
