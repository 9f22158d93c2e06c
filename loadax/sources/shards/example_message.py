"""Parses `tf.train.Example` by the protobuf library, without TensorFlow.

Source: TensorFlow, `example.proto` and `feature.proto`.
"""

from functools import cache
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from loadax.sources.library import require

Value: TypeAlias = list[bytes] | NDArray[np.float32] | NDArray[np.int64]

# Fields of each message, numbered from 1 on.
_FIELDS = {
    "BytesList": {"value": "repeated bytes"},
    "FloatList": {"value": "repeated float"},
    "Int64List": {"value": "repeated int64"},
    "Feature": {
        "bytes_list": "optional BytesList",
        "float_list": "optional FloatList",
        "int64_list": "optional Int64List",
    },
    "Entry": {"key": "optional string", "value": "optional Feature"},
    "Features": {"feature": "repeated Entry"},
    "Example": {"features": "optional Features"},
}


def parse_example(content: bytes) -> dict[str, Value]:
    """Parses an example to its features.

    Raises:
        ValueError: When it is not a `tf.train.Example`; says what is wrong.
        UnsupportedError: When protobuf can't be imported; says what to install.
    """
    message, damage = example_class()
    try:
        features = message.FromString(content).features.feature
    except damage as error:
        raise ValueError(str(error)) from error
    return {entry.key: _value(entry.value) for entry in features}


def _value(feature: Any) -> Value:
    kind = feature.WhichOneof("kind")
    if kind == "float_list":
        return np.array(feature.float_list.value, np.float32)
    if kind == "int64_list":
        return np.array(feature.int64_list.value, np.int64)
    return list(feature.bytes_list.value)


@cache
def example_class() -> tuple[Any, type[Exception]]:
    """The class of messages, and the error of bytes that are not one.

    Raises:
        UnsupportedError: When protobuf can't be imported; says what to install.
    """
    require("a tf.train.Example", {"protobuf": "google.protobuf"}, "tfrecord")
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
    from google.protobuf.message import DecodeError

    file = descriptor_pb2.FileDescriptorProto(name="example.proto", package="loadax", syntax="proto3")
    for name, fields in _FIELDS.items():
        message = file.message_type.add(name=name)
        for number, (field, declared) in enumerate(fields.items(), 1):
            label, kind = declared.split()
            message.field.add(
                name=field,
                number=number,
                label=f"LABEL_{label.upper()}",
                type=None if kind in _FIELDS else f"TYPE_{kind.upper()}",
                type_name=f".loadax.{kind}" if kind in _FIELDS else None,
                oneof_index=0 if name == "Feature" else None,
            )
        if name == "Feature":
            message.oneof_decl.add(name="kind")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("loadax.Example")), DecodeError
