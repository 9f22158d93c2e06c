"""Opens ArrayRecord files: expands paths, chooses how records are decoded."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from loadax.core.arguments import dtype as checked_dtype
from loadax.core.arguments import integer
from loadax.errors import ArgumentError, SourceError
from loadax.protocols import Source, Tree
from loadax.sources.array_record.files import open_record_files
from loadax.sources.array_record.records import AlikeRecords, BytesRecords, DecodedRecords, PaddedRecords
from loadax.sources.io.expand import FileKind, expand
from loadax.sources.io.files import LocalFiles

NAMES = ("array_record", "arrayrecord")
"""One of these is somewhere in a file's name, also in `train.array_record-00000-of-00008`."""

_FILES = FileKind(
    "paths",
    "an ArrayRecord file",
    lambda name: any(part in name for part in NAMES),
    ("file with array_record in its name", "the files, or a pattern such as *.data"),
    local_only="ArrayRecord's reader opens local files only; download the files, or mount their bucket as a folder",
)
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
    files = expand(paths, _FILES)
    for path, size in zip(files, LocalFiles().sizes(files), strict=True):
        if not size:
            raise SourceError(
                f"{path}: the file is empty, without even what an ArrayRecord file without records has; write it again"
            )
    return files


def _dtype(value: Any) -> np.dtype[Any]:
    dtype = checked_dtype("dtype", value)
    if dtype.hasobject or not dtype.itemsize or dtype.kind in "SUmM" or dtype.fields is not None:
        raise ArgumentError(
            f"dtype={value!r} is {dtype}, and entries are numbers; pass say 'uint16', or decode the bytes in a map",
            argument="dtype",
        )
    return dtype


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
