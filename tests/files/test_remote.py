"""Ranges of remote files: the same bytes as from local ones, in few requests, over HTTP and S3, also after faults."""

import asyncio
import os
import pickle
import re
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import jax
import numpy as np
import pytest
from jax.sharding import AxisType, PartitionSpec as P

import loadax.io
from loadax.errors import SourceError
from loadax.files.byte_ranges import ByteRange
from loadax.files.byte_stream import ByteStream, FileSpan, MappedSegments
from loadax.files.delays import CAUTIOUS
from loadax.files.files import Files
from loadax.files.remote_stream import RemoteSegments
from loadax.loader.dataloader import Dataloader
from loadax.protocols import Location
from loadax.sources.npy.source import open_npy
from loadax.testing import check_source
from tests.servers.faults import Fault, FaultProxy
from tests.servers.ranges import RangeServer
from tests.sources.token_corpora import open_tokens, stream, write_bin, write_npy, write_pair

pytest_plugins = ["tests.servers.fixtures"]

MIB = 1 << 20


def spans(proxy: FaultProxy) -> list[str]:
    """The ranges that were asked for, ascending."""
    found = [each.range or "" for each in proxy.log if each.method == "GET"]
    return sorted(found, key=lambda each: int(re.findall(r"\d+", each)[0]))


def test_a_size_takes_one_request(tmp_path: Path, http_proxy: FaultProxy) -> None:
    """And a second one for an empty file, of which no server has a byte."""
    sizes = [0, 1, 65536, MIB + 1, 5_000_000_017]
    for size in sizes:
        with (tmp_path / f"{size}.bin").open("wb") as file:
            file.truncate(size)
    urls = [f"{http_proxy.url}/{size}.bin" for size in sizes]
    files = Files()
    assert files.sizes(urls) == sizes
    assert len(http_proxy.log) == len(sizes) + 1
    assert files.sizes(urls[::-1]) == pickle.loads(pickle.dumps(files)).sizes(urls[::-1]) == sizes[::-1]
    assert len(http_proxy.log) == len(sizes) + 1
    assert Files().sizes([str(tmp_path / f"{size}.bin") for size in sizes]) == sizes
    with pytest.raises(SourceError, match=rf"{http_proxy.url}/nowhere\.bin: there is no such file"):
        Files().sizes([urls[1], f"{http_proxy.url}/nowhere.bin"])


def test_what_was_read_tells_the_size(tmp_path: Path, http_proxy: FaultProxy) -> None:
    (tmp_path / "x.bin").write_bytes(b"x" * 1000)
    (tmp_path / "empty.bin").touch()
    files, urls = Files(), [f"{http_proxy.url}/x.bin", f"{http_proxy.url}/empty.bin", str(tmp_path / "x.bin")]
    assert files.read_starts(urls, 4096) == [b"x" * 1000, b"", b"x" * 1000]
    assert files.sizes(urls[:1]) == [1000]
    assert len(http_proxy.log) == 2
    assert files.sizes(urls) == [1000, 0, 1000]


def test_nearby_ranges_of_a_file_are_one_request(tmp_path: Path, http_proxy: FaultProxy) -> None:
    content = np.random.default_rng(0).integers(0, 256, 3 * MIB, np.uint8).tobytes()
    for name in "ab":
        (tmp_path / name).write_bytes(content)
    rng = np.random.default_rng(1)
    starts = rng.integers(0, MIB // 8, 200).tolist()
    ranges = [ByteRange(f"{http_proxy.url}/{'ab'[start % 2]}", start, start + start % 3000) for start in starts]
    assert Files().read(ranges) == [content[wanted.start : wanted.stop] for wanted in ranges]
    assert len(http_proxy.log) == 2
    http_proxy.clear()
    url = f"{http_proxy.url}/a"
    far = [ByteRange(url, 0, 10), ByteRange(url, MIB, MIB + 5), ByteRange(url, 10, 20), ByteRange(url, 7, 7)]
    assert Files().read(far) == [content[wanted.start : wanted.stop] for wanted in far]
    assert spans(http_proxy) == ["bytes=0-19", f"bytes={MIB}-{MIB + 4}"]


def test_in_a_notebook_whose_thread_runs_an_event_loop(tmp_path: Path, http_proxy: FaultProxy) -> None:
    (tmp_path / "x.bin").write_bytes(b"x" * 1000)

    async def cell() -> list[int]:
        return Files().sizes([f"{http_proxy.url}/x.bin"])

    assert asyncio.run(cell()) == [1000]


def test_a_long_wait_is_said_and_ends(
    tmp_path: Path, http_proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "x.bin").write_bytes(b"x" * 1000)
    monkeypatch.setattr("loadax.files.remote.NOTICE", 0.01)
    monkeypatch.setattr("loadax.files.remote.PATIENCE", 0.5)
    http_proxy.add(Fault("silent"))
    with pytest.raises(SourceError, match=rf"{http_proxy.url}/x.bin: no answer after .* s; is the store reachable"):
        Files().sizes([f"{http_proxy.url}/x.bin"])
    assert f"{http_proxy.url}/x.bin: no answer for" in caplog.text


def test_local_and_remote_files_say_the_same(tmp_path: Path, http_proxy: FaultProxy) -> None:
    (tmp_path / "x.bin").write_bytes(bytes(range(200)))
    (tmp_path / "empty.bin").touch()
    for files, base in (
        (Files(), str(tmp_path)),
        (Files(), http_proxy.url),
        (Files(), f"file://{tmp_path}"),
    ):
        x, empty, nowhere = (f"{base}/{name}.bin" for name in ("x", "empty", "nowhere"))
        assert files.exists([x, nowhere, empty]) == [True, False, True]
        assert files.sizes([x, empty]) == [200, 0]
        assert files.read([ByteRange(x, 5, 8), ByteRange(x, 5, 5), ByteRange(x, 198, 200)]) == [
            b"\x05\x06\x07",
            b"",
            b"\xc6\xc7",
        ]
        with pytest.raises(
            SourceError, match=r"x\.bin: bytes 199 to 200 are missing: the file is cut short, or of another kind"
        ):
            files.read([ByteRange(x, 199, 201)])
        with pytest.raises(SourceError, match=r"nowhere\.bin(, bytes 0 to 0)?: there is no such file"):
            files.read([ByteRange(x, 0, 1), ByteRange(nowhere, 0, 1)])


def laid_out(folder: Path, base: str) -> tuple[list[FileSpan], list[FileSpan], bytes]:
    """A stream in three files, one of them empty, that begin anywhere: local, remote, and its bytes."""
    content = np.random.default_rng(0).integers(0, 256, 400_000, np.uint8).tobytes()
    parts = {"a": (5, content[:150_000]), "b": (0, b""), "c": (77, content[150_000:])}
    for name, (begin, part) in parts.items():
        (folder / name).write_bytes(b"#" * begin + part + b"behind")
    local, remote = (
        [FileSpan(f"{where}/{name}", begin, len(part)) for name, (begin, part) in parts.items()]
        for where in (folder, base)
    )
    return local, remote, content


def streams(local: list[FileSpan], remote: list[FileSpan]) -> list[ByteStream]:
    return [
        MappedSegments(local),
        RemoteSegments(local, Files()),
        RemoteSegments(remote, Files()),
        pickle.loads(pickle.dumps(RemoteSegments(remote, Files()))),
    ]


@pytest.mark.parametrize("size", [1, 7, 4096, 160_000])
def test_stretches_are_the_bytes_of_the_stream(size: int, tmp_path: Path, http_proxy: FaultProxy) -> None:
    local, remote, content = laid_out(tmp_path, http_proxy.url)
    starts = np.random.default_rng(size).integers(0, len(content) - size + 1, 40)
    starts[:3] = [0, len(content) - size, starts[5]]
    expected = [content[start : start + size] for start in starts]
    for reader in streams(local, remote):
        within = np.full((len(starts), size + 5), 9, np.uint8)
        reader.read_into(starts, within[:, 2:-3])
        assert [bytes(row[2:-3]) for row in within] == expected
        assert (within[:, [0, 1, -3, -2, -1]] == 9).all()
        reader.read_into(starts[:0], np.empty((0, size), np.uint8))
        reader.read_into(starts, np.empty((len(starts), 0), np.uint8))


@pytest.mark.parametrize("dtype", ["u1", "<u2", ">i4"])
@pytest.mark.parametrize("longest", [1, 30, 20_000])
def test_parts_of_any_lengths(dtype: str, longest: int, tmp_path: Path, http_proxy: FaultProxy) -> None:
    """In any order, side by side, repeated, within each other, and all of a segment."""
    local, remote, content = laid_out(tmp_path, http_proxy.url)
    entry, moment = np.dtype(dtype), np.random.default_rng(longest)
    lengths = moment.integers(1, longest + 1, 60) * entry.itemsize
    starts = moment.integers(0, (150_000 - lengths) // entry.itemsize) * entry.itemsize
    starts[::2] += 150_000  # in the other file
    few = lengths[:10] % 8000 + entry.itemsize
    starts = np.concatenate([starts, starts[:5], 160_000 + np.cumsum(few) - few, [150_000, 0]])
    lengths = np.concatenate([lengths, lengths[:5], few, [250_000, 150_000]])
    parts = [content[start : start + length] for start, length in zip(starts, lengths, strict=True)]
    for some in (slice(None), slice(65, 75), slice(75, 76), slice(1)):
        for reader in streams(local, remote):
            found = reader.gather(starts[some] // entry.itemsize, lengths[some] // entry.itemsize, entry)
            assert found.dtype == entry
            assert found.tobytes() == b"".join(parts[some])


def test_near_ranges_are_one_request_and_far_ones_are_not(tmp_path: Path, http_proxy: FaultProxy) -> None:
    (tmp_path / "x").write_bytes(bytes(MIB))
    reader = RemoteSegments([FileSpan(f"{http_proxy.url}/x", 0, MIB)], Files())
    for starts, expected in (
        ([1000, 0, 500, 500], ["bytes=0-1099"]),
        ([0, 100 + CAUTIOUS], [f"bytes=0-{CAUTIOUS + 199}"]),
        ([0, 101 + CAUTIOUS], ["bytes=0-99", f"bytes={CAUTIOUS + 101}-{CAUTIOUS + 200}"]),
        ([900_000, 50, 200_000], ["bytes=50-149", "bytes=200000-200099", "bytes=900000-900099"]),
    ):
        http_proxy.clear()
        reader.read_into(np.array(starts), np.empty((len(starts), 100), np.uint8))
        assert spans(http_proxy) == expected


def test_joined_ranges_end_and_memory_is_bounded(
    tmp_path: Path, http_proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = 30 * MIB
    content = np.random.default_rng(0).integers(0, 256, size, np.uint8)
    content.tofile(tmp_path / "x")
    monkeypatch.setattr("loadax.files.remote_stream.WAVE", 10 * MIB)
    reader = RemoteSegments([FileSpan(f"{http_proxy.url}/x", 0, size)], Files())
    starts = np.arange(0, size, 64 << 10)
    out = np.empty((len(starts), 64 << 10), np.uint8)
    reader.read_into(starts, out)
    assert (out.reshape(-1) == content).all()
    assert spans(http_proxy) == [f"bytes={8 * k * MIB}-{min(8 * (k + 1), 30) * MIB - 1}" for k in range(4)]


def test_rows_come_in_one_round_trip(tmp_path: Path, http_proxy: FaultProxy) -> None:
    tokens = stream(4 * MIB)
    source = open_tokens(f"{http_proxy.url}/{write_npy(tmp_path / 'x.npy', tokens).name}", 127)
    rows = np.random.default_rng(0).permutation(len(source))[:64]
    http_proxy.clear()
    source.read(rows)
    requests = len(http_proxy.log)
    http_proxy.add(Fault("together", many=requests))  # no answer comes before all are asked for
    batch = source.read(rows)
    assert 2 * requests <= len(http_proxy.log) <= 2.1 * requests  # late ones are sent twice
    np.testing.assert_array_equal(batch["tokens"], tokens[rows[:, None] * 127 + np.arange(128)])


def corpus(folder: Path) -> list[str]:
    """Files of all three kinds; their names."""
    tokens = stream(60_000, np.int32)
    write_bin(folder / "0.bin", tokens[:20_001])
    write_npy(folder / "1.npy", tokens[20_001:40_000])
    write_pair(folder / "2.bin", [[tokens[40_000:45_000]], [tokens[45_000:46_000], tokens[46_000:]]])
    return ["0.bin", "1.npy", "2.bin"]


@pytest.mark.parametrize("targets", [False, True])
def test_remote_tokens_are_the_local_ones(targets: bool, tmp_path: Path, http_proxy: FaultProxy) -> None:
    names = corpus(tmp_path)
    local = open_tokens([tmp_path / name for name in names], 100, dtype="int32", stride=70, targets=targets)
    urls = [f"{http_proxy.url}/{name}" for name in names]
    remote = open_tokens(urls, 100, dtype="int32", stride=70, targets=targets)
    assert (len(remote), remote.spec) == (len(local), local.spec)
    assert (local.traits.concurrent_reads, remote.traits.concurrent_reads) == (1, 4)
    rows = np.random.default_rng(0).integers(0, len(local), 50)
    http_proxy.clear()
    one, other = local.read(rows), remote.read(rows)
    assert len(http_proxy.log) <= 4  # they lie near each other, and inputs and targets come together
    for name in local.spec:
        np.testing.assert_array_equal(other[name], one[name])
    assert remote.locate(290) == [
        each._replace(file=f"{http_proxy.url}/{Path(each.file).name}") for each in local.locate(290)
    ]
    mixed = open_tokens([tmp_path / names[0], *urls[1:]], 100, dtype="int32", stride=70, targets=targets)
    for name, leaf in mixed.read(rows).items():
        np.testing.assert_array_equal(leaf, one[name])


def test_documents_of_a_remote_pair(tmp_path: Path, http_proxy: FaultProxy) -> None:
    tokens = stream(1000)
    path = write_pair(tmp_path / "x.bin", [[tokens[:300]], [tokens[300:310]], [tokens[310:]]])
    local = open_tokens(path, 50, segment_ids=True)
    for name in ("x.bin", "x.idx"):
        remote = pickle.loads(pickle.dumps(open_tokens(f"{http_proxy.url}/{name}", 50, segment_ids=True)))
        for leaf, values in remote.read(np.arange(len(local))).items():
            np.testing.assert_array_equal(values, local.read(np.arange(len(local)))[leaf])


def test_only_the_columns_that_are_held_are_asked_for(tmp_path: Path, http_proxy: FaultProxy) -> None:
    tokens = stream(4 * MIB)
    write_bin(tmp_path / "x.bin", tokens)
    source = open_tokens(f"{http_proxy.url}/x.bin", 65_535, dtype="uint16", stride=65_536)
    out = np.zeros((64, 1000), np.uint16)
    http_proxy.clear()
    source.read_into(np.arange(64), [((30_000, 31_000),)], [out])
    np.testing.assert_array_equal(out, tokens.reshape(64, -1)[:, 30_000:31_000])
    assert sum(http_proxy.bytes_sent.values()) == out.nbytes


def test_arrays_of_rows(tmp_path: Path, http_proxy: FaultProxy) -> None:
    values = np.random.default_rng(0).normal(size=(50, 6, 40, 30)).astype(np.float32)
    write_npy(tmp_path / "x.npy", values)
    write_npy(tmp_path / "y.npy", np.arange(50, dtype=">i2"))
    tree = {"x": f"{http_proxy.url}/x.npy", "y": (f"{http_proxy.url}/y.npy",)}
    source = open_npy(tree)
    local = open_npy({"x": tmp_path / "x.npy", "y": (tmp_path / "y.npy",)})
    assert (len(source), source.spec) == (50, local.spec)
    assert repr(source) == f"arrays at {http_proxy.url}/x.npy and at {http_proxy.url}/y.npy"
    rows = np.array([49, 0, 7, 7])
    for carried in (source, pickle.loads(pickle.dumps(source)), open_npy({**tree, "x": tmp_path / "x.npy"})):
        batch = carried.read(rows)
        np.testing.assert_array_equal(batch["x"], values[rows])
        assert batch["y"][0].tolist() == rows.tolist()
        assert batch["y"][0].dtype == np.int16
    out = np.zeros((4, 2, 40, 11), np.float32)
    http_proxy.clear()
    source.read_into(rows, [((1, 3), (0, 40), (4, 15)), None], [out, None])
    np.testing.assert_array_equal(out, values[rows][:, 1:3, :, 4:15])
    assert sum(http_proxy.bytes_sent.values()) <= 4 * 4800 * 6
    assert source.locate(2) == [
        Location(f"{http_proxy.url}/x.npy", 128 + 2 * 28800, 128 + 3 * 28800 - 1, "['x']"),
        Location(f"{http_proxy.url}/y.npy", 132, 133, "['y'][0]"),
    ]


def test_remote_arrays_that_can_not_be_read_by_rows(tmp_path: Path, http_proxy: FaultProxy) -> None:
    values = np.zeros((6, 4), np.float32)
    write_npy(tmp_path / "fortran.npy", np.asfortranarray(values))
    write_npy(tmp_path / "one.npy", np.array(1.0))
    np.save(tmp_path / "objects.npy", np.array([{}, 1], object), allow_pickle=True)
    write_npy(tmp_path / "whole.npy", values)
    (tmp_path / "cut.npy").write_bytes((tmp_path / "whole.npy").read_bytes()[:-1])
    (tmp_path / "text.npy").write_text("this is a text, and no array")
    write_npy(tmp_path / "short.npy", values[:4])
    for name, message in {
        "fortran": r" is in Fortran order, so the bytes of a row are scattered over the file; save numpy",
        "one": " is a scalar without rows",
        "objects": " contains Python objects; save an array of numbers with numpy.save",
        "cut": r": the file is cut short: float32\[6, 4\] of its header needs 224 bytes",
        "text": " is not a .npy file: it begins with b'this i'",
        "nowhere": ".*: there is no such file",
    }.items():
        with pytest.raises(SourceError, match=rf"{http_proxy.url}/{name}\.npy{message}"):
            open_npy(f"{http_proxy.url}/{name}.npy")
    with pytest.raises(SourceError, match=r"different numbers of rows \(\[0\]: 6, \[1\]: 4\)"):
        open_npy([f"{http_proxy.url}/whole.npy", f"{http_proxy.url}/short.npy"])


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (Fault("status", status=404), r"/x\.bin, bytes 2000 to 4001: there is no such file"),
        (
            Fault("status", status=403),
            r"/x\.bin, bytes 2000 to 4001: the server answered 403 Forbidden \(AccessDenied\); access was refused",
        ),
    ],
    ids=["404", "403"],
)
def test_a_fault_that_stays_names_the_url_and_the_range(
    fault: Fault, message: str, tmp_path: Path, http_proxy: FaultProxy
) -> None:
    write_bin(tmp_path / "x.bin", stream(5000))
    source = open_tokens(f"{http_proxy.url}/x.bin", 1000, dtype="uint16")
    http_proxy.clear()
    http_proxy.add(fault)
    with pytest.raises(SourceError, match=re.escape(http_proxy.url) + message):
        source.read(np.array([1]))
    assert len(http_proxy.log) == (1 if fault.status == 403 else 2)  # what is refused is not asked for again


def test_a_remote_file_that_was_replaced_by_one_of_the_same_size(tmp_path: Path, http_proxy: FaultProxy) -> None:
    path = write_bin(tmp_path / "x.bin", stream(5000))
    source = open_tokens(f"{http_proxy.url}/x.bin", 1000, dtype="uint16")
    source.read(np.array([3]))
    os.utime(path, (1, 1))
    for reader in (source, pickle.loads(pickle.dumps(source))):
        with pytest.raises(
            SourceError, match=r"/x\.bin: the file has changed since it was opened; .* open the dataset"
        ):
            reader.read(np.array([3]))
    open_tokens(f"{http_proxy.url}/x.bin", 1000, dtype="uint16").read(np.array([3]))


def test_a_remote_file_that_shrinks(tmp_path: Path, http_proxy: FaultProxy) -> None:
    path = write_bin(tmp_path / "x.bin", stream(5000))
    source = open_tokens(f"{http_proxy.url}/x.bin", 1000, dtype="uint16")
    path.write_bytes(path.read_bytes()[:7000])
    with pytest.raises(
        SourceError, match=r"/x\.bin: bytes 6000 to 8001 are missing: the file is cut short, or of another kind"
    ):
        source.read(np.array([3]))


@pytest.mark.processes
@pytest.mark.parametrize("cached", [False, True])
def test_they_keep_the_contract_of_a_source(cached: bool, tmp_path: Path, range_server: RangeServer) -> None:
    cache = tmp_path / "cache" if cached else None
    tokens = stream(30_000)
    path = write_pair(tmp_path / "x.bin", [[tokens[:7000]], [tokens[7000:7010]], [tokens[7010:]]])
    write_npy(tmp_path / "y.npy", tokens.astype(">f4").reshape(300, 10, 10))
    check_source(open_tokens(f"{range_server.url}/{path.name}", 100, targets=True, segment_ids=True, cache=cache))
    check_source(open_npy({"y": f"{range_server.url}/y.npy"}, cache))


def test_a_mesh_may_cut_the_sequence(tmp_path: Path, http_proxy: FaultProxy) -> None:
    tokens = stream(1 << 18)
    write_bin(tmp_path / "x.bin", tokens)
    data = loadax.io.from_tokens(f"{http_proxy.url}/x.bin", seq_len=16_000, dtype="uint16", stride=16_384, targets=True)
    mesh = jax.make_mesh((2, 4), ("data", "sequence"), axis_types=(AxisType.Auto,) * 2)
    (batch,) = Dataloader(data, batch_size=16, mesh=mesh, partition=P("data", "sequence"))
    expected = tokens.reshape(16, 16_384)
    np.testing.assert_array_equal(batch["inputs"], expected[:, :16_000])
    np.testing.assert_array_equal(batch["targets"], expected[:, 1:16_001])


def test_a_server_that_knows_no_ranges(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loadax.files.web_range.MOST_BYTES", 9999)
    write_bin(tmp_path / "x.bin", stream(5000))
    asked: list[str] = []

    class Handler(SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name that it has there
            asked.append(format % args)

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(tmp_path))) as server:
        thread = Thread(target=server.serve_forever, daemon=True)
        thread.start()
        url = f"http://127.0.0.1:{server.server_port}/x.bin"
        with pytest.raises(
            SourceError,
            match=rf"{url}, bytes 0 to 1023: the server ignores Range requests .*; use a server",
        ):
            open_tokens(url, 10, dtype="uint16")
        server.shutdown()
        thread.join()
    assert len(asked) == 2  # obstore does not say whether the answer was a small file


def test_a_url_with_a_query(tmp_path: Path, http_proxy: FaultProxy) -> None:
    tokens = stream(500)
    write_pair(tmp_path / "x.bin", [[tokens]])
    source = open_tokens(f"{http_proxy.url}/x.bin?signature=abc", 499)
    np.testing.assert_array_equal(source.read(np.array([0]))["tokens"][0], tokens)
    assert "/x.idx?signature=abc" in http_proxy.requests
