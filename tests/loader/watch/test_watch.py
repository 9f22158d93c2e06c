import gc
import logging
import os
import threading
import time

import pytest

from loadax.loader.watch import watch as watch_module
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


def test_checks_are_told_when_the_process_was_resumed(monkeypatch: pytest.MonkeyPatch) -> None:
    ahead, told = [0.0], list[float]()
    monkeypatch.setattr(watch_module, "perf_counter", lambda: time.perf_counter() + ahead[0])

    def check(_: bool, resumed: float) -> float:
        told.append(resumed)
        return float("inf")

    watch = RunWatch([check])
    watch.start()
    until(lambda: bool(told))
    began = time.perf_counter()

    def resumed() -> bool:
        ahead[0] += 90.0  # as if the process had been stopped for that long
        watch.wake()
        return len(told) > 1 and told[-1] >= began + 90.0

    until(resumed)
    assert told[0] == float("-inf")
    watch.close()


def test_a_check_that_waits_does_not_hold_up_the_others() -> None:
    """Such as for an answer of the coordinator."""
    gate, calls = threading.Event(), list[bool]()

    def waits(*_: object) -> float:
        assert gate.wait(HANG)
        return float("inf")

    def counts(closing: bool, _: float) -> float:
        calls.append(closing)
        return 0.001

    watch = RunWatch([waits, counts])
    watch.start()
    until(lambda: len(calls) > 2)
    gate.set()
    watch.close()


def test_a_check_that_waits_while_the_process_is_stopped_is_told_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    """It can't tell itself whether it was stopped, or has waited for another process."""
    ahead, told, naps = [0.0], list[float](), list[bool]()
    monkeypatch.setattr(watch_module, "perf_counter", lambda: time.perf_counter() + ahead[0])
    gate = threading.Event()

    def waits(_: bool, resumed: float) -> float:
        told.append(resumed)
        if len(told) == 1:
            assert gate.wait(HANG)
        return 0.001

    def naps_mostly(*_: object) -> float:
        naps.append(True)
        return float("inf")

    watch = RunWatch([waits, naps_mostly])
    watch.start()
    until(lambda: bool(told and naps))
    began = time.perf_counter()

    def resumed() -> bool:
        ahead[0] += 90.0
        watch.wake()
        return watch._resumed >= began + 90.0

    until(resumed)
    gate.set()
    until(lambda: told[-1] >= began + 90.0)
    watch.close()
