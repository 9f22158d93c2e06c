import gc
import logging
import os
import threading

import pytest

from loadax.loader.watch.watch import RunWatch
from tests.limits import HANG, until


def test_a_check_that_fails_does_not_stop_the_others(caplog: pytest.LogCaptureFixture) -> None:
    calls: list[bool] = []

    def fails(*_: object) -> float:
        raise ZeroDivisionError

    def counts(closing: bool, _: float) -> float:
        calls.append(closing)
        return 0.001

    watch = RunWatch([fails, counts])
    with caplog.at_level(logging.ERROR, "loadax"):
        watch.start()
        until(lambda: len(calls) > 2)
        watch.close()
    until(lambda: bool(calls[-1]))
    assert [record.exc_info is not None for record in caplog.records] == [True], "once"


def test_garbage_collection_on_the_watching_thread_may_close_the_watch() -> None:
    closed = threading.Event()

    def collects(closing: bool, _: float) -> float:
        if closing:
            closed.set()
        gc.collect()
        watch.close()
        return float("inf")

    watch = RunWatch([collects])
    watch.start()
    assert closed.wait(HANG)


def test_a_fork_leaves_the_watch_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[bool] = []

    def check(closing: bool, _: float) -> float:
        calls.append(closing)
        return float("inf")

    watch = RunWatch([check])
    watch.start()
    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", lambda: -1)
        watch.close()
    assert True not in calls
    watch.close()
    until(lambda: True in calls)


@pytest.mark.parametrize("begun", [True, False])
def test_an_interrupt_while_it_starts_leaves_no_thread_behind(begun: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    starts = threading.Thread.start

    def interrupted(thread: threading.Thread) -> None:
        monkeypatch.undo()
        if begun:
            starts(thread)
        raise KeyboardInterrupt

    calls: list[bool] = []

    def check(closing: bool, _: float) -> float:
        calls.append(closing)
        return float("inf")

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    watch = RunWatch([check])
    with pytest.raises(KeyboardInterrupt):
        watch.start()
    watch.start()
    until(lambda: bool(calls))
    watch.close()
    until(lambda: not any(thread.name == "loadax-watch" for thread in threading.enumerate()))
    assert calls == [False, True], "one thread"
