"""Checks and resolves the paths and URLs that users pass."""

import os
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from loadax.errors import ArgumentError
from loadax.redaction import redacted

_LONGEST_PATH, _LONGEST_NAME = 4095, 255  # bytes, on Linux
_SHOWN = 80  # characters of a path that can't be used


def path_text(location: Any) -> str:
    """A path or URL as text.

    Raises:
        ArgumentError: when it is of another type, or can't be the path of anything: empty, with a NUL character, too
            long.
    """
    text = os.fspath(location) if isinstance(location, str | os.PathLike) else None
    if not isinstance(text, str):
        raise ArgumentError(
            f"path={location!r:.80} is a {type(location).__name__}; pass a path or URL, as a str or a pathlib.Path"
        )
    if not text:
        raise ArgumentError("path='' is empty; pass a path or URL ('.' is the current folder)")
    if "\0" in text:
        raise ArgumentError(f"path={_cut(text)}: no path holds the NUL character \\x00; remove it")
    return text


def local_path(location: str | os.PathLike[str]) -> Path | None:
    """The absolute path of the file or folder that a path or a `file://` URL means; None for what lies elsewhere.

    Raises:
        ArgumentError: when it can't be the path of anything.
    """
    text = path_text(location)
    if "|" in text:  # something within a file
        return None
    if "://" in text:
        try:
            parts = urlsplit(text)
        except ValueError as error:
            raise ArgumentError(f"path={_cut(text)} is not a URL: {error}; check it") from redacted(error)
        if parts.scheme != "file":
            return None
        text = path_text(unquote(parts.path))
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
