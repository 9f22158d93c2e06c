import numpy as np

from loadax.core.intervals import merge
from loadax.sharding import plan_mesh
from loadax.sharding.layout import ColumnGroup, LeafLayout, MeshGrid, plan_leaf, positions
from loadax.sharding.mesh import grid_of
from tests.work_counts import lines_of

CHECKER = MeshGrid(("x", "y"), np.array([[0, 0, 1, 1], [1, 1, 0, 0]]), process=0)


def test_a_checkerboard_by_hand() -> None:
    assert plan_leaf(CHECKER, ("x", "y"), (4, 8)) == LeafLayout(
        shape=(4, 8),
        boxes=(((0, 2), (0, 2)), ((0, 2), (2, 4)), ((2, 4), (4, 6)), ((2, 4), (6, 8))),
        rows=((0, 4),),
        groups=tuple(ColumnGroup(((start, start + 2),), (0 if start < 4 else 2,), 2) for start in (0, 2, 4, 6)),
    )


def test_numbers_come_out_as_python_integers() -> None:
    layout = plan_leaf(CHECKER, ("x",), np.array([4, 8]))  # type: ignore[arg-type]
    assert {type(edge) for box in layout.boxes for side in box for edge in side} == {int}
    assert {type(size) for size in layout.shape} == {int}
    assert hash(layout) == hash(plan_leaf(CHECKER, ("x",), (4, 8)))


def test_positions_and_merge_of_nothing() -> None:
    assert positions([]).dtype == np.int64
    assert len(positions([])) == 0
    assert merge([]) == merge([(3, 3), (5, 4)]) == ()


def test_of_four_thousand_hosts_one_plans_only_its_own_part() -> None:
    mesh = plan_mesh({"data": 512, "seq": 64}, hosts=4096, process=4095)
    assert lines_of(lambda: plan_leaf(grid_of(mesh), ("data", "seq"), (65536, 8192))) < 4096
    layout = plan_leaf(grid_of(mesh), ("data", "seq"), (65536, 8192))
    assert layout.rows == ((65408, 65536),)
    assert [group.columns for group in layout.groups] == [((start, start + 128),) for start in range(7168, 8192, 128)]
