"""Parses `tf.train.Example` without TensorFlow: a message of named lists of bytes, floats or integers.

    Example { 1: Features { 1: repeated { 1: name, 2: Feature } } }
    Feature { 1: BytesList { 1: repeated bytes } | 2: FloatList { 1: packed float } | 3: Int64List { 1: packed int64 } }

Source: TensorFlow, `example.proto` and `feature.proto`; Protocol Buffers, "Encoding". Packed lists may also be written
as one field per entry, and fields may come in any order.
"""

from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Value: TypeAlias = list[bytes] | NDArray[np.float32] | NDArray[np.int64]

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_FEW = 8  # bytes of a packed list that is decoded one by one


def parse_example(content: memoryview) -> dict[str, Value]:
    """Parses an example to its features.

    Raises:
        ValueError: When it is not a `tf.train.Example`; says what is wrong.
    """
    features: dict[str, Value] = {}
    for field, value in _fields(content):
        if field != 1:
            continue
        for inner, entry in _fields(_message(value)):
            if inner == 1:
                name, feature = "", memoryview(b"")
                for part, item in _fields(_message(entry)):
                    if part == 1:
                        name = bytes(_message(item)).decode("utf-8")
                    elif part == 2:
                        feature = _message(item)
                features[name] = _feature(feature)
    return features


def _feature(content: memoryview) -> Value:
    value: Value = []
    for field, part in _fields(content):
        entries = [entry for inner, entry in _fields(_message(part)) if inner == 1]
        if field == 1:
            value = [bytes(_message(entry)) for entry in entries]
        elif field == 2:
            # Unpacked entries are bytes too: each is a fixed 32-bit number.
            value = np.frombuffer(b"".join(bytes(_message(entry)) for entry in entries), "<f4").astype(np.float32)
        elif field == 3:
            lists = [np.array([entry], np.uint64) if isinstance(entry, int) else varints(entry) for entry in entries]
            value = np.concatenate([np.empty(0, np.uint64), *lists]).view(np.int64)
    return value


def varints(content: memoryview) -> NDArray[np.uint64]:
    """Decodes a packed list of integers: seven bits a byte, the low ones first; the last byte of each has no top bit.

    Raises:
        ValueError: When the last one is cut short, or one has more than ten bytes.

    Examples:
        >>> from loadax.sources.shards.example_proto import varints
        >>> varints(memoryview(bytes([1, 0x96, 1, 0]))).tolist()
        [1, 150, 0]
    """
    if len(content) <= _FEW:
        values, at = [], 0
        while at < len(content):
            value, at = _varint(content, at)
            values.append(value)
        return np.array(values, np.uint64)
    taken = np.frombuffer(content, np.uint8)
    last = taken < 0x80
    if not last[-1]:
        raise ValueError("a list of integers is cut short")
    ends = np.flatnonzero(last)
    begins = np.concatenate([[0], ends[:-1] + 1])
    if len(ends) == len(taken):
        return taken.astype(np.uint64)
    place = np.arange(len(taken)) - np.repeat(begins, ends - begins + 1)
    if place.max() > 9:
        raise ValueError("an integer has more than ten bytes")
    shifted = (taken & 0x7F).astype(np.uint64) << (7 * place).astype(np.uint64)
    return np.bitwise_or.reduceat(shifted, begins)


def _fields(content: memoryview) -> Iterator[tuple[int, Any]]:
    """Number and value of each field: an int for varints, the bytes for all others."""
    at, end = 0, len(content)
    while at < end:
        tag, at = _varint(content, at)
        kind = tag & 7
        if kind == _VARINT:
            value, at = _varint(content, at)
            yield tag >> 3, value
            continue
        if kind == _BYTES:
            size, at = _varint(content, at)
        elif kind in (_FIXED64, _FIXED32):
            size = 8 if kind == _FIXED64 else 4
        else:
            raise ValueError(f"a field has the unknown wire type {kind}")
        if at + size > end:
            raise ValueError(f"a field of {size} bytes ends after the record")
        yield tag >> 3, content[at : at + size]
        at += size


def _varint(content: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(content) or shift > 63:
            raise ValueError("an integer is cut short, or has more than ten bytes")
        byte = content[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, at
        shift += 7


def _message(value: Any) -> memoryview:
    if isinstance(value, int):
        raise ValueError("a field is an integer instead of a message")  # noqa: TRY004 - the record is wrong, not its type
    return memoryview(value)
