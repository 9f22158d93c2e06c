"""Processes that are objects of one test, with a clock that the test sets."""

import logging
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest

from loadax import Dataloader, from_stream
from loadax.core import key_value, patience
from loadax.core.key_value import CoordinatorError, LoaderRuns, UnansweredError
from loadax.errors import ClosedError, HostError, SourceError, StallError
from loadax.loader.iterator import DataIterator
from loadax.loader.slots import EndRule, LaneProgress
from loadax.loader.streams import agreement
from loadax.loader.streams.agreement import EndAgreement, end_agreement
from loadax.loader.watch import stream_end
from loadax.loader.watch.stalls import StallCheck
from loadax.protocols import ArraySpec
from loadax.sharding import data_parallel
from tests.key_values import memory_store
from tests.limits import HANG


class Clock:
    """Seconds that pass as threads sleep, if they do; a function is called at each sleep."""

    def __init__(self) -> None:
        self.now, self.passes = 0.0, True
        self.meanwhile: Callable[[], object] = lambda: None

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds * self.passes
        self.meanwhile()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(agreement, "time", clock)
    monkeypatch.setattr(agreement, "perf_counter", clock.monotonic)
    monkeypatch.setattr(patience, "perf_counter", clock.monotonic)
    return clock


class Hosts:
    """Processes of one run."""

    def __init__(self, processes: Sequence[int] = (0, 1, 2), rule: EndRule = "first"):
        self.store = memory_store()
        self.of = {process: EndAgreement(self.store, process, processes, rule) for process in processes}

    def tell(self, process: int, progress: LaneProgress) -> None:
        self.of[process].tell(progress)

    def goes_on(
        self, process: int, step: int, progress: LaneProgress, check: Callable[[], None] = lambda: None
    ) -> bool:
        return self.of[process].goes_on(step, progress, "lane 3 ended", check)


def test_a_step_that_all_have_read_goes_on_without_waiting(clock: Clock) -> None:
    hosts = Hosts()
    for process in (1, 2):
        hosts.tell(process, LaneProgress(9, None, 9))
    assert all(hosts.goes_on(0, step, LaneProgress(9, None, 9)) for step in range(9))
    assert clock.now == 0


def test_the_end_is_that_of_the_first_process_without_rows() -> None:
    hosts = Hosts()
    for process, lacking in ((1, None), (2, 6)):
        hosts.tell(process, LaneProgress(9, lacking, 9))
    assert [hosts.goes_on(0, step, LaneProgress(9, None, 9)) for step in (5, 6)] == [True, False]


@pytest.mark.parametrize("ends", ["fails", "closes"])
def test_what_a_process_has_read_counts_after_its_end_too(ends: str) -> None:
    hosts = Hosts((0, 1))
    hosts.tell(1, LaneProgress(7, None, 7))
    hosts.of[1].fail(OSError("no answer")) if ends == "fails" else hosts.of[1].close()
    assert hosts.goes_on(0, 6, LaneProgress(9, None, 9))
    why = "could not read its lanes: OSError: no answer" if ends == "fails" else "closed its iterator"
    with pytest.raises(HostError, match=f"process 1 {why}, before it had read step 7 of the stream, so this one stops"):
        hosts.goes_on(0, 7, LaneProgress(9, None, 9))


def test_the_process_that_failed_is_named_not_one_that_closed_for_it() -> None:
    hosts = Hosts()
    hosts.of[1].close()
    hosts.of[2].fail(OSError("no answer"))
    hosts.of[2].close()
    with pytest.raises(HostError, match="process 2 could not read its lanes: OSError: no answer"):
        hosts.goes_on(0, 0, LaneProgress(1, None, 1))


def unanswered(*_: object) -> None:
    raise UnansweredError("the coordinator has not answered for 1 s")


@pytest.mark.parametrize("answers", [True, False])
def test_waiting_for_others_is_watched_as_waiting_for_a_batch(
    answers: bool, clock: Clock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Also while the coordinator does not answer."""
    hosts, watch = Hosts(), StallCheck(60.0, 1000.0)
    waits = watch.agreement = hosts.of[0]
    hosts.tell(1, LaneProgress(5, None, 5))
    if not answers:
        monkeypatch.setattr(hosts.store.call, "key_value_dir_get", unanswered)
        monkeypatch.setattr(hosts.store.call, "key_value_set", unanswered)
    error: list[BaseException] = []
    scheduler: Any = SimpleNamespace(abort=error.append, waiting_since=lambda: None, waiting_for=lambda: (5, ""))
    watch.scheduler = scheduler

    def look() -> None:
        watch.check(closing=False, resumed=clock.now if clock.now < 100 else 100.0)
        if error:
            raise error[0]

    clock.meanwhile = look
    late = r"processes \[2\] have not read it from the stream; all processes must iterate over the same loaders"
    if not answers:
        late = r"processes \[1, 2\] have not .*; process 0, which runs the coordinator, does not answer: it is stopped"
    with (
        caplog.at_level(logging.WARNING, "loadax"),
        pytest.raises(StallError, match=rf"(?s)step 4 has not .*: {late}.*abort_after=1000: pass a higher one"),
    ):
        hosts.goes_on(0, 4, LaneProgress(9, None, 9))
    assert clock.now >= 1100, "time for which the process was stopped does not count"
    seconds = [60, 120, 240, 480, 960]
    assert [message.partition(": ")[0] for message in caplog.messages] == [
        f"step 4 has not come for {each} s" for each in seconds
    ]
    assert waits.waiting is None


def test_what_makes_waiting_vain_ends_it(clock: Clock) -> None:
    closed: list[bool] = []

    def check() -> None:
        if closed:
            raise ClosedError("closed meanwhile")

    clock.meanwhile = lambda: closed.append(True)
    with pytest.raises(ClosedError, match="closed meanwhile"):
        Hosts().goes_on(0, 4, LaneProgress(9, None, 9), check)


def test_without_a_coordinator_it_is_an_error_that_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    hosts = Hosts()

    def gone(*_: object) -> None:
        raise CoordinatorError("UNAVAILABLE: gone")

    monkeypatch.setattr(hosts.store.call, "key_value_set", gone)
    with pytest.raises(HostError, match="since the coordinator, process 0, does not answer: UNAVAILABLE: gone; start"):
        hosts.goes_on(1, 4, LaneProgress(9, None, 9))
    hosts.of[1].close()


def test_only_some_rows_are_an_error_if_asked() -> None:
    hosts = Hosts((0, 1), "error")
    hosts.tell(1, LaneProgress(9, None, 9))
    with pytest.raises(SourceError, match="lane 3 ended, and the batch of step 4 has only some of its rows"):
        hosts.goes_on(0, 4, LaneProgress(9, 4, 4))


def test_the_first_process_deletes_keys_when_it_is_closed() -> None:
    hosts = Hosts()
    closed = key_value._closed.copy()
    for process in (1, 0, 0):
        hosts.of[process].close()
    assert [*closed, hosts.store.path] == [*key_value._closed]


def new_process(patch: pytest.MonkeyPatch) -> None:
    """Names runs as in a process that has begun none."""
    patch.setattr(agreement, "_runs", LoaderRuns("streams"))
    patch.setattr(key_value, "_counts", defaultdict(count))


def test_groups_of_processes_count_their_runs_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some of the processes may have iterated over a mesh of their own before."""
    store = memory_store()
    made: list[EndAgreement] = []
    for earlier in (0, 2):  # of process 0, and of process 1
        new_process(monkeypatch)
        for _ in range(earlier):
            end_agreement(store, 1, [1, 2], "first")
        made.append(end_agreement(store, len(made), [0, 1], "first"))
    made[1].tell(LaneProgress(5, None, 5))
    assert made[0].goes_on(4, LaneProgress(5, None, 5), "", lambda: None)


class Processes:
    """Iterators of two processes of one run, each with half of each batch on a mesh of its own.

    Process 1 gets a Ctrl-C before it has row `interrupted` of a lane.
    """

    def __init__(self, patch: pytest.MonkeyPatch, interrupted: int = -1, rows: int = 20):
        self._patch, self._store, self._interrupted, self._rows = patch, memory_store(), interrupted, rows
        self.iterators = [self._iterator(process) for process in range(2)]

    def _iterator(self, process: int) -> DataIterator:
        self._patch.setattr(stream_end, "key_value_store", lambda _: self._store)
        self._patch.setattr(stream_end, "this_process", lambda: SimpleNamespace(index=process, count=2))
        self._patch.setattr(stream_end, "grid_of", lambda _: SimpleNamespace(owners=np.array([process])))
        new_process(self._patch)

        def lane_of(lane: int, lanes: int) -> Iterator[Any]:
            for row in range(self._rows):
                if process and row == self._interrupted:
                    self._interrupted = -1
                    raise KeyboardInterrupt
                yield np.int32(100 * lane + row)

        mesh = data_parallel(jax.devices()[:1])
        data = from_stream(lane_of, lanes=4, spec=ArraySpec((), np.dtype(np.int32)))
        options: dict[str, Any] = {"num_workers": 0, "abort_after": HANG}
        return iter(Dataloader(data, 8, mesh=mesh, shard_index=process, shard_count=2, **options))


def rows_of(batches: DataIterator) -> list[int]:
    return [int(row) for batch in batches for row in batch]


def test_a_process_that_goes_on_after_a_ctrl_c_agrees_with_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = Processes(monkeypatch, interrupted=7).iterators
    with ThreadPoolExecutor(1) as pool:
        others = pool.submit(rows_of, first)
        with pytest.raises(KeyboardInterrupt):
            rows_of(second)
        rest = 4 * (10 - second.step)
        assert 0 < rest < 40
        assert len(rows_of(second)) == rest
        assert len(others.result(HANG)) == 40


@pytest.mark.parametrize("leave", ["close", "drop"])
def test_a_process_that_leaves_early_ends_the_others(leave: str, monkeypatch: pytest.MonkeyPatch) -> None:
    processes = Processes(monkeypatch)
    first, second = processes.iterators
    with ThreadPoolExecutor(1) as pool:
        others = pool.submit(rows_of, first)
        for _ in range(3):
            next(second)
        if leave == "close":
            second.close()
        del second, processes.iterators[:]
        with pytest.raises(HostError, match="process 1 closed its iterator, before it had read step 3 of the stream"):
            others.result(HANG)


def test_closing_ends_waiting_for_other_processes(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> None:
    first, _second = Processes(monkeypatch).iterators
    waiting = threading.Event()
    clock.meanwhile, clock.passes = waiting.set, False
    with ThreadPoolExecutor(1) as pool:
        others = pool.submit(rows_of, first)
        assert waiting.wait(HANG)
        first.close()
        with pytest.raises(ClosedError):
            others.result(HANG)


def test_processes_without_rows_are_not_waited_for() -> None:
    store = memory_store()
    other = EndAgreement(store, 7, [0], "first")
    other.tell(LaneProgress(0, None, 0))
    first = EndAgreement(store, 0, [0], "first")
    assert first.goes_on(3, LaneProgress(4, None, 4), "", lambda: None)
