"""Hive partitions: columns in the names of folders, such as `year=2026/month=1/part-0.parquet`."""

import os
import re
from collections.abc import Sequence
from itertools import takewhile
from typing import Any
from urllib.parse import unquote

import pyarrow as pa

from loadax.sources.io.paths import local_path

_NULL = "__HIVE_DEFAULT_PARTITION__"


def partition_columns(given: Any, locations: Sequence[str]) -> dict[str, Any]:
    """The columns in the names of folders below what is given: of each an Arrow array with the value of each file.

    Ints are int32, or int64 where that is too short; other values are categories, in the order of the files.

    Args:
        given: Path of a file or folder, pattern, URL, or list of these.
        locations: Paths and URLs of the files that these are.
    """
    paths = given if isinstance(given, Sequence) and not isinstance(given, str) else [given]
    files = set(locations)
    # The number of folders above decides, since a URL may be quoted in one of them and not in the other.
    folders = zip(*(_folder(os.fspath(path), files).split("/") for path in paths), strict=False)
    above = sum(1 for _ in takewhile(lambda names: len(set(names)) == 1, folders))
    found = [_pairs(location, above) for location in locations]
    names = dict.fromkeys(name for pairs in found for name in pairs)
    return {name: _typed([pairs.get(name) for pairs in found]) for name in names}


def _folder(path: str, files: set[str]) -> str:
    """The folder that a path, pattern or URL is certain to be, or to be in."""
    local = local_path(path)
    path = path.rstrip("/") if local is None else str(local)
    if path in files:
        return path.rpartition("/")[0]
    certain = path if local is not None and local.exists() else re.split(r"[*?\[{]", path, maxsplit=1)[0]
    return path if certain == path else certain.rpartition("/")[0]


def _pairs(location: str, above: int) -> dict[str, str | None]:
    folders = location.split("/")[above:-1]
    if local_path(location) is None:
        folders = list(map(unquote, folders))
    pairs = (folder.partition("=") for folder in folders if "=" in folder)
    return {unquote(name): None if value == _NULL else unquote(value) for name, _, value in pairs}


def _typed(values: Sequence[str | None]) -> Any:
    texts = pa.array(values, pa.string())
    for kind in (pa.int32(), pa.int64()):
        try:
            return texts.cast(kind)
        except pa.ArrowInvalid:
            continue
    return texts.dictionary_encode()
