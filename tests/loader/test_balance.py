"""`Dataloader(balance=)`: the rows of a step stay, their places follow costs, and nothing follows the mesh."""

from typing import Any

import jax
import numpy as np
import pytest

from loadax import Dataloader, concat, from_arrays, from_documents, from_stream, mix
from loadax.errors import ArgumentError
from loadax.sharding import data_parallel, plan_mesh
from tests.plan.test_balance import dearest

COSTS = np.random.default_rng(3).lognormal(0, 0.5, 1000)
DATA = from_arrays({"x": np.arange(1000)}).shuffle(seed=5)
PARTS = (2, 4, 8)


def packed() -> Any:
    """Documents of very different lengths, packed."""
    lengths = np.random.default_rng(0).lognormal(3, 1.2, 3_000).astype(int).clip(1, 256)
    flat = np.repeat(np.arange(3_000), lengths)
    return from_documents(flat, np.cumsum([0, *lengths])).pack(256).shuffle(seed=0)


def attention(batch: Any) -> Any:
    """Sum of the squared segment lengths of each row of a batch, counted entry by entry."""
    return np.array([sum((ids == number).sum() ** 2 for number in range(1, ids.max() + 1)) for ids in batch])


@pytest.mark.parametrize(
    "balance", [COSTS, COSTS.tolist(), lambda rows: COSTS[rows]], ids=["array", "list", "function"]
)
@pytest.mark.parametrize("remainder", ["drop", "pad"])
def test_steps_keep_their_rows_and_balance_their_costs(balance: Any, remainder: Any) -> None:
    plain = Dataloader(DATA, 128, num_epochs=2, remainder=remainder)
    loader = Dataloader(DATA, 128, num_epochs=2, remainder=remainder, balance=balance)
    for step in range(len(plain)):
        rows, before = loader.rows(step), plain.rows(step)
        assert sorted(rows) == sorted(before)
        real = np.flatnonzero(rows >= 0)
        if (before >= 0).all():
            bounds = [max(1.0, COSTS[rows].max() / COSTS[rows].sum() * parts) for parts in PARTS]
            assert all(dearest(COSTS[rows], parts) < 1.05 * bound for parts, bound in zip(PARTS, bounds, strict=True))
            assert dearest(COSTS[before], 8) > 1.02
        assert loader[step]["x"][rows >= 0].tolist() == rows[rows >= 0].tolist()
        assert loader.find(int(rows[real[7]]), steps=range(step, step + 1))[0].position == real[7]


def test_packed_rows_are_balanced_by_attention_on_any_mesh() -> None:
    loader = Dataloader(packed(), 64, balance="attention", mesh=data_parallel())
    batches = [np.asarray(batch["segment_ids"]) for batch in loader]
    for batch in batches:
        assert dearest(attention(batch), 8) < 1.03
    plain = Dataloader(packed(), 64)
    assert np.mean([dearest(attention(np.asarray(batch["segment_ids"])), 8) for batch in plain]) > 1.1
    other = Dataloader(packed(), 64, balance="attention", mesh=data_parallel(jax.devices()[:2]))
    for batch, again in zip(batches, other, strict=True):
        assert (batch == np.asarray(again["segment_ids"])).all()
    local = [loader.rows(1)[host * 16 : host * 16 + 16].tolist() for host in range(4)]
    planned = [Dataloader(packed(), 64, balance="attention", shard_index=host, shard_count=4) for host in range(4)]
    assert [each.local_rows(1).tolist() for each in planned] == local


def test_run_resumes_and_skips_and_mixes() -> None:
    loader = Dataloader(DATA, 128, balance=COSTS)
    with iter(loader) as batches:
        next(batches)
        state = batches.get_state()
    with Dataloader(DATA, 64, balance=COSTS).iterate(state) as batches:
        assert batches.step == 2
    assert loader.skip(0).rows(0).tolist() == loader.rows(1).tolist()
    for joined in (concat([packed(), packed()]), mix({"a": packed(), "b": packed()}, weights=[1, 2], seed=0)):
        batch = Dataloader(joined, 64, balance="attention")[0]
        assert dearest(attention(np.asarray(batch["segment_ids"])), 8) < 1.03


@pytest.mark.parametrize("batch_size", [8, 24, 64, 128, 256])
@pytest.mark.parametrize("rows", [1, 20, 33, 58, 100, 250, 1001])
def test_padded_steps_are_balanced_with_their_padding(rows: int, batch_size: int) -> None:
    """Padding costs nothing, and is spread over the parts: no cut is dearer than without balance."""
    costs = np.random.default_rng(rows).lognormal(0, 1.2, rows)
    data = from_arrays({"x": np.arange(1, rows + 1)}).shuffle(0)
    balanced, plain = (Dataloader(data, batch_size, remainder="pad", balance=each) for each in (costs, None))
    step = len(plain) - 1
    after, before = balanced.rows(step), plain.rows(step)
    assert sorted(after) == sorted(before)
    for parts in PARTS:
        dear, least = (
            np.where(ids >= 0, costs[ids], 0).reshape(parts, -1).sum(axis=1).max() for ids in (after, before)
        )
        assert dear <= least * (1 + 1e-9)
        share = costs[after[after >= 0]].sum() / parts
        if batch_size >= 8 * parts:
            assert dear <= 1.4 * max(share, costs[after[after >= 0]].max())
    batch = balanced[step]
    assert np.array_equal(batch["mask"], after >= 0)
    assert np.array_equal(batch["x"], after + 1)
    for row in after[after >= 0].tolist()[:5]:
        (found,) = balanced.find(row, steps=range(step, step + 1))
        assert after[found.position] == row
    local = [
        Dataloader(data, batch_size, remainder="pad", balance=costs, shard_index=host, shard_count=4).local_rows(step)
        for host in range(4)
    ]
    assert np.concatenate(local).tolist() == after.tolist()


def test_explain_counts_padding_as_rows_that_cost_nothing() -> None:
    costs = np.ones(20)
    data = from_arrays({"x": np.arange(20)})
    explained = Dataloader(data, 64, remainder="pad", balance=costs, mesh=plan_mesh({"data": 4}, hosts=4)).explain()
    assert explained.balance == (4, 3.2, 1.0)


def test_explain_tells_the_balance_of_a_planned_mesh() -> None:
    mesh = plan_mesh({"data": 16}, hosts=4)
    explained = Dataloader(packed(), 64, balance="attention", mesh=mesh).explain()
    assert explained.balance is not None
    parts, before, now = explained.balance
    assert (parts, now < before) == (16, True)
    assert f"the most expensive of 16 parts costs {now:.3f} times the mean, {before:.3f} times without balance=" in str(
        explained
    )
    assert "balance" not in str(Dataloader(packed(), 64, mesh=mesh).explain())


def test_refusals() -> None:
    def refused(message: str, data: Any = DATA, **options: Any) -> None:
        with pytest.raises(ArgumentError, match=message):
            Dataloader(data, 8, **options).rows(0)

    refused(r"balance='tokens': pass None for no balance, 'attention' for packed rows", balance="tokens")
    refused("rows are not packed, so they have no segments; pass costs by row, or pack", balance="attention")
    refused(r"shape \(3,\), but the source has 1,000 rows; pass None for no balance", balance=[1, 2, 3])
    refused("-1.0 is not a cost; pass finite numbers of 0 or more", balance=-np.ones(1000))
    refused("nan is not a cost", balance=lambda rows: np.full(len(rows), np.nan))
    refused(r"gives int64\[1\] for 8 rows; one number for each is needed, such as", balance=lambda rows: rows[:1])
    refused(r"gives <U1\[8\] for 8 rows; one number for each", balance=lambda rows: ["x"] * 8)
    refused(r"gives <U1\[1000\] for 1,000 rows; one number for each", balance=["x"] * 1000)
    refused(r"^balance=True: pass None for no balance, 'attention' for packed rows", balance=True)
    with pytest.raises(TypeError) as caught:
        Dataloader(DATA, 8, balance=lambda rows: [0.0][rows]).rows(0)
    assert "was called with an array of 8 row ids" in caught.value.__notes__[0]
    blocks = from_arrays({"x": np.arange(64)}).shuffle(0, block=8)
    refused(r"arranges the rows of a step by lane.* leave out one of the two", blocks, balance=np.ones(64))
    stream = from_stream(lambda lane, lanes: iter([{"x": np.zeros(2)}] * 9), lanes=2)
    refused("the rows of a stream are not known ahead; leave it out", stream, balance="attention")
