"""`chain(…).lease` and `chain(…).skip`: as of one loader, over the rows of all of them."""

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from loadax import Dataloader, chain, from_arrays
from loadax.errors import ArgumentError, RowIndexError, StateError
from loadax.loader.lease import Leased

EPOCHS = 2


def loader(phase: int, rows: int, batch_size: int, host: int = 0, hosts: int = 1, **options: Any) -> Dataloader:
    """A loader of shuffled rows that tell their phase, for one of several hosts."""
    data = from_arrays({"id": np.arange(rows) + 1000 * phase}).shuffle(seed=phase)
    shard: dict[str, Any] = {"shard_index": host, "shard_count": hosts}
    return Dataloader(data, batch_size, num_workers=0, num_epochs=EPOCHS, **shard, **options)


def run_of(sizes: list[int], batch_sizes: list[int], host: int = 0, hosts: int = 1) -> Dataloader:
    """A chain of loaders that have these numbers of rows."""
    each = enumerate(zip(sizes, batch_sizes, strict=True))
    remainders = ["drop" if rows >= batch else "pad" for rows, batch in zip(sizes, batch_sizes, strict=True)]
    return chain([loader(phase, *two, host, hosts, remainder=remainders[phase]) for phase, two in each])


def expected_rows(sizes: list[int]) -> list[int]:
    """The row at each position of the run, without leases."""
    rows = []
    for phase, size in enumerate(sizes):
        order = from_arrays(np.arange(size)).shuffle(seed=phase).order
        for epoch in range(EPOCHS):
            rows += (order.visits(np.full(size, epoch), np.arange(size)).rows + 1000 * phase).tolist()
    return rows


def share_of(sizes: list[int], batch_sizes: list[int], host: int, hosts: int) -> list[int]:
    """Positions of one host's rows, in the order of the run."""
    positions, first = [], 0
    for size, batch_size in zip(sizes, batch_sizes, strict=True):
        share = batch_size // hosts
        local = range(EPOCHS * size)
        positions += [first + each for each in local if each % size % batch_size // share == host]
        first += EPOCHS * size
    return positions


@given(
    sizes=st.lists(st.integers(1, 20), min_size=1, max_size=3),
    lives=st.lists(st.lists(st.sampled_from([1, 2, 4, 6]), min_size=3, max_size=3), min_size=1, max_size=4),
    seed=st.integers(0, 2**32),
)
def test_each_row_is_served_until_it_is_acknowledged(sizes: list[int], lives: list[list[int]], seed: int) -> None:
    """Runs that are killed again and again, on other numbers of hosts and other batch sizes, against a set."""
    draw = np.random.default_rng(seed)
    rows = expected_rows(sizes)
    finished: set[int] = set()
    states: Any = 0
    for number, life in enumerate([*lives, [6, 6, 6]]):
        last = number == len(lives)
        batch_sizes = life[: len(sizes)]
        hosts = int(draw.choice([hosts for hosts in (1, 2) if not any(size % hosts for size in batch_sizes)]))
        saved = []
        for host in range(hosts):
            mine = [each for each in share_of(sizes, batch_sizes, host, hosts) if each not in finished]
            with run_of(sizes, batch_sizes, host, hosts).lease(json.loads(json.dumps(states))) as lease:
                served: list[int] = []
                for leased in lease:
                    positions = leased.positions.tolist()
                    served += positions
                    assert leased.examples["id"].tolist() == [rows[position] for position in positions]
                    for position in draw.permutation(served).tolist():
                        if position not in finished and (last or draw.random() < 0.3):
                            (lease.ack if draw.random() < 0.8 else lease.drop)(position)
                            finished.add(position)
                    if not last and draw.random() < 0.2:
                        break
                else:
                    assert served == mine
                assert served == mine[: len(served)]
                assert lease.in_flight == len({*served} - finished)
                saved.append(lease.get_state())
        states = saved if hosts > 1 or draw.random() < 0.5 else saved[0]
    assert finished == set(range(len(rows)))
    with run_of(sizes, [1] * len(sizes)).lease(states) as lease:
        assert list(lease) == []


def two(**options: Any) -> Dataloader:
    """Phases of 20 and of 24 rows, twice each."""
    return chain([loader(0, 20, 4, **options), loader(1, 24, 8, **options)])


def positions_of(leased: list[Leased]) -> list[int]:
    return [position for each in leased for position in each.positions.tolist()]


def test_a_lease_hands_out_what_the_iterator_does() -> None:
    with two().lease() as lease, two().host_batches() as batches:
        leased = list(lease)
        assert [each.examples["id"].tolist() for each in leased] == [batch["id"].tolist() for batch in batches]
    assert positions_of(leased) == list(range(40 + 48))


def test_the_first_loader_alone_has_the_same_state() -> None:
    alone = loader(0, 20, 4)
    with two().lease() as lease, alone.lease() as other:
        leased = [next(lease) for _ in range(7)]
        assert positions_of(leased) == positions_of([next(other) for _ in range(7)])
        lease.ack(leased[-1])
        other.ack(leased[-1].positions)
        assert lease.get_state() == other.get_state()
        state = other.get_state()
    with two().lease(state) as lease:
        assert len(positions_of(list(lease))) == 88 - 4


@pytest.mark.parametrize("start", [0, 3, 10, 11, 13, 16])
def test_steps_and_states_of_iterators_start_a_lease(start: int) -> None:
    run = two()
    with run.host_batches(start) as batches:
        state = batches.get_state()
        rest = [batch["id"].tolist() for batch in batches]
    for given_start in (start, state, [state]):
        with run.lease(given_start) as lease:
            assert [each.examples["id"].tolist() for each in lease] == rest


def test_rows_of_a_loader_that_has_ended_stay_unfinished() -> None:
    run = two()
    with run.lease() as lease:
        leased = [next(lease) for _ in range(12)]
        lease.ack([each.positions for each in leased[1:10]])
        assert lease.in_flight == 4 + 16
        state = json.loads(json.dumps(lease.get_state()))
    longer = chain([*two().loaders, loader(2, 5, 5)])  # loaders may be added at the end
    with longer.lease(state) as lease:
        assert positions_of(list(lease)) == [*range(4), *range(40, 88 + 10)]
    assert len(json.dumps(state)) < 1_000


def test_states_of_other_runs_are_refused() -> None:
    with two().lease() as lease:
        lease.ack([next(lease).positions for _ in range(12)])
        state = lease.get_state()
    more = Dataloader(loader(0, 20, 4).dataset, 4, num_epochs=3, shard_index=0, shard_count=1)
    with pytest.raises(StateError, match=r"loaders\[0\] has ended after 40 rows .* 60 here; pass the num_epochs that"):
        chain([more, loader(1, 24, 8)]).lease(state)
    with pytest.raises(StateError, match=r"loaders\[1\]: the state's 'order'"):
        chain([loader(0, 20, 4), loader(3, 24, 8)]).lease(state)
    with pytest.raises(StateError, match=r"a chain in its loader 1, .* only 1 here; chain the loaders of the saved ru"):
        chain([loader(0, 20, 4)]).lease(state)
    with pytest.raises(StateError, match=r"a chain in its loader 1, .* only 1 here; chain the loaders of the saved ru"):
        loader(0, 20, 4).lease(state)
    with pytest.raises(StateError, match=r"the state of a lease, with unfinished rows; pass it to loader\.lease\(\)"):
        two().host_batches(state)
    several: list[Any] = [state | {"phases": []}, state | {"phases": 3}, [[]], "text"]
    for broken in several:
        with pytest.raises(StateError, match=r"pass a (step \(an int\), or a )?state of get_state\(\)"):
            two().lease(broken)
    with pytest.raises(StateError, match=r"^start=\[\]: pass the states of all processes"):
        two().lease([])


def test_states_of_some_processes_are_refused() -> None:
    states = []
    for host, steps in enumerate((12, 3)):  # the second one has not begun the second loader
        with two(host=host, hosts=2).lease() as lease:
            lease.ack([next(lease).positions for _ in range(steps)])
            states.append(lease.get_state())
    for some in states:
        with pytest.raises(
            StateError, match=r"positions [02] to [13] of each batch of 4; pass a list of the states of"
        ):
            two().lease(some)
    with two().lease(states) as lease:
        served = positions_of(list(lease))
    second_half = [position for position in range(12, 40) if position % 4 >= 2]
    assert served == [*second_half, *range(44, 48), *range(52, 88)]


def test_skipped_steps_are_left_out_of_leases() -> None:
    run = two().skip([0, range(8, 12), 15])
    skipped = {*range(4), *range(32, 56), *range(80, 88)}
    with run.lease() as lease:
        leased = [next(lease) for _ in range(8)]
        lease.ack([each.positions for each in leased])
        state = lease.get_state()
        leased += lease
    assert positions_of(leased) == [position for position in range(88) if position not in skipped]
    with run.lease(state) as lease:
        assert positions_of(list(lease)) == positions_of(leased[8:])
    with pytest.raises(StateError, match=r"loaders\[0\]: before step .* the saved run skipped"):
        two().lease(state)


def test_a_loader_that_leases_can_not_serve_is_named() -> None:
    share: dict[str, Any] = {"shard_index": 0, "shard_count": 1}
    scheduled = [Dataloader(np.arange(9), {0: 1, 3: 2}, **share)]
    for last in scheduled:
        run = chain([loader(0, 20, 4), last])
        with pytest.raises(ArgumentError, match=r"equal groups; pass one batch_size, not a schedule"):
            run.lease()


@given(
    sizes=st.lists(st.integers(4, 30), min_size=1, max_size=3),
    chosen=st.lists(st.integers(0, 60), max_size=20),
    start=st.integers(0, 10),
)
def test_skipped_steps_are_those_of_the_chain(sizes: list[int], chosen: list[int], start: int) -> None:
    """Against a list of the batches of the whole chain."""
    whole = run_of(sizes, [4, 2, 3][: len(sizes)])
    kept = [*whole.first_steps]  # the first step of each loader
    skipped = sorted({step for step in chosen if step < len(whole)} - {*kept})
    run = whole.skip(skipped)
    left = [step for step in range(len(whole)) if step not in skipped]
    assert len(run) == len(left)
    for step, whole_step in enumerate(left):
        assert run.rows(step).tolist() == whole.rows(whole_step).tolist()
    start = min(start, len(left))
    with run.host_batches(start) as batches:
        state = json.loads(json.dumps(batches.get_state()))
    with run.host_batches(state) as batches:
        assert batches.step == start
        first = next(batches, None)
        assert first is None or first["id"].tolist() == whole.host_batch(left[start])["id"].tolist()
    next_step = left[start - 1] + 1 if start else 0
    if not any(step < next_step for step in skipped):  # a state before the first skipped step is one of the whole run
        with whole.host_batches(state) as batches:
            assert batches.step == next_step


def test_states_tell_skipped_steps() -> None:
    with two().skip([1, 12]).host_batches(13) as batches:
        state = batches.get_state()
    with pytest.raises(StateError, match=r"loaders\[0\]: before step .* the saved run skipped"):
        two().host_batches(state)
    with pytest.raises(StateError, match=r"loaders\[1\]: before step .* the saved run skipped"):
        two().skip(1).host_batches(state)
    for run in (two().skip([1, 12, 15]), two().skip(1).skip(11)):  # later ones may change; steps of the chain left
        with run.host_batches(state) as batches:
            assert batches.step == 13


def test_skips_stay_in_chains_of_chains_and_copies() -> None:
    run = two().skip([1, 12])
    longer = chain([run, loader(2, 5, 5)])
    assert longer.rows(1).tolist() == two().rows(2).tolist()
    assert (len(run), len(longer)) == (14, 16)
    assert run.first_steps == (0, 9)


def test_an_endless_chain_skips_steps_ahead() -> None:
    data = from_arrays({"id": np.arange(24)})
    endless_loader = Dataloader(data, 8, num_epochs=None, shard_index=0, shard_count=1)
    endless = chain([loader(0, 20, 4), endless_loader])
    assert endless.skip(slice(8, 10_000)).rows(8).tolist() == endless.rows(10_000).tolist()
    with pytest.raises(ArgumentError, match="the run is endless; pass a stop"):
        endless.skip(slice(8, None))
    with endless.lease(2) as lease:
        assert next(lease).positions.tolist() == [8, 9, 10, 11]


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        (
            range(10),
            r"steps=range\(0, 10\) skips all steps of loaders\[0\]; keep at least one of each loader, or chain",
        ),
        (slice(None), r"skips all steps of loaders\[0\]"),
        (16, r"step 16 can't be skipped: steps are at least 0 and below 16"),
        (-1, r"step -1 can't be skipped"),
        ("1", r"steps='1': pass an int, a range, a slice"),
    ],
)
def test_steps_that_can_not_be_skipped(steps: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        two().skip(steps)


def test_a_step_behind_skips_is_out_of_range() -> None:
    with pytest.raises(RowIndexError, match="below 14"):
        two().skip([1, 12]).rows(14)
