"""Cost of decoding and resizing JPEGs, by library: `python benchmarks/decoders.py`.

Sixteen photographs of 500x375 (quality 90, 4:2:0), to 224x224. Each decoder also crops the central square, except those
that only decode.
"""

import io
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from importlib.util import find_spec
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps
from skimage import data

from loadax.sources.images.decode import Rendering

Way: TypeAlias = Callable[[bytes], NDArray[np.uint8]]

SIDE, WIDTH, HEIGHT = 224, 500, 375
ROUNDS = 15
THREADS = 2


def photographs() -> list[bytes]:
    """Four photographs in four variations each."""
    random = np.random.default_rng(0)
    files = []
    for name in ("astronaut", "chelsea", "coffee", "rocket"):
        image = ImageOps.fit(Image.fromarray(getattr(data, name)()), (WIDTH, HEIGHT), Image.Resampling.BICUBIC)
        for variation in range(4):
            varied = ImageOps.mirror(image) if variation % 2 else image
            noisy = np.asarray(varied) + random.normal(0, variation, (HEIGHT, WIDTH, 3))
            file = io.BytesIO()
            Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(file, "JPEG", quality=90, subsampling="4:2:0")
            files.append(file.getvalue())
    return files


def ways() -> dict[str, Way]:
    """Decoders by name, without those whose library is not installed."""
    decoders: dict[str, Way] = {
        "Pillow, as the peers' users write it": pillow,
        "loadax, quality='high'": Rendering((SIDE, SIDE), "crop", fast=False, strict=True),
        "loadax, quality='fast'": Rendering((SIDE, SIDE), "crop", fast=True, strict=True),
        "simplejpeg, Pillow's resize": simplejpeg_pillow,
        "simplejpeg, OpenCV's INTER_AREA": lambda content: opencv_resize(simplejpeg(content), "INTER_AREA"),
        "simplejpeg, OpenCV's INTER_LINEAR": lambda content: opencv_resize(simplejpeg(content), "INTER_LINEAR"),
        "OpenCV, INTER_AREA": lambda content: opencv_resize(opencv(content), "INTER_AREA"),
        "OpenCV, INTER_LINEAR": lambda content: opencv_resize(opencv(content), "INTER_LINEAR"),
        "Pillow, decoding only": lambda content: np.asarray(Image.open(io.BytesIO(content)).convert("RGB")),
        "simplejpeg, decoding only": simplejpeg,
        "simplejpeg, fast DCT and upsampling, decoding only": simplejpeg_fast,
        "OpenCV, decoding only": opencv,
    }
    if find_spec("imagecodecs"):
        decoders["imagecodecs, decoding only"] = imagecodecs
    if find_spec("pyvips"):
        decoders["libvips, thumbnail"] = libvips
    return decoders


def pillow(content: bytes) -> NDArray[np.uint8]:
    """Pillow: decodes, crops and resizes with antialiasing; the reference for the others."""
    with Image.open(io.BytesIO(content)) as image:
        return np.asarray(ImageOps.fit(image.convert("RGB"), (SIDE, SIDE), Image.Resampling.BILINEAR))


def simplejpeg(content: bytes) -> NDArray[np.uint8]:
    """libjpeg-turbo at its most exact."""
    from simplejpeg import decode_jpeg

    return decode_jpeg(content)


def simplejpeg_fast(content: bytes) -> NDArray[np.uint8]:
    """libjpeg-turbo at its fastest."""
    from simplejpeg import decode_jpeg

    return decode_jpeg(content, fastdct=True, fastupsample=True)


def simplejpeg_pillow(content: bytes) -> NDArray[np.uint8]:
    """Decodes with one library and resizes with the other."""
    return np.asarray(ImageOps.fit(Image.fromarray(simplejpeg(content)), (SIDE, SIDE), Image.Resampling.BILINEAR))


def opencv(content: bytes) -> Any:
    """OpenCV, which bundles libjpeg-turbo."""
    import cv2

    return cv2.imdecode(np.frombuffer(content, np.uint8), cv2.IMREAD_COLOR_RGB)


def opencv_resize(pixels: NDArray[np.uint8], how: str) -> Any:
    """The central square, in whole pixels."""
    import cv2

    left = (WIDTH - HEIGHT) // 2
    return cv2.resize(pixels[:, left : left + HEIGHT], (SIDE, SIDE), interpolation=getattr(cv2, how))


def imagecodecs(content: bytes) -> Any:
    """Its bundled libjpeg-turbo."""
    return import_module("imagecodecs").jpeg8_decode(content)


def libvips(content: bytes) -> Any:
    """Shrinks while decoding; the first column excludes its own threads."""
    return import_module("pyvips").Image.thumbnail_buffer(content, SIDE, height=SIDE, crop="centre").numpy()


def psnr(actual: NDArray[np.uint8], expected: NDArray[np.uint8]) -> float:
    """PSNR of a picture in dB."""
    error = np.square(actual.astype(np.float64) - expected).mean()
    return 99.0 if error == 0 else float(10 * np.log10(255**2 / error))


def alone(way: Way, files: list[bytes]) -> float:
    """CPU seconds of this thread per file."""
    began = time.thread_time()
    for content in files:
        way(content)
    return (time.thread_time() - began) / len(files)


def together(way: Way, files: list[bytes], pool: ThreadPoolExecutor) -> float:
    """Wall-clock seconds per file on `THREADS` threads."""

    def share(thread: int) -> None:
        for content in files[thread::THREADS] * 2:
            way(content)

    began = time.perf_counter()
    list(pool.map(share, range(THREADS)))
    return (time.perf_counter() - began) / len(files) / 2


def main() -> None:
    """Prints a table of medians over rounds in which each decoder has a turn."""
    files, decoders = photographs(), ways()
    decoded = {name: [way(content) for content in files] for name, way in decoders.items()}
    expected = decoded["Pillow, as the peers' users write it"]
    cpu: dict[str, list[float]] = {name: [] for name in decoders}
    clock: dict[str, list[float]] = {name: [] for name in decoders}
    with ThreadPoolExecutor(THREADS) as pool:
        for _ in range(ROUNDS):
            for name, way in decoders.items():
                cpu[name].append(alone(way, files))
                clock[name].append(together(way, files, pool))
    print(f"| | ms of one thread | ms on {THREADS} threads | least PSNR, dB |\n|---|---|---|---|")
    for name in decoders:
        quality = "-"
        if decoded[name][0].shape == expected[0].shape:
            quality = f"{min(map(psnr, decoded[name], expected)):.1f}"
        print(
            f"| {name} | {statistics.median(cpu[name]) * 1e3:.2f} | "
            f"{statistics.median(clock[name]) * 1e3:.2f} | {quality} |"
        )


if __name__ == "__main__":
    main()
