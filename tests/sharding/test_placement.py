import re
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from itertools import product
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec as P

from loadax.core.buffers import aligned_empty
from loadax.errors import ArgumentError, LeafError, LeafTypeError, MeshError, PartitionError, UnsupportedError
from loadax.sharding import (
    DataPartitionType,
    data_parallel,
    global_to_host_array,
    plan_mesh,
    with_sharding_constraint,
)
from loadax.sharding.layout import LeafLayout, plan_leaf
from loadax.sharding.mesh import grid_of
from loadax.sharding.placement import host_local_to_global, host_to_global_device_array
from loadax.sharding.placer import Placer
from tests.work_counts import lines_of

FULL, REPLICATED = DataPartitionType.FULL, DataPartitionType.REPLICATED
AUTO, EXPLICIT = AxisType.Auto, AxisType.Explicit
WHOLE = np.arange(16 * 24, dtype=np.int32).reshape(16, 24)


def make_mesh(types: tuple[AxisType, AxisType] = (AUTO, AUTO)) -> Mesh:
    return Mesh(np.array(jax.devices()).reshape(2, 4), ("data", "model"), axis_types=types)


def check_shards(array: jax.Array, whole: np.ndarray[Any, Any]) -> None:
    assert (array.shape, array.dtype, array.weak_type) == (whole.shape, whole.dtype, False)
    for shard in array.addressable_shards:
        np.testing.assert_array_equal(np.asarray(shard.data), whole[shard.index])


def boxes_of(whole: np.ndarray[Any, Any], layout: LeafLayout) -> list[np.ndarray[Any, Any]]:
    buffers = []
    for box in layout.boxes:
        part = whole[tuple(slice(*side) for side in box)]
        buffers.append(aligned_empty(part.shape, part.dtype))
        buffers[-1][...] = part
    return buffers


class TestPlacer:
    def test_aligned_buffers_are_not_copied(self) -> None:
        mesh = data_parallel()
        layout = plan_leaf(grid_of(mesh), P("data"), WHOLE.shape)
        buffers = boxes_of(WHOLE, layout)
        array = Placer(layout, NamedSharding(mesh, P("data")), np.int32)(buffers)
        pointers = [shard.data.unsafe_buffer_pointer() for shard in array.addressable_shards]
        assert pointers == [buffer.ctypes.data for buffer in buffers]

    @pytest.mark.parametrize("name", ["int64", "uint64", "float64", "complex128", "bool", "uint8"])
    @pytest.mark.parametrize("spec", [P("data"), P()])
    def test_the_dtype_is_exact_on_a_thread_without_x64(self, name: str, spec: P) -> None:
        mesh = data_parallel()
        whole = (np.arange(8) % 2 + (2.0**40 if name.endswith(("64", "128")) else 0)).astype(name)
        layout = plan_leaf(grid_of(mesh), spec, whole.shape)
        placer = Placer(layout, NamedSharding(mesh, spec), name)
        with ThreadPoolExecutor(1, thread_name_prefix="test") as pool:
            array = pool.submit(placer, boxes_of(whole, layout)).result()
        check_shards(array, whole)

    def test_the_transfer_guard_lets_it_through(self) -> None:
        mesh = data_parallel()
        layout = plan_leaf(grid_of(mesh), P("data"), WHOLE.shape)
        with jax.transfer_guard("disallow_explicit"):
            array = Placer(layout, NamedSharding(mesh, P("data")), np.int32)(boxes_of(WHOLE, layout))
            np.testing.assert_array_equal(global_to_host_array(array), WHOLE)

    @pytest.mark.parametrize("shape", [(), (8, 0), (0, 3)])
    def test_scalars_and_empty_leaves(self, shape: tuple[int, ...]) -> None:
        mesh, spec = data_parallel(), P(*(["data"] if shape else []))
        layout = plan_leaf(grid_of(mesh), spec, shape)
        whole = np.full(shape, 3, np.int16)
        check_shards(Placer(layout, NamedSharding(mesh, spec), np.int16)(boxes_of(whole, layout)), whole)

    def test_it_adds_little_to_what_jax_does(self) -> None:
        mesh, whole = data_parallel(), np.zeros((256, 1024), np.int32)
        layout, sharding = plan_leaf(grid_of(mesh), P("data"), whole.shape), NamedSharding(mesh, P("data"))
        buffers = boxes_of(whole, layout)
        placer = Placer(layout, sharding, np.int32)

        def bare() -> jax.Array:
            parts = iter(buffers)
            return jax.make_array_from_callback(whole.shape, sharding, lambda index: next(parts), dtype=np.int32)

        placer(buffers), bare()  # JAX caches some of its work
        assert lines_of(lambda: placer(buffers)) - lines_of(bare) < 200


class TestHostToGlobal:
    @pytest.mark.parametrize("types", [(AUTO, AUTO), (EXPLICIT, EXPLICIT)])
    @pytest.mark.parametrize("given", [True, False])
    def test_there_and_back(self, types: Any, given: bool) -> None:
        mesh = make_mesh(types)
        tree = {"x": WHOLE, "y": [WHOLE[:, 0].astype(np.float32), None]}
        with nullcontext() if given else jax.set_mesh(mesh):
            array = host_to_global_device_array(tree, mesh=mesh if given else None)
        assert array["x"].sharding == NamedSharding(mesh, P(("data", "model")))
        assert array["x"].sharding.mesh is mesh
        check_shards(array["x"], WHOLE)
        jax.tree.map(np.testing.assert_array_equal, global_to_host_array(array), tree)

    def test_replicated(self) -> None:
        mesh = make_mesh()
        array = host_to_global_device_array(
            {"w": WHOLE, "rate": 0.5, "step": 3, "on": True}, partition=REPLICATED, mesh=mesh
        )
        assert {leaf.sharding for leaf in jax.tree.leaves(array)} == {NamedSharding(mesh, P())}
        assert {name: leaf.dtype.name for name, leaf in array.items()} == {
            "w": "int32", "rate": "float32", "step": "int32", "on": "bool",
        }  # fmt: skip
        assert not any(leaf.weak_type for leaf in array.values())
        back = global_to_host_array(array, partition=REPLICATED)
        np.testing.assert_array_equal(back["w"], WHOLE)
        assert (back["rate"], back["step"], back["on"]) == (0.5, 3, True)

    @pytest.mark.parametrize("partition", [FULL, REPLICATED])
    def test_writing_to_the_input_later_changes_nothing(self, partition: DataPartitionType) -> None:
        source = aligned_empty(WHOLE.shape, np.int32)
        source[...] = WHOLE
        array = host_to_global_device_array(source, partition=partition, mesh=data_parallel())
        source[...] = -1
        check_shards(array, WHOLE)

    def test_fetched_arrays_are_the_callers_own(self) -> None:
        array = host_to_global_device_array({"x": WHOLE, "s": np.arange(8)}, mesh=data_parallel())
        global_to_host_array(array)["x"][...] = -1
        check_shards(array["x"], WHOLE)
        scalar = host_to_global_device_array(3, partition=REPLICATED, mesh=data_parallel())
        global_to_host_array(scalar)[...] = 4
        assert int(scalar) == 3

    def test_x64_and_strided_inputs(self) -> None:
        strided = (WHOLE + np.int64(2**40)).T[:, ::2]
        with jax.enable_x64(True):
            check_shards(host_to_global_device_array(strided, mesh=data_parallel()), strided)

    @pytest.mark.parametrize(
        ("mesh", "message"),
        [
            (None, r"loadax needs a mesh: pass mesh=\.\.\., or .*thread-local; this thread \('MainThread'\) has none"),
            (plan_mesh({"data": 8}, hosts=1), "has no devices to place on: pass a jax.sharding.Mesh"),
        ],
    )
    def test_placing_needs_a_mesh_with_devices(self, mesh: Any, message: str) -> None:
        with pytest.raises(MeshError, match=message):
            host_to_global_device_array(WHOLE, mesh=mesh)

    @pytest.mark.parametrize("partition", ["full", None, P("data")])
    def test_another_partition_is_not_implemented(self, partition: Any) -> None:
        message = re.escape(f"partition={partition!r}: pass DataPartitionType.FULL or DataPartitionType.REPLICATED")
        for place_or_fetch in (partial(host_to_global_device_array, mesh=data_parallel()), global_to_host_array):
            with pytest.raises(UnsupportedError, match=message) as caught:
                place_or_fetch(WHOLE, partition=partition)
            assert isinstance(caught.value, NotImplementedError)

    @pytest.mark.parametrize(
        ("leaf", "error", "message"),
        [
            (np.zeros((10, 3)), PartitionError, "dim 0 has local size 10, but this process holds 8 of the 8 shards of"),
            (3.5, PartitionError, "is a scalar, 3.5: use DataPartitionType.REPLICATED"),
            (
                np.array(["a"] * 8),
                LeafTypeError,
                "has dtype <U1; JAX arrays are numeric. Drop it or encode it in a map",
            ),
            (np.full(8, 2**40), LeafError, f"the int64 value {2**40} does not fit int32. Set jax_enable_x64"),
        ],
    )
    def test_leaves_that_cannot_be_placed(self, leaf: Any, error: type[Exception], message: str) -> None:
        with pytest.raises(error, match=re.escape("leaf ['bad']") + ".*" + re.escape(message)):
            host_to_global_device_array({"a": WHOLE, "bad": leaf}, mesh=data_parallel())


class TestGlobalToHost:
    @pytest.mark.parametrize("spec", [P(), P("data"), P("model", "data"), P(None, "model"), P(("model", "data"))])
    def test_any_sharding_of_devices_of_this_process(self, spec: P) -> None:
        array = jax.device_put(WHOLE, NamedSharding(make_mesh(), spec))
        np.testing.assert_array_equal(global_to_host_array(array), WHOLE)
        fetched = global_to_host_array(array)
        assert fetched.flags.owndata or fetched.base.flags.writeable

    def test_arrays_on_one_device_and_results_of_jit(self) -> None:
        np.testing.assert_array_equal(global_to_host_array(jax.numpy.asarray(WHOLE)), WHOLE)
        array = jax.device_put(WHOLE, NamedSharding(make_mesh(), P("model")))
        np.testing.assert_array_equal(global_to_host_array(jax.jit(lambda x: x.T)(array)), WHOLE.T)

    def test_replicated_wants_replicated_arrays(self) -> None:
        array = jax.device_put(WHOLE, NamedSharding(make_mesh(), P("data")))
        message = r"leaf \['x'\] is not fully replicated on this process; its sharding is NamedSharding"
        with pytest.raises(PartitionError, match=message):
            global_to_host_array({"x": array}, partition=REPLICATED)

    @pytest.mark.parametrize("leaf", [WHOLE, 3, "text"])
    def test_only_jax_arrays_are_fetched(self, leaf: Any) -> None:
        message = rf"leaf \['x'\] is an? {type(leaf).__name__}, not a jax.Array: fetch placed arrays"
        with pytest.raises(LeafTypeError, match=message):
            global_to_host_array({"x": leaf})

    def test_traced_arrays_and_keys_are_not_fetched(self) -> None:
        with pytest.raises(LeafTypeError, match=r"not a jax.Array: fetch placed arrays, outside jit"):
            jax.jit(global_to_host_array)(WHOLE)
        with pytest.raises(LeafTypeError, match=r"key<fry>, which NumPy lacks: fetch jax.random.key_data\(it\)"):
            global_to_host_array(jax.random.key(0))


class TestHostLocalToGlobal:
    def test_a_prefix_of_specs(self) -> None:
        mesh = make_mesh()
        specs = {"x": P("data", "model"), "rest": P("model")}
        out = host_local_to_global({"x": WHOLE, "rest": [WHOLE, WHOLE[:, 0]]}, mesh, specs)
        assert [leaf.sharding.spec for leaf in jax.tree.leaves(out)] == [P("model"), P("model"), P("data", "model")]
        check_shards(out["x"], WHOLE)
        check_shards(out["rest"][1], WHOLE[:, 0])

    def test_a_scalar_is_replicated(self) -> None:
        assert int(host_local_to_global(3, make_mesh(), P())) == 3

    @pytest.mark.parametrize(
        ("specs", "error", "message"),
        [
            (None, ArgumentError, "pspecs contains None: pass a PartitionSpec; P() replicates"),
            ({"y": P()}, ArgumentError, "pspecs={'y': P()} is not a pytree prefix of the arrays"),
            (
                P("rows"),
                PartitionError,
                "leaf ['x']: P('rows') names the axis 'rows', but the mesh has {'data': 2",
            ),
            (
                P(None, ("data", "model")),
                PartitionError,
                "leaf ['x']: dim 1 has local size 20, but this process holds 8",
            ),
        ],
    )
    def test_specs_that_do_not_fit(self, specs: Any, error: type[Exception], message: str) -> None:
        with pytest.raises(error, match=re.escape(message)):
            host_local_to_global({"x": WHOLE[:, :20]}, make_mesh(), specs)

    def test_a_mesh_is_needed(self) -> None:
        with pytest.raises(ArgumentError, match="mesh='data' is a str"):
            host_local_to_global(WHOLE, "data", P())  # type: ignore[arg-type]


class TestConstraint:
    SPECS = (P("data"), P("model"), P("data", "model"), P("model", "data"), P())
    BOTH = P(None, ("data", "model"))

    @pytest.mark.parametrize(
        ("types", "spec"),
        [
            *product([(AUTO, AUTO), (EXPLICIT, EXPLICIT)], (*SPECS, BOTH)),
            *product([(AUTO, EXPLICIT), (EXPLICIT, AUTO)], SPECS),
        ],
    )
    @pytest.mark.parametrize("jit", [False, True], ids=["eager", "jit"])
    @pytest.mark.parametrize("how", ["spec", "sharding"])
    def test_the_result_is_sharded_so(self, spec: P, types: Any, jit: bool, how: str) -> None:
        mesh = make_mesh(types)
        sharding = NamedSharding(mesh, spec)
        with jax.set_mesh(mesh):
            x = host_to_global_device_array(WHOLE, partition=REPLICATED)
            constrain = partial(with_sharding_constraint, shardings=spec if how == "spec" else sharding)
            out = (jax.jit(constrain) if jit else constrain)(x)
        assert out.sharding.is_equivalent_to(sharding, 2)
        np.testing.assert_array_equal(np.asarray(out), WHOLE)

    @pytest.mark.parametrize("jit", [False, True], ids=["eager", "jit"])
    def test_inside_the_old_context(self, jit: bool) -> None:
        mesh = make_mesh()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with mesh:
                constrain = partial(with_sharding_constraint, shardings=P("model"))
                out = (jax.jit(constrain) if jit else constrain)(jax.numpy.asarray(WHOLE))
        assert out.sharding.is_equivalent_to(NamedSharding(mesh, P("model")), 2)

    def test_a_prefix(self) -> None:
        mesh = make_mesh()
        tree = {"a": jax.numpy.asarray(WHOLE), "b": [jax.numpy.asarray(WHOLE)] * 2}
        out = with_sharding_constraint(
            tree, {"a": NamedSharding(mesh, P("data")), "b": NamedSharding(mesh, P("model"))}
        )
        assert [leaf.sharding.spec for leaf in jax.tree.leaves(out)] == [P("data"), P("model"), P("model")]

    def test_without_a_mesh_or_on_one_device_it_is_x_itself(self) -> None:
        tree = {"a": WHOLE}
        assert with_sharding_constraint(tree, P("data")) is tree
        one = data_parallel(jax.devices()[:1])
        assert with_sharding_constraint(tree, {"a": NamedSharding(one, P("data"))}) is tree
        assert with_sharding_constraint(tree, NamedSharding(one, P("data")).with_memory_kind("device")) is tree
        with jax.set_mesh(one):
            assert with_sharding_constraint(tree, P("data")) is tree

    def test_one_dim_cut_by_axes_of_both_kinds_is_not_supported(self) -> None:
        sharding = NamedSharding(make_mesh((AUTO, EXPLICIT)), P(("data", "model")))
        message = "splits a dim over Auto and Explicit axes of .*: use one kind for each dim"
        with pytest.raises(UnsupportedError, match=message):
            with_sharding_constraint(jax.numpy.asarray(WHOLE), sharding)

    @pytest.mark.parametrize(
        ("shardings", "message"),
        [
            (None, "shardings contains None: pass a PartitionSpec; P() replicates"),
            ({"a": "data"}, "shardings contains 'data'"),
            ({"b": P("data")}, "is not a pytree prefix of the arrays"),
        ],
    )
    def test_errors(self, shardings: Any, message: str) -> None:
        with jax.set_mesh(make_mesh()), pytest.raises(ArgumentError, match=re.escape(message)):
            with_sharding_constraint({"a": WHOLE}, shardings)
