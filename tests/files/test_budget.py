"""The budget of requests and the pace of a server settle, in a simulated world of latencies, limits and refusals."""

import heapq
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

import numpy as np
import pytest

from loadax.files.budget import Budget
from loadax.files.pace import Pace

SETTLED = 5  # seconds, after which a budget has adapted
SECONDS = 20
TICK = 0.02
MIB = 1 << 20


@dataclass
class World:
    """A server: its latency in seconds, and limits.

    Args:
        latency: Median of the seconds that an answer takes.
        rate: Requests a second, above which they are refused.
        burst: Requests that may come at once above that rate. None: the rate holds for each second of the clock.
        bandwidth: Bytes a second of all answers.
        places: Requests that are answered at a time; others wait.
        noise: Share of requests that are refused whatever their number.
    """

    latency: float
    rate: float = inf
    burst: float | None = None
    bandwidth: float = inf
    places: float = inf
    noise: float = 0.0


class Told(NamedTuple):
    answered: float  # a second, once settled
    refused: float  # share of the requests, once settled
    budget: Budget


def simulate(world: World, size: int = 1024, seed: int = 0) -> Told:
    """A reader that always has requests to send."""
    rng = np.random.default_rng(seed)
    budget = Budget(0.0)
    pace = Pace(0.0)
    now = free = last = 0.0
    tokens = world.burst or 0.0
    second, number = -1, 0
    ends: list[tuple[float, int, float, bool]] = []
    served: list[float] = []
    answers = refusals = 0
    while now < SECONDS:
        while budget.allows(size) and pace.allows(now):
            budget.sent(size)
            pace.sent()
            arrives = now + 0.4 * world.latency
            accepted = rng.random() >= world.noise
            if world.burst is not None:
                tokens = min(world.burst, tokens + (arrives - last) * world.rate)
                last = arrives
                accepted &= tokens >= 1
                tokens -= accepted
            elif world.rate < inf:
                if int(arrives) != second:
                    second, number = int(arrives), 0
                number += 1
                accepted &= number <= world.rate
            ends_at = now + world.latency * rng.lognormal(0, 0.3)
            if world.bandwidth < inf and accepted:
                free = max(free, arrives) + size / world.bandwidth
                ends_at = max(ends_at, free)
            if world.places < inf:
                if len(served) >= world.places:
                    ends_at = max(heapq.heappop(served), arrives) + world.latency
                heapq.heappush(served, ends_at)
            heapq.heappush(ends, (ends_at, len(ends) + answers + refusals, now, bool(accepted)))
        if not ends or ends[0][0] > now + TICK:
            now += TICK
            continue
        now, _, sent, accepted = heapq.heappop(ends)
        if accepted:
            budget.answered(now, sent, size)
            pace.answered(now, sent)
        else:
            pace.refused(now, sent, budget.in_flight)
        budget.ended(size)
        if now > SETTLED:
            answers += accepted
            refusals += not accepted
    return Told(answers / (SECONDS - SETTLED), refusals / (answers + refusals), budget)


@pytest.mark.parametrize("burst", [None, 0.1, 1.0], ids=["each second", "small burst", "large burst"])
@pytest.mark.parametrize("rate", [100, 300, 1000])
@pytest.mark.parametrize("latency", [0.005, 0.02, 0.1])
def test_throttled_server_refuses_few_requests(burst: float | None, rate: float, latency: float) -> None:
    told = simulate(World(latency, rate, burst and burst * rate))
    assert told.refused <= 0.05
    assert told.answered >= 0.9 * rate


def test_server_without_limits_gets_all_places() -> None:
    told = simulate(World(0.2))
    assert told.budget.width == 256
    assert told.answered >= 0.9 * 256 / (0.2 * np.exp(0.045))


def test_more_requests_than_a_server_answers_at_a_time_do_not_pay() -> None:
    told = simulate(World(0.05, places=64))
    assert told.budget.width <= 100
    assert told.answered >= 0.9 * 64 / 0.05


def test_more_requests_than_the_bandwidth_carries_do_not_pay() -> None:
    told = simulate(World(0.1, bandwidth=20e6), size=MIB)
    # An answer takes seconds, and with it a period: the first try may be under way at the end.
    assert told.budget.width <= 128
    assert told.answered >= 0.9 * 20e6 / MIB


def test_one_percent_of_refusals_at_random_hardly_slows() -> None:
    free = simulate(World(0.2))
    told = simulate(World(0.2, noise=0.01))
    assert told.answered >= 0.8 * free.answered


def test_one_percent_of_refusals_is_not_taken_for_a_limit() -> None:
    """The first second of 200 runs at 20 ms, where few answers tell the share of refusals."""
    paced = 0
    for seed in range(200):
        refused = np.random.default_rng(seed).random(1000) < 0.01
        pace = Pace(0.0)
        for number, is_refused in enumerate(refused.tolist()):
            now = 0.02 + number / 1000
            if is_refused:
                pace.refused(now, now - 0.02, in_flight=64)
            else:
                pace.answered(now, now - 0.02)
        paced += not pace.is_free
    assert paced <= 2


def test_timeouts_lower_the_number_once_a_round() -> None:
    budget = Budget(0.0)
    for _ in range(10):
        budget.timed_out(11.0, sent=1.0)
    assert budget.width == pytest.approx(0.7 * 64)
    for now in range(20, 60):
        budget.timed_out(float(now), sent=now - 0.5)
    assert budget.width == 4


def test_bytes_in_flight_are_bounded_but_one_request_always_goes() -> None:
    budget = Budget(0.0)
    assert budget.allows(1 << 30)
    budget.sent(1 << 30)
    assert not budget.allows(1)
    budget.ended(1 << 30)
    sent = 0
    while budget.allows(4 * MIB):
        budget.sent(4 * MIB)
        sent += 1
    assert sent == 32
