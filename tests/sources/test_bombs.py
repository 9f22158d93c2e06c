"""Small files that claim to be huge, and folders of caches: limits that name the file, and rights of the user alone."""

import io
import json
import struct
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet as pq

import loadax
from loadax.core import memory
from loadax.errors import ArgumentError, SourceError
from loadax.files.npy_header import parse_npy
from tests.sources.shards.corpora import write_tar


def machine_with(bytes_of_memory: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "machine_memory", lambda: bytes_of_memory)


def test_a_zarr_chunk_larger_than_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = {"x": np.zeros((64, 1000))}
    loadax.write_zarr(data, tmp_path / "s", progress=False, chunk_rows=64)
    machine_with(1_000_000, monkeypatch)
    with pytest.raises(
        SourceError,
        match=r"leaf \['x'\] at .*/s/x/: each chunk, float64\[64, 1000\], takes 500 KiB decoded, more than half of the "
        r"977 KiB of memory of this machine; .* write it again in smaller chunks: loadax.write_zarr",
    ):
        loadax.from_zarr(tmp_path / "s")
    loadax.write_zarr(data, tmp_path / "smaller", progress=False, chunk_rows=8)
    assert loadax.from_zarr(tmp_path / "smaller").read([3])["x"].shape == (1, 1000)


def test_a_row_group_larger_than_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that are all the same take a few bytes in the file."""
    table = pa.table({"x": np.zeros(100_000)})
    pq.write_table(table, tmp_path / "a.parquet")
    assert (tmp_path / "a.parquet").stat().st_size < 2000
    machine_with(1_000_000, monkeypatch)
    with pytest.raises(SourceError, match=r"a\.parquet: row group 0 takes 781 KiB decoded.* row_group_size=100_000"):
        loadax.from_parquet(tmp_path / "a.parquet").read([0])
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=10_000)
    assert loadax.from_parquet(tmp_path / "a.parquet").read([0])["x"].tolist() == [0]


def test_a_tar_member_whose_name_takes_more_than_a_mebibyte(tmp_path: Path) -> None:
    write_tar(tmp_path / "a.tar", {"d" * (1 << 20) + ".cls": b"1"}, tarfile.GNU_FORMAT)
    with pytest.raises(SourceError, match=r"a\.tar: the tar file is damaged at byte 0: .*and 1048576 is the most"):
        loadax.from_webdataset(tmp_path / "a.tar", progress=False)


def test_an_array_in_a_tar_file_that_claims_more_than_it_has(tmp_path: Path) -> None:
    header = b"{'descr': '<f8', 'fortran_order': False, 'shape': (1099511627776,), }\n"
    write_tar(tmp_path / "a.tar", {"0.npy": b"\x93NUMPY\1\0" + struct.pack("<H", len(header)) + header + b"12345678"})
    with pytest.raises(SourceError, match=r"row 0 \(.*a\.tar, byte \d+, '0'\): 'npy' can't be decoded: .* cut short"):
        loadax.from_webdataset(tmp_path / "a.tar", decode=True, progress=False)[0]


@pytest.mark.parametrize("array", [np.arange(6).reshape(2, 3), np.asfortranarray(np.ones((2, 3))), np.float32(3)])
def test_arrays_are_parsed_as_numpy_does(array: Any) -> None:
    out = io.BytesIO()
    np.save(out, array)
    parsed = parse_npy(out.getvalue())
    np.testing.assert_array_equal(parsed, array)
    assert (parsed.dtype, parsed.shape) == (array.dtype, array.shape)


@pytest.mark.parametrize("text", ['{"a": %s1%s}', '{"a": %s{"b": "]"}%s}'])
def test_json_nested_deep(text: str, tmp_path: Path) -> None:
    """Arrow's parser overflows the stack from some ten thousand levels on, and Python's at a thousand."""
    path = tmp_path / "a.jsonl"
    path.write_text('{"a": [[1]]}\n' + text % ("[" * 200_000, "]" * 200_000) + "\n")
    with pytest.raises(
        SourceError, match=r"a\.jsonl, line 2: lists and objects are nested more than 100 levels deep; correct the line"
    ):
        loadax.from_jsonl(path, progress=False)[1]
    path.write_text(text % ("[" * 90, "]" * 90) + "\n")
    assert len(loadax.from_jsonl(path, progress=False)) == 1


def test_many_brackets_side_by_side_are_not_deep(tmp_path: Path) -> None:
    rows = [{"n": [[1]] * 300, "t": "{[" * 200 + '\\"' + "{["} for _ in range(3)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert loadax.from_jsonl(tmp_path / "a.jsonl", progress=False)[2]["t"] == rows[2]["t"]


def test_lists_of_rows_are_flat() -> None:
    rows = loadax.from_arrays(np.arange(10))
    two: list[Any] = [np.array([[1, 2], [3, 4]]), [[1, 2], [3, 4]], np.array(3)]
    for wrong in two:
        with pytest.raises(ArgumentError, match=r"rows has [02] dimensions.*rows\.reshape\(-1\)"):
            rows.exclude(wrong)
    assert len(rows.exclude(np.array([[1, 2], [3, 4]]).reshape(-1))) == 6


def test_wrong_values_with_right_checksums_are_not_used(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    from loadax.kept.index_folder import Entry, IndexFolder

    (tmp_path / "a.jsonl").write_text('{"a": 1}\n{"a": 2}\n')

    def read() -> Any:
        return loadax.from_jsonl(tmp_path / "a.jsonl", index=tmp_path / "i", progress=False).read([0, 1])["a"].tolist()

    assert read() == [1, 2]
    folder = IndexFolder(tmp_path / "i")
    identity = json.loads(folder.path("records").read_bytes())["identity"]
    good = folder.get("records", identity, lambda entry: None)
    assert good is not None
    for name, value in {"begins": 2**62, "sizes": -1, "lines": 2**40}.items():
        arrays = {key: np.array(array) for key, array in good.arrays.items()}
        arrays[name][0] = value
        folder.put("records", identity, Entry(arrays, {}))
        caplog.clear()
        assert read() == [1, 2]
        assert "records.json can't be used" in caplog.text
        assert name in caplog.text or "a record ends after its file" in caplog.text
