"""Arenas of rows: which leaves share rows, and what is gathered from them."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from loadax.core.buffers import aligned_bytes
from loadax.protocols import ArraySpec, Columns
from loadax.sources.wrappers import row_arena
from loadax.sources.wrappers.row_arena import RowArena, row_layouts

SHAPES: list[tuple[str, tuple[int, ...]]] = [("int32", ()), ("float32", (3,)), ("uint32", (2, 2)), ("float32", (100,))]
SPECS = [ArraySpec(shape, np.dtype(dtype)) for dtype, shape in SHAPES]
WHOLE: list[Columns | None] = [tuple((0, extent) for extent in spec.shape) for spec in SPECS]


def test_small_leaves_share_rows_and_large_ones_do_not() -> None:
    assert [layout.leaves for layout in row_layouts(SPECS, WHOLE)] == [(0, 1, 2), (3,)]
    assert [layout.width for layout in row_layouts(SPECS, WHOLE)] == [4 + 12 + 16, 400]  # no gaps, so no more memory


def test_leaves_are_as_large_as_their_stored_columns() -> None:
    stored: list[Columns | None] = [None, ((1, 2),), ((0, 2), (1, 2)), ((90, 100),)]
    assert [(each.leaves, each.width) for each in row_layouts(SPECS, stored)] == [((1, 2, 3), 4 + 8 + 40)]


def test_elements_are_aligned() -> None:
    """As those of any destination that a source is given."""
    specs = [ArraySpec((), np.dtype(dtype)) for dtype in ("bool", "float64", "int16", "uint8", "int64", "float16")]
    layouts = row_layouts(specs, [()] * 6)
    assert [layout.leaves for layout in layouts] == [(0, 3), (1, 4), (2, 5)]
    assert all(field.flags.aligned for layout in layouts for field in RowArena(layout, 3).fields)


def test_rows_are_no_wider_than_a_few_cache_lines() -> None:
    """A row of 10,000 columns would be gathered and split a few rows at a time."""
    layouts = row_layouts([ArraySpec((16,), np.dtype("float32"))] * 20, [((0, 16),)] * 20)
    assert [layout.width for layout in layouts] == [512, 512, 256]


@pytest.mark.parametrize("block", [100, 1 << 20])
@pytest.mark.parametrize("leaves", [(0, 1, 2), (1,), ()])
@pytest.mark.parametrize("scattered", [False, True])
@pytest.mark.parametrize("count", [0, 30])
def test_gathered_rows_are_those_of_an_indexed_copy(
    leaves: tuple[int, ...], count: int, scattered: bool, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For all leaves and some, all columns and some, in one block and in many, and where no row is cached."""
    monkeypatch.setattr(row_arena, "BLOCK", block)
    arena = RowArena(row_layouts(SPECS[:3], WHOLE[:3])[0], 20)
    generator = np.random.default_rng(0)
    for field in arena.fields:
        field[...] = generator.integers(0, 100, field.shape)
    places = generator.integers(0, 20, count)
    targets = generator.permutation(40)[:count] if scattered else None
    asked: list[Columns] = [(), ((1, 3),), ((0, 2), (0, 2))]
    boxes = [box if leaf in leaves else None for leaf, box in enumerate(asked)]
    out: list[NDArray[Any] | None] = [
        None
        if box is None
        else np.zeros((40 if scattered else count, *(stop - start for start, stop in box)), "float64")
        for box in boxes
    ]
    arena.gather(places, boxes, out, targets, aligned_bytes)
    for field, box, values in zip(arena.fields, boxes, out, strict=True):
        if box is not None and values is not None:
            expected = np.zeros_like(values)
            cuts: Any = (places, *(slice(*each) for each in box))
            expected[slice(None) if targets is None else targets] = field[cuts]
            np.testing.assert_array_equal(values, expected)
