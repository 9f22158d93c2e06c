"""Opens ArrayRecord files: expands paths, chooses how records are decoded."""

import glob
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from loadax.core.arguments import integer
from loadax.errors import ArgumentError, SourceError, UnsupportedError
from loadax.protocols import Source, Tree
from loadax.sources.array_record.files import open_record_files
from loadax.sources.array_record.records import AlikeRecords, BytesRecords, DecodedRecords, PaddedRecords
from loadax.sources.io.files import LocalFiles
from loadax.sources.io.paths import local_path

NAMES = ("array_record", "arrayrecord")
"""One of these is somewhere in a file's name, also in `train.array_record-00000-of-00008`."""

_LENGTHS = "how many entries a row has, an int of 1 or more"


def open_array_record(
    paths: Any,
    *,
    dtype: Any = None,
    decode: Callable[[bytes], Tree] | None = None,
    pad_to: Any = None,
    truncate: bool = False,
) -> Source:
    """Opens ArrayRecord files; see `loadax.from_array_record`.

    Raises:
        ArgumentError: when an argument can't be used, or does not go with another one.
        SourceError: when a file is missing or of another kind, or has no records; names it.
        UnsupportedError: when a path is a URL, or `array_record` is not installed.
    """
    entries = None if dtype is None else _dtype(dtype)
    if dtype is not None and decode is not None:
        raise ArgumentError(
            f"dtype={dtype!r} and decode= were both passed; "
            "records are either arrays of one dtype, or what decode makes of them"
        )
    if truncate and pad_to is None:
        raise ArgumentError("truncate=True says what becomes of records longer than pad_to=, which was not passed")
    lengths = _lengths(pad_to, entries, decode)
    files = open_record_files(find_record_files(paths))
    if decode is not None:
        assert isinstance(lengths, dict)
        return DecodedRecords(files, decode, lengths, truncate)
    if entries is None:
        return BytesRecords(files)
    return AlikeRecords(files, entries) if lengths is None else PaddedRecords(files, entries, lengths, truncate)


def find_record_files(paths: Any) -> list[str]:
    """The files that a path, a folder, a glob pattern, or a list of these means.

    Lists keep their order, all others are sorted by name.

    Raises:
        ArgumentError: when it is none of these.
        SourceError: when nothing is there; names it.
        UnsupportedError: for a URL.
    """
    given = list(paths) if isinstance(paths, Sequence) and not isinstance(paths, str | bytes) else [paths]
    if not given:
        raise ArgumentError(f"paths={paths!r} is empty; pass at least one ArrayRecord file")
    found = [path for each in given for path in _expand(each)]
    for path, size in zip(found, LocalFiles().sizes(found), strict=True):
        if not size:
            raise SourceError(
                f"{path}: the file is empty, without even what an ArrayRecord file without records has; write it again"
            )
    return found


def _expand(path: Any) -> list[str]:
    if not isinstance(path, str | os.PathLike):
        raise ArgumentError(
            f"paths={path!r} is a {type(path).__name__}; pass the path of an ArrayRecord file, or a list of paths"
        )
    local = local_path(path)
    if local is None:
        raise UnsupportedError(
            f"{os.fspath(path)}: ArrayRecord's reader opens local files only; "
            "download the files, or mount their bucket as a folder"
        )
    if local.is_dir():
        return _of_folder(local)
    if local.exists() or not glob.has_magic(str(local)):
        return [str(local)]
    found = sorted(glob.glob(str(local), recursive=True))  # noqa: PTH207
    if not found:
        raise SourceError(f"{os.fspath(path)}: no file matches this pattern")
    return found


def _of_folder(folder: Path) -> list[str]:
    names = sorted(each.name for each in folder.iterdir())
    found = [str(folder / name) for name in names if any(part in name for part in NAMES)]
    if not found:
        raise SourceError(
            f"{folder}: the folder has no file with array_record in its name, but {', '.join(names[:8]) or 'nothing'}; "
            "pass the files, or a pattern such as *.data"
        )
    return found


def _dtype(dtype: Any) -> np.dtype[Any]:
    try:
        found = np.dtype(dtype)
    except TypeError as error:
        raise ArgumentError(f"dtype={dtype!r} is no dtype; pass say 'uint16'", argument="dtype") from error
    if found.hasobject or not found.itemsize or found.kind in "SUmM" or found.fields is not None:
        raise ArgumentError(
            f"dtype={dtype!r} is {found}, and entries are numbers; pass say 'uint16', or decode the bytes in a map",
            argument="dtype",
        )
    return found


def _lengths(pad_to: Any, dtype: np.dtype[Any] | None, decode: Any) -> Any:
    """`pad_to`: an int beside dtype=, a dict beside decode=."""
    if decode is not None:
        if pad_to is None:
            raise ArgumentError(
                "decode= is for what pad_to= pads; without it, write from_array_record(paths).map(decode)"
            )
        if not isinstance(pad_to, Mapping) or not pad_to:
            raise ArgumentError(
                f"pad_to={pad_to!r}: beside decode=, pass a dict of leaves and their lengths: {{'tokens': 1024}}"
            )
        return {key: _length(value, f"pad_to[{key!r}]") for key, value in pad_to.items()}
    if pad_to is None:
        return None
    if isinstance(pad_to, Mapping):
        raise ArgumentError(
            f"pad_to={pad_to!r} names leaves, which records are decoded to; pass decode= too, or one length and dtype="
        )
    if dtype is None:
        raise ArgumentError(
            f"pad_to={pad_to!r} needs dtype=, what the records' entries were written as: say dtype='uint16'",
            argument="pad_to",
        )
    return _length(pad_to, "pad_to")


def _length(value: Any, name: str) -> int:
    return integer(name, value, 1, remedy=_LENGTHS)
