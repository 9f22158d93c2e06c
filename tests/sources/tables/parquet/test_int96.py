"""INT96 times of Spark, Impala and Hive: read by microseconds, of all years, at any depth."""

from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

import loadax

YEARS = [datetime.fromisoformat(f"{year:04}-01-02T03:04:05.678901") for year in (1, 1000, 1677, 2000, 2263, 9999)]
TIMES = np.array(YEARS, "datetime64[us]").astype(np.int64)


@pytest.mark.parametrize("store_schema", [True, False])
@pytest.mark.parametrize("cached", [True, False])
def test_int96_times_are_microseconds_of_all_years_at_any_depth(
    tmp_path: Path, store_schema: bool, cached: bool
) -> None:
    kind = pa.timestamp("us")
    table = pa.table(
        {
            "t": pa.array(YEARS, kind),
            "s": pa.array([{"a": {"b": year}} for year in YEARS], pa.struct([("a", pa.struct([("b", kind)]))])),
            "l": pa.array([[year] * 2 for year in YEARS], pa.list_(kind)),
            "m": pa.array([[("k", year)] for year in YEARS], pa.map_(pa.string(), kind)),
        }
    )
    path = tmp_path / "x.parquet"
    parquet.write_table(table, path, use_deprecated_int96_timestamps=True, store_schema=store_schema, row_group_size=2)
    data = loadax.from_parquet(path, memory_bytes=1 << 30 if cached else 0)
    source: Any = data.source
    assert {source.units[name] for name in ("t", "s.a.b")} == {"timestamp[us]"}
    rows = list(data)
    assert [int(row["t"]) for row in rows] == TIMES.tolist()
    assert [int(row["s"]["a"]["b"]) for row in rows] == TIMES.tolist()
    assert [row["l"].tolist() for row in rows] == [[time] * 2 for time in TIMES.tolist()]
    assert [row["m"] for row in rows] == [[("k", year)] for year in YEARS]


def test_files_with_int96_and_with_microseconds_are_of_one_schema(tmp_path: Path) -> None:
    table = pa.table({"t": pa.array(YEARS, pa.timestamp("us"))})
    parquet.write_table(table, tmp_path / "a.parquet", use_deprecated_int96_timestamps=True)
    parquet.write_table(table, tmp_path / "b.parquet")
    data = loadax.from_parquet(tmp_path)
    assert data.read(range(12))["t"].tolist() == TIMES.tolist() * 2
