"""What all hosts hold, at once: the same as asking for each of them."""

import math

import numpy as np
import pytest

from loadax.core.intervals import merge
from loadax.sharding.holdings import hold_leaf, hold_rows
from loadax.sharding.layout import plan_leaf, positions
from loadax.sharding.mesh import grid_of
from tests.meshes import ZOO, MeshCase


def specs_of(case: MeshCase) -> list[tuple[object, ...]]:
    first, last = case.axes[0], case.axes[-1]
    two = [(first, None, last), (None, (first, last)), (last, first)] if len(case.axes) > 1 else []
    return [(first,), (), (None, first), (None, None, last), (case.axes,), *two]


@pytest.mark.parametrize("case", ZOO, ids=lambda case: case.name)
def test_a_leaf_is_held_as_each_process_plans_it(case: MeshCase) -> None:
    grid, shape = grid_of(case.planned()), (16, 8, 8)
    for spec in specs_of(case):
        held = hold_leaf(grid, spec, shape)
        assert held.hosts == case.processes
        assert held.extents == tuple(size // cut for size, cut in zip(shape, held.cuts, strict=True))
        assert held.columns == math.prod(held.cuts[1:])
        for host in range(case.processes):
            layout = plan_leaf(grid._replace(process=host), spec, shape)
            boxes = []
            for shard in held.shard[held.host == host].tolist():
                place = np.unravel_index(shard, held.cuts)
                boxes.append(
                    tuple((int(at) * size, (int(at) + 1) * size) for at, size in zip(place, held.extents, strict=True))
                )
            assert tuple(boxes) == layout.boxes
            assert held.counts[host] == len(boxes)


@pytest.mark.parametrize("case", ZOO, ids=lambda case: case.name)
def test_rows_of_several_leaves_are_the_union_on_each_host(case: MeshCase) -> None:
    grid, specs = grid_of(case.planned()), specs_of(case)
    for one in specs:
        for other in specs:
            rows = hold_rows([hold_leaf(grid, spec, (16, 8, 8)) for spec in (one, other)])
            seen = np.zeros(16, np.int64)
            alike: dict[tuple[int, ...], list[int]] = {}
            for host in range(case.processes):
                its_grid = grid._replace(process=host)
                expected = positions(
                    merge(each for spec in (one, other) for each in plan_leaf(its_grid, spec, (16, 8, 8)).rows)
                )
                np.testing.assert_array_equal(rows.positions(host), expected)
                assert rows.counts[host] == len(expected)
                seen[expected] += 1
                alike.setdefault(tuple(expected.tolist()), []).append(host)
            np.testing.assert_array_equal(rows.copies, seen)
            assert [group.tolist() for group in rows.alike] == list(alike.values())
