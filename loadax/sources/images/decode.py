"""Decodes image files: JPEG by libjpeg-turbo (simplejpeg, `turbo`), all others by Pillow. All release the GIL."""

import io
import struct
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from loadax.sources.images.crop import Box, Crop, OutsideError, part_of
from loadax.sources.images.header import plain_jpeg_size
from loadax.sources.images.resize import (
    Axis,
    Fit,
    Pixels,
    fitted,
    padded,
    resize,
    sample,
)
from loadax.sources.images.turbo import decode_part

# Exceptions of decoding damaged files; Pillow has no common class.
FAILURES = (OSError, SyntaxError, ValueError, IndexError, EOFError, struct.error)

_FORMATS = ("JPEG", "PNG", "WEBP", "BMP")
_JPEG = ("JPEG", "MPO")  # MPO: a JPEG followed by more pictures, as phones write it
_ORIENTATION = 0x0112  # EXIF's tag
_TURNED = 5  # first orientation that swaps height and width
_UPSIDE_DOWN = (3, 4, 7, 8)
_MIRRORED = (2, 3, 6, 7)


@final
@dataclass(frozen=True)
class Rendering:
    """Decodes the bytes of an image file and resizes the image.

    Args:
        size: (height, width) of every result in pixels; None: the size of the stored image, upright.
        fit: Method for images of another aspect ratio.
        fast: Whether to decode and resize JPEGs with less accuracy.
        strict: Whether damaged JPEG data is an error.
        crop: The part of the upright image that is resized.
    """

    size: tuple[int, int] | None
    fit: Fit
    fast: bool
    strict: bool
    crop: Crop = None

    @property
    def output_size(self) -> tuple[int, int] | None:
        """(height, width) of every result; None: it depends on the image."""
        if self.size is None and isinstance(self.crop, Box):
            return self.crop.height, self.crop.width
        return self.size

    def __call__(
        self, content: bytes, rng: np.random.Generator | None = None
    ) -> Pixels:
        """Decodes `content` to RGB, uint8[height, width, 3], rotated by its EXIF orientation.

        Args:
            content: Bytes of an image file.
            rng: Generator of this row, from which a random crop is drawn.

        Raises:
            OutsideError: When the crop reaches outside of the image.
            OSError: Or another of `FAILURES`, when it can't be decoded.
        """
        plain = plain_jpeg_size(content)
        if plain is not None:
            return self._canvas(self._jpeg(content, plain, 1, rng))
        from PIL import Image, UnidentifiedImageError

        try:
            # reads the header only
            with Image.open(io.BytesIO(content), formats=_FORMATS) as image:
                if image.format in _JPEG and image.mode in ("RGB", "L"):
                    stored = image.size[::-1]
                    pixels = self._jpeg(content, stored, _orientation(image), rng)
                else:
                    pixels = self._other(image, rng)
        except (
            UnidentifiedImageError
        ) as error:  # its message contains a memory address
            raise ValueError(
                f"it has no header of {', '.join(_FORMATS[:-1])} or {_FORMATS[-1]}"
            ) from error
        except Image.DecompressionBombError as error:  # not one of `FAILURES`
            raise ValueError(error) from error
        return self._canvas(pixels)

    def _canvas(self, pixels: Pixels) -> Pixels:
        if self.size is None or pixels.shape[:2] == self.size:
            return pixels
        return padded(pixels, self.size)

    def _jpeg(
        self,
        content: bytes,
        stored: tuple[int, int],
        orientation: int,
        rng: np.random.Generator | None,
    ) -> Pixels:
        part = self._stored_part(stored, orientation, rng)
        if self.size is None:
            pixels = np.ascontiguousarray(self._decode(content, stored, 1, part))
            return _upright(pixels, orientation)
        # A centre crop and a symmetric filter commute with the rotation, which is cheaper on the smaller image.
        if orientation >= _TURNED:
            size = self.size[::-1]
        else:
            size = self.size
        down, across = _axes(part, size, self.fit)
        # libjpeg shrinks a JPEG while it decodes, which is much faster. At least a factor of 2 is left to the filter,
        # which hides that libjpeg's own filter is sharper: 48 dB or more.
        scale = min(down.scale, across.scale) / (1 if self.fast else 2)
        factor = next((factor for factor in (8, 4, 2) if scale >= factor), 1)
        down = down.reduced(factor)
        across = across.reduced(factor)
        top, rows = down.read(-(-stored[0] // factor))
        left, columns = across.read(-(-stored[1] // factor))
        read = Box(top, left, rows, columns)
        pixels = self._decode(content, stored, factor, read)
        # The fast method interpolates four stored pixels, so it must not skip any. In a reduced image the filter is
        # cheap.
        quick = self.fast and factor == 1 and max(down.scale, across.scale) <= 2
        resized = (sample if quick else resize)(
            pixels, down.moved(-top), across.moved(-left)
        )
        return _upright(resized, orientation)

    def _decode(
        self, content: bytes, stored: tuple[int, int], factor: int, part: Box
    ) -> Pixels:
        """Decodes a part of a JPEG, in pixels of the image that is smaller by `factor`."""
        from simplejpeg import decode_jpeg

        height, width = (-(-side // factor) for side in stored)
        if part != (0, 0, height, width):
            pixels = decode_part(content, stored, factor, part, self.fast)
            if pixels is not None:
                return pixels
        pixels = decode_jpeg(
            content,
            "RGB",
            fastdct=self.fast,
            fastupsample=self.fast,
            strict=self.strict,
            min_height=height,
            min_width=width,
        )
        return _cut(pixels, part)

    def _stored_part(
        self,
        stored: tuple[int, int],
        orientation: int,
        rng: np.random.Generator | None,
    ) -> Box:
        """The part of the stored image that is the crop of the upright one."""
        if orientation >= _TURNED:
            width, height = stored
        else:
            height, width = stored
        top, left, rows, columns = part_of(self.crop, height, width, rng)
        if orientation in _UPSIDE_DOWN:
            top = height - top - rows
        if orientation in _MIRRORED:
            left = width - left - columns
        if orientation >= _TURNED:
            return Box(left, top, columns, rows)
        return Box(top, left, rows, columns)

    def _other(self, image: Any, rng: np.random.Generator | None) -> Pixels:
        from PIL import Image, ImageOps

        # here, so that its errors are raised: a PNG's EXIF may come after its pixels
        image.load()
        if _orientation(image) != 1:
            image = ImageOps.exif_transpose(image)
        # 16-bit gray, which Pillow would clip to 8 bits
        if image.mode.startswith("I"):
            image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
        elif image.mode == "P" and "transparency" in image.info:
            image = image.convert("RGBA")  # avoids a warning of Pillow
        image = image.convert("RGB")  # transparent pixels get their stored colour
        width, height = image.size
        part = part_of(self.crop, height, width, rng)
        if self.size is None:
            return np.ascontiguousarray(_cut(np.asarray(image), part))
        down, across = _axes(part, self.size, self.fit)
        right = min(across.start + across.extent, width)
        bottom = min(down.start + down.extent, height)
        box = across.start, down.start, right, bottom
        return np.asarray(
            image.resize((across.length, down.length), Image.Resampling.BILINEAR, box)
        )


def failure_text(error: BaseException) -> str:
    """Tells which of `FAILURES` an image has, after its name."""
    if isinstance(error, OutsideError):
        return (
            f"can't be cropped: {error}; pass a box that is in all images, or the share "
            "of both sides that is kept around the centre, such as crop=0.875"
        )
    return f"can't be decoded as an image: {error}"


def _axes(part: Box, size: tuple[int, int], fit: Fit) -> tuple[Axis, Axis]:
    """Maps a part of an image to `size`."""
    down, across = fitted((part.height, part.width), size, fit)
    return down.moved(part.top), across.moved(part.left)


def _cut(pixels: Pixels, part: Box) -> Pixels:
    """A part of an image."""
    rows = slice(part.top, part.top + part.height)
    return pixels[rows, part.left : part.left + part.width]


def _orientation(image: Any) -> int:
    """EXIF orientation of an image, 1 to 8; 1 if the EXIF data is damaged, since the pixels may be fine."""
    try:
        orientation = image.getexif().get(_ORIENTATION)
    except FAILURES:
        return 1
    if orientation in range(1, 9):
        return orientation
    return 1


def _upright(pixels: Pixels, orientation: int) -> Pixels:
    """Rotates and flips stored pixels by the EXIF orientation."""
    if orientation >= _TURNED:
        pixels = pixels.transpose(1, 0, 2)
    if orientation in _UPSIDE_DOWN:
        pixels = pixels[::-1]
    if orientation in _MIRRORED:
        return pixels[:, ::-1]
    return pixels
