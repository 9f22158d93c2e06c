"""Lists the files and folders in a folder, or at a glob pattern, at a path or URL."""

import fnmatch
import glob
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

from loadax.sources.io.files import Files
from loadax.sources.io.paths import local_path


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


def entries_in(folder: str, files: Files) -> list[ListedPath]:
    """Lists a folder, whose path or URL ends with "/"."""
    return [ListedPath(location, [_parts(location)[-1]]) for location in files.names(folder)]


def is_pattern(path: str) -> bool:
    """Whether a path or URL at which there is no file is a glob pattern."""
    local = local_path(path)
    return "*" in path if local is None else glob.has_magic(str(local))


def entries_at(path: str, files: Files) -> tuple[Sequence[str], list[ListedPath]]:
    """Lists what matches a pattern: `*` within a name, `**` any number of folders.

    Returns:
        Parts of the pattern from its first wildcard on, and the matches.
    """
    local = local_path(path)
    if local is not None:
        fixed = next(index for index, part in enumerate(local.parts) if glob.has_magic(part))
        found = [Path(match) for match in glob.glob(str(local), recursive=True)]  # noqa: PTH207
        # `**` also matches the folder itself.
        entries = [
            ListedPath(f"{each}{'/' * each.is_dir()}", each.parts[fixed:]) for each in found if each.parts[fixed:]
        ]
        return local.parts[fixed:], entries
    folder = path[: path.index("*")].rpartition("/")[0] + "/"
    pattern = path[len(folder) :].split("/")
    deep = len(pattern) > 1 or pattern[0] == "**"
    listed = files.names(folder, below=deep)
    if deep:  # then only files are listed
        listed += {url[: end + 1] for url in listed for end in range(len(folder), len(url)) if url[end] == "/"}
    fixed = len(_parts(folder))
    entries = [ListedPath(url, _parts(url)[fixed:]) for url in listed]
    return pattern, [entry for entry in entries if entry.parts and _fits(entry.parts, pattern)]


def _parts(location: str) -> Sequence[str]:
    plain = unquote(location) if "://" in location else location
    return plain.rstrip("/").split("/")


def _fits(parts: Sequence[str], pattern: Sequence[str]) -> bool:
    if not parts or not pattern:
        return not parts and all(part == "**" for part in pattern)
    if pattern[0] == "**":
        return _fits(parts, pattern[1:]) or _fits(parts[1:], pattern)
    return fnmatch.fnmatchcase(parts[0], pattern[0]) and _fits(parts[1:], pattern[1:])
