"""TensorStore arrays of several drivers.

Any rows, only the columns that are wanted, and no zeros for what is missing.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorstore as ts

from loadax.errors import SourceError
from loadax.protocols import ArraySpec, Source
from loadax.sources.zarr.source import TensorStoreSource

VALUES = np.arange(1, 1 + 20 * 6 * 4, dtype=np.int32).reshape(20, 6, 4)
ROWS = np.array([19, 0, 7, 7, 3])
ZARR = {"driver": "zarr", "metadata": {"chunks": [4, 3, 2]}}
ZARR3 = {
    "driver": "zarr3",
    "metadata": {"chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [4, 3, 2]}}},
}
SHARDED = {
    "driver": "zarr3",
    "metadata": {
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [8, 6, 4]}},
        "codecs": [{"name": "sharding_indexed", "configuration": {"chunk_shape": [4, 3, 2]}}],
    },
}
N5 = {"driver": "n5", "metadata": {"blockSize": [4, 3, 2], "compression": {"type": "gzip"}}}
BIG_ENDIAN = {"driver": "zarr", "metadata": {"chunks": [4, 3, 2], "dtype": ">i4"}}
DRIVERS = {"zarr": ZARR, "zarr3": ZARR3, "sharded": SHARDED, "n5": N5, "big-endian": BIG_ENDIAN}


def write(folder: Path, spec: dict[str, Any] = ZARR3, values: Any = VALUES) -> dict[str, Any]:
    """Writes an array; the spec that opens it."""
    short = {"driver": spec["driver"], "kvstore": {"driver": "file", "path": f"{folder}/"}}
    store = ts.open(
        {**short, "metadata": spec["metadata"]}, create=True, dtype=values.dtype, shape=values.shape
    ).result()
    store.write(values).result()
    return short


def in_memory(values: Any = VALUES) -> ts.TensorStore:
    store = ts.open({**ZARR3, "kvstore": "memory://x/"}, create=True, dtype=ts.int32, shape=values.shape).result()
    store.write(values).result()
    return store


@pytest.mark.parametrize("spec", DRIVERS.values(), ids=DRIVERS.keys())
def test_rows_are_read_in_any_order(spec: dict[str, Any], tmp_path: Path) -> None:
    source = TensorStoreSource(write(tmp_path, spec))
    assert isinstance(source, Source)
    assert len(source) == 20
    assert source.spec == ArraySpec((6, 4), np.dtype(np.int32))
    batch = source.read(ROWS)
    assert batch.dtype == np.int32
    assert batch.dtype.isnative
    np.testing.assert_array_equal(batch, VALUES[ROWS])
    assert source.read(np.empty(0, np.int64)).shape == (0, 6, 4)
    assert source.read(np.array([3], np.uint64)).tolist() == VALUES[[3]].tolist()


@pytest.mark.parametrize("spec", DRIVERS.values(), ids=DRIVERS.keys())
@pytest.mark.parametrize("box", [((0, 6), (0, 4)), ((3, 6), (0, 4)), ((2, 4), (1, 3)), ((5, 6), (0, 1))])
def test_columns_are_what_reading_whole_rows_gives(spec: dict[str, Any], box: Any, tmp_path: Path) -> None:
    source = TensorStoreSource(write(tmp_path, spec))
    extents = tuple(stop - start for start, stop in box)
    expected = VALUES[ROWS][:, slice(*box[0]), slice(*box[1])]
    whole = np.full((5, *extents), -1, np.int32)
    within = np.full((7, extents[0], extents[1] + 3), -1, np.int32)
    for out in (whole, within[1:-1, :, 2:-1]):
        source.read_into(ROWS, [box], [out])
        np.testing.assert_array_equal(out, expected)
    assert (within[[0, -1]] == -1).all()
    assert (within[..., [0, 1, -1]] == -1).all()


def chunk_reads() -> int:
    metric = ts.experimental_collect_matching_metrics("/tensorstore/kvstore/file/read")
    return int(sum(value["value"] for each in metric if each["name"].endswith("/read") for value in each["values"]))


def test_only_the_chunks_of_wanted_columns_are_asked_for(tmp_path: Path) -> None:
    source = TensorStoreSource(write(tmp_path))
    out = np.zeros((8, 3, 2), np.int32)
    before = chunk_reads()
    source.read_into(np.arange(8), [((3, 6), (2, 4))], [out])
    assert chunk_reads() - before == 2  # 2 row chunks of 5, 1 column chunk of 4
    source.read(np.arange(8))
    assert chunk_reads() - before >= 2 + 6


def test_columns_that_nobody_holds_need_not_exist(tmp_path: Path) -> None:
    source = TensorStoreSource({"x": write(tmp_path / "x"), "y": write(tmp_path / "y")})
    for chunk in (tmp_path / "x" / "c").glob("*/1/*"):
        chunk.unlink()
    for chunk in (tmp_path / "y" / "c").glob("*/*/*"):
        chunk.unlink()
    out = np.zeros((5, 3, 4), np.int32)
    source.read_into(ROWS, [((0, 3), (0, 4)), None], [out, None])
    np.testing.assert_array_equal(out, VALUES[ROWS][:, :3])
    with pytest.raises(SourceError, match=r"leaf \['x'\] at file://.*: NOT_FOUND: chunk"):
        source.read_into(ROWS, [((2, 4), (0, 4)), None], [np.zeros((5, 2, 4), np.int32), None])


MISSING = (
    r"{}.*: NOT_FOUND: chunk .* is missing; "
    r"the copy is incomplete, or its writer left out chunks .*: copy it again, or pass missing='fill'"
)


FORMS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "dict": lambda spec: spec,
    "lenient dict": lambda spec: {**spec, "fill_missing_data_reads": True},
    "spec": ts.Spec,
    "store": lambda spec: ts.open(spec).result(),
    "strict store": lambda spec: ts.open({**spec, "fill_missing_data_reads": False}).result(),
    "driver found by opening": lambda spec: {"driver": "auto", "kvstore": spec["kvstore"]},
    "url": lambda spec: f"file://{spec['kvstore']['path']}",
    "url with a driver": lambda spec: f"file://{spec['kvstore']['path']}|{spec['driver']}:",
    "cast": lambda spec: {"driver": "cast", "dtype": "int64", "base": spec},
    "open cast": lambda spec: ts.cast(ts.open(spec).result(), ts.int64),
    "stack": lambda spec: ts.concat([ts.open(spec).result()], axis=0),
    "two casts": lambda spec: FORMS["cast"]({"driver": "cast", "dtype": "int32", "base": spec}),
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_a_missing_chunk_is_an_error_however_the_store_was_given(
    form: Callable[[dict[str, Any]], Any], tmp_path: Path
) -> None:
    given = form(write(tmp_path))
    np.testing.assert_array_equal(TensorStoreSource(given).read(ROWS), VALUES[ROWS])
    (tmp_path / "c" / "0" / "1" / "0").unlink()
    source = TensorStoreSource({"x": form(spec_of(tmp_path))})
    np.testing.assert_array_equal(source.read(np.array([4, 19]))["x"], VALUES[[4, 19]])
    with pytest.raises(SourceError, match=MISSING.format(r"leaf \['x'\]")):
        source.read(np.array([4, 3]))
    with pytest.raises(SourceError, match=MISSING.format(r"leaf \['x'\]")):
        source.read_into(np.array([4, 3]), [((0, 6), (0, 4))], [np.zeros((2, 6, 4), source.spec["x"].dtype)])


def spec_of(folder: Path) -> dict[str, Any]:
    return {"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{folder}/"}}


@pytest.mark.parametrize("spec", [ZARR, SHARDED, N5], ids=["zarr", "sharded", "n5"])
def test_a_missing_chunk_is_an_error_for_every_driver(spec: dict[str, Any], tmp_path: Path) -> None:
    short = write(tmp_path, spec)
    for file in tmp_path.rglob("*"):
        if file.is_file() and file.name not in ("zarr.json", ".zarray", "attributes.json"):
            file.unlink()
    with pytest.raises(SourceError, match=MISSING.format("the store")):
        TensorStoreSource(short).read(ROWS)


def test_the_message_leaves_the_dump_of_the_spec_out(tmp_path: Path) -> None:
    short = write(tmp_path)
    (tmp_path / "c" / "0" / "1" / "0").unlink()
    with pytest.raises(SourceError) as caught:
        TensorStoreSource(short).read(np.array([0]))
    assert len(str(caught.value)) < 400
    assert "tensorstore_spec" not in str(caught.value)


def test_a_store_in_memory_is_read_where_it_is() -> None:
    store = in_memory()
    np.testing.assert_array_equal(TensorStoreSource(store).read(ROWS), VALUES[ROWS])
    holed = ts.open({**ZARR3, "kvstore": "memory://y/"}, create=True, dtype=ts.int32, shape=[20, 6, 4]).result()
    holed[4:].write(VALUES[4:]).result()
    source = TensorStoreSource({"x": holed})
    np.testing.assert_array_equal(source.read(np.array([4, 19]))["x"], VALUES[[4, 19]])
    with pytest.raises(SourceError, match=MISSING.format(r"leaf \['x'\]")):
        source.read(np.array([3]))


def test_a_wrapped_store_in_memory_is_taken_when_it_is_strict() -> None:
    base = in_memory()
    assert base.kvstore is not None
    with pytest.raises(
        SourceError,
        match=r"leaf \['x'\] at memory://x/ can't be reopened with missing chunks as errors: "
        r".*open it yourself with",
    ):
        TensorStoreSource({"x": ts.cast(base, ts.int64)})
    strict = ts.open(
        {"driver": "zarr3", "fill_missing_data_reads": False},
        kvstore=base.kvstore.spec(retain_context=True),
    )
    np.testing.assert_array_equal(TensorStoreSource(ts.cast(strict.result(), ts.int64)).read(ROWS), VALUES[ROWS])


VIEWS: dict[str, Callable[[ts.TensorStore], tuple[Any, Any]]] = {
    "sliced": lambda store: (store[5:15, 1:4], VALUES[5:15, 1:4]),
    "moved": lambda store: (store[ts.d[0, 1].translate_by[100, -3]], VALUES),
    "strided": lambda store: (store[2:20:3], VALUES[2:20:3]),
    "backwards": lambda store: (store[ts.d[0][19:0:-1]], VALUES[19:0:-1]),
    "one column": lambda store: (store[:, 2], VALUES[:, 2]),
    "transposed": lambda store: (store.T, VALUES.T),
    "by a list": lambda store: (store[[7, 2, 2]], VALUES[[7, 2, 2]]),
}


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS.keys())
@pytest.mark.parametrize("where", ["memory", "file"])
def test_a_view_of_an_open_store_is_a_dataset_of_the_view(
    view: Callable[[Any], Any], where: str, tmp_path: Path
) -> None:
    """Rows and columns count from 0, wherever the view's own indices begin."""
    store, expected = view(in_memory() if where == "memory" else ts.open(write(tmp_path)).result())
    source = TensorStoreSource(store)
    assert (len(source), source.spec.shape) == (len(expected), expected.shape[1:])
    rows = np.array([len(expected) - 1, 0, 1])
    np.testing.assert_array_equal(source.read(rows), expected[rows])
    box = tuple((extent // 2, extent) for extent in expected.shape[1:])
    out = np.zeros((3, *(stop - start for start, stop in box)), np.int32)
    source.read_into(rows, [box], [out])
    np.testing.assert_array_equal(out, expected[rows][(slice(None), *(slice(*each) for each in box))])


def test_a_spec_may_carry_a_transform(tmp_path: Path) -> None:
    short = write(tmp_path)
    view = ts.open(short).result()[5:15, ts.newaxis, 1:4].spec()
    np.testing.assert_array_equal(TensorStoreSource(view).read(np.array([0, 9])), VALUES[[5, 14], None, 1:4])


def test_arrays_and_computed_stores_are_stores_too() -> None:
    np.testing.assert_array_equal(TensorStoreSource(ts.array(VALUES)).read(ROWS), VALUES[ROWS])

    def compute(domain: Any, chunk: Any, _: Any) -> None:
        first, second = (np.arange(dim.inclusive_min, dim.exclusive_max) for dim in domain)
        chunk[...] = first[:, None] * 10 + second

    computed = ts.virtual_chunked(compute, dtype=ts.int32, shape=[9, 3])
    source = TensorStoreSource(computed)
    assert source.read(np.array([8, 2])).tolist() == [[80, 81, 82], [20, 21, 22]]
    assert repr(source) == "computed arrays"


def test_a_pytree_of_stores_is_a_pytree_of_rows(tmp_path: Path) -> None:
    tree = {"x": write(tmp_path / "x"), "y": (ts.open(write(tmp_path / "y", ZARR)).result()[:, 0, 0],)}
    source = TensorStoreSource(tree)
    assert source.spec == {"x": ArraySpec((6, 4), np.dtype(np.int32)), "y": (ArraySpec((), np.dtype(np.int32)),)}
    batch = source.read(ROWS)
    np.testing.assert_array_equal(batch["x"], VALUES[ROWS])
    np.testing.assert_array_equal(batch["y"][0], VALUES[ROWS, 0, 0])
    assert repr(source) == "zarr and zarr3 arrays"


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({}, "the data has no arrays; pass at least one leaf"),
        (
            {"x": 3},
            r"leaf \['x'\] is an int: pass a TensorStore spec \(a dict with the key 'driver'\), a URL",
        ),
        (VALUES, "the store is a ndarray: pass a TensorStore spec"),
        ({"x": "no/url"}, r"leaf \['x'\] is not a TensorStore spec: .*unsupported URL scheme"),
        ({"driver": "zarrr"}, "the store is not a TensorStore spec: .*is not a registered TensorStore driver"),
        (
            {"x": {"driver": "zarr3", "kvstore": "file:///nowhere/"}},
            r"leaf \['x'\] at file:///nowhere/: NOT_FOUND: .*does not exist",
        ),
        ({"x": ts.array(np.int32(5))}, r"leaf \['x'\] is a scalar without rows; give it a first dimension"),
        (ts.array(np.int32(5)), r"the store is a scalar without rows"),
        ({"x": ts.array(VALUES), "y": ts.array(VALUES[:4])}, r"different numbers of rows \(\['x'\]: 20, \['y'\]: 4\)"),
    ],
)
def test_what_is_no_store(tree: Any, message: str) -> None:
    with pytest.raises(SourceError, match=message):
        TensorStoreSource(tree)


def test_a_broken_chunk_names_the_leaf(tmp_path: Path) -> None:
    short = write(tmp_path)
    (tmp_path / "c" / "0" / "1" / "0").write_bytes(b"short")
    with pytest.raises(SourceError, match=r"leaf \['x'\] at .*: .*c/0/1/0") as caught:
        TensorStoreSource({"x": short}).read(np.array([0]))
    assert "copy it again" not in str(caught.value)  # that is for missing ones
