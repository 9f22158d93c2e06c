import logging
import os
import signal
import threading
from collections.abc import Iterator

import numpy as np
import psutil
import pytest

from loadax import Dataloader, from_arrays
from loadax.errors import ArgumentError, StallError
from tests.limits import HANG, until

GATE = threading.Event()


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
    loader = Dataloader(from_arrays(np.arange(8)).map(stuck), 2, num_workers=1, stall_after=0.02)
    with caplog.at_level(logging.WARNING, "loadax"), iter(loader) as batches:
        next(batches)
        next(batches)
        release = threading.Thread(target=lambda: (until(lambda: len(caplog.messages) > 2), GATE.set()))
        release.start()
        np.testing.assert_array_equal(next(batches), [4, 5])
        release.join()
        told = len(caplog.messages)
        next(batches)
    for message in caplog.messages:
        assert message.startswith("step 2 has not come for ")
        assert "loadax-worker-0 reads 2 rows (4, 5) in map stuck for " in message
        assert "GATE.wait(HANG)" in message, "the stack"
    assert len(caplog.messages) == told, "nothing waits any more"


def test_the_callers_own_reading_is_watched_too(caplog: pytest.LogCaptureFixture) -> None:
    loader = Dataloader(from_arrays(np.arange(8)).map(stuck), 2, num_workers=0, stall_after=0.02)
    release = threading.Thread(target=lambda: (until(lambda: caplog.messages), GATE.set()))
    with caplog.at_level(logging.WARNING, "loadax"):
        release.start()
        assert len(list(loader)) == 4
        release.join()
    assert "MainThread reads 2 rows (4, 5) in map stuck for " in caplog.messages[0]


def test_abort_after_raises_the_same_words() -> None:
    loader = Dataloader(from_arrays(np.arange(8)).map(stuck), 2, num_workers=1, stall_after=None, abort_after=0.05)
    batches = iter(loader)
    next(batches)
    next(batches)
    with pytest.raises(StallError, match=r"(?s)step 2 has not come for .*reads 2 rows .4, 5. in map stuck.*abort_after"):
        next(batches)
    with pytest.raises(TimeoutError, match=r"abort_after=0.05: pass a higher one to wait longer"):
        next(batches)
    GATE.set()
    higher = Dataloader(loader.dataset, 2, num_workers=1, abort_after=HANG)
    assert len(list(higher)) == 4


def test_a_stopped_worker_process_is_told_from_one_at_work(caplog: pytest.LogCaptureFixture) -> None:
    loader = Dataloader(
        from_arrays(np.arange(8)).map(sleeps_at_five), 2, num_workers=1, worker_type="process", stall_after=0.1
    )
    before = set(psutil.Process().children())
    with caplog.at_level(logging.WARNING, "loadax"), iter(loader) as batches:
        (worker,) = {child for child in psutil.Process().children() if child not in before}
        next(batches)
        next(batches)
        waiting = threading.Thread(target=lambda: pytest.raises(Exception, next, batches))
        waiting.start()
        until(lambda: any("time.sleep(" in message or "sleeps_at_five" in message for message in caplog.messages))
        assert f"on worker process {worker.pid}" in caplog.messages[-1]
        os.kill(worker.pid, signal.SIGSTOP)
        stopped = f"worker process {worker.pid}, which is stopped (SIGSTOP; kill -CONT {worker.pid} continues it)"
        until(lambda: any(stopped in message for message in caplog.messages))
        os.kill(worker.pid, signal.SIGCONT)  # as it says
        batches.close()
        waiting.join()


def sleeps_at_five(example: int) -> int:
    import time

    if example == 5:
        time.sleep(HANG)
    return example


@pytest.mark.parametrize("name", ["stall_after", "abort_after"])
@pytest.mark.parametrize("value", [0, -1, "60", float("nan"), True])
def test_limits_are_seconds(name: str, value: object) -> None:
    with pytest.raises(ArgumentError, match=rf"{name}=.*: pass a number of seconds above 0, or None"):
        Dataloader(np.arange(8), 2, **{name: value})
    assert len(Dataloader(np.arange(8), 2, **{name: 60})) == len(Dataloader(np.arange(8), 2, **{name: None})) == 4
