"""Parses `tf.train.Example` by the protobuf library, without TensorFlow.

Source: TensorFlow, `example.proto` and `feature.proto`.
"""

from functools import cache
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from loadax.errors import UnsupportedError

Value: TypeAlias = list[bytes] | NDArray[np.float32] | NDArray[np.int64]

_FIELDS = {
    "BytesList": {"value": "repeated bytes"},
    "FloatList": {"value": "repeated float"},
    "Int64List": {"value": "repeated int64"},
    "Feature": {"bytes_list": "BytesList", "float_list": "FloatList", "int64_list": "Int64List"},
    "Entry": {"key": "string", "value": "Feature"},
    "Features": {"feature": "repeated Entry"},
    "Example": {"features": "Features"},
}
"""Fields of each message, numbered from 1 on."""


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
    try:
        from google.protobuf import descriptor_pb2, descriptor_pool, message, message_factory
    except ImportError as error:
        raise UnsupportedError(
            f"features of TFRecord files are parsed by protobuf, which can't be imported ({error}): pip install "
            "protobuf, or, in a clone of loadax, pip install -e '.[tfrecord]'"
        ) from error
    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="example.proto", package="loadax", syntax="proto3")
    for name, fields in _FIELDS.items():
        described = file.message_type.add(name=name)
        for number, (field, declared) in enumerate(fields.items(), 1):
            label, _, kind = declared.rpartition(" ")
            added = described.field.add(
                name=field, number=number, label=kinds.LABEL_REPEATED if label else kinds.LABEL_OPTIONAL
            )
            if kind in _FIELDS:
                added.type_name = f".loadax.{kind}"
            else:
                added.type = kinds.Type.Value(f"TYPE_{kind.upper()}")
            if name == "Feature":
                added.oneof_index = 0
        if name == "Feature":
            described.oneof_decl.add(name="kind")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("loadax.Example")), message.DecodeError
