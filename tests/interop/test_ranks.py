"""The law of ranks, without torch: all parts together are the batch that JAX places; indices are those of the plan."""

import importlib
import itertools
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest

import loadax
from loadax.errors import ArgumentError, StateError, StreamError, UnsupportedError
from loadax.interop.ranks import BatchSampler, on_rank, rank_of
from loadax.sharding import data_parallel
from tests.limits import HANG

X = np.arange(150.0, dtype=np.float32).reshape(50, 3)


def rows() -> loadax.Dataset:
    return loadax.from_arrays({"x": X, "id": np.arange(50)}).shuffle(seed=3)


def noisy(row: Any, random: Any) -> Any:
    return row | {"x": row["x"] + random.normal()}


def documents() -> loadax.Dataset:
    lengths = np.random.default_rng(0).integers(1, 9, 60)
    return loadax.from_documents(np.arange(lengths.sum()), offsets=np.r_[0, np.cumsum(lengths)])


RUNS: dict[str, Callable[..., loadax.Dataloader]] = {
    "random map": lambda **o: loadax.Dataloader(rows().map(noisy, rng=True), 8, num_epochs=2, key_seed=1, **o),
    "padding": lambda **o: loadax.Dataloader(rows(), 16, num_epochs=2, remainder="pad", **o),
    "mixture": lambda **o: loadax.Dataloader(loadax.mix([rows(), rows()], [3, 1]), 8, num_epochs=1, **o),
    "sizes by step": lambda **o: loadax.Dataloader(rows(), {0: 8, 3: 16}, num_epochs=2, **o),
    "skipped": lambda **o: loadax.Dataloader(rows(), 8).skip([1, 4]),
    "packed": lambda **o: loadax.Dataloader(documents().pack(16).shuffle(0), 8, **o),
    "chain": lambda **o: loadax.chain([loadax.Dataloader(rows(), 8, **o), loadax.Dataloader(rows(), 16, **o)]),
    "balance": lambda **o: loadax.Dataloader(rows(), 8, balance=np.arange(50.0) ** 2, **o),
    "two microbatches": lambda **o: loadax.Dataloader(
        rows(), 16, microbatches=2, mesh=data_parallel(jax.devices()[:4])
    ),
}


@pytest.mark.parametrize("name", RUNS)
def test_parts_of_all_ranks_are_the_batch_of_jax(name: str) -> None:
    loader = RUNS[name]()
    runs = {size: [on_rank(loader, rank, size) for rank in range(size)] for size in (1, 2, 4)}
    for ranks in runs.values():
        assert {rank.digest() for rank in ranks} == {loader.digest()}
    microbatches = 2 if "microbatches" in name else 1
    for step, placed in enumerate(loader):
        for ranks in runs.values():
            parts = [rank.host_batch(step) for rank in ranks]
            for leaf, whole in placed.items():
                together = np.concatenate([part[leaf] for part in parts])
                if microbatches > 1:
                    together = together.reshape(-1, microbatches, *together.shape[1:]).swapaxes(0, 1)
                assert together.dtype == whole.dtype
                np.testing.assert_array_equal(together, np.asarray(whole))


def test_state_goes_from_jax_to_ranks_and_back() -> None:
    loader = RUNS["random map"]()
    step = 0
    state: Any = 0
    for size in (None, 4, 1, 2, None):
        ranks = [loader] if size is None else [on_rank(loader, rank, size) for rank in range(size)]
        states = []
        for rank, own in enumerate(ranks):
            with own.iterate(state) if size is None else own.host_batches(state) as batches:
                assert batches.step == step
                first = rank * 8 // len(ranks)
                expected = np.asarray(loader[step]["x"])[first : first + 8 // len(ranks)]
                np.testing.assert_array_equal(np.asarray(next(batches)["x"]), expected)
                next(batches)
                states.append(batches.get_state())
        assert all(found == states[0] for found in states)
        state = states[0]
        step += 2


@pytest.mark.parametrize("name", [name for name in RUNS if name != "padding"])
def test_indices_of_all_ranks_are_the_rows_of_the_step(name: str) -> None:
    loader = RUNS[name]()
    samplers = [BatchSampler(loader, rank, 4) for rank in range(4)]
    assert {len(sampler) for sampler in samplers} == {len(loader)}
    for step, parts in enumerate(zip(*samplers, strict=True)):
        rows = loader.rows(step)
        together = list(itertools.chain(*parts))
        assert together == (rows.T if rows.ndim > 1 else rows).ravel().tolist()
        assert len({len(part) for part in parts}) == 1
    assert step == len(loader) - 1


def test_sampler_continues_a_state_on_another_number_of_ranks() -> None:
    loader = RUNS["random map"](num_workers=0)
    first = BatchSampler(loader, 1, 2)
    steps = iter(first)
    taken = [next(steps) for _ in range(5)]
    assert taken[4] == loader.rows(4)[4:].tolist()
    with loader.iterate(5) as batches:
        assert first.state_dict() == steps.state_dict() == first.state_dict(5) == batches.get_state()
    assert first.state_dict(3)["step"] == 3  # of which more were handed out, to workers
    other = BatchSampler(loader, 3, 4)
    assert other.state_dict() == other.state_dict(0)
    other.load_state_dict(first.state_dict())
    assert list(other) == [loader.rows(step)[6:].tolist() for step in range(5, len(loader))]
    again = iter(BatchSampler(loader, 3, 4, start=2))
    again.load_state_dict(first.state_dict())
    assert next(again) == loader.rows(5)[6:].tolist()
    assert repr(BatchSampler(loader, 3, 4, start=2)).startswith(
        "BatchSampler(rank=3, world_size=4, start=2, Dataloader("
    )
    for refused in (other, again):
        with pytest.raises(StateError):
            refused.load_state_dict(RUNS["mixture"]().host_batches().get_state())


def test_sampler_that_repeats_shuffled_epochs_warns() -> None:
    sampler = BatchSampler(RUNS["random map"](), 0, 1)
    first = list(sampler)
    with pytest.warns(UserWarning, match="begins at step 0 again, .* set the loader's num_epochs, and loop over the"):
        assert list(sampler) == first
    ordered = BatchSampler(loadax.Dataloader(X, 10), 0, 1)
    assert list(ordered) == list(ordered)


def test_ranks_ask_for_no_device() -> None:
    program = (
        "import numpy as np, loadax\n"
        "from loadax.interop.ranks import BatchSampler, on_rank\n"
        "loader = loadax.Dataloader({'x': np.arange(64)}, 8, remainder='drop')\n"
        "print([int(batch['x'][0]) for batch in on_rank(loader, 1, 2).host_batches()], loader.digest())\n"
        "print([rows[0] for rows in BatchSampler(loader)])\n"
    )
    environment = {**os.environ, "JAX_PLATFORMS": "none", "RANK": "3", "WORLD_SIZE": "4"}  # as torchrun sets them
    found = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False, timeout=HANG
    )
    digest = loadax.Dataloader({"x": np.arange(64)}, 8).digest()
    assert found.stdout.splitlines() == [
        f"{list(range(4, 64, 8))} {digest}",
        str(list(range(6, 64, 8))),
    ], found.stderr


def test_mesh_of_the_caller_has_no_effect() -> None:
    loader = loadax.Dataloader({"x": X[:48]}, 24, mesh=data_parallel(), partition=jax.P("data"))
    with jax.set_mesh(data_parallel(jax.devices()[:3])):
        part = on_rank(loader, 1, 6).host_batches()
    with part:
        np.testing.assert_array_equal(next(part)["x"], X[4:8])


def test_ranks_that_can_not_be() -> None:
    loader = RUNS["random map"]()
    with pytest.raises(ArgumentError, match=r"rank=4: .*3") as caught:
        BatchSampler(loader, 4, 4)
    assert caught.value.argument == "rank"
    for rank, size in ((1, None), (None, 4)):
        with pytest.raises(ArgumentError, match=f"rank={rank} and world_size={size}: pass both, or neither"):
            rank_of(rank, size)
    with pytest.raises(ArgumentError, match=r"world_size=0"):
        rank_of(0, 0)
    with pytest.raises(ArgumentError, match=r"batch_size=8 can't be split over world_size=3 ranks .* a multiple of 3"):
        on_rank(loader, 0, 3)
    with pytest.raises(ArgumentError, match=r"batch_size=16 .* world_size=16 .* microbatches=2; use a multiple of 32"):
        on_rank(RUNS["two microbatches"](), 0, 16)
    with pytest.raises(ArgumentError, match=r"loader is an? list; pass a Dataloader"):
        on_rank([], 0, 1)  # type: ignore[arg-type]
    mapped = loadax.Dataloader(rows(), 8, device_map=lambda row: row)
    with pytest.raises(ArgumentError, match="the loader has device_map=, which only JAX's devices apply; leave it out"):
        on_rank(mapped, 0, 1)


def test_torch_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delitem(sys.modules, "loadax.interop.torch", raising=False)
    with pytest.raises(UnsupportedError, match=r"loadax\.interop\.torch needs torch, .* pip install -e '\.\[torch\]'"):
        importlib.import_module("loadax.interop.torch")


def test_sampler_has_no_padding_and_no_streams() -> None:
    for loader in (RUNS["padding"](), loadax.Dataloader(rows(), 8, quarantine=[3])):
        with pytest.raises(
            ArgumentError, match=r"the loader has remainder='pad' or quarantine=, and .*; leave them out"
        ):
            BatchSampler(loader, 0, 1)
    stream = loadax.Dataloader(loadax.from_stream(lambda lane, lanes: iter([np.ones(3)]), lanes=1), 1)
    with pytest.raises(StreamError):
        BatchSampler(stream, 0, 1)
