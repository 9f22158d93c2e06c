"""Hosts that are objects of one process, with a clock that the test sets."""

import logging
import re
from collections.abc import Iterator
from typing import Any

import pytest

from loadax.core import key_value
from loadax.core.key_value import CoordinatorError
from loadax.errors import HostError
from loadax.loader.metrics.stats import Stats
from loadax.loader.watch import hosts
from loadax.loader.watch.hosts import RunHosts
from tests.key_values import memory_store

RECORD: dict[str, Any] = {"dataset": ["shuffle(4)"], "first step": 10}


class Run:
    """Hosts of one run.

    Args:
        records: Record of each host.
        abort_after: Limit of all hosts.
    """

    now = 100.0  # seconds, of all runs

    def __init__(self, records: list[dict[str, Any]], abort_after: float | None = 30.0):
        Run.now, self._abort_after = 100.0, abort_after
        self.steps, self.waited = [10] * len(records), [1.0] * len(records)
        self.store = memory_store()
        self.keys = self.store.below("run")
        self.failed: dict[int, BaseException] = {}
        self._processes = range(len(records))
        self.hosts = [self._host(process, record) for process, record in enumerate(records)]

    def _host(self, process: int, record: dict[str, Any]) -> RunHosts:
        def progress() -> tuple[int, Stats]:
            return self.steps[process], Stats(waited=self.waited[process], trained=9.0)

        def fail(error: BaseException) -> None:
            self.failed[process] = error

        return RunHosts(self.store, self.keys, process, self._processes, [record], progress, fail, self._abort_after)

    def check(self, *processes: int, seconds: float = 0.0, resumed: float = 0.0) -> None:
        """Lets these hosts, or all, look at the store a few times, and time pass."""
        for _ in range(3):
            for process in processes or range(len(self.hosts)):
                self.hosts[process].check(closing=False, resumed=resumed)
        Run.now += seconds


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(hosts, "perf_counter", lambda: Run.now)
    hosts._late_before.set()  # no test waits for a host in real seconds
    yield
    hosts._late_before.clear()


def test_equal_hosts_go_on() -> None:
    run = Run([RECORD] * 4)
    run.check()
    for host in run.hosts:
        host.wait()
    assert not run.failed


def test_hosts_with_other_contents_are_named_with_their_files() -> None:
    run = Run([{**RECORD, "contents of row 7": [str(host == 1), f"/data/{host}"]} for host in range(3)])
    run.check()
    text = (
        "hosts differ in contents of row 7: True of /data/1 on process 1; False of /data/0 on processes 0 and 2; start "
        "all processes with the same versions, files, arguments and state"
    )
    assert sorted(run.failed) == [0, 1, 2]
    for host, error in zip(run.hosts, run.failed.values(), strict=True):
        with pytest.raises(HostError, match=text):
            host.wait()
        assert isinstance(error, HostError)


def test_a_row_that_one_host_could_not_read_is_not_compared() -> None:
    run = Run([{**RECORD, "contents of row 7": ["same", "/data"]}, RECORD])
    run.check()
    assert not run.failed


def test_records_are_compared_once_they_are_known() -> None:
    run, reading = Run([RECORD] * 2), list[dict[str, Any]]()
    run.hosts[1]._record = reading
    run.check()
    assert not run.hosts[0]._compared, "storage hangs there"
    run.hosts[1].tell("process 1: step 4 has not come for 60 s")
    run.check()
    assert "has not come" in run.keys.list("told")["1"], "which it tells"
    reading.append({**RECORD, "dataset": ["shuffle(5)"]})
    run.check()
    assert sorted(run.failed) == [0, 1]


def test_a_late_host_is_named_and_compared_when_it_comes(caplog: pytest.LogCaptureFixture) -> None:
    run = Run([RECORD, RECORD, {**RECORD, "dataset": ["shuffle(5)"]}])
    with caplog.at_level(logging.WARNING, "loadax"):
        for _ in range(4):
            run.check(0, 1, seconds=3.0)
    assert [message.split(" has")[0] for message in caplog.messages] == [
        "process 2: not there 5 s after process 0",
        "process 2: not there 5 s after process 1",
    ]
    assert not run.failed
    run.check()
    assert sorted(run.failed) == [0, 1, 2]
    assert "hosts differ in dataset: shuffle(5) on process 2; shuffle(4) on processes 0 and 1;" in str(run.failed[0])


def test_the_others_end_with_the_words_of_a_host_that_ended(caplog: pytest.LogCaptureFixture) -> None:
    run = Run([RECORD] * 3)
    run.check()
    error = ValueError("bad pixel")
    error.add_note("loadax: row 5")
    run.hosts[1].ended(12, error)
    run.hosts[1].check(closing=True, resumed=0.0)
    with caplog.at_level(logging.ERROR, "loadax"):
        run.check(0, 2, seconds=4.9)
    text = (
        "process 1 ended before step 12 with ValueError: bad pixel; loadax: row 5. The others can't go on without it: "
        "start all processes again from the last saved state"
    )
    assert caplog.messages == [text] * 2, "at once"
    assert not run.failed, "they may be about to raise the same error"
    run.check(0, 2, seconds=0.2)
    run.check(0, 2)
    assert {process: str(error) for process, error in run.failed.items()} == {0: text, 2: text}


def test_a_process_whose_training_does_not_come_for_the_error_ends(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ended = []
    monkeypatch.setattr(hosts, "end_process", lambda: ended.append(True))
    run = Run([RECORD] * 2)
    run.hosts[1].ended(12, ValueError("bad"))
    run.hosts[1].check(closing=True, resumed=0.0)
    with caplog.at_level(logging.CRITICAL, "loadax"):
        run.check(0, seconds=29.9)
        run.check(0, seconds=0.2)
        assert not ended
        run.hosts[0].check(closing=False, resumed=0.0)
    assert ended
    assert re.match(
        r"process 0 ends without cleaning up: .* of this error, so it waits for the other host: process 1 ended before "
        "step 12 with ValueError: bad",
        caplog.messages[0],
    )


def failed(run: Run, process: int, text: str) -> None:
    """As a process does that exits after a run has failed."""
    run.hosts[process].ended(12, ValueError("bad"))
    run.hosts[process].check(closing=True, resumed=0.0)
    run.store.set(f"exits/{process}", text)


@pytest.mark.parametrize("abort_after", [None, 30.0])
@pytest.mark.parametrize("text", ["process 1 ended before step 12 with ValueError: bad", ""])
def test_processes_end_with_one_that_exits_after_its_error(
    abort_after: float | None, text: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """By default too, and whether or not the program has caught the error before it exits."""
    ended = []
    monkeypatch.setattr(hosts, "end_process", lambda: ended.append(True))
    run = Run([RECORD] * 3, abort_after=abort_after)
    failed(run, 1, text)
    for _ in range(7):
        run.check(0, 2, seconds=5.0)
    assert bool(ended) == (abort_after == 30.0)
    for _ in range(7):
        run.check(0, 2, seconds=5.0)
    assert ended
    assert str(run.failed[0]).startswith("process 1 ended before step 12 with ValueError: bad")
    assert "process 2 ends without cleaning up" in caplog.text


def test_an_exit_after_an_error_outside_of_the_iterator_names_it_and_ends_the_others(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ended = []
    monkeypatch.setattr(hosts, "end_process", lambda: ended.append(True))
    run = Run([RECORD] * 2, abort_after=None)
    run.hosts[1].check(closing=True, resumed=0.0)
    run.store.set("exits/1", "process 1 ended before step 12 with ValueError: diverged")
    for _ in range(13):
        run.check(0, seconds=5.0)
    assert caplog.messages[0] == "process 1 ended before step 12 with ValueError: diverged"
    assert ended


def test_a_process_that_catches_its_error_and_goes_on_ends_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosts, "end_process", lambda: pytest.fail("ended"))
    earlier, run = Run([RECORD] * 2, abort_after=None), Run([RECORD] * 2, abort_after=None)
    earlier.hosts[1].ended(12, ValueError("bad"))
    earlier.hosts[1].check(closing=True, resumed=0.0)
    for _ in range(30):
        earlier.check(0, seconds=5.0)
    assert earlier.failed, "the run ends, and its process does not"
    run.store.set("exits/1", "")  # at its end, much later
    for _ in range(30):
        run.check(0, seconds=5.0)
    assert not run.failed


@pytest.mark.parametrize("silent", [0, 1, 2])
def test_a_host_that_falls_silent_is_named_on_all_others(silent: int, caplog: pytest.LogCaptureFixture) -> None:
    """The first one too."""
    run = Run([RECORD] * 3)
    run.steps = [40] * 3
    run.steps[silent] = 33
    run.check()
    others = {0, 1, 2} - {silent}
    with caplog.at_level(logging.WARNING, "loadax"):
        for _ in range(20):
            run.check(*others, seconds=2.0)
        assert len(caplog.messages) == 2, "both, once"
        watcher = (silent + 1) % 3
        assert all(
            re.match(
                rf"process {silent} has been silent for 2\d s: killed, stopped, .*; "
                rf"it last reported step 33; process {watcher} is at step 40$",
                message,
            )
            for message in caplog.messages
        ), caplog.messages


def test_hosts_that_fall_silent_together_are_all_named(caplog: pytest.LogCaptureFixture) -> None:
    run = Run([RECORD] * 5)
    run.check()
    for _ in range(40):
        run.check(3, 4, seconds=2.0)
    named = {message[: len("process 0")] for message in caplog.messages}
    assert named == {"process 0", "process 1", "process 2"}


@pytest.mark.parametrize("step", [10, 20])
def test_a_host_that_leaves_the_loop_early_is_named(step: int, caplog: pytest.LogCaptureFixture) -> None:
    run = Run([RECORD] * 3)
    run.steps = [step, 10, step]
    run.check()
    run.hosts[1].check(closing=True, resumed=0.0)
    for _ in range(15):
        run.check(0, 2, seconds=2.0)
    text = (
        "process 1 closed its iterator at step 10, and process 2 is at step 20: it can't go on without the other; "
        "leave the loop at the same step on all processes"
    )
    assert caplog.messages == [text] * 2 * (step == 20), "a host that is not ahead does not wait"


def test_time_for_which_the_process_was_stopped_is_no_silence_and_ends_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(hosts, "end_process", lambda: pytest.fail("ended"))
    run = Run([RECORD] * 2)
    run.check(seconds=90.0)
    run.check(resumed=Run.now)
    assert not caplog.messages
    run.hosts[1].ended(12, ValueError("bad"))
    run.check(seconds=90.0)
    run.check(0, resumed=Run.now)
    assert not run.failed


def test_news_reach_the_other_hosts_once(caplog: pytest.LogCaptureFixture) -> None:
    run = Run([RECORD] * 2)
    run.hosts[1].tell("process 1: step 4 has not come for 60 s")
    with caplog.at_level(logging.WARNING, "loadax"):
        run.check()
        run.check()
    assert caplog.messages == ["process 1: step 4 has not come for 60 s"]


def test_the_host_that_waits_longest_is_named() -> None:
    run = Run([RECORD] * 3)
    assert run.hosts[2].slowest()[0] == "no other host has told of its run yet"
    run.waited, run.steps = [0.1, 6.0, 1.0], [20, 10, 20]
    run.check()
    assert run.hosts[2].slowest()[0] == (
        "of 3 hosts, process 1 waits longest: 40% of the time, the others at most 10%; it is at step 10, 10 steps "
        "behind the first"
    )


def test_without_a_coordinator_the_run_goes_on_and_names_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run = Run([RECORD] * 2)
    run.check()

    def gone(*_: object) -> None:
        raise CoordinatorError("UNAVAILABLE: gone")

    run.hosts[1].tell("process 1: step 4 has not come for 60 s")
    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING, "loadax"):
        patch.setattr(run.store.call, "key_value_set", gone)
        for _ in range(12):
            assert 0 < run.hosts[1].check(closing=False, resumed=0.0) < float("inf"), "it may come back"
            Run.now += 2.0
        run.hosts[1].wait()
        assert run.hosts[1].slowest() == ("the other hosts can't be reached: UNAVAILABLE: gone", [])
        (message,) = caplog.messages
        assert message.startswith(
            "process 1 is at step 10: process 0, which runs the coordinator, has been silent for 20 s: killed, stopped,"
        )
        run.hosts[1].check(closing=True, resumed=0.0)
    caplog.clear()
    run.check()
    assert caplog.messages[0] == "process 1: step 4 has not come for 60 s", "nothing is lost"


def test_a_closing_host_logs_why_its_collective_may_have_failed(caplog: pytest.LogCaptureFixture) -> None:
    run = Run([RECORD] * 2)
    run.check()
    run.hosts[1].ended(12, ValueError("bad"))
    forgotten = key_value._closed.count(run.keys.path)
    run.hosts[1].check(closing=True, resumed=0.0)
    with caplog.at_level(logging.ERROR, "loadax"):
        run.hosts[0].check(closing=True, resumed=0.0)
    assert "process 1 ended before step 12 with ValueError: bad" in caplog.text
    assert key_value._closed.count(run.keys.path) == forgotten + 1, "the leader deletes keys, when it is closed"


def test_a_run_closed_before_others_came_accuses_nobody() -> None:
    run = Run([RECORD, {**RECORD, "first step": 0}])
    run.check(1)
    run.hosts[1].check(closing=True, resumed=0.0)  # one process has looked at a batch
    run.check(0)
    assert not run.failed


def test_nobody_waits_for_a_leader_that_is_closed(caplog: pytest.LogCaptureFixture) -> None:
    run = Run([RECORD] * 3)
    run.check(0)
    run.hosts[0].check(closing=True, resumed=0.0)
    with caplog.at_level(logging.WARNING, "loadax"):
        for _ in range(5):
            run.check(1, seconds=3.0)
    assert not caplog.messages
    assert not run.failed


def test_a_host_that_goes_on_without_weights_that_others_have_set_ends() -> None:
    run = Run([RECORD] * 3)
    run.check()
    run.hosts[0].set_weights(12)
    run.hosts[0].check(closing=True, resumed=0.0)
    run.steps[:] = 12, 12, 12
    run.check(1, 2)
    assert not run.failed, "they may still set them"
    run.steps[2] = 13
    run.check(1, 2)
    assert sorted(run.failed) == [2]
    assert str(run.failed[2]) == (
        "process 0 has set other weights from step 12 on, and this process has not; call set_weights() with the same "
        "weights at the same step on all processes"
    )


def test_a_host_whose_weights_are_refused_ends_in_its_next_run() -> None:
    run, following = Run([RECORD] * 2), Run([RECORD] * 2)
    run.hosts[1]._next_keys = lambda: following.keys
    run.hosts[0].set_weights(12)
    run.hosts[0].check(closing=True, resumed=0.0)
    run.steps[1] = 13
    run.check(1)
    assert [*run.failed] == [1]
    following.check(0)
    assert [*following.failed] == [0]
    text = "process 0 has set other weights from step 12 on, and process 1 has not; call set_weights"
    assert str(following.failed[0]).startswith(text)
