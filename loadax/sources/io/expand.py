"""Expands a path, folder, glob or brace pattern, URL, or a list of these, to files."""

import fnmatch
import glob
import math
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import PurePosixPath
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

from loadax.core.arguments import path as checked_path
from loadax.core.formatting import some
from loadax.errors import ArgumentError, SourceError, UnsupportedError
from loadax.sources.io.files import Files
from loadax.sources.io.paths import local_path

_BRACE = re.compile(r"\{(?:(?P<first>\d+)\.\.(?P<last>\d+)|(?P<names>[^{},]*(?:,[^{},]*)+))\}")
_MOST_FILES = 10_000_000  # of a brace pattern


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
    given_texts = [checked_path(kind.argument, path, f"{wanted}, or a list of these") for path in paths]
    texts = [text for given_text in given_texts for text in _braces(given_text)]
    return [file for text in texts for file in _expand(text, kind, files)]


def _braces(text: str) -> list[str]:
    """The paths of a brace pattern as shells have them: `a-{000..003}.tar`, `{train,test}.tar`; else the path itself.

    Raises:
        ArgumentError: When the pattern has more files than can be meant.
    """
    local = local_path(text)
    if local is not None and local.exists():
        return [text]
    count = math.prod(_alternatives(found)[0] for found in _BRACE.finditer(text))
    if count > _MOST_FILES:
        raise ArgumentError(f"{text}: these are {count:,} files; pass a folder or a pattern")
    return _expanded(text)


def _expanded(text: str) -> list[str]:
    found = _BRACE.search(text)
    if found is None:
        return [text]
    _, parts = _alternatives(found)
    return [path for part in parts for path in _expanded(text[: found.start()] + part + text[found.end() :])]


def _alternatives(found: re.Match[str]) -> tuple[int, Iterator[str]]:
    """What a pair of braces stands for, and how many these are."""
    if found["first"] is None:
        names = found["names"].split(",")
        return len(names), iter(names)
    first, last = int(found["first"]), int(found["last"])
    padded = any(len(end) > 1 and end.startswith("0") for end in (found["first"], found["last"]))
    width = max(len(found["first"]), len(found["last"])) if padded else 1
    numbers = range(first, last + 1) if first <= last else range(first, last - 1, -1)
    return abs(last - first) + 1, (f"{number:0{width}}" for number in numbers)


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
