"""The formats of files: which names and first bytes they have, and which call opens them."""

import json
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

from loadax.errors import LoadaxError, SourceError, StorageError
from loadax.sources.io.expand import Format
from loadax.sources.io.paths import local_path

_PACKED = r"(\.(gz|bz2|xz|zst))?$"
_LOCAL = "ArrayRecord's reader opens local files only; download the files, or mount their bucket as a folder"
FORMATS = MappingProxyType(
    {
        "from_parquet": Format("a Parquet file", r"(?i)\.(parquet|pq)$", ".parquet file", "folder/**/*.parquet"),
        "from_jsonl": Format("a file of JSON lines", rf"(?i)\.(jsonl|ndjson){_PACKED}", ".jsonl file", "*.json"),
        "from_csv": Format("a CSV file", rf"(?i)\.(csv|tsv){_PACKED}", ".csv file", "*.txt"),
        "from_webdataset": Format("a tar file", r"\.tar$", ".tar file in it", "*.shard"),
        # As `train.tfrecord-00000-of-00008`, or Kaggle's `0.tfrec`.
        "from_tfrecord": Format("a TFRecord file", r"\.tfrec", "file with .tfrecord in its name", "*.records"),
        "from_array_record": Format(
            "an ArrayRecord file", "array_?record", "file with array_record in its name", "*.data", local_only=_LOCAL
        ),
        "from_tokens": Format(
            "a file of tokens", r"\.(bin|ds|idx|npy)$", ".bin or .npy file in it", "*.tokens", argument="path"
        ),
    }
)
"""The formats whose files are listed in folders, by the function of loadax that opens them."""

_OTHERS = {
    ".npy": "loadax.from_npy({0})",
    ".npz": "loadax.from_arrays(dict(numpy.load({0})))",
    ".zarr": "loadax.from_zarr({0})",
    ".feather": "loadax.from_arrow(pyarrow.feather.read_table({0}))",
    ".arrow": "loadax.from_arrow(pyarrow.feather.read_table({0}))",
    ".arrow stream": "loadax.from_arrow(pyarrow.ipc.open_stream(pyarrow.memory_map({0})))",
    ".arrow of Hugging Face": "loadax.from_huggingface(datasets.Dataset.from_file({0}))",
    ".h5": "loadax.as_dataset(h5py.File({0}))",
    ".hdf5": "loadax.as_dataset(h5py.File({0}))",
    ".nc": "loadax.as_dataset(xarray.open_dataset({0}))",
    "kerchunk": (
        "loadax.as_dataset(xarray.open_zarr('reference://', storage_options={{'fo': {0}}}, consolidated=False))"
    ),
}
"""The call that opens a file of another format, by the ending of its name, or the kind of its content."""

_HEAD = 4096  # bytes that are looked at
_MAGIC = (
    (0, b"PAR1", ".parquet", "a Parquet file"),
    (0, b"\x93NUMPY", ".npy", "a .npy file"),
    (257, b"ustar", ".tar", "a tar file"),
    (0, b"\x89HDF\r\n\x1a\n", ".h5", "an HDF5 file"),
    (0, b"ARROW1", ".arrow", "an Arrow file"),
    (0, b"FEA1", ".feather", "a Feather file"),
    (0, b"\xff" * 4, ".arrow stream", "a stream of Arrow record batches"),
)
_REFERENCES = re.compile(rb'\s*\{(?s:.*)"([^"]*/)?(\.z(group|array|attrs|metadata)|zarr\.json)"\s*:')


def call_for(name: str, path: str) -> str | None:
    """The call that opens a file with a name, or the ending that stands for its content; None: it is not known."""
    function = next((function for function, one in FORMATS.items() if one.belongs(name)), None)
    more = ", seq_len=…" if function == "from_tokens" else ""
    own = function and f"loadax.{function}({{0}}{more})"
    call = _OTHERS.get(name, _OTHERS.get(Path(name).suffix.lower(), own))
    return call and call.format(repr(path))


@contextmanager
def other_formats_refused(
    function: str, paths: Any, *, before: bool = False, accepted: Sequence[str] = ()
) -> Iterator[None]:
    """A block that opens files by a function of loadax; an error in it names the call that opens the first of them.

    Args:
        function: Name of the function.
        paths: What it opens. Only a local file is looked at.
        before: Whether to look at the file before the block too, as the function opens almost any bytes.
        accepted: Functions for formats that this one opens too, or refuses by itself.

    Raises:
        SourceError: When the file has another format.
    """
    if before:
        _refuse(function, paths, accepted)
    try:
        yield
    except StorageError:  # the file could not be read at all
        raise
    except SourceError as error:
        _refuse(function, paths, accepted, error)
        raise


def _refuse(function: str, paths: Any, accepted: Sequence[str], error: SourceError | None = None) -> None:
    path = _first(paths)
    if path is None:
        return
    content, noun = _recognise(path)
    call = call_for(content or path.name, str(path))
    if call is None or any(f"loadax.{name}(" in call for name in (function, *accepted)):
        return
    if content is not None:
        raise SourceError(f"{path} is {noun}; open it with {call}") from error
    if error is not None:
        raise SourceError(f"{error}; if the file is what its name says, open it with {call}") from error


def _first(paths: Any) -> Path | None:
    """The first file of an argument, if it is on this machine."""
    first = paths[0] if isinstance(paths, Sequence) and not isinstance(paths, str | bytes) and paths else paths
    try:
        path = local_path(first) if isinstance(first, str | os.PathLike) else None
        return path if path is not None and path.is_file() else None
    except (LoadaxError, OSError):
        return None


def _recognise(path: Path) -> tuple[str | None, str]:
    """The ending that stands for a file's content, and a noun for messages; None if it is not recognised."""
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD)
    except OSError:
        return None, ""
    for start, magic, ending, noun in _MAGIC:
        if head[start : start + len(magic)] == magic:
            return ".arrow of Hugging Face" if ending == ".arrow stream" and b"huggingface" in head else ending, noun
    if _REFERENCES.match(head):
        return "kerchunk", "a file of references to zarr chunks, as kerchunk writes it"
    return (".jsonl", "a file of JSON lines") if _is_object(head.partition(b"\n")[0]) else (None, "")


def _is_object(line: bytes) -> bool:
    """Whether a line is a JSON object, or begins as one that is longer than what was read."""
    if len(line) == _HEAD:
        return line.startswith(b'{"') and b'":' in line
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False
