import logging
import os
import re
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any

import jax
import numpy as np
import psutil
import pytest

from loadax import Dataloader, from_arrays
from loadax.core import patience
from loadax.errors import ArgumentError, ClosedError, StallError
from loadax.loader.iterator import DataIterator
from loadax.loader.workers.stacks import WorkerStacks
from loadax.sharding import data_parallel
from tests.limits import HANG, until

ENTERED, GATE = threading.Event(), threading.Event()


def loader_of(function: Callable[[int], int], **options: Any) -> Dataloader:
    mesh = data_parallel(jax.devices()[:1])
    return Dataloader(from_arrays(np.arange(8)).map(function), 2, mesh=mesh, **options)


def stuck(example: int) -> int:
    if example == 5:
        ENTERED.set()
        assert GATE.wait(HANG)
    return example


@pytest.fixture(autouse=True)
def gate() -> Iterator[None]:
    ENTERED.clear()
    GATE.clear()
    yield
    GATE.set()


class Watching:
    """Lets the clock of the watch go on when a test says so, however busy the machine is."""

    def __init__(self, patch: pytest.MonkeyPatch):
        self.ahead = 0.0  # seconds
        patch.setattr(patience, "perf_counter", lambda: time.perf_counter() + self.ahead)

    def passes(self, batches: DataIterator, seconds: float, then: Callable[[], Any]) -> None:
        """Lets seconds pass, and has the watch look until a condition holds."""
        self.ahead += seconds

        def looked() -> Any:
            batches._stretch.guard.watch.wake()
            return then()

        until(looked)

    @contextmanager
    def when_stuck(self, batches: DataIterator, *steps: tuple[float, Callable[[], Any]]) -> Iterator[None]:
        """Meanwhile, once `stuck` is: lets seconds pass until a condition holds, one after the other; frees it."""

        def watch() -> None:
            assert ENTERED.wait(HANG)
            for seconds, then in steps:
                self.passes(batches, seconds, then)
            GATE.set()

        with ThreadPoolExecutor(1) as pool:
            watched = pool.submit(watch)
            yield
            watched.result(HANG)


@pytest.fixture
def watching(monkeypatch: pytest.MonkeyPatch) -> Watching:
    return Watching(monkeypatch)


def test_a_batch_that_does_not_come_is_told_of_again_and_again(
    watching: Watching, caplog: pytest.LogCaptureFixture
) -> None:
    batches = iter(loader_of(stuck, num_workers=1, stall_after=1000.0))
    seconds = (1000, 1000, 2000)
    waits = [(each, lambda count=count: len(caplog.messages) >= count) for count, each in enumerate(seconds, 1)]
    with caplog.at_level(logging.WARNING, "loadax"), batches, watching.when_stuck(batches, *waits):
        assert [int(batch[1]) for batch in batches] == [1, 3, 5, 7]
    waits_told = []
    for message in caplog.messages:
        found = re.match(r"step [012] has not come for (\d)\d\d\d s: ", message)
        assert found, message
        waits_told.append(int(found[1]))
        assert re.search(r"loadax-worker-0 reads \d rows \(.*4, 5.*\) in map stuck for \d+ s", message)
        assert "GATE.wait(HANG)" in message, "the stack"
    assert sorted({*waits_told}) == [1, 2, 4]


def test_the_callers_own_reading_is_watched_too(watching: Watching, caplog: pytest.LogCaptureFixture) -> None:
    batches = iter(loader_of(stuck, num_workers=0, stall_after=1000.0))
    waits = (1000, lambda: caplog.messages)
    with caplog.at_level(logging.WARNING, "loadax"), batches, watching.when_stuck(batches, waits):
        assert len(list(batches)) == 4
    assert re.search(r"step [12] .*MainThread reads \d rows \(.*4, 5.*\) in map stuck for ", caplog.messages[0])


def test_abort_after_raises_the_same_words(watching: Watching) -> None:
    over = threading.Event()
    batches = iter(loader_of(stuck, num_workers=1, stall_after=None, abort_after=1000.0))
    with watching.when_stuck(batches, (1000, over.is_set)):
        with pytest.raises(StallError, match=r"(?s)step [012] has not come for 1\d\d\d s: .* reads \d rows .* in map"):
            list(batches)
        over.set()
    with pytest.raises(TimeoutError, match=r"abort_after=1000: pass a higher one to wait longer"):
        next(batches)
    assert len(list(loader_of(stuck, num_workers=1, abort_after=HANG))) == 4


@pytest.mark.processes
def test_a_stopped_worker_process_is_told_from_one_at_work(
    watching: Watching, caplog: pytest.LogCaptureFixture
) -> None:
    loader = loader_of(sleeps_at_five, num_workers=1, worker_type="process", stall_after=1000.0)
    before = set(psutil.Process().children())

    def told(text: str) -> str:
        """A message with a text; for what is not known in time, the watch looks again, much later."""
        more = 0

        def has_more() -> bool:
            return len(caplog.messages) >= more

        while not caplog.messages or text not in caplog.messages[-1]:
            more = len(caplog.messages) + 1
            watching.passes(batches, 2 * watching.ahead + 1000, has_more)
        return caplog.messages[-1]

    with caplog.at_level(logging.WARNING, "loadax"), iter(loader) as batches:
        next(batches)
        (worker,) = set(psutil.Process().children()) - before
        worker.suspend()
        waiting = threading.Thread(target=exhaust, args=(batches,))
        waiting.start()
        stopped = f"on worker process {worker.pid}, which is stopped (SIGSTOP; kill -CONT {worker.pid} continues it)"
        told(stopped)
        os.kill(worker.pid, signal.SIGCONT)  # as it says
        assert f"on worker process {worker.pid}\n" in told("in sleeps_at_five")
        batches.close()
        waiting.join()


def test_a_worker_that_is_gone_gets_no_signal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its identifier may be that of another process by then, and its descriptor that of another file."""
    stacks = WorkerStacks()
    stacks.close()
    monkeypatch.setattr(os, "kill", lambda *_: pytest.fail("a signal"))
    with tempfile.TemporaryFile():  # may get the descriptor
        assert stacks.read(os.getpid()) == ""


def exhaust(batches: DataIterator) -> None:
    with suppress(ClosedError):
        list(batches)


def sleeps_at_five(example: int) -> int:
    if example == 5:
        time.sleep(HANG)
    return example


@pytest.mark.parametrize("name", ["stall_after", "abort_after"])
@pytest.mark.parametrize("value", [0, -1, "60", float("nan"), True])
def test_limits_are_seconds(name: str, value: Any) -> None:
    wrong: dict[str, Any] = {name: value}
    with pytest.raises(ArgumentError, match=rf"{name}=.*: pass a number of seconds above 0, or None"):
        loader_of(stuck, **wrong)
    for right in (60, 0.5, None):
        options: dict[str, Any] = {name: right}
        assert len(loader_of(stuck, **options)) == 4
