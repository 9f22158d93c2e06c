"""Data in object storage is as good as data on disk.

The same batches whatever the network does, or a clear error in bounded time.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorstore as ts

import loadax
from loadax.errors import SourceError
from loadax.files.requests import request_counts
from tests.limits import HANG, until
from tests.processes.launch import run_processes
from tests.records import begin, chains, finish, write
from tests.servers.child import run_python
from tests.servers.faults import Fault, FaultProxy, Kind, Matches
from tests.servers.gcs import GcsServer
from tests.servers.loopback import DeadPort
from tests.servers.ranges import RangeServer
from tests.servers.s3 import S3Server
from tests.sources.storage_bodies import write_latitudes

pytest_plugins = ["tests.servers.fixtures"]

FIELDS = np.arange(128 * 8 * 64, dtype=np.float32).reshape(128, 8, 64)
LABELS = np.arange(128, dtype=np.int32) * 7
LONG = np.arange(1024 * 8 * 64, dtype=np.float32).reshape(1024, 8, 64)
TOKENS = np.arange(40_000, dtype=np.uint16)
BATCH = 32
CHECKED = [{"name": "bytes"}, {"name": "crc32c"}]
SHARDED = [{"name": "sharding_indexed", "configuration": {"chunk_shape": [1, 8, 64], "codecs": CHECKED}}]


def write_array(
    folder: Path, values: np.ndarray[Any, Any], codecs: list[dict[str, Any]] = CHECKED, rows: int = 32
) -> None:
    """With so many rows a file."""
    metadata = {
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [rows, *values.shape[1:]]}},
        "codecs": codecs,
    }
    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{folder}/"}, "metadata": metadata}
    ts.open(spec, create=True, dtype=values.dtype, shape=values.shape).result().write(values).result()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`weather`: fields in shards, one row a chunk, and labels; `long`, of many rows; `tokens.npy`, and `rows.npy`."""
    folder = tmp_path_factory.mktemp("stored")
    np.save(folder / "tokens.npy", TOKENS)
    np.save(folder / "rows.npy", FIELDS)
    write_array(folder / "long", LONG, SHARDED, rows=256)
    write_array(folder / "weather" / "field", FIELDS, SHARDED)
    write_array(folder / "weather" / "label", LABELS)
    return folder


@dataclass(frozen=True)
class Remote:
    """The folder behind a proxy, by its URL."""

    url: str
    proxy: FaultProxy

    def open(self) -> loadax.Dataset:
        return loadax.from_zarr(f"{self.url}/weather", ["field", "label"])


@pytest.fixture(params=["http", "s3"])
def remote(request: pytest.FixtureRequest, folder: Path, s3_server: S3Server) -> Iterator[Remote]:
    if request.param == "http":
        with closing(RangeServer(folder)) as server, closing(FaultProxy(server.url)) as proxy:
            yield Remote(proxy.url, proxy)
    else:
        bucket = s3_server.bucket()
        s3_server.upload(folder, bucket)
        with closing(FaultProxy(s3_server.url)) as proxy, pytest.MonkeyPatch.context() as patch:
            for name, value in s3_server.environment(proxy.url).items():
                patch.setenv(name, value)
            yield Remote(f"s3://{bucket}", proxy)


def first_time() -> Matches:
    """Matches each range of each object once: everything has to be asked for twice, and nothing more often."""
    seen = set()

    def matches(path: str, span: str | None) -> bool:
        # What is behind the ? is new in every request to Google's stores. A range that was cut short is asked for from
        # there on, so it has the same end.
        asked = (path.partition("?")[0], span and span.rpartition("-")[2])
        new = asked not in seen
        seen.add(asked)
        return new

    return matches


def chunk(number: int, data: bool = True) -> Matches:
    """Matches the field's shard of that number: the chunks in it, or its index."""
    return lambda path, span: f"/field/c/{number}/" in path and (span or "").startswith("bytes=-") is not data


def assert_batches(remote: loadax.Dataset, local: loadax.Dataset) -> None:
    """The same batches, placed on all devices, and those that NumPy gives."""
    loader, near = loadax.Dataloader(remote.shuffle(seed=3), BATCH), loadax.Dataloader(local.shuffle(seed=3), BATCH)
    with iter(loader) as batches, iter(near) as expected:
        for step, (batch, same) in enumerate(zip(batches, expected, strict=True)):
            rows = loader.rows(step)
            assert batch["field"].sharding == same["field"].sharding
            assert len(batch["field"].sharding.device_set) == 8
            for name, values in (("field", FIELDS), ("label", LABELS)):
                np.testing.assert_array_equal(batch[name], same[name])
                np.testing.assert_array_equal(batch[name], values[rows])
    assert step + 1 == 4


class TestTheSameBatches:
    def test_when_all_is_well(self, remote: Remote, folder: Path) -> None:
        assert_batches(remote.open(), loadax.from_zarr(folder / "weather"))
        paths = [path for path in remote.proxy.requests if "/field/c/" in path]
        assert len(paths) == 4

    @pytest.mark.parametrize("kind", ["status", "reset", "truncate"])
    def test_when_every_request_fails_at_first(self, kind: Kind, remote: Remote, folder: Path) -> None:
        remote.proxy.add(failing := Fault(kind, first_time()))
        assert_batches(remote.open(), loadax.from_zarr(folder / "weather"))
        assert failing.hits > 20

    @pytest.mark.parametrize(
        ("kind", "matches"),
        [
            ("status", chunk(2)),
            ("status", chunk(2, data=False)),
            ("corrupt", chunk(2)),
            ("corrupt", chunk(2, data=False)),
        ],
        ids=["404 chunk", "404 index", "corrupt chunk", "corrupt index"],
    )
    def test_when_an_answer_is_wrong_once(self, kind: Kind, matches: Matches, remote: Remote, folder: Path) -> None:
        data = remote.open()
        remote.proxy.add(wrong := Fault(kind, matches, status=404, times=1))
        assert_batches(data, loadax.from_zarr(folder / "weather"))
        assert wrong.hits == 1

    def test_when_all_of_it_happens(self, remote: Remote, folder: Path) -> None:
        data = remote.open()
        remote.proxy.add(
            Fault("delay", seconds=0.05),
            Fault("status", first_time(), every=3),
            Fault("reset", first_time(), every=5),
            Fault("corrupt", chunk(1), times=1),
        )
        assert_batches(data, loadax.from_zarr(folder / "weather"))


def test_every_source_and_verb_of_records(s3_server: S3Server, bucket: str, tmp_path: Path) -> None:
    write(tmp_path / "records")
    s3_server.upload(tmp_path / "records", bucket)
    for chain in chains(f"s3://{bucket}", tmp_path / "index").values():
        finish(chain, begin(chain))


def test_a_second_try_uses_the_same_credentials_and_is_remembered(
    folder: Path, s3_server: S3Server, s3_proxy: FaultProxy, bucket: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """The default credentials are looked for in files; TensorStore prints which of them are not there."""
    s3_server.upload(folder, bucket)
    data = loadax.from_zarr(f"s3://{bucket}/weather", "field")
    s3_proxy.add(Fault("status", chunk(1, data=False), status=404, times=1))
    assert_row(data, 40)
    s3_proxy.clear()
    for row in (41, 42, 60):
        assert_row(data, row)
    assert len(s3_proxy.log) <= 4  # the index anew, perhaps, and each row
    assert "redentials" not in capfd.readouterr().err


class TestFlatFiles:
    """Tokens and rows of `.npy` files: byte ranges of objects that have no checksums of their own."""

    @pytest.mark.parametrize("kind", [None, "status", "reset", "truncate"])
    def test_the_same_batches(self, kind: Kind | None, remote: Remote, folder: Path) -> None:
        if kind is not None:
            remote.proxy.add(Fault(kind, first_time()))
        far = loadax.Dataloader(loadax.from_tokens(f"{remote.url}/tokens.npy", 127, stride=64).shuffle(seed=3), 64)
        near = loadax.Dataloader(loadax.from_tokens(folder / "tokens.npy", 127, stride=64).shuffle(seed=3), 64)
        for step in (0, 5):
            wanted = TOKENS[far.rows(step)[:, None] * 64 + np.arange(128)]
            np.testing.assert_array_equal(far[step]["tokens"], wanted)
            np.testing.assert_array_equal(near[step]["tokens"], wanted)
        rows = loadax.Dataloader(loadax.from_npy(f"{remote.url}/rows.npy").shuffle(seed=3), BATCH)
        np.testing.assert_array_equal(rows[1], FIELDS[rows.rows(1)])

    def test_an_object_that_was_not_found_once(self, remote: Remote) -> None:
        data = loadax.from_tokens(f"{remote.url}/tokens.npy", 127, stride=128)
        remote.proxy.add(stray := Fault("status", "tokens.npy", status=404, times=1))
        np.testing.assert_array_equal(data.read(np.array([7, 2]))["tokens"], TOKENS[:1024].reshape(8, 128)[[7, 2]])
        assert stray.hits == 1

    @pytest.mark.parametrize(("status", "message"), [(403, "check the credentials"), (404, "")])
    def test_what_can_not_be_read(self, status: int, message: str, remote: Remote) -> None:
        remote.proxy.add(Fault("status", ".npy", status=status))
        with pytest.raises(SourceError, match=rf"{remote.url}/tokens.npy.*{message}"):
            loadax.from_tokens(f"{remote.url}/tokens.npy", 127)
        with pytest.raises(SourceError, match=rf"{remote.url}/rows.npy.*{message}"):
            loadax.from_npy(f"{remote.url}/rows.npy")


class TestAStepOfScatteredRowsTakesOneRoundTrip:
    """No answer comes before all of a step's 64 rows are asked for."""

    def test_of_chunks(self, remote: Remote) -> None:
        assert_one_round_trip(lambda: loadax.from_zarr(f"{remote.url}/long"), LONG, remote.proxy)

    def test_of_tokens(self, http_proxy: FaultProxy, tmp_path: Path) -> None:
        """With gaps between the windows that are too large to be read over."""
        tokens = np.lib.format.open_memmap(tmp_path / "tokens.npy", "w+", np.uint16, (640, 40_000))
        tokens[:, :128] = np.arange(640 * 128, dtype=np.uint16).reshape(640, 128)
        flat = np.lib.format.open_memmap(tmp_path / "flat.npy", "w+", np.uint16, (tokens.size,))
        flat[:] = tokens.ravel()

        def opened() -> loadax.Dataset:
            data = loadax.from_tokens(f"{http_proxy.url}/flat.npy", 127, stride=40_000)
            return data.map_batch(lambda batch: batch["tokens"])

        assert_one_round_trip(opened, tokens[:, :128], http_proxy)


def assert_one_round_trip(opened: Callable[[], loadax.Dataset], values: Any, proxy: FaultProxy) -> None:
    # Two of them, since what was read once may be kept: one tells how many requests a step has, the other one must make
    # them all at once.
    first, second = (loadax.Dataloader(opened().shuffle(seed=1), 64) for _ in range(2))
    for step in range(4):
        first[step], second[step]  # metadata and the shards' indexes
    for step in range(4, 10):
        clear(proxy)
        first[step]
        requests = distinct(proxy)
        assert requests > 40
        clear(proxy)
        proxy.add(Fault("together", many=requests))
        np.testing.assert_array_equal(second[step], values[second.rows(step)])
        assert distinct(proxy) == requests
        # none is sent more than twice; how many are late depends on the machine
        assert max(Counter((each.path, each.range) for each in proxy.log).values()) <= 2


def clear(proxy: FaultProxy) -> None:
    """Forgets the requests so far, also second copies of answered ones that are still on their way."""
    until(lambda: not request_counts()[0])
    proxy.clear()


def distinct(proxy: FaultProxy) -> int:
    """Number of requests, without those that were late and sent a second time."""
    return len({(each.path, each.range) for each in proxy.log})


@pytest.mark.parametrize("kind", ["http", "s3"])
def test_a_host_fetches_only_the_latitudes_it_holds(kind: str, s3_server: S3Server, tmp_path: Path) -> None:
    write_latitudes(tmp_path / "latitudes")
    body = "tests.sources.storage_bodies:only_its_latitudes"
    with closing(RangeServer(tmp_path)) as server:
        if kind == "http":
            args = {"server": server.url, "url": "{proxy}/latitudes", "environment": {}}
        else:
            bucket = s3_server.bucket()
            s3_server.upload(tmp_path, bucket)
            args = {"server": s3_server.url, "url": f"s3://{bucket}/latitudes", "environment": s3_server.environment()}
        run_processes(body, processes=2, devices=4, args=args)


class TestWhatCanNotBeRead:
    def test_nobody_answers(self, s3_server: S3Server, dead_port: DeadPort) -> None:
        """Six tries, then an error.

        A dead server gets the few seconds that it may need to come back, a silent one six time limits.

        How long silence may last is read once a process, so this needs one of its own: with one second instead of ten.
        """
        with closing(FaultProxy(s3_server.url)) as proxy:
            proxy.add(Fault("silent"))
            code = f"""
from concurrent.futures import ThreadPoolExecutor
import loadax
from loadax.errors import SourceError

def refused(url):
    try:
        loadax.from_zarr(url)
    except SourceError as error:
        assert url in str(error) and "no answer after 6 tries" in str(error), error
        return
    raise AssertionError(url)

with ThreadPoolExecutor(3) as pool:
    list(pool.map(refused, ["{dead_port.url}/x", "{proxy.url}/x", "s3://bucket/x"]))
"""
            run_python(code, {**s3_server.environment(proxy.url), "TENSORSTORE_CURL_LOW_SPEED_TIME_SECONDS": "1"}, HANG)
            assert len(proxy.log) >= 12

    def test_the_server_dies_under_way(
        self, s3_server: S3Server, s3_proxy: FaultProxy, bucket: str, folder: Path
    ) -> None:
        s3_server.upload(folder, bucket)
        data = loadax.from_zarr(f"s3://{bucket}/long").shuffle(seed=3)
        loader = loadax.Dataloader(data, BATCH, prefetch=1, prefetch_bytes=1 << 16)
        with iter(loader) as batches:
            next(batches)
            s3_proxy.close()
            with pytest.raises(SourceError, match=rf"s3://{bucket}/long.*no answer after 6 tries"):
                list(batches)

    def test_nothing_is_there(self, remote: Remote) -> None:
        with pytest.raises(SourceError, match=rf"{remote.url}/nothing.*(check the path|name its arrays in variables)"):
            loadax.from_zarr(f"{remote.url}/nothing")
        with pytest.raises(SourceError, match=rf"{remote.url}/weather has no zarr array 'sea'"):
            loadax.from_zarr(f"{remote.url}/weather", ["sea"])

    def test_the_bucket_is_not_there(self, s3_environment: None) -> None:
        with pytest.raises(SourceError, match=r"s3://no-such-bucket/x can't be read: .*NoSuchBucket"):
            loadax.from_zarr("s3://no-such-bucket/x")

    def test_a_credential_is_refused(self, remote: Remote) -> None:
        remote.proxy.add(Fault("status", status=403))
        with pytest.raises(
            SourceError, match=rf"{remote.url}/weather can't be read: PERMISSION_DENIED.*check the credentials"
        ):
            remote.open()
        assert set(remote.proxy.requests.values()) == {1}  # what is refused is not asked for again

    @pytest.mark.parametrize(
        ("kind", "matches", "status", "message"),
        [
            ("status", chunk(1), 403, "PERMISSION_DENIED.*c/1/0/0.*check the credentials"),
            ("status", lambda path, _: "/field/c/1/" in path, 404, "NOT_FOUND: chunk.*c/1/0/0.*copy it again"),
            ("corrupt", chunk(1), 0, "DATA_LOSS.*c/1/0/0.*copy that file again"),
            ("corrupt", chunk(1, data=False), 0, "DATA_LOSS.*c/1/0/0.*copy that file again"),
        ],
        ids=["refused", "missing", "corrupt chunk", "corrupt index"],
    )
    def test_chunk_that_can_not_be_read_spoils_no_other(
        self, kind: Kind, matches: Matches, status: int, message: str, remote: Remote
    ) -> None:
        data = remote.open()
        remote.proxy.add(Fault(kind, matches, status=status))
        with pytest.raises(SourceError, match=rf"{remote.url}/weather/field.*{message}"):
            data.read(np.array([40]))
        assert_row(data, 5)


def assert_row(data: loadax.Dataset, row: int) -> None:
    np.testing.assert_array_equal(data.read(np.array([row]))["field"], FIELDS[[row]])


def test_google_cloud_storage_as_far_as_the_emulator_goes(gcs_server: GcsServer, folder: Path, tmp_path: Path) -> None:
    """Whole objects: it answers no request for the last bytes of one, with which shards are read."""
    write_array(tmp_path / "weather" / "field", FIELDS)
    write_array(tmp_path / "weather" / "label", LABELS)
    np.save(tmp_path / "tokens.npy", TOKENS)
    bucket = gcs_server.bucket()
    gcs_server.upload(tmp_path, bucket, "below/")
    code = f"""
import numpy as np
import loadax
data = loadax.from_zarr("gs://{bucket}/below/weather").shuffle(seed=3, block=32)
loader = loadax.Dataloader(data, {BATCH})
local = loadax.Dataloader(loadax.from_zarr({str(folder / "weather")!r}).shuffle(seed=3, block=32), {BATCH})
for batch, same in zip(loader, local, strict=True):
    for name in ("field", "label"):
        np.testing.assert_array_equal(batch[name], same[name])
windows = loadax.from_tokens("gs://{bucket}/below/tokens.npy", 99, stride=100).read(np.array([300, 2]))["tokens"]
assert windows[:, :2].tolist() == [[30000, 30001], [200, 201]]
try:
    loadax.from_zarr("gs://{bucket}/nothing")
except loadax.errors.SourceError as error:
    assert "gs://{bucket}/nothing" in str(error), error
else:
    raise AssertionError
"""
    missing = {"Last-Modified": "Sun, 22 Nov 2026 12:00:00 GMT", "ETag": '"one"'}  # which Google sends
    with closing(FaultProxy(gcs_server.url, missing)) as proxy:
        proxy.add(failing := Fault("status", first_time()))
        run_python(code, gcs_server.environment(proxy.url))
    assert failing.hits > 8
