"""Faults within one process: rows that fail, files that are damaged, and a server that answers badly."""

import re
import shutil
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from random import Random
from typing import Any

import jax
import numpy as np
import pyarrow as pa
from pyarrow import parquet

import loadax
from loadax import Dataloader, MaskErrors
from loadax.dataset import Dataset
from loadax.errors import SourceError, StallError
from tests.chaos.judge import WIDTH, Count, log_to, rows_of
from tests.faulty import FaultySource
from tests.limits import HANG
from tests.servers.faults import Fault, FaultProxy, Kind
from tests.servers.ranges import RangeServer
from tests.sources.shards.corpora import write_tfrecord

ROWS, BATCH = 64, 16


class Broken(Exception):  # noqa: N818 - the source's own
    """What a source raises."""


def load(dataset: Dataset, random: Random, shuffle: bool = True, **options: Any) -> Dataloader:
    """A loader of one epoch with random options."""
    shuffled = dataset.shuffle(seed=random.randrange(1000)) if shuffle and random.random() < 0.5 else dataset
    return Dataloader(shuffled, BATCH, mesh=_mesh(), num_epochs=1, num_workers=random.choice((0, 1, 2)), **options)


def _mesh() -> jax.sharding.Mesh:
    return jax.make_mesh((1,), ("data",), (jax.sharding.AxisType.Auto,), devices=jax.devices()[:1])


def masked(count: Count, dataset: Dataset, bad: set[int], random: Random, shuffle: bool = True) -> None:
    """Rows of the ids `bad` fail: each must be masked, and no other."""
    before, ids = count.masked, Counter[int]()
    for batch in load(dataset, random, shuffle, on_error=MaskErrors(ROWS, 1.0)).iterate():
        count.batch(batch, ids, bad)
    count.epoch(ids, set(range(1, ROWS + 1)) - bad)
    if count.masked - before != len(bad):
        count.wrong += 1
        count.told.append(f"{count.masked - before} rows were masked, and {len(bad)} failed")


def raised(
    count: Count, dataset: Dataset, random: Random, names: set[str], own: type[Exception], again: bool = False
) -> None:
    """A row fails: with a clear error; and if it fails for some time only, the run goes on with the same batch."""
    ids, failed = Counter[int](), 0
    try:
        loader = load(dataset, random)
    except Exception as error:  # noqa: BLE001 - judged
        count.error(error, names, own)
        return
    with loader.iterate() as batches:
        while True:
            try:
                count.batch(next(batches), ids)
            except StopIteration:
                break
            except Exception as error:  # noqa: BLE001 - judged
                failed += 1
                count.error(error, names, own)
                if not again or failed > ROWS:
                    return
                batches.set_state(batches.get_state())
    count.epoch(ids, range(1, ROWS + 1))


# Each takes a count, a folder with the files of `prepare`, and random choices; and returns how many faults it injected.


def row_fails(count: Count, folder: Path, random: Random) -> int:
    bad = set(random.sample(range(ROWS), random.randrange(4, 17)))
    failures = {row: Broken("no good") for row in bad}
    masked(count, _dataset(FaultySource(_memory(), failures)), {row + 1 for row in bad}, random)
    return len(bad)


def row_ends_the_run(count: Count, folder: Path, random: Random) -> int:
    row = random.randrange(ROWS)
    source = FaultySource(_memory(), {row: random.choice((Broken("no good"), OSError("gone"), MemoryError()))})
    raised(count, _dataset(source), random, {str(row), "in step"}, Exception)
    return 1


def row_fails_for_some_time(count: Count, folder: Path, random: Random) -> int:
    bad = random.sample(range(ROWS), random.randrange(1, 5))
    failures = {row: OSError("the disk sleeps") for row in bad}
    raised(count, _dataset(FaultySource(_memory(), failures, times=1)), random, {"in step"}, OSError, again=True)
    return len(bad)


def map_gives_something_else(count: Count, folder: Path, random: Random) -> int:
    bad = set(random.sample(range(2, ROWS + 1), random.randrange(4, 17)))  # the first one tells the spec
    other = random.choice((np.zeros(3, np.float32), None, "text", np.zeros((4, 1)), Broken, object()))

    def fn(example: Any) -> Any:
        if int(example["id"]) in bad:
            if other is Broken:
                raise Broken
            return {"id": example["id"], "x": other}
        return {"id": example["id"], "x": example["x"]}

    masked(count, _memory().map(fn), bad, random, shuffle=False)
    return len(bad)


def row_is_slow(count: Count, folder: Path, random: Random) -> int:
    slow = set(random.sample(range(1, ROWS + 1), 8))

    def fn(example: Any) -> Any:
        if int(example["id"]) in slow:
            time.sleep(0.0005)
        return example

    masked(count, _memory().map(fn), set(), random)
    return len(slow)


def read_stalls(count: Count, folder: Path, random: Random) -> int:
    """A row comes when the log has said that it is waited for; or far too late, and `abort_after` ends the run."""
    stalled, told, ends = BATCH + random.randrange(8), threading.Event(), random.random() < 0.5

    def fn(example: Any) -> Any:
        if int(example["id"]) == stalled + 1 and not told.wait(HANG / 4):
            count.hangs += 1
            count.told.append(f"nothing said that row {stalled} is waited for")
        return example

    def hear(text: str) -> None:
        if re.search(rf"reads \d+ rows \(.*\b{stalled}\b.*\)", text):
            told.set()

    limits = {"stall_after": None, "abort_after": 0.5} if ends else {"stall_after": 0.005}
    loader = Dataloader(_memory().map(fn), BATCH, mesh=_mesh(), num_epochs=1, num_workers=1, **limits)
    ids = Counter[int]()
    with log_to(hear), loader.iterate() as batches:
        try:
            for batch in batches:
                count.batch(batch, ids)
        except StallError as error:
            told.set()
            count.error(error, {str(stalled)})
        else:
            count.epoch(ids, range(1, ROWS + 1))
    return 1


def bit_of_a_record_flips(count: Count, folder: Path, random: Random) -> int:
    content = bytearray((folder / "rows.tfrecord").read_bytes())
    size = len(content) // ROWS
    bad = set(random.sample(range(ROWS), random.randrange(4, 17)))
    for row in bad:
        content[row * size + 12 + random.randrange(size - 12)] ^= 1 << random.randrange(8)
    path = folder / f"flipped-{random.random()}.tfrecord"
    path.write_bytes(content)
    masked(count, _records(path), {row + 1 for row in bad}, random)
    path.unlink()
    return len(bad)


def bit_of_a_chunk_flips(count: Count, folder: Path, random: Random) -> int:
    """All rows of the chunk fail: the reading ends, and names the store."""
    chunk = random.choice(sorted(path for path in (folder / "rows.zarr" / "x" / "c").rglob("*") if path.is_file()))
    whole = chunk.read_bytes()
    chunk.write_bytes(_flipped(whole, random.randrange(len(whole)), random))
    try:
        raised(count, loadax.from_zarr(folder / "rows.zarr"), random, {"rows.zarr"}, SourceError)
    finally:
        chunk.write_bytes(whole)
    return 1


def bit_of_a_page_flips(count: Count, folder: Path, random: Random) -> int:
    """Of its values: no checksum covers the header of a page. All rows of the row group fail."""
    content = (folder / "rows.parquet").read_bytes()
    metadata = parquet.read_metadata(folder / "rows.parquet")
    column = metadata.row_group(random.randrange(metadata.num_row_groups)).column(random.randrange(1 + WIDTH))
    end = column.data_page_offset + column.total_compressed_size
    path = folder / f"flipped-{random.random()}.parquet"
    path.write_bytes(_flipped(content, end - 1 - random.randrange(4 * column.num_values), random))
    raised(count, _table(path), random, {path.name}, SourceError)
    path.unlink()
    return 1


def _flipped(content: bytes, at: int, random: Random) -> bytes:
    changed = bytearray(content)
    changed[at] ^= 1 << random.randrange(8)
    return bytes(changed)


def _table(path: Path) -> Dataset:
    def join(example: Any) -> Any:
        return {"id": example["id"], "x": np.stack([example[f"x{column}"] for column in range(WIDTH)])}

    return loadax.from_parquet(path).map(join)


def file_is_cut_short(count: Count, folder: Path, random: Random) -> int:
    """While it is open."""
    path = folder / f"cut-{random.random()}.tfrecord"
    shutil.copy(folder / "rows.tfrecord", path)
    dataset = _records(path)
    with path.open("r+b") as file:
        file.truncate(random.randrange(path.stat().st_size - 1))
    raised(count, dataset, random, {path.name}, SourceError)
    path.unlink()
    return 1


def _memory() -> Dataset:
    return loadax.from_arrays(rows_of(ROWS))


def _dataset(source: Any) -> Dataset:
    return loadax.from_source(source)


def _records(path: Path) -> Dataset:
    def parse(record: Any) -> Any:
        (row_id,) = struct.unpack_from("<i", record)
        return {"id": np.int32(row_id), "x": np.frombuffer(record, "<f4", offset=4)}

    return loadax.from_tfrecord(path, progress=False).map(parse)


def prepare(folder: Path) -> None:
    """Writes the files that the runs damage."""
    rows = rows_of(ROWS)
    content = [struct.pack("<i", row) + x.tobytes() for row, x in zip(rows["id"].tolist(), rows["x"], strict=True)]
    write_tfrecord(folder / "rows.tfrecord", content)
    loadax.write_zarr(rows, folder / "rows.zarr", progress=False, chunk_rows=8)
    columns = {"id": rows["id"], **{f"x{column}": rows["x"][:, column] for column in range(WIDTH)}}
    parquet.write_table(
        pa.table(columns),
        folder / "rows.parquet",
        row_group_size=8,
        compression="none",
        use_dictionary=False,
        write_page_checksum=True,
    )
    for name, array in rows.items():
        np.save(folder / f"{name}.npy", array)


Run = Callable[[Count, Path, Random], int]
RUNS: dict[str, tuple[Run, int]] = {
    "row fails, masked": (row_fails, 30),
    "row fails, raised": (row_ends_the_run, 8),
    "row fails once": (row_fails_for_some_time, 12),
    "map fails or gives another shape": (map_gives_something_else, 30),
    "row is slow": (row_is_slow, 4),
    "read stalls": (read_stalls, 3),
    "bit of a record flips (TFRecord)": (bit_of_a_record_flips, 25),
    "bit of a chunk flips (zarr)": (bit_of_a_chunk_flips, 6),
    "bit of a page flips (Parquet)": (bit_of_a_page_flips, 6),
    "file is cut short": (file_is_cut_short, 8),
}
"""Runs of each kind, and how many of each hundred are of it."""


# A server that answers badly.


@contextmanager
def server(folder: Path) -> Iterator[FaultProxy]:
    """The folder over HTTP, behind a proxy that spoils answers; pauses before retries are short."""
    with closing(RangeServer(folder)) as behind, closing(FaultProxy(behind.url)) as proxy:
        yield proxy


def server_fails(count: Count, proxy: FaultProxy, kind: Kind, random: Random) -> int:
    """Answers are spoilt for some time: retried, so that all rows are right; or an error that names the URL.

    Where a byte is another one, the same: the file has checksums.
    """
    if kind == "corrupt":  # which only a checksum tells
        dataset, names = loadax.from_zarr(f"{proxy.url}/rows.zarr"), {"rows.zarr"}
    else:
        dataset = loadax.from_npy({"id": f"{proxy.url}/id.npy", "x": f"{proxy.url}/x.npy"})
        names = {"id.npy", "x.npy"}
    fault = Fault(kind, every=random.choice((1, 2, 3)), times=random.choice((1, 2)), seconds=0.02)
    proxy.add(fault)
    try:
        raised(count, dataset, random, names, SourceError, again=True)
    finally:
        proxy.clear()
    return fault.hits
