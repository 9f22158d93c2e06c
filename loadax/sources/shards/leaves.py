"""Decoders of the files in an example, by their extension."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from loadax.protocols import ArraySpec
from loadax.sources.images.decode import Rendering
from loadax.sources.images.format import ENDINGS
from loadax.sources.io.npy_header import NPY_FAILURES, parse_npy

FAILURES = (*NPY_FAILURES, UnicodeDecodeError)
"""Exceptions of decoding damaged files."""

OBJECT = np.dtype(object)


class Leaf(NamedTuple):
    """Decoder of one leaf of an example.

    Args:
        decode: Function from the bytes of a file to the leaf.
        spec: Shape and dtype, if they are equal in all examples; None: they follow from the first example.
    """

    decode: Callable[[memoryview], Any]
    spec: ArraySpec | None


def is_image(extension: str) -> bool:
    """Whether files with this extension (without the dot) are images; "seg.png" is one too."""
    return f".{extension}".endswith(ENDINGS)


def undecoded() -> Leaf:
    """The leaf of a file's own bytes."""
    return Leaf(bytes, ArraySpec((), OBJECT))


def decoder_of(extension: str, rendering: Rendering | None) -> Leaf:
    """The usual decoder of files with an extension; their bytes if there is none.

    Args:
        extension: Extension without the dot, in lower case.
        rendering: Decoder of images.
    """
    last = extension.rpartition(".")[2]
    if is_image(extension):
        assert rendering is not None
        size = rendering.size
        return Leaf(
            lambda content: rendering(bytes(content)),
            None if size is None else ArraySpec((*size, 3), np.dtype(np.uint8)),
        )
    if last == "cls":
        return Leaf(_number, ArraySpec((), np.dtype(np.int32)))
    if last == "npy":
        return Leaf(parse_npy, None)
    return Leaf(_text, ArraySpec((), OBJECT)) if last == "txt" else undecoded()


def _number(content: memoryview) -> np.int32:
    return np.int32(int(bytes(content)))


def _text(content: memoryview) -> str:
    return bytes(content).decode("utf-8")
