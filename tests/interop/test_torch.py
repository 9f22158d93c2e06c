"""The same batches in PyTorch: bit by bit those of JAX, on real ranks; skipped where torch is not installed."""

import doctest
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import loadax
from loadax.errors import ArgumentError, LeafTypeError
from tests.interop import torch_ranks
from tests.limits import HANG
from tests.scripts.test_docs import ROOT, check_output, run

torch = pytest.importorskip("torch")
lt = pytest.importorskip("loadax.interop.torch")

pytestmark = pytest.mark.timeout(900)
ROWS, BATCH = 64, 16


def simple(leaf: Any = None, **options: Any) -> loadax.Dataloader:
    leaves = {"x": np.arange(ROWS, dtype=np.float32)}
    if leaf is not None:
        leaves["leaf"] = leaf
    return loadax.Dataloader(loadax.from_arrays(leaves).shuffle(seed=0), BATCH, **options)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What four ranks over gloo report."""
    folder = tmp_path_factory.mktemp("ranks")
    script = str(Path(torch_ranks.__file__))
    commands = [[sys.executable, script, str(folder), str(rank), "4"] for rank in range(4)]
    ranks = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for command in commands]
    try:
        outputs = [rank.communicate(timeout=4 * HANG)[0] for rank in ranks]  # four imports of torch at once
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()
    assert [rank.returncode for rank in ranks] == [0] * 4
    return json.loads(outputs[0].splitlines()[-1])


@pytest.fixture(scope="module")
def of_jax() -> list[str]:
    """Digests of the batches that JAX places on eight devices."""
    assert jax.device_count() == 8
    batches = list(torch_ranks.loader())
    assert len(batches[0]["x"].sharding.device_set) == 8
    return [torch_ranks.digest({name: np.asarray(leaf) for name, leaf in batch.items()}) for batch in batches]


def test_batches_of_all_ranks_together_are_those_of_jax(report: Any, of_jax: list[str]) -> None:
    assert len(set(of_jax)) == torch_ranks.STEPS
    assert report["batches"] == {str(size): of_jax for size in torch_ranks.WORLDS}
    assert report["digest"] == torch_ranks.loader().digest()


def test_resumed_on_another_number_of_ranks(report: Any, of_jax: list[str]) -> None:
    assert len(report["resumed"]) == 4
    for resumed in report["resumed"]:
        assert resumed == of_jax[torch_ranks.SPLIT :]


def test_losses_are_those_of_jax(report: Any) -> None:
    @jax.jit
    def step(weights: Any, batch: Any) -> Any:
        def loss(weights: Any) -> Any:
            first, bias, second, last = weights
            found = jnp.tanh(batch["x"] @ first + bias) @ second + last
            return jnp.mean((found - batch["y"]) ** 2)

        value, gradients = jax.value_and_grad(loss)(weights)
        return value, jax.tree.map(lambda weight, slope: weight - torch_ranks.RATE * slope, weights, gradients)

    weights = torch_ranks.weights()
    losses = []
    with torch_ranks.regression().iterate() as batches:
        for _ in range(torch_ranks.TRAINED):
            value, weights = step(weights, next(batches))
            losses.append(float(value))
    assert losses[-1] < losses[0] / 2
    assert np.max(np.abs(np.subtract(losses, report["losses"]))) < 1e-5


def test_rank_is_that_of_the_process_group(report: Any) -> None:
    assert report["rank"] == [0, 4, 8]


NUMPY = ("bool", "uint8", "int8", "int16", "uint16", "int32", "uint32", "float16", "float32", "complex64")
EIGHT_BITS = ("e4m3fn", "e4m3fnuz", "e5m2", "e5m2fnuz", "e8m0fnu")


@pytest.mark.parametrize("dtype", [*NUMPY, "bfloat16", *(f"float8_{name}" for name in EIGHT_BITS)])
def test_dtype_and_bits(dtype: str) -> None:
    values = np.random.default_rng(0).integers(0, 2, (ROWS, 3)).astype(getattr(ml_dtypes, dtype, dtype))
    loader = simple(values)
    with lt.batches(loader, 0, 1) as batches:
        tensor = next(batches)["leaf"]
    assert str(tensor.dtype) == f"torch.{dtype}"
    assert tensor.view(torch.uint8).numpy().tobytes() == np.asarray(loader[0]["leaf"]).tobytes()


def test_dtype_that_torch_lacks() -> None:
    with lt.batches(simple(np.zeros(ROWS, ml_dtypes.int4)), 0, 1) as batches:
        for _ in range(2):  # the batch is not lost
            with pytest.raises(
                LeafTypeError, match=r"leaf \['leaf'\] has dtype int4, which torch lacks; change it in a"
            ):
                next(batches)
            assert batches.step == 0


def test_leaves_of_the_host_keep_their_dtype() -> None:
    names = np.array([f"row {row}" for row in range(ROWS)])
    data = {
        "id": np.arange(ROWS) + 2**40,
        "name": names,
        "big": np.arange(ROWS, dtype=">i4"),
        "long": np.ones(ROWS, "g"),
    }
    loader = loadax.Dataloader(data, BATCH, host_leaves=tuple(data))
    with lt.batches(loader, 1, 2) as batches:
        batch = next(batches)
    rows = np.arange(8, 16)
    assert batch["id"].dtype == torch.int64
    assert batch["id"].tolist() == (rows + 2**40).tolist()
    assert batch["big"].tolist() == rows.tolist()
    assert batch["name"].tolist() == names[rows].tolist()
    assert isinstance(batch["long"], np.ndarray)


def test_tensors_share_memory_that_nobody_else_writes() -> None:
    loader = simple(num_epochs=8, prefetch=1, num_workers=2)
    with lt.batches(loader, 0, 2) as batches, loader.host_batches() as arrays:
        kept = [batch["x"] for batch in batches]
        expected = [batch["x"][:8] for batch in arrays]
    for tensor, array in zip(kept, expected, strict=True):
        assert tensor.tolist() == array.tolist()
        assert tensor.data_ptr() % 64 == 0  # as loadax allocates it
    kept[0].zero_()
    assert loader[0]["x"].any()


def test_microbatches_are_entries_of_those_of_jax() -> None:
    leaf = np.arange(ROWS * 3, dtype=np.int32).reshape(ROWS, 3)
    loader = simple(leaf, microbatches=2, mesh=loadax.sharding.data_parallel(jax.devices()[:1]))
    parts = []
    for rank in range(4):
        with lt.batches(loader, rank, 4) as batches:
            parts.append(next(batches)["leaf"])
    whole = torch.cat(parts, 1)
    assert whole.shape == (2, 8, 3)
    np.testing.assert_array_equal(whole.numpy(), loader[0]["leaf"])


def test_device_and_pinned_memory() -> None:
    with lt.batches(simple(), 0, 1, device="meta") as batches:
        assert next(batches)["x"].device.type == "meta"
    if not torch.cuda.is_available():
        with pytest.warns(UserWarning, match="pin_memory=True has no effect: there is no CUDA device"):
            lt.batches(simple(), 0, 1, pin_memory=True).close()


def test_batch_of_an_interrupted_conversion_comes_again(monkeypatch: pytest.MonkeyPatch) -> None:
    loader = simple(num_epochs=None)
    with lt.batches(loader, 0, 1) as batches:
        next(batches)
        with monkeypatch.context() as patch:
            patch.setattr(lt, "_tensor", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                next(batches)
        assert batches.state_dict()["step"] == 1
        assert next(batches)["x"].tolist() == loader[1]["x"].tolist()


def test_lanes_of_a_stream_resume() -> None:
    def rows(lane: int, lanes: int) -> Any:
        return (np.float32(row) for row in range(lane, 10**6, lanes))

    loader = loadax.Dataloader(loadax.from_stream(rows, lanes=4), 4, num_workers=0)
    with lt.batches(loader, 0, 1) as batches:
        first = [next(batches).tolist() for _ in range(4)]
        batches.load_state_dict(state := batches.state_dict())
        then = next(batches).tolist()
    assert then not in first
    with lt.batches(loader, 0, 1, start=state) as batches:
        assert next(batches).tolist() == then


def test_length_text_and_end() -> None:
    with lt.batches(simple(), 1, 2) as batches:
        assert len(batches) == 4
        assert repr(batches) == "RankBatches(rank=1, world_size=2, DataIterator(step=0, epoch=0, open))"
        assert len(list(batches)) == 4
        assert batches.step == 4
    assert "closed" in repr(batches)
    assert batches.host_batches.stats().steps == 4
    with lt.batches(simple(num_epochs=None), 0, 1) as batches:
        assert batches.epoch == 0
        with pytest.raises(TypeError, match=r"is infinite and has no len\(\)"):
            len(batches)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # torchdata 0.11 calls it
def test_sampler_of_a_dataset_of_torch(workers: int) -> None:
    """With torch's loader, and with that of torchdata, which saves the sampler's state."""
    stateful = pytest.importorskip("torchdata.stateful_dataloader")
    loader = simple(num_epochs=2)
    sampler = lt.BatchSampler(loader, 1, 2)
    expected = [loader.rows(step)[8:].tolist() for step in range(8)]
    dataset = torch.arange(ROWS)
    options: dict[str, Any] = {"num_workers": workers, "multiprocessing_context": "spawn" if workers else None}
    plain = torch.utils.data.DataLoader(dataset, batch_sampler=sampler, **options)
    assert len(plain) == 8
    assert [batch.tolist() for batch in plain] == expected
    saved = stateful.StatefulDataLoader(dataset, batch_sampler=lt.BatchSampler(loader, 1, 2), **options)
    batches = iter(saved)
    assert [next(batches).tolist() for _ in range(3)] == expected[:3]
    state = saved.state_dict()
    resumed = stateful.StatefulDataLoader(dataset, batch_sampler=lt.BatchSampler(loader, 1, 2), **options)
    resumed.load_state_dict(state)
    assert [batch.tolist() for batch in resumed] == expected[3:]


def test_examples_of_the_module_and_the_page(tmp_path: Path) -> None:
    assert doctest.testmod(lt, globs={}).failed == 0
    page = (ROOT / "docs/guides/torch.md").read_text("utf-8")
    page = re.sub(r"<!-- not run: .* -->\n", "", page)
    result = run(page, tmp_path, "torch.md")
    assert result.returncode == 0, result.stdout + result.stderr
    check_output(page, result.stdout)


def test_weights_set_on_all_ranks_are_those_of_jax() -> None:
    parts = {name: np.arange(first, first + 90, dtype=np.float32) for name, first in (("web", 0), ("code", 100))}
    loader = loadax.Dataloader(loadax.mix(parts, [3, 1], stop="never"), BATCH)
    random = np.random.default_rng(0)
    state: Any = 0
    seen: list[list[float]] = []
    for size in (1, 4, 2, 8, 1):
        ranks = [lt.batches(loader, rank, size, start=state) for rank in range(size)]
        for _ in range(4):
            if random.random() < 0.7:
                weights = random.integers(1, 9, 2).tolist()
                for rank in ranks:
                    rank.set_weights(dict(zip(parts, weights, strict=True)))
            seen.append(torch.cat([next(rank) for rank in ranks]).tolist())
        states = [rank.state_dict() for rank in ranks]
        state = json.loads(json.dumps(states[0]))
        assert states == [state] * size
        for rank in ranks:
            rank.close()
    assert len(state["weights"]) > 5
    changed = loader.with_weights(state)
    assert seen == [np.asarray(changed[step]).tolist() for step in range(len(seen))]
    assert seen != [np.asarray(loader[step]).tolist() for step in range(len(seen))]
    with lt.batches(loader, 0, 1, start=state) as batches:
        with pytest.raises(ArgumentError, match="weights"):
            batches.set_weights([1, 2, 3])
        assert next(batches).tolist() == np.asarray(changed[len(seen)]).tolist()
