"""Laws of large runs: batches are those of the lists in `large_runs.py`.

They are so whatever is chosen, split, packed, shuffled, mixed and scheduled, on any number of hosts and from any step
on. Each record comes when it should, and nothing comes from the other side of a split.
"""

import json
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings, strategies as st
from jax.sharding import Mesh, PartitionSpec as P

from loadax.errors import StateError
from tests.laws.large_runs import (
    LARGEST,
    LENGTH,
    Example,
    Run,
    runs,
    scheduled,
    whole_rows,
)
from tests.limits import examples
from tests.loader.oracle import assert_placed, mesh_of

pytestmark = pytest.mark.filterwarnings("ignore:split\\(")  # runs of few rows have empty parts

SOME = 8  # steps of a run that is longer
OTHERS = 50_000  # from which token on they are of another part
SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
LEAVES = ("tokens", "segment_ids", "positions", "loss_mask")
BY_SEQUENCE = {**dict.fromkeys(LEAVES, P("data", "seq")), "key": P("data"), "mask": P("data")}


def assert_equal(batch: Any, expected: Example) -> None:
    assert sorted(batch) == sorted(expected)
    for name, values in expected.items():
        assert (batch[name].dtype, batch[name].shape) == (values.dtype, values.shape), name
        assert batch[name].tobytes() == values.tobytes(), name


def partition_of(run: Run) -> dict[str, P]:
    return {name: spec for name, spec in BY_SEQUENCE.items() if name != "mask" or run.remainder == "pad"}


@settings(max_examples=examples(60), deadline=None, suppress_health_check=SLOW)
@given(runs())
def test_the_parts_of_any_number_of_hosts_are_one_batch(run: Run) -> None:
    batches = run.batches()
    loaders = {
        count: [run.loader(shard_index=index, shard_count=count) for index in range(count)] for count in (1, 2, 4)
    }
    if not run.endless:
        assert len(loaders[1][0]) == len(batches)
    for step, visits in enumerate(batches[:SOME]):
        expected = run.values(step, visits)
        for hosts in loaders.values():
            assert_equal(
                jax.tree.map(lambda *leaves: np.concatenate(leaves), *(host.host_batch(step) for host in hosts)),
                expected,
            )
            assert np.concatenate([host.local_rows(step) for host in hosts]).tolist() == run.ids(visits)
            assert all(host.rows(step).tolist() == run.ids(visits) for host in hosts)


@settings(max_examples=examples(12), deadline=None, suppress_health_check=SLOW)
@given(runs(), st.sampled_from([(8, 1), (4, 2), (2, 4)]), st.integers(0, 2))
def test_what_is_placed_is_that_batch(run: Run, shape: tuple[int, int], workers: int) -> None:
    mesh = mesh_of({"data": shape[0], "seq": shape[1]})
    loader = run.loader(mesh=mesh, partition=partition_of(run), num_workers=workers)
    batches = run.batches()
    with iter(loader) as placed:
        for step, visits in enumerate(batches[:SOME]):
            assert_placed(next(placed), run.values(step, visits), mesh)
        if len(batches) <= SOME and not run.endless:
            assert list(placed) == []
    assert_placed(loader[len(batches[:SOME]) - 1], run.values(step, visits), mesh)


def saved(run: Run, step: int, **options: Any) -> tuple[Any, Any]:
    """A run up to a step, and where it was then, through JSON."""
    loader = run.loader(**options)
    with loader.iterate(step) as batches:
        return loader, json.loads(json.dumps(batches.get_state()))


def part_of_a_batch(batch: Example, index: int, count: int) -> Example:
    return {name: np.split(leaf, count)[index] for name, leaf in batch.items()}


@settings(max_examples=examples(30), deadline=None, suppress_health_check=SLOW)
@given(runs(), st.sampled_from([(1, 0), (2, 1), (4, 2)]), st.data())
def test_a_state_goes_on_with_the_batches_of_the_straight_run(
    run: Run, share: tuple[int, int], data: st.DataObject
) -> None:
    batches = run.batches()
    step = data.draw(st.integers(0, min(len(batches), SOME) - 1))
    count, index = share
    _, state = saved(run, step)
    # On another mesh, and as one of several hosts, each with a mesh of its own.
    meshes = mesh_of({"data": 4, "seq": 2}), mesh_of({"data": 8})
    own = Mesh(np.array(jax.devices()[: 8 // count]), ("data",))
    loaders = [
        run.loader(mesh=meshes[0], partition=partition_of(run)),
        run.loader(mesh=own, shard_index=index, shard_count=count),
    ]
    for loader, parts_of_it in zip(loaders, ((0, 1), (index, count)), strict=True):
        with loader.iterate(state) as resumed:
            assert resumed.step == step
            for later in range(step, min(len(batches), step + 4)):
                assert_placed(next(resumed), part_of_a_batch(run.values(later, batches[later]), *parts_of_it))
            assert resumed.get_state() == saved(run, resumed.step, mesh=meshes[1])[1]


@settings(max_examples=examples(30), deadline=None, suppress_health_check=SLOW)
@given(runs(), st.data())
def test_what_is_skipped_may_be_decided_after_the_state(run: Run, data: st.DataObject) -> None:
    batches = run.batches()
    left = list(range(min(len(batches), 2 * SOME)))
    assume(len(left) > 2)
    early = data.draw(st.sets(st.sampled_from(left), max_size=2))
    left = [step for step in left if step not in early]
    done = data.draw(st.integers(0, len(left) - 1))
    loader = run.loader().skip(early) if early else run.loader()
    with loader.iterate(done) as some:
        state = json.loads(json.dumps(some.get_state()))
    late = data.draw(st.sets(st.integers(done, len(left) - 1), max_size=3))
    assume(done + len(late) < len(left))
    shorter = loader.skip(late) if late else loader
    remain = [number for place, number in enumerate(left) if place >= done and place not in late]
    with shorter.iterate(state) as resumed:
        assert resumed.step == done
        for number in remain[:4]:
            assert_placed(next(resumed), run.values(number, batches[number]))


@st.composite
def other_futures(choose: st.DrawFn, run: Run, step: int, position: int) -> Run:
    """The run, with other weights from a position of the mixture on, and other sizes and lengths behind a step."""
    here = step if run.by == "step" else position
    past = {start: each for start, each in run.weights.items() if start < max(here, 1)}
    start = max(here, 1) + choose(st.integers(0, 20 if run.by == "example" else 3))
    run = run._replace(weights={**past, start: choose(st.tuples(*[st.integers(1, 4)] * len(run.parts)))})
    assume(run.remainder == "pad" or len(run.epoch(0)) >= LARGEST)
    return choose(scheduled(run, step))


@settings(max_examples=examples(40), deadline=None, suppress_health_check=SLOW)
@given(runs(("first", "all", "never")), st.data())
def test_a_state_goes_on_into_another_future(run: Run, data: st.DataObject) -> None:
    batches = run.batches()
    step = data.draw(st.integers(0, min(len(batches), SOME) - 1))
    before, state = saved(run, step)
    begins = sum(len(run.epoch(number)) for number in range(state["epoch"]))
    other = data.draw(other_futures(run, step, begins + state["position"]))
    expected = other.batches()
    loader = other.loader()
    if sum(len(other.epoch(number)) for number in range(state["epoch"])) != begins:
        # The epoch before this one would have gone on.
        with pytest.raises(StateError, match="the state's 'order' is"):
            loader.iterate(state)
        return
    # What was handed out is what the other run hands out up to there.
    assert expected[:step] == batches[:step]
    for past in range(max(0, step - 2), step):
        assert_equal(loader.host_batch(past), before.host_batch(past))
    if step < len(expected):
        with loader.iterate(state) as resumed:
            assert resumed.step == step
            for later in range(step, min(len(expected), step + 4)):
                assert_placed(next(resumed), other.values(later, expected[later]))


def test_a_future_that_moves_the_end_of_the_past_is_refused() -> None:
    """An epoch ended before example 32, since there the weights changed and its first part would have begun anew.

    Else it would end later.
    """
    small, large = whole_rows(16, 1), whole_rows(200, OTHERS)
    run = Run(
        {"small": small, "large": large}, {0: 8}, {0: LENGTH}, 2, "drop", {0: (1, 1), 32: (1, 0)}, seed=2, stop="first"
    )
    other = run._replace(weights={0: (1, 1)})
    assert [len(each.epoch(0)) for each in (run, other)] == [32, 33]
    _, state = saved(run, 4)
    assert (state["epoch"], state["position"]) == (1, 0)
    with pytest.raises(StateError, match="the state's 'order' is"):
        other.loader().iterate(state)
    later = run._replace(weights={0: (1, 1), 32: (1, 0), 40: (1, 1)})
    with later.loader().iterate(state) as resumed:
        assert_placed(next(resumed), later.values(4, later.batches()[4]))


@settings(max_examples=examples(40), deadline=None, suppress_health_check=SLOW)
@given(runs(), st.data())
def test_trace_and_find_tell_the_records_of_a_step(run: Run, data: st.DataObject) -> None:
    count = min(len(run.batches()), 2 * SOME)
    gone = data.draw(st.sets(st.integers(0, count - 1), max_size=min(3, count - 1)))
    left = [visits for number, visits in enumerate(run.batches()[:count]) if number not in gone]
    loader = run.loader(shard_index=0, shard_count=1)
    loader = loader.skip(gone) if gone else loader
    step = data.draw(st.sampled_from(range(len(left))))
    for record, visit in zip(loader.trace(step), left[step], strict=True):
        assert record.padding == (visit is None)
        if visit is not None:
            assert (record.dataset, record.row, record.epoch) == visit[:3]
            assert (step, record.position) in loader.find(record.row, record.dataset or None, steps=step)


@settings(max_examples=examples(30), deadline=None, suppress_health_check=SLOW)
@given(runs(), st.sampled_from([2, 4]), st.data())
def test_digest_is_the_same_on_every_host(run: Run, count: int, data: st.DataObject) -> None:
    steps = min(len(run.batches()), SOME)
    gone = data.draw(st.sets(st.integers(0, steps - 1), max_size=min(2, steps - 1)))

    def digest(index: int, hosts: int) -> str:
        loader = run.loader(shard_index=index, shard_count=hosts)
        return (loader.skip(gone) if gone else loader).digest(range(steps - len(gone)))

    assert {digest(0, 1)} == {digest(index, count) for index in range(count)}
