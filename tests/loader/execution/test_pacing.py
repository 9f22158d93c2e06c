"""Workers or the consumer place batches, depending on the consumer's pace."""

import pytest

from loadax import Dataloader, from_arrays
from loadax.loader.execution import pacing
from loadax.loader.execution.pacing import ConsumerPace
from tests.clocks import Machine
from tests.limits import until
from tests.loader.oracle import arrays

TREE = arrays(64)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(pacing, "perf_counter", lambda: now[0])
    return now


def take(pace: ConsumerPace, clock: list[float], away: float) -> None:
    """Takes batches that are placed in a millisecond each, and stays away for some seconds between two."""
    for _ in range(30):
        pace.placed(0.001)
        pace.delivered(0.0)
        clock[0] += away
        pace.requested()
    pace.delivered(0.0)


def test_a_consumer_that_comes_back_at_once_places_for_itself(clock: list[float]) -> None:
    pace = ConsumerPace()
    assert pace.ahead  # nothing is known: the first batches are placed ahead
    take(pace, clock, away=0.0001)
    before = pace.ahead
    clock[0] += 0.1  # but then it stays away
    assert [before, pace.ahead] == [False, True]


def test_a_consumer_that_trains_in_between_is_served_ahead(clock: list[float]) -> None:
    pace = ConsumerPace()
    take(pace, clock, away=0.01)
    assert pace.ahead
    assert pace.backoff(0) == pytest.approx(0.005)


def test_waits_grow_and_stay_bounded(clock: list[float]) -> None:
    pace = ConsumerPace()
    waits = [pace.backoff(tries) for tries in (0, 1, 5, 2000)]
    assert waits == sorted(waits)
    assert waits[-1] <= 0.05


def test_what_is_placed_ahead_is_there_after_a_pause() -> None:
    with iter(Dataloader(from_arrays(TREE), 8, num_epochs=None, prefetch=3)) as batches:
        for _ in range(50):
            next(batches)
        until(lambda: batches.stats().ready >= 3)
        assert batches.stats().ready == 3


def test_nothing_is_placed_ahead_when_nothing_shall_be(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch)
    with iter(Dataloader(from_arrays(TREE), 8, num_epochs=None, prefetch=0)) as batches:
        next(batches)
        machine.sleep(10.0)  # once nobody has anything left to do
        assert batches.stats().ready == 0


def test_more_workers_read_only_for_a_consumer_that_waits(clock: list[float]) -> None:
    pace = ConsumerPace()
    known = [pace.starving]  # nothing is known: all read
    for waited in [0.0] * 30 + [0.009] * 30:
        pace.delivered(waited)
        clock[0] += 0.01
        known.append(pace.starving)
    assert [known[0], known[30], known[60]] == [True, False, True]


def test_what_goes_to_an_accelerator_is_always_placed_ahead(clock: list[float]) -> None:
    pace = ConsumerPace(to_accelerator=True)
    take(pace, clock, away=0.0001)
    assert pace.ahead  # though the consumer comes back at once
    assert pace.backoff(0) == pacing.SHORTEST_BACKOFF
