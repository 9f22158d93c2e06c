import numpy as np
import pytest

from loadax.errors import PartitionError
from loadax.sharding import plan_mesh
from loadax.sharding.layout import ColumnGroup, LeafLayout, MeshGrid, axes_of, merge, plan_leaf, positions
from loadax.sharding.mesh import grid_of
from tests.work import lines_of

CHECKER = MeshGrid(("x", "y"), np.array([[0, 0, 1, 1], [1, 1, 0, 0]]), process=0)


def test_a_checkerboard_by_hand() -> None:
    assert plan_leaf(CHECKER, ("x", "y"), (4, 8)) == LeafLayout(
        shape=(4, 8),
        boxes=(((0, 2), (0, 2)), ((0, 2), (2, 4)), ((2, 4), (4, 6)), ((2, 4), (6, 8))),
        rows=((0, 4),),
        groups=tuple(ColumnGroup(((start, start + 2),), (0 if start < 4 else 2,), 2) for start in (0, 2, 4, 6)),
    )


def test_the_first_axis_of_a_pair_is_the_major_one() -> None:
    assert plan_leaf(CHECKER, (("x", "y"),), (8,)).rows == ((0, 2), (6, 8))
    assert plan_leaf(CHECKER, (("y", "x"),), (8,)).rows == ((0, 1), (2, 3), (5, 6), (7, 8))


def test_boxes_with_the_same_columns_are_one_group() -> None:
    grid = MeshGrid(("data",), np.array([0, 1, 0, 1]), process=1)
    assert plan_leaf(grid, ("data",), (8, 3)).groups == (ColumnGroup(((0, 3),), (2, 6), 2),)


def test_a_leaf_of_rank_zero_is_one_box_without_rows() -> None:
    assert plan_leaf(CHECKER, (), ()) == LeafLayout((), ((),), (), ())


def test_a_process_without_devices_holds_nothing() -> None:
    assert plan_leaf(CHECKER, ("x",), (4, 8), process=7) == LeafLayout((4, 8), (), (), ())
    assert plan_leaf(CHECKER, (), (), process=7) == LeafLayout((), (), (), ())


def test_a_dim_of_size_zero_is_one_empty_box() -> None:
    assert plan_leaf(CHECKER, (None, "y"), (4, 0)).boxes == (((0, 4), (0, 0)),)


def test_numbers_come_out_as_python_integers() -> None:
    layout = plan_leaf(CHECKER, ("x",), np.array([4, 8]))  # type: ignore[arg-type]
    assert {type(edge) for box in layout.boxes for side in box for edge in side} == {int}
    assert {type(size) for size in layout.shape} == {int}
    assert hash(layout) == hash(plan_leaf(CHECKER, ("x",), (4, 8)))


def test_a_dim_that_cannot_be_cut_is_an_error() -> None:
    with pytest.raises(
        PartitionError, match=r"dim 1 of an array of shape \(4, 10\) can't be split by 'y' into 4 equal parts"
    ):
        plan_leaf(CHECKER, ("x", "y"), (4, 10))


def test_an_unknown_axis_is_an_error() -> None:
    with pytest.raises(
        PartitionError, match=r"'z' names an axis that the mesh does not have; its axes are \['x', 'y'\]"
    ):
        plan_leaf(CHECKER, ("z",), (4,))


def test_a_spec_longer_than_the_shape_is_an_error() -> None:
    with pytest.raises(PartitionError, match=r"has 2 entries, but an array of shape \(4,\) has only 1 dims"):
        plan_leaf(CHECKER, ("x", "y"), (4,))


def test_axes_positions_and_merge_of_nothing() -> None:
    assert axes_of(()) == ()
    assert positions([]).dtype == np.int64
    assert len(positions([])) == 0
    assert merge([]) == ()
    assert merge([(3, 3), (5, 4)]) == ()


def test_of_four_thousand_hosts_one_plans_only_its_own_part() -> None:
    mesh = plan_mesh({"data": 512, "seq": 64}, hosts=4096, process=4095)
    assert lines_of(lambda: plan_leaf(grid_of(mesh), ("data", "seq"), (65536, 8192))) < 4096
    layout = plan_leaf(grid_of(mesh), ("data", "seq"), (65536, 8192))
    assert layout.rows == ((65408, 65536),)
    assert [group.columns for group in layout.groups] == [((start, start + 128),) for start in range(7168, 8192, 128)]
