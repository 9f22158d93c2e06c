import logging
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import jax
import numpy as np
import psutil
import pytest

from loadax import Dataloader, from_arrays
from loadax.errors import ArgumentError, ClosedError, StallError
from loadax.loader.iterator import DataIterator
from loadax.sharding import data_parallel
from tests.limits import HANG, until

GATE = threading.Event()


def loader_of(function: Callable[[int], int], **options: Any) -> Dataloader:
    mesh = data_parallel(jax.devices()[:1])
    return Dataloader(from_arrays(np.arange(8)).map(function), 2, mesh=mesh, **options)


def stuck(example: int) -> int:
    if example == 5:
        assert GATE.wait(HANG)
    return example


@pytest.fixture(autouse=True)
def gate() -> Iterator[None]:
    GATE.clear()
    yield
    GATE.set()


def test_a_batch_that_does_not_come_is_told_of_again_and_again(caplog: pytest.LogCaptureFixture) -> None:
    loader = loader_of(stuck, num_workers=1, stall_after=0.02)
    with caplog.at_level(logging.WARNING, "loadax"), iter(loader) as batches:
        release = threading.Thread(target=open_gate, args=(lambda: len(caplog.messages) > 2,))
        release.start()
        assert [int(batch[1]) for batch in batches] == [1, 3, 5, 7]
        release.join()
    for message in caplog.messages:
        assert re.match(r"step [12] has not come for \d s: ", message)
        assert re.search(r"loadax-worker-0 reads \d rows \(.*4, 5.*\) in map stuck for \d s", message)
        assert "GATE.wait(HANG)" in message, "the stack"


def test_the_callers_own_reading_is_watched_too(caplog: pytest.LogCaptureFixture) -> None:
    loader = loader_of(stuck, num_workers=0, stall_after=0.02)
    release = threading.Thread(target=open_gate, args=(lambda: caplog.messages,))
    with caplog.at_level(logging.WARNING, "loadax"):
        release.start()
        assert len(list(loader)) == 4
        release.join()
    assert re.search(r"step 2 .*MainThread reads 2 rows \(4, 5\) in map stuck for ", caplog.messages[0])


def test_abort_after_raises_the_same_words() -> None:
    batches = iter(loader_of(stuck, num_workers=1, stall_after=None, abort_after=0.05))
    with pytest.raises(StallError, match=r"(?s)step [12] has not come for 0 s: .* reads \d rows .* in map"):
        list(batches)
    with pytest.raises(TimeoutError, match=r"abort_after=0.05: pass a higher one to wait longer"):
        next(batches)
    GATE.set()
    assert len(list(loader_of(stuck, num_workers=1, abort_after=HANG))) == 4


def test_a_stopped_worker_process_is_told_from_one_at_work(caplog: pytest.LogCaptureFixture) -> None:
    loader = loader_of(sleeps_at_five, num_workers=1, worker_type="process", stall_after=0.2)
    before = set(psutil.Process().children())
    with caplog.at_level(logging.WARNING, "loadax"), iter(loader) as batches:
        next(batches)
        (worker,) = set(psutil.Process().children()) - before
        worker.suspend()
        waiting = threading.Thread(target=exhaust, args=(batches,))
        waiting.start()
        stopped = f"on worker process {worker.pid}, which is stopped (SIGSTOP; kill -CONT {worker.pid} continues it)"
        until(lambda: any(stopped in message for message in caplog.messages))
        os.kill(worker.pid, signal.SIGCONT)  # as it says
        until(lambda: any("in sleeps_at_five" in message for message in caplog.messages))
        assert f"on worker process {worker.pid}\n" in caplog.messages[-1]
        batches.close()
        waiting.join()


def open_gate(condition: Callable[[], Any]) -> None:
    until(condition)
    GATE.set()


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
