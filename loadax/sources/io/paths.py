"""Checks and resolves the paths and URLs that users pass."""

import os
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from loadax.core.arguments import path as checked_path
from loadax.errors import ArgumentError
from loadax.redaction import redacted

_LONGEST_PATH, _LONGEST_NAME = 4095, 255  # bytes, on Linux
_SHOWN = 80  # characters of a path that can't be used


def local_path(location: str | os.PathLike[str]) -> Path | None:
    """The absolute path of the file or folder that a path or a `file://` URL means; None for what lies elsewhere.

    Raises:
        ArgumentError: when it can't be the path of anything.
    """
    text = checked_path("path", location, "a path or URL")
    if "|" in text:  # something within a file
        return None
    if "://" in text:
        try:
            parts = urlsplit(text)
        except ValueError as error:
            raise ArgumentError(f"path={_cut(text)} is not a URL: {error}; check it") from redacted(error)
        if parts.scheme != "file":
            return None
        text = checked_path("path", unquote(parts.path), "a path or URL")
    names = [os.fsencode(name) for name in text.split("/")]
    # As the kernel reads `..`: of what a link points to, and not of the link.
    path = os.path.realpath(text) if b".." in names else os.path.abspath(text)  # noqa: PTH100 - Path.absolute keeps `..`
    if len(os.fsencode(path)) > _LONGEST_PATH or any(len(name) > _LONGEST_NAME for name in names):
        raise ArgumentError(
            f"path={_cut(text)} has {len(text)} characters; a path has at most {_LONGEST_PATH} bytes, "
            f"and each name in it {_LONGEST_NAME}: check what it was made from"
        )
    return Path(path)


def _cut(text: str) -> str:
    return repr(text) if len(text) <= _SHOWN else f"{text[:_SHOWN]!r}…"


def local_folder(name: str, value: Any) -> Path:
    """The path of a folder on this machine, which need not exist, from the argument of that name.

    Raises:
        ArgumentError: When it is none.
    """
    folder = local_path(checked_path(name, value, "the path of a local folder"))
    if folder is None:
        raise ArgumentError(f"{name}={os.fspath(value)!r} is a URL: pass the path of a local folder")
    return folder
