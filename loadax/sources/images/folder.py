"""Finds the images of a folder and numbers their classes."""

import os
from typing import TYPE_CHECKING, Any

from loadax.core.arguments import choice, integer, path
from loadax.errors import ArgumentError, SourceError
from loadax.files.files import Files
from loadax.files.object_stores import split_url
from loadax.files.paths import local_path
from loadax.sources.images.crop import RandomCrop, crop_of
from loadax.sources.images.decode import Rendering
from loadax.sources.images.format import ENDINGS, FORMAT
from loadax.sources.images.source import ImageFiles, ImageSource
from loadax.sources.library import require
from loadax.sources.neighbours import is_litter

if TYPE_CHECKING:
    from loadax.files.metadata import Metadata


def open_images(
    folder: Any,
    size: Any = None,
    fit: Any = "crop",
    quality: Any = "high",
    damaged: Any = "error",
    crop: Any = None,
    metadata: "Metadata | None" = None,
) -> ImageSource:
    """Opens a folder of images; see `loadax.from_images`.

    Raises:
        ArgumentError: When an argument is invalid; shows it.
        UnsupportedError: When a decoder is not installed.
        SourceError: When the folder does not exist, has no images, or mixes images and class folders; names it.
    """
    rendering = open_rendering(size, fit, quality, damaged, crop)
    return ImageSource(_find_images(folder, metadata), rendering)


def open_rendering(
    size: Any, fit: Any, quality: Any, damaged: Any, crop: Any = None
) -> Rendering:
    """Makes the decoder of images from the arguments of `loadax.from_images`.

    Raises:
        ArgumentError: When an argument is invalid; shows it.
        UnsupportedError: When a decoder is not installed.
    """
    choice("fit", fit, ("crop", "stretch", "pad"))
    choice("quality", quality, ("high", "fast"))
    choice("damaged", damaged, ("error", "accept"))
    wanted = checked_size(size)
    part = crop_of(crop)
    if isinstance(part, RandomCrop):
        if wanted is None:
            raise ArgumentError(
                "crop=RandomCrop(…) gives parts of different sizes; pass "
                "size=(height, width) to resize them",
                argument="size",
            )
        if fit == "pad":
            raise ArgumentError(
                "fit='pad': a RandomCrop is stretched to size; leave fit out"
            )
        fit = "stretch"
    require("an image", FORMAT.requires, FORMAT.extra)
    fast = quality == "fast"
    return Rendering(wanted, fit, fast, strict=damaged == "error", crop=part)


def _find_images(
    folder: str | os.PathLike[str], metadata: "Metadata | None"
) -> ImageFiles:
    """Finds the images in a folder: one class per subfolder, or one unnamed class if no subfolder has images.

    Raises:
        SourceError: When it does not exist, can't be listed, has no images, or has images both in and outside
            subfolders.
    """
    local = local_path(
        path("folder", folder, "the path or URL of a folder of images")
    )
    if local is None:
        root = os.fspath(folder).rstrip("/") + "/"
    else:
        root = str(local)
    if local is None:
        sizes = _list_remote(root, Files(None, metadata))
    else:
        sizes = None
    loose: list[str] = []
    by_class: dict[str, list[str]] = {}
    for name in _list_local(root) if sizes is None else sizes:
        label, slash, inside = name.partition("/")
        if slash:
            names = by_class.setdefault(label, [])
        else:
            names = loose
        if name.lower().endswith(ENDINGS):
            names.append(inside or name)
    classes = any(by_class.values())
    if classes and loose:
        raise SourceError(
            f"{root} has images both in folders "
            f"({next(name for name in sorted(by_class) if by_class[name])}, …) and "
            f"outside ({min(loose)}, …), so the classes are ambiguous; move the "
            "images outside the folders elsewhere"
        )
    if not classes and not loose:
        raise SourceError(
            f"{root} has no images; pass a folder of files that end in "
            f"{', '.join(ENDINGS)}"
        )
    # Includes folders without images: a label must not depend on whether other classes have images.
    if classes:
        labels = sorted(by_class)
    else:
        labels = [""]
    groups = [
        sorted(by_class[label]) if classes else sorted(loose) for label in labels
    ]
    paths = (
        f"{label}/{name}".lstrip("/")
        for label, group in zip(labels, groups, strict=True)
        for name in group
    )
    return ImageFiles(
        root,
        labels,
        groups,
        None if sizes is None else [sizes[path] for path in paths],
    )


def _list_remote(url: str, files: Files) -> dict[str, int]:
    """Sizes of the files in a folder of a bucket and below, by their paths in it; without hidden ones."""
    # without the escapes that one spelling of the URL has and another lacks
    prefix = split_url(url)[1]
    names = {
        split_url(file)[1].removeprefix(prefix): file
        for file in files.names(url, below=True)
    }
    kept = {
        name: file
        for name, file in names.items()
        if not any(map(is_litter, name.split("/")))
    }
    return dict(zip(kept, files.sizes(list(kept.values())), strict=True))


def _list_local(root: str) -> list[str]:
    """Relative paths of the files in a folder and below, and of its subfolders, with "/"; without hidden ones."""

    def fail(error: OSError) -> None:
        if isinstance(error, FileNotFoundError):
            reason = "there is no such folder"
        else:
            reason = f"it can't be listed: {error}"
        raise SourceError(
            f"{root}: {reason}; pass a folder of images, or of one folder for each "
            "class"
        ) from error

    found: list[str] = []
    # device and inode, of folders to come
    parents: dict[str, frozenset[tuple[int, int]]] = {root: frozenset()}
    for folder, folders, files in os.walk(root, onerror=fail, followlinks=True):
        status, above = os.stat(folder), parents.pop(folder)  # noqa: PTH116
        identity = status.st_dev, status.st_ino
        if identity in above:
            raise SourceError(
                f"{folder} links to one of its parent folders, an endless loop; "
                "remove the link"
            )
        folders[:] = [name for name in folders if not is_litter(name)]
        parents |= {
            os.path.join(folder, name): above | {identity}  # noqa: PTH118
            for name in folders
        }
        below = f"{folder[len(root) :]}/".lstrip("/")
        found += [f"{below}{name}/" for name in folders] + [
            f"{below}{name}" for name in files if not is_litter(name)
        ]
    return found


def checked_size(size: Any) -> tuple[int, int] | None:
    """(height, width) of the argument `size`; None: it was left out.

    Raises:
        ArgumentError: When it is neither that nor one int.
    """
    if size is None:
        return None
    remedy = "(height, width) in pixels, or one int for squares"
    if isinstance(size, tuple | list) and len(size) == 2:
        height, width = (
            integer(f"size[{index}]", side, 1, remedy=remedy)
            for index, side in enumerate(size)
        )
        return height, width
    side = integer("size", size, 1, remedy=remedy)
    return side, side
