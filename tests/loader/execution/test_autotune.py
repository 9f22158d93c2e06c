"""The autotuner adds workers only while throughput for a waiting consumer increases."""

from collections.abc import Callable

import pytest

from loadax.loader.execution.autotune import WorkerAutotuner


def run(
    team: WorkerAutotuner,
    speed: Callable[[int], float],
    seconds: float,
    starving: Callable[[int], bool] = lambda _: True,
) -> list[int]:
    """The sizes that a team goes through when `speed(size)` batches a second come."""
    now, sizes = 0.0, [team.size]
    while now < seconds:
        now += 1 / speed(team.size)
        team.on_batch(now, starving(team.size))
        if team.size != sizes[-1]:
            sizes.append(team.size)
    return sizes


@pytest.mark.parametrize(
    ("least", "most", "speed", "seconds", "sizes"),
    [
        (1, 12, lambda size: 50.0 * size, 10, [1, 2, 4, 8, 12]),
        (1, 4, lambda size: 50.0 * size, 0.8, [1, 2, 4]),
        (1, 8, lambda size: 50.0 * min(size, 4), 1.5, [1, 2, 4, 8, 4]),
        (3, 3, lambda size: 50.0 * size, 10, [3]),
    ],
    ids=["all help", "within a second", "the last ones don't help", "a given number"],
)
def test_grows_while_more_workers_help(
    least: int, most: int, speed: Callable[[int], float], seconds: float, sizes: list[int]
) -> None:
    assert run(WorkerAutotuner(least, most), speed, seconds) == sizes


def test_consumer_that_does_not_wait_needs_no_more() -> None:
    assert run(WorkerAutotuner(1, 8), lambda size: 100.0 * size, 10, starving=lambda size: size < 2) == [1, 2]


def test_what_was_tried_is_known() -> None:
    team = WorkerAutotuner(1, 8)
    assert team.tried == 1
    run(team, lambda size: 50.0 * min(size, 2), 1.0)
    assert (team.size, team.tried) == (2, 4)


def test_goes_back_when_more_are_of_no_use_and_tries_seldom() -> None:
    sizes = run(WorkerAutotuner(1, 8), lambda _: 100.0, 60)
    assert set(sizes) == {1, 2}
    assert sizes[-1] == 1
    assert sizes.count(2) <= 6


def test_tries_again_when_the_work_has_changed() -> None:
    team = WorkerAutotuner(1, 2)
    assert run(team, lambda _: 100.0, 1.0)[-1] == 1
    assert run(team, lambda size: 100.0 * size, 10.0)[-1] == 2


def test_is_not_judged_before_the_new_ones_are_there() -> None:
    began = 0.15  # when it grows

    def team_of(settling: float) -> list[int]:
        team, now, sizes = WorkerAutotuner(1, 2, settling), 0.0, [1]
        while now < 1.5:
            now += 1 / (200.0 if team.size == 2 and now > began + 0.5 else 100.0)
            team.on_batch(now, starving=True)
            if team.size != sizes[-1]:
                sizes.append(team.size)
        return sizes

    assert team_of(0.0) == [1, 2, 1]
    assert team_of(0.6) == [1, 2]


def test_begins_with_no_more_than_there_may_be() -> None:
    assert WorkerAutotuner(16, 4).size == 4


def test_an_absence_of_the_consumer_is_no_speed() -> None:
    """Two workers serve twice as fast; while that is tried, an evaluation takes half a minute."""
    team, now, away = WorkerAutotuner(1, 2), 0.0, 0.0
    for number in range(40):
        now += away + 1 / (50.0 * team.size)
        team.on_batch(now, starving=True, away=away)
        away = 30.0 if number == 15 else 0.0
        if number >= 14:
            assert team.size == 2


def test_more_batches_without_more_processor_time_are_no_gain() -> None:
    """Workers that hold the GIL use one core, whatever their number. Batches may come faster for another reason."""
    team, now = WorkerAutotuner(1, 2), 0.0
    for _ in range(60):
        now += 1 / (100.0 * team.size)
        team.worked(1 / (100.0 * team.size))
        team.on_batch(now, starving=True)
    assert (team.size, team.tried) == (1, 2)


def test_a_trial_of_workers_that_hold_the_gil_is_short() -> None:
    """Each batch is 8 pieces, and takes longer with two workers: 16 pieces tell, and 6 batches are not awaited."""
    team, now, of_two = WorkerAutotuner(1, 2), 0.0, 0
    for _ in range(40):
        now += 0.05 if team.size == 1 else 0.06
        for _ in range(8):
            team.worked(0.006)
        of_two += team.size == 2
        team.on_batch(now, starving=True)
    assert (team.size, team.tried, of_two) == (1, 2, 2)


def test_workers_that_wait_gain_with_little_processor_time() -> None:
    team, now = WorkerAutotuner(1, 4), 0.0
    for _ in range(100):
        now += 1 / (100.0 * team.size)
        team.worked(1e-5)
        team.on_batch(now, starving=True)
    assert team.size == 4


def test_the_first_batches_are_no_baseline() -> None:
    """They are slower, since their memory is new: any number of workers would be faster than they were."""
    team, now = WorkerAutotuner(1, 2), 0.0
    for number in range(60):
        now += 1 / (50.0 if number < 6 else 100.0)
        team.on_batch(now, starving=True)
    assert (team.size, team.tried) == (1, 2)
