"""Expands a path, folder, glob pattern, URL, or a list of these, to files."""

import fnmatch
import glob
from collections.abc import Callable, Sequence
from pathlib import PurePosixPath
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

from loadax.core.arguments import path as checked_path
from loadax.core.formatting import some
from loadax.errors import ArgumentError, SourceError, UnsupportedError
from loadax.sources.io.files import Files
from loadax.sources.io.paths import local_path


class FileKind(NamedTuple):
    """A kind of files, with its wording for messages.

    Args:
        argument: Name of the argument that takes the paths.
        one: Noun for one file, as in "pass the path of …".
        belongs: Predicate on file names: whether a file in a folder is of this kind.
        missing: Ends of two sentences for a folder without such files: what it lacks, and what to pass instead.
        local_only: Reason why URLs are refused, with a remedy; None: URLs are accepted.
    """

    argument: str
    one: str
    belongs: Callable[[str], bool]
    missing: tuple[str, str]
    local_only: str | None = None


def expand(given: Any, kind: FileKind, files: Files) -> list[str]:
    """Expands `given` to paths and URLs of files.

    Lists keep their order; the files of a folder or pattern are sorted by name. A remote folder is listed once, after
    which `files` knows the sizes of its files. Hidden files of a folder are left out, such as `._a.csv` of macOS.

    Raises:
        ArgumentError: When an entry is not a path.
        SourceError: When a folder or pattern has no matching file.
        UnsupportedError: When an entry is a URL, and this kind is read only locally.
    """
    wanted = f"the path{'' if kind.local_only else ' or URL'} of {kind.one}"
    paths = list(given) if isinstance(given, Sequence) and not isinstance(given, str | bytes) else [given]
    if not paths:
        raise ArgumentError(f"{kind.argument}={given!r} is empty; pass {wanted}")
    texts = [checked_path(kind.argument, path, f"{wanted}, or a list of these") for path in paths]
    return [file for text in texts for file in _expand(text, kind, files)]


def file_name(location: str) -> str:
    """Returns the last part of a path or URL, without a URL's query."""
    return PurePosixPath(urlsplit(location).path if "://" in location else location).name


def _expand(path: str, kind: FileKind, files: Files) -> list[str]:
    local = local_path(path)
    if local is None:
        if kind.local_only is not None:
            raise UnsupportedError(f"{path}: {kind.local_only}")
        if path.endswith("/"):
            return _of_folder(path, files.names(path), kind)
        if "*" not in path:
            return [path]
        folder = path[: path.index("*")].rpartition("/")[0] + "/"
        pattern = path[len(folder) :]
        listed = [(url, unquote(url[len(folder) :])) for url in files.names(folder)]
        return _matching(path, [url for url, name in listed if fnmatch.fnmatchcase(name, pattern)])
    if local.is_dir():
        return _of_folder(path, [str(file) for file in local.iterdir()], kind)
    if local.exists() or not glob.has_magic(str(local)):
        return [str(local)]
    return _matching(path, glob.glob(str(local), recursive=True))  # noqa: PTH207


def _of_folder(folder: str, files: Sequence[str], kind: FileKind) -> list[str]:
    named = [(file, file_name(file)) for file in files]
    matching = sorted(file for file, name in named if kind.belongs(name) and not name.startswith("."))
    if not matching:
        names = some(sorted(map(file_name, files))) or "nothing"
        lacks, instead = kind.missing
        raise SourceError(f"{folder}: the folder has no {lacks}, but {names}; pass {instead}")
    return matching


def _matching(pattern: str, files: list[str]) -> list[str]:
    if not files:
        raise SourceError(f"{pattern}: no file matches this pattern")
    return sorted(files)
