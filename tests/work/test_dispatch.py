"""The dispatcher of an executor, on a clock that the tests set: when a task is late, and what counts as a loss."""

from concurrent.futures import BrokenExecutor, Executor, Future
from queue import SimpleQueue
from typing import Any

import pytest

from loadax.core import patience
from loadax.work import dispatch
from loadax.work.dispatch import Answers, Attempt, Dispatcher, Policy

POLICY = Policy(
    quantile=0.5,
    recent=4,
    slow=3.0,
    later=10.0,
    least=2.0,
    first=60.0,
    starting=100.0,
    silence=30.0,
    times_longest=4.0,
    times_late=0.0,
)


class Engine(Executor):
    """Has what is submitted; tests answer it."""

    def submit(self, *_: Any) -> Any:  # type: ignore[override]
        return Future[Any]()


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    for module in (dispatch, patience):
        monkeypatch.setattr(module, "perf_counter", clock)
    return clock


def given_out(count: int) -> tuple[Dispatcher, list[Attempt]]:
    dispatcher = Dispatcher(Engine(), POLICY, "executor")
    dispatcher.open()
    answers: Answers = SimpleQueue()
    return dispatcher, [dispatcher.submit(number, lambda order: (order,), answers) for number in range(count)]


def test_a_task_is_late_from_the_first_answer_to_a_later_one_on(clock: Clock) -> None:
    """However many are answered after that: workers that go on hide no task that hangs."""
    dispatcher, (first, *others) = given_out(4)
    for clock.now, other in enumerate(others, 5):
        other.future.set_result(None)
    assert dispatcher.left(first) == dispatcher.late() - (clock.now - 5) == 0.0


def test_an_answer_makes_no_later_task_late(clock: Clock) -> None:
    _, (first, second, third) = given_out(3)
    clock.now = 5
    first.future.set_result(None)
    clock.now = 6
    third.future.set_result(None)
    assert second.overtaken == 6


@pytest.mark.parametrize("seconds", [[1.0] * 4, [1.0, 1.0, 20.0, 1.0], [9.0, 1.0, 1.0, 1.0, 1.0]])
def test_late_is_a_multiple_of_the_usual_time_of_recent_tasks(seconds: list[float], clock: Clock) -> None:
    dispatcher, (first,) = given_out(1)
    assert dispatcher.late() == POLICY.first
    first.future.set_result(None)
    assert dispatcher.late() == POLICY.least
    for each in seconds:
        dispatcher.took(each)
    assert dispatcher.late() == 3.0
    for _ in range(3):
        dispatcher.took(30.0)
    assert dispatcher.late() == 40.0  # three times as long is more than `later`


def test_a_break_is_counted_once_and_an_answer_forgives_all(clock: Clock) -> None:
    dispatcher, attempts = given_out(4)
    for attempt in attempts[:3]:
        attempt.future.set_exception(BrokenExecutor("a process died"))
    assert (dispatcher.losses, dispatcher.breaks, dispatcher.executor) == (1, 1, None)
    attempts[3].future.set_result(None)
    assert (dispatcher.losses, dispatcher.breaks, len(dispatcher)) == (0, 0, 0)
