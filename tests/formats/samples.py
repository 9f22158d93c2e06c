"""A sample of each format: how its files are written and opened, and which numbers its rows have."""

import bz2
import gzip
import json
import lzma
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, final

import av
import numpy as np
import pyarrow as pa
import pytest
import soundfile
from PIL import Image
from pyarrow import parquet

import loadax
from tests.sources.shards.corpora import write_tar, write_tfrecord


@final
@dataclass(frozen=True)
class Sample:
    """A format, and how numbers become rows of it.

    Args:
        function: Name of the function of loadax that opens it.
        ending: Ending of the names of its files.
        write: Writes a file, or a folder that is one dataset, whose rows are numbers from 0 to 255.
        number: The number of an example.
        options: Arguments of the function.
        kept: Names of the arguments that take a folder in which something is kept for the next time.
        together: Whether a folder, a pattern or a list of files is one dataset.
        remote: Whether URLs of object stores are opened.
        prefix: Whether a file that is cut between two rows is a valid file of fewer rows.
        compress: Compresses the content of a file; None where it isn't compressed.
    """

    function: str
    ending: str
    write: Callable[[Path, Sequence[int]], object]
    number: Callable[[Any], Any] = lambda example: example["x"]
    options: Mapping[str, Any] = field(default_factory=dict)
    kept: tuple[str, ...] = ()
    together: bool = True
    remote: bool = True
    prefix: bool = False
    compress: Callable[[bytes], bytes] | None = None

    def file(self, path: Path, numbers: Sequence[int]) -> Path:
        """Writes the file, in a folder that is made if need be, and returns its path."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self.write(path, numbers)
        if self.compress is not None:
            path.write_bytes(self.compress(path.read_bytes()))
        return path

    def open(self, paths: Any, kept: Path | None = None) -> loadax.Dataset:
        """Opens files by the function, keeping what can be kept in a folder."""
        folders = dict.fromkeys(self.kept, kept) if kept is not None else {}
        return getattr(loadax, self.function)(paths, **self.options, **folders)

    def numbers(self, paths: Any, kept: Path | None = None) -> list[int]:
        """The numbers of all rows, read one by one."""
        data = self.open(paths, kept)
        return [int(np.asarray(self.number(data[row])).flat[0]) for row in range(len(data))]


def _parquet(path: Path, numbers: Sequence[int]) -> None:
    with path.open("wb") as file:  # Arrow takes names of UTF-8 only
        parquet.write_table(pa.table({"x": numbers}), file, row_group_size=2, use_dictionary=False)


def _array_record(path: Path, numbers: Sequence[int]) -> None:
    from array_record.python.array_record_module import ArrayRecordWriter

    with tempfile.TemporaryDirectory() as folder:  # its writer takes names of UTF-8 only
        writer = ArrayRecordWriter(f"{folder}/x", "group_size:1")
        for number in numbers:
            writer.write(b"%d" % number)
        writer.close()
        path.write_bytes(Path(folder, "x").read_bytes())


def _npy(path: Path, array: Any) -> None:
    with path.open("wb") as file:
        np.save(file, array)


def _images(path: Path, numbers: Sequence[int]) -> None:
    path.mkdir(exist_ok=True)
    for row, number in enumerate(numbers):
        Image.new("L", (2, 2), number).save(path / f"{row:03}.bmp")


def _video(path: Path, numbers: Sequence[int]) -> None:
    with av.open(str(path), "w", format="matroska") as file:
        stream: Any = file.add_stream("ffv1", rate=10)
        stream.width = stream.height = 16
        stream.pix_fmt = "gray"
        stream.gop_size = 4
        for number in numbers:
            frame = av.VideoFrame.from_ndarray(np.full((16, 16), number, np.uint8), "gray")
            file.mux(stream.encode(frame))
        file.mux(stream.encode())


def _audio(path: Path, numbers: Sequence[int]) -> None:
    with path.open("wb") as file:
        soundfile.write(file, np.array(numbers, np.int16), 100, format="WAV")


_TOKENS: dict[str, Any] = {"seq_len": 1, "stride": 2, "dtype": "<u2"}
_JSONL = Sample(
    "from_jsonl",
    ".jsonl",
    lambda path, numbers: path.write_text("".join(json.dumps({"x": number}) + "\n" for number in numbers)),
    options={"progress": False},
    kept=("cache", "index"),
    prefix=True,
)
_CSV = Sample(
    "from_csv",
    ".csv",
    lambda path, numbers: path.write_text("x\n" + "".join(f"{number}\n" for number in numbers)),
    prefix=True,
)
_LONG_CSV = replace(
    _CSV,
    write=lambda path, numbers: path.write_text("x,text\n" + "".join(f'{number},"a\n""b"""\n' for number in numbers)),
)
SAMPLES = {
    "parquet": Sample("from_parquet", ".parquet", _parquet),
    "jsonl": _JSONL,
    "csv": _CSV,
    "csv of several lines": _LONG_CSV,
    "webdataset": Sample(
        "from_webdataset",
        ".tar",
        lambda path, numbers: write_tar(path, {f"{row}.cls": b"%d" % number for row, number in enumerate(numbers)}),
        lambda example: example["cls"],
        {"decode": True, "progress": False},
        kept=("index",),
    ),
    "tfrecord": Sample(
        "from_tfrecord",
        ".tfrecord",
        lambda path, numbers: write_tfrecord(path, [b"%d" % number for number in numbers]),
        int,
        {"progress": False},
        kept=("index",),
        prefix=True,
    ),
    "array_record": Sample("from_array_record", ".array_record", _array_record, int),
    "tokens": Sample(
        "from_tokens",
        ".bin",
        lambda path, numbers: path.write_bytes(np.repeat(np.array(numbers, "<u2"), 2).tobytes()),
        lambda example: example["tokens"],
        _TOKENS,
        prefix=True,
    ),
    "tokens of arrays": Sample(
        "from_tokens",
        ".npy",
        lambda path, numbers: _npy(path, np.repeat(np.array(numbers, "<u2"), 2)),
        lambda example: example["tokens"],
        _TOKENS,
    ),
    "npy": Sample(
        "from_npy",
        ".npy",
        lambda path, numbers: _npy(path, np.array(numbers, "<u2")[:, None]),
        lambda example: example,
        together=False,
    ),
    "zarr": Sample(
        "from_zarr",
        ".zarr",
        lambda path, numbers: loadax.write_zarr({"x": np.array(numbers)}, path, overwrite=True, progress=False),
        together=False,
    ),
    "video": Sample(
        "from_video",
        ".mkv",
        _video,
        lambda example: example["image"],
        {"progress": False},
        kept=("index",),
        remote=False,
    ),
    "audio": Sample(
        "from_audio",
        ".wav",
        _audio,
        lambda example: np.asarray(example["audio"] * 2**15).round(),
        {"seconds": 0.01, "channels": "mono", "progress": False},
        kept=("index",),
        remote=False,
    ),
    "images": Sample("from_images", "", _images, lambda example: example["image"], together=False),
}
"""One sample of each function that opens files, and more where it opens several formats."""

_CODECS: dict[str, Callable[[bytes], bytes]] = {
    ".gz": lambda content: gzip.compress(content, 0, mtime=0),  # stored: as long for other numbers
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": lambda content: bytes(pa.compress(content, "zstd", asbytes=True)),
}
COMPRESSED = {
    f"{name}{ending}": replace(sample, ending=sample.ending + ending, compress=compress, prefix=False)
    for name, sample in (("jsonl", _JSONL), ("csv", _CSV))
    for ending, compress in _CODECS.items()
}
"""Compressed variants."""


def every(samples: Mapping[str, Sample] = SAMPLES, **members: Any) -> pytest.MarkDecorator:
    """A parameter `sample`: each of the samples whose members have these values."""
    chosen = {
        name: sample
        for name, sample in samples.items()
        if all(getattr(sample, member) == value for member, value in members.items())
    }
    return pytest.mark.parametrize("sample", chosen.values(), ids=chosen)
