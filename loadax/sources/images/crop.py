"""The part of an image that is decoded: one that is the same for all, or one drawn for each row."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias, final

import numpy as np

from loadax.core.arguments import integer, number, shown
from loadax.errors import ArgumentError

_TRIES = 10
_REMEDY = (
    "(top, left, height, width) in pixels, the share of both sides that is kept "
    "around the centre, such as 0.875, or loadax.RandomCrop()"
)


class OutsideError(ValueError):
    """A crop reaches outside of an image."""


class Box(NamedTuple):
    """A part of an image in pixels of the upright image."""

    top: int
    left: int
    height: int
    width: int


@final
@dataclass(frozen=True)
class RandomCrop:
    """A random resized crop, drawn for each row in each epoch: `decode_images("image", 224, crop=RandomCrop())`.

    A share of the image's area and an aspect ratio are drawn, and a part that has both, anywhere in the image. It is
    then stretched to `size`. If ten draws don't fit into the image, it is the largest centre part whose aspect ratio is
    allowed. The draw depends on the seed, the row and the epoch alone.

    Args:
        scale: Least and largest share of the image's area, in (0, 1]; uniform.
        ratio: Least and largest aspect ratio, width / height; uniform in its logarithm.
        seed: Seed of the draws. None: as the seed of a map that is not given, so 0 outside of `mix`, `zip` and
            `concat`.

    Raises:
        ArgumentError: If a bound is out of range.

    Examples:
        >>> from loadax import RandomCrop
        >>> RandomCrop(scale=(0.25, 1.0))
        RandomCrop(scale=(0.25, 1.0), ratio=(0.75, 1.3333333333333333), seed=None)
    """

    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    seed: int | None = None

    def __post_init__(self) -> None:
        shares = "the least and the largest share of the area, above 0 and at most 1"
        ratios = "the least and the largest width / height, above 0"
        object.__setattr__(self, "scale", _bounds("scale", self.scale, shares))
        object.__setattr__(self, "ratio", _bounds("ratio", self.ratio, ratios))
        if self.scale[1] > 1:
            raise ArgumentError(f"scale={shown(self.scale)}: pass {shares}")
        if self.seed is not None:
            object.__setattr__(self, "seed", integer("seed", self.seed, most=None))

    def draw(self, height: int, width: int, rng: np.random.Generator) -> Box:
        """Draws a part of an image of `height` and `width`."""
        least, most = self.scale
        low, high = map(math.log, self.ratio)
        for _ in range(_TRIES):
            share, shape, down, across = rng.random(4).tolist()
            area = height * width * (least + (most - least) * share)
            ratio = math.exp(low + (high - low) * shape)
            rows = round(math.sqrt(area / ratio))
            columns = round(math.sqrt(area * ratio))
            if 0 < rows <= height and 0 < columns <= width:
                top = int(down * (height - rows + 1))
                left = int(across * (width - columns + 1))
                return Box(top, left, rows, columns)
        rows = min(height, max(1, round(width / self.ratio[0])))
        columns = min(width, max(1, round(height * self.ratio[1])))
        return _centred(height, width, rows, columns)


# What of an image is decoded: a box, a share around the centre, a random part, or all of it
Crop: TypeAlias = Box | float | RandomCrop | None


def crop_of(crop: Any) -> Crop:
    """Validates `crop` of `loadax.from_images`.

    Raises:
        ArgumentError: If it is none of the known values.
    """
    if crop is None or isinstance(crop, RandomCrop):
        return crop
    if isinstance(crop, Sequence) and not isinstance(crop, str) and len(crop) == 4:
        edges = [
            integer(f"crop[{index}]", edge, int(index > 1), remedy=_REMEDY)
            for index, edge in enumerate(crop)
        ]
        return Box(*edges)
    share = number("crop", crop, _REMEDY)
    if not 0 < share <= 1:
        raise ArgumentError(f"crop={shown(crop)}: pass {_REMEDY}")
    return share


def part_of(
    crop: Crop, height: int, width: int, rng: np.random.Generator | None
) -> Box:
    """The part of an image of `height` and `width`; a random one is drawn from `rng`.

    Raises:
        OutsideError: If a box reaches outside of the image.
    """
    if crop is None:
        return Box(0, 0, height, width)
    if isinstance(crop, RandomCrop):
        assert rng is not None
        return crop.draw(height, width, rng)
    if isinstance(crop, Box):
        if crop.top + crop.height > height or crop.left + crop.width > width:
            raise OutsideError(
                f"crop={tuple(crop)} reaches outside of the image, which is "
                f"{height}x{width} pixels (height x width)"
            )
        return crop
    rows = max(1, round(height * crop))
    columns = max(1, round(width * crop))
    return _centred(height, width, rows, columns)


def _centred(height: int, width: int, rows: int, columns: int) -> Box:
    return Box((height - rows) // 2, (width - columns) // 2, rows, columns)


def _bounds(name: str, bounds: Any, wanted: str) -> tuple[float, float]:
    if (
        not isinstance(bounds, Sequence)
        or isinstance(bounds, str)
        or len(bounds) != 2
    ):
        raise ArgumentError(f"{name}={shown(bounds)}: pass {wanted}")
    least = number(f"{name}[0]", bounds[0], wanted)
    most = number(f"{name}[1]", bounds[1], wanted)
    if not 0 < least <= most:
        raise ArgumentError(f"{name}={shown(bounds)}: pass {wanted}")
    return least, most
