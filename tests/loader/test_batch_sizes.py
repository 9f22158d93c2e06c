"""Batch sizes that a schedule changes: the same positions in the same order, in other portions."""

import ast
import re
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from jax.sharding import PartitionSpec as P

from loadax import Dataloader, chain, concat, from_arrays, from_source, mix
from loadax.errors import ArgumentError, ClosedError, PartitionError, StateError
from loadax.plan.batches import BatchPlan, Remainder
from loadax.plan.sequential import Sequential
from loadax.plan.shuffle import Shuffled
from loadax.protocols import Order
from loadax.sharding import data_parallel
from tests.loader.oracle import ColumnSource, mesh_of

ROWS = from_arrays({"x": np.arange(500, dtype=np.int32)})
TOKENS = {"tokens": np.arange(400 * 16, dtype=np.int32).reshape(400, 16), "weight": np.arange(400, dtype=np.float32)}


def by_hand(
    size: int, schedule: list[tuple[int, int]], epochs: int, remainder: Remainder
) -> list[tuple[int, int, int, int]]:
    """(epoch, first position, rows that are there, batch size) of every step."""
    steps: list[tuple[int, int, int, int]] = []
    for epoch in range(epochs):
        position = 0
        while position < size:
            batch_size = [rows for first, rows in schedule if first <= len(steps)][-1]
            there = min(batch_size, size - position)
            before = steps[-1][3] if position else batch_size  # what is too little for the batches so far is left over
            if size - position < max(batch_size, before) and remainder == "drop":
                break
            steps.append((epoch, position, there, batch_size))
            position += there
    return steps


@st.composite
def schedules(choose: st.DrawFn) -> list[tuple[int, int]]:
    firsts = [0, *sorted(choose(st.sets(st.integers(1, 40), max_size=3)))]
    return [(first, choose(st.integers(1, 20))) for first in firsts]


def plan_or_refused(
    order: Order, schedule: list[tuple[int, int]], epochs: int, remainder: Remainder
) -> BatchPlan | None:
    """None where a size is refused because no step has it."""
    try:
        return BatchPlan(order, tuple(schedule), epochs, remainder)
    except ArgumentError:
        return None


@settings(deadline=None)
@given(st.integers(20, 60), schedules(), st.integers(1, 4), st.sampled_from(["drop", "pad"]))
def test_a_plan_is_what_a_loop_over_steps_gives(
    size: int, schedule: list[tuple[int, int]], epochs: int, remainder: Remainder
) -> None:
    expected = by_hand(size, schedule, epochs, remainder)
    order = Shuffled(Sequential(size), 3)
    # A size that no step has is refused; without it the steps are the same.
    plan = next(
        plan
        for count in range(len(schedule), 0, -1)
        if (plan := plan_or_refused(order, schedule[:count], epochs, remainder))
    )
    reached = plan.schedule
    assert all(first >= len(expected) for first, _ in schedule[len(reached) :])
    assert plan.num_steps == len(expected)
    for step, (epoch, position, there, batch_size) in enumerate(expected):
        assert plan.position_of_step(step) == (epoch, position)
        assert plan.step_at(epoch, position) == (step, 0)
        assert plan.valid(step) == there
        rows = order.visits(np.full(there, epoch), np.arange(position, position + there)).rows.tolist()
        assert plan.visits(step).rows.tolist() == rows + [-1] * (batch_size - there)
        assert step in plan.epoch_steps(epoch)
    assert [len(plan.epoch_steps(epoch)) for epoch in range(epochs)] == np.bincount(
        [epoch for epoch, *_ in expected], minlength=epochs
    ).tolist()
    for (first, rows), end in zip(reached, [*(first for first, _ in reached[1:]), len(expected)], strict=True):
        assert [plan.segment_of(step)[0].batch_size for step in range(first, end)] == [rows] * (end - first)


@settings(deadline=None)
@given(schedules(), st.integers(0, 5000))
def test_an_endless_plan_goes_on_with_the_last_size(schedule: list[tuple[int, int]], step: int) -> None:
    plan = BatchPlan(Sequential(50), tuple(schedule), None, "drop")
    assert plan.num_steps is None
    epoch, position = plan.position_of_step(step)
    assert plan.step_at(epoch, position) == (step, 0)
    later = schedule[-1][0] + 100 + step
    assert plan.segment_of(later)[0].batch_size == schedule[-1][1]
    assert plan.position_of_step(later + 50 // schedule[-1][1]) == (
        plan.position_of_step(later)[0] + 1,
        plan.position_of_step(later)[1],
    )


def test_a_run_has_batches_of_each_size() -> None:
    loader = Dataloader(ROWS.shuffle(0), batch_size={0: 8, 3: 32, 5: 16}, num_epochs=2, mesh=mesh_of({"data": 8}))
    with iter(loader) as batches:
        met = [(np.asarray(batch["x"]), batches.epoch) for batch in batches]
        assert batches.stats().steps == len(loader)
    assert [len(rows) for rows, _ in met] == [8] * 3 + [32] * 2 + [16] * (len(loader) - 5)
    for step, (rows, _) in enumerate(met):
        np.testing.assert_array_equal(rows, loader.rows(step))
        np.testing.assert_array_equal(np.asarray(loader[step]["x"]), rows)
        np.testing.assert_array_equal(loader.host_batch(step)["x"], rows)
    first = np.concatenate([rows for step, (rows, _) in enumerate(met) if step < loader.steps_per_epoch])
    assert len(set(first.tolist())) == len(first) == 8 * 3 + 32 * 2 + 16 * 25
    assert repr(loader).endswith("batch_size={0: 8, 3: 32, 5: 16}, 61 steps)")


def test_specs_tell_every_shape_before_the_run() -> None:
    loader = Dataloader(ROWS, batch_size={0: 8, 3: 32}, mesh=mesh_of({"data": 8}))
    assert {first: spec["x"].shape for first, spec in loader.specs.items()} == {0: (8,), 3: (32,)}
    assert loader.spec["x"] == loader.specs[0]["x"]
    compiled = {
        first: jax.jit(lambda batch: batch["x"].sum()).lower(spec).compile() for first, spec in loader.specs.items()
    }
    for step, batch in enumerate(loader):
        assert int(compiled[3 if step >= 3 else 0](batch)) == loader.rows(step).sum()
    assert list(Dataloader(ROWS, batch_size=8).specs) == [0]


def test_epochs_have_as_many_steps_as_they_have() -> None:
    loader = Dataloader(ROWS, batch_size={0: 80, 3: 40, 14: 240}, num_epochs=3)
    lengths = [(epoch.number, len(epoch), sum(1 for _ in epoch)) for epoch in loader.epochs()]
    assert [number for number, *_ in lengths] == [0, 1, 2]
    assert all(promised == met for _, promised, met in lengths)
    assert sum(met for *_, met in lengths) == len(loader)
    assert loader.steps_per_epoch == lengths[0][1] == 3 + 6


def test_a_state_inside_a_batch_of_the_schedule() -> None:
    with Dataloader(ROWS, batch_size=8).iterate(4) as batches:
        saved = batches.get_state()
    with pytest.raises(StateError, match="'position' is 32, inside a batch of batch_size=48"):
        Dataloader(ROWS, batch_size={0: 8, 1: 48}).iterate(saved)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, r"batch_size={}: a schedule ascends from step 0 on, like {0: 256, 10_000: 1024}"),
        ({5: 8}, "a schedule ascends from step 0"),
        ({0: 8, 5: 16, 3: 8}, "a schedule ascends from step 0"),
        ({0: 8, 5: 0}, "batch_size=0: a batch needs at least one row"),
        ({0: 8, 5: 1.5}, r"batch_size\[5\]=1.5: pass an int"),
        ({0: 8, "5": 16}, "a step of batch_size='5': pass an int"),
        ({0: 8, 5: 1000}, "batch_size=1000 but the dataset has only 500 rows"),
        (
            {0: 8, 500: 16},
            "a batch size or length is scheduled from step 500 on, but there are only 62 steps; leave it out",
        ),
    ],
)
def test_sizes_that_are_refused(given: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        Dataloader(ROWS, batch_size=given)


@pytest.mark.parametrize(
    ("data", "seq_len", "message"),
    [
        (TOKENS, 0, r"seq_len=0: the longest leaf has 16 entries .*; pass 1 to 16"),
        (TOKENS, {0: 4, 3: 20}, "seq_len=20: the longest leaf has 16 entries"),
        (TOKENS, {1: 4}, "seq_len={1: 4}: a schedule ascends from step 0"),
        (TOKENS, "4", "seq_len='4': pass an int"),
        (TOKENS, {0: 4, 1000: 8}, "a batch size or length is scheduled from step 1000 on, but there are only 50 steps"),
        ({"x": np.arange(8)}, 3, "the longest leaf has 0 entries"),
        (TOKENS, {"token": 4}, "seq_len: there is no leaf 'token'; did you mean 'tokens'"),
        (TOKENS, {"tokens": 20}, "seq_len=20: leaf 'tokens' has 16 entries .*; pass 1 to 16"),
        (TOKENS, {"weight": 4}, "leaf 'weight' has no entries to crop; name a leaf"),
        (TOKENS, {"tokens": {3: 4}}, r"seq_len\['tokens'\]={3: 4}: a schedule ascends from step 0"),
        (TOKENS, {"tokens": 4, 0: 4}, "pass lengths by step, {0: 512}, or by leaf, {'tokens': 512}"),
        (
            {"a": np.zeros((8, 9)), "b": np.zeros((8, 9))},
            {"a": 4, "b": 5},
            "'b' has 9 entries, as a leaf before it that is cropped to 4; .*name one of them",
        ),
    ],
)
def test_lengths_that_are_refused(data: Any, seq_len: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        Dataloader(data, batch_size=8, seq_len=seq_len)


def patches(mapped: bool) -> Any:
    """Rows of tokens[16] with segments[16], patches[24, 3] and a small vector."""
    rows = np.arange(64)
    data = from_arrays(
        {
            "text": {"tokens": rows[:, None] + np.arange(16), "segments": np.ones((64, 16), np.int32)},
            "patches": np.arange(64 * 24 * 3).reshape(64, 24, 3),
            "vector": np.zeros((64, 3)),
        }
    ).shuffle(3)
    return data.map(lambda row: row) if mapped else data


@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize("workers", [{"num_workers": 0}, {"num_workers": 2}])
def test_seq_len_crops_the_leaves_of_the_named_length(mapped: bool, workers: Any) -> None:
    loader = Dataloader(patches(mapped), 8, seq_len={"text.tokens": {0: 4, 3: 16}, "patches": 20}, **workers)
    whole = Dataloader(patches(mapped), 8)
    for step, batch in enumerate(loader):
        length = 4 if step < 3 else 16
        expected = whole.host_batch(step)
        for name in ("tokens", "segments"):
            assert np.array_equal(batch["text"][name], expected["text"][name][:, :length])
        assert np.array_equal(batch["patches"], expected["patches"][:, :20])
        assert batch["vector"].shape == (8, 3)
        assert np.array_equal(loader.host_batch(step)["text"]["tokens"], batch["text"]["tokens"])
    assert [*loader.specs] == [0, 3]


def test_advice_on_sequences_of_several_lengths_works() -> None:
    for lengths in (8, {0: 8, 2: 12}):
        with pytest.raises(ArgumentError, match=r"'patches' has 24 entries, 'text.segments' has 16 entries") as caught:
            Dataloader(patches(False), 8, seq_len=lengths)
        advice = re.search(r"seq_len=(\{'text.*\}) or, as in earlier releases, seq_len=(\{.*\})$", str(caught.value))
        assert advice is not None
        by_text, by_patches = map(ast.literal_eval, advice.groups())
        assert Dataloader(patches(False), 8, seq_len=by_text).spec["text"]["tokens"].shape == (8, 8)
        loader = Dataloader(patches(False), 8, seq_len=by_patches)
        assert (loader.spec["patches"].shape, loader.spec["text"]["tokens"].shape) == ((8, 8, 3), (8, 16))
    only = Dataloader(patches(False), 8, seq_len=20)  # no other leaf is as long
    assert (only.spec["patches"].shape, only.spec["text"]["tokens"].shape) == ((8, 20, 3), (8, 16))
    with Dataloader(patches(False), 8, seq_len={"patches": 20}).iterate(2) as named, only.iterate(2) as longest:
        assert named.get_state() == longest.get_state()


def test_every_size_must_fit_the_mesh_and_the_shards() -> None:
    with pytest.raises(PartitionError, match=r"dim 0 has 12 rows, but P.'data'. splits it into 8"):
        Dataloader(ROWS, batch_size={0: 8, 3: 12}, mesh=mesh_of({"data": 8}))
    with pytest.raises(ArgumentError, match="batch_size=9 can't be split into shard_count=2 equal parts"):
        Dataloader(ROWS, batch_size={0: 8, 3: 9}, shard_index=0, shard_count=2)
    halves = [Dataloader(ROWS, batch_size={0: 8, 3: 16}, shard_index=index, shard_count=2) for index in range(2)]
    for step in (2, 3):
        parts = np.concatenate([half.host_batch(step)["x"] for half in halves])
        np.testing.assert_array_equal(parts, halves[0].rows(step))


@pytest.mark.parametrize("door", ["__iter__", "iterate", "warmup", "host_batches", "epochs"])
def test_size_of_a_later_step_that_the_current_mesh_cannot_split_is_told_before_the_first_batch(door: str) -> None:
    """The mesh may be set after the loader is made, which can't know it."""
    loader = Dataloader(ROWS, batch_size={0: 8, 3: 12}, num_workers=0)
    for run in (loader, loader.skip(1), chain([Dataloader(ROWS, 8), loader])):
        begin = getattr(run, door)
        with pytest.raises(PartitionError, match=r"dim 0 has 12 rows, but P.'data'. splits it into 8"):
            next(begin()) if door == "epochs" else begin()
    four = data_parallel(jax.devices()[:4])
    with jax.set_mesh(four), loader.iterate() as batches:
        assert [len(batch["x"]) for batch in batches][:4] == [8, 8, 8, 12]


@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize("axes", [{"data": 8, "sequence": 1}, {"data": 2, "sequence": 4}])
def test_sequences_grow_by_step(mapped: bool, axes: dict[str, int]) -> None:
    data = from_arrays(TOKENS).shuffle(3)
    if mapped:
        data = data.map_batch(lambda batch: {**batch, "tokens": batch["tokens"] + 1})
    loader = Dataloader(
        data,
        batch_size={0: 8, 6: 16},
        seq_len={0: 4, 3: 8, 9: 16},
        partition={"tokens": P("data", "sequence"), "weight": P("data")},
        mesh=mesh_of(axes),
    )
    shapes = {0: (8, 4), 3: (8, 8), 6: (16, 8), 9: (16, 16)}
    assert {first: spec["tokens"].shape for first, spec in loader.specs.items()} == shapes
    batches = list(loader)
    for step in range(len(loader)):
        batch, again = batches[step], loader[step]
        rows, length = shapes[max(first for first in shapes if first <= step)]
        expected = TOKENS["tokens"][loader.rows(step)][:, :length] + mapped
        np.testing.assert_array_equal(np.asarray(batch["tokens"]), expected)
        assert batch["weight"].shape == (rows,)
        np.testing.assert_array_equal(loader.host_batch(step)["tokens"], expected)
        np.testing.assert_array_equal(np.asarray(again["tokens"]), expected)


def test_only_the_columns_that_are_left_are_read() -> None:
    source = ColumnSource(TOKENS)
    loader = Dataloader(from_source(source), batch_size=8, seq_len=4, mesh=mesh_of({"data": 8}))
    for _ in loader:
        pass
    assert source.whole_reads == 0
    tokens = source.counts[0]
    assert (tokens[:, :4] == 1).all()
    assert (tokens[:, 4:] == 0).all()


def test_a_closed_iterator_stays_closed_at_the_seam() -> None:
    batches = iter(Dataloader(ROWS, batch_size={0: 8, 2: 16}))
    next(batches)
    next(batches)
    batches.close()
    for _ in range(2):
        with pytest.raises(ClosedError, match="this iterator is closed"):
            next(batches)


def test_rows_are_left_over_only_where_an_epoch_ends() -> None:
    assert len(Dataloader(ROWS[:100], batch_size={0: 30, 2: 20}, remainder="error")) == 4
    assert len(Dataloader(ROWS[:100], batch_size={0: 25, 4: 50}, num_epochs=2, remainder="error")) == 6
    for schedule, epochs, rows, over in (
        ({0: 30, 2: 30}, 1, 40, 10),
        ({0: 50, 1: 25, 4: 40}, 3, 75, 35),
        ({0: 30, 2: 20, 5: 30}, 2, 80, 20),
    ):
        with pytest.raises(
            ArgumentError,
            match=f"remainder='error': of {rows} rows, {over} are left over|remainder='error': of 100 rows",
        ):
            Dataloader(ROWS[:100], batch_size=schedule, num_epochs=epochs, remainder="error")


@pytest.mark.parametrize("join", [concat, lambda parts: mix(parts, (1, 1), stop="all")])
def test_lengths_leave_the_maps_of_parts_their_epochs(join: Any) -> None:
    def noisy(example: Any, rng: np.random.Generator) -> Any:
        return {**example, "tokens": example["tokens"] + rng.integers(1 << 16, dtype=np.int32)}

    data = join([from_arrays(TOKENS).map(noisy, rng=True, seed=seed) for seed in range(2)])
    whole, cut = (
        Dataloader(data, batch_size=8, num_epochs=2, seq_len=length, mesh=mesh_of({"data": 8})) for length in (None, 4)
    )
    for step in (0, whole.steps_per_epoch, len(whole) - 1):
        one, other = whole[step], cut[step]
        np.testing.assert_array_equal(np.asarray(one["tokens"])[:, :4], np.asarray(other["tokens"]))
