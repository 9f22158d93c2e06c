"""Finds the images of a folder and numbers their classes."""

import os
from stat import S_ISDIR
from typing import Any, Literal

from loadax.core.arguments import choice, integer, path
from loadax.errors import SourceError, UnsupportedError
from loadax.sources.images.decode import Rendering, require_decoders
from loadax.sources.images.files import ImageFiles
from loadax.sources.images.resize import Fit
from loadax.sources.images.source import ImageSource
from loadax.sources.io.paths import local_path

ENDINGS = (".jpg", ".jpeg", ".png", ".webp", ".bmp")
"""File extensions of images, in any case."""


def open_images(
    folder: str | os.PathLike[str],
    size: Any = None,
    *,
    fit: Fit = "crop",
    quality: Literal["high", "fast"] = "high",
    damaged: Literal["error", "accept"] = "error",
) -> ImageSource:
    """Opens a folder of images; see `loadax.from_images`.

    Raises:
        ArgumentError: When an argument is invalid; shows it.
        UnsupportedError: When the folder is remote, or a decoder is not installed.
        SourceError: When the folder does not exist, has no images, or mixes images and class folders; names it.
    """
    for name, value, allowed in (
        ("fit", fit, ("crop", "stretch", "pad")),
        ("quality", quality, ("high", "fast")),
        ("damaged", damaged, ("error", "accept")),
    ):
        choice(name, value, allowed)
    wanted = None if size is None else _size(size)
    require_decoders()
    rendering = Rendering(wanted, fit, fast=quality == "fast", strict=damaged == "error")
    return ImageSource(find_images(folder), rendering)


def find_images(folder: str | os.PathLike[str]) -> ImageFiles:
    """Finds the images in a folder: one class per subfolder, or one unnamed class if no subfolder has images.

    Raises:
        UnsupportedError: When the folder is remote.
        SourceError: When it does not exist, has no images, or has images both in and outside subfolders.
    """
    root = local_path(path("folder", folder, "the path of a folder of images"))
    if root is None:
        raise UnsupportedError(
            f"{os.fspath(folder)} is remote, and thousands of small remote files are slow to read; "
            "copy the folder to a local disk, or write the images to a store once with loadax.write_zarr and open that"
        )
    by_class: dict[str, list[str]] = {}
    try:
        loose, folders = _entries(str(root))
        for name in folders:
            by_class[name] = sorted(_within(os.path.join(root, name), "", frozenset()))  # noqa: PTH118
    except OSError as error:
        reason = "there is no such folder" if isinstance(error, FileNotFoundError) else f"it can't be listed: {error}"
        raise SourceError(f"{root}: {reason}; pass a folder of images, or of one folder for each class") from error
    classes = any(by_class.values())
    if classes and loose:
        raise SourceError(
            f"{root} has images both in folders ({next(name for name in by_class if by_class[name])}, …) "
            f"and outside ({min(loose)}, …), so the classes are ambiguous; "
            "move the images outside the folders elsewhere"
        )
    if not classes and not loose:
        raise SourceError(f"{root} has no images; pass a folder of files that end in {', '.join(ENDINGS)}")
    if not classes:
        return ImageFiles(str(root), [""], [sorted(loose)])
    # Includes folders without images: a label must not depend on whether other classes have images.
    names = sorted(by_class)
    return ImageFiles(str(root), names, [by_class[name] for name in names])


def _entries(folder: str) -> tuple[list[str], list[str]]:
    """Names of the images and of the subfolders in a folder, without hidden ones."""
    images, folders = [], []
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith("."):
                continue
            if entry.is_dir():
                folders.append(entry.name)
            elif entry.name.lower().endswith(ENDINGS):
                images.append(entry.name)
    return images, folders


def _within(folder: str, prefix: str, above: frozenset[tuple[int, int]]) -> list[str]:
    """Paths of the images in a folder and below, relative to it, with `prefix` in front."""
    status = os.stat(folder)  # noqa: PTH116
    assert S_ISDIR(status.st_mode)
    identity = status.st_dev, status.st_ino
    if identity in above:
        raise SourceError(f"{folder} links to one of its parent folders, an endless loop; remove the link")
    images, folders = _entries(folder)
    names = [prefix + name for name in images]
    for name in folders:
        names += _within(os.path.join(folder, name), f"{prefix}{name}/", above | {identity})  # noqa: PTH118
    return names


def _size(size: Any) -> tuple[int, int]:
    remedy = "(height, width) in pixels, or one int for squares"
    if isinstance(size, tuple | list) and len(size) == 2:
        height, width = (integer(f"size[{index}]", side, 1, remedy=remedy) for index, side in enumerate(size))
        return height, width
    side = integer("size", size, 1, remedy=remedy)
    return side, side
