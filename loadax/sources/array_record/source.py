"""Opens ArrayRecord files: expands paths and selects the decoder."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from loadax.core.arguments import dtype as checked_dtype
from loadax.core.arguments import integer
from loadax.errors import ArgumentError, SourceError
from loadax.protocols import Source, Tree
from loadax.sources.array_record.files import open_record_files
from loadax.sources.array_record.records import AlikeRecords, BytesRecords, DecodedRecords, PaddedRecords
from loadax.sources.file_names import is_array_record
from loadax.sources.io.expand import FileKind, expand
from loadax.sources.io.files import Files

_FILES = FileKind(
    "paths",
    "an ArrayRecord file",
    is_array_record,
    ("file with array_record in its name", "the files, or a pattern such as *.data"),
    local_only="ArrayRecord's reader opens local files only; download the files, or mount their bucket as a folder",
)
_LENGTHS = "the number of entries of a row, an int of 1 or more"


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
        ArgumentError: When an argument is invalid, or conflicts with another one.
        SourceError: When a file is missing, has another format, or has no records; names it.
        UnsupportedError: When a path is a URL, or `array_record` is not installed.
    """
    entries = None if dtype is None else _dtype(dtype)
    if dtype is not None and decode is not None:
        raise ArgumentError(
            f"dtype={dtype!r} and decode= were both passed; "
            "pass dtype= for arrays of one dtype, or decode= for encoded records"
        )
    if truncate and pad_to is None:
        raise ArgumentError("truncate=True truncates records to pad_to=, which was not passed; pass pad_to= too")
    lengths = _lengths(pad_to, entries, decode)
    files = open_record_files(find_record_files(paths))
    if decode is not None:
        assert isinstance(lengths, dict)
        return DecodedRecords(files, decode, lengths, truncate)
    if entries is None:
        return BytesRecords(files)
    return AlikeRecords(files, entries) if lengths is None else PaddedRecords(files, entries, lengths, truncate)


def find_record_files(paths: Any) -> list[str]:
    """Expands a path, folder, glob pattern, or list of these, to files; see `expand`.

    Raises:
        ArgumentError: When it is none of these.
        SourceError: When a file is missing or empty; names it.
        UnsupportedError: For a URL.
    """
    files = Files()
    locations = expand(paths, _FILES, files)
    for path, size in zip(locations, files.sizes(locations), strict=True):
        if not size:
            raise SourceError(f"{path}: the file is empty (an ArrayRecord file without records is not); write it again")
    return locations


def _dtype(value: Any) -> np.dtype[Any]:
    dtype = checked_dtype("dtype", value)
    if dtype.hasobject or not dtype.itemsize or dtype.kind in "SUmM" or dtype.fields is not None:
        raise ArgumentError(
            f"dtype={value!r} is {dtype}, but entries are numbers; pass 'uint16' or another numeric dtype, or decode "
            "the bytes in a map",
            argument="dtype",
        )
    return dtype


def _lengths(pad_to: Any, dtype: np.dtype[Any] | None, decode: Any) -> Any:
    """`pad_to`: an int beside dtype=, a dict beside decode=."""
    if decode is not None:
        if pad_to is None:
            raise ArgumentError(
                "decode= needs pad_to=, the leaves to pad; without padding, write from_array_record(paths).map(decode)"
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
            f"pad_to={pad_to!r} names leaves of decoded records; pass decode= too, or one length and dtype="
        )
    if dtype is None:
        raise ArgumentError(
            f"pad_to={pad_to!r} needs dtype=, the stored dtype of the entries, such as dtype='uint16'",
            argument="pad_to",
        )
    return _length(pad_to, "pad_to")


def _length(value: Any, name: str) -> int:
    return integer(name, value, 1, remedy=_LENGTHS)
