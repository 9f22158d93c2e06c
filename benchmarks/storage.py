"""Reads data of a bucket beside what careful users of other libraries write.

nginx serves files of 127.0.0.1 behind `storage_proxy.py`, which delays requests, counts, caps and breaks them.
Each contestant runs in a process of its own, which imports what it needs before the time begins; contestants of a data
set take turns, and figures are medians over rounds. "first" is the time to the first batch, rows/s count from there on,
CPU is of the process and its children, and "read" is bytes sent for each byte that is used.

    python benchmarks/storage.py                          # everything: 20 and 100 ms, three rounds
    python benchmarks/storage.py tokens parquet --latency 20 --rounds 1 --contestants loadax
    python benchmarks/storage.py --faults                 # throttled, and 1 % of faults: loadax beside itself without
"""

import argparse
import asyncio
import hashlib
import importlib
import io
import itertools
import json
import multiprocessing
import os
import queue
import random
import resource
import shutil
import socket
import statistics
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from turns import machine

_HERE = Path(__file__).parent
_BATCH = 256
_PICTURES = 64  # rows of a batch of pictures
_SECONDS = 6.0  # of a turn, after its first batch
_LIMIT = 120.0
_NGINX = """
daemon off; worker_processes 1; pid {root}/../nginx.pid; error_log /dev/null;
events {{ worker_connections 4096; }}
http {{ access_log off; keepalive_requests 1000000; keepalive_timeout 300; sendfile on; tcp_nodelay on;
  client_body_temp_path {root}/../b; proxy_temp_path {root}/../p; fastcgi_temp_path {root}/../f;
  uwsgi_temp_path {root}/../u; scgi_temp_path {root}/../s;
  server {{ listen 127.0.0.1:{port} backlog=1024; root {root}; }} }}
"""

Batches = Iterator[int]  # the numbers of rows of batches that were placed


# --- data -------------------------------------------------------------------------------------------------------------


def _write_parquet(folder: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = 8 * 1024
    for index in range(16):
        values = np.random.default_rng(index).integers(0, 1 << 30, (rows, 256), np.int32)
        flat = pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), 256)
        table = pa.table({"label": pa.array(np.arange(rows) + index * rows), "values": flat})
        pq.write_table(table, folder / f"{index:02}.parquet", row_group_size=1024, use_dictionary=False)


def _write_jsonl(folder: Path) -> None:
    for index in range(8):
        values = np.random.default_rng(index).integers(0, 1 << 20, (4096, 128)).tolist()
        lines = [json.dumps({"id": index * 4096 + row, "values": each}) for row, each in enumerate(values)]
        (folder / f"{index}.jsonl").write_text("\n".join(lines) + "\n")


def _write_tokens(folder: Path) -> None:
    np.save(folder / "tokens.npy", np.random.default_rng(0).integers(0, 1 << 16, (131_072, 512), np.uint16))


def _jpegs(count: int) -> Iterator[bytes]:
    import cv2

    generator = np.random.default_rng(0)
    for _ in range(count):
        small = generator.integers(0, 256, (40, 40, 3), np.uint8)
        picture = cv2.resize(small, (224, 224), interpolation=cv2.INTER_LINEAR)
        yield cv2.imencode(".jpg", picture, [cv2.IMWRITE_JPEG_QUALITY, 90])[1].tobytes()


def _write_images(folder: Path) -> None:
    for index, content in enumerate(_jpegs(4000)):
        path = folder / str(index % 8) / f"{index:05}.jpg"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)


def _write_tar(folder: Path) -> None:
    contents = _jpegs(16 * 500)
    for shard in range(16):
        with tarfile.open(folder / f"{shard:02}.tar", "w") as tar:
            for row, content in enumerate(itertools.islice(contents, 500)):
                for name, body in {"cls": b"%d" % (row % 8), "jpg": content}.items():
                    member = tarfile.TarInfo(f"{shard * 500 + row:06}.{name}")
                    member.size = len(body)
                    tar.addfile(member, io.BytesIO(body))


def _write_zarr(folder: Path) -> None:
    import zarr

    generator = np.random.default_rng(0)
    shape = (16_384, 4096)
    array = zarr.create_array(folder / "store", name="field", shape=shape, chunks=(8, 4096), dtype="float32")
    for start in range(0, shape[0], 1024):
        array[start : start + 1024] = np.round(generator.normal(size=(1024, 4096)), 1)
    zarr.consolidate_metadata(folder / "store")


# --- contestants: each yields the sizes of its batches ----------------------------------------------------------------


class Place(NamedTuple):
    """Where a data set lies: its folder here, its URL at the proxy, and that of the proxy."""

    folder: Path
    url: str
    proxy: str
    kept: Path

    def urls(self, pattern: str) -> list[str]:
        """URLs of its files, in order."""
        found = sorted(path.relative_to(self.folder) for path in self.folder.glob(pattern))
        return [f"{self.url}/{path}" for path in found]


def _loadax(open_data: Callable[[Place], Any], batch: int = _BATCH) -> Callable[[Place], Batches]:
    def run(place: Place) -> Batches:
        from loadax import Dataloader

        for _ in Dataloader(open_data(place), batch):
            yield batch

    return run


def _placed(batches: Iterator[Any]) -> Batches:
    """Places batches as loadax does, two ahead."""
    import jax
    from jax.sharding import NamedSharding, PartitionSpec

    sharding = NamedSharding(jax.make_mesh((len(jax.devices()),), ("data",)), PartitionSpec("data"))
    for batch in batches:
        placed = jax.device_put(batch, sharding)
        yield len(jax.tree.leaves(placed)[0])


def _parquet(place: Place) -> Any:
    from loadax import from_parquet

    return from_parquet(place.urls("*.parquet"))


def _parquet_blocks(place: Place) -> Any:
    return _parquet(place).shuffle(0, block="chunks", lanes=4)


def _jsonl(place: Place) -> Any:
    from loadax import from_jsonl

    return from_jsonl(place.urls("*.jsonl"), index=place.kept)


def _tokens(place: Place) -> Any:
    from loadax import from_npy

    return from_npy(f"{place.url}/tokens.npy")


def _images(_place: Place) -> Any:
    from loadax import from_images

    return from_images("s3://images").shuffle(0)


def _tar(place: Place) -> Any:
    from loadax import from_webdataset

    return from_webdataset(place.urls("*.tar"), index=place.kept, decode=True)


def _zarr(place: Place) -> Any:
    from loadax import from_zarr

    return from_zarr(f"{place.url}/store", variables=["field"])


def _shuffled(open_data: Callable[[Place], Any]) -> Callable[[Place], Any]:
    return lambda place: open_data(place).shuffle(0)


def _columns(table: Any) -> Any:
    """Columns of an Arrow table as arrays, without Python objects."""
    import pyarrow as pa

    columns = {}
    for name in table.column_names:
        column = table[name].combine_chunks()
        if hasattr(column, "chunks"):
            column = column.chunk(0)
        if pa.types.is_nested(column.type):
            columns[name] = column.flatten().to_numpy().reshape(len(column), -1)
        else:
            columns[name] = column.to_numpy()
    return columns


def _huggingface(kind: str, pattern: str) -> Callable[[Place], Batches]:
    def run(place: Place) -> Batches:
        import datasets

        stream = datasets.load_dataset(kind, data_files=place.urls(pattern), split="train", streaming=True)
        batches = stream.with_format("arrow").iter(_BATCH, drop_last_batch=True)
        return _placed(map(_columns, batches))

    return run


def _pyarrow(place: Place) -> Batches:
    import pyarrow as pa
    import pyarrow.dataset as ds
    from pyarrow.fs import S3FileSystem

    files = S3FileSystem(anonymous=True, endpoint_override=place.proxy, scheme="http", region="us-east-1")
    names = [f"parquet/{url.rpartition('/')[2]}" for url in place.urls("*.parquet")]
    data = ds.dataset(names, format="parquet", filesystem=files)

    def batches() -> Iterator[Any]:
        for whole in data.to_batches():
            columns = _columns(pa.table(whole))
            for start in range(0, len(whole) - _BATCH + 1, _BATCH):
                yield {name: column[start : start + _BATCH] for name, column in columns.items()}

    return _placed(batches())


def _obstore_ranges(url: str, order: np.ndarray[Any, Any], start: int, size: int, most: int) -> Iterator[Any]:
    """Rows of a flat file by hand: up to `most` requests at once, four batches ahead."""
    from obstore.store import HTTPStore

    base, _, key = url.rpartition("/")
    store = HTTPStore(base, client_options={"allow_http": True})
    done: queue.Queue[Any] = queue.Queue(4)

    async def rows() -> None:
        width = asyncio.Semaphore(most)

        async def row(index: int) -> bytes:
            async with width:
                begin = start + index * size
                return bytes(await store.get_range_async(key, start=begin, end=begin + size))

        pending: list[Any] = []
        for number in range(len(order) // _BATCH):
            wanted = order[number * _BATCH : (number + 1) * _BATCH].tolist()
            pending.append(asyncio.gather(*(row(index) for index in wanted)))
            if len(pending) == 4:
                await asyncio.to_thread(done.put, await pending.pop(0))
        for batch in pending:
            await asyncio.to_thread(done.put, await batch)
        done.put(None)

    threading.Thread(target=asyncio.run, args=(rows(),), daemon=True).start()
    while (batch := done.get()) is not None:
        yield np.frombuffer(b"".join(batch), np.uint16).reshape(_BATCH, -1)


def _tokens_by_hand(place: Place) -> Batches:
    """Batches in order are one range each."""
    from obstore.store import HTTPStore

    store = HTTPStore(place.url, client_options={"allow_http": True})
    size = 1024 * _BATCH

    def batch(number: int) -> Any:
        begin = 128 + number * size
        content = bytes(store.get_range("tokens.npy", start=begin, end=begin + size))
        return np.frombuffer(content, np.uint16).reshape(_BATCH, 512)

    with ThreadPoolExecutor(4) as pool:
        yield from _placed(_ahead(pool, batch, range(131_072 // _BATCH), 3))


def _tokens_shuffled_by_hand(place: Place) -> Batches:
    order = np.random.default_rng(0).permutation(131_072)
    yield from _placed(_obstore_ranges(f"{place.url}/tokens.npy", order, 128, 1024, 256))


def _ahead(pool: ThreadPoolExecutor, read: Callable[[Any], Any], keys: Sequence[Any], ahead: int) -> Iterator[Any]:
    waiting = [pool.submit(read, key) for key in keys[:ahead]]
    for key in itertools.chain(keys[ahead:], itertools.repeat(None, ahead)):
        yield waiting.pop(0).result()
        if key is not None:
            waiting.append(pool.submit(read, key))


def _images_by_hand(place: Place) -> Batches:
    import cv2
    import simplejpeg
    from obstore.store import HTTPStore

    del cv2
    store = HTTPStore(place.url, client_options={"allow_http": True})
    keys = [url[len(place.url) + 1 :] for url in place.urls("*/*.jpg")]
    random.Random(0).shuffle(keys)

    def image(key: str) -> Any:
        return simplejpeg.decode_jpeg(bytes(store.get(key).bytes()))

    with ThreadPoolExecutor(64) as pool:
        images = _ahead(pool, image, keys, 192)
        yield from _placed(np.stack(each) for each in _grouped(images))


def _grouped(rows: Iterator[Any]) -> Iterator[list[Any]]:
    while len(group := list(itertools.islice(rows, _PICTURES))) == _PICTURES:
        yield group


def _tar_reader(urls: list[str], batches: Any) -> None:
    import simplejpeg
    import webdataset

    def pair(sample: Any) -> Any:
        return simplejpeg.decode_jpeg(sample["jpg"]), int(sample["cls"])

    rows = iter(webdataset.WebDataset(urls, shardshuffle=False, empty_check=False).map(pair))
    while len(group := list(itertools.islice(rows, _PICTURES))) == _PICTURES:
        images, labels = zip(*group, strict=True)
        batches.put((np.stack(images), np.array(labels)))
    batches.put(None)


def _webdataset(place: Place) -> Batches:
    """Two processes, each with every second shard, as torch's loader has them."""
    urls = place.urls("*.tar")
    context = multiprocessing.get_context("spawn")
    queues = [context.Queue(2), context.Queue(2)]
    readers = [
        context.Process(target=_tar_reader, args=(urls[index::2], each), daemon=True)
        for index, each in enumerate(queues)
    ]
    for reader in readers:
        reader.start()

    def batches() -> Iterator[Any]:
        for index in itertools.count():
            batch = queues[index % 2].get()
            if batch is None:
                return
            yield batch

    yield from _placed(batches())
    for reader in readers:
        reader.terminate()
        reader.join()


def _tensorstore(is_shuffled: bool) -> Callable[[Place], Batches]:
    def run(place: Place) -> Batches:
        import tensorstore

        spec = {"driver": "zarr3", "kvstore": f"{place.url}/store/field/"}
        array = tensorstore.open(spec, context=tensorstore.Context({"cache_pool": {"total_bytes_limit": 0}})).result()
        rows = array.shape[0]
        order = np.random.default_rng(0).permutation(rows) if is_shuffled else np.arange(rows)

        def batches() -> Iterator[Any]:
            waiting: list[Any] = []
            for number in range(rows // _PICTURES):
                wanted = order[number * _PICTURES : (number + 1) * _PICTURES]
                index = wanted if is_shuffled else slice(int(wanted[0]), int(wanted[-1]) + 1)
                waiting.append(array[index].read())
                if len(waiting) == 3:
                    yield waiting.pop(0).result()
            for batch in waiting:
                yield batch.result()

        return _placed(batches())

    return run


class Data(NamedTuple):
    """A data set: the folder that it is written to, bytes of a row, and who reads it."""

    folder: str
    row: int
    contestants: dict[str, Callable[[Place], Batches]]


_IMPORTS = {  # by contestants, before the time begins
    "loadax": ("loadax", "obstore.store", "tensorstore", "pyarrow.parquet", "pyarrow.json", "cv2", "simplejpeg"),
    "huggingface": ("datasets", "fsspec.implementations.http", "aiohttp"),
    "pyarrow": ("pyarrow.dataset", "pyarrow.fs"),
    "obstore": ("obstore.store", "simplejpeg"),
    "webdataset": ("webdataset", "simplejpeg"),
    "tensorstore": ("tensorstore",),
}
_WRITERS: dict[str, Callable[[Path], None]] = {
    "parquet": _write_parquet,
    "jsonl": _write_jsonl,
    "tokens": _write_tokens,
    "images": _write_images,
    "tar": _write_tar,
    "zarr": _write_zarr,
}
_JPEG = 14_500  # bytes of a picture, about
DATA: dict[str, Data] = {
    "parquet": Data(
        "parquet",
        1032,
        {"loadax": _loadax(_parquet), "huggingface": _huggingface("parquet", "*.parquet"), "pyarrow": _pyarrow},
    ),
    "parquet-blocks": Data("parquet", 1032, {"loadax": _loadax(_parquet_blocks)}),
    "jsonl": Data("jsonl", 1030, {"loadax": _loadax(_jsonl), "huggingface": _huggingface("json", "*.jsonl")}),
    "jsonl-shuffled": Data("jsonl", 1030, {"loadax": _loadax(_shuffled(_jsonl))}),
    "tokens": Data("tokens", 1024, {"loadax": _loadax(_tokens), "obstore": _tokens_by_hand}),
    "tokens-shuffled": Data(
        "tokens", 1024, {"loadax": _loadax(_shuffled(_tokens)), "obstore": _tokens_shuffled_by_hand}
    ),
    "images": Data("images", _JPEG, {"loadax": _loadax(_images, _PICTURES), "obstore": _images_by_hand}),
    "tar": Data("tar", _JPEG, {"loadax": _loadax(_tar, _PICTURES), "webdataset": _webdataset}),
    "zarr": Data("zarr", 7700, {"loadax": _loadax(_zarr, _PICTURES), "tensorstore": _tensorstore(False)}),
    "zarr-shuffled": Data(
        "zarr", 7700, {"loadax": _loadax(_shuffled(_zarr), _PICTURES), "tensorstore": _tensorstore(True)}
    ),
}
_FAULTS: dict[str, tuple[str, dict[str, float]]] = {
    "tokens-shuffled, none": ("tokens-shuffled", {}),
    "tokens-shuffled, 300 requests/s": ("tokens-shuffled", {"rate": 300}),
    "tokens-shuffled, 1 % of 503": ("tokens-shuffled", {"refused": 0.01}),
    "tokens-shuffled, 1 % of resets": ("tokens-shuffled", {"reset": 0.01}),
    "tokens-shuffled, 0.1 % 2 s late": ("tokens-shuffled", {"late": 0.001, "late_seconds": 2.0}),
    "images, none": ("images", {}),
    "images, 1 % cut": ("images", {"cut": 0.01}),
    "images, 0.1 % 2 s late": ("images", {"late": 0.001, "late_seconds": 2.0}),
    "parquet-blocks, 15 MB/s": ("parquet-blocks", {"bandwidth": 15e6}),
}


# --- one contestant, in a process of its own --------------------------------------------------------------------------


def _take_turn(data: Data, contestant: str, place: Place, seconds: float) -> dict[str, float]:
    import jax

    jax.block_until_ready(jax.device_put(np.zeros(8)))
    for module in _IMPORTS[contestant]:
        importlib.import_module(module)
    if contestant == "loadax":
        import loadax

        list(loadax.Dataloader(loadax.from_arrays(np.zeros((64, 8))), 8))
    memory = _memory()
    begin = time.perf_counter()
    batches = iter(data.contestants[contestant](place))
    next(batches)
    first = time.perf_counter() - begin
    rows = 0
    start, used = time.perf_counter(), _processor()
    end = start
    for count in batches:
        rows += count
        end = time.perf_counter()
        if end - start > seconds:
            break
    elapsed = end - start
    return {
        "first": first,
        "rows": rows,
        "rate": rows / max(elapsed, 1e-9),
        "cpu": (_processor() - used) / max(rows, 1) * 1e6,
        "memory": (_memory() - memory) / 1e6,
        "seconds": elapsed,
    }


def _processor() -> float:
    import psutil

    children = psutil.Process().children(recursive=True)
    return time.process_time() + sum(sum(child.cpu_times()[:2]) for child in children)


def _memory() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


# --- all of them ------------------------------------------------------------------------------------------------------


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@contextmanager
def servers(root: Path) -> Iterator[str]:
    """Starts nginx and the proxy; yields the proxy's address."""
    if shutil.which("nginx") is None:
        sys.exit("nginx is not installed: apt-get install nginx-light")
    behind, port = _free_port(), _free_port()
    settings = root.parent / "nginx.conf"
    settings.write_text(_NGINX.format(root=root, port=behind))
    web = subprocess.Popen(["nginx", "-c", str(settings), "-p", str(root.parent)], stderr=subprocess.DEVNULL)
    proxy = subprocess.Popen(
        [sys.executable, str(_HERE / "storage_proxy.py"), str(port), str(behind), str(root)],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert proxy.stdout is not None
        assert proxy.stdout.readline() == "ready\n"
        yield f"127.0.0.1:{port}"
    finally:
        proxy.terminate()
        web.terminate()
        proxy.wait()
        web.wait()


def _control(proxy: str, weather: dict[str, float] | None = None) -> dict[str, float]:
    body = None if weather is None else json.dumps(weather).encode()
    with urllib.request.urlopen(f"http://{proxy}/.proxy", body, timeout=30) as answer:
        return json.loads(answer.read())


def _turn(name: str, contestant: str, proxy: str, root: Path, weather: dict[str, float], seconds: float) -> Any:
    """Runs one contestant once; what it and the proxy measured."""
    _control(proxy, weather)
    variables = {
        **os.environ,
        "AWS_ENDPOINT_URL": f"http://{proxy}",
        "AWS_REGION": "us-east-1",
        "AWS_SKIP_SIGNATURE": "true",
        "JAX_PLATFORMS": "cpu",
        "JAX_NUM_CPU_DEVICES": "8",
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "HF_HUB_OFFLINE": "0",
        "HF_HOME": str(root.parent / "huggingface"),
    }
    command = [sys.executable, __file__, "--child", name, contestant, proxy, str(root), str(seconds)]
    try:
        done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=_LIMIT, check=False)
    except subprocess.TimeoutExpired:
        return {"error": f"took more than {_LIMIT:.0f} s"}
    counts = _control(proxy)
    if done.returncode:
        return {"error": done.stderr.strip().splitlines()[-1:] or ["?"]}
    told = json.loads(done.stdout.splitlines()[-1])
    return told | counts


def _measure(
    cases: dict[str, tuple[str, dict[str, float]]], proxy: str, root: Path, options: argparse.Namespace
) -> dict[str, dict[str, list[Any]]]:
    found: dict[str, dict[str, list[Any]]] = {}
    for case, (name, weather) in cases.items():
        names = [each for each in DATA[name].contestants if each in (options.contestants or DATA[name].contestants)]
        turns: dict[str, list[Any]] = {each: [] for each in names}
        order = random.Random(0)
        for each in names:
            if DATA[name].folder in ("jsonl", "tar") and each == "loadax":
                _turn(name, each, proxy, root, {}, 0.1)  # the index is made
        for _ in range(options.rounds):
            for each in order.sample(names, len(names)):
                turns[each].append(_turn(name, each, proxy, root, weather, options.seconds))
        found[case] = turns
        _show(case, name, turns)
    return found


def _show(case: str, name: str, turns: dict[str, list[Any]]) -> None:
    rates = {}
    for contestant, taken in turns.items():
        good = [turn for turn in taken if "error" not in turn]
        if not good:
            print(f"{case:32} {contestant:12} {taken[0]['error']}", flush=True)
            continue

        def middle(key: str, good: list[Any] = good) -> float:
            return statistics.median(turn[key] for turn in good)

        rates[contestant] = middle("rate")
        batch = _BATCH if DATA[name].row < 5000 else _PICTURES
        rows = statistics.median(turn["rows"] for turn in good) + batch
        ratio = rates["loadax"] / max(rates[contestant], 1e-9) if "loadax" in rates else 1.0
        refused = middle("refused") / max(1, middle("requests"))
        print(
            f"{case:32} {contestant:12} {rates[contestant]:9,.0f} rows/s  of it {ratio:6.2f}",
            f"first {middle('first'):5.2f} s  cpu {middle('cpu'):6.0f} us/row",
            f"requests/row {middle('requests') / rows:7.4f}",
            f"read x{middle('bytes') / rows / DATA[name].row:4.2f}",
            f"in flight {middle('mean'):5.1f} (most {middle('most'):3.0f})",
            f"refused {refused:5.1%}  +{middle('memory'):4.0f} MB",
            sep="  ",
            flush=True,
        )


def main() -> None:
    """Runs the benchmark, or one contestant of it."""
    if sys.argv[1:2] == ["--child"]:
        name, contestant, proxy, root, seconds = sys.argv[2:]
        folder = Path(root) / DATA[name].folder
        url = f"http://{proxy}/{DATA[name].folder}"
        kept = Path(root).parent / f"index-{DATA[name].folder}-{hashlib.sha256(proxy.encode()).hexdigest()[:8]}"
        print(
            json.dumps(_take_turn(DATA[name], contestant, Place(folder, url, proxy, kept), float(seconds))), flush=True
        )
        for reader in multiprocessing.active_children():
            reader.kill()  # else they hold the pipes of this process
        os._exit(0)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="*", help=f"of {', '.join(DATA)}")
    parser.add_argument("--latency", type=float, nargs="*", default=[20.0, 100.0], help="milliseconds")
    parser.add_argument("--bandwidth", type=float, default=0.0, help="MB/s of all answers together")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=_SECONDS)
    parser.add_argument("--contestants", nargs="*")
    parser.add_argument("--faults", action="store_true")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "loadax-storage")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    unknown = set(options.data) - set(DATA)
    if unknown:
        parser.error(f"there is no data {sorted(unknown)}; choose of {', '.join(DATA)}")
    contestants = {each for data in DATA.values() for each in data.contestants}
    if unknown := set(options.contestants or ()) - contestants:
        parser.error(f"there is no contestant {sorted(unknown)}; choose of {', '.join(sorted(contestants))}")
    root = options.folder / "data"
    names = options.data or list(DATA)
    for kind in dict.fromkeys(DATA[name].folder for name in (list(DATA) if options.faults else names)):
        if not (root / kind).exists():
            part = root / f".{kind}"
            shutil.rmtree(part, ignore_errors=True)
            part.mkdir(parents=True)
            _WRITERS[kind](part)
            part.rename(root / kind)
    found: dict[str, Any] = {}
    with servers(root) as proxy:
        for latency in options.latency:
            print(f"\n{latency:.0f} ms, load {os.getloadavg()[0]:.1f}", flush=True)
            always = {"latency": latency / 1000}
            if options.bandwidth:
                always["bandwidth"] = options.bandwidth * 1e6
            if options.faults:
                options.contestants = ["loadax"]
                cases = {case: (name, always | weather) for case, (name, weather) in _FAULTS.items() if name in names}
            else:
                cases = {name: (name, always) for name in names}
            found[f"{latency:.0f} ms"] = _measure(cases, proxy, root, options)
    if options.json:
        options.json.write_text(json.dumps({"machine": machine(), "storage": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
