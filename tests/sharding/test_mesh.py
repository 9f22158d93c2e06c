import threading
import warnings
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType, Mesh

from loadax.errors import ArgumentError, MeshError
from loadax.sharding import compat, data_parallel, fully_sharded, hybrid, plan_mesh
from loadax.sharding.mesh import axis_sizes, current_mesh, grid_of, resolve_mesh
from tests.meshes import ZOO
from tests.work_counts import lines_of, peak_of

AUTO = AxisType.Auto


@pytest.fixture
def mesh() -> Mesh:
    return Mesh(np.array(jax.devices()).reshape(2, 4), ("data", "model"))


def enter_legacy(mesh: Mesh) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return mesh.__enter__()


class TestCurrentMesh:
    def test_set_mesh_gives_the_very_object(self, mesh: Mesh) -> None:
        with jax.set_mesh(mesh):
            assert current_mesh() is mesh
        assert current_mesh() is None

    def test_the_old_context_gives_the_very_object_without_a_warning(self, mesh: Mesh) -> None:
        enter_legacy(mesh)
        try:
            assert current_mesh() is mesh  # warnings are errors here
            assert compat.legacy_mesh() is mesh
        finally:
            mesh.__exit__(None, None, None)
        assert current_mesh() is None

    @pytest.mark.parametrize("private", [None, SimpleNamespace(), SimpleNamespace(thread_resources=SimpleNamespace())])
    def test_goes_on_when_the_private_place_has_moved(
        self, mesh: Mesh, private: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(compat, "_mesh", private)
        assert compat.legacy_mesh() is None
        assert current_mesh() is None
        with jax.set_mesh(mesh):
            assert current_mesh() is mesh

    def test_is_of_this_thread_alone(self, mesh: Mesh) -> None:
        seen: list[Any] = []
        with jax.set_mesh(mesh):
            thread = threading.Thread(target=lambda: seen.append(current_mesh()))
            thread.start()
            thread.join()
        assert seen == [None]

    def test_inside_jit_is_an_error(self) -> None:
        with pytest.raises(MeshError, match=r"the current mesh isn't available inside jax.jit: call this outside"):
            jax.jit(lambda x: (current_mesh(), x)[1])(1)

    def test_is_cheap_enough_for_every_step(self, mesh: Mesh) -> None:
        with jax.set_mesh(mesh):
            assert lines_of(current_mesh) < 50


class TestResolveMesh:
    def test_takes_the_given_one_before_the_current_one(self, mesh: Mesh) -> None:
        with jax.set_mesh(data_parallel()):
            assert resolve_mesh(mesh) is mesh
            assert resolve_mesh() is data_parallel()
        planned = plan_mesh({"data": 2}, hosts=1)
        assert resolve_mesh(planned) is planned

    def test_without_any_it_is_all_devices_on_one_auto_axis(self) -> None:
        mesh = resolve_mesh()
        assert isinstance(mesh, Mesh)
        assert (mesh.axis_names, mesh.axis_types) == (("data",), (AUTO,))
        assert list(mesh.devices.flat) == jax.devices()

    @pytest.mark.parametrize(
        ("given", "error", "message"),
        [
            ("data", ArgumentError, "mesh='data' is a str: pass a jax.sharding.Mesh"),
            (jax.sharding.get_mesh(), MeshError, r"mesh=Mesh\(.*\) has no devices: pass a jax.sharding.Mesh"),
            (AbstractMesh((2,), ("data",)), MeshError, "mesh=AbstractMesh.* has no devices: pass a jax.sharding.Mesh"),
        ],
    )
    def test_meshes_without_devices_are_errors(self, given: Any, error: type[Exception], message: str) -> None:
        with pytest.raises(error, match=message):
            resolve_mesh(given)


class TestPlanMesh:
    def test_hosts_own_equal_runs(self) -> None:
        assert plan_mesh({"a": 2, "b": 4}, hosts=4).owners.tolist() == [[0, 0, 1, 1], [2, 2, 3, 3]]

    def test_repr(self) -> None:
        assert repr(plan_mesh({"data": 2}, owners=[3, 3], process=3)) == "PlannedMesh(data=2; 1 host, as process 3)"

    def test_its_owners_are_a_copy_that_nobody_changes(self) -> None:
        owners = np.array([0, 1])
        mesh = plan_mesh({"data": 2}, owners=owners)
        owners[0] = 5
        assert mesh.owners.tolist() == [0, 1]
        with pytest.raises(ValueError, match="read-only"):
            mesh.owners[0] = 5

    def test_a_process_may_own_nothing(self) -> None:
        assert plan_mesh({"data": 2}, hosts=1, process=9).process == 9

    @pytest.mark.parametrize(
        ("axes", "options", "message"),
        [
            ({}, {"hosts": 1}, "axes={}: pass a dict of axis names and positive sizes"),
            ({"data": 0}, {"hosts": 1}, r"axes\['data'\]=0: pass a dict of axis names and positive sizes"),
            ([("data", 2)], {"hosts": 1}, r"axes=\[\('data', 2\)\]: pass a dict of axis names"),
            ({"data": 8}, {}, "hosts=None and owners=None: give exactly one of the two"),
            ({"data": 2}, {"hosts": 1, "owners": [0, 0]}, r"hosts=1 and owners=\[0, 0\]: give exactly one"),
            ({"data": 8}, {"hosts": 3}, "hosts=3 can't own equal parts of the 8 devices of .* use a divisor of 8"),
            ({"data": 8}, {"hosts": 0}, "hosts=0: pass 1 or more"),
            ({"data": 2}, {"owners": [[0, 1]]}, r"owners has shape \(1, 2\), but the axes make a mesh of shape \(2,\)"),
            (
                {"data": 2},
                {"owners": [0, -1]},
                r"owners=\[0, -1\]: pass the process that owns each device, as integers",
            ),
            ({"data": 2}, {"owners": [0.0, 1.0]}, r"owners=\[0.0, 1.0\]: pass the process that owns"),
            ({"data": 2}, {"hosts": 1, "process": -1}, "process=-1: pass the number of the process to plan as"),
        ],
    )
    def test_errors(self, axes: Any, options: Any, message: str) -> None:
        with pytest.raises(ArgumentError, match=message):
            plan_mesh(axes, **options)


class TestGrid:
    def test_of_a_real_mesh(self, mesh: Mesh) -> None:
        grid = grid_of(mesh)
        assert (grid.axis_names, grid.process, grid.owners.tolist()) == (("data", "model"), 0, [[0] * 4] * 2)
        assert axis_sizes(mesh) == {"data": 2, "model": 4}

    @pytest.mark.parametrize("case", ZOO, ids=lambda case: case.name)
    def test_of_a_planned_mesh(self, case: Any) -> None:
        grid = grid_of(case.planned(1))
        assert (grid.axis_names, grid.process) == (case.axes, 1)
        np.testing.assert_array_equal(grid.owners, case.owners)
        assert axis_sizes(case.planned()) == dict(zip(case.axes, case.owners.shape, strict=True))

    def test_of_thousands_of_hosts_is_as_little_work_as_of_few(self) -> None:
        def of(hosts: int) -> None:
            grid_of(plan_mesh({"data": 512, "seq": 64}, hosts=hosts))

        assert lines_of(lambda: of(4096)) < 2 * lines_of(lambda: of(8))
        assert peak_of(lambda: of(4096)) < 100 * 512 * 64  # bytes a device


class TestPresets:
    def test_one_axis(self) -> None:
        for mesh, name in ((data_parallel(), "data"), (fully_sharded(), "fsdp")):
            assert (dict(mesh.shape), mesh.axis_types) == ({name: 8}, (AUTO,))
        chosen = jax.devices()[:3][::-1]
        assert list(data_parallel(chosen).devices) == chosen
        assert list(fully_sharded(chosen).devices) == chosen

    @pytest.mark.parametrize(
        ("options", "axes"),
        [
            ({}, {"data": 1, "fsdp": 8}),
            ({"inside": 4, "devices": jax.devices()[::-1]}, {"data": 2, "fsdp": 4}),  # sorted by process and id
            ({"between": 4}, {"data": 4, "fsdp": 2}),
            ({"inside": {"model": 2}, "between": 4}, {"data": 4, "model": 2}),
            ({"inside": {"fsdp": 2, "model": 2}, "between": {"slice": 2}}, {"slice": 2, "fsdp": 2, "model": 2}),
        ],
    )
    def test_hybrid(self, options: Any, axes: dict[str, int]) -> None:
        mesh = hybrid(**options)
        assert list(mesh.shape.items()) == list(axes.items())
        assert set(mesh.axis_types) == {AUTO}
        assert [device.id for device in mesh.devices.flat] == list(range(8))

    def test_hybrid_needs_inside_if_processes_have_different_numbers_of_devices(self) -> None:
        fakes: Any = [SimpleNamespace(process_index=process, id=number) for number, process in enumerate([0, 0, 1])]
        message = r"inside=None: devices per process differ, \[2, 1\]; pass inside="
        with pytest.raises(ArgumentError, match=message):
            hybrid(devices=fakes)

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"inside": 3}, "make a mesh of 6 devices, but there are 8: use sizes whose product is 8"),
            ({"between": 9}, "between={'data': 9} and inside={'fsdp': 1} make a mesh of 9 devices, but there are 8"),
            ({"inside": {"data": 2}}, "inside={'data': 2} and between={'data': 4} both name the axis 'data': rename"),
            ({"inside": 0}, r"inside\['fsdp'\]=0: pass a dict of axis names and positive sizes"),
            ({"between": "data"}, "between='data': pass a dict of axis names and positive sizes"),
            ({"devices": []}, r"devices=\[\] is empty: a mesh needs at least one"),
        ],
    )
    def test_hybrid_errors(self, options: Any, message: str) -> None:
        with pytest.raises(ArgumentError, match=message):
            hybrid(**options)
