"""Counts the requests of a step to a bucket, by format and order: `python benchmarks/step_requests.py`.

16 files have 4,096 rows of 1 KiB together (images: 256 files); chunks have 64 rows, and a step has 64. A server of this
machine plays the bucket. Counted are the requests of an epoch behind the opening, without those that were sent a second
time because they were late. All fits into the memory that the loader reads ahead, so that each chunk is requested once
even when rows are shuffled one by one.
"""

import io
import os
import struct
import tarfile
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
from metadata import Server

os.environ["JAX_PLATFORMS"] = "cpu"

import loadax

_FILES, _ROWS, _CHUNK, _WIDTH = 16, 256, 64, 1024


def _bytes_of(file: int) -> np.ndarray[tuple[int, int], np.dtype[np.uint8]]:
    return np.random.default_rng(file).integers(97, 123, (_ROWS, _WIDTH), np.uint8)


def _parquet(folder: Path) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    for file in range(_FILES):
        column = pa.FixedSizeListArray.from_arrays(pa.array(_bytes_of(file).ravel()), _WIDTH)
        parquet.write_table(pa.table({"x": column}), folder / f"{file:02}.parquet", row_group_size=_CHUNK)


def _jsonl(folder: Path) -> None:
    for file in range(_FILES):
        numbers = _bytes_of(file)[:, :256].tolist()
        (folder / f"{file:02}.jsonl").write_text("".join(f'{{"x": {row}}}\n' for row in numbers))


def _tar(folder: Path) -> None:
    for file in range(_FILES):
        with tarfile.open(folder / f"{file:02}.tar", "w") as tar:
            for row, content in enumerate(_bytes_of(file)):
                member = tarfile.TarInfo(f"{file * _ROWS + row:06}.npy")
                buffer = io.BytesIO()
                np.save(buffer, content)
                member.size = buffer.tell()
                tar.addfile(member, io.BytesIO(buffer.getvalue()))


def _tfrecord(folder: Path) -> None:
    from loadax.sources.shards.crc import masked_crc32c

    for file in range(_FILES):
        with (folder / f"{file:02}.tfrecord").open("wb") as out:
            for row in _bytes_of(file):
                for part in (struct.pack("<Q", _WIDTH), row.tobytes()):
                    out.write(part + struct.pack("<I", masked_crc32c(part)))


def _tokens(folder: Path) -> None:
    for file in range(_FILES):
        _bytes_of(file).tofile(folder / f"{file:02}.bin")


def _array_record(folder: Path) -> None:
    from array_record.python.array_record_module import ArrayRecordWriter

    for file in range(_FILES):
        writer = ArrayRecordWriter(str(folder / f"{file:02}.array_record"), f"group_size:{_CHUNK}")
        for row in _bytes_of(file):
            writer.write(row.tobytes())
        writer.close()


def _zarr(folder: Path) -> None:
    rows = np.concatenate([_bytes_of(file) for file in range(_FILES)])
    data = loadax.from_arrays({"x": rows})
    loadax.write_zarr(data, folder / "store", chunk_rows=_CHUNK, shard_rows=_CHUNK, progress=False)


def _images(folder: Path) -> None:
    from PIL import Image

    for number in range(_ROWS):
        Image.fromarray(_bytes_of(number)[:32, :32]).save(folder / f"{number:04}.png")


def _size(member: dict[str, bytes]) -> dict[str, np.int64]:
    return {"size": np.int64(len(member["npy"]))}


def _length(record: bytes) -> dict[str, np.int64]:
    return {"length": np.int64(len(record))}


_FORMATS: dict[str, tuple[Callable[[Path], None], Callable[[str], loadax.Dataset]]] = {
    "Parquet": (_parquet, loadax.from_parquet),
    "Zarr": (_zarr, lambda url: loadax.from_zarr(f"{url}/store")),
    "ArrayRecord": (_array_record, lambda url: loadax.from_array_record(url, dtype="uint8").pad(_WIDTH)),
    "tokens": (_tokens, lambda url: loadax.from_tokens(url, _WIDTH - 1, stride=_WIDTH, dtype="uint8")),
    "TFRecord": (_tfrecord, lambda url: loadax.from_tfrecord(url, progress=False).map(_length)),
    "tar": (_tar, lambda url: loadax.from_webdataset(url, progress=False).map(_size)),
    "JSON lines": (_jsonl, lambda url: loadax.from_jsonl(url, progress=False)),
    "images": (_images, loadax.from_images),
}


def main() -> None:
    """Prints the table."""
    warnings.simplefilter("ignore")  # that chunks are decoded several times
    print(f"{'':14}{'at start':>12}{'shuffled':>12}{'by chunks':>12}")
    for name, (write, opened) in _FORMATS.items():
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder, "data")
            (root / "train").mkdir(parents=True)
            write(root / "train")
            server = Server(root)
            server.use()
            url = "s3://bucket/train"
            datasets: list[loadax.Dataset] = []
            counts: list[float] = [len(set(server.during(lambda: datasets.append(opened(url)))))]  # noqa: B023
            chunks = "chunks" if name in {"Parquet", "Zarr", "ArrayRecord"} else _CHUNK
            for order in (opened(url).shuffle(0), opened(url).shuffle(0, block=chunks, lanes=4)):
                loader = loadax.Dataloader(order, _CHUNK, num_epochs=1, num_workers=0)
                sent = len(set(server.during(lambda: [*loader])))  # noqa: B023
                counts.append(round(sent / len(loader), 1))
            server.close()
            print(f"{name:14}{counts[0]:12,}{counts[1]:12,}{counts[2]:12,}", flush=True)


if __name__ == "__main__":
    main()
