"""Rows written in pieces of any size form the boxes of the layout."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from jax.sharding import PartitionSpec as P

from loadax.core.buffers import aligned_bytes
from loadax.errors import LeafError
from loadax.loader.assembly.buffer_layout import BatchBuffers
from loadax.loader.assembly.host_shard import batch_specs, buffer_layout, resolve_shard
from loadax.protocols import ArraySpec
from loadax.sharding import plan_mesh


@settings(deadline=None)
@given(st.data())
def test_rows_in_any_pieces(data: st.DataObject) -> None:
    width, height, count = data.draw(st.integers(0, 70)), data.draw(st.integers(1, 5)), data.draw(st.integers(1, 4))
    dtype = np.dtype(data.draw(st.sampled_from(["u1", "i2", "f4"])))
    mesh = plan_mesh({"data": 4}, owners=data.draw(st.sampled_from([[0, 0, 0, 0], [1, 0, 1, 0], [0, 0, 1, 1]])))
    shard = resolve_shard(batch_specs(ArraySpec((width,), dtype), [])[0], 4 * height, mesh, P("data"), None)
    layout = buffer_layout(shard)
    memory = aligned_bytes(count * layout.bytes_per_step)
    buffers = BatchBuffers(layout, memory, count)
    total = len(shard.positions)
    rows = np.random.default_rng(0).integers(0, 100, (count * total, width)).astype(dtype)
    cuts = sorted({0, total, *data.draw(st.lists(st.integers(0, total)))})
    for low, high in data.draw(st.permutations(list(pairwise(cuts)))):
        buffers.write(0, low, high, rows.reshape(count, total, width)[:, low:high].reshape(count * (high - low), width))
    boxes = [box for step in range(count) for box in buffers.boxes(0, step)]
    assert all(box.flags.c_contiguous and (box.ctypes.data % 64 == 0 or not box.size) for box in boxes)
    np.testing.assert_array_equal(np.concatenate(boxes), rows)
    gapless = (height * width * dtype.itemsize) % 64 == 0
    straight = buffers.rows(0)
    assert (straight is not None) == gapless
    if straight is not None:
        assert np.shares_memory(straight, memory) or not straight.size
        np.testing.assert_array_equal(straight, rows)


@pytest.mark.parametrize(
    ("extent", "dtype", "partition", "whole"),
    [
        (16, "f4", P("data"), True),
        (16, "f4", P(), True),
        (16, "f4", P("data", "model"), False),  # columns in two tiles
        (5, "u1", P("data"), False),  # gaps between boxes
        (16, "f8", P("data"), False),  # placed as float32
    ],
)
def test_rows_that_can_be_written_whole(extent: int, dtype: str, partition: P, whole: bool) -> None:
    specs = {"x": ArraySpec((extent,), np.dtype(dtype))}
    shard = resolve_shard(batch_specs(specs, [])[0], 8, plan_mesh({"data": 2, "model": 2}, hosts=1), partition, None)
    layout = buffer_layout(shard)
    buffers = BatchBuffers(layout, aligned_bytes(2 * layout.bytes_per_step), 2)
    found = buffers.whole_rows(5, 11, [specs["x"]])
    assert (found is not None) == whole
    if found is not None:
        found[0][...] = np.arange(6 * extent).reshape(6, extent)
        rows = buffers.rows(0)
        assert rows is not None
        np.testing.assert_array_equal(rows[5:11], found[0])
    assert buffers.whole_rows(0, 1, [specs["x"], specs["x"]]) is None  # a leaf that is not placed


def test_no_two_boxes_share_a_byte() -> None:
    specs = {
        "a": ArraySpec((3, 5), np.dtype("u1")),
        "b": ArraySpec((), np.dtype("i8")),
        "c": ArraySpec((6,), np.dtype("f2")),
    }
    mesh = plan_mesh({"x": 2, "y": 2}, hosts=1)
    partition = {"a": P("x"), "b": P(("x", "y")), "c": P("y", "x")}
    layout = buffer_layout(resolve_shard(batch_specs(specs, [])[0], 8, mesh, partition, None))
    memory = aligned_bytes(3 * layout.bytes_per_step)
    buffers = BatchBuffers(layout, memory, 3)
    spans = []
    for step in range(3):
        for leaf in range(3):
            for box in buffers.boxes(leaf, step):
                start = box.ctypes.data - memory.ctypes.data
                spans.append((start, start + box.nbytes))
    spans.sort()
    assert len(spans) == 3 * (2 + 4 + 4)
    assert spans[0][0] >= 0
    assert spans[-1][1] <= len(memory) == 3 * layout.bytes_per_step
    assert all(one[1] <= other[0] for one, other in pairwise(spans))


def test_what_does_not_fit_names_its_leaf_also_between_gaps() -> None:
    mesh = plan_mesh({"data": 2}, hosts=1)
    layout = buffer_layout(
        resolve_shard(batch_specs({"id": ArraySpec((), np.dtype("i8"))}, [])[0], 4, mesh, P("data"), None)
    )
    buffers = BatchBuffers(layout, aligned_bytes(layout.bytes_per_step), 1)
    for low, high in ((0, 4), (1, 3)):
        with pytest.raises(LeafError, match=r"leaf \['id'\]: the int64 value 4294967296 does not fit int32"):
            buffers.write(0, low, high, np.full(high - low, 2**32))
