"""What `explain()` tells of requests to storage is what a counting server sees: at start, and in an epoch."""

import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest
import zarr
from PIL import Image
from pyarrow import parquet

import loadax
from loadax import Dataloader, Dataset
from loadax.loader.inspection.explanation import Storage
from loadax.sharding import plan_mesh
from tests.servers.faults import FaultProxy
from tests.servers.s3 import S3Server
from tests.sources.array_record.test_records import write as write_records

pytest_plugins = ["tests.servers.fixtures"]

ROWS = 512
BATCH = 32
HOSTS = 8
# With this the window of requests ahead is 4 MiB from the beginning, so that it does not depend on the time of answers.
PREFETCH = 16 << 20


def write_parquet(folder: Path) -> None:
    values = np.random.default_rng(0).integers(0, 256, (ROWS, 4096), np.uint8)
    for part in range(4):
        rows = slice(part * ROWS // 4, (part + 1) * ROWS // 4)
        flat = pa.FixedSizeListArray.from_arrays(pa.array(values[rows].reshape(-1)), 4096)
        table = pa.table({"label": np.arange(ROWS)[rows], "x": flat})
        parquet.write_table(table, folder / f"{part}.parquet", row_group_size=32, use_dictionary=False)


def write_jsonl(folder: Path) -> None:
    for part in range(4):
        lines = [json.dumps({"id": row, "x": [row] * 500}) for row in range(part * ROWS // 4, (part + 1) * ROWS // 4)]
        (folder / f"{part}.jsonl").write_text("\n".join(lines) + "\n")


def write_tokens(folder: Path) -> None:
    for part in range(2):
        np.save(folder / f"{part}.npy", np.arange(ROWS * 1024, dtype=np.uint16))


def write_images(folder: Path) -> None:
    values = np.random.default_rng(0).integers(0, 256, (96, 16, 16), np.uint8)
    for number, each in enumerate(values):
        Image.fromarray(each).save(folder / f"{number:03}.png")


def write_tar(folder: Path) -> None:
    for part in range(4):
        with tarfile.open(folder / f"{part}.tar", "w") as tar:
            for row in range(part * ROWS // 4, (part + 1) * ROWS // 4):
                member = tarfile.TarInfo(f"{row:05}.bin")
                member.size = 5000
                tar.addfile(member, io.BytesIO(row.to_bytes(2, "little") * 2500))


def write_zarr(folder: Path) -> None:
    group = zarr.open_group(folder / "store", mode="w")
    for name, shards in (("x", None), ("y", (128, 8))):
        values = np.arange(ROWS * 8, dtype=np.float32).reshape(ROWS, 8)
        group.create_array(name, data=values, chunks=(16, 8), shards=shards, compressors=None)


def write_array_record(folder: Path) -> None:
    for part in range(4):
        rows = range(part * ROWS // 4, (part + 1) * ROWS // 4)
        records = [row.to_bytes(2, "little") * 2500 for row in rows]
        write_records(folder / f"{part}.array_record", records, "group_size:1,uncompressed")


class Kind(NamedTuple):
    write: Callable[[Path], None]
    open: Callable[[str, Path | None], Dataset]


KINDS = {
    "parquet": Kind(write_parquet, lambda url, index: loadax.from_parquet(url, index=index)),
    "jsonl": Kind(write_jsonl, lambda url, index: loadax.from_jsonl(url, index=index, progress=False)),
    "tokens": Kind(write_tokens, lambda url, index: loadax.from_tokens(url, 511, stride=512, index=index)),
    "images": Kind(write_images, lambda url, index: loadax.from_images(url, index=index)),
    "tar": Kind(
        write_tar,
        lambda url, index: loadax.from_webdataset(url, index=index, progress=False).map(
            lambda row: {"x": np.frombuffer(row["bin"], np.uint8)}
        ),
    ),
    "array_record": Kind(
        write_array_record, lambda url, index: loadax.from_array_record(url, dtype="uint16", index=index)
    ),
    "zarr": Kind(write_zarr, lambda url, index: loadax.from_zarr(f"{url}/store", index=index)),
}
NEED_INDEX = ("jsonl", "tar")


def counted(proxy: FaultProxy) -> tuple[int, int]:
    """Requests of the log, those sent twice since they were late once, and bytes of contents."""
    seen = {}
    for one in proxy.log:
        seen[one.method, one.path, one.range] = 0 if "list-type" in one.path or one.status >= 400 else one.sent
    return len(seen), sum(seen.values())


def storage(data: Dataset, mesh: Any, batch_size: int = BATCH) -> Storage:
    found = Dataloader(data, batch_size, mesh=mesh, prefetch_bytes=PREFETCH).explain().storage
    assert found is not None
    return found


@pytest.fixture
def url(request: Any, tmp_path: Path, s3_server: S3Server, bucket: str) -> str:
    (tmp_path / "data").mkdir()
    KINDS[request.node.callspec.params["name"]].write(tmp_path / "data")
    s3_server.upload(tmp_path / "data", bucket, "data/")
    return f"s3://{bucket}/data"


@pytest.mark.parametrize("name", KINDS)
def test_start_is_what_a_server_counts(name: str, url: str, tmp_path: Path, s3_proxy: FaultProxy) -> None:
    """Without an index, with a new one, and with one that is there; and of planned hosts."""
    apart = []
    for index in (None, tmp_path / "index", tmp_path / "index"):
        if index is None and name in NEED_INDEX:
            continue
        s3_proxy.clear()
        data = KINDS[name].open(url, index)
        seen = counted(s3_proxy)  # before the loader reads a row to learn its shape
        told = storage(data, plan_mesh({"data": HOSTS}, hosts=HOSTS))
        assert (told.requests, told.nbytes) == seen
        apart.append((seen[0], told.apart))
    if name not in NEED_INDEX:
        requests, together = apart.pop(0)
        assert together == HOSTS * requests
    (first, together), (again, later) = apart
    assert together == first + (HOSTS - 1) * again
    assert later == HOSTS * again


@pytest.mark.parametrize("order", ["in order", "shuffled"])
@pytest.mark.parametrize("name", KINDS)
def test_an_epoch_is_what_a_server_counts(
    name: str, order: str, url: str, tmp_path: Path, s3_proxy: FaultProxy
) -> None:
    data = KINDS[name].open(url, tmp_path / "index")
    if order == "shuffled":
        data = data.shuffle(0)
    loader = Dataloader(data, BATCH, num_epochs=1, prefetch_bytes=PREFETCH)
    told = loader.explain().storage
    assert told is not None
    s3_proxy.clear()
    assert sum(1 for _ in loader) == told.steps
    requests, nbytes = counted(s3_proxy)
    assert told.step_bytes.most == pytest.approx(told.epoch_bytes / told.steps)
    # Gaps that are joined depend on what was read meanwhile, and TensorStore joins chunks of a shard.
    varies = order == "shuffled" or name == "zarr"
    assert told.epoch_bytes == pytest.approx(nbytes, rel=0.25 if varies else 0.01)
    assert told.epoch_requests == pytest.approx(requests, rel=0.5 if varies else 0.1, abs=2)


def test_hosts_share_an_epoch(tmp_path: Path, s3_server: S3Server, bucket: str) -> None:
    """64 planned hosts together request what one does, if no two read from the same range."""
    (tmp_path / "data").mkdir()
    write_images(tmp_path / "data")
    s3_server.upload(tmp_path / "data", bucket, "data/")
    data = loadax.from_images(f"s3://{bucket}/data")
    one = storage(data, plan_mesh({"data": 1}, hosts=1), 64)
    many = storage(data, plan_mesh({"data": 64}, hosts=64), 64)
    assert many.step_requests.most == one.step_requests.most / 64 == 1
    assert (many.epoch_requests, many.epoch_bytes) == (one.epoch_requests, one.epoch_bytes)
    text = str(Dataloader(data, 64, mesh=plan_mesh({"data": 64}, hosts=64)).explain())
    assert "at start: 2 requests" in text
    assert "by one process; 128 by 64 that open it apart" in text
    assert "requests to storage" in text


def test_local_data_has_no_requests(tmp_path: Path) -> None:
    write_tokens(tmp_path)
    found = Dataloader(loadax.from_tokens(tmp_path, 511), BATCH).explain()
    assert found.storage is None
    assert "storage" not in str(found)
