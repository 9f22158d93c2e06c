"""More files than a process may open: every kind of file is read whole, in any order."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from tests.servers.child import run_python
from tests.sources.shards.corpora import write_tar, write_tfrecord

FILES, LIMIT = 300, 128


@pytest.mark.processes
def test_they_are_all_read(tmp_path: Path) -> None:
    from array_record.python.array_record_module import ArrayRecordWriter

    for kind in ("tokens", "npy", "records", "parquet", "jsonl"):
        (tmp_path / kind).mkdir()
    for index in range(FILES):
        values = np.arange(4 * index, 4 * index + 4, dtype=np.int32)
        values.tofile(tmp_path / "tokens" / f"{index:03}.bin")
        np.save(tmp_path / "npy" / f"{index:03}.npy", values)
        writer = ArrayRecordWriter(str(tmp_path / "records" / f"{index:03}.array_record"), "group_size:1")
        writer.write(values.tobytes())
        writer.close()
        parquet.write_table(pa.table({"x": values}), tmp_path / "parquet" / f"{index:03}.parquet")
        (tmp_path / "jsonl" / f"{index:03}.jsonl").write_text("".join(f'{{"x": {value}}}\n' for value in values))
        write_tar(tmp_path / "tar" / f"{index:03}.tar", {"0.bin": values.tobytes()})
        write_tfrecord(tmp_path / "tfrecord" / f"{index:03}.tfrecord", [values.tobytes()])
    code = f"""
import json, resource
from pathlib import Path
import numpy as np
import loadax
folder = Path({str(tmp_path)!r})
resource.setrlimit(resource.RLIMIT_NOFILE, ({LIMIT}, {LIMIT}))
rows = np.random.default_rng(0).permutation({FILES})
opened = {{
    "tokens": loadax.from_tokens(folder / "tokens", 3, stride=4, dtype="int32").map_batch(lambda rows: rows["tokens"]),
    "npy": loadax.concat([loadax.from_npy(path)[::4] for path in sorted((folder / "npy").iterdir())]),
    "tar": loadax.from_webdataset(folder / "tar").map(lambda example: np.frombuffer(example["bin"], np.int32)),
    "tfrecord": loadax.from_tfrecord(folder / "tfrecord").map(lambda record: np.frombuffer(record, np.int32)),
    "parquet": loadax.from_parquet(folder / "parquet", memory_bytes=0)[::4].map_batch(lambda rows: rows["x"]),
    "jsonl": loadax.from_jsonl(folder / "jsonl")[::4].map_batch(lambda rows: rows["x"]),
    "records": loadax.from_array_record(folder / "records", dtype="int32"),
}}
read = {{}}
for name, data in opened.items():
    for _ in range(2):
        read[name] = np.asarray(data.read(rows)).reshape({FILES}, -1)[:, 0].tolist()
print(json.dumps([read, rows.tolist()]))
"""
    read, rows = json.loads(run_python(code))
    for name, values in read.items():
        assert values == [4 * row for row in rows], name
