"""Counts the requests with which hosts open data in a bucket, by format, with and without `index=`.

A server of 127.0.0.1 speaks as much of S3 as opening needs, and counts. "planned" hosts are openings one after the
other in one process: each makes its own reader and connections, and they share the index folder alone. "run" are
processes of one `jax.distributed` run, of which one asks and tells the others.

    python benchmarks/metadata.py                     # 1,000 files; 1, 8 and 64 planned hosts; a run of 4 processes
    python benchmarks/metadata.py parquet --files 100 --run 2
"""

import argparse
import io
import json
import os
import socket
import struct
import subprocess
import sys
import tarfile
import tempfile
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import NamedTuple
from urllib.parse import parse_qs, quote, unquote, urlsplit

import numpy as np

import loadax

_PAGE = 1000  # keys of an answer to a list, as of S3
_HOSTS = (1, 8, 64)
_OPENED = 8  # openings that are counted where all are alike


class Server:
    """The files below a folder as the objects of a bucket `bucket`."""

    def __init__(self, root: Path):
        self.asked: list[tuple[str, str, str | None]] = []  # method, path and range
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True
            wbufsize = -1

            def do_GET(self) -> None:
                path = urlsplit(self.path)
                if "list-type" in path.query:
                    status, headers, body = _listed(root, parse_qs(path.query))
                else:
                    span = self.headers.get("Range")
                    status, headers, body = _object(root / unquote(path.path).removeprefix("/bucket/"), span)
                    if self.headers.get("If-None-Match") == headers.get("ETag", ""):
                        status, body = 304, b""
                sent = body if self.command == "GET" else b""
                server.asked.append((self.command, self.path, self.headers.get("Range")))
                self.send_response(status)
                for name, value in {**headers, "Content-Length": str(len(body))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(sent)

            do_HEAD = do_GET  # noqa: N815 - the name that http.server looks for

            def log_message(self, *_: object) -> None:
                pass

        ThreadingHTTPServer.request_queue_size = 256
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def use(self) -> None:
        """Has this process find its buckets here."""
        os.environ |= {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": "x",
            "AWS_SECRET_ACCESS_KEY": "x",
            "AWS_REGION": "us-east-1",
        }

    def during(self, work: Callable[[], object]) -> list[tuple[str, str, str | None]]:
        """Requests during some work."""
        before = len(self.asked)
        work()
        return self.asked[before:]

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def _object(path: Path, span: str | None) -> tuple[int, dict[str, str], bytes]:
    if not path.is_file():
        return 404, {}, b"<Error><Code>NoSuchKey</Code></Error>"
    content = path.read_bytes()
    headers = {"ETag": f'"{path.stat().st_mtime_ns:x}"', "Last-Modified": "Sun, 29 Nov 2026 00:00:00 GMT"}
    if span is None:
        return 200, headers, content
    first, last = span.removeprefix("bytes=").split("-")
    begin = int(first)
    end = min(int(last or len(content) - 1), len(content) - 1)
    if begin > end:
        return 416, headers, b""
    return 206, {**headers, "Content-Range": f"bytes {begin}-{end}/{len(content)}"}, content[begin : end + 1]


def _listed(root: Path, query: dict[str, list[str]]) -> tuple[int, dict[str, str], bytes]:
    prefix = query.get("prefix", [""])[0]
    names = sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())
    keys: dict[str, bool] = {}  # whether it is a folder
    for name in names:
        if name.startswith(prefix):
            head, slash, _ = name[len(prefix) :].partition("/")
            is_folder = bool(slash) and "delimiter" in query
            keys[prefix + head + "/" if is_folder else name] = is_folder
    after = query.get("continuation-token", [""])[0]
    page = [key for key in sorted(keys) if key > after]
    rows = []
    for key in page[:_PAGE]:
        if keys[key]:
            rows.append(f"<CommonPrefixes><Prefix>{quote(key)}</Prefix></CommonPrefixes>")
            continue
        status = (root / key).stat()
        rows.append(
            f"<Contents><Key>{key}</Key><Size>{status.st_size}</Size>"
            f'<ETag>"{status.st_mtime_ns:x}"</ETag><LastModified>2026-11-29T00:00:00.000Z</LastModified></Contents>'
        )
    more = len(page) > _PAGE
    token = f"<NextContinuationToken>{page[_PAGE - 1]}</NextContinuationToken>" if more else ""
    text = f"<ListBucketResult><IsTruncated>{str(more).lower()}</IsTruncated>{token}{''.join(rows)}</ListBucketResult>"
    return 200, {"Content-Type": "application/xml"}, text.encode()


# --- data -------------------------------------------------------------------------------------------------------------


def _parquet(folder: Path, files: int) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    table = pa.table({f"column{number}": np.arange(64.0) for number in range(8)})
    for number in range(files):
        parquet.write_table(table, folder / f"{number:04}.parquet", row_group_size=16)


def _jsonl(folder: Path, files: int) -> None:
    for number in range(files):
        (folder / f"{number:04}.jsonl").write_text("".join(f'{{"x": {row}}}\n' for row in range(64)))


def _tar(folder: Path, files: int) -> None:
    for number in range(files):
        with tarfile.open(folder / f"{number:04}.tar", "w") as tar:
            for row in range(4):
                member = tarfile.TarInfo(f"{number * 4 + row:06}.cls")
                member.size = 1
                tar.addfile(member, io.BytesIO(b"1"))


def _tfrecord(folder: Path, files: int) -> None:
    from loadax.sources.shards.crc import masked_crc32c

    for number in range(files):
        size = struct.pack("<Q", 4)
        parts = [part + struct.pack("<I", masked_crc32c(part)) for part in (size, b"1234")]
        (folder / f"{number:04}.tfrecord").write_bytes(b"".join(parts))


def _arrays(folder: Path, files: int) -> None:
    for number in range(files):
        np.save(folder / f"{number:04}.npy", np.arange(2048, dtype=np.uint16))


def _bins(folder: Path, files: int) -> None:
    for number in range(files):
        np.arange(2048, dtype=np.uint16).tofile(folder / f"{number:04}.bin")


def _images(folder: Path, files: int) -> None:
    from PIL import Image

    for number in range(files):
        Image.new("L", (8, 8)).save(folder / f"{number:04}.png")


def _zarr(folder: Path, files: int) -> None:
    import zarr

    group = zarr.open_group(folder / "store", mode="w")
    for number in range(min(16, files)):
        group.create_array(f"a{number}", data=np.zeros((files, 8), np.float32), chunks=(16, 8))
    zarr.consolidate_metadata(group.store)


def _zarr_of_loadax(folder: Path, files: int) -> None:
    rows = np.zeros((files, 8), np.float32)
    loadax.write_zarr({f"a{number}": rows for number in range(min(16, files))}, folder / "store", progress=False)


class _Format(NamedTuple):
    function: str
    write: Callable[[Path, int], None]
    options: dict[str, object]
    below: str = ""
    needs_index: bool = False  # in a run of several processes


_FORMATS = {
    "parquet": _Format("from_parquet", _parquet, {}),
    "jsonl": _Format("from_jsonl", _jsonl, {"progress": False}, needs_index=True),
    "tar": _Format("from_webdataset", _tar, {"progress": False}, needs_index=True),
    "tfrecord": _Format("from_tfrecord", _tfrecord, {"progress": False}, needs_index=True),
    "tokens .npy": _Format("from_tokens", _arrays, {"seq_len": 16}),
    "tokens .bin": _Format("from_tokens", _bins, {"seq_len": 16, "dtype": "uint16"}),
    "images": _Format("from_images", _images, {}),
    "zarr, 16 arrays": _Format("from_zarr", _zarr, {}, "/store"),
    "zarr by loadax": _Format("from_zarr", _zarr_of_loadax, {}, "/store"),
}


# --- counting ---------------------------------------------------------------------------------------------------------


def _open(name: str, index: str | None) -> None:
    form = _FORMATS[name]
    given = {} if index is None else {"index": index}
    getattr(loadax, form.function)(f"s3://bucket/train{form.below}", **form.options, **given)


def _planned(server: Server, name: str, index: str | None) -> list[int]:
    """Requests of 1, 8 and 64 hosts: of the first ones, and as many again of each other as of the last of them.

    Those that the engine sends a second time because they are late depend on the load of this machine: not counted.
    """
    counts = [len(set(server.during(lambda: _open(name, index)))) for _ in range(_OPENED)]
    assert len(set(counts[1:])) == 1, counts
    counts += [counts[-1]] * (max(_HOSTS) - _OPENED)
    return [sum(counts[:hosts]) for hosts in _HOSTS]


def _run(server: Server, name: str, index: str | None, processes: int) -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, __file__, "--child", json.dumps([name, index, port, processes])]

    def work() -> None:
        children = [subprocess.Popen([*command, "--rank", str(rank)]) for rank in range(processes)]
        codes = [child.wait(300) for child in children]
        assert codes == [0] * processes, codes

    return len(server.during(work))


def _child(job: str, rank: int) -> None:
    import jax

    name, index, port, processes = json.loads(job)
    jax.distributed.initialize(f"127.0.0.1:{port}", processes, rank)
    _open(name, index)
    from jax.experimental.multihost_utils import sync_global_devices

    sync_global_devices("opened")


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("formats", nargs="*", default=[*_FORMATS])
    parser.add_argument("--files", type=int, default=1000)
    parser.add_argument("--run", type=int, default=4)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--rank", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        _child(options.child, options.rank)
        return
    planned = "".join(f"{f'{hosts} planned':>13}" for hosts in _HOSTS)
    print(f"requests to open {options.files:,} files\n{'':24}{planned}{f'run of {options.run}':>13}")
    for name in options.formats:
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder, "data")
            (root / "train").mkdir(parents=True)
            _FORMATS[name].write(root / "train", options.files)
            server = Server(root)
            server.use()
            os.environ["JAX_PLATFORMS"] = "cpu"
            for index in (None, f"{folder}/planned"):
                counts = _planned(server, name, index)
                if index is None and _FORMATS[name].needs_index:
                    together = "refused"
                else:
                    together = f"{_run(server, name, index and f'{folder}/run', options.run):,}"
                label = f"{name}{', index=' if index else ''}"
                print(f"{label:24}{''.join(f'{count:13,}' for count in counts)}{together:>13}", flush=True)
            server.close()


if __name__ == "__main__":
    main()
