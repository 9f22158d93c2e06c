"""Parts of images against Pillow, which decodes all of an image and cuts it, and draws of parts against their law."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageOps

import loadax
from loadax import MaskErrors, RandomCrop
from loadax.errors import ArgumentError, SourceError
from loadax.sources.images.crop import Box, crop_of, part_of
from loadax.sources.images.decode import Rendering
from loadax.sources.images.header import plain_jpeg_size
from tests.sources.images.test_source import BILINEAR, PILLOW, VARIANTS, encoded, opened, photograph, psnr, write

BOX = Box(11, 23, 50, 40)


def rendered(content: bytes, size: Any, crop: Any, fit: Any = "stretch", fast: bool = False) -> Any:
    return Rendering(size, fit, fast, strict=True, crop=crop_of(crop))(content)


# ---- the size of a JPEG, without Pillow


@pytest.mark.parametrize("name", VARIANTS)
def test_plain_jpeg_size_is_what_pillow_says(name: str) -> None:
    image = opened(VARIANTS[name])
    plain = image.format == "JPEG" and image.mode in ("RGB", "L")
    assert plain_jpeg_size(VARIANTS[name]) == (image.size[::-1] if plain else None)


def test_jpegs_with_metadata_are_left_to_pillow() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    image = photograph("coffee", 40, 30)
    assert plain_jpeg_size(encoded(image, exif=exif)) is None
    assert plain_jpeg_size(encoded(image, xmp=b"<x:xmpmeta/>")) is None
    assert plain_jpeg_size(encoded(image, comment=b"two" * 9, icc_profile=bytes(500))) == (30, 40)


def test_the_start_of_a_jpeg_has_its_size_or_none() -> None:
    content = encoded(photograph("coffee", 40, 30))
    found = [plain_jpeg_size(content[:length]) for length in range(len(content))]
    assert {*found} == {None, (30, 40)}
    assert found == sorted(found, key=lambda size: size is not None)


# ---- boxes and centre shares


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.filterwarnings("ignore:Palette images with Transparency")  # Pillow's, of the oracle
def test_box_is_cut_out_of_the_whole_image(name: str, tmp_path: Path) -> None:
    image = opened(VARIANTS[name]).convert("RGB")
    whole = np.asarray(image)[11:61, 23:63]
    data = loadax.from_images(write(tmp_path, {f"{row}/{name}": VARIANTS[name] for row in range(2)}), crop=BOX)
    assert data.source.spec["image"].shape == (50, 40, 3)  # type: ignore[index]
    np.testing.assert_array_equal(data.read([1, 0])["image"], [whole, whole])
    small = rendered(VARIANTS[name], (20, 30), BOX)
    assert psnr(small, np.asarray(image.resize((30, 20), BILINEAR, (23, 11, 63, 61)))) > 40


@pytest.mark.parametrize("orientation", range(1, 9))
def test_box_is_that_of_the_upright_image(orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    content = encoded(photograph("rocket", 301, 200), exif=exif)
    upright = ImageOps.exif_transpose(opened(content))
    part = upright.crop((23, 11, 63, 61))
    np.testing.assert_array_equal(rendered(content, None, BOX), np.asarray(part))
    for fit, pillow in PILLOW.items():
        found = rendered(content, (36, 24), BOX, fit)
        assert psnr(found, np.asarray(pillow(part, (24, 36)))) > 40, fit


@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("side", [300, 700, 1100])
def test_parts_of_large_photographs_are_decoded_smaller_and_alike(side: int, fast: bool) -> None:
    """At 64 pixels these are decoded at 1, 1/2, 1/4 and 1/8 of their size: 40 dB to Pillow's resize, 30 if fast."""
    image = photograph("astronaut", 1500, 1201)
    content = encoded(image, quality=95)
    for top, left in ((0, 0), (97, 355), (1201 - side, 1500 - side)):
        part = opened(content).crop((left, top, left + side, top + side))
        found = rendered(content, (64, 64), (top, left, side, side), fast=fast)
        assert psnr(found, np.asarray(part.resize((64, 64), BILINEAR))) > (30 if fast else 40)


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_share_is_kept_around_the_centre(kind: str) -> None:
    content = encoded(photograph("chelsea", 100, 81), kind)
    whole = np.asarray(opened(content))
    np.testing.assert_array_equal(rendered(content, None, 0.5), whole[20:60, 25:75])
    np.testing.assert_array_equal(rendered(content, None, 1), whole)
    np.testing.assert_array_equal(rendered(content, None, 1e-9), whole[40:41, 49:50])


def test_box_outside_of_an_image_is_named_and_masked(tmp_path: Path) -> None:
    sizes = {"0.png": (60, 50), "1.jpg": (59, 50), "2.jpg": (60, 49), "3.jpg": (60, 50)}
    write(tmp_path, {name: encoded(photograph("coffee", *size), "PNG") for name, size in sizes.items()})
    data = loadax.from_images(tmp_path, 8, crop=(40, 50, 10, 10))
    assert data.read([0, 3])["image"].shape == (2, 8, 8, 3)
    with pytest.raises(
        SourceError,
        match=r"row 1, .*1\.jpg: it can't be cropped: crop=\(40, 50, 10, 10\) reaches outside of the image, which is "
        r"50x59 pixels \(height x width\); pass a box that is in all images, or the share of both sides that is kept "
        r"around the centre, such as crop=0\.875; or leave it out: dataset\.exclude\(\[1\]\)",
    ):
        data.read([1])
    source: Any = data.source
    assert list(source.damaged()) == [1, 2]
    assert data.exclude([1, 2]).read([0, 1])["image"].shape == (2, 8, 8, 3)
    for crop in ((39, 49, 10, 10), 0.875):
        assert loadax.from_images(tmp_path, 8, crop=crop).read(range(4))["image"].shape == (4, 8, 8, 3)
    (batch,) = loadax.Dataloader(data, 8, num_epochs=1, on_error=MaskErrors(), remainder="pad")
    assert batch["mask"].tolist() == [True, False, False, True] + [False] * 4
    assert batch["image"][1:3].max() == 0


# ---- draws


@pytest.mark.parametrize(("height", "width"), [(375, 500), (500, 333), (10, 7), (1, 1)])
def test_draws_are_inside_and_keep_their_bounds(height: int, width: int) -> None:
    crop = RandomCrop(scale=(0.2, 0.9), ratio=(0.5, 2))
    rng = np.random.default_rng(0)
    for _ in range(300):
        top, left, rows, columns = crop.draw(height, width, rng)
        assert 0 <= top <= top + rows <= height
        assert 0 <= left <= left + columns <= width
        assert rows > 0
        assert columns > 0
        if height > 100:  # sides are whole pixels
            assert 0.19 < rows * columns / (height * width) < 0.91
            assert 0.49 < columns / rows < 2.04


def test_draws_are_uniform_in_area_and_place() -> None:
    """In a square image no draw of these bounds is refused."""
    rng = np.random.default_rng(1)
    crop = RandomCrop(scale=(0.1, 0.5), ratio=(0.5, 2))
    drawn = np.array([crop.draw(1000, 1000, rng) for _ in range(4000)])
    top, left, rows, columns = drawn.T
    shares = {
        "area": (rows * columns / 1e6 - 0.1) / 0.4,
        "ratio": np.log(columns / rows) / np.log(4) + 0.5,
        "top": top / (1000 - rows),
        "left": left / (1000 - columns),
    }
    for name, share in shares.items():
        counts = np.histogram(share, 10, (-0.01, 1.01))[0]
        assert np.abs(counts - 400).max() < 100, name


def test_image_of_another_shape_gives_its_largest_centre_part() -> None:
    crop = RandomCrop(scale=(1.0, 1.0), ratio=(0.5, 2))
    rng = np.random.default_rng(0)
    assert crop.draw(100, 1000, rng) == (0, 400, 100, 200)
    assert crop.draw(1000, 100, rng) == (400, 0, 200, 100)
    assert crop.draw(100, 150, rng) == (0, 0, 100, 150)


def test_random_part_is_drawn_from_the_generator_that_is_passed() -> None:
    crop = RandomCrop()
    content = encoded(photograph("coffee", 300, 200))
    box = crop.draw(200, 300, np.random.default_rng(7))
    found = Rendering((50, 60), "stretch", False, True, crop)(content, np.random.default_rng(7))
    np.testing.assert_array_equal(found, rendered(content, (50, 60), box))
    assert part_of(crop, 200, 300, np.random.default_rng(7)) == box


# ---- arguments


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"crop": 0}, r"crop=0: pass \(top, left, height, width\) in pixels, the share of both sides"),
        ({"crop": 1.5}, r"crop=1\.5: pass \(top"),
        ({"crop": True}, r"crop=True: pass \(top"),
        ({"crop": "centre"}, r"crop='centre': pass \(top"),
        ({"crop": (1, 2, 3)}, r"crop=\(1, 2, 3\): pass \(top"),
        ({"crop": (0, 0, 0, 5)}, r"crop\[2\]=0: pass \(top"),
        ({"crop": (-1, 0, 5, 5)}, r"crop\[0\]=-1: pass \(top"),
        ({"crop": (0, 0, 5.5, 5)}, r"crop\[2\]=5\.5: pass \(top"),
        ({"crop": RandomCrop()}, r"crop=RandomCrop\(…\) gives parts of different sizes; pass size=\(height, width\)"),
        ({"crop": RandomCrop(), "size": 8, "fit": "pad"}, "fit='pad': a RandomCrop is stretched to size; leave fit"),
    ],
)
def test_crops_that_make_no_sense(arguments: Any, message: str, tmp_path: Path) -> None:
    write(tmp_path, {"0.png": encoded(photograph("coffee", 60, 50), "PNG")})
    with pytest.raises(ArgumentError, match=message):
        loadax.from_images(tmp_path, **arguments)
    with pytest.raises(ArgumentError, match=message):
        loadax.from_source([b""]).decode_images(**arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"scale": (0, 1)}, r"scale=\(0, 1\): pass the least and the largest share of the area"),
        ({"scale": (0.5, 0.1)}, r"scale=\(0\.5, 0\.1\): pass"),
        ({"scale": (0.5, 1.1)}, r"scale=\(0\.5, 1\.1\): pass"),
        ({"scale": 0.5}, r"scale=0\.5: pass"),
        ({"scale": ("a", 1)}, r"scale\[0\]='a': pass"),
        ({"ratio": (0, 1)}, r"ratio=\(0, 1\): pass the least and the largest width / height"),
        ({"ratio": (1, float("inf"))}, r"ratio\[1\]=inf: pass"),
    ],
)
def test_random_crops_that_make_no_sense(arguments: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        RandomCrop(**arguments)


# ---- as a folder


def test_folder_with_a_random_crop_has_classes_places_and_damage(tmp_path: Path) -> None:
    file = io.BytesIO()
    photograph("rocket", 200, 150).save(file, "JPEG")
    content = file.getvalue()
    write(tmp_path, {"a/0.jpg": content, "b/1.jpg": content[: len(content) // 2], "b/2.jpg": content})
    data: Any = loadax.from_images(tmp_path, 16, crop=RandomCrop())
    assert data.source.classes == ("a", "b")
    assert data.read([0, 2])["image"].shape == (2, 16, 16, 3)
    assert data.read([0, 1, 2][::2])["label"].tolist() == [0, 1]
    assert data.source.damaged().keys() == {1}
    with pytest.raises(
        SourceError, match=r"row 1 \(.*b/1\.jpg\): leaf 'image' can't be decoded as an image: .*exclude"
    ):
        data.read([0, 1])
    assert repr(data).startswith(f"Dataset(3 rows of encoded images of 2 classes in {tmp_path}")
    (batch,) = loadax.Dataloader(data, 8, num_epochs=1, on_error=MaskErrors(), remainder="pad")
    assert batch["mask"].tolist() == [True, False, True] + [False] * 5
