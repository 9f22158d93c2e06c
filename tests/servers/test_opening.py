"""What opening data in a bucket costs: requests, and rounds of them, for every format, with and without an index."""

from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

import loadax
from loadax.errors import ArgumentError
from loadax.files.metadata import load_answers
from tests.formats.samples import SAMPLES, Sample
from tests.servers.faults import FaultProxy
from tests.servers.ranges import RangeServer
from tests.servers.rounds import RoundsProxy
from tests.servers.s3 import S3Server

pytest_plugins = ["tests.servers.fixtures"]

DELAY = 0.15  # seconds of an answer: longer than requests of a round take to be sent
# Formats without an index of their own, whose first opening reads the files after it has found them.
SCANNED = ("webdataset", "tfrecord")
# CSV files are read into memory whole: there is nothing to be kept of their opening.
REMOTE = {name: sample for name, sample in SAMPLES.items() if sample.remote and not name.startswith("csv")}


@pytest.fixture
def rounds(s3_server: S3Server, s3_environment: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[RoundsProxy]:
    with closing(RoundsProxy(s3_server.url, DELAY)) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        yield proxy


def upload(sample: Sample, folder: Path, server: S3Server, bucket: str, files: int = 3) -> str:
    """Writes files of a sample into a bucket, and returns the URL of their folder, or of the one file."""
    for number in range(files if sample.together else 1):
        sample.file(folder / f"{number:03}{sample.ending}", range(4))
    server.upload(folder, bucket, "data/")
    return f"s3://{bucket}/data" + ("" if sample.together else f"/000{sample.ending}")


def open_sample(sample: Sample, url: str, index: Path | None) -> loadax.Dataset:
    given = {} if index is None else {"index": index}
    return getattr(loadax, sample.function)(url, **sample.options, **given)


@pytest.mark.parametrize("name", REMOTE)
def test_opening_takes_at_most_three_rounds(
    name: str, tmp_path: Path, s3_server: S3Server, bucket: str, rounds: RoundsProxy
) -> None:
    sample = REMOTE[name]
    url = upload(sample, tmp_path / "data", s3_server, bucket)
    first = open_sample(sample, url, tmp_path / "index")
    # The scan of records is no opening. Small files of JSON lines are scanned as they were read for their compression.
    assert rounds.rounds <= 3 + (name in SCANNED)
    asked = Counter(one.path for one in rounds.log if one.status == 404)
    assert [path for path, count in asked.items() if count > 1] == []
    rounds.log.clear()
    again = open_sample(sample, url, tmp_path / "index")
    # Images read the first one for its size.
    assert rounds.rounds <= (2 if name == "images" else 1)
    assert len(rounds.log) <= {"images": 2}.get(name, 1)
    assert len(again) == len(first)
    assert again.spec == first.spec
    assert [str(again[row]) for row in range(len(first))] == [str(first[row]) for row in range(len(first))]


@pytest.mark.parametrize("name", REMOTE)
def test_a_replaced_file_is_noticed(
    name: str, tmp_path: Path, s3_server: S3Server, bucket: str, s3_environment: None
) -> None:
    sample = REMOTE[name]
    url = upload(sample, tmp_path / "data", s3_server, bucket)
    open_sample(sample, url, tmp_path / "index")
    last = max((tmp_path / "data").iterdir())
    sample.file(last, range(10, 17))
    s3_server.upload(tmp_path / "data", bucket, "data/")
    replaced = open_sample(sample, url, tmp_path / "index")
    plain = open_sample(sample, url, None)
    assert len(replaced) == len(plain)
    rows = [int(np.asarray(sample.number(replaced[row])).flat[0]) for row in range(len(replaced))]
    assert rows[-7:] == list(range(10, 17))


def write_parquet(path: Path, first: int) -> None:
    path.parent.mkdir(exist_ok=True)
    parquet.write_table(pa.table({"x": range(first, first + 4)}), path)


def test_a_new_file_costs_one_footer(tmp_path: Path, s3_server: S3Server, s3_proxy: FaultProxy, bucket: str) -> None:
    for number in range(20):
        write_parquet(tmp_path / "data" / f"{number:02}.parquet", 4 * number)
    s3_server.upload(tmp_path / "data", bucket, "data/")
    index = tmp_path / "index"
    assert len(loadax.from_parquet(f"s3://{bucket}/data/", index=index)) == 80
    write_parquet(tmp_path / "data" / "20.parquet", 80)
    s3_server.upload(tmp_path / "data", bucket, "data/")
    s3_proxy.clear()
    data = loadax.from_parquet(f"s3://{bucket}/data/", index=index)
    assert data[83]["x"] == 83
    footers = [exchange for exchange in s3_proxy.log if exchange.path.endswith("20.parquet")]
    assert 1 <= len(footers) <= 2
    s3_proxy.clear()
    assert len(loadax.from_parquet(f"s3://{bucket}/data/", index=index)) == 84
    assert len(s3_proxy.log) == 1


# Requests for the logs of Delta, Iceberg, Hudi and Lance tables in the folder above.
ABOVE = {"parquet": 4}


@pytest.mark.parametrize("name", ["parquet", "jsonl", "webdataset", "tfrecord", "tokens"])
def test_planned_hosts_share_an_index(
    name: str, tmp_path: Path, s3_server: S3Server, s3_proxy: FaultProxy, bucket: str
) -> None:
    """A request a file, once, and one a host: openings one after the other, as so many hosts would."""
    files = 10
    hosts = 5
    url = upload(REMOTE[name], tmp_path / "data", s3_server, bucket, files)
    for _ in range(hosts):
        open_sample(REMOTE[name], url, tmp_path / "index")
    assert len(s3_proxy.log) <= files + hosts + ABOVE.get(name, 0)


def test_large_json_lines_are_not_kept_whole(
    tmp_path: Path, s3_server: S3Server, s3_proxy: FaultProxy, bucket: str
) -> None:
    """A file of more than 64 KiB is read by its first bytes, its lines and its types; a small one beside it once."""
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "large.jsonl").write_text('{"x": 1}\n' * 10_000)
    (folder / "small.jsonl").write_text('{"x": 2}\n' * 10)
    s3_server.upload(folder, bucket, "data/")
    data = loadax.from_jsonl(f"s3://{bucket}/data", progress=False)
    sizes = Counter(one.path.rpartition("/")[2] for one in s3_proxy.log if one.path.endswith(".jsonl"))
    assert sizes["small.jsonl"] == 1
    assert sizes["large.jsonl"] >= 3
    assert data[10_009]["x"] == 2  # of which the content is requested again


def test_a_store_of_loadax_is_compared_by_its_manifest(
    tmp_path: Path, s3_server: S3Server, s3_proxy: FaultProxy, bucket: str
) -> None:
    url = f"s3://{bucket}/store"
    for rows in (4, 6):
        data = loadax.from_arrays({name: np.arange(rows) for name in "abcd"})
        loadax.write_zarr(data, tmp_path / "store", overwrite=True)
        s3_server.upload(tmp_path / "store", bucket, "store/")
        assert len(loadax.from_zarr(url, index=tmp_path / "index")) == rows
        s3_proxy.clear()
        assert len(loadax.from_zarr(url, index=tmp_path / "index")) == rows
        assert [one.path.rpartition("/")[2] for one in s3_proxy.log] == ["loadax.json"]


def test_an_index_that_cannot_be_used_is_made_again(
    tmp_path: Path, s3_server: S3Server, bucket: str, s3_environment: None, caplog: pytest.LogCaptureFixture
) -> None:
    write_parquet(tmp_path / "data" / "a.parquet", 0)
    s3_server.upload(tmp_path / "data", bucket, "data/")
    url = f"s3://{bucket}/data/"
    index = tmp_path / "index"
    loadax.from_parquet(url, index=index)
    (answers,) = index.glob("opening-*.npy")
    answers.write_bytes(answers.read_bytes()[:-8] + b"damaged!")
    assert len(loadax.from_parquet(url, index=index)) == 4
    assert "damaged" in caplog.text
    caplog.clear()
    assert len(loadax.from_parquet(f"{url}a.parquet", index=index)) == 4
    assert "paths differs" in caplog.text


def test_an_index_that_is_no_folder_is_refused(
    tmp_path: Path, s3_server: S3Server, bucket: str, s3_environment: None
) -> None:
    write_parquet(tmp_path / "data" / "a.parquet", 0)
    s3_server.upload(tmp_path / "data", bucket, "data/")
    (tmp_path / "index").write_text("")
    with pytest.raises(ArgumentError, match=r"index=.* is a file; pass the path of a folder"):
        loadax.from_parquet(f"s3://{bucket}/data/", index=tmp_path / "index")


def test_no_secret_is_kept(tmp_path: Path, range_server: RangeServer) -> None:
    np.save(tmp_path / "a.npy", np.arange(6))
    url = f"{range_server.url}/a.npy?token=secret"
    for _ in range(2):
        assert len(loadax.from_npy(url, index=tmp_path / "index")) == 6
    answers = [load_answers(np.load(file).tobytes()) for file in (tmp_path / "index").glob("opening-*.npy")]
    assert "secret" not in str(answers)
