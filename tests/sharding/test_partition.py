import re
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec as P, SingleDeviceSharding

from loadax.core.tree import flatten
from loadax.errors import ArgumentError, MeshError, PartitionError, UnsupportedError
from loadax.sharding import DataPartitionType, data_parallel, plan_mesh
from loadax.sharding.partition import resolve_partition

SHAPES = {"image": (16, 4, 8), "label": (16,), "nested": {"mask": (16, 8)}}
LEAVES, STRUCTURE = flatten(SHAPES, is_leaf=lambda node: isinstance(node, tuple))
PLANNED = plan_mesh({"data": 2, "model": 4}, hosts=2)


def real_mesh(axis_type: AxisType = AxisType.Auto) -> Mesh:
    return Mesh(np.array(jax.devices()).reshape(2, 4), ("data", "model"), axis_types=(axis_type,) * 2)


def resolve(partition: Any, mesh: Any = PLANNED) -> list[P]:
    return resolve_partition(partition, STRUCTURE, LEAVES, mesh)


@pytest.mark.parametrize(
    ("partition", "specs"),
    [
        (P("data"), [P("data")] * 3),
        (P(), [P()] * 3),
        (P(("model", "data")), [P(("model", "data"))] * 3),
        # For several leaves: cut to each one's rank, and otherwise as it was written.
        (P("data", None, "model"), [P("data", None, "model"), P("data"), P("data", None)]),
        (P("data", None), [P("data", None), P("data"), P("data", None)]),
        (
            {"image": P("data", "model"), "label": P(), "nested": P("data", "model")},
            [P("data", "model"), P(), P("data", "model")],
        ),
        ({"image": P(), "label": P("data"), "nested": {"mask": P(None, "model")}}, [P(), P("data"), P(None, "model")]),
        (DataPartitionType.FULL, [P(("data", "model"))] * 3),
        (DataPartitionType.REPLICATED, [P()] * 3),
        ({"image": P(), "label": DataPartitionType.FULL, "nested": P()}, [P(), P(("data", "model")), P()]),
    ],
)
@pytest.mark.parametrize("mesh", [PLANNED, "real"], ids=["planned", "real"])
def test_specs_and_prefixes(partition: Any, specs: list[P], mesh: Any) -> None:
    mesh = real_mesh() if mesh == "real" else mesh
    resolved = resolve(partition, mesh)
    assert resolved == specs
    assert [len(one) for one in resolved] == [len(other) for other in specs]
    if isinstance(mesh, Mesh):
        for spec, shape in zip(resolved, LEAVES, strict=True):
            NamedSharding(mesh, spec).devices_indices_map(shape)


def test_a_named_sharding_stands_for_its_spec() -> None:
    mesh = real_mesh()
    sharding = NamedSharding(mesh, P("data", "model"))
    assert resolve({"image": sharding, "label": P(), "nested": sharding}, mesh) == [
        P("data", "model"),
        P(),
        P("data", "model"),
    ]
    placed = jax.device_put(np.zeros((2, 4)), sharding).sharding
    assert resolve({"image": placed, "label": P(), "nested": P()}, mesh)[0] == P("data", "model")


@pytest.mark.parametrize("mesh", [PLANNED, real_mesh(AxisType.Explicit)], ids=["planned", "explicit"])
def test_a_named_sharding_on_another_mesh_is_an_error_that_shows_both(mesh: Any) -> None:
    other = real_mesh()
    message = f"the only leaf: its NamedSharding is on {other!r}, the loader on {mesh!r}: use one"
    with pytest.raises(MeshError, match=re.escape(message)):
        resolve_partition(NamedSharding(other, P("data")), flatten(0)[1], [(8,)], mesh)


def test_a_named_sharding_in_another_memory_is_not_supported() -> None:
    mesh = real_mesh()
    sharding = NamedSharding(mesh, P("data"), memory_kind="pinned_host")
    with pytest.raises(
        UnsupportedError, match=r"its partition has memory_kind='pinned_host', but .*: leave memory_kind out"
    ):
        resolve(sharding, mesh)


def test_none_is_the_rows_over_the_only_axis() -> None:
    assert resolve(None, data_parallel()) == [P("data")] * 3
    assert resolve(None, plan_mesh({"x": 4}, hosts=2)) == [P("x")] * 3


def test_a_tuple_of_specs_is_a_prefix() -> None:
    structure = flatten((0, 0))[1]
    assert resolve_partition((P("data"), P()), structure, [(4,), (4,)], PLANNED) == [P("data"), P()]


@pytest.mark.parametrize(
    ("partition", "error", "message"),
    [
        (
            {"image": P(), "label": None, "nested": P()},
            PartitionError,
            "leaf ['label']: its partition is None: use P()",
        ),
        (
            P("date"),
            PartitionError,
            "P('date') names the axis 'date', but the mesh has {'data': 2, 'model': 4}: use one",
        ),
        (P("data", None, "data"), PartitionError, "P('data', None, 'data') uses the axis 'data' twice: an axis can"),
        (P(("data", "data")), PartitionError, "uses the axis 'data' twice"),
        (
            {"image": P(), "label": P("data", None), "nested": P()},
            PartitionError,
            "leaf ['label'] has 1 dim, but P('data', None) has 2 entries: use P('data')",
        ),
        (P(P.UNCONSTRAINED), PartitionError, "has unreduced, reduced or unconstrained axes: leave"),
        (
            P(unreduced={"data"}),
            PartitionError,
            "axes: leave them out of host data",
        ),
        ((("batch", "data"), ("embed", "model")), ArgumentError, "partition: "),
        ("data", ArgumentError, "leaf ['image']: its partition is 'data', a str: write P('data')"),
        ({"image": P(), "label": P()}, ArgumentError, "the keys are ['image', 'label']; pass those of the data: ['im"),
        (3, ArgumentError, "3 is unexpected"),
        (SingleDeviceSharding(jax.devices()[0]), ArgumentError, "a SingleDeviceSharding: pass a PartitionSpec or a"),
    ],
)
def test_unsuitable_partition_says_why(partition: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=re.escape(message)):
        resolve(partition)


@pytest.mark.parametrize(
    ("spec", "shape", "message"),
    [
        (
            P(("data", "model")),
            (10,),
            "dim 0 has 10 rows, but P(('data', 'model')) splits it into 8 equal parts. Use a batch_size that is a",
        ),
        (
            P(None, "model"),
            (10, 101),
            "dim 1 has 101 columns, but P(None, 'model') splits it into 4 equal parts. Pad it to a multiple of 4 in a",
        ),
    ],
)
def test_batch_that_the_mesh_cannot_split_is_an_error(spec: P, shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(PartitionError, match=re.escape(message)):
        resolve_partition(spec, flatten({"tokens": 0})[1], [shape], PLANNED)


def test_a_leaf_without_dims_takes_any_spec_meant_for_several() -> None:
    structure = flatten({"x": 0, "step": 0})[1]
    assert resolve_partition(P("data"), structure, [(), (4,)], PLANNED) == [P(), P("data")]


def test_specs_of_logical_names_are_those_of_flax() -> None:
    flax = pytest.importorskip("flax.linen")
    rules = (("batch", "data"), ("embed", "model"))
    partition = flax.logical_to_mesh({"x": P("batch", "embed"), "y": P("batch")}, rules)  # as the docs say
    structure = flatten({"x": 0, "y": 0})[1]
    assert resolve_partition(partition, structure, [(8, 4), (8,)], PLANNED) == [P("data", "model"), P("data")]
    with pytest.raises(ArgumentError, match="partition: "):
        resolve_partition(rules, structure, [(8, 4), (8,)], PLANNED)


@pytest.mark.parametrize(
    ("sizes", "advice"),
    [
        ({"replica": 1, "data": 8, "model": 1}, 'partition=P("data")'),
        (
            {"replica": 2, "data": 4, "model": 1},
            'partition=P("replica"), or over all of them: partition=P(("replica", "data"))',
        ),
        ({"data": 1, "model": 1}, 'partition=P("data")'),
    ],
)
def test_the_axes_that_are_suggested_cut_the_batch(sizes: dict[str, int], advice: str) -> None:
    mesh, structure = plan_mesh(sizes, hosts=1), flatten({"x": 0})[1]
    with pytest.raises(PartitionError) as caught:
        resolve_partition(None, structure, [(8, 3)], mesh)
    assert str(caught.value).endswith(f"name the ones to split rows over: {advice}")
    for each in advice.split(", or over all of them: "):
        partition = eval(each.removeprefix("partition="), {"P": P})
        assert resolve_partition(partition, structure, [(8, 3)], mesh) == [partition]
