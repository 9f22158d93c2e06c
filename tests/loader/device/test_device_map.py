"""A `device_map` gives the same rows as NumPy on the host's batch, on every mesh."""

import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest
from jax import numpy as jnp
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec as P

import loadax
from loadax import Dataloader, DeviceMap, from_arrays
from loadax.core.tree import flatten
from loadax.errors import ArgumentError, LeafError, PartitionError
from loadax.loader.device import device_map
from loadax.loader.execution import monitor
from loadax.sharding import plan_mesh
from tests.loader.oracle import arrays, assert_placed, mesh_of
from tests.loader.test_memory import Runs

GRID = {"data": 4, "model": 2}
TREE = arrays(70)


def scaled(example: Any) -> Any:
    """Exact in binary, so that NumPy and XLA must agree to the bit; a leaf more, one less, one handed on."""
    image = example["image"].astype(np.float32) / 4 - 1
    return {
        **{name: leaf for name, leaf in example.items() if name != "tokens"},
        "image": image,
        "first": example["tokens"][0],
    }


def elementwise(example: Any) -> Any:
    return {name: leaf if leaf.dtype == bool else leaf + leaf.dtype.type(3) for name, leaf in example.items()}


def by_hand(loader: Dataloader, function: Callable[[Any], Any] | DeviceMap, step: int, microbatches: int = 1) -> Any:
    """The batch that NumPy makes of `host_batch`, row by row."""
    function = function.function if isinstance(function, DeviceMap) else function
    batch = loader.host_batch(step)
    leaves, structure = flatten(batch)
    rows = [function(structure.build(np.asarray(leaf[row]) for leaf in leaves)) for row in range(len(leaves[0]))]
    columns = [
        np.stack([np.asarray(value) for value in values])
        for values in zip(*(flatten(row)[0] for row in rows), strict=True)
    ]
    if microbatches > 1:
        columns = [np.stack([column[turn::microbatches] for turn in range(microbatches)]) for column in columns]
    return flatten(rows[0])[1].build(columns)


CUT = {"image": P("data", None, "model"), "label": P("data"), "tokens": P("data", "model")}
CASES: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "rows": (scaled, P("data"), {}),
    "rows over both axes": (scaled, P(("model", "data")), {}),
    "copies": (scaled, P(), {}),
    "padded": (scaled, P("data"), {"remainder": "pad", "num_epochs": 2}),
    "microbatches": (scaled, P("data"), {"microbatches": 2, "remainder": "pad", "key_seed": 1}),
    "columns": (DeviceMap(elementwise, elementwise=True), P("data", "model"), {}),
    "columns of microbatches": (DeviceMap(elementwise, elementwise=True), CUT, {"microbatches": 2}),
    "part": (scaled, P("data"), {"shard_index": 1, "shard_count": 2}),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("workers", [0, 2])
def test_batches_are_what_numpy_makes_of_the_rows(name: str, workers: int) -> None:
    function, partition, extra = CASES[name]
    mesh = mesh_of(GRID, AxisType.Explicit if workers else AxisType.Auto, seed=workers)
    data = from_arrays(TREE).shuffle(seed=5)
    loader = Dataloader(data, 16, mesh=mesh, partition=partition, device_map=function, num_workers=workers, **extra)
    micro = extra.get("microbatches", 1)
    for step, batch in enumerate(loader):
        assert_placed(batch, by_hand(loader, function, step, micro), mesh)
        announced = flatten(loader.spec)[0]
        for leaf, spec in zip(flatten(batch)[0], announced, strict=True):
            assert (leaf.shape, leaf.dtype, leaf.sharding) == (spec.shape, spec.dtype, spec.sharding)
    assert step + 1 == len(loader)
    assert_placed(loader[1], by_hand(loader, function, 1, micro), mesh)


class Pair(NamedTuple):
    one: Any
    two: Any


def test_new_leaves_are_partitioned_by_rows() -> None:
    mesh = mesh_of(GRID)
    function: Any = lambda example: Pair(example["image"], [1.0])  # noqa: E731
    loader = Dataloader(TREE, 16, mesh=mesh, partition=P("data"), device_map=function)
    assert [leaf.sharding.spec for leaf in jax.tree.leaves(loader.spec)] == [P("data"), P("data")]
    batch = loader[0]
    assert_placed(batch, Pair(TREE["image"][:16], [np.ones(16, np.float32)]), mesh)
    assert not batch.two[0].weak_type


def test_leaves_that_pass_through_are_not_copied() -> None:
    def twice(example: Any) -> Any:
        return {"label": example["label"], "again": example["label"]}

    for function in (twice, jax.jit(twice)):
        batch = Dataloader(TREE, 16, device_map=function)[0]
        assert batch["label"] is batch["again"]


def test_random_keys_go_in_and_come_out() -> None:
    def noisy(example: Any) -> Any:
        key = jax.random.wrap_key_data(example["key"])
        return jax.random.uniform(key, (3,)), key

    loader = Dataloader(TREE, 16, key_seed=2, device_map=noisy, num_epochs=2)
    for step, (noise, keys) in enumerate(loader):
        expected = loader.host_batch(step)["key"]
        assert_placed(noise, np.stack([np.asarray(noisy({"key": jnp.asarray(key)})[0]) for key in expected]))
        assert keys.dtype == loader.spec[1].dtype
        np.testing.assert_array_equal(jax.random.key_data(keys), expected)


def test_arrays_that_the_function_closes_over() -> None:
    mean, scale = jnp.asarray([0.5] * 8), np.full(8, 2, np.float32)
    loader = Dataloader(TREE, 16, device_map=lambda example: (example["image"] - mean) * scale)
    for step, batch in enumerate(loader):
        assert_placed(batch, (TREE["image"][loader.rows(step)].astype(np.float32) - 0.5) * 2)


def test_it_is_traced_before_the_first_batch_and_no_more_after() -> None:
    traces = []

    def counting(example: Any) -> Any:
        traces.append(example["image"].shape)
        return {"image": example["image"] + 1}

    loader = Dataloader(TREE, {0: 16, 2: 8}, num_epochs=3, device_map=counting, mesh=mesh_of({"data": 8}))
    assert set(loader.specs) == {0, 2}
    list(loader)
    before = len(traces)
    list(loader.iterate())
    list(loader.epochs())
    assert [loader.spec, loader[0], loader[5]]
    assert len(traces) == before <= 4


@pytest.mark.filterwarnings("ignore:.with mesh.. context manager:DeprecationWarning")
@pytest.mark.parametrize("enter", [jax.set_mesh, lambda mesh: mesh], ids=["set_mesh", "with mesh"])
@pytest.mark.parametrize("axis_type", [AxisType.Auto, AxisType.Explicit])
def test_in_and_out_of_meshes(enter: Callable[[Mesh], AbstractContextManager[Any]], axis_type: AxisType) -> None:
    inside, other = mesh_of(GRID, axis_type), mesh_of({"x": 8}, axis_type)
    given = Dataloader(TREE, 16, mesh=inside, partition=P("data"), device_map=scaled)
    found = Dataloader(TREE, 16, partition=P("data"), device_map=scaled)
    with enter(other):
        assert_placed(next(iter(given)), by_hand(given, scaled, 0), inside)
    with enter(inside):
        assert_placed(next(iter(found)), by_hand(found, scaled, 0), inside)


def test_x64_is_that_of_the_thread_that_made_the_loader() -> None:
    wide = np.arange(64) + 2**40

    def function(example: Any) -> Any:
        return {"x": example["x"] * 2, "y": example["x"] / 2, "z": np.arange(3)}

    with jax.enable_x64(True):
        loader = Dataloader({"x": wide}, 16, device_map=function)
    assert_placed(loader[0], {"x": wide[:16] * 2, "y": wide[:16] / 2, "z": np.tile(np.arange(3), (16, 1))})
    assert loader.spec["y"].dtype == np.float64
    narrow = Dataloader({"x": wide - 2**40}, 16, device_map=function)
    with jax.enable_x64(True):
        assert narrow[0]["y"].dtype == narrow.spec["y"].dtype == np.float32


def test_memory_that_the_function_still_reads_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(monitor, "PieceSizes", Runs)

    def slow(example: Any) -> Any:
        busy = jax.lax.fori_loop(0, 300, lambda _, y: jnp.sin(y), jnp.ones((16, 16)))
        return example + (busy.sum() * 0).astype(example.dtype)

    rows = np.arange(128 * 64, dtype=np.float32).reshape(128, 64)
    loader = Dataloader(from_arrays(rows).shuffle(seed=0), 16, num_epochs=4, num_workers=2, device_map=slow)
    for step, batch in enumerate(list(loader)):
        np.testing.assert_array_equal(np.asarray(batch), rows[loader.rows(step)])


def test_state_and_digest_are_those_of_the_run_without_device_map() -> None:
    plain, mapped = (Dataloader(TREE, 16, device_map=each) for each in (None, scaled))
    with iter(plain) as one, iter(mapped) as other:
        next(one)
        state = one.get_state()
        assert next(other).keys() == {"image", "label", "first"}
        assert other.get_state() == state
    assert_placed(next(mapped.iterate(state)), by_hand(mapped, scaled, 1))
    assert plain.digest() == mapped.digest()
    np.testing.assert_array_equal(plain.host_batch(2)["image"], mapped.host_batch(2)["image"])


def test_a_planned_mesh_has_shapes_and_no_shardings() -> None:
    loader = Dataloader(TREE, 64, mesh=plan_mesh({"data": 64}, hosts=8), device_map=scaled)
    assert loader.spec["image"] == jax.ShapeDtypeStruct((64, 4, 8), np.float32)


def test_specs_of_lengths_that_change() -> None:
    loader = Dataloader(
        {"tokens": TREE["tokens"]}, 16, seq_len={0: 4, 2: 16}, device_map=lambda example: example["tokens"] * 2
    )
    assert {step: spec.shape for step, spec in loader.specs.items()} == {0: (16, 4), 2: (16, 16)}
    assert [batch.shape for batch in loader] == [(16, 4)] * 2 + [(16, 16)] * 2


# Messages


@pytest.mark.parametrize(
    ("function", "error", "message"),
    [
        (3, ArgumentError, "device_map=3 can't be called; pass a function of one example, traced by JAX"),
        (lambda example, key: example, ArgumentError, r"arguments \(example, key\), but is called as .* leaf 'key'"),
        (lambda: 0, ArgumentError, r"has the arguments \(\), but is called as device_map\(example\)"),
        (lambda _: None, LeafError, r"device_map .*lambda.* returned None; did you forget to return the example\?"),
        (lambda _: {}, LeafError, r"device_map .* returned \{\}, which has no leaves; return an example"),
        (lambda _: {"a": "text"}, LeafError, r"leaf \['a'\] of the result is a str, 'text'; return arrays"),
    ],
)
def test_unsuitable_functions(function: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        Dataloader(TREE, 16, device_map=function, mesh=mesh_of(GRID), partition=P("data"))


@pytest.mark.parametrize(("name", "argument"), [("key", "key_seed="), ("mask", "remainder='pad'")])
def test_note_about_leaves_that_the_loader_adds_on_request(name: str, argument: str) -> None:
    def notes(function: Any, **options: Any) -> list[str]:
        with pytest.raises(KeyError) as caught:
            Dataloader(TREE, 16, mesh=mesh_of({"data": 8}), device_map=function, **options)
        return [note for note in caught.value.__notes__ if note.startswith("loadax: ")]

    where, advice = notes(lambda example: example[name])
    assert re.fullmatch(r"loadax: in device_map .*lambda.*, traced by JAX with one example", where)
    assert advice == f"loadax: pass {argument} to the Dataloader to add the leaf {name!r} to examples"
    added: dict[str, Any] = {"key_seed": 0, "remainder": "pad"}
    assert len(notes(lambda example: (example[name], dict[str, int]()[name]), **added)) == 1  # another missing key


def test_errors_of_jax_name_the_function() -> None:
    with pytest.raises(jax.errors.TracerBoolConversionError) as caught:
        Dataloader(TREE, 16, mesh=mesh_of({"data": 8}), device_map=branching)
    assert f"tracing the function branching at {__file__}:" in str(caught.value)
    assert device_map.__file__ not in str(caught.value)


def branching(example: Any) -> Any:
    return example if example["label"] > 3 else None


def test_without_a_mesh_errors_are_raised_when_iteration_begins() -> None:
    loader = Dataloader(TREE, 16, device_map=lambda _: None)
    with pytest.raises(LeafError, match="returned None"):
        iter(loader)


def test_rows_of_all_leaves_are_partitioned_alike() -> None:
    message = r"leaf \['image'\] is partitioned .*'data'.* and leaf \['label'\] P\(\), so a device holds different rows"
    with pytest.raises(PartitionError, match=message):
        columns(scaled, partition={"image": P("data"), "label": P(), "tokens": P("data")})


def test_an_axis_of_one_device_cuts_nothing() -> None:
    mesh = mesh_of({"data": 8, "one": 1})
    partition = {"image": P(("data", "one")), "label": P("data"), "tokens": P("data", "one")}
    loader = Dataloader(TREE, 16, mesh=mesh, partition=partition, device_map=scaled)
    assert_placed(loader[1], by_hand(loader, scaled, 1), mesh)
    assert loader.spec["image"].sharding == NamedSharding(mesh, P(("data", "one")))


def columns(function: Any, **others: Any) -> Dataloader:
    """A loader whose devices hold half of the columns of "image", 8 wide, and of "tokens", 16 long."""
    return Dataloader(TREE, 16, **{"mesh": mesh_of(GRID), "partition": CUT, **others}, device_map=function)


def halved(example: Any) -> Any:
    return {**example, "image": example["image"].astype(np.float32) / 2, "label": example["label"] + 1}


@pytest.mark.parametrize("microbatches", [1, 2])
@pytest.mark.parametrize("halved", [halved, jax.jit(halved)], ids=["plain", "jitted"])
def test_a_result_of_cut_columns_is_refused_unless_elementwise(microbatches: int, halved: Any) -> None:
    with pytest.raises(PartitionError, match="only some of its columns") as caught:
        columns(halved, microbatches=microbatches)
    # The advice, to the letter.
    advice = re.search(r"pass device_map=(.*?\)); else", str(caught.value))
    assert advice is not None
    device_map = eval(advice[1], {"loadax": loadax, "fn": halved})
    loader = columns(device_map, microbatches=microbatches)
    assert loader.spec["image"].sharding.spec[-1] == "model"
    assert_placed(loader[1], by_hand(loader, halved, 1, microbatches), mesh_of(GRID))
    by_rows = columns(halved, partition={**CUT, "image": P("data")}, microbatches=microbatches)
    assert_placed(by_rows[1], by_hand(by_rows, halved, 1, microbatches), mesh_of(GRID))


def test_the_error_says_which_leaf_is_cut_where() -> None:
    message = (
        r"^device_map halved .*: leaf \['image'\] of the result depends on leaf \['image'\], cut along dim 2 by the "
        r"mesh axis 'model', so a device has only some of its columns; if the function is elementwise, "
        r"pass device_map=loadax.DeviceMap\(fn, elementwise=True\); else partition that leaf by rows alone, "
        r"or do this in the training step$"
    )
    with pytest.raises(PartitionError, match=message):
        columns(halved)
    with pytest.raises(PartitionError, match=message):
        columns(halved, mesh=plan_mesh({"data": 8, "model": 2}, hosts=2))
    both = {"image": P(None, "data", "model"), "label": P(), "tokens": P(None, ("model", "data"))}
    dims = r"\['image'\], cut along dim 1 by the mesh axis 'data' and along dim 2 by the mesh axis 'model', so"
    with pytest.raises(PartitionError, match=dims):
        columns(halved, partition=both)
    with pytest.raises(PartitionError, match=r"\['tokens'\], cut along dim 1 by the mesh axes 'model' and 'data', so"):
        columns(lambda example: {"tokens": example["tokens"] + 1}, partition=both)


def uncut(example: Any) -> Any:
    """Leaves that follow from no value of a cut leaf: of its length, of whole leaves, in its place; and it itself."""
    length = np.int32(len(example["tokens"]))
    return {
        "length": length,
        "twice": example["label"] * 2,
        "image": example["label"] + np.arange(8, dtype=np.int32).reshape(2, 4),
        "tokens": np.arange(length, dtype=np.int32),
        "copy": example["tokens"],
    }


@pytest.mark.parametrize("function", [uncut, DeviceMap(uncut), DeviceMap(uncut, elementwise=True)])
@pytest.mark.parametrize("microbatches", [1, 2])
def test_results_that_follow_from_no_cut_leaf_are_those_of_whole_examples(function: Any, microbatches: int) -> None:
    loader = columns(function, microbatches=microbatches)
    assert_placed(loader[1], by_hand(loader, uncut, 1, microbatches), mesh_of(GRID))
    before = (None,) * (microbatches > 1)
    specs = {name: leaf.sharding.spec for name, leaf in loader.spec.items()}
    rows = P(*before, "data")
    assert specs == {
        "length": rows, "twice": rows, "image": rows, "tokens": rows, "copy": P(*before, "data", "model")
    }  # fmt: skip


def test_elementwise_results_are_cut_like_what_they_follow_from() -> None:
    message = (
        r"leaf \['twice'\] of the result depends on leaf \['tokens'\], cut along dim 1 by the mesh axis 'model', "
        r"and can't be partitioned like it; return it under that leaf's key, "
        r"with the same number of dims, partition that leaf by rows"
    )
    moved = DeviceMap(lambda example: {"twice": example["tokens"] * 2}, elementwise=True)
    with pytest.raises(PartitionError, match=message):
        columns(moved)
    # A device has other columns of the one than of the other.
    crossed = DeviceMap(lambda example: {"tokens": example["tokens"] * 0 + example["image"].sum()}, elementwise=True)
    with pytest.raises(PartitionError, match=r"\['tokens'\] of the result depends on leaf \['image'\], cut .* dim 2"):
        columns(crossed)
    pair = {name: np.arange(16 * 8).reshape(16, 8) + number for number, name in enumerate("ab")}

    def masked(example: Any) -> Any:
        return {"a": example["a"] * (example["b"] % 2), "b": example["b"]}

    by_columns = DeviceMap(masked, elementwise=True)
    loader = Dataloader(pair, 16, mesh=mesh_of(GRID), partition=P("data", "model"), device_map=by_columns)
    assert_placed(loader[0], by_hand(loader, masked, 0), mesh_of(GRID))


def test_elementwise_functions_that_the_columns_of_a_device_do_not_fit() -> None:
    mean = np.arange(8, dtype=np.float32)
    message = (
        r"^device_map .* has elementwise=True and takes a whole example, but it fails with the columns of a device "
        r"\(ValueError: .*shapes.*\): leaf \['image'\], cut along dim 2 by the mesh axis 'model'; "
        r"partition that leaf by rows alone, or"
    )
    centred = DeviceMap(lambda example: {"image": example["image"] - mean}, elementwise=True)
    for mesh in (mesh_of(GRID), plan_mesh({"data": 8, "model": 2}, hosts=2)):
        with pytest.raises(PartitionError, match=message) as caught:
            columns(centred, mesh=mesh)
        assert isinstance(caught.value.__cause__, ValueError)
    by_rows = columns(centred, partition=P("data"))
    np.testing.assert_array_equal(by_rows[0]["image"], TREE["image"][:16] - mean)
    keys = DeviceMap(lambda example: {"key": jax.random.wrap_key_data(example["key"])[None]}, elementwise=True)
    with pytest.raises(PartitionError, match=r"\(TypeError: .*key.*leaf \['key'\], cut along dim 1 by"):
        columns(keys, key_seed=1, partition=P("data", "model"))
    shapes = (
        r"has elementwise=True, but leaf \['tokens'\] of the result has the shape \[15\] for an example "
        r"and \[7\] for the columns of a device: leaf \['tokens'\], cut along dim 1 by the mesh axis 'model'; "
    )
    with pytest.raises(PartitionError, match=shapes):
        columns(DeviceMap(lambda example: {"tokens": example["tokens"][:-1]}, elementwise=True))
    with pytest.raises(PartitionError, match=r"the shape \[16\] for an example and \[16\] for the columns of a device"):
        columns(DeviceMap(lambda example: {"tokens": jnp.broadcast_to(example["tokens"].max(), 16)}, elementwise=True))


def test_elementwise_is_a_bool() -> None:
    with pytest.raises(ArgumentError, match=r"elementwise='yes': pass True or False"):
        DeviceMap(scaled, elementwise="yes")  # type: ignore[arg-type]


def flipped(example: Any) -> Any:
    """By the rows of an image, of which a device has all; everything else acts on each element by itself."""
    up = jax.random.bernoulli(jax.random.wrap_key_data(example["key"]))
    pixels = jnp.where(up, example["image"][::-1], example["image"]).astype(jnp.float32)
    rounded = jnp.exp(jnp.sin(pixels / 9)) * jnp.log(pixels - 3) - pixels.mean(axis=0)
    return {
        "image": rounded.astype(jnp.bfloat16),
        "tokens": (example["tokens"] > 5) & (example["tokens"] < 900),
        "label": example["label"] * jnp.complex64(1j),
        "coin": up,
        "own": jax.random.wrap_key_data(example["key"]),
    }


@pytest.mark.parametrize(
    ("mesh", "axis_type"), [(GRID, AxisType.Auto), ({"data": 2, "model": 2, "one": 1, "copies": 2}, AxisType.Explicit)]
)
@pytest.mark.parametrize("microbatches", [1, 2])
def test_elementwise_on_columns_equals_whole_rows(mesh: dict[str, int], axis_type: AxisType, microbatches: int) -> None:
    with jax.transfer_guard("disallow"), jax.set_mesh(mesh_of({"x": 8}, axis_type)):
        by_columns = DeviceMap(flipped, elementwise=True)
        cut = columns(by_columns, mesh=mesh_of(mesh, axis_type), key_seed=1, microbatches=microbatches)
    whole = columns(flipped, mesh=mesh_of(mesh), partition=P("data"), key_seed=1, microbatches=microbatches)
    one, other = cut[0], whole[0]
    assert one["image"].sharding.spec[-1] == "model"
    for name in ("tokens", "label", "coin"):
        np.testing.assert_array_equal(one[name], other[name])
    np.testing.assert_array_equal(jax.random.key_data(one["own"]), jax.random.key_data(other["own"]))
    np.testing.assert_allclose(one["image"].astype(np.float32), other["image"].astype(np.float32), rtol=0.01)


@pytest.mark.parametrize("dtype", [bool, np.int8, np.uint32, np.float16, jnp.bfloat16, jnp.float8_e5m2, np.complex64])
def test_columns_of_every_dtype(dtype: Any) -> None:
    rows = np.arange(16 * 64).reshape(16, 64).astype(dtype)
    ones = DeviceMap(lambda x: jnp.where(x == 0, x, jnp.ones_like(x)), elementwise=True)
    loader = Dataloader(rows, 16, mesh=mesh_of(GRID), partition=P("data", "model"), device_map=ones)
    expected = np.where(rows == 0, rows, np.ones_like(rows))
    np.testing.assert_array_equal(np.asarray(loader[0], np.complex64), expected.astype(np.complex64))
