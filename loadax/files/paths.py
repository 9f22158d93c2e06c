"""Checks and resolves the paths and URLs that users pass."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from loadax.core.arguments import path as checked_path, shown
from loadax.errors import ArgumentError
from loadax.redaction import redacted

# Schemes of the URLs of buckets, whose objects can be listed.
BUCKETS = ("s3", "r2", "gs", "az", "abfs", "abfss", "hf")

# bytes, on Linux
_LONGEST_PATH = 4095
_LONGEST_NAME = 255


def local_path(location: str | os.PathLike[str]) -> Path | None:
    """Returns the absolute path for a path or a `file://` URL; None for other URLs.

    Raises:
        ArgumentError: When it is not a valid path or URL.
    """
    text = checked_path("path", location, "a path or URL")
    try:
        if is_remote(text):
            return None
    except ValueError as error:
        raise ArgumentError(
            f"path={shown(text)} is not a URL: {error}; check it"
        ) from redacted(error)
    if "://" in text:
        text = checked_path("path", unquote(urlsplit(text).path), "a path or URL")
    # Resolves `..` as the kernel does: relative to the target of a link, not to the link.
    path = (
        os.path.realpath(text) if ".." in text.split("/") else os.path.abspath(text)  # noqa: PTH100 - Path.absolute keeps `..`
    )
    if (
        len(os.fsencode(path)) > _LONGEST_PATH
        or max(map(len, os.fsencode(text).split(b"/"))) > _LONGEST_NAME
    ):
        raise ArgumentError(
            f"path={shown(text)} has {len(text)} characters; a path has at most "
            f"{_LONGEST_PATH} bytes, and each name in it {_LONGEST_NAME}: pass a "
            "shorter path"
        )
    return Path(path)


def is_remote(location: str) -> bool:
    """Whether a path or URL is none of a local file: another URL than `file://`, or a member of a zip archive.

    Raises:
        ValueError: When it is not a valid URL.
    """
    return "|" in location or (
        "://" in location and urlsplit(location).scheme != "file"
    )


@contextmanager
def writing_file(path: str | os.PathLike[str]) -> Iterator[None]:
    """A block that writes a file which the user named as the argument `path`.

    Raises:
        ArgumentError: When the file can't be written.
    """
    try:
        yield
    except OSError as error:
        raise ArgumentError(
            f"path={os.fspath(path)!r} can't be written: {error.strerror or error}; "
            "pass the name of a file in an existing folder that you may write to"
        ) from error


def local_folder(name: str, value: Any) -> Path:
    """Returns the path of a local folder, which need not exist; `name` is the argument's name.

    Raises:
        ArgumentError: When it is not a local path.
    """
    folder = local_path(checked_path(name, value, "the path of a local folder"))
    if folder is None:
        raise ArgumentError(
            f"{name}={os.fspath(value)!r} is a URL: pass the path of a local folder"
        )
    return folder
