"""Tables in a bucket: the rows of local files, and how many requests they cost."""

import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

import loadax
from loadax.sources.tables.parquet.parquet_files import Names, ParquetFiles, RowGroup
from loadax.testing import check_source
from tests.servers.faults import FaultProxy
from tests.servers.ranges import parse_range
from tests.servers.s3 import S3Server

pytest_plugins = ["tests.servers.fixtures"]

ROWS: list[dict[str, Any]] = [{"x": row, "text": str(row), "tokens": [row] * (row % 3)} for row in range(60)]


@pytest.fixture
def url(tmp_path: Path, s3_server: S3Server, bucket: str) -> str:
    """A folder with two files of each kind."""
    for number in range(2):
        rows = ROWS[number * 30 : number * 30 + 30]
        parquet.write_table(pa.Table.from_pylist(rows), tmp_path / f"{number}.parquet", row_group_size=10)
        (tmp_path / f"{number}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    s3_server.upload(tmp_path, bucket, "tables/")
    return f"s3://{bucket}/tables/"


def test_tables_in_a_bucket_are_those_on_disk(url: str) -> None:
    check_source(loadax.from_parquet(url, columns="x").source)
    check_source(loadax.from_jsonl(url, columns="x").source, loader=False)
    for data in (loadax.from_parquet(url), loadax.from_jsonl(url)):
        read = data.map(lambda row: (row["x"], int(row["text"]), row["tokens"].sum())).read(range(60))
        expected = [[row["x"], row["x"], sum(row["tokens"])] for row in ROWS]
        assert np.stack(read, 1).tolist() == expected


def test_parquet_costs_a_list_a_footer_and_a_request_a_row_group(
    url: str, s3_proxy: FaultProxy, tmp_path: Path
) -> None:
    data = loadax.from_parquet(url, columns="x", cache=tmp_path / "cache")
    # Logs of table formats are looked for in the folder and above it.
    assert len([exchange for exchange in s3_proxy.log if "prefix=" not in exchange.path]) <= 2
    assert len(s3_proxy.log) <= 1 + 2 + 2 * 4
    s3_proxy.clear()
    assert data.read([3, 14, 15])["x"].tolist() == [3, 14, 15]
    assert len(s3_proxy.log) <= 2
    s3_proxy.clear()
    assert data.read([2, 19])["x"].tolist() == [2, 19]
    assert len(s3_proxy.log) == 0
    again = loadax.from_parquet(url, columns="x", cache=tmp_path / "cache")
    s3_proxy.clear()
    assert again.read([3, 14])["x"].tolist() == [3, 14]
    assert len(s3_proxy.log) == 0


def test_row_group_of_adjacent_columns_is_downloaded_once(tmp_path: Path, http_proxy: FaultProxy) -> None:
    wide = pa.table({"x": np.arange(4000), "y": np.arange(4000)})
    parquet.write_table(wide, tmp_path / "wide.parquet", row_group_size=1000, use_dictionary=False)
    data = loadax.from_parquet([f"{http_proxy.url}/wide.parquet"])
    http_proxy.clear()
    for group in range(4):
        assert data.read([1000 * group])["y"].tolist() == [1000 * group]
    spans = [parse_range(exchange.range, 1 << 40) for exchange in http_proxy.log]
    assert len(spans) == 4
    assert all(one and other and one[1] <= other[0] for one, other in pairwise(spans))


@pytest.mark.parametrize(("most", "together"), [(1, [1, 1, 1]), (256 << 20, [3])])
def test_row_groups_are_requested_together_up_to_a_number_of_bytes(
    most: int, together: list[int], url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("loadax.sources.tables.parquet.parquet_files.TOGETHER", most)
    requested, request = [], ParquetFiles._requested

    def counted(self: ParquetFiles, groups: Sequence[RowGroup], columns: Sequence[Names]) -> Any:
        requested.append(len(groups))
        return request(self, groups, columns)

    monkeypatch.setattr(ParquetFiles, "_requested", counted)
    assert loadax.from_parquet(url, columns="x").read([1, 11, 41])["x"].tolist() == [1, 11, 41]
    assert requested == together
