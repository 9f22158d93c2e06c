"""Tar files and TFRecord files of tests, written by Python's tarfile and by the obvious loop."""

import io
import struct
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np

from loadax.sources.shards.example_message import example_class


def write_tar(path: Path, files: Mapping[str, bytes], kind: int = tarfile.PAX_FORMAT) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w", format=kind) as shard:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            shard.addfile(member, io.BytesIO(content))
    return path


def masked(content: bytes) -> int:
    crc = google_crc32c.value(content)
    return int(((crc >> 15 | crc << 17) + 0xA282EAD8) % 2**32)


def write_tfrecord(path: Path, records: Sequence[bytes]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        for record in records:
            for part in (struct.pack("<Q", len(record)), record):
                file.write(part + struct.pack("<I", masked(part)))
    return path


def texts(count: int, first: int = 0) -> list[bytes]:
    """Records of 0 to 6,000 bytes."""
    return [str(index).encode() * (index * 37 % 1500) for index in range(first, first + count)]


def numbered(count: int, first: int = 0) -> dict[str, bytes]:
    """Members of examples that hold text and the number of the example."""
    texts_of = dict(enumerate(texts(count, first), first))
    return {f"{i:06}.{end}": part for i, text in texts_of.items() for end, part in (("txt", text), ("cls", b"%d" % i))}


def encoded(features: Mapping[str, Any]) -> bytes:
    """A serialized `tf.train.Example` of lists of bytes, and arrays of floats and integers."""
    example = example_class()[0]()
    for name, values in features.items():
        feature = example.features.feature.add(key=name).value
        if isinstance(values, list):
            feature.bytes_list.value.extend(values)
        elif np.asarray(values).dtype.kind == "f":
            feature.float_list.value.extend(np.asarray(values).tolist())
        else:
            feature.int64_list.value.extend(np.asarray(values).tolist())
    return bytes(example.SerializeToString())
