"""Parses `tf.train.Example` by the protobuf library, without TensorFlow, and makes leaves of its features.

Source: TensorFlow, `example.proto` and `feature.proto`.
"""

import math
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from loadax.core.arguments import dtype as checked_dtype
from loadax.errors import ArgumentError, LeafError
from loadax.protocols import ArraySpec
from loadax.sources.library import require

Value: TypeAlias = list[bytes] | NDArray[np.float32] | NDArray[np.int64]

_OBJECT = np.dtype(object)
_MEANT = (
    "bytes, a dtype for one number, or (bytes, shape) or (dtype, shape), whose shape "
    "is an int, a tuple, or None for any length, as in (None, 7)"
)

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

    file = descriptor_pb2.FileDescriptorProto(
        name="example.proto", package="loadax", syntax="proto3"
    )
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
    return message_factory.GetMessageClass(
        pool.FindMessageTypeByName("loadax.Example")
    ), DecodeError


class Feature(NamedTuple):
    """One feature to parse.

    Args:
        spec: Shape and dtype of the leaf; dtype `object` for bytes.
        ragged: Whether its first dimension, 0 in `spec`, has any length.
    """

    spec: ArraySpec
    ragged: bool = False

    def value(
        self, example: Mapping[str, Value], name: str, row: Callable[[], str]
    ) -> Any:
        """The leaf of one example.

        Raises:
            LeafError: When the example lacks it, or it is of another kind or length; names the row.
        """
        stored = example.get(name)
        wanted = self.spec.dtype
        if stored is None:
            has = (
                ", ".join(
                    f"{key} ({_described(value)})"
                    for key, value in sorted(example.items())
                )
                or "none"
            )
            raise LeafError(
                f"{row()} has no feature {name!r}; its features: {has}",
                argument="features",
            )
        if isinstance(stored, list):
            if wanted == _OBJECT and not self.spec.shape and len(stored) == 1:
                return stored[0]
            if wanted == _OBJECT and self._fits(len(stored)):
                listed = np.empty(len(stored), object)
                listed[:] = stored
                return listed
            if len(stored) or wanted == _OBJECT:
                raise self._other(stored, name, row)
            stored = np.empty(0, np.int64)  # a list without values has no kind
        if wanted == _OBJECT and self.ragged and not len(stored):
            return np.empty(0, object)
        other_kind = wanted == _OBJECT or (
            stored.dtype.kind == "f" and wanted.kind not in "fc"
        )
        if other_kind or not self._fits(stored.size):
            raise self._other(stored, name, row)
        array = stored.astype(wanted, copy=False)
        if array is not stored and wanted.kind in "iu" and (array != stored).any():
            raise LeafError(
                f"{row()}: feature {name!r} has values that {wanted} can't hold; "
                "pass a wider dtype"
            )
        if self.ragged:
            return array.reshape(-1, *self.spec.shape[1:])
        return array.reshape(self.spec.shape)[()]

    def _fits(self, values: int) -> bool:
        """Whether a list of values has the shape."""
        if not self.ragged:
            return values == math.prod(self.spec.shape)
        return values % math.prod(self.spec.shape[1:]) == 0

    def _other(self, stored: Value, name: str, row: Callable[[], str]) -> LeafError:
        extents = list(map(str, self.spec.shape))
        if self.ragged:
            extents[0] = "any length"
        kind = "bytes" if self.spec.dtype == _OBJECT else f"{self.spec.dtype}"
        asked = kind + f"[{', '.join(extents)}]" * bool(extents)
        return LeafError(
            f"{row()}: feature {name!r} is {_described(stored)}, but features= asks "
            f"for {asked}; pass {_MEANT}",
            argument="features",
        )


def features_of(given: Any) -> dict[str, Feature]:
    """Checks `features=`.

    Raises:
        ArgumentError: When it is not a dict of features; shows it.
    """
    if (
        not isinstance(given, Mapping)
        or not given
        or not all(isinstance(name, str) for name in given)
    ):
        raise ArgumentError(
            f"features={given!r}: pass a dict from names of features to {_MEANT}"
        )
    return {name: _feature(name, given[name]) for name in sorted(given)}


def features_like(example: Mapping[str, Value]) -> dict[str, Any]:
    """The `features=` that an example has, without lists of several byte strings, and without empty lists."""
    given: dict[str, Any] = {}
    for name, value in sorted(example.items()):
        if isinstance(value, list):
            given |= {name: bytes} if len(value) == 1 else {}
        elif len(value):
            if len(value) == 1:
                given[name] = value.dtype.name
            else:
                given[name] = (value.dtype.name, len(value))
    return given


def _feature(name: str, given: Any) -> Feature:
    if isinstance(given, tuple | list) and len(given) == 2:
        dtype, shape = given
    else:
        dtype, shape = (given, ())
    if shape is None or isinstance(shape, int):
        shape = (shape,)
    extents = tuple(shape) if isinstance(shape, tuple | list) else (-1,)
    ragged = extents[:1] == (None,)
    if ragged:
        extents = (0, *extents[1:])
    # Nothing tells how many rows of no values there are.
    empty_rows = ragged and 0 in extents[1:]
    whole = all(isinstance(extent, int) and extent >= 0 for extent in extents)
    if not whole or empty_rows:
        raise ArgumentError(f"features[{name!r}]={given!r}: pass {_MEANT}")
    if dtype is bytes and len(extents) < 2:
        return Feature(ArraySpec(extents, _OBJECT), ragged)
    plain = checked_dtype(f"features[{name!r}]", dtype)
    if plain.kind not in "iufb":
        raise ArgumentError(f"features[{name!r}]={given!r} is {plain}: pass {_MEANT}")
    return Feature(ArraySpec(extents, plain), ragged)


def _described(value: Value) -> str:
    if isinstance(value, list):
        kind = "bytes"
    else:
        kind = f"{value.dtype}"
    if len(value) != 1:
        return f"{len(value)} {kind}"
    return f"one {kind}"
