"""Expands a path, folder, glob or brace pattern, URL, or a list of these, to files; lists folders and patterns."""

import glob
import math
import re
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from itertools import compress
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

from loadax.core.arguments import path as checked_path
from loadax.core.formatting import count_text, some
from loadax.core.log import log
from loadax.errors import ArgumentError, SourceError, UnsupportedError
from loadax.files.files import Files
from loadax.files.paths import BUCKETS, local_path
from loadax.sources.format import Format
from loadax.sources.neighbours import is_companion, is_hidden

_BRACE = re.compile(
    r"\{(?:(?P<first>\d+)\.\.(?P<last>\d+)|(?P<names>[^{},]*(?:,[^{},]*)+))\}"
)
_MOST_FILES = 10_000_000  # of a brace pattern


class ListedPath(NamedTuple):
    """A file or folder.

    Args:
        location: Path or URL; that of a folder ends with "/".
        parts: Parts of its path below the folder that was listed, or below the part of a pattern without wildcards.
    """

    location: str
    parts: Sequence[str]

    @property
    def name(self) -> str:
        return self.parts[-1]

    @property
    def is_folder(self) -> bool:
        return self.location.endswith("/")


def expand(given: Any, kind: Format, files: Files) -> list[str]:
    """Expands `given` to paths and URLs of files.

    Lists keep their order; the files of a folder or pattern are sorted by name. A remote folder is listed once, after
    which `files` knows the sizes of its files. Below a folder or pattern, hidden files and folders are left out
    (`._a.csv` of macOS, `_temporary` of Spark), and indices, checksums and backups of other files.

    Raises:
        ArgumentError: When an entry is not a path.
        SourceError: When a folder or pattern has no matching file.
        UnsupportedError: When an entry is a URL, and this kind is read only locally.
    """
    wanted = f"the path{'' if kind.local_only else ' or URL'} of {kind.noun}"
    if isinstance(given, Sequence) and not isinstance(given, str | bytes):
        paths = list(given)
    else:
        paths = [given]
    if not paths:
        raise ArgumentError(f"{kind.argument}={given!r} is empty; pass {wanted}")
    given_texts = [
        checked_path(kind.argument, path, f"{wanted}, or a list of these")
        for path in paths
    ]
    texts = [text for given_text in given_texts for text in expand_braces(given_text)]
    if kind.local_only is None:
        texts = _folders_marked(texts, kind, files)
    return [file for text in texts for file in _expand(text, kind, files)]


def expand_braces(text: str) -> list[str]:
    """The paths of a brace pattern as shells have them: `a-{000..003}.tar`, `{train,test}.tar`; else the path itself.

    Raises:
        ArgumentError: When the pattern has more files than can be meant.
    """
    local = local_path(text)
    if local is not None and local.exists():
        return [text]
    count = math.prod(_alternatives(found)[0] for found in _BRACE.finditer(text))
    if count > _MOST_FILES:
        raise ArgumentError(
            f"{text}: these are {count_text(count, 'file')}; pass a folder or a "
            "pattern"
        )
    return _expanded(text)


def _expanded(text: str) -> list[str]:
    found = _BRACE.search(text)
    if found is None:
        return [text]
    _, parts = _alternatives(found)
    return [
        path
        for part in parts
        for path in _expanded(text[: found.start()] + part + text[found.end() :])
    ]


def _alternatives(found: re.Match[str]) -> tuple[int, Iterator[str]]:
    """The texts that a pair of braces stands for, and how many these are."""
    if found["first"] is None:
        names = found["names"].split(",")
        return len(names), iter(names)
    first = int(found["first"])
    last = int(found["last"])
    padded = any(
        len(end) > 1 and end.startswith("0")
        for end in (found["first"], found["last"])
    )
    if padded:
        width = max(len(found["first"]), len(found["last"]))
    else:
        width = 1
    if first <= last:
        numbers = range(first, last + 1)
    else:
        numbers = range(first, last - 1, -1)
    return abs(last - first) + 1, (f"{number:0{width}}" for number in numbers)


def file_name(location: str) -> str:
    """Returns the last part of a path or URL, without a URL's query."""
    return PurePosixPath(
        urlsplit(location).path if "://" in location else location
    ).name


def _folders_marked(texts: list[str], kind: Format, files: Files) -> list[str]:
    """Appends "/" to the URLs of folders in buckets.

    Of URLs that have the names of files, the others are requested only if the first one is a folder.
    """
    urls = [
        text
        for text in texts
        if urlsplit(text).scheme in BUCKETS
        and not text.endswith("/")
        and "*" not in text
    ]
    first = [
        url for url in urls if url == urls[0] or not kind.belongs(file_name(url))
    ]
    if len(urls) == 1 and not kind.belongs(file_name(urls[0])):
        has_files = _has_files(f"{urls[0]}/", files)
        if has_files:
            return [f"{text}/" if text in urls else text for text in texts]
        if has_files is not None:
            return texts
    folders = _folders(first, files)
    if folders & set(urls[:1]):
        folders |= _folders([url for url in urls if url not in first], files)
    return [f"{text}/" if text in folders else text for text in texts]


def _folders(urls: Sequence[str], files: Files) -> set[str]:
    """Those of some URLs at which at most an empty object is, but files are below."""
    found = zip(urls, files.exists(urls), strict=True)
    empty = [url for url, there in found if not there or not files.sizes([url])[0]]
    below = zip(empty, files.first_names([f"{url}/" for url in empty]), strict=True)
    return {url for url, names in below if names}


def _has_files(folder: str, files: Files) -> bool | None:
    """Whether a list of a folder, which opening will need, has anything; None if it is not known."""
    if not files.remembers:
        return None
    try:
        names = files.names(folder)
    except SourceError:  # as where the credentials don't allow it
        return None
    return names != []


def _expand(path: str, kind: Format, files: Files) -> list[str]:
    local = local_path(path)
    if local is None and kind.local_only is not None:
        raise UnsupportedError(f"{path}: {kind.local_only}")
    if path.endswith("/") if local is None else local.is_dir():
        return _of_folder(
            ListedPath(path if local is None else f"{local}/", ()), kind, files
        )
    if local is None:
        is_pattern = "*" in path
    else:
        is_pattern = glob.has_magic(str(local)) and not local.exists()
    if is_pattern:
        return _of_pattern(path, kind, files)
    return [path if local is None else str(local)]


def _of_folder(
    folder: ListedPath, kind: Format, files: Files, within: bool = False
) -> list[str]:
    """The files of a kind in a folder, and in its folders with the name of such a file, as Spark writes.

    Args:
        folder: The folder.
        kind: Kind of the files.
        files: Reader.
        within: Whether it has the name of a file itself: then it may be empty, and has no further such folders.
    """
    if "://" in folder.location:
        shown = folder.location
    else:
        shown = folder.location.rstrip("/")
    entries = [
        ListedPath(location, [_parts(location)[-1]])
        for location in files.names(folder.location)
    ]
    visible = [entry for entry in entries if not is_hidden(entry.name)]
    kept = [entry for entry in visible if kind.belongs(entry.name)]
    found = [entry.location for entry in kept if not entry.is_folder]
    for entry in kept if not within else ():
        if _is_like_file(entry, kind):
            found += _of_folder(entry, kind, files, within=True)
    _tell(
        shown,
        [
            entry
            for entry in entries
            if is_hidden(entry.name) or is_companion(entry.name)
        ],
    )
    if not found and (visible or not within):
        names = some(sorted(entry.name for entry in entries)) or "nothing"
        instead = f"pass the files, or a pattern such as {shown}/**/*"
        raise SourceError(
            f"{shown}: the folder has no {kind.lacks}, but {names}; {instead}"
        )
    return sorted(found)


def _of_pattern(path: str, kind: Format, files: Files) -> list[str]:
    """The files that match a pattern, and those in folders that match and have the name of a file of the kind."""
    pattern, entries = _entries_at(path, files)
    # A pattern of all names stands for the files that a folder does.
    whole = pattern[-1] in ("*", "**") and any(
        kind.belongs(entry.name) for entry in entries if not entry.is_folder
    )
    taken = [
        _is_taken(entry, pattern, kind) and (kind.belongs(entry.name) or not whole)
        for entry in entries
    ]
    found = {
        entry.location for entry in compress(entries, taken) if not entry.is_folder
    }
    folders = [
        entry for entry in compress(entries, taken) if _is_like_file(entry, kind)
    ]
    above = {
        str(parent)
        for file in found
        if folders
        for parent in PurePosixPath(file).parents
    }
    for folder in folders:  # whose files don't match the pattern themselves
        if str(PurePosixPath(folder.location)) not in above:
            found.update(_of_folder(folder, kind, files, within=True))
    aside = [
        entry
        for entry, is_taken in zip(entries, taken, strict=True)
        if not is_taken and not entry.is_folder
    ]
    _tell(path, aside)
    if not found:
        names = some(sorted(entry.location for entry in entries), 3)
        if entries:
            but = (
                f", but folders, hidden files, indices or backups: {names}; pass "
                "these themselves"
            )
        else:
            but = ""
        raise SourceError(f"{path}: no file matches this pattern{but}")
    return sorted(found)


def _is_like_file(entry: ListedPath, kind: Format) -> bool:
    """Whether an entry is a folder whose name ends as those of files do."""
    suffix = PurePosixPath(entry.name).suffix
    return entry.is_folder and suffix != "" and kind.belongs(f"x{suffix}")


def _is_taken(entry: ListedPath, pattern: Sequence[str], kind: Format) -> bool:
    """Whether a pattern takes what matches it: all but hidden files and companions, unless it spells these."""
    spelled = [part for part in pattern if is_hidden(part)]
    if any(
        is_hidden(part) and not any(fnmatchcase(part, hidden) for hidden in spelled)
        for part in entry.parts
    ):
        return False
    return (
        kind.belongs(entry.name)
        or not is_companion(entry.name)
        or is_companion(pattern[-1])
    )


def _tell(path: str, aside: Sequence[ListedPath]) -> None:
    if aside:
        names = some(sorted("/".join(entry.parts) for entry in aside))
        log.info("%s: %s left out: %s", path, count_text(len(aside), "file"), names)


def _entries_at(path: str, files: Files) -> tuple[Sequence[str], list[ListedPath]]:
    """Lists what matches a pattern: `*` within a name, `**` any number of folders.

    Returns:
        Parts of the pattern from its first wildcard on, and the matches.
    """
    local = local_path(path)
    if local is not None:
        fixed = next(
            index for index, part in enumerate(local.parts) if glob.has_magic(part)
        )
        found = [Path(match) for match in glob.glob(str(local), recursive=True)]  # noqa: PTH207
        # `**` also matches the folder itself.
        entries = [
            ListedPath(f"{each}{'/' * each.is_dir()}", each.parts[fixed:])
            for each in found
            if each.parts[fixed:]
        ]
        return local.parts[fixed:], entries
    folder = path[: path.index("*")].rpartition("/")[0] + "/"
    pattern = path[len(folder) :].split("/")
    deep = len(pattern) > 1 or pattern[0] == "**"
    listed = files.names(folder, below=deep)
    if deep:  # then only files are listed
        listed += {
            url[: end + 1]
            for url in listed
            for end in range(len(folder), len(url))
            if url[end] == "/"
        }
    fixed = len(_parts(folder))
    entries = [ListedPath(url, _parts(url)[fixed:]) for url in listed]
    return pattern, [
        entry for entry in entries if entry.parts and _fits(entry.parts, pattern)
    ]


def _parts(location: str) -> Sequence[str]:
    if "://" in location:
        plain = unquote(location)
    else:
        plain = location
    return plain.rstrip("/").split("/")


def _fits(parts: Sequence[str], pattern: Sequence[str]) -> bool:
    if not parts or not pattern:
        return not parts and all(part == "**" for part in pattern)
    if pattern[0] == "**":
        return _fits(parts, pattern[1:]) or _fits(parts[1:], pattern)
    return fnmatchcase(parts[0], pattern[0]) and _fits(parts[1:], pattern[1:])
