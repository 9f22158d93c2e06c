"""Raw chunk files are mapped into memory where that is right, and only there; what is read is the same either way."""

import json
import pickle
import re
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tensorstore as ts
import zarr
from hypothesis import HealthCheck, given, settings, strategies as st
from numpy.typing import NDArray

from loadax import Dataloader, from_zarr, write_zarr
from loadax.errors import SourceError
from loadax.sources.tokens.ragged import open_zarr
from loadax.sources.zarr.source import TensorStoreSource
from tests.limits import examples

MAPPED = "zarr3, memory-mapped"
BYTES: dict[str, Any] = {"name": "bytes", "configuration": {"endian": "little"}}
DTYPES = (
    *("bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"),
    *("float16", "float32", "float64", "complex64", "complex128", "bfloat16", "float8_e4m3fn", "float8_e5m2", "int4"),
)
SHAPE = (37, 32, 512)
VALUES = np.random.default_rng(0).integers(0, 2**16, SHAPE).astype(np.uint16)


def write(
    folder: Path, values: Any = VALUES, chunk: Any = (8, 32, 512), codecs: Any = (BYTES,), order: Any = None
) -> dict[str, Any]:
    """Writes an array; the spec that opens it."""
    metadata = {
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(chunk)}},
        "codecs": list(codecs),
    }
    if order is not None:
        metadata["chunk_key_encoding"] = order
    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{folder}/"}}
    store = ts.open(
        {**spec, "metadata": metadata, "store_data_equal_to_fill_value": True},
        create=True,
        dtype=ts.dtype(values.dtype),
        shape=values.shape,
    ).result()
    store.write(values).result()
    return spec


def numbered(dtype: str) -> NDArray[Any]:
    """All bit patterns that the dtype has, in rows of 256 KiB or less."""
    made = np.random.default_rng(0).integers(-7, 8, SHAPE)
    if dtype == "bool":
        return made > 0
    named = np.dtype(getattr(ml_dtypes, dtype, dtype))
    return made.astype(named)


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_is_what_was_written(dtype: str, tmp_path: Path) -> None:
    values = numbered(dtype)
    source = TensorStoreSource(write(tmp_path / "x", values))
    assert repr(source) == f"{MAPPED} arrays"
    rows = np.array([36, 0, 8, 7, 7, 35])
    batch = source.read(rows)
    assert batch.dtype == values.dtype == source.spec.dtype
    assert batch.tobytes() == values[rows].tobytes()


@pytest.fixture(scope="module")
def mapped(tmp_path_factory: pytest.TempPathFactory) -> TensorStoreSource:
    """37 rows in chunks of 8: the last one has 5 of them, and 3 that are not there."""
    source = TensorStoreSource(write(tmp_path_factory.mktemp("mapped") / "x"))
    assert repr(source) == f"{MAPPED} arrays"
    return source


SMALL = np.random.default_rng(1).integers(0, 2**16, (3000, 8, 16)).astype(np.uint16)
"""As many files as `VALUES` and more, of rows of 256 bytes."""


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> TensorStoreSource:
    """3000 rows in chunks of 256: the last one has 184 of them."""
    source = TensorStoreSource(write(tmp_path_factory.mktemp("small") / "x", SMALL, (256, 8, 16)))
    assert repr(source) == f"{MAPPED} arrays"
    return source


def check_columns(source: TensorStoreSource, values: Any, rows: Any, columns: Any) -> None:
    """Reads to destinations of every kind, and looks at what is around them."""
    shape = (len(rows), *(stop - start for start, stop in columns))
    around = np.full((shape[0] + 2, shape[1], shape[2] + 3), 7, np.uint16)
    spread = np.full((shape[0], 2 * shape[1], shape[2]), 7, np.uint16)
    whole = np.empty(shape, np.uint16)
    wider = np.empty(shape, np.int64)
    for out in (around[1:-1, :, 2:-1], spread[:, ::2], spread[:, 1::2], whole, wider, whole[::-1]):
        source.read_into(rows, [columns], [out])
        np.testing.assert_array_equal(out, values[rows][(slice(None), *(slice(*each) for each in columns))])
    assert (around[[0, -1]] == 7).all()
    assert (around[..., [0, 1, -1]] == 7).all()


@settings(max_examples=examples(100), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_rows_and_columns_are_those_of_numpy(
    mapped: TensorStoreSource, small: TensorStoreSource, data: st.DataObject
) -> None:
    """Of large rows and of small ones, which are copied in other ways."""
    source, values = data.draw(st.sampled_from([(mapped, VALUES), (small, SMALL)]))
    rows = np.array(data.draw(st.lists(st.integers(0, len(values) - 1), max_size=12)), np.int64)
    if data.draw(st.booleans()):
        np.testing.assert_array_equal(source.read(rows), values[rows])
    height, width = values.shape[1:]
    boxes = [
        ((0, height), (0, width)),
        ((3, 7), (0, width)),
        ((0, height), (width - 1, width)),
        ((4, 4), (0, 7)),
        ((5, 6), (5, 6)),
    ]
    check_columns(source, values, rows, data.draw(st.sampled_from(boxes)))


def test_many_rows_of_many_files_at_once(small: TensorStoreSource) -> None:
    rows = np.random.default_rng(0).integers(0, 3000, 10_000)
    np.testing.assert_array_equal(small.read(rows), SMALL[rows])
    np.testing.assert_array_equal(small.read(np.arange(3000)[::-1]), SMALL[::-1])
    check_columns(small, SMALL, rows[:3000], ((2, 5), (3, 4)))


@pytest.mark.parametrize(
    ("values", "chunk"),
    [
        (np.arange(100_000, dtype=np.int32), (20_000,)),
        (np.arange(100_000, dtype=np.int32), (65_536,)),
        (np.arange(3 * 2**17, dtype=np.uint8).reshape(3, 2**17), (1, 2**17)),
        (np.arange(3 * 2**17, dtype=np.uint8).reshape(3, 2**9, 2**8, 1), (2, 2**9, 2**8, 1)),
        (np.arange(5 * 2**16, dtype=np.float32).reshape(5, 2**16), (8, 2**16)),
    ],
)
def test_chunks_of_every_shape(values: Any, chunk: Any, tmp_path: Path) -> None:
    source = TensorStoreSource(write(tmp_path / "x", values, chunk))
    assert MAPPED in repr(source)
    rows = np.random.default_rng(0).integers(0, len(values), 50)
    np.testing.assert_array_equal(source.read(rows), values[rows])
    np.testing.assert_array_equal(source.read(np.arange(len(values))), values)


@pytest.mark.parametrize(
    "order",
    [
        {"name": "default"},
        {"name": "default", "configuration": {"separator": "."}},
        {"name": "v2"},
        {"name": "v2", "configuration": {"separator": "/"}},
    ],
)
def test_chunk_files_of_every_name(order: Any, tmp_path: Path) -> None:
    source = TensorStoreSource(write(tmp_path / "x", order=order))
    assert MAPPED in repr(source)
    np.testing.assert_array_equal(source.read(np.array([36, 0])), VALUES[[36, 0]])


def test_what_zarr_python_wrote(tmp_path: Path) -> None:
    array = zarr.create_array(tmp_path / "x", data=VALUES, chunks=(8, 32, 512), compressors=None, filters=None)
    assert array.metadata.zarr_format == 3
    (tmp_path / "a b#%20?").mkdir()
    (tmp_path / "x").rename(tmp_path / "a b#%20?" / "x")
    source = open_zarr(tmp_path / "a b#%20?" / "x", None)
    assert MAPPED in repr(source)
    np.testing.assert_array_equal(source.read(np.array([36, 0])), VALUES[[36, 0]])


@pytest.mark.parametrize(
    "options",
    [
        {"codecs": [BYTES, {"name": "zstd"}]},
        {"codecs": [BYTES, {"name": "crc32c"}]},
        {"codecs": [{"name": "transpose", "configuration": {"order": [0, 2, 1]}}, BYTES]},
        {"codecs": [{"name": "bytes", "configuration": {"endian": "big"}}]},
        {"codecs": [{"name": "sharding_indexed", "configuration": {"chunk_shape": [1, 32, 512], "codecs": [BYTES]}}]},
        {"chunk": (8, 16, 512)},
        {"chunk": (8, 32, 600)},
        {"chunk": (1, 32, 512), "values": VALUES[:5]},
    ],
    ids=[
        "compressed",
        "checksum",
        "transposed",
        "big-endian",
        "sharded",
        "column-chunked",
        "wide chunks",
        "small chunks",
    ],
)
def test_what_is_more_than_its_rows_is_left_to_tensorstore(options: Any, tmp_path: Path) -> None:
    spec = write(tmp_path / "x", **options)
    source = TensorStoreSource(spec)
    assert repr(source) == "zarr3 arrays"
    values = options.get("values", VALUES)
    np.testing.assert_array_equal(source.read(np.array([3, 0])), values[[3, 0]])


def test_so_are_other_drivers_and_other_places(tmp_path: Path) -> None:
    spec: dict[str, Any] = {"driver": "zarr", "kvstore": {"driver": "file", "path": f"{tmp_path}/v2/"}}
    metadata = {"chunks": [8, 32, 512], "compressor": None}
    ts.open({**spec, "metadata": metadata}, create=True, dtype=ts.uint16, shape=SHAPE).result().write(VALUES).result()
    memory = ts.KvStore.open("memory://").result()
    write(tmp_path / "x")
    for file in (tmp_path / "x").rglob("*"):
        if file.is_file():
            memory.write(str(file.relative_to(tmp_path / "x")), file.read_bytes()).result()
    kept = ts.open({"driver": "zarr3"}, kvstore=memory.spec(retain_context=True), read=True).result()
    for source in (TensorStoreSource(spec), TensorStoreSource(kept)):
        assert MAPPED not in repr(source)
        np.testing.assert_array_equal(source.read(np.array([36, 0])), VALUES[[36, 0]])


def test_so_are_views_and_those_who_ask_for_zeros(tmp_path: Path) -> None:
    spec = write(tmp_path / "x")
    store = ts.open(spec, read=True).result()
    views: dict[str, tuple[Any, Any]] = {
        "from the fifth row on": (store[5:], VALUES[5:]),
        "counted from another row": (store[5:].translate_to[0], VALUES[5:]),
        "until the fifth row": (store[:5], VALUES[:5]),
        "every second": (store[::2], VALUES[::2]),
        "backwards": (store[::-1], VALUES[::-1]),
        "some columns": (store[:, :, :32], VALUES[:, :, :32]),
        "dimensions swapped": (store[ts.d[1].transpose[2]], VALUES.swapaxes(1, 2)),
        "another dtype": (ts.cast(store, ts.float32), VALUES.astype(np.float32)),
        "moved": (store[ts.d[0].translate_by[10]], VALUES),
    }
    for view, values in views.values():
        source = TensorStoreSource(view)
        assert MAPPED not in repr(source)
        np.testing.assert_array_equal(source.read(np.array([4, 0])), values[[4, 0]])
    (tmp_path / "x" / "c" / "0" / "0" / "0").unlink()
    filled = TensorStoreSource(spec, "fill")
    assert MAPPED not in repr(filled)
    assert not filled.read(np.array([0])).any()
    # The array itself, also when somebody opened it: that one is mapped.
    assert MAPPED in repr(TensorStoreSource(store))
    assert MAPPED in repr(TensorStoreSource(store[ts.d[0].label["row"]]))


def test_more_files_than_a_process_may_map(tmp_path: Path) -> None:
    """The numbers decide, so that no file has to be there."""
    spec = write(tmp_path / "x")
    file = tmp_path / "x" / "zarr.json"
    metadata = json.loads(file.read_text())
    for chunks, mapped in ((16_384, True), (16_385, False)):
        metadata["shape"][0] = 8 * chunks
        file.write_text(json.dumps(metadata))
        assert (MAPPED in repr(TensorStoreSource(spec))) is mapped


class TestWhatIsWrong:
    def test_a_chunk_file_that_is_missing(self, tmp_path: Path) -> None:
        spec = write(tmp_path / "x")
        missing = tmp_path / "x" / "c" / "1" / "0" / "0"
        missing.unlink()
        source = TensorStoreSource({"field": spec})
        np.testing.assert_array_equal(source.read(np.array([0, 36]))["field"], VALUES[[0, 36]])
        message = (
            rf"leaf \['field'\] at file://\S*x/: chunk {re.escape(str(missing))} with rows 8 to 16 "
            r"is missing \(No such file or directory\); the copy is incomplete, or its writer left out chunks "
            r"that hold only the fill value: copy it again, or pass missing='fill' if those are right"
        )
        for _ in range(2):
            with pytest.raises(SourceError, match=message):
                source.read(np.array([0, 8]))
        # Nothing is kept of the failure.
        missing.write_bytes((tmp_path / "x" / "c" / "0" / "0" / "0").read_bytes())
        np.testing.assert_array_equal(source.read(np.array([8]))["field"], VALUES[[0]])

    @pytest.mark.parametrize("change", [-1, 1, -8 * 32 * 512 * 2])
    def test_a_chunk_file_of_another_size(self, change: int, tmp_path: Path) -> None:
        spec = write(tmp_path / "x")
        file = tmp_path / "x" / "c" / "4" / "0" / "0"
        content = file.read_bytes()
        file.write_bytes(content[:change] if change < 0 else content + b"?")
        source = TensorStoreSource(spec)
        source.read(np.array([31]))
        size = 8 * 32 * 512 * 2
        with pytest.raises(
            SourceError,
            match=rf"the store at file://\S*x/: chunk {re.escape(str(file))} with rows 32 to 37 "
            rf"has {size + change:,} bytes instead of {size:,}; copy it again",
        ):
            source.read(np.array([33]))

    def test_through_a_loader(self, tmp_path: Path) -> None:
        write(tmp_path / "x")
        (tmp_path / "x" / "c" / "2" / "0" / "0").unlink()
        with iter(Dataloader(from_zarr(tmp_path / "x"), 8)) as batches:
            next(batches)
            next(batches)
            with pytest.raises(SourceError, match="rows 16 to 24 is missing"):
                next(batches)


def test_a_batch_stays_what_it_was_when_its_file_changes(tmp_path: Path) -> None:
    """A jax.Array on the CPU may live in memory that it was given: never in a file's."""
    write(tmp_path / "x")
    with iter(Dataloader(from_zarr(tmp_path / "x"), 8)) as batches:
        batch = next(batches)
        with (tmp_path / "x" / "c" / "0" / "0" / "0").open("r+b") as file:
            file.write(b"\xff" * 8 * 32 * 512 * 2)
        np.testing.assert_array_equal(batch, VALUES[:8])


def test_it_pickles_as_a_path(mapped: TensorStoreSource) -> None:
    mapped.read(np.arange(37))
    pickled = pickle.dumps(mapped)
    assert len(pickled) < 4096
    np.testing.assert_array_equal(pickle.loads(pickled).read(np.array([36, 3])), VALUES[[36, 3]])


def test_what_it_says_of_itself(mapped: TensorStoreSource) -> None:
    """Rows of mapped files are read one by one at no extra cost: there are no chunks to keep, and no waits."""
    assert mapped.chunks is None
    assert mapped.traits.concurrent_reads == 1


def test_beside_arrays_that_are_decoded(tmp_path: Path) -> None:
    write(tmp_path / "image")
    write_zarr(np.arange(37), tmp_path / "label", chunk_rows=4, shard_rows=8, progress=False)
    source = open_zarr(tmp_path, ["image", "label"])
    assert repr(source) == f"zarr3 and {MAPPED} arrays"
    assert source.traits.concurrent_reads == 4
    assert source.chunks == range(0, 37, 4)
    rows = np.array([36, 0, 9])
    batch = source.read(rows)
    np.testing.assert_array_equal(batch["image"], VALUES[rows])
    np.testing.assert_array_equal(batch["label"], rows)
