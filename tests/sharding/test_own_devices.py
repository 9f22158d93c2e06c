"""Programs on this process's devices. What spans processes is tested in `tests/processes/test_jax_runs.py`."""

import jax
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec as P

from loadax.sharding.own_devices import OwnDevices, Placed
from tests.loader.oracle import mesh_of


def placed(shape: tuple[int, ...], spec: P, dtype: type = np.float32, axis_type: AxisType = AxisType.Auto) -> Placed:
    mesh = mesh_of({"data": 4, "model": 2}, axis_type, seed=0)
    return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, spec))


def own(array: Placed) -> OwnDevices:
    assert isinstance(array.sharding, NamedSharding)
    assert isinstance(array.sharding.mesh, Mesh)
    return OwnDevices(array.sharding.mesh)


@pytest.mark.parametrize("axis_type", [AxisType.Auto, AxisType.Explicit])
def test_every_device_has_its_part_and_the_result_the_very_sharding(axis_type: AxisType) -> None:
    before, after = (
        placed((8, 6), P("data", "model"), axis_type=axis_type),
        placed((8,), P("data"), axis_type=axis_type),
    )
    devices = own(before)
    assert len(devices) == 8
    assert devices.part(before) == (2, 3)
    shapes = []

    def first(part: jax.Array) -> list[jax.Array]:
        shapes.append(part.shape)
        return [part[:, 0] * 0 + 7]

    program = devices.compile(first, [before], [after])
    for _ in range(3):
        (result,) = program([jax.device_put(np.zeros((8, 6), np.float32), before.sharding)])
        assert result.sharding == after.sharding
        np.testing.assert_array_equal(result, np.full(8, 7, np.float32))
    assert shapes == [(2, 3)]


def test_what_is_donated_is_gone() -> None:
    each = placed((8, 6), P("data"))
    program = own(each).compile(lambda part: [part + 1], [each], [each], donate=[0])
    (given,) = own(each).compile(lambda: [jax.numpy.zeros((2, 6))], [], [each])([])
    (result,) = program([given])
    assert given.is_deleted()
    np.testing.assert_array_equal(result, np.ones((8, 6), np.float32))


def test_wide_arrays_are_wide_on_any_thread() -> None:
    each = placed((8,), P("data"), np.int64)
    program = own(each).compile(lambda part: [part + 1], [each], [each])
    with jax.enable_x64(True):
        array = jax.device_put(np.arange(8) + 2**40, each.sharding)
    (result,) = program([array])
    assert result.dtype == np.int64
    np.testing.assert_array_equal(np.asarray(result), np.arange(8) + 2**40 + 1)
