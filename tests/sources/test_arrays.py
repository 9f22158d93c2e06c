"""Arrays in memory and mapped into it: any row, any columns, never the source's own memory."""

import tracemalloc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from numpy.typing import NDArray

from loadax import Dataloader, from_arrays
from loadax.core.spec import all_columns
from loadax.errors import RowIndexError, SourceError
from loadax.protocols import ArraySpec, Source
from loadax.sources.arrays import ArraySource

Array = NDArray[Any]
VALUES = np.arange(20 * 6 * 5, dtype=np.int32).reshape(20, 6, 5)
ROWS = np.array([19, 0, 7, 7, 3])


def mapped(path: Path) -> Array:
    np.save(path / "mapped.npy", VALUES)
    return np.load(path / "mapped.npy", mmap_mode="r")


LAYOUTS: dict[str, Callable[[Path], Any]] = {
    "contiguous": lambda _: VALUES,
    "fortran": lambda _: np.asfortranarray(VALUES),
    "every second row": lambda _: np.repeat(VALUES, 2, axis=0)[::2],
    "backwards": lambda _: VALUES[::-1, ::-1].copy()[::-1, ::-1],
    "transposed": lambda _: np.ascontiguousarray(VALUES.transpose(2, 0, 1)).transpose(1, 2, 0),
    "big-endian": lambda _: VALUES.astype(">i4"),
    "unaligned": lambda _: np.frombuffer(b"x" + VALUES.tobytes(), np.uint8)[1:].view(np.int32).reshape(VALUES.shape),
    "read-only": lambda _: np.frombuffer(VALUES.tobytes(), np.int32).reshape(VALUES.shape),
    "memory-mapped": mapped,
    "memory-mapped slice": lambda path: np.concatenate([VALUES[:3], mapped(path)])[3:],
    "a jax.Array": lambda _: jax.numpy.asarray(VALUES),
}
BOXES = [((0, 6), (0, 5)), ((2, 4), (0, 5)), ((0, 6), (1, 4)), ((5, 6), (4, 5)), ((0, 0), (0, 5))]


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())
def test_rows_come_out_native_whatever_the_layout(layout: Callable[[Path], Any], tmp_path: Path) -> None:
    given = layout(tmp_path)
    source = ArraySource(given)
    assert isinstance(source, Source)
    assert len(source) == 20
    assert source.spec == ArraySpec((6, 5), np.dtype(np.int32))
    assert source.spec.dtype.isnative
    batch = source.read(ROWS)
    assert (batch.dtype, type(batch)) == (np.dtype(np.int32), np.ndarray)
    np.testing.assert_array_equal(batch, VALUES[ROWS])
    assert batch.flags.writeable
    assert not np.shares_memory(batch, np.asarray(given))


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())
@pytest.mark.parametrize("box", BOXES)
def test_columns_are_what_reading_whole_rows_gives(layout: Callable[[Path], Any], box: Any, tmp_path: Path) -> None:
    source = ArraySource(layout(tmp_path))
    extents = tuple(stop - start for start, stop in box)
    expected = VALUES[ROWS][:, slice(*box[0]), slice(*box[1])]
    # Into memory of its own, and into a part of a larger one, as a slab of several devices is.
    whole = np.full((len(ROWS), *extents), -1, np.int32)
    within = np.full((len(ROWS) + 2, extents[0] + 1, extents[1] + 3), -1, np.int32)
    part = within[1:-1, 1:, 2:-1]
    for out in (whole, part):
        source.read_into(ROWS, [box], [out])
        np.testing.assert_array_equal(out, expected)
    assert (within[0] == -1).all()
    assert (within[:, 0] == -1).all()
    assert (within[..., :2] == -1).all()
    assert (within[..., -1] == -1).all()


def test_a_tree_is_read_leaf_by_leaf_and_a_leaf_may_be_left_out() -> None:
    tree = {"x": VALUES, "y": (np.arange(20), np.arange(20.0))}
    source = ArraySource(tree)
    batch = source.read(ROWS)
    np.testing.assert_array_equal(batch["y"][0], ROWS)
    out = np.full(5, -1.0)
    source.read_into(ROWS, [None, None, ()], [None, None, out])
    np.testing.assert_array_equal(out, ROWS)


def test_a_dtype_of_the_destination_is_kept() -> None:
    out = np.zeros((5, 6, 5), np.float64)
    ArraySource(VALUES).read_into(ROWS, [((0, 6), (0, 5))], [out])
    np.testing.assert_array_equal(out, VALUES[ROWS])


def test_no_rows_are_an_empty_batch() -> None:
    source = ArraySource({"x": VALUES})
    assert source.read(np.array([]))["x"].shape == (0, 6, 5)
    assert source.read(np.empty(0, np.int64))["x"].shape == (0, 6, 5)
    assert len(ArraySource(np.empty((0, 3)))) == 0


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", ["<f4", ">f4"])
def test_reading_some_rows_copies_those_alone(order: Any, dtype: str) -> None:
    large = np.zeros((50_000, 40), dtype, order=order)  # 8 MB
    source = ArraySource({"x": large})
    rows = np.arange(0, 50_000, 1000)
    out = np.zeros((50, 40), np.float32)
    tracemalloc.start()
    source.read(rows)
    source.read_into(rows, [((0, 40),)], [out])
    source.read_into(rows, [((5, 10),)], [out[:, :5]])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 200_000


def test_objects_and_strings_can_be_read() -> None:
    """So that a map may turn them into numbers."""
    source = ArraySource({"name": np.array(["a", "bb"]), "what": np.array([{"k": 1}, None], object)})
    batch = source.read(np.array([1, 0]))
    assert batch["name"].tolist() == ["bb", "a"]
    assert batch["what"].tolist() == [None, {"k": 1}]


@pytest.mark.parametrize(
    ("rows", "wrong"),
    [([0, 20, 5], 20), ([3, -4, 5], -4), ([0, 2**40], 2**40), (np.array([2**63], np.uint64), -(2**63))],
)
def test_row_out_of_range_is_named(rows: Any, wrong: int) -> None:
    source = ArraySource(VALUES)
    message = rf"row {wrong} is out of range: rows are at least 0 and below 20"
    with pytest.raises(RowIndexError, match=message):
        source.read(rows)
    with pytest.raises(RowIndexError, match=message):
        source.read_into(np.asarray(rows), [((0, 6), (0, 5))], [np.zeros((len(rows), 6, 5), np.int32)])


@pytest.mark.parametrize("rows", [[0.0, 1.0], np.array([True, False]), ["0"]])
def test_rows_that_are_no_integers(rows: Any) -> None:
    with pytest.raises(RowIndexError, match=r"rows are (float64|bool|<U1); pass integers"):
        ArraySource(VALUES).read(rows)


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({}, "the data has no arrays; pass at least one leaf"),
        ({"x": None}, "the data has no arrays; pass at least one leaf"),
        ({"x": [1, 2, 3]}, r"leaf \['x'\]\[0\] is int 1, not an array; pass NumPy .* numpy.array\(values\) of a list"),
        ({"x": ["a", "b"]}, r"leaf \['x'\]\[0\] is str 'a', .* numpy.array\(texts\), .* host_leaves=name\)"),
        ({"x": "text"}, r"leaf \['x'\] is str 'text', not an array"),
        ("t" * 500, r"leaf given is str 't{5,300}…, not an array"),
        (
            {"x": np.float32(3)},
            r"leaf \['x'\] is a scalar, float32 .*, without rows; give it a first dimension",
        ),
        (np.array(5), r"leaf given is a scalar"),
        (
            {"x": np.zeros(3), "y": np.zeros((4, 2))},
            r"different numbers of rows \(\['x'\]: 3, \['y'\]: 4\); dim 0 of every leaf must be equal",
        ),
    ],
)
def test_trees_without_rows_are_refused(tree: Any, message: str) -> None:
    with pytest.raises(SourceError, match=message):
        ArraySource(tree)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("count", [1, 3, 20])
@pytest.mark.parametrize("width", [1, 100], ids=["small rows", "large rows"])
def test_runs_of_rows_are_their_rows(layout: str, count: int, width: int, tmp_path: Path) -> None:
    given = np.repeat(LAYOUTS[layout](tmp_path), width, axis=1) if width > 1 else LAYOUTS[layout](tmp_path)
    array = np.asarray(given)
    source, first = ArraySource({"x": given, "n": np.arange(20)}), np.array([20 - count, 0, 0])
    rows = (first[:, None] + np.arange(count)).tolist()
    runs, numbers = np.empty((3, count, *array.shape[1:]), VALUES.dtype), np.empty((3, count), np.int64)
    source.read_spans_into(first, count, 1, [(), all_columns(array.shape[1:])], [numbers, runs])
    np.testing.assert_array_equal(runs, array[rows])
    np.testing.assert_array_equal(numbers, rows)
    surrounded = np.full((3, count + 2, 4, 5), -1, np.int32)
    source.read_spans_into(first, count, 1, [None, ((1, 5), (0, 5))], [None, surrounded[:, 1:-1]])
    np.testing.assert_array_equal(surrounded[:, 1:-1], array[rows][:, :, 1:5])
    assert (surrounded[:, [0, -1]] == -1).all()
    with pytest.raises(RowIndexError):
        source.read_spans_into(first + 1, count, 1, [(), None], [numbers, None])


def test_eight_threads_read_what_one_reads() -> None:
    source = ArraySource({"x": VALUES, "y": np.asfortranarray(VALUES)})
    asked = [np.random.default_rng(number).integers(0, 20, 500) for number in range(64)]
    with ThreadPoolExecutor(8) as threads:
        for rows, batch in zip(asked, threads.map(source.read, asked), strict=True):
            np.testing.assert_array_equal(batch["x"], VALUES[rows])
            np.testing.assert_array_equal(batch["y"], VALUES[rows])


def test_repr_says_where_the_arrays_are(tmp_path: Path) -> None:
    assert repr(ArraySource(VALUES)) == "arrays in memory"
    assert repr(ArraySource(mapped(tmp_path))) == "arrays memory-mapped"
    assert repr(ArraySource([VALUES, mapped(tmp_path)])) == "arrays in memory and memory-mapped"


def test_lists_of_texts_stay_on_the_host_as_their_error_says() -> None:
    texts = ["a", "b"] * 8
    with pytest.raises(SourceError, match=r"numpy.array\(texts\), .* in Dataloader\(…, host_leaves=name\)"):
        from_arrays({"t": texts, "x": np.arange(16)})
    loader = Dataloader({"t": np.array(texts), "x": np.arange(16)}, 8, host_leaves="t")
    assert loader.host(1).leaves["t"].tolist() == texts[8:]
