"""Weights that are set in mid-run: a run with a list of changes is that of an oracle that keeps the list."""

import json
import pickle
import threading
from itertools import islice
from math import gcd
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding

import loadax
from loadax import Dataloader, chain, from_arrays, mix
from loadax.errors import ArgumentError, RowIndexError, StateError
from loadax.sharding import data_parallel, plan_mesh
from tests.laws.chain_verbs import draws

SIZES = {"web": 40, "code": 25, "books": 90}
BATCH = 8


def rows_of(name: str) -> Any:
    first = sum(size for other, size in SIZES.items() if list(SIZES).index(other) < list(SIZES).index(name))
    return np.arange(first, first + SIZES[name])


def mixture(weights: Any = (2, 1, 1), stop: Any = "never", seed: int = 3) -> Any:
    return mix({name: from_arrays({"x": rows_of(name)}) for name in SIZES}, weights, seed, stop)


def listed(changes: dict[int, tuple[int, ...]], steps: int) -> list[list[int]]:
    """Rows of the steps of a run whose weights change at steps, counted position by position."""
    segments = {step * BATCH: tuple(weight // gcd(*weights) for weight in weights) for step, weights in changes.items()}
    names = list(SIZES)
    rows = [
        int(rows_of(names[part])[draw % SIZES[names[part]]])
        for part, draw in islice(draws(segments, 3, 3), steps * BATCH)
    ]
    return [rows[step * BATCH : (step + 1) * BATCH] for step in range(steps)]


def x_of(batch: Any) -> list[int]:
    return np.asarray(batch["x"]).tolist()


def test_50_random_changes_resumed_on_other_hosts_are_those_of_a_list() -> None:
    random = np.random.default_rng(5)
    made = [
        Dataloader(mixture(), BATCH, num_workers=workers, mesh=data_parallel(jax.devices()[:count]), prefetch=prefetch)
        for workers, count, prefetch in ((0, 1, 1), (2, 8, 4), (1, 2, 2))
    ]
    changes: dict[int, tuple[int, ...]] = {0: (2, 1, 1)}
    seen: dict[int, list[int]] = {}
    batches = iter(made[0])
    state = batches.get_state()
    for _ in range(50):
        for _ in range(int(random.integers(0, 4))):
            rows = x_of(next(batches))
            seen[batches.step - 1] = rows
        weights = tuple(map(int, random.integers(0, 9, 3)))
        if not any(weights):
            weights = (0, 1, 0)
        batches.set_weights(dict(zip(SIZES, weights, strict=True)))
        changes = {step: given for step, given in changes.items() if step < batches.step}
        changes[batches.step] = weights
        state = json.loads(json.dumps(batches.get_state()))
        if random.integers(3) == 0:
            batches.close()
            batches = made[int(random.integers(3))].iterate(state)
    rows = x_of(next(batches))
    seen[batches.step - 1] = rows
    state = batches.get_state()
    batches.close()
    expected = listed(changes, batches.step)
    assert [seen[step] for step in range(batches.step)] == expected
    assert state["version"] == 2
    assert len(state["weights"]) == len({*changes} - {0}) + (changes[0] != (2, 1, 1))
    changed = made[1].with_weights(state)
    for step in (batches.step - 1, 0, *random.integers(0, batches.step, 5).tolist()):
        assert changed.rows(step).tolist() == x_of(changed[step]) == expected[step]
    hosts = [Dataloader(mixture(), BATCH, shard_index=host, shard_count=4).with_weights(state) for host in range(4)]
    assert [row for host in hosts for row in host.local_rows(batches.step - 1)] == expected[-1]
    assert changed.digest(range(batches.step)) == hosts[2].digest(range(batches.step))


def test_batches_that_were_read_ahead_are_dropped_and_nothing_is_left_running() -> None:
    before = threading.active_count()
    most = 0
    with Dataloader(mixture(), BATCH, num_workers=3, prefetch=5).iterate() as batches:
        next(batches)
        for number in range(30):
            batches.set_weights([number % 2, 1 - number % 2, 0])
            assert all((x < SIZES["web"]) == bool(number % 2) for x in x_of(next(batches)))
            most = max(most, threading.active_count())
        assert most <= before + 8
    assert threading.active_count() <= before + 1


def test_changes_are_kept_or_left_by_a_state() -> None:
    loader = Dataloader(mixture({0: [2, 1, 1], 20 * BATCH: [0, 0, 1]}), BATCH)
    with loader.iterate(4) as batches:
        plain = batches.get_state()
        assert "weights" not in plain
        assert plain["version"] == 1
        batches.set_weights([1, 0, 0])
        assert batches.get_state()["weights"] == [[4 * BATCH, 1, 0, 0]]
        batches.set_weights([0, 1, 0])  # once more at the same step
        state = batches.get_state()
        assert state["weights"] == [[4 * BATCH, 0, 1, 0]]
        changed = loader.with_weights({4: [0, 1, 0]})
        batches.set_state(25)  # a step of this run
        assert x_of(next(batches)) == changed.rows(25).tolist()
        batches.set_state(plain)
        assert x_of(next(batches)) == loader.rows(4).tolist()
        assert "weights" not in batches.get_state()
        batches.set_state([state])
        assert x_of(next(batches)) == changed.rows(4).tolist()
    # What the loader changes itself comes before what the state does, and the rest of its schedule ends there.
    planned = loader.with_weights({2: [0, 0, 1], 10: [1, 1, 1]})
    later = planned.with_weights({4: [0, 1, 0]})
    assert later.rows(3).tolist() == planned.rows(3).tolist()
    assert (later.rows(25) < 65).all()
    assert planned.iterate(3).get_state()["weights"] == [[2 * BATCH, 0, 0, 1], [10 * BATCH, 1, 1, 1]]
    with pytest.raises(StateError, match="differ"):
        loader.with_weights({3: [0, 0, 1]}).iterate(loader.iterate(4).get_state())


@pytest.mark.parametrize("stop", ["first", "all"])
def test_epochs_end_where_the_changed_schedule_ends_them(stop: Any) -> None:
    loader = Dataloader(mixture(stop=stop), BATCH, num_epochs=2)
    seen = list[list[int]]()
    ends = list[int]()
    for epoch in loader.epochs():
        for batch in epoch:
            seen.append(x_of(batch))
            if len(seen) in (3, 5):
                epoch.set_weights([1, len(seen), 1])
        ends.append(epoch.step)
    by_position = {0: [2, 1, 1], 3 * BATCH: [1, 3, 1], 5 * BATCH: [1, 5, 1]}
    expected = Dataloader(mixture(by_position, stop), BATCH, num_epochs=2)
    assert seen == [expected.rows(step).tolist() for step in range(len(expected))]
    assert ends == [expected.steps_per_epoch, len(expected)]
    changed = loader.with_weights({3: [1, 3, 1], 5: [1, 5, 1]})
    assert changed.digest() == expected.digest()
    assert [len(epoch) for epoch in changed.epochs()] == [expected.steps_per_epoch] * 2


def test_phases_skips_pickles_and_hosts_have_the_changes() -> None:
    first = Dataloader(mixture(stop="first"), BATCH)
    run = chain([first, Dataloader(mixture(seed=4), 2 * BATCH)])
    start = run.first_steps[1]
    with run.iterate(start) as batches:
        batches.set_weights([0, 0, 1])  # before the second loader has begun
        state = batches.get_state()
        assert [each["version"] for each in state["phases"]] == [1, 2]
        assert min(x_of(next(batches))) >= 65
    with run.iterate(state) as batches:
        expected = x_of(next(batches))
    assert min(expected) >= 65
    changed = run.with_weights(state)
    assert changed.rows(start).tolist() == expected
    assert chain([changed.loaders[0], changed.loaders[1]]).rows(start).tolist() == expected
    assert pickle.loads(pickle.dumps(changed)).rows(start).tolist() == expected
    earlier = run.with_weights({0: [9, 1, 1], 3: [1, 9, 1]})
    assert earlier.first_steps != run.first_steps
    assert earlier.rows(earlier.first_steps[1]).tolist() == run.rows(start).tolist()
    skipping = Dataloader(mixture(), BATCH).skip(range(2, 5)).with_weights({2: [0, 1, 0]})
    assert (
        skipping.rows(2).tolist() == Dataloader(mixture({0: [2, 1, 1], 5 * BATCH: [0, 1, 0]}), BATCH).rows(5).tolist()
    )
    assert len(first.skip([len(first) - 1]).with_weights({1: [0, 1, 0]})) < len(first)
    with first.host_batches() as host:
        next(host)
        host.set_weights([0, 1, 0])
        assert x_of(next(host)) == first.with_weights({1: [0, 1, 0]}).rows(1).tolist()


def test_moves_and_warmups_keep_the_changes() -> None:
    loader = Dataloader(mixture(), BATCH)
    changed = loader.with_weights({2: [0, 1, 1], 3: [1, 1, 0]})
    with loader.iterate() as batches:
        next(batches), next(batches)
        batches.set_weights([0, 1, 1])
        batches.move_to(Mesh(np.array(jax.devices()[:2]), "data"))
        assert x_of(next(batches)) == changed.rows(2).tolist()
        batches.set_weights([1, 1, 0])
        state = batches.get_state()
        batch = next(batches)
        assert batch["x"].sharding.num_devices == 2
        assert x_of(batch) == changed.rows(3).tolist()
    loader.warmup(state)
    with loader.iterate(3) as batches:
        assert x_of(next(batches)) == loader.rows(3).tolist()
    loader.warmup(state)
    with loader.iterate(state) as batches:
        assert x_of(next(batches)) == changed.rows(3).tolist()


def test_weights_after_1100_moves_keep_mesh_and_partition() -> None:
    """Each move once wrapped the last one: memory grew, and 1,000 moves were too deep."""
    loader = Dataloader(mixture(), BATCH, num_workers=1, prefetch=1)
    meshes = [Mesh(np.array(jax.devices()[:count]), "data") for count in (8, 2)]
    with loader.iterate() as batches:
        batches.move_to(meshes[0], jax.P())
        for turn in range(1100):
            batches.move_to(meshes[turn % 2])
        batches.set_weights([0, 1, 1])
        batch = next(batches)
        expected = loader.with_weights(batches.get_state()).rows(0).tolist()
    assert x_of(batch) == expected
    assert batch["x"].sharding == NamedSharding(meshes[1], jax.P())


def test_what_can_not_be_set_changes_nothing() -> None:
    loader = Dataloader(mixture(stop="all"), BATCH)
    with loader.iterate() as batches:
        next(batches)
        for weights, message in (
            ([1, 2], "weights has 2 numbers for 3 datasets"),
            ({"web": 1}, "weights are for"),
            ([0, 0, 0], "weights are all zero"),
            ([1, -1, 1], r"weights\['code'\]=-1"),
            ([1, 1, 0], "the weights never draw all of 'books'"),
        ):
            with pytest.raises(ArgumentError, match=message):
                batches.set_weights(weights)
        assert x_of(next(batches)) == loader.rows(1).tolist()
        state = batches.get_state()
    shuffled = Dataloader(np.arange(64), BATCH)
    with shuffled.iterate() as batches, pytest.raises(ArgumentError, match="this run reads 64 rows; make mix"):
        batches.set_weights([1])
    with pytest.raises(ArgumentError, match="pass a state of get_state"):
        loader.with_weights({})
    with pytest.raises(RowIndexError, match="step 99"):
        loader.with_weights({99: [1, 1, 1]})
    for wrong in (3, [[0, 1]], [[8, 1, 1, -1]], [[8, 1, 1, 1], [8, 1, 1, 1]], [[8, 0, 0, 0]], [["8", 1, 1, 1]]):
        with pytest.raises(StateError, match=r"the state's 'weights' is .*no weights of this dataset"):
            loader.iterate({**state, "weights": wrong})
    buckets = loadax.Buckets("tokens", {4: BATCH})
    parts = [[{"tokens": np.ones(1 + row % 4)} for row in range(64)]] * 2
    bucketed = Dataloader(mix([loadax.from_source(part) for part in parts], [1, 1]), buckets)
    with bucketed.iterate() as batches, pytest.raises(ArgumentError, match="pass a number for batch_size"):
        batches.set_weights([1, 2])


def test_state_with_weights_is_only_read_where_they_are_known() -> None:
    loader = Dataloader(mixture(), BATCH)
    with loader.iterate(2) as batches:
        batches.set_weights([0, 1, 1])
        state = batches.get_state()
    with pytest.raises(StateError, match=r"pass it to the loader of loader\.with_weights\(state\)"):
        loader.lease(state)
    with loader.with_weights(state).lease(state) as lease:
        assert next(lease).examples["x"].tolist() == loader.with_weights(state).rows(2).tolist()


def test_planned_hosts_read_the_changed_steps() -> None:
    loader = Dataloader(mixture(), 64, mesh=plan_mesh({"data": 64}, hosts=64)).with_weights({2: [0, 1, 1]})
    assert loader.check_plan(steps=4).steps == 4


def test_weights_of_streams_are_set_too() -> None:
    def lane(lane: int, lanes: int) -> Any:
        return ({"x": row} for row in range(lane, 10**6, lanes))

    streams = [loadax.from_stream(lane, lanes=4).map(lambda row, add=add: {"x": row["x"] + add}) for add in (0, 10**7)]
    loader = Dataloader(mix(streams, [1, 1], stop="never"), BATCH)
    expected = Dataloader(mix(streams, {0: [1, 1], 2 * BATCH: [1, 3], 3 * BATCH: [3, 1]}, stop="never"), BATCH)
    with loader.iterate() as batches, expected.iterate() as others:
        for step in range(5):
            if step == 2:
                batches.set_weights([1, 3])
            if step == 3:
                batches.set_weights([3, 1])
                batches.set_state(batches.get_state())
            assert x_of(next(batches)) == x_of(next(others))
