"""Decodes image files: JPEG by libjpeg-turbo (simplejpeg), all others by Pillow. Both release the GIL."""

import io
import struct
from dataclasses import dataclass
from importlib import import_module
from typing import Any, final

import numpy as np

from loadax.errors import UnsupportedError
from loadax.sources.images.resize import Fit, Pixels, fitted, resize, sample

FAILURES = (OSError, SyntaxError, ValueError, IndexError, EOFError, struct.error)
"""What decoding damaged files raises; Pillow has no one class for it."""

_FORMATS = ("JPEG", "PNG", "WEBP", "BMP")
_JPEG = ("JPEG", "MPO")  # MPO: a JPEG with further pictures behind it, as telephones write it
_ORIENTATION = 0x0112  # EXIF's tag
_TURNED = 5  # the first of the orientations whose height is the stored width


def require_decoders() -> None:
    """Imports the libraries, so that the first batch needn't.

    Raises:
        UnsupportedError: when one can't be imported; names it and the extra.
    """
    for module in ("PIL.Image", "simplejpeg", "cv2"):
        try:
            import_module(module)
        except ImportError as error:
            raise UnsupportedError(
                f"images are decoded by Pillow, simplejpeg and OpenCV, and one of them can't be imported ({error}); "
                "pip install opencv-python-headless pillow simplejpeg"
            ) from error


@final
@dataclass(frozen=True)
class Rendering:
    """What is made of a file's bytes.

    Args:
        size: (height, width) of every result; None: that of the file, upright.
        fit: how an image of another shape gets that size.
        fast: whether JPEGs are decoded and resized less exactly.
        strict: whether JPEGs whose data is damaged are an error.
    """

    size: tuple[int, int] | None
    fit: Fit
    fast: bool
    strict: bool

    def __call__(self, content: bytes) -> Pixels:
        """The image in `content`: red, green and blue, uint8[height, width, 3], turned as its EXIF entry says.

        Raises:
            OSError: and others of `FAILURES`, when it can't be decoded.
        """
        from PIL import Image, UnidentifiedImageError

        try:
            with Image.open(io.BytesIO(content), formats=_FORMATS) as image:  # reads the header only
                quick = image.format in _JPEG and image.mode in ("RGB", "L")
                pixels = self._jpeg(content, image) if quick else self._other(image)
        except UnidentifiedImageError as error:  # whose text would show where in memory the bytes are
            raise ValueError(
                f"it does not begin as a file of {', '.join(_FORMATS[:-1])} or {_FORMATS[-1]} does"
            ) from error
        except Image.DecompressionBombError as error:  # which is none of the others
            raise ValueError(error) from error
        return pixels if self.size is None or pixels.shape[:2] == self.size else _padded(pixels, self.size)

    def _jpeg(self, content: bytes, image: Any) -> Pixels:
        from simplejpeg import decode_jpeg

        width, height = image.size
        orientation = _orientation(image)
        how = {"fastdct": self.fast, "fastupsample": self.fast, "strict": self.strict}
        if self.size is None:
            return _upright(decode_jpeg(content, "RGB", **how), orientation)
        # A cut through the centre and a filter that is the same on all sides may come before the turn, which is then a
        # small one.
        size = self.size[::-1] if orientation >= _TURNED else self.size
        down, across = fitted((height, width), size, self.fit)
        factor = _reduction(min(down.scale, across.scale), self.fast)
        pixels = decode_jpeg(content, "RGB", min_height=-(-height // factor), min_width=-(-width // factor), **how)
        # Where the fast way makes a new pixel of four stored ones, it must leave no gaps. In a reduced image the filter
        # costs little.
        quick = self.fast and factor == 1 and max(down.scale, across.scale) <= 2
        resized = (sample if quick else resize)(pixels, down.reduced(factor), across.reduced(factor))
        return _upright(resized, orientation)

    def _other(self, image: Any) -> Pixels:
        from PIL import Image, ImageOps

        image.load()  # here, where its errors count: a PNG's EXIF may lie behind its pixels
        image = _rgb(image if _orientation(image) == 1 else ImageOps.exif_transpose(image))
        if self.size is None:
            return np.asarray(image)
        width, height = image.size
        down, across = fitted((height, width), self.size, self.fit)
        box = (
            across.start,
            down.start,
            min(across.start + across.extent, width),
            min(down.start + down.extent, height),
        )
        return np.asarray(image.resize((across.length, down.length), Image.Resampling.BILINEAR, box))


def _reduction(scale: float, fast: bool) -> int:
    """By how much smaller a JPEG is decoded, which costs far less: libjpeg's factors 2, 4 and 8.

    What is left to the filter, half of the size, hides that libjpeg's own filter is a sharper one: 48 dB and more.
    """
    return next((factor for factor in (8, 4, 2) if scale >= factor * (1 if fast else 2)), 1)


def _rgb(image: Any) -> Any:
    """A Pillow image as red, green and blue: what is transparent has the colour that is stored beneath."""
    from PIL import Image

    if image.mode.startswith("I"):  # gray of 16 bits, which Pillow would clip to the lowest 8
        return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8)).convert("RGB")
    if image.mode == "P" and "transparency" in image.info:
        image = image.convert("RGBA")  # without this step Pillow warns
    return image.convert("RGB")


def _orientation(image: Any) -> int:
    """What EXIF says about how an image is turned, 1 to 8.

    One whose EXIF can't be read is taken as it is, since nothing else is wrong with it.
    """
    try:
        orientation = image.getexif().get(_ORIENTATION)
    except FAILURES:
        return 1
    return orientation if orientation in range(1, 9) else 1


def _upright(pixels: Pixels, orientation: int) -> Pixels:
    """Stored pixels as EXIF's orientation wants them seen."""
    if orientation >= _TURNED:
        pixels = pixels.transpose(1, 0, 2)
    if orientation in (3, 4, 7, 8):
        pixels = pixels[::-1]
    return pixels[:, ::-1] if orientation in (2, 3, 6, 7) else pixels


def _padded(pixels: Pixels, size: tuple[int, int]) -> Pixels:
    """An image in the middle of a black one of `size`."""
    canvas = np.zeros((*size, 3), np.uint8)
    top, left = (round((whole - part) * 0.5) for whole, part in zip(size, pixels.shape, strict=False))
    canvas[top : top + pixels.shape[0], left : left + pixels.shape[1]] = pixels
    return canvas
