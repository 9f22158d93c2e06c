"""Decoders of the files in an example, by their extension."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from loadax.protocols import ArraySpec
from loadax.sources.images.decode import Rendering
from loadax.sources.images.format import ENDINGS
from loadax.sources.io.npy_header import NPY_FAILURES, parse_npy

# Exceptions of decoding damaged files.
FAILURES = (*NPY_FAILURES, UnicodeDecodeError)

OBJECT = np.dtype(object)


class FileDecoder(NamedTuple):
    """Decoder of the files of one extension.

    Args:
        decode: Function from the bytes of a file to the leaf.
        spec: Shape and dtype, if they are equal in all examples; None: they follow from the first example.
    """

    decode: Callable[[memoryview], Any]
    spec: ArraySpec | None


def is_image(extension: str) -> bool:
    """Whether files with this extension (without the dot) are images; "seg.png" is one too."""
    return f".{extension}".endswith(ENDINGS)


def _number(content: memoryview) -> np.int32:
    return np.int32(int(bytes(content)))


def _text(content: memoryview) -> str:
    return bytes(content).decode("utf-8")


# Gives a file's own bytes.
UNDECODED = FileDecoder(bytes, ArraySpec((), OBJECT))

_BY_EXTENSION = {
    "cls": FileDecoder(_number, ArraySpec((), np.dtype(np.int32))),
    "npy": FileDecoder(parse_npy, None),
    "txt": FileDecoder(_text, ArraySpec((), OBJECT)),
}


def decoder_of(extension: str, rendering: Rendering | None) -> FileDecoder:
    """The usual decoder of files with an extension; their bytes if there is none.

    Args:
        extension: Extension without the dot, in lower case.
        rendering: Decoder of images.
    """
    if not is_image(extension):
        return _BY_EXTENSION.get(extension.rpartition(".")[2], UNDECODED)
    assert rendering is not None
    size = rendering.size
    spec = None if size is None else ArraySpec((*size, 3), np.dtype(np.uint8))
    return FileDecoder(lambda content: rendering(bytes(content)), spec)
