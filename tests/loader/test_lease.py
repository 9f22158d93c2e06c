"""`lease`: every row is served, in order, until it is acknowledged, on any number of hosts, whatever is killed when."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from loadax import Dataloader, from_arrays, from_stream, mix
from loadax.errors import ArgumentError, ClosedError, StateError, StreamError
from loadax.loader.lease import RowsOfPhase

WRONG: list[dict[str, Any]] = [
    {"end": -5},
    {"end": 10**30},
    {"end": 2.0},
    {"end": 4, "unfinished": [[5, 2]]},
    {"end": 4, "unfinished": [[-9, -3]]},
    {"end": 4, "unfinished": [[0, 10**6]]},
    {"end": 4, "unfinished": [[2, 4], [0, 1]]},
    {"held": [[0, 9]]},
]


def loader(rows: int = 10, batch_size: int = 4, host: int = 0, hosts: int = 1, **options: Any) -> Dataloader:
    """A loader of shuffled prompts, for one of several hosts."""
    prompts = np.array([f"prompt {row}" for row in range(rows)])
    data = from_arrays({"prompt": prompts, "id": np.arange(rows)}).shuffle(seed=rows)
    shard: dict[str, Any] = {} if hosts == 1 else {"shard_index": host, "shard_count": hosts}
    return Dataloader(data, batch_size, host_leaves="prompt", num_workers=0, **shard, **options)


def expected_row(whole: Dataloader, position: int) -> int:
    """The row at a position of the run, without leases."""
    epoch, in_epoch = divmod(position, len(whole.dataset))
    return int(whole.dataset.order.visits(np.array([epoch]), np.array([in_epoch])).rows[0])


@given(
    rows=st.integers(1, 40),
    batch_sizes=st.lists(st.sampled_from([1, 2, 4, 6, 12]), min_size=1, max_size=4),
    epochs=st.integers(1, 3),
    seed=st.integers(0, 2**32),
)
def test_each_row_is_served_until_it_is_acknowledged(rows: int, batch_sizes: list[int], epochs: int, seed: int) -> None:
    """Runs that are killed again and again, on other numbers of hosts and other batch sizes, against a set."""
    draw = np.random.default_rng(seed)
    finished: set[int] = set()
    states: Any = 0
    for number, batch_size in enumerate([*batch_sizes, 12]):
        last = number == len(batch_sizes)
        hosts = int(draw.choice([hosts for hosts in (1, 2, 3) if batch_size % hosts == 0]))
        saved = []
        for host in range(hosts):
            this = loader(rows, batch_size, host, hosts, num_epochs=epochs, remainder="drop" if rows >= 12 else "pad")
            share = batch_size // hosts
            mine = [p for p in range(rows * epochs) if p % rows % batch_size // share == host and p not in finished]
            with this.lease(json.loads(json.dumps(states))) as lease:
                served = []
                for leased in lease:
                    served += leased.positions.tolist()
                    assert [expected_row(this, p) for p in leased.positions.tolist()] == leased.examples["id"].tolist()
                    for position in draw.permutation(served):
                        if position not in finished and (last or draw.random() < 0.3):
                            (lease.ack if draw.random() < 0.8 else lease.drop)(position)
                            finished.add(int(position))
                    if not last and draw.random() < 0.2:
                        break
                else:
                    assert served == mine
                assert served == mine[: len(served)]
                saved.append(lease.get_state())
        states = saved if hosts > 1 or draw.random() < 0.5 else saved[0]
    assert finished == set(range(rows * epochs))
    with loader(rows, 1, num_epochs=epochs).lease(states) as lease:
        assert list(lease) == []


def test_threads_get_each_row_once() -> None:
    with loader(1_000, 3, remainder="pad").lease() as lease:

        def consume(_: int) -> list[int]:
            positions = []
            for leased in lease:
                positions += leased.positions.tolist()
                lease.ack(leased.positions)
            return positions

        with ThreadPoolExecutor(8) as threads:
            served = [position for positions in threads.map(consume, range(8)) for position in positions]
        assert sorted(served) == list(range(1_000))
        assert (lease.acknowledged, lease.dropped, lease.in_flight) == (1_000, 0, 0)


def test_64_in_flight_take_less_than_a_kilobyte_of_state() -> None:
    draw = np.random.default_rng(0)
    with loader(2_000, 1).lease() as lease:
        flying: list[int] = []
        longest = 0
        for leased in lease:
            flying += leased.positions.tolist()
            if len(flying) == 64:
                flying.remove(done := draw.choice(flying, p=(weights := np.arange(64) ** 2) / weights.sum()))
                lease.ack(done)
                if done % 20 == 0:
                    longest = max(longest, len(json.dumps(lease.get_state())))
    assert 300 < longest < 1_000


def test_finished_steps_are_not_read_again() -> None:
    """One row that takes long does not make a resume read all that came after it."""
    with (whole := loader(1_000, 2)).lease() as lease:
        leased = [next(lease) for _ in range(400)]
        lease.ack(np.concatenate([each.positions for each in leased[1:]]))
        state = lease.get_state()
    with whole.lease(state) as lease:
        assert [next(lease).positions.tolist() for _ in range(2)] == [[0, 1], [800, 801]]
        assert lease._batches.step == 2


def test_interrupt_after_reading_loses_no_row(monkeypatch: pytest.MonkeyPatch) -> None:
    with loader().lease() as lease:
        with monkeypatch.context() as patch:
            patch.setattr(RowsOfPhase, "positions_of", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                next(lease)
        assert next(lease).positions.tolist() == [0, 1, 2, 3]


def test_acknowledging_after_close_counts() -> None:
    with (whole := loader()).lease() as lease:
        leased = next(lease)
    lease.ack(leased.positions)
    assert whole.lease(lease.get_state()).__next__().positions.tolist() == [4, 5, 6, 7]
    assert repr(lease) == "Lease(4 rows acknowledged, 0 dropped, 0 in flight)"


def test_state_of_an_iterator_starts_a_lease() -> None:
    with loader(20, 8).host_batches() as batches:
        next(batches)
        state = batches.get_state()
    with loader(20, 8).lease(state) as lease:
        assert next(lease).positions.tolist() == list(range(8, 16))


@pytest.mark.parametrize("positions", [4, [0, 4], [0, 0], [0.0], ["0"], -1, None])
def test_positions_that_were_not_handed_out_are_refused(positions: Any) -> None:
    with loader().lease() as lease:
        leased = next(lease)
        for finish in (lease.ack, lease.drop):
            with pytest.raises(ArgumentError, match=r"positions=.* was not handed out by this lease, or is finished"):
                finish(positions)
        assert lease.in_flight == 4
        lease.ack(leased.positions)
        with pytest.raises(ArgumentError, match=r"is finished already; pass leased\.positions of what next"):
            lease.ack(leased.positions)


def test_states_of_some_processes_are_refused() -> None:
    states = []
    for host in range(2):
        with loader(host=host, hosts=2).lease() as lease:
            lease.ack(next(lease).positions)
            states.append(lease.get_state())
    for some in (states[0], [states[1]]):
        with pytest.raises(
            StateError, match=r"positions [02] to [13] of each batch of 4; pass a list of the states of all"
        ):
            loader().lease(some)
    with loader().lease(states) as lease:
        assert next(lease).positions.tolist() == [4, 5, 6, 7]


def test_state_of_a_lease_is_refused_elsewhere() -> None:
    with loader().lease() as lease:
        state = lease.get_state()
    with pytest.raises(StateError, match=r"the state of a lease, with unfinished rows; pass it to loader\.lease\(\)"):
        loader(batch_size=8).host_batches(state)
    several: list[Any] = [
        {"end": 4},
        [],
        {"end": "x", "held": [], "unfinished": []},
        {"end": 1, "held": [1], "unfinished": []},
        *({**state["lease"], **wrong} for wrong in WRONG),
    ]
    for broken in several:
        with pytest.raises(StateError, match=r"the state's 'lease' is .*; pass a state of lease\.get_state\(\)"):
            loader().lease(state | {"lease": broken})
    with pytest.raises(StateError, match="order"):
        loader(rows=11).lease(state)


def test_other_runs_are_refused() -> None:
    with loader(40, 4, num_epochs=3).lease() as lease:
        leased = [next(lease) for _ in range(12)]
        lease.ack([each.positions for each in leased[1:]])
        state = lease.get_state()
    with pytest.raises(StateError, match="has handed out 48 rows, but the run has 40; pass a larger num_epochs"):
        loader(40, 4).lease(state)
    with pytest.raises(StateError, match=r"^start=\[\]: pass the states of all processes of a lease, or 0 to begin"):
        loader().lease([])


@pytest.mark.parametrize("saved", [None, "costs"])
@pytest.mark.parametrize("resumed", [None, "costs"])
def test_balance_does_not_move_the_positions_of_a_lease(saved: str | None, resumed: str | None) -> None:
    costs = {None: None, "costs": np.arange(200.0) ** 2}
    data = from_arrays({"id": np.arange(200)}).shuffle(0)
    served = []
    with Dataloader(data, 16, balance=costs[saved]).lease() as lease:
        for leased in (next(lease) for _ in range(5)):
            lease.ack(leased.positions[::2])
            served += leased.examples["id"][::2].tolist()
        state = lease.get_state()
    with Dataloader(data, 6, balance=costs[resumed]).lease(state) as lease:
        for leased in lease:
            served += leased.examples["id"].tolist()
    assert sorted(served) == list(range(200))


def test_orders_that_depend_on_the_batch_size_keep_it() -> None:
    blocks = from_arrays({"id": np.arange(200)}).shuffle(0, block=20)
    parts = [from_arrays({"id": np.arange(100) + 1000 * part}) for part in range(2)]
    for data in (blocks, mix(parts, {0: [1, 1], 2: [9, 1]}, by="step", stop="never")):
        served = []
        with Dataloader(data, 16).lease() as lease:
            for leased in (next(lease) for _ in range(5)):
                lease.ack(leased.positions[::2])
                served += leased.examples["id"][::2].tolist()
            state = lease.get_state()
        with pytest.raises(StateError, match=r"is 16, this loader's is 6, and rows have other positions.* pass batch_"):
            Dataloader(data, 6).lease(state)
        with Dataloader(data, 16).lease(state) as lease:
            again = [next(lease) for _ in range(5)]
        assert again[0].positions.tolist() == list(range(1, 16, 2))
        served += [row for leased in again for row in leased.examples["id"].tolist()]
        assert len({*served}) == len(served) == 5 * 8 + sum(len(leased.positions) for leased in again)


def test_leased_rows_and_lists_of_positions_are_taken() -> None:
    with loader().lease() as lease:
        first, second, third = lease
        lease.ack(first)
        lease.drop([second.positions, third.positions])
        assert (lease.acknowledged, lease.dropped) == (4, 6)
        for wrong in (first.examples, [first.examples], "0"):
            with pytest.raises(ArgumentError, match="was not handed out by this lease"):
                lease.ack(wrong)


def test_closed_lease_says_how_to_go_on() -> None:
    with (whole := loader()).lease() as lease:
        next(lease)
    with pytest.raises(ClosedError, match=r"this lease is closed; go on with loader\.lease\(lease\.get_state\(\)\)"):
        next(lease)
    with whole.lease(lease.get_state()) as again:
        assert next(again).positions.tolist() == [0, 1, 2, 3]


def test_names_of_iterators_are_answered() -> None:
    with loader().lease() as lease:
        with pytest.raises(AttributeError, match=r"loader\.lease\(state\) goes on from a state"):
            lease.set_state({})  # type: ignore[attr-defined]
        with pytest.raises(AttributeError, match=r"lease\.get_state\(\)$"):
            lease.state_dict()  # type: ignore[attr-defined]


def test_lease_needs_one_batch_size_and_random_access() -> None:
    with pytest.raises(ArgumentError, match="pass one batch_size, not a schedule"):
        loader(batch_size={0: 2, 1: 4}).lease()  # type: ignore[arg-type]
    stream = from_stream(lambda lane, lanes: iter([{"x": np.zeros(2)}] * 9), lanes=2)
    with pytest.raises(StreamError, match=r"lease\(\)"):
        Dataloader(stream, 2).lease()


def test_waiting_consumer_does_not_hold_up_acknowledgements() -> None:
    """A thread that waits for a row leaves `ack` and `get_state` to others."""
    release = threading.Event()
    data = from_arrays({"id": np.arange(8)}).map(
        lambda row: {"id": row["id"], "waited": row["id"] < 2 or release.wait(60)}
    )
    with Dataloader(data, 2, num_workers=1, prefetch=1).lease() as lease, ThreadPoolExecutor(1) as threads:
        leased = next(lease)
        waiting = threads.submit(next, lease)
        try:
            lease.ack(leased.positions)
            assert lease.get_state()["lease"]["unfinished"] == []
        finally:
            release.set()
        assert waiting.result().positions.tolist() == [2, 3]


def test_skipped_steps_are_those_of_the_loader() -> None:
    """With partial batches, which a lease serves, steps have other numbers than in a loader that drops them."""
    skipping = loader(20, 8, num_epochs=3).skip([0, 3, 5])
    skipped = {*range(8), *range(28, 36), *range(48, 56)}
    with skipping.lease() as lease:
        served = [position for leased in lease for position in leased.positions.tolist()]
    assert served == [position for position in range(60) if position not in skipped]
    with skipping.host_batches(1) as batches, skipping.lease(batches.get_state()) as lease:
        first = next(lease)
        expected = next(batches)["id"].tolist()
        assert (first.positions.tolist(), first.examples["id"].tolist()) == ([*range(20, 28)], expected)
        state = lease.get_state()
    with skipping.lease(state) as lease:
        assert next(lease).positions.tolist() == [*range(20, 28)]


@pytest.mark.parametrize("skipped", [[], [0], [2]])
def test_a_step_is_one_of_the_loader(skipped: list[int]) -> None:
    whole = loader(20, 8, num_epochs=3).skip(skipped)
    for step in range(len(whole)):
        with whole.lease(step) as lease, whole.host_batches(step) as batches:
            assert next(lease).examples["id"].tolist() == next(batches)["id"].tolist()
    with whole.lease(len(whole)) as lease:
        assert list(lease) == []
    with pytest.raises(StateError, match=f"start is step {len(whole) + 1}"):
        whole.lease(len(whole) + 1)


def test_a_resume_behind_skipped_steps_reads_nothing_before_it() -> None:
    whole = loader(100, 2).skip(range(5, 25))
    with whole.lease() as lease:
        lease.ack([next(lease).positions for _ in range(24)])
        state = lease.get_state()
    with whole.lease(state) as lease:
        assert [next(lease).positions.tolist(), lease._batches.step] == [[88, 89], 1]
