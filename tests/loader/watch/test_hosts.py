"""Hosts that are objects of one process, with a clock that the test sets."""

import logging
import re
from collections.abc import Callable
from typing import Any

import pytest
from jax.errors import JaxRuntimeError

from loadax.errors import HostError
from loadax.loader.metrics.stats import Stats
from loadax.loader.watch import hosts
from loadax.loader.watch.agreement import Agreement
from loadax.loader.watch.hosts import RunHosts
from loadax.loader.watch.start import LoaderRuns
from tests.key_values import MemoryStore

RECORD: dict[str, Any] = {"dataset": ["shuffle(4)"], "first step": 10}


class Run:
    """Hosts of one run.

    Args:
        records: Record of each host.
        contents: Function of a host and a sample: digest of row 7.
    """

    def __init__(self, records: list[dict[str, Any]], contents: Callable[[int, int], str] = lambda *_: "same"):
        self.now, self.steps, self.waited = 100.0, [10] * len(records), [1.0] * len(records)
        self.store = MemoryStore()
        self.failed: dict[int, BaseException] = {}
        self.forgotten: list[int] = []
        self._contents, self._processes = contents, tuple(range(len(records)))
        self.hosts = [self._host(process, record) for process, record in enumerate(records)]

    def _host(self, process: int, record: dict[str, Any]) -> RunHosts:
        def sample(number: int) -> dict[str, list[str]]:
            return {"7": [self._contents(process, number), f"/data/{process}"]}

        def progress() -> tuple[int, Stats]:
            return self.steps[process], Stats(waited=self.waited[process], trained=9.0)

        def fail(error: BaseException) -> None:
            self.failed[process] = error

        def forget() -> None:
            self.forgotten.append(process)

        agreement = Agreement(self.store, process, self._processes, record, sample, self.now)
        return RunHosts(self.store, process, process == 0, agreement, progress, fail, forget, 30.0, lambda: self.now)

    def check(self, *processes: int, seconds: float = 0.0) -> None:
        """Lets these hosts, or all, look at the store a few times, and time pass."""
        for _ in range(3):
            for process in processes or range(len(self.hosts)):
                self.hosts[process].check(closing=False)
        self.now += seconds


@pytest.fixture(autouse=True)
def nobody_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosts, "FIRST_WAIT", 0.0)


def test_equal_hosts_go_on() -> None:
    run = Run([RECORD] * 4)
    run.check()
    for host in run.hosts:
        host.wait()
    assert not run.failed


def test_a_sample_of_later_rows_is_compared_every_thousand_steps() -> None:
    run = Run([RECORD] * 3, lambda process, sample: f"{process == 1 and sample == 2}")
    for steps in ([1010, 1009, 1011], [2009] * 3):
        run.steps = steps
        run.check()
    assert not run.failed
    run.steps = [2010, 2011, 2012]
    run.check()
    text = (
        r"process 1 differs from the other 2 in contents of row 7: True of /data/1 on process 1; "
        r"False of /data/0 on processes 0 and 2; make the files the same on all hosts"
    )
    assert sorted(run.failed) == [0, 1, 2]
    for host, error in zip(run.hosts, run.failed.values(), strict=True):
        with pytest.raises(HostError, match=text):
            host.wait()
        assert isinstance(error, HostError)
    assert sorted(run.store.list("records")) == ["2/0", "2/1", "2/2"], "old ones are deleted"


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
    assert "process 2 differs from the other 2 in dataset: shuffle(5) on process 2" in str(run.failed[0])


def test_the_others_end_with_the_words_of_a_host_that_ended(caplog: pytest.LogCaptureFixture) -> None:
    run = Run([RECORD] * 3)
    run.check()
    error = ValueError("bad pixel")
    error.add_note("loadax: row 5")
    run.hosts[1].ended(12, error)
    run.hosts[1].check(closing=True)
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
    run.hosts[1].check(closing=True)
    with caplog.at_level(logging.CRITICAL, "loadax"):
        run.check(0, seconds=34.9)
        run.check(0, seconds=0.2)
        assert not ended
        run.hosts[0].check(closing=False)
    assert ended
    assert re.match(
        r"process 0 ends without cleaning up: .* of this error, so it waits for the other host: process 1 ended before "
        "step 12 with ValueError: bad",
        caplog.messages[0],
    )


def test_a_host_that_falls_silent_is_named_on_all_others(caplog: pytest.LogCaptureFixture) -> None:
    run = Run([RECORD] * 3)
    run.steps[1] = 33
    run.check()
    with caplog.at_level(logging.WARNING, "loadax"):
        for _ in range(20):
            run.check(0, 2, seconds=2.0)
        assert len(caplog.messages) == 2, "both, once"
        assert all(
            message.startswith("process 1 has been silent for 20 s, since step 33: killed,")
            for message in caplog.messages
        )
        run.check()
        told = len(caplog.messages)
        run.hosts[2].check(closing=True)
        for _ in range(9):
            run.check(0, 1, seconds=3.0)
    assert len(caplog.messages) == told, "a closed iterator is not silent"


def test_news_reach_the_other_hosts_once(caplog: pytest.LogCaptureFixture) -> None:
    run = Run([RECORD] * 2)
    run.hosts[1].tell("process 1: step 4 has not come for 60 s")
    with caplog.at_level(logging.WARNING, "loadax"):
        run.check()
        run.check()
    assert caplog.messages == ["process 1: step 4 has not come for 60 s"]


def test_the_host_that_waits_longest_is_named() -> None:
    run = Run([RECORD] * 3)
    assert run.hosts[2].slowest() == "no other host has told of its run yet"
    run.waited, run.steps = [0.1, 6.0, 1.0], [20, 10, 20]
    run.check()
    assert run.hosts[2].slowest() == (
        "of 3 hosts, process 1 waits longest: 40% of the time, the others at most 10%; it is at step 10, 10 steps "
        "behind the first"
    )


def test_without_a_coordinator_the_run_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run = Run([RECORD] * 2)

    def gone(*_: object) -> None:
        raise JaxRuntimeError("UNAVAILABLE: gone")

    run.hosts[0].tell("process 0: step 4 has not come for 60 s")
    with monkeypatch.context() as patch, caplog.at_level(logging.INFO, "loadax"):
        patch.setattr(run.store, "set", gone)
        for _ in range(3):
            assert 0 < run.hosts[0].check(closing=False) < float("inf"), "it may come back"
        run.hosts[0].wait()
        assert run.hosts[0].slowest() == "the other hosts can't be reached: UNAVAILABLE: gone"
        assert len(caplog.messages) == 1
        run.hosts[0].check(closing=True)
    caplog.clear()
    run.check()
    assert caplog.messages == ["process 0: step 4 has not come for 60 s"], "nothing is lost"


def test_a_closing_host_logs_why_its_collective_may_have_failed(caplog: pytest.LogCaptureFixture) -> None:
    run = Run([RECORD] * 2)
    run.check()
    run.hosts[1].ended(12, ValueError("bad"))
    run.hosts[1].check(closing=True)
    with caplog.at_level(logging.ERROR, "loadax"):
        run.hosts[0].check(closing=True)
    assert "process 1 ended before step 12 with ValueError: bad" in caplog.text
    assert run.forgotten == [0], "the leader deletes keys, when it is closed"


def test_a_run_closed_before_others_came_accuses_nobody() -> None:
    run = Run([RECORD, {**RECORD, "first step": 0}])
    run.check(1)
    run.hosts[1].check(closing=True)  # one process has looked at a batch
    run.check(0)
    assert not run.failed


def test_nobody_waits_for_a_leader_that_is_closed(caplog: pytest.LogCaptureFixture) -> None:
    run = Run([RECORD] * 3)
    run.check(0)
    run.hosts[0].check(closing=True)
    with caplog.at_level(logging.WARNING, "loadax"):
        for _ in range(5):
            run.check(1, seconds=3.0)
    assert not caplog.messages
    assert not run.failed


def test_runs_are_numbered_by_their_processes() -> None:
    """Others may not have been on the mesh that this process was on before."""
    runs, others = LoaderRuns(), LoaderRuns()
    directories = [runs.next_directory((0, 1)), runs.next_directory((1, 2)), runs.next_directory((1, 2))]
    assert [name.rpartition("/")[2] for name in directories] == ["1", "1", "2"]
    assert others.next_directory((1, 2)).rpartition("/")[2] == "1"
    assert len({*directories, others.next_directory((0, 1))}) == 4
