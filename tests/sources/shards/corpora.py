"""Tar files and TFRecord files of tests, written by Python's tarfile and by the obvious loop."""

import io
import struct
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory


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


def example_class() -> Any:
    """Google's own implementation of `tf.train.Example`."""
    file = descriptor_pb2.FileDescriptorProto(name="example.proto", package="tf", syntax="proto3")
    kinds = descriptor_pb2.FieldDescriptorProto

    def message(name: str, *fields: tuple[str, int, Any, str]) -> Any:
        added = file.message_type.add(name=name)
        for field, label, kind, type_name in fields:
            added.field.add(
                name=field, number=len(added.field) + 1, label=label, type=kind, type_name=type_name or None
            )
        return added

    one, many = kinds.LABEL_OPTIONAL, kinds.LABEL_REPEATED
    message("BytesList", ("value", many, kinds.TYPE_BYTES, ""))
    message("FloatList", ("value", many, kinds.TYPE_FLOAT, ""))
    message("Int64List", ("value", many, kinds.TYPE_INT64, ""))
    feature = message(
        "Feature",
        ("bytes_list", one, kinds.TYPE_MESSAGE, ".tf.BytesList"),
        ("float_list", one, kinds.TYPE_MESSAGE, ".tf.FloatList"),
        ("int64_list", one, kinds.TYPE_MESSAGE, ".tf.Int64List"),
    )
    feature.oneof_decl.add(name="kind")
    for field in feature.field:
        field.oneof_index = 0
    features = message("Features", ("feature", many, kinds.TYPE_MESSAGE, ".tf.Features.FeatureEntry"))
    entry = features.nested_type.add(name="FeatureEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, label=one, type=kinds.TYPE_STRING)
    entry.field.add(name="value", number=2, label=one, type=kinds.TYPE_MESSAGE, type_name=".tf.Feature")
    message("Example", ("features", one, kinds.TYPE_MESSAGE, ".tf.Features"))
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("tf.Example"))


def encoded(features: Mapping[str, Any]) -> bytes:
    """A serialized `tf.train.Example` of lists of bytes, and arrays of floats and integers."""
    example = example_class()()
    for name, values in features.items():
        feature = example.features.feature[name]
        if isinstance(values, list):
            feature.bytes_list.value.extend(values)
        elif np.asarray(values).dtype.kind == "f":
            feature.float_list.value.extend(np.asarray(values).tolist())
        else:
            feature.int64_list.value.extend(np.asarray(values).tolist())
    return bytes(example.SerializeToString())
