"""Who places, by the consumer's pace."""

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


def test_a_consumer_that_comes_back_at_once_places_for_itself(clock: list[float]) -> None:
    steps = ConsumerPace()
    assert steps.ahead  # nothing is known: the first batches are placed ahead
    for _ in range(30):
        steps.placed(0.001)
        steps.went(0.0)
        clock[0] += 0.0001
        steps.came()
    steps.went(0.0)
    before = steps.ahead
    clock[0] += 0.1  # but then it stays away
    assert [before, steps.ahead] == [False, True]


def test_a_consumer_that_trains_in_between_is_served_ahead(clock: list[float]) -> None:
    steps = ConsumerPace()
    for _ in range(30):
        steps.placed(0.001)
        steps.went(0.0)
        clock[0] += 0.01
        steps.came()
    steps.went(0.0)
    assert steps.ahead
    assert steps.nap(0) == pytest.approx(0.005)


def test_naps_grow_and_stay_bounded(clock: list[float]) -> None:
    steps = ConsumerPace()
    naps = [steps.nap(before) for before in (0, 1, 5, 2000)]
    assert naps == sorted(naps)
    assert naps[-1] <= 0.05


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
    steps = ConsumerPace()
    known = [steps.starving]  # nothing is known: all read
    for waited in [0.0] * 30 + [0.009] * 30:
        steps.went(waited)
        clock[0] += 0.01
        known.append(steps.starving)
    assert [known[0], known[30], known[60]] == [True, False, True]


def test_what_goes_to_an_accelerator_is_always_placed_ahead(clock: list[float]) -> None:
    steps = ConsumerPace(to_accelerator=True)
    for _ in range(30):
        steps.placed(0.001)
        steps.went(0.0)
        clock[0] += 0.0001
        steps.came()
    steps.went(0.0)
    assert steps.ahead  # though the consumer comes back at once
    assert steps.nap(0) == pacing._SHORTEST_NAP
