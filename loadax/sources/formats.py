"""The formats of files: finds and recognises them by their records."""

import os
import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from types import MappingProxyType

from loadax.errors import SourceError
from loadax.files import magic
from loadax.files.paths import local_path
from loadax.sources.array_record.format import FORMAT as _ARRAY_RECORD
from loadax.sources.audio.format import FORMAT as _AUDIO
from loadax.sources.expand import file_name
from loadax.sources.format import Format
from loadax.sources.images.format import ENDINGS, FORMAT as _IMAGES
from loadax.sources.neighbours import is_hidden
from loadax.sources.npy.format import FORMAT as _NPY
from loadax.sources.other_files import other_files, other_folder
from loadax.sources.shards.format import TFRECORD, WEBDATASET
from loadax.sources.tables.parquet.format import FORMAT as _PARQUET
from loadax.sources.tables.text.format import CSV, JSONL
from loadax.sources.tokens.format import FORMAT as _TOKENS
from loadax.sources.video.format import FORMAT as _VIDEO
from loadax.sources.zarr.format import FORMAT as _ZARR

# A name of several formats is one of the first of these, such as `.npy`.
_OWN = (
    _ZARR,
    _PARQUET,
    JSONL,
    CSV,
    WEBDATASET,
    TFRECORD,
    _ARRAY_RECORD,
    _NPY,
    _VIDEO,
    _AUDIO,
    _IMAGES,
    _TOKENS,
)
# The formats that loadax reads, by the names of the functions that open them.
FORMATS = MappingProxyType({one.function: one for one in _OWN})

# Formats that other libraries read. They are recognised first: references are JSON too.
_OTHERS = (
    Format(
        "from_arrays",
        "a .npz file",
        r"(?i)\.npz$",
        line="loadax.from_arrays(dict(numpy.load({0})))",
    ),
    Format(
        "as_dataset",
        "an HDF5 file",
        r"(?i)\.(h5|hdf5)$",
        magic.HDF5,
        line="loadax.as_dataset(h5py.File({0}))",
    ),
    Format(
        "as_dataset",
        "a netCDF file",
        r"(?i)\.nc$",
        line="loadax.as_dataset(xarray.open_dataset({0}))",
    ),
    Format(
        "from_arrow",
        "an Arrow file",
        r"(?i)\.(arrow|feather)$",
        magic.ARROW,
        line="loadax.from_arrow(pyarrow.feather.read_table({0}))",
    ),
    Format(
        "from_huggingface",
        "a stream of Arrow record batches",
        magic=magic.HUGGINGFACE,
        line="loadax.from_huggingface(datasets.Dataset.from_file({0}))",
    ),
    Format(
        "from_arrow",
        "a stream of Arrow record batches",
        magic=magic.ARROW_STREAM,
        line="loadax.from_arrow(pyarrow.ipc.open_stream(pyarrow.memory_map({0})))",
    ),
    Format(
        "as_dataset",
        "a file of references to zarr chunks, as kerchunk writes it",
        magic=magic.REFERENCES,
        line="loadax.as_dataset(xarray.open_zarr('reference://', storage_options={'fo': {0}}, consolidated=False))",
    ),
)

KNOWN = (*_OTHERS, *_OWN)
_MOST_FOLDERS = 1000  # that are looked into


def find_format(path: str, *, guess: bool = False) -> Format | None:
    """The format of the data at a path, pattern or URL: by its name, or by the names of files in a local folder.

    Args:
        path: Path or URL.
        guess: Whether a URL, folder or zip file of no known format is taken for a zarr store, which may have any name.
    """
    # "|" is part of TensorStore's URLs
    if "|" in path:
        local = None
    else:
        local = local_path(path)
    if local is None or not local.is_dir():
        named = (one for one in _by_name() if one.belongs(file_name(path)))
        found = next(named, None)
        whole = "|" in path or (
            guess and (local is None or local.suffix.lower() == ".zip")
        )
    else:
        found = other_folder(local) or _format_in(local)
        whole = guess
    return found or (_ZARR if whole else None)


def _by_name() -> tuple[Format, ...]:
    """All formats, those first that more is known of."""
    return (*KNOWN, *other_files())


def _format_in(folder: Path) -> Format | None:
    """The format of the files in a folder, or in the first folder below it that has files of a known format."""
    listed = [one for one in _OWN if one.lacks and not one.needs]
    found = (
        [
            one
            for one in listed
            if any(
                one.belongs(name)
                for name in names
                if one is _ZARR or not is_hidden(name)
            )
        ]
        for names in _names_in(folder)
    )
    first = next(filter(None, found), [])
    data = [one for one in first if not one.lists]
    if not data and any(
        name.lower().endswith(ENDINGS)
        for names in _names_in(folder)
        for name in names
    ):
        return _IMAGES
    return next(iter(data or first), None)


def _names_in(folder: Path) -> Iterator[list[str]]:
    """Names of the files in a folder, then in each of those below it that are not hidden, up to a limit."""
    for _, folders, names in islice(os.walk(folder, followlinks=True), _MOST_FOLDERS):
        folders[:] = sorted(name for name in folders if not is_hidden(name))
        yield names


def refuse_other(
    one: Format, path: Path, head: bytes, error: SourceError | None = None
) -> None:
    """Refuses a file of another format, by its first bytes, or by its name if opening it failed.

    Args:
        one: Record of the format that the file should have.
        path: Path of the file.
        head: Its first bytes.
        error: Error of the attempt to open it; None: it was not opened.

    Raises:
        SourceError: When it has another format; names the call that opens it.
    """
    content = next((other for other in KNOWN if re.match(other.magic, head)), None)
    other = content or next(
        (other for other in _by_name() if other.belongs(path.name)), None
    )
    if other is None or other.function in (one.function, *one.accepted):
        return
    if content is not None:
        raise SourceError(
            f"{path} is {other.noun}; open it with {other.call(str(path))}"
        ) from error
    if error is not None:
        instead = (
            f"if the file is what its name says, open it with {other.call(str(path))}"
        )
        raise SourceError(f"{error}; {instead}") from error
