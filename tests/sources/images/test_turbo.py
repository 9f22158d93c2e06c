"""Parts of JPEGs by libturbojpeg against simplejpeg, which decodes all of them."""

import threading
from concurrent.futures import ThreadPoolExecutor
from ctypes.util import find_library
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import simplejpeg

import loadax
from loadax import RandomCrop
from loadax.errors import SourceError
from loadax.sources.images import decode, turbo
from loadax.sources.images.crop import Box, crop_of
from loadax.sources.images.decode import Rendering
from loadax.sources.images.resize import Fit
from tests.limits import HANG
from tests.sources.images.test_source import encoded, photograph, write

needs_library = pytest.mark.skipif(turbo.thread_decompressors() is None, reason="libturbojpeg 3 is not installed")

HEIGHT, WIDTH = 157, 203
KINDS: dict[str, Any] = {
    "4:2:0": {"subsampling": "4:2:0"},
    "4:2:2": {"subsampling": "4:2:2"},
    "4:4:4": {"subsampling": "4:4:4"},
    "4:4:0": {"subsampling": 3},
    "progressive": {"progressive": True},
    "restarts": {"restart_marker_rows": 1},
}
PHOTOGRAPH = encoded(photograph("chelsea", 400, 300))


def decoded_whole(*_: Any, **__: Any) -> Any:
    raise AssertionError("all of the image was decoded")


@needs_library
@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("kind", [*KINDS, "gray"])
def test_part_is_that_of_the_whole_image_to_the_bit(kind: str, fast: bool) -> None:
    image = photograph("astronaut", WIDTH, HEIGHT)
    content = encoded(image.convert("L")) if kind == "gray" else encoded(image, **KINDS[kind])
    random = np.random.default_rng(0)
    for factor in (1, 2, 4, 8):
        height, width = -(-HEIGHT // factor), -(-WIDTH // factor)
        smaller: Any = {"min_height": height, "min_width": width}
        whole = simplejpeg.decode_jpeg(content, fastdct=fast, fastupsample=fast, **smaller)
        for _ in range(25):
            top, bottom = np.sort(random.choice(height + 1, 2, replace=False)).tolist()
            left, right = np.sort(random.choice(width + 1, 2, replace=False)).tolist()
            part = Box(top, left, bottom - top, right - left)
            found = turbo.decode_part(content, (HEIGHT, WIDTH), factor, part, fast)
            assert found is not None
            np.testing.assert_array_equal(found, whole[top:bottom, left:right])


@needs_library
@pytest.mark.parametrize("fit", ["crop", "stretch", "pad"])
@pytest.mark.parametrize("crop", [None, 0.5, (20, 30, 100, 200), (0, 0, 90, 41), RandomCrop()])
def test_results_are_the_same_with_and_without_the_library(
    crop: Any, fit: Fit, monkeypatch: pytest.MonkeyPatch
) -> None:
    renderings = [
        Rendering(size, fit, fast, strict=True, crop=crop_of(crop))
        for size in ((224, 224), (30, 50), (8, 8))
        for fast in (False, True)
    ]
    found = [rendering(PHOTOGRAPH, np.random.default_rng(3)) for rendering in renderings]
    monkeypatch.setattr(decode, "decode_part", lambda *_: None)
    expected = [rendering(PHOTOGRAPH, np.random.default_rng(3)) for rendering in renderings]
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


@needs_library
def test_nothing_but_the_part_is_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simplejpeg, "decode_jpeg", decoded_whole)
    for crop in (0.5, (20, 30, 100, 200)):
        Rendering((20, 20), "stretch", False, True, crop_of(crop))(PHOTOGRAPH)
    with pytest.raises(AssertionError, match="all of the image"):
        Rendering((20, 20), "stretch", False, True)(PHOTOGRAPH)


@needs_library
def test_damage_is_noticed_up_to_the_end_of_the_part(tmp_path: Path) -> None:
    middle = len(PHOTOGRAPH) * 2 // 3
    files = {
        "0.jpg": PHOTOGRAPH,
        "1.jpg": PHOTOGRAPH[:middle],  # cut behind the part
        "2.jpg": PHOTOGRAPH[:3000] + b"\xff\xd9" + PHOTOGRAPH[3002:],  # within it
        "3.jpg": PHOTOGRAPH[:middle] + b"\xff\xd9" + PHOTOGRAPH[middle + 2 :],  # behind it
    }
    data: Any = loadax.from_images(write(tmp_path, files), crop=(0, 0, 60, 200))
    np.testing.assert_array_equal(*data.read([0, 3])["image"])
    for row in (1, 2):
        with pytest.raises(SourceError, match=rf"row {row}, .*{row}\.jpg: it can't be decoded as an image"):
            data.read([row])
    assert list(data.source.damaged()) == [1, 2, 3]
    accepted = loadax.from_images(tmp_path, crop=(0, 0, 60, 200), damaged="accept")
    np.testing.assert_array_equal(*accepted.read([0, 1])["image"])


@needs_library
def test_fast_parts_do_not_use_what_earlier_images_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else 4:2:0 after 4:4:4 writes to memory that libjpeg-turbo has freed; that crashes seldom, so count handles."""
    handles = []
    made = turbo.Decompressor

    def counted(library: Any) -> Any:
        handles.append(made(library))
        return handles[-1]

    monkeypatch.setattr(turbo, "Decompressor", counted)
    image = photograph("astronaut", WIDTH, HEIGHT)
    part = Box(60, 70, 50, 40)
    for kind in ("4:4:4", "4:2:0", "progressive", "4:2:0"):
        content = encoded(image, **KINDS[kind])
        whole = simplejpeg.decode_jpeg(content, fastdct=True, fastupsample=True)
        for _ in range(10):
            found = turbo.decode_part(content, (HEIGHT, WIDTH), 1, part, fast=True)
            np.testing.assert_array_equal(found, whole[60:110, 70:110])
    assert len(handles) >= 40


@needs_library
def test_each_thread_has_its_decompressor() -> None:
    expected = turbo.decode_part(PHOTOGRAPH, (300, 400), 1, Box(50, 60, 70, 80), fast=False)
    together = threading.Barrier(4)

    def many(_: int) -> list[Any]:
        together.wait(HANG)
        return [turbo.decode_part(PHOTOGRAPH, (300, 400), 1, Box(50, 60, 70, 80), fast=False) for _ in range(20)]

    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(many, range(4)):
            for pixels in found:
                np.testing.assert_array_equal(pixels, expected)


@pytest.mark.parametrize("paths", [[], ["nowhere/libturbojpeg.so.0", find_library("c")]])
def test_without_the_library_all_is_decoded(paths: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turbo, "library_paths", lambda: paths)
    monkeypatch.setattr(turbo, "thread_decompressors", turbo.thread_decompressors.__wrapped__)
    assert turbo.decode_part(PHOTOGRAPH, (300, 400), 1, Box(50, 60, 70, 80), fast=False) is None
    found = Rendering(None, "crop", False, True, Box(50, 60, 70, 80))(PHOTOGRAPH)
    np.testing.assert_array_equal(found, simplejpeg.decode_jpeg(PHOTOGRAPH)[50:120, 60:140])
