"""Decodes a part of a JPEG by libturbojpeg 3, if it is installed; simplejpeg decodes all of it.

Pixels are those of the whole image, since a block more on each side is decoded, from which colours are interpolated.
"""

import ctypes
import sys
import threading
from contextlib import suppress
from ctypes.util import find_library
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, final

import numpy as np

from loadax.sources.images.crop import Box
from loadax.sources.images.resize import Pixels

_DECOMPRESS = 1  # TJINIT_DECOMPRESS
_RGB = 0  # TJPF_RGB
_FAST_UPSAMPLE = 9  # TJPARAM_FASTUPSAMPLE
_FAST_DCT = 10  # TJPARAM_FASTDCT
_BLOCK = 32  # pixels: a multiple of the block widths of all subsamplings
_NAMES = ("libturbojpeg.so.0", "libturbojpeg.dylib", "turbojpeg.dll")
_END = b"\xff\xd9"


class _CropRegion(ctypes.Structure):
    _fields_ = (
        ("x", ctypes.c_int),
        ("y", ctypes.c_int),
        ("w", ctypes.c_int),
        ("h", ctypes.c_int),
    )


class _Factor(ctypes.Structure):
    _fields_ = (("num", ctypes.c_int), ("denom", ctypes.c_int))


@final
class Decompressor:
    """A decompressor of libturbojpeg, which serves one thread at a time."""

    def __init__(self, library: Any):
        self.library = library
        self.handle = ctypes.c_void_p(library.tj3Init(_DECOMPRESS))

    def __del__(self) -> None:
        self.library.tj3Destroy(self.handle)


@final
class _OfThread(threading.local):
    """The decompressor of each thread."""

    def __init__(self, library: Any):
        self.decompressor = Decompressor(library)


def decode_part(
    content: bytes, stored: tuple[int, int], factor: int, part: Box, fast: bool
) -> Pixels | None:
    """A part of a JPEG, uint8[height, width, 3]; None: all of the file must be decoded, or can't be.

    Args:
        content: Bytes of the file.
        stored: (height, width) of the image.
        factor: Reduction, 1, 2, 4 or 8.
        part: Part in pixels of the reduced image.
        fast: Whether to decode with less accuracy.
    """
    decompressors = thread_decompressors()
    # A file without an end is damaged, perhaps behind the part: all of it is decoded, to tell.
    if decompressors is None or not content.endswith(_END):
        return None
    decompressor = decompressors.decompressor
    library = decompressor.library
    if fast:
        # Where rows are skipped, libjpeg-turbo's fast upsampling writes to the colour converter of the image before,
        # whose memory it has freed: wrong pixels, or a crash. A new one had no image before.
        decompressor = Decompressor(library)
    handle = decompressor.handle
    height, width = (-(-side // factor) for side in stored)
    block = _BLOCK // factor
    top = max(0, part.top - 2)
    left = max(0, part.left // block - 1) * block
    bottom = min(height, part.top + part.height + 2)
    right = min(width, part.left + part.width + block)
    pixels = np.empty((bottom - top, right - left, 3), np.uint8)
    region = _CropRegion(left, top, right - left, bottom - top)
    failed = (
        library.tj3Set(handle, _FAST_UPSAMPLE, int(fast))
        or library.tj3Set(handle, _FAST_DCT, int(fast))
        or library.tj3DecompressHeader(handle, content, len(content))
        or library.tj3SetScalingFactor(handle, _Factor(1, factor))
        or library.tj3SetCroppingRegion(handle, region)
        or library.tj3Decompress8(
            handle, content, len(content), pixels.ctypes.data, 0, _RGB
        )
    )
    if failed:
        return None
    rows = slice(part.top - top, part.top - top + part.height)
    return pixels[rows, part.left - left : part.left - left + part.width]


@cache
def thread_decompressors() -> _OfThread | None:
    """The decompressors of this process; None: there is no libturbojpeg 3."""
    for path in library_paths():
        try:
            library = ctypes.CDLL(path)
            library.tj3Init.restype = ctypes.c_void_p
            file: list[Any] = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t]
            library.tj3DecompressHeader.argtypes = file
            library.tj3Decompress8.argtypes = [
                *file,
                ctypes.c_void_p,
                ctypes.c_int,
                ctypes.c_int,
            ]
            library.tj3SetCroppingRegion.argtypes = [ctypes.c_void_p, _CropRegion]
            library.tj3SetScalingFactor.argtypes = [ctypes.c_void_p, _Factor]
        except (OSError, AttributeError):  # not there, or version 2
            continue
        return _OfThread(library)
    return None


def library_paths() -> list[str]:
    """Where libturbojpeg may be: inside of the package turbojpeg, of this environment, or of the system."""
    folders = [Path(sys.prefix, "lib"), Path(sys.prefix, "Library", "bin")]
    paths = [str(folder / name) for folder in folders for name in _NAMES]
    # PyTurboJPEG has a module of the same name, which hides that of the package
    with suppress(metadata.PackageNotFoundError):
        files = metadata.files("turbojpeg") or []
        bundled = [file for file in files if file.name.startswith("libturbojpeg")]
        paths = [*(str(file.locate()) for file in bundled), *paths]
    found = find_library("turbojpeg")
    if found is not None:
        paths.append(found)
    return paths
