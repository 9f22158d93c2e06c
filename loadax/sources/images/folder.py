"""Finds the images of a folder and numbers their classes."""

import os
from collections.abc import Mapping
from pathlib import Path
from stat import S_ISDIR
from typing import Any, Literal

from loadax.core.arguments import choice, integer, path
from loadax.errors import SourceError
from loadax.sources.images.decode import Rendering
from loadax.sources.images.files import ImageFiles
from loadax.sources.images.format import ENDINGS, FORMAT
from loadax.sources.images.resize import Fit
from loadax.sources.images.source import ImageSource
from loadax.sources.io.object_stores import split_url
from loadax.sources.io.paths import local_path
from loadax.sources.io.remote import RemoteFiles
from loadax.sources.library import require
from loadax.sources.neighbours import is_litter


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
        UnsupportedError: When a decoder is not installed.
        SourceError: When the folder does not exist, has no images, or mixes images and class folders; names it.
    """
    rendering = open_rendering(size, fit, quality, damaged)
    return ImageSource(find_images(folder), rendering)


def open_rendering(size: Any, fit: Any, quality: Any, damaged: Any) -> Rendering:
    """Makes the decoder of images from the arguments of `loadax.from_images`.

    Raises:
        ArgumentError: When an argument is invalid; shows it.
        UnsupportedError: When a decoder is not installed.
    """
    choice("fit", fit, ("crop", "stretch", "pad"))
    choice("quality", quality, ("high", "fast"))
    choice("damaged", damaged, ("error", "accept"))
    wanted = None if size is None else _size(size)
    require("an image", FORMAT.requires, FORMAT.extra)
    return Rendering(wanted, fit, fast=quality == "fast", strict=damaged == "error")


def find_images(folder: str | os.PathLike[str]) -> ImageFiles:
    """Finds the images in a folder: one class per subfolder, or one unnamed class if no subfolder has images.

    Raises:
        SourceError: When it does not exist, can't be listed, has no images, or has images both in and outside
            subfolders.
    """
    root = local_path(path("folder", folder, "the path or URL of a folder of images"))
    if root is None:
        url = os.fspath(folder).rstrip("/") + "/"
        sizes = _list_remote(url)
        loose: list[str] = []
        by_class: dict[str, list[str]] = {}
        for name in sizes:
            label, slash, inside = name.partition("/")
            names = by_class.setdefault(label, []) if slash else loose
            if name.lower().endswith(ENDINGS):
                names.append(inside or name)
        return _in_classes(url, loose, {label: sorted(names) for label, names in by_class.items()}, sizes)
    return _in_classes(str(root), *_list_local(root))


def _list_remote(url: str) -> dict[str, int]:
    """Sizes of the files in a folder of a bucket and below, by their paths in it; without hidden ones."""
    prefix = split_url(url)[1]  # without the escapes that one spelling of the URL has and another lacks
    listed = RemoteFiles().list(url, below=True)[0]
    found = {split_url(file)[1].removeprefix(prefix): info.size for file, info in listed.items()}
    return {name: size for name, size in found.items() if not any(map(is_litter, name.split("/")))}


def _list_local(root: Path) -> tuple[list[str], dict[str, list[str]]]:
    """Images in a local folder itself, and those in each of its subfolders and below."""
    by_class: dict[str, list[str]] = {}
    try:
        loose, folders = _entries(str(root))
        for name in folders:
            by_class[name] = sorted(_within(os.path.join(root, name), "", frozenset()))  # noqa: PTH118
    except OSError as error:
        reason = "there is no such folder" if isinstance(error, FileNotFoundError) else f"it can't be listed: {error}"
        raise SourceError(f"{root}: {reason}; pass a folder of images, or of one folder for each class") from error
    return loose, by_class


def _in_classes(
    root: str, loose: list[str], by_class: dict[str, list[str]], sizes: Mapping[str, int] | None = None
) -> ImageFiles:
    """The images of a folder in the order of rows; `sizes` of all images by their paths, in a bucket."""
    classes = any(by_class.values())
    if classes and loose:
        raise SourceError(
            f"{root} has images both in folders ({next(name for name in by_class if by_class[name])}, …) "
            f"and outside ({min(loose)}, …), so the classes are ambiguous; "
            "move the images outside the folders elsewhere"
        )
    if not classes and not loose:
        raise SourceError(f"{root} has no images; pass a folder of files that end in {', '.join(ENDINGS)}")
    # Includes folders without images: a label must not depend on whether other classes have images.
    names, groups = (
        ([""], [sorted(loose)]) if not classes else (sorted(by_class), [by_class[n] for n in sorted(by_class)])
    )
    if sizes is None:
        return ImageFiles(root, names, groups)
    paths = [
        [f"{label}/{name}" if label else name for name in group] for label, group in zip(names, groups, strict=True)
    ]
    return ImageFiles(root, names, groups, [[sizes[path] for path in group] for group in paths])


def _entries(folder: str) -> tuple[list[str], list[str]]:
    """Names of the images and of the subfolders in a folder, without hidden ones."""
    images, folders = [], []
    with os.scandir(folder) as entries:
        for entry in entries:
            if is_litter(entry.name):
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
