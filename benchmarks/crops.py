"""Cost of decoding parts of JPEGs: `python benchmarks/crops.py [--library libturbojpeg.so]`.

Random resized crops to 224x224 of photographs of 500x375 and 2000x1500, and tiles of 224x224 of the latter. `--library`
adds libturbojpeg 3, called by hand, whose result has wrong pixels at the edges of the part, as TensorFlow's, and
PyTurboJPEG where it is the module `turbojpeg`. loadax is measured with libturbojpeg, if it finds one, and without;
tf.data with `decode_and_crop_jpeg`, which never reduces, if TensorFlow is installed.
"""

import argparse
import ctypes
import io
import statistics
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any
from unittest.mock import patch

import cv2
import numpy as np
from decoders import photographs
from PIL import Image
from simplejpeg import decode_jpeg

from loadax import RandomCrop
from loadax.sources.images.crop import Box
from loadax.sources.images.decode import Rendering

SIDE, ROWS, ROUNDS = 224, 64, 9

Way = Callable[[bytes, Box], Any]


class Region(ctypes.Structure):
    """tjregion of turbojpeg.h."""

    _fields_ = (("x", ctypes.c_int), ("y", ctypes.c_int), ("w", ctypes.c_int), ("h", ctypes.c_int))


class Factor(ctypes.Structure):
    """tjscalingfactor of turbojpeg.h."""

    _fields_ = (("num", ctypes.c_int), ("denom", ctypes.c_int))


def enlarged(content: bytes) -> bytes:
    """A photograph in 2000x1500."""
    file = io.BytesIO()
    Image.open(io.BytesIO(content)).resize((2000, 1500), Image.Resampling.BICUBIC).save(file, "JPEG", quality=90)
    return file.getvalue()


def resized(pixels: Any) -> Any:
    """As most loops by hand do it: without antialiasing."""
    return cv2.resize(pixels, (SIDE, SIDE), interpolation=cv2.INTER_LINEAR)


def cut(pixels: Any, part: Box) -> Any:
    """A part of an image."""
    return pixels[part.top : part.top + part.height, part.left : part.left + part.width]


def all_of_it(content: bytes, part: Box) -> Any:
    """simplejpeg, which decodes all."""
    return resized(cut(decode_jpeg(content), part))


def loadax_way(fast: bool) -> Way:
    """The decoder of `from_images` and `decode_images`."""
    return lambda content, part: Rendering((SIDE, SIDE), "stretch", fast, strict=True, crop=part)(content)


def without_library(way: Way) -> Way:
    """A way of loadax where libturbojpeg is not installed."""

    def plain(content: bytes, part: Box) -> Any:
        with patch("loadax.sources.images.decode.decode_part", lambda *_: None):
            return way(content, part)

    return plain


def pyturbojpeg(library: str) -> Way:
    """PyTurboJPEG, which decodes all, at a reduced size that is chosen by hand."""
    package = import_module("turbojpeg")
    decoder = package.TurboJPEG(library)

    def way(content: bytes, part: Box) -> Any:
        factor = reduction(part)
        pixels = decoder.decode(content, package.TJPF_RGB, (1, factor) if factor > 1 else None)
        return resized(cut(pixels, Box(*(edge // factor for edge in part))))

    return way


def reduction(part: Box) -> int:
    """The largest reduction that leaves as many pixels as are wanted."""
    return next((factor for factor in (8, 4, 2) if min(part.height, part.width) >= factor * SIDE), 1)


def region(library: str) -> Way:
    """Part of an image by libturbojpeg, at a reduced size."""
    turbo = ctypes.CDLL(library)
    turbo.tj3Init.restype = ctypes.c_void_p
    file: list[Any] = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t]
    turbo.tj3DecompressHeader.argtypes = file
    turbo.tj3SetCroppingRegion.argtypes = [ctypes.c_void_p, Region]
    turbo.tj3SetScalingFactor.argtypes = [ctypes.c_void_p, Factor]
    pixels_and_format: list[Any] = [ctypes.c_void_p, ctypes.c_int, ctypes.c_int]
    turbo.tj3Decompress8.argtypes = [*file, *pixels_and_format]
    handle = turbo.tj3Init(1)

    def way(content: bytes, part: Box) -> Any:
        factor = reduction(part)
        top, left, height, width = (edge // factor for edge in part)
        begin = left - left % (16 // factor)  # a region begins at a block
        turbo.tj3DecompressHeader(handle, content, len(content))
        turbo.tj3SetScalingFactor(handle, Factor(1, factor))
        if turbo.tj3SetCroppingRegion(handle, Region(begin, top, left + width - begin, height)):
            raise ValueError(f"no region {part}")
        pixels = np.empty((height, left + width - begin, 3), np.uint8)
        turbo.tj3Decompress8(handle, content, len(content), pixels.ctypes.data, 0, 0)
        return resized(pixels[:, left - begin :])

    return way


def tf_data(files: Sequence[bytes], parts: Sequence[Box]) -> Callable[[], None]:
    """An epoch of a `tf.data` pipeline of one thread, opened once, that decodes these parts."""
    tf: Any = import_module("tensorflow")
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)

    def decoded(content: Any, window: Any) -> Any:
        pixels = tf.image.decode_and_crop_jpeg(content, window, channels=3)
        return tf.cast(tf.image.resize(pixels, (SIDE, SIDE)), tf.uint8)

    contents = [files[row % len(files)] for row in range(len(parts))]
    data = tf.data.Dataset.from_tensor_slices((contents, np.array(parts, np.int32))).repeat().map(decoded)
    rows = data.as_numpy_iterator()

    def epoch() -> None:
        for _ in parts:
            next(rows)

    return epoch


def rows_of(way: Way) -> Callable[[Sequence[bytes], Sequence[Box]], Callable[[], None]]:
    """An epoch by a loop over rows."""

    def begun(files: Sequence[bytes], parts: Sequence[Box]) -> Callable[[], None]:
        def epoch() -> None:
            for row, part in enumerate(parts):
                way(files[row % len(files)], part)

        return epoch

    return begun


def main() -> None:
    """Prints medians over rounds in which each way has a turn."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--library", help="path of libturbojpeg 3")
    library = parser.parse_args().library
    cv2.setNumThreads(1)
    ways = {
        "all, then cut and INTER_LINEAR": all_of_it,
        "loadax, quality='high'": loadax_way(False),
        "loadax, quality='fast'": loadax_way(True),
        "loadax, quality='high', all decoded": without_library(loadax_way(False)),
        "loadax, quality='fast', all decoded": without_library(loadax_way(True)),
    }
    if library:
        ways["libturbojpeg's region, INTER_LINEAR"] = region(library)
    if library and find_spec("turbojpeg") and hasattr(import_module("turbojpeg"), "TurboJPEG"):
        ways["PyTurboJPEG, reduced, then cut"] = pyturbojpeg(library)
    small = photographs()
    large = [*map(enlarged, small[::4])]
    rng = np.random.default_rng(0)
    tiles = [Box(int(rng.integers(1500 - SIDE)), int(rng.integers(2000 - SIDE)), SIDE, SIDE) for _ in range(ROWS)]
    cases = {
        "500x375": (small, [RandomCrop().draw(375, 500, rng) for _ in range(ROWS)]),
        "2000x1500": (large, [RandomCrop().draw(1500, 2000, rng) for _ in range(ROWS)]),
        "tiles of 2000x1500": (large, tiles),
    }
    epochs = {name: rows_of(way) for name, way in ways.items()}
    if find_spec("tensorflow"):
        epochs["tf.data, decode_and_crop_jpeg"] = tf_data
    begun = {(name, case): epoch(*cases[case]) for name, epoch in epochs.items() for case in cases}
    taken: dict[tuple[str, str], list[float]] = {key: [] for key in begun}
    for turn in range(ROUNDS + 1):
        for key, times in taken.items():
            began = time.process_time()
            begun[key]()
            if turn:
                times.append((time.process_time() - began) / ROWS * 1e6)
    print("us of CPU a row | " + " | ".join(cases))
    for name in epochs:
        print(f"{name:36}" + "".join(f"{statistics.median(taken[name, case]):10.0f}" for case in cases))


if __name__ == "__main__":
    main()
