"""Whatever the mesh, the owners, the spec and the shape.

The layouts of all processes are the array, cut as JAX cuts it.
"""

import math
from dataclasses import dataclass
from itertools import pairwise, product
from typing import Any

import jax
import numpy as np
from hypothesis import given, settings, strategies as st
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

from loadax.core.intervals import merge
from loadax.sharding.layout import Box, MeshGrid, axes_of, plan_leaf, positions, share_along
from tests.limits import examples

AXES = ("a", "b", "c")


@dataclass(frozen=True)
class Case:
    """A random mesh with random owners, and an array that a random spec cuts."""

    owners: np.ndarray[Any, np.dtype[np.int64]]
    spec: tuple[Any, ...]
    shape: tuple[int, ...]

    def grid(self, process: int = 0) -> MeshGrid:
        return MeshGrid(AXES[: self.owners.ndim], self.owners, process)


@st.composite
def cases(draw: st.DrawFn, devices: int = 64) -> Case:
    sizes = draw(st.lists(st.integers(1, 5), min_size=1, max_size=3).filter(lambda sizes: math.prod(sizes) <= devices))
    hosts = draw(st.integers(1, 8))
    flat = draw(st.lists(st.integers(0, hosts - 1), min_size=math.prod(sizes), max_size=math.prod(sizes)))
    rank = draw(st.integers(0, 3))
    axes = list(draw(st.permutations(AXES[: len(sizes)])))
    entries: list[Any] = []
    for _ in range(draw(st.integers(0, rank))):
        taken, axes = _split(axes, draw(st.integers(0, len(axes))))
        entries.append(taken[0] if len(taken) == 1 and draw(st.booleans()) else tuple(taken) if taken else None)
    counts = [math.prod(sizes[AXES.index(axis)] for axis in axes_of(entry)) for entry in entries]
    shape = [draw(st.integers(0, 3)) * count for count in counts + [1] * (rank - len(counts))]
    return Case(np.array(flat, np.int64).reshape(sizes), tuple(entries), tuple(shape))


def _split(axes: list[str], at: int) -> tuple[list[str], list[str]]:
    return axes[:at], axes[at:]


def box_of(case: Case, place: tuple[int, ...]) -> Box:
    """The slow, obvious oracle: one device, one dim at a time."""
    box = []
    for dim, size in enumerate(case.shape):
        start, extent = 0, size
        for axis in axes_of(case.spec[dim]) if dim < len(case.spec) else ():
            index = AXES.index(axis)
            extent //= case.owners.shape[index]
            start += place[index] * extent
        box.append((start, start + extent))
    return tuple(box)


def places_of(case: Case, process: int) -> list[tuple[int, ...]]:
    everywhere = product(*map(range, case.owners.shape))
    return [place for place in everywhere if case.owners[place] == process]


@given(cases())
def test_a_process_holds_exactly_the_boxes_of_its_devices(case: Case) -> None:
    for process in range(9):
        boxes = {box_of(case, place) for place in places_of(case, process)}
        layout = plan_leaf(case.grid(process), case.spec, case.shape)
        assert layout.boxes == tuple(sorted(boxes))
        devices = np.nonzero(case.owners == process)
        assert layout == plan_leaf(case.grid(0), case.spec, case.shape, devices)


@given(cases())
def test_the_boxes_of_all_processes_cover_the_array_and_are_equal_or_disjoint(case: Case) -> None:
    seen = np.zeros(case.shape, int)
    everyone: set[Box] = set()
    for process in range(8):
        everyone |= set(plan_leaf(case.grid(process), case.spec, case.shape).boxes)
    for box in everyone:
        seen[tuple(slice(*side) for side in box)] += 1
    assert (seen == 1).all()


@given(cases())
def test_rows_are_those_of_the_devices_each_once(case: Case) -> None:
    for process in range(8):
        layout = plan_leaf(case.grid(process), case.spec, case.shape)
        boxes = [box_of(case, place) for place in places_of(case, process)]
        rows = sorted({row for box in boxes if box for row in range(*box[0])})
        assert positions(layout.rows).tolist() == rows
        assert all(stop < start for (_, stop), (start, _) in pairwise(layout.rows))


@given(cases())
def test_groups_are_the_boxes_once_more_by_their_columns(case: Case) -> None:
    for process in range(8):
        layout = plan_leaf(case.grid(process), case.spec, case.shape)
        again = [((start, start + group.height), *group.columns) for group in layout.groups for start in group.starts]
        assert sorted(again) == (list(layout.boxes) if case.shape else [])
        columns = [group.columns for group in layout.groups]
        assert columns == sorted(set(columns))
        assert all(list(group.starts) == sorted(set(group.starts)) for group in layout.groups)


@given(cases(), st.sampled_from(["a", "b", "c", None, ("a", "b"), ("c", "a")]))
def test_shares_count_the_different_shards_of_each_process(case: Case, entry: Any) -> None:
    if any(axis not in AXES[: case.owners.ndim] for axis in axes_of(entry)):
        return
    total = math.prod(case.owners.shape[AXES.index(axis)] for axis in axes_of(entry))
    line = Case(case.owners, (entry,), (total,))
    held = {process: sorted({box_of(line, place)[0][0] for place in places_of(case, process)}) for process in range(8)}
    present = [process for process in held if held[process]]
    for process in range(8):
        share = share_along(case.grid(process), entry)
        assert share.held.tolist() == held[process]
        assert share.total == total
        assert share.processes.tolist() == present
        assert share.counts.tolist() == [len(held[process]) for process in present]


@settings(max_examples=examples(150))
@given(cases(devices=8), st.permutations(range(8)))
def test_boxes_are_those_of_jax(case: Case, order: list[int]) -> None:
    """On real meshes of some of the eight devices, in any order, as if the devices were owned by several processes."""
    devices = np.array(jax.devices(), object)[order[: case.owners.size]].reshape(case.owners.shape)
    sharding = NamedSharding(Mesh(devices, AXES[: devices.ndim]), P(*case.spec))
    indices = sharding.devices_indices_map(case.shape)
    owner = dict(zip(devices.flat, case.owners.flat, strict=True))
    for process in range(8):
        mine = [index for device, index in indices.items() if owner[device] == process]
        boxes = {tuple(part.indices(size)[:2] for part, size in zip(index, case.shape, strict=True)) for index in mine}
        assert set(plan_leaf(case.grid(process), P(*case.spec), case.shape).boxes) == boxes


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30))))
def test_merge_is_the_union_with_gaps_between(intervals: list[tuple[int, int]]) -> None:
    merged = merge(intervals)
    assert positions(merged).tolist() == sorted({number for interval in intervals for number in range(*interval)})
    assert all(stop < start for (_, stop), (start, _) in pairwise(merged))
