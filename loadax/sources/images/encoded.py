"""EncodedImages: decodes the bytes of images, for `Dataset.decode_images`."""

from dataclasses import dataclass
from typing import Any, ClassVar, final

import numpy as np

from loadax.protocols import ArraySpec
from loadax.sources.images.crop import Box, RandomCrop
from loadax.sources.images.decode import FAILURES, Rendering, failure_text
from loadax.sources.images.resize import Pixels


@final
@dataclass(frozen=True)
class EncodedImages:
    """Decodes the bytes of an image.

    Args:
        rendering: Decoder.
    """

    rendering: Rendering
    verb: ClassVar[str] = "decode_images"
    noun: ClassVar[str] = "an image"
    made_of: ClassVar[str] = "pixels"
    failures: ClassVar[tuple[type[Exception], ...]] = FAILURES

    @property
    def spec(self) -> ArraySpec | None:
        """The spec of an image; None: it depends on the file."""
        size = self.rendering.output_size
        if size is None:
            return None
        return ArraySpec((*size, 3), np.dtype(np.uint8))

    @property
    def is_random(self) -> bool:
        """Whether crops are drawn."""
        return isinstance(self.rendering.crop, RandomCrop)

    @property
    def seed(self) -> int | None:
        """Seed of random crops; None: it is not given."""
        crop = self.rendering.crop
        if isinstance(crop, RandomCrop):
            return crop.seed
        return None

    def arguments(self) -> dict[str, Any]:
        """Arguments to show."""
        crop: Any = self.rendering.crop
        if isinstance(crop, Box):
            crop = tuple(crop)
        return {"size": self.rendering.size, "crop": crop}

    def __call__(self, content: bytes, rng: np.random.Generator | None) -> Pixels:
        """Decodes an image; see `Rendering`."""
        return self.rendering(content, rng)

    def failure_text(self, error: Exception) -> str:
        """Tells why an image can't be decoded, after its name."""
        return failure_text(error)

    def unequal(self, found: tuple[int, ...], first: tuple[int, ...]) -> str:
        """Tells that an image has another size than the first one, after its name."""
        return (
            f"is {found[0]}x{found[1]} pixels (height x width), but the first is "
            f"{first[0]}x{first[1]}; pass size=(height, width) to decode_images, or crop "
            "or resize them in a map"
        )
