"""The functions that open files of rows, each with a writer: for tests of what holds for all of them."""

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from pyarrow import parquet

import loadax
from tests.sources.shards.corpora import write_tar, write_tfrecord


class Door(NamedTuple):
    """A function of loadax, the ending of its files, and how a file of one small number is written and read."""

    ending: str
    write: Callable[[Path, int], Any]
    values: Callable[[Any], list[int]]
    remote: bool = True


def _array_record(path: Path, value: int) -> None:
    from array_record.python.array_record_module import ArrayRecordWriter

    plain = path.parents[1] / "plain"  # the writer takes names of UTF-8 only
    writer = ArrayRecordWriter(str(plain), "group_size:1")
    writer.write(bytes([value]))
    writer.close()
    plain.rename(path)


def _parquet(path: Path, value: int) -> None:
    with path.open("wb") as file:
        parquet.write_table(pa.table({"x": [value]}), file)


def _tokens(paths: Any) -> list[int]:
    data = loadax.from_tokens(paths, 1, stride=2, dtype="<u2")
    return [int(row["tokens"][0]) for row in data]


DOORS = {
    "from_parquet": Door(".parquet", _parquet, lambda paths: [int(row["x"]) for row in loadax.from_parquet(paths)]),
    "from_jsonl": Door(
        ".jsonl",
        lambda path, value: path.write_text(json.dumps({"x": value})),
        lambda paths: [int(row["x"]) for row in loadax.from_jsonl(paths)],
    ),
    "from_csv": Door(
        ".csv",
        lambda path, value: path.write_text(f"x\n{value}\n"),
        lambda paths: [int(row["x"]) for row in loadax.from_csv(paths)],
    ),
    "from_webdataset": Door(
        ".tar",
        lambda path, value: write_tar(path, {f"{value}.cls": str(value).encode()}),
        lambda paths: [int(row["cls"]) for row in loadax.from_webdataset(paths, decode=True)],
    ),
    "from_tfrecord": Door(
        ".tfrecord",
        lambda path, value: write_tfrecord(path, [bytes([value])]),
        lambda paths: [row[0] for row in loadax.from_tfrecord(paths)],
    ),
    "from_array_record": Door(
        ".array_record", _array_record, lambda paths: [row[0] for row in loadax.from_array_record(paths)], remote=False
    ),
    "from_tokens": Door(".bin", lambda path, value: path.write_bytes(struct.pack("<2H", value, value)), _tokens),
    "from_tokens of arrays": Door(".npy", lambda path, value: np.save(path, np.full(2, value, "<u2")), _tokens),
}
