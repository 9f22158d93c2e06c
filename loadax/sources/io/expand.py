"""What users name files by: a path, a folder, a glob pattern, a URL of one of these, or a list of them."""

import glob
from collections.abc import Callable, Sequence
from pathlib import PurePosixPath
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from loadax.core.arguments import path as checked_path
from loadax.core.formatting import some
from loadax.errors import ArgumentError, SourceError, UnsupportedError
from loadax.sources.io.paths import local_path
from loadax.sources.io.remote import RemoteFiles


class FileKind(NamedTuple):
    """Files of one kind, and what messages say of them.

    Args:
        argument: Name of the argument that names them.
        one: One of them, as in "pass the path of …".
        belongs: Whether a file of a folder is one of them, by its name.
        missing: What a folder without any lacks, and what to pass instead: two ends of sentences.
        local_only: Why URLs are refused, and what to do; None: they are not.
    """

    argument: str
    one: str
    belongs: Callable[[str], bool]
    missing: tuple[str, str]
    local_only: str | None = None


def expand(given: Any, kind: FileKind) -> list[str]:
    """The files, as paths and URLs. Lists keep their order; what is found in folders and by patterns is sorted by name.

    Raises:
        ArgumentError: When something is no path.
        SourceError: When a folder or a pattern has no file.
        UnsupportedError: When something is a URL, of files that are read locally only.
    """
    wanted = f"the path{'' if kind.local_only else ' or URL'} of {kind.one}"
    paths = list(given) if isinstance(given, Sequence) and not isinstance(given, str | bytes) else [given]
    if not paths:
        raise ArgumentError(f"{kind.argument}={given!r} is empty; pass {wanted}")
    texts = [checked_path(kind.argument, path, f"{wanted}, or a list of these") for path in paths]
    return [file for text in texts for file in _expand(text, kind)]


def file_name(location: str) -> str:
    """The last part of a path or URL, without a URL's query."""
    return PurePosixPath(urlsplit(location).path if "://" in location else location).name


def _expand(path: str, kind: FileKind) -> list[str]:
    local = local_path(path)
    if local is None:
        if kind.local_only is not None:
            raise UnsupportedError(f"{path}: {kind.local_only}")
        if path.endswith("/"):
            return _of_folder(path, RemoteFiles().names(path, "*"), kind)
        if "*" not in path:
            return [path]
        folder = path[: path.index("*")].rpartition("/")[0] + "/"
        return _matching(path, RemoteFiles().names(folder, path[len(folder) :]))
    if local.is_dir():
        return _of_folder(path, [str(file) for file in local.iterdir()], kind)
    if local.exists() or not glob.has_magic(str(local)):
        return [str(local)]
    return _matching(path, glob.glob(str(local), recursive=True))  # noqa: PTH207


def _of_folder(folder: str, files: Sequence[str], kind: FileKind) -> list[str]:
    matching = sorted(file for file in files if kind.belongs(file_name(file)))
    if not matching:
        names = some(sorted(map(file_name, files))) or "nothing"
        lacks, instead = kind.missing
        raise SourceError(f"{folder}: the folder has no {lacks}, but {names}; pass {instead}")
    return matching


def _matching(pattern: str, files: list[str]) -> list[str]:
    if not files:
        raise SourceError(f"{pattern}: no file matches this pattern")
    return sorted(files)
