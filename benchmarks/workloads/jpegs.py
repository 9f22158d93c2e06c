"""A folder of JPEG files: photographs of 500x375, to be fed as 224x224."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from workloads.base import Data, Rows

SIZE = 224
_SHAPE = (375, 500)
_CLASSES = 8
_BITS = 12  # of a row's number, which is drawn into its picture
_BLOCK = 24  # pixels of the side of a bit
_LEAST = 25.0  # dB: below, it is another picture


def pillow(path: str) -> NDArray[np.uint8]:
    """What a user writes with Pillow: the middle of the picture, cut to a square and resized with antialiasing."""
    from PIL import Image, ImageOps

    with Image.open(path) as image:
        return np.asarray(ImageOps.fit(image.convert("RGB"), (SIZE, SIZE), Image.Resampling.BILINEAR))


def psnr(one: NDArray[np.uint8], other: NDArray[np.uint8]) -> float:
    """Of two pictures, in dB."""
    error = np.square(one.astype(np.float64) - other).mean()
    return 99.0 if error == 0 else float(10 * np.log10(255**2 / error))


@final
class Pictures:
    """The pictures as Pillow reads them."""

    def __init__(self, paths: list[str]):
        self._paths = paths

    def row(self, row: int) -> Any:
        """One of them."""
        return {"image": pillow(self._paths[row]), "label": np.int32(label(self._paths[row]))}

    def batch(self, rows: Rows) -> Any:
        """Many, one after the other."""
        examples = [self.row(row) for row in rows.tolist()]
        return {name: np.stack([each[name] for each in examples]) for name in ("image", "label")}


def label(path: str) -> int:
    """The number of the class, which its folder is called by."""
    return int(Path(path).parent.name)


@final
@dataclass(frozen=True)
class Jpegs:
    """Photographs by classes."""

    name: str
    rows: int
    batch_size: int

    def __str__(self) -> str:
        return (
            f"{self.name}: {self.rows:,} JPEG files of {_SHAPE[1]}x{_SHAPE[0]}, to {SIZE}x{SIZE}; "
            f"batch {self.batch_size}, shuffled"
        )

    def folder(self, folder: Path) -> Path:
        """Of the classes."""
        return folder / "jpegs"

    def paths(self, folder: Path) -> list[str]:
        """Of the files, by their rows."""
        return [str(self.folder(folder) / str(row % _CLASSES) / f"{row:05}.jpg") for row in range(self.rows)]

    def write(self, folder: Path) -> None:
        """Parts of four photographs, large enough that a file weighs what a photograph does.

        The row's number is drawn in the middle.
        """
        from PIL import Image
        from skimage import data

        random = np.random.default_rng(0)
        photographs = [Image.fromarray(getattr(data, name)()) for name in ("astronaut", "coffee", "chelsea", "rocket")]
        paths = self.paths(folder)
        for number in range(_CLASSES):
            (self.folder(folder) / str(number)).mkdir(parents=True)
        for row in range(self.rows):
            photograph = photographs[row % len(photographs)]
            width = int(random.uniform(0.7, 1) * min(photograph.width, photograph.height * 4 / 3))
            height = width * 3 // 4
            left, top = (
                int(random.integers(0, most + 1)) for most in (photograph.width - width, photograph.height - height)
            )
            box = (left, top, left + width, top + height)
            picture = np.array(photograph.resize(_SHAPE[::-1], Image.Resampling.BICUBIC, box))
            for bit in range(_BITS):
                picture[_block(_SHAPE, _BLOCK, bit)] = 255 * (row >> bit & 1)
            Image.fromarray(picture).save(paths[row], quality=90, subsampling="4:2:0")

    def data(self, folder: Path) -> Data:
        """The files, by their numbers."""
        return Pictures(self.paths(folder))

    def rows_of(self, batch: Any) -> Rows:
        """By the bits in the middle of the picture."""
        images = np.asarray(batch["image"])
        block = _BLOCK * SIZE // _SHAPE[0]
        bits = [images[:, *_block((SIZE, SIZE), block, bit)].mean((1, 2, 3)) > 127 for bit in range(_BITS)]
        return np.sum([found.astype(np.int64) << bit for bit, found in enumerate(bits)], 0)

    def compare(self, batch: Any, expected: Any) -> dict[str, float]:
        """How near the worst of them is to Pillow's."""
        if not np.array_equal(np.asarray(batch["label"]), expected["label"]):
            raise ValueError("a batch has other labels than its files")
        least = min(map(psnr, np.asarray(batch["image"]), expected["image"]))
        if least < _LEAST:
            raise ValueError(f"a picture is {least:.1f} dB from Pillow's; it is another one")
        return {"psnr": least}


def _block(shape: tuple[int, int], side: int, bit: int) -> tuple[slice, slice]:
    """Place of a bit: two rows of six around the middle."""
    top = shape[0] // 2 + (bit // 6 - 1) * side
    left = shape[1] // 2 + (bit % 6 - 3) * side
    return slice(top, top + side), slice(left, left + side)


FULL = (Jpegs("jpegs", 1024, 64),)
QUICK = (Jpegs("jpegs", 128, 32),)
