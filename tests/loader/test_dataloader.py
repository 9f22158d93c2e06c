"""What the loader takes and gives: contexts, dtypes, structures, shares, specs.

That the batches are right is for the laws.
"""

import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import ml_dtypes
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec as P

from loadax import Dataloader, from_arrays, mix
from loadax.errors import MeshError
from loadax.sharding import data_parallel, plan_mesh
from tests.loader.oracle import NONE, Oracle, arrays, assert_placed, mesh_of

GRID = {"data": 4, "model": 2}
TREE = arrays(64)


def oracle(loader: Dataloader) -> Oracle:
    return Oracle(TREE, loader.dataset.order, NONE, loader.batch_size)


# Meshes


def _legacy(mesh: Mesh) -> AbstractContextManager[Any]:
    return mesh


@pytest.mark.filterwarnings("ignore:.with mesh.. context manager:DeprecationWarning")
@pytest.mark.parametrize("enter", [jax.set_mesh, _legacy], ids=["set_mesh", "with mesh"])
@pytest.mark.parametrize("axis_type", [AxisType.Auto, AxisType.Explicit])
@pytest.mark.parametrize("workers", [0, 2])
def test_the_callers_mesh(
    enter: Callable[[Mesh], AbstractContextManager[Any]], axis_type: AxisType, workers: int
) -> None:
    mesh = mesh_of(GRID, axis_type)
    loader = Dataloader(TREE, 16, partition=P("data"), num_workers=workers)  # made outside, used inside
    with enter(mesh):
        for step, batch in enumerate(loader):
            assert_placed(batch, oracle(loader).batch(step), mesh)
        assert loader.spec["tokens"].sharding == NamedSharding(mesh, P("data"))
        assert_placed(loader[1], oracle(loader).batch(1), mesh)
        Dataloader(TREE, 16, partition=P("data"))


def test_a_given_mesh_wins_and_another_context_may_come_and_go() -> None:
    mesh = mesh_of(GRID)
    loader = Dataloader(TREE, 16, mesh=mesh, partition=P("data"))
    with jax.set_mesh(mesh_of({"x": 8})), iter(loader) as batches:
        assert_placed(next(batches), oracle(loader).batch(0), mesh)
        with jax.set_mesh(mesh_of({"y": 8})):
            assert_placed(next(batches), oracle(loader).batch(1), mesh)


def test_a_shardings_mesh_counts_as_given() -> None:
    mesh = mesh_of(GRID, seed=3)
    loader = Dataloader(TREE, 16, partition=NamedSharding(mesh, P("model")))
    with jax.set_mesh(mesh_of({"x": 8})):
        batch = loader[0]
    assert_placed(batch, oracle(loader).batch(0), mesh)
    assert batch["label"].sharding == NamedSharding(mesh, P("model"))


def test_no_mesh_at_all_is_all_devices() -> None:
    loader = Dataloader(TREE, 16)
    batch = loader[0]
    assert batch["label"].sharding == NamedSharding(data_parallel(), P("data"))


def test_a_mesh_that_is_left_is_fine_and_another_is_not() -> None:
    loader = Dataloader(TREE, 16)
    mesh = mesh_of({"data": 8})
    with jax.set_mesh(mesh):
        batches = iter(loader)
        next(batches)
    assert_placed(next(batches), oracle(loader).batch(1), mesh)
    other = mesh_of({"data": 8}, seed=4)
    for wrong in (other, mesh_of({"data": 8}, AxisType.Explicit)):
        with jax.set_mesh(wrong), pytest.raises(MeshError, match="the current mesh of this thread is"):
            next(batches)
    assert batches.step == 2
    state = batches.get_state()
    batches.close()
    with jax.set_mesh(other), loader.iterate(state) as batches:
        assert_placed(next(batches), oracle(loader).batch(2), other)


def test_two_threads_in_two_meshes() -> None:
    loader = Dataloader(TREE, 16, num_epochs=10)

    def use(mesh: Mesh) -> None:
        with jax.set_mesh(mesh):
            for step, batch in enumerate(loader):
                if step % 7 == 0:
                    assert_placed(batch, oracle(loader).batch(step), mesh)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(use, [mesh_of({"data": 8}, seed=seed) for seed in (1, 2)]))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_transfer_guard_minds_nothing(workers: int) -> None:
    with jax.transfer_guard("disallow"):
        for batch in Dataloader(TREE, 16, num_workers=workers):
            jax.block_until_ready(batch)
        Dataloader(TREE, 16)[1]


def test_batches_go_into_jit_as_they_were_announced() -> None:
    for axis_type in (AxisType.Auto, AxisType.Explicit):
        mesh = mesh_of(GRID, axis_type)
        loader = Dataloader(TREE, 16, mesh=mesh, partition=P(("data", "model")), remainder="pad")
        with jax.set_mesh(mesh):
            step = (
                jax.jit(lambda batch: jax.tree.map(lambda leaf: leaf.astype("float32").sum(), batch))
                .lower(loader.spec)
                .compile()
            )
            for number, batch in enumerate(loader):
                assert float(step(batch)["label"]) == oracle(loader).batch(number)["label"].sum()


# Shares


def test_shares_say_which_host_of_a_planned_mesh_to_be() -> None:
    plan = plan_mesh({"data": 8}, hosts=4)
    loaders = [Dataloader(TREE, 16, mesh=plan, shard_index=index, shard_count=4) for index in range(4)]
    rows = np.concatenate([loader.local_rows(1) for loader in loaders])
    np.testing.assert_array_equal(rows, loaders[0].rows(1))


def test_a_planned_mesh_has_shapes_and_no_shardings() -> None:
    spec = Dataloader(TREE, 16, mesh=plan_mesh({"data": 8}, hosts=2)).spec
    assert spec["tokens"].shape == (16, 16)
    assert spec["tokens"].sharding is None


# Leaves


DTYPES = ["bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16", "float32"]
DTYPES += ["float64", "complex64", "complex128", "bfloat16", "float8_e4m3fn"]


@pytest.mark.parametrize("x64", [False, True])
@pytest.mark.parametrize("name", DTYPES)
def test_dtypes(name: str, x64: bool) -> None:
    dtype = np.dtype(getattr(ml_dtypes, name, name))
    values = (np.arange(32 * 3).reshape(32, 3) % 5 - (2 if dtype.kind in "ifc" else 0)).astype(dtype)
    if dtype.kind in "fc" and dtype.itemsize >= 2:
        values[5, 1], values[6, 2] = np.nan, np.inf
    with jax.enable_x64(x64):
        wanted = values.astype(jax.dtypes.canonicalize_dtype(dtype))
        for data in (from_arrays(values), from_arrays(values).map(lambda row: row)):
            for workers in (0, 1):
                loader = Dataloader(data, 16, num_workers=workers)
                assert loader.spec.dtype == wanted.dtype
                for step, batch in enumerate(loader):
                    assert_placed(batch, wanted[16 * step : 16 * step + 16])
                assert loader.host_batch(1).tobytes() == wanted[16:].tobytes()
    assert wanted.dtype.itemsize <= (16 if x64 else 8)


def test_x64_keeps_what_would_not_fit() -> None:
    ids = np.arange(16, dtype=np.int64) + 2**40
    with jax.enable_x64(True):
        for workers in (0, 1):
            assert_placed(next(iter(Dataloader(ids, 16, num_workers=workers))), ids)


@pytest.mark.parametrize("partition", [P("data"), P("data", "model"), P()])
def test_leaves_of_no_size(partition: P) -> None:
    trees: list[dict[str, Any]] = [
        {"x": np.zeros((32, 0), np.float32)},
        {"x": np.zeros((32, 8, 0), np.int64), "y": np.arange(32, dtype=np.int32)},
    ]
    for tree in trees:
        for step, batch in enumerate(Dataloader(tree, 8, mesh=mesh_of(GRID), partition=partition, remainder="pad")):
            expected = {name: leaf[8 * step : 8 * step + 8].astype(batch[name].dtype) for name, leaf in tree.items()}
            assert_placed(batch, {**expected, "mask": np.ones(8, bool)})
        assert step == 3


class Pair(NamedTuple):
    second: Any
    first: Any


@jax.tree_util.register_dataclass
@dataclass
class Record:
    tokens: Any
    inner: Any


A, B = np.arange(16, dtype=np.int32), np.arange(32, dtype=np.float32).reshape(16, 2)
STRUCTURES = (
    A,
    B,
    (A, B),
    Pair(A, B),
    Record(A, {"z": B, "a": Pair(B, A)}),
    {"n": None, "x": (A, {"y": B})},
    {2: A, 1: B},
)


@pytest.mark.parametrize("tree", STRUCTURES, ids=lambda tree: type(tree).__name__)
def test_structures(tree: Any) -> None:
    for data in (
        from_arrays(tree),
        from_arrays(tree).map_batch(lambda batch: batch),
        from_arrays(tree).map(lambda row: row),
    ):
        loader = Dataloader(data, 8)
        batch = loader[1]
        structure: Any = jax.tree.structure(tree)
        assert jax.tree.structure(batch) == structure == jax.tree.structure(loader.spec)
        jax.tree.map(lambda leaf, whole: np.testing.assert_array_equal(leaf, whole[8:]), batch, tree)


def test_lists_of_examples_and_tuples_of_arrays() -> None:
    assert Dataloader([{"x": number, "y": (1.5, 2)} for number in range(8)], 8)[0]["y"][0].tolist() == [1.5] * 8
    # as JSON and Hugging Face have them
    lists = [{"tokens": [number, 2], "more": [[1.5], [2.5]]} for number in range(8)]
    batch = Dataloader(lists, 8)[0]
    assert (batch["tokens"].shape, batch["more"].shape) == ((8, 2), (8, 2, 1))
    first, second = Dataloader((np.arange(8), np.arange(8) * 2), 8)[0]
    assert second.tolist() == (first * 2).tolist()


@pytest.mark.parametrize(
    ("partition", "spec"),
    [
        (P("data", "model"), P("data")),
        ({"a": P("data", "model"), "z": P("model")}, P("data")),
        ({"a": P(None, "model"), "z": P("model")}, P(None)),
        ({"a": P(("model", "data")), "z": P(), "mask": P("model")}, P("model")),
        ({"a": P(), "z": P("data"), "mask": P()}, P()),
    ],
)
def test_the_masks_partition(partition: Any, spec: P) -> None:
    tree = {"z": np.arange(20), "a": np.zeros((20, 4), np.float32)}
    mesh = mesh_of(GRID)
    loader = Dataloader(tree, 16, mesh=mesh, partition=partition, remainder="pad")
    mask = loader[1]["mask"]
    assert mask.tolist() == [True] * 4 + [False] * 12
    assert mask.sharding.is_equivalent_to(NamedSharding(mesh, spec), 1)
    np.testing.assert_array_equal(loader.rows(1), [16, 17, 18, 19] + [-1] * 12)
    assert loader[0]["mask"].all()


# Iteration


def test_a_second_pass_is_warned_of_once() -> None:
    loader = Dataloader(from_arrays(TREE).shuffle(seed=0), 16)
    assert sum(1 for _ in loader) == 4
    with pytest.warns(UserWarning, match=r"repeats the batches of the first pass.*loader.epochs\(\)") as caught:
        assert sum(1 for _ in loader) == 4
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert sum(1 for _ in loader) == 4


def test_random_maps_are_warned_of_too() -> None:
    loader = Dataloader(from_arrays(TREE).map(lambda example, rng: example, rng=True), 16)
    list(loader)
    with pytest.warns(UserWarning, match="starts at step 0 again"):
        next(iter(loader))


def test_lengths_and_words() -> None:
    loader = Dataloader(TREE, 16, num_epochs=3)
    assert (len(loader), loader.steps_per_epoch, loader.batch_size) == (12, 4, 16)
    assert repr(loader) == "Dataloader(Dataset(64 rows of arrays in memory), batch_size=16, 12 steps)"
    assert repr(Dataloader(TREE, 16, num_epochs=None)).endswith("batch_size=16, endless)")


@pytest.mark.parametrize("context", [nullcontext, lambda: jax.set_mesh(data_parallel())])
def test_a_loader_without_a_mesh_needs_none_for_its_share(context: Callable[[], AbstractContextManager[Any]]) -> None:
    loader = Dataloader(TREE, 16, shard_index=1, shard_count=2)
    with context():
        assert loader.local_rows(0).tolist() == list(range(8, 16))
        assert loader.host_batch(0)["label"].shape == (8,)


def test_the_mesh_a_loader_was_made_in_stays_its_default() -> None:
    mesh = Mesh(np.array(jax.devices()).reshape(2, 4), ("data", "model"))
    with jax.set_mesh(mesh):
        loader = Dataloader(from_arrays(TREE), 16, partition=P("data"))
    assert all(leaf.sharding == NamedSharding(mesh, P("data")) for leaf in jax.tree.leaves(loader[0]))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"batch_size": 24}, "batch_size=24, 2 steps, 16 rows of each epoch dropped)"),
        ({"batch_size": 24, "num_epochs": None}, "batch_size=24, endless, 16 rows of each epoch dropped)"),
        ({"batch_size": 63}, "batch_size=63, 1 step, 1 row of each epoch dropped)"),
        ({"batch_size": 24, "remainder": "pad"}, "batch_size=24, 3 steps)"),
    ],
)
def test_repr_tells_of_dropped_rows(options: dict[str, Any], text: str) -> None:
    assert repr(Dataloader(from_arrays({"x": np.arange(64)}), **options)).endswith(text)


def test_endless_mixture_has_no_number_of_rows() -> None:
    mixed = mix({"a": np.arange(4)}, [1], stop="never")
    assert repr(mixed) == "Dataset(endless rows of mixture of 1)"


def test_many_worker_processes_are_warned_of() -> None:
    data = from_arrays(np.arange(64))
    with pytest.warns(UserWarning, match="num_workers=4000 starts 4000 Python interpreters on ") as caught:
        Dataloader(data, 8, num_workers=4000, worker_type="process")
    assert caught[0].filename == __file__
    advised = int(str(caught[0].message).split("pass num_workers=")[1].split(",")[0])
    for workers in (advised, None):
        assert len(Dataloader(data, 8, num_workers=workers, worker_type="process")) == 8
    assert len(Dataloader(data, 8, num_workers=4000)) == 8
