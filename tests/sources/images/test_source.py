"""Folders of images against Pillow, which decodes and resizes them slowly and obviously."""

import io
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image, ImageOps

import loadax
from loadax.errors import ArgumentError, SourceError, UnsupportedError
from loadax.protocols import Location
from loadax.sources.images.decode import Rendering
from loadax.sources.images.folder import open_images
from loadax.sources.images.resize import Axis, Fit, fitted, resize, weights
from loadax.sources.images.source import ImageFiles
from loadax.testing import check_source
from tests.servers.faults import Fault, FaultProxy
from tests.servers.s3 import S3Server

pytest_plugins = ["tests.servers.fixtures"]

PHOTOGRAPHS = ("astronaut", "chelsea", "coffee", "rocket")
BILINEAR = Image.Resampling.BILINEAR
PILLOW: dict[Fit, Callable[[Image.Image, tuple[int, int]], Image.Image]] = {
    "crop": lambda image, size: ImageOps.fit(image, size, BILINEAR),
    "stretch": lambda image, size: image.resize(size, BILINEAR),
    "pad": lambda image, size: ImageOps.pad(image, size, BILINEAR),
}


def photograph(name: str, width: int = 0, height: int = 0) -> Image.Image:
    from skimage import data

    image = Image.fromarray(getattr(data, name)())
    return ImageOps.fit(image, (width, height), Image.Resampling.BICUBIC) if width else image


def encoded(image: Image.Image, kind: str = "JPEG", **how: Any) -> bytes:
    file = io.BytesIO()
    if kind == "JPEG":
        how = {"quality": 90, **how}
    image.save(file, kind, **how)
    return file.getvalue()


def opened(content: bytes) -> Image.Image:
    return Image.open(io.BytesIO(content))


def psnr(one: NDArray[Any], other: NDArray[Any]) -> float:
    error = np.square(one.astype(np.float64) - other).mean()
    return 99.0 if error == 0 else float(10 * np.log10(255**2 / error))


def write(folder: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


def noise(seed: int, height: int = 20, width: int = 30) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8))


@pytest.fixture
def animals(tmp_path: Path) -> Path:
    """Two classes of small images, whose rows are told apart by their pixels."""
    return write(
        tmp_path,
        {f"{name}/{i}.png": encoded(noise(i + 10 * n), "PNG") for n, name in enumerate("ab") for i in range(5)},
    )


# ---- which files there are


def test_labels_are_folders_sorted_by_name_and_rows_are_files_sorted_by_name(tmp_path: Path) -> None:
    names = ["dog/2.png", "dog/10.png", "cat/deep/er/1.png", "cat/z.PNG", "Zebra/ä.png"]
    write(tmp_path, {name: encoded(noise(i), "PNG") for i, name in enumerate(names)})
    data = loadax.from_images(tmp_path)
    expected = ["Zebra/ä.png", "cat/deep/er/1.png", "cat/z.PNG", "dog/10.png", "dog/2.png"]
    assert isinstance(data, loadax.Dataset)
    source: Any = data.source
    assert source.classes == ("Zebra", "cat", "dog")
    assert [source.locate(row) for row in range(5)] == [[Location(str(tmp_path / name))] for name in expected]
    batch = data.read(range(5))
    assert batch["label"].tolist() == [0, 1, 1, 2, 2]
    assert batch["label"].dtype == np.int32
    for row, name in enumerate(expected):
        np.testing.assert_array_equal(batch["image"][row], np.asarray(noise(names.index(name))))
    assert repr(data) == f"Dataset(5 rows of 20x30 images of 3 classes in {tmp_path})"


def test_hidden_files_other_files_and_folders_of_systems_are_left_out(tmp_path: Path) -> None:
    left_out = ["a/.2.png", "a/notes.txt", ".cache/3.png", "a/.deep/4.png", ".5.png", "labels.csv", ".x/1.png"]
    left_out += ["__MACOSX/cat/1.png", "_temporary/1.png"]
    write(tmp_path, dict.fromkeys(["a/1.png", "_background_/_DSC1.JPG", *left_out], encoded(noise(1), "PNG")))
    source: Any = loadax.from_images(tmp_path).source
    assert (source.classes, len(source)) == (("_background_", "a"), 2)


def test_a_folder_without_images_is_a_class_too(tmp_path: Path) -> None:
    """Else a validation set that lacks a class would number those behind it differently."""
    write(tmp_path, {"a/1.png": encoded(noise(1), "PNG"), "c/1.png": encoded(noise(2), "PNG")})
    (tmp_path / "b").mkdir()
    data = loadax.from_images(tmp_path)
    assert data.read([0, 1])["label"].tolist() == [0, 2]


def test_a_flat_folder_is_one_class_without_a_name(tmp_path: Path) -> None:
    write(tmp_path, {f"{i}.png": encoded(noise(i), "PNG") for i in range(3)})
    (tmp_path / "empty").mkdir()
    data = loadax.from_images(tmp_path.as_uri())
    source: Any = data.source
    assert source.classes == ("",)
    assert data.read([2, 0])["label"].tolist() == [0, 0]
    np.testing.assert_array_equal(data[2]["image"], np.asarray(noise(2)))
    assert repr(source) == f"20x30 images in {tmp_path}"


def test_a_million_names_are_small() -> None:
    names = [[f"n{label:04}_{number:08}.JPEG" for number in range(1000)] for label in range(100)]
    files = ImageFiles("/data", [f"n{label:04}" for label in range(100)], names)
    assert len(files) == 100_000
    assert files.path(99_999) == "/data/n0099/n0099_00000999.JPEG"
    assert files.labels(np.array([0, 999, 1000, 99_999])).tolist() == [0, 0, 1, 99]
    assert len(pickle.dumps(files)) < 100_000 * 30  # 19 of them are the name


def test_links_are_followed_and_those_that_lead_back_refused(tmp_path: Path) -> None:
    write(tmp_path, {"elsewhere/1.png": encoded(noise(1), "PNG"), "data/a/2.png": encoded(noise(2), "PNG")})
    (tmp_path / "data/b").symlink_to(tmp_path / "elsewhere")
    assert loadax.from_images(tmp_path / "data").read([1])["label"].tolist() == [1]
    for link, target, named in (("data/a/back", "data/a", "a/back"), ("elsewhere/up", "data", "b/up")):
        (tmp_path / link).symlink_to(tmp_path / target)
        message = rf"data/{named} links to one of its parent folders, .* remove the link"
        with pytest.raises(SourceError, match=message):
            loadax.from_images(tmp_path / "data")
        (tmp_path / link).unlink()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda folder: folder / "nowhere", r"nowhere: there is no such folder; pass a folder of images"),
        (
            lambda folder: write(folder, {"x.png": b""}) / "x.png",
            r"x\.png: it can't be listed: .*; pass a folder of images",
        ),
        (lambda folder: write(folder, {"a/x.txt": b""}), r"has no images; pass a folder of files that end in \.jpg, "),
        (
            lambda folder: write(folder, {"a/x.png": b"", "y.png": b""}),
            r"both in folders \(a, …\) and outside \(y\.png, …\), so",
        ),
    ],
)
def test_folders_that_are_none(make: Callable[[Path], Path], message: str, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=message):
        loadax.from_images(make(tmp_path))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"size": 0}, r"size=0: pass \(height, width\) in pixels, or one int"),
        ({"size": (3, -1)}, r"size\[1\]=-1: pass"),
        ({"size": (3, 4, 3)}, r"size=\(3, 4, 3\): pass"),
        ({"size": True}, r"size=True: pass"),
        ({"size": "224"}, r"size='224': pass"),
        ({"fit": "squash"}, r"fit='squash': pass 'crop', 'stretch' or 'pad'"),
        ({"quality": "good"}, r"quality='good': pass 'high' or 'fast'"),
        ({"damaged": "skip"}, r"damaged='skip': pass 'error' or 'accept'"),
    ],
)
def test_arguments_that_make_no_sense(arguments: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=message):
        loadax.from_images(tmp_path, **arguments)


@pytest.mark.parametrize("module", ["PIL.Image", "cv2", "simplejpeg"])
def test_a_library_that_is_missing(module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(
        UnsupportedError,
        match=rf"images needs .*, which can't be imported \(import of {module} .*\): "
        r"pip install opencv-python-headless pillow simplejpeg",
    ):
        loadax.from_images(tmp_path)


# ---- what is in them


def variants() -> dict[str, bytes]:
    """Files of all kinds, by the ending that they have."""
    image = photograph("coffee", 100, 75)
    see_through = image.copy()
    see_through.putalpha(Image.linear_gradient("L").resize(image.size))
    palette = image.quantize(50)
    clear = palette.copy()
    clear.info["transparency"] = bytes(range(50))
    return {
        "420.jpg": encoded(image, subsampling="4:2:0"),
        "422.jpg": encoded(image, subsampling="4:2:2"),
        "444.jpg": encoded(image, subsampling="4:4:4"),
        "progressive.jpeg": encoded(image, progressive=True),
        "gray.jpg": encoded(image.convert("L")),
        "cmyk.jpg": encoded(image.convert("CMYK")),
        "rgb.jpg": encoded(image, keep_rgb=True),
        "trailing.jpg": encoded(image) + b"something behind it",
        "photo.png": encoded(image, "PNG"),
        "gray.png": encoded(image.convert("L"), "PNG"),
        "bits.png": encoded(image.convert("1"), "PNG"),
        "alpha.png": encoded(see_through, "PNG"),
        "gray_alpha.png": encoded(see_through.convert("LA"), "PNG"),
        "palette.png": encoded(palette, "PNG"),
        "clear.png": encoded(clear, "PNG", transparency=bytes(range(50))),
        "photo.webp": encoded(image, "WEBP", quality=80),
        "lossless.webp": encoded(see_through, "WEBP", lossless=True, exact=True),
        "photo.bmp": encoded(image, "BMP"),
        "png.jpg": encoded(image, "PNG"),  # ImageNet has such a file
    }


VARIANTS = variants()


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.filterwarnings("ignore:Palette images with Transparency")  # Pillow's, of the oracle
def test_every_kind_of_file_is_what_pillow_says(name: str, tmp_path: Path) -> None:
    expected = np.asarray(opened(VARIANTS[name]).convert("RGB"))
    data = loadax.from_images(write(tmp_path, {name: VARIANTS[name]}))
    np.testing.assert_array_equal(data[0]["image"], expected)
    small = loadax.from_images(tmp_path, size=(30, 50), fit="stretch")[0]["image"]
    assert psnr(small, np.asarray(opened(VARIANTS[name]).convert("RGB").resize((50, 30), BILINEAR))) > 40


def test_gray_of_16_bits_keeps_its_upper_8(tmp_path: Path) -> None:
    values = np.arange(256 * 256, dtype=np.uint16).reshape(256, 256)
    write(tmp_path, {"x.png": encoded(Image.fromarray(values), "PNG")})
    np.testing.assert_array_equal(loadax.from_images(tmp_path)[0]["image"], np.repeat((values >> 8)[..., None], 3, -1))


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_images_are_turned_as_exif_says(orientation: int, kind: str, tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    content = encoded(photograph("rocket", 401, 250), kind, exif=exif)
    upright = ImageOps.exif_transpose(opened(content))
    np.testing.assert_array_equal(
        loadax.from_images(write(tmp_path, {"x.jpg": content}))[0]["image"], np.asarray(upright)
    )
    for fit, pillow in PILLOW.items():
        for size in ((30, 50), (100, 40)):
            image = loadax.from_images(tmp_path, size, fit=fit)[0]["image"]
            assert psnr(image, np.asarray(pillow(upright, size[::-1]))) > 40, (fit, size)


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
@pytest.mark.parametrize(
    "exif", [b"Exif\0\0no TIFF at all", b"Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x63\0\0\0\0\0\0"]
)
def test_an_image_whose_exif_makes_no_sense_is_taken_as_it_is(exif: bytes, kind: str, tmp_path: Path) -> None:
    image = photograph("coffee", 60, 40)
    content = encoded(image, kind, exif=exif)
    data = loadax.from_images(write(tmp_path, {"x.jpg": content}))
    np.testing.assert_array_equal(data[0]["image"], np.asarray(opened(content)))


# ---- how they are resized


SIZES = ((224, 224), (225, 225), (64, 64), (48, 32), (200, 330), (300, 300), (373, 373), (500, 512))
SIDES = (40, 64, 100, 200, 224, 300, 370)


@pytest.mark.parametrize("name", PHOTOGRAPHS)
@pytest.mark.parametrize(
    ("stored", "fits", "sizes", "fast", "least"),
    [
        ((500, 375), tuple(PILLOW), SIZES, False, 40),
        ((0, 0), ("crop",), tuple((side, side) for side in SIDES[:-1]), False, 40),  # decoded at a smaller scale
        ((500, 375), ("crop",), tuple((side, side) for side in SIDES), True, 30),
    ],
)
def test_psnr_of_resized_photographs_to_pillow(
    name: str, stored: tuple[int, int], fits: Any, sizes: Any, fast: bool, least: int
) -> None:
    content = encoded(photograph(name, *stored), quality=95 if stored == (0, 0) else 90, subsampling="4:2:0")
    for fit in fits:
        for size in sizes:
            found = Rendering(size, fit, fast=fast, strict=True)(content)
            assert found.shape == (*size, 3)
            assert psnr(found, np.asarray(PILLOW[fit](opened(content), size[::-1]))) > least, (fit, size)


@pytest.mark.parametrize("kind", ["PNG", "WEBP", "BMP"])
@pytest.mark.parametrize("fit", PILLOW)
@pytest.mark.parametrize("size", [(31, 44), (100, 90), (7, 5)])
def test_other_formats_are_resized_by_pillow_itself(size: tuple[int, int], fit: Fit, kind: str) -> None:
    content = encoded(photograph("chelsea", 77, 100), kind)
    expected = np.asarray(PILLOW[fit](opened(content).convert("RGB"), size[::-1]))
    np.testing.assert_array_equal(Rendering(size, fit, fast=False, strict=True)(content), expected)


def test_any_part_at_any_scale_is_what_pillow_makes_of_it() -> None:
    random = np.random.default_rng(0)
    image = photograph("astronaut")
    pixels = np.asarray(image)
    for _ in range(200):
        axes = []
        for _ in range(2):
            extent = random.uniform(60, 400)
            axes.append(Axis(random.uniform(0, 512 - extent), extent, int(random.integers(40, 500))))
        down, across = axes
        box = (across.start, down.start, across.start + across.extent, down.start + down.extent)
        expected = np.asarray(image.resize((across.length, down.length), BILINEAR, box))
        found = resize(pixels, down, across)
        assert found.shape == expected.shape
        assert psnr(found, expected) > 36, axes


def test_every_size_that_fits_gives_that_size() -> None:
    random = np.random.default_rng(1)
    for _ in range(500):
        height, width = random.integers(1, 60, 2).tolist()
        down, across = random.integers(1, 40, 2).tolist()
        pixels = np.full((height, width, 3), 9, np.uint8)
        for fit, pillow in PILLOW.items():
            axes = fitted((height, width), (down, across), fit)
            try:
                expected = np.asarray(pillow(Image.fromarray(pixels), (across, down)))
            except ValueError:  # Pillow before 13 refuses the flattest ones
                continue
            if fit == "pad":
                seen = expected[..., 0] > 0
                expected = expected[seen.any(1)][:, seen.any(0)]
            if expected.size:  # of the flattest ones Pillow leaves nothing
                np.testing.assert_array_equal(resize(pixels, *axes), expected)


@pytest.mark.parametrize("scale", [0.3, 1.0, 1.1, 1.67, 2.0, 5.5, 40.0])
@pytest.mark.parametrize("shift", [-0.4, 0.0, 0.5])
def test_the_filter_keeps_the_brightness_and_lies_where_it_should(scale: float, shift: float) -> None:
    found = weights(scale, shift)
    places = np.arange(len(found)) - len(found) // 2
    assert len(found) % 2 == 1
    assert found.sum() == pytest.approx(1, abs=1e-5)
    if scale > 1.2 or not shift:
        assert (found * places).sum() == pytest.approx(shift, abs=0.04)


def test_what_has_the_size_already_is_left_as_it_is() -> None:
    content = encoded(photograph("coffee", 60, 40))
    for fit in PILLOW:
        np.testing.assert_array_equal(
            Rendering((40, 60), fit, fast=False, strict=True)(content), np.asarray(opened(content))
        )


# ---- what is wrong with them


def test_images_of_different_sizes_without_a_size(tmp_path: Path) -> None:
    write(tmp_path, {"a/1.png": encoded(noise(0), "PNG"), "a/2.png": encoded(noise(1, 30, 20), "PNG")})
    data = loadax.from_images(tmp_path)
    with pytest.raises(
        SourceError,
        match=r"row 1, .*a/2\.png: the image is 30x20 pixels \(height x width\), but the first, .*a/1\.png, "
        r"is 20x30; pass size=",
    ):
        data.read([0, 1])


PHOTOGRAPH = encoded(photograph("rocket", 200, 150))
DAMAGED = {
    "empty.jpg": b"",
    "text.jpg": b"hello",
    "start.jpg": PHOTOGRAPH[:2],
    "header.jpg": PHOTOGRAPH[:300],
    "half.jpg": PHOTOGRAPH[: len(PHOTOGRAPH) // 2],
    "end.jpg": PHOTOGRAPH[:-2],
    "middle.jpg": PHOTOGRAPH[:4000] + b"\xff\xd9" + PHOTOGRAPH[4002:],
    "empty.png": b"",
    "header.png": VARIANTS["photo.png"][:40],
    "half.png": VARIANTS["photo.png"][: len(VARIANTS["photo.png"]) // 2],
    "middle.png": VARIANTS["photo.png"][:4000] + bytes(100) + VARIANTS["photo.png"][4100:],
    "half.webp": VARIANTS["photo.webp"][: len(VARIANTS["photo.webp"]) // 2],
    "half.bmp": VARIANTS["photo.bmp"][:1000],
    "cmyk.jpg": VARIANTS["cmyk.jpg"][:2000],
}


@pytest.mark.parametrize("size", [None, 32])
@pytest.mark.parametrize("name", DAMAGED)
def test_a_file_that_is_damaged_is_named(name: str, size: int | None, tmp_path: Path) -> None:
    write(tmp_path, {"a/0.png": encoded(noise(0), "PNG"), f"b/{name}": DAMAGED[name]})
    data = loadax.from_images(tmp_path, size)
    message = (
        rf"^row 1, .*b/{name}: it can't be decoded as an image: .*; "
        r"copy the file again, or leave it out: dataset.exclude\(\[1\]\); "
    )
    with pytest.raises(SourceError, match=message) as caught:
        data.read([0, 1])
    assert " object at 0x" not in str(caught.value)  # Pillow's way to show bytes


def test_all_files_that_are_damaged_are_found(animals: Path) -> None:
    (animals / "a/3.png").write_bytes(DAMAGED["half.png"])
    (animals / "b/0.png").write_bytes(b"GIF89a")
    (animals / "b/1.png").write_bytes(encoded(noise(0, 30, 20), "PNG"))
    data = loadax.from_images(animals)
    (animals / "b/4.png").unlink()
    found = data.source.damaged()  # type: ignore[attr-defined]
    assert list(found) == [3, 5, 6, 9]
    assert found[3].startswith(f"{animals}/a/3.png: ")
    assert found[5] == f"{animals}/b/0.png: it has no header of JPEG, PNG, WEBP or BMP"
    assert "the image is 30x20 pixels" in found[6]
    assert "No such file" in found[9]
    whole = data.exclude(list(found))
    assert whole.read(range(len(whole)))["label"].tolist() == [0] * 4 + [1] * 2
    # With a size, another one is no damage.
    assert list(loadax.from_images(animals, 8).source.damaged()) == [3, 5]  # type: ignore[attr-defined]


def test_a_first_image_that_is_damaged_is_in_the_way_of_no_size_only(tmp_path: Path) -> None:
    write(tmp_path, {"0.png": b"", "1.png": encoded(noise(1), "PNG")})
    with pytest.raises(SourceError, match=r"row 0, .*0\.png: it can't be decoded") as caught:
        loadax.from_images(tmp_path)
    assert "without size=, opening the folder reads the first image" in caught.value.__notes__[0]
    assert len(loadax.from_images(tmp_path, 8).exclude([0])) == 1


def test_an_image_that_is_too_large_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    with pytest.raises(SourceError, match=r"0\.png: it can't be decoded as an image: .* exceeds limit"):
        loadax.from_images(write(tmp_path, {"0.png": encoded(noise(0), "PNG")}))


@pytest.mark.parametrize("quality", ["high", "fast"])
def test_damage_that_is_accepted(quality: Any, tmp_path: Path) -> None:
    data = loadax.from_images(write(tmp_path, {"half.jpg": DAMAGED["half.jpg"]}), damaged="accept", quality=quality)
    image = data[0]["image"]
    assert psnr(image[:40], np.asarray(opened(PHOTOGRAPH))[:40]) > 40 - 5 * (quality == "fast")
    assert len(np.unique(image[-8:].reshape(-1, 3), axis=0)) == 1


def test_a_file_that_is_gone(animals: Path) -> None:
    data = loadax.from_images(animals)
    (animals / "b/2.png").unlink()
    with pytest.raises(
        SourceError, match=r"row 7, .*b/2\.png: it can't be read: No such file.*; open the folder again"
    ):
        data.read([7])


# ---- as a source


@pytest.mark.processes
@pytest.mark.parametrize("size", [None, (9, 14)])
def test_it_keeps_the_contract_of_a_source(size: Any, tmp_path: Path) -> None:
    files = {f"{name}/{i}.jpg": encoded(noise(i + n)) for n, name in enumerate("abc") for i in range(8)}
    check_source(loadax.from_images(write(tmp_path, files), size), rows=16)


def test_an_image_that_is_not_wanted_is_not_read(animals: Path) -> None:
    source = open_images(animals)
    (animals / "b/4.png").unlink()
    labels = np.full(2, -1, np.int32)
    source.read_into(np.array([9, 0]), [None, ()], [None, labels])
    assert labels.tolist() == [1, 0]


class TestInABucket:
    @pytest.mark.processes
    def test_are_those_of_the_local_folder(
        self, animals: Path, s3_server: S3Server, s3_proxy: FaultProxy, bucket: str
    ) -> None:
        """One list, and one request an image, all of a batch at once."""
        write(animals, {"a/deep/x %20#.PNG": encoded(noise(99), "PNG"), "b/.hidden.png": b"", "c/notes.txt": b"none"})
        s3_server.upload(animals, bucket, "animals/")
        local = open_images(animals, size=(20, 30))
        remote = open_images(f"s3://{bucket}/animals", size=(20, 30))
        assert len(s3_proxy.log) == 1
        assert (len(remote), remote.classes, local.classes) == (11, ("a", "b", "c"), ("a", "b", "c"))
        rows = np.random.default_rng(0).permutation(11)
        s3_proxy.clear()
        s3_proxy.add(Fault("together", many=11))
        batch, expected = remote.read(rows), local.read(rows)
        assert len(s3_proxy.log) == 11
        for name in ("image", "label"):
            np.testing.assert_array_equal(batch[name], expected[name])
        s3_proxy.clear()
        assert remote.locate(5) == [Location(f"s3://{bucket}/animals/a/deep/x%20%2520%23.PNG")]
        assert remote.some_files(10) == []
        check_source(remote)

    def test_that_is_gone(self, animals: Path, s3_server: S3Server, bucket: str) -> None:
        s3_server.upload(animals, bucket)
        remote = open_images(f"s3://{bucket}")
        s3_server.delete(bucket, "a/3.png")
        with pytest.raises(SourceError, match=rf"s3://{bucket}/a/3.png, bytes 0 to .*: there is no such file"):
            remote.read(np.arange(5))
        assert remote.damaged().keys() == {3}
        with pytest.raises(
            SourceError, match=rf"s3://{bucket}/nothing/ has no images; pass a folder of files that end"
        ):
            loadax.from_images(f"s3://{bucket}/nothing")
