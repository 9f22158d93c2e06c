"""Opens ArrayRecord files: expands paths and selects the decoder."""

from typing import Any

import numpy as np

from loadax.core.arguments import dtype as checked_dtype
from loadax.errors import ArgumentError, SourceError
from loadax.protocols import Source
from loadax.sources.array_record.files import open_record_files
from loadax.sources.array_record.format import FORMAT
from loadax.sources.array_record.records import RecordSource
from loadax.sources.io.expand import expand
from loadax.sources.io.files import Files


def open_array_record(paths: Any, *, dtype: Any = None) -> Source:
    """Opens ArrayRecord files; see `loadax.from_array_record`.

    Raises:
        ArgumentError: When an argument is invalid.
        SourceError: When a file is missing, has another format, or has no records; names it.
        UnsupportedError: When a path is a URL, or `array_record` is not installed.
    """
    entries = None if dtype is None else _dtype(dtype)
    files = Files()
    locations = expand(paths, FORMAT, files)
    for path, size in zip(locations, files.sizes(locations), strict=True):
        if not size:
            raise SourceError(f"{path}: the file is empty (an ArrayRecord file without records is not); write it again")
    records = open_record_files(locations)
    return RecordSource(records, entries)


def _dtype(value: Any) -> np.dtype[Any]:
    dtype = checked_dtype("dtype", value)
    if dtype.hasobject or not dtype.itemsize or dtype.kind in "SUmM" or dtype.fields is not None:
        raise ArgumentError(
            f"dtype={value!r} is {dtype}, but entries are numbers; pass 'uint16' or another numeric dtype, or decode "
            "the bytes in a map",
            argument="dtype",
        )
    return dtype
