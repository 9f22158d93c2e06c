"""The index of JSON lines keeps the types of their columns, so that opening reads no rows."""

import os
from pathlib import Path

import numpy as np
import pytest

import loadax
from loadax.errors import SourceError
from tests.servers.faults import FaultProxy

pytest_plugins = ["tests.servers.fixtures"]

ROWS = 5000


def corpus(path: Path, rows: int = ROWS) -> Path:
    """About 1 MB: more than is read for the types of a few columns."""
    path.write_text("".join(f'{{"id": {row}, "tokens": [{row}, 1], "text": "{"x" * 200}"}}\n' for row in range(rows)))
    return path


def test_an_indexed_open_reads_no_rows(tmp_path: Path, http_proxy: FaultProxy) -> None:
    corpus(tmp_path / "a.jsonl")
    url = f"{http_proxy.url}/a.jsonl"
    first = loadax.from_jsonl(url, index=tmp_path / "index", progress=False)
    assert sum(http_proxy.bytes_sent.values()) > 1 << 20
    http_proxy.clear()
    again = loadax.from_jsonl(url, index=tmp_path / "index", progress=False)
    assert sum(http_proxy.bytes_sent.values()) < 100
    assert again.spec == first.spec
    np.testing.assert_array_equal(again[7]["tokens"], first[7]["tokens"])


def test_an_index_without_types_gets_them(tmp_path: Path) -> None:
    path = corpus(tmp_path / "a.jsonl", 100)
    loadax.from_jsonl(path, index=tmp_path / "index", progress=False)
    for file in (tmp_path / "index").glob("types*"):
        file.unlink()
    records = (tmp_path / "index" / "records.json").stat()
    assert loadax.from_jsonl(path, index=tmp_path / "index", progress=False)[3]["id"] == 3
    assert (tmp_path / "index" / "types.json").exists()
    assert (tmp_path / "index" / "records.json").stat() == records


def test_an_index_that_is_only_read_needs_no_types(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = corpus(tmp_path / "a.jsonl", 100)
    loadax.from_jsonl(path, index=tmp_path / "index", progress=False)
    for file in (tmp_path / "index").glob("types*"):
        file.unlink()
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert loadax.from_jsonl(path, index=tmp_path / "index", progress=False)[3]["id"] == 3
    assert not (tmp_path / "index" / "types.json").exists()


def test_types_follow_the_lines(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"x": 1}\n')
    assert loadax.from_jsonl(path, index=tmp_path / "index", progress=False).spec["x"].dtype == np.int64
    path.write_text('{"x": 1.5}\n')
    assert loadax.from_jsonl(path, index=tmp_path / "index", progress=False).spec["x"].dtype == np.float64


def test_a_rounded_column_is_refused_from_the_index_too(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(f'{{"x": 1, "y": {2**60 + 1}}}\n{{"x": 2, "y": 0.5}}\n')
    for _ in range(2):
        with pytest.raises(SourceError, match=r"a.jsonl, line 1.*: column 'y' has the integer .*state its type"):
            loadax.from_jsonl(path, index=tmp_path / "index", progress=False)
        assert loadax.from_jsonl(path, "x", index=tmp_path / "index", progress=False)[1]["x"] == 2
        stated = loadax.from_jsonl(path, dtypes={"y": "float64"}, index=tmp_path / "index", progress=False)
        assert stated[1]["y"] == 0.5
