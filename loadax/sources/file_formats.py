"""Recognises the format of a file by its first bytes or its name, and says which call opens it."""

import json
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from loadax.errors import LoadaxError, SourceError, StorageError
from loadax.sources.file_names import is_array_record, is_csv, is_jsonl, is_tfrecord
from loadax.sources.io.paths import local_path

CALLS = {
    ".npy": "loadax.from_npy({0})",
    ".npz": "loadax.from_arrays(dict(numpy.load({0})))",
    ".zarr": "loadax.from_zarr({0})",
    ".array_record": "loadax.from_array_record({0})",
    ".arrayrecord": "loadax.from_array_record({0})",
    ".bin": "loadax.from_tokens({0}, seq_len=…)",
    ".idx": "loadax.from_tokens({0}, seq_len=…)",
    ".parquet": "loadax.from_parquet({0})",
    ".feather": "loadax.from_arrow(pyarrow.feather.read_table({0}))",
    ".arrow": "loadax.from_arrow(pyarrow.feather.read_table({0}))",
    ".arrow stream": "loadax.from_arrow(pyarrow.ipc.open_stream(pyarrow.memory_map({0})))",
    ".arrow of Hugging Face": "loadax.from_huggingface(datasets.Dataset.from_file({0}))",
    ".csv": "loadax.from_csv({0})",
    ".jsonl": "loadax.from_jsonl({0})",
    ".h5": "loadax.as_dataset(h5py.File({0}))",
    ".hdf5": "loadax.as_dataset(h5py.File({0}))",
    ".nc": "loadax.as_dataset(xarray.open_dataset({0}))",
    ".tar": "loadax.from_webdataset({0})",
    ".tfrecord": "loadax.from_tfrecord({0})",
    ".tfrecords": "loadax.from_tfrecord({0})",
    "kerchunk": (
        "loadax.as_dataset(xarray.open_zarr('reference://', storage_options={{'fo': {0}}}, consolidated=False))"
    ),
}
"""The call that opens a file, by the ending of its name, or the kind of its content."""

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
_ENDINGS = ((is_tfrecord, ".tfrecord"), (is_array_record, ".array_record"), (is_jsonl, ".jsonl"), (is_csv, ".csv"))


def ending_of(name: str) -> str:
    """The ending in `CALLS` of a file name: `train.tfrecord-00000-of-00008` is a `.tfrecord`; else its own."""
    known = next((ending for is_one, ending in _ENDINGS if is_one(name)), None)
    return Path(name).suffix.lower() if known is None else known


@contextmanager
def other_formats_refused(
    function: str, paths: Any, *, before: bool = False, accepted: Sequence[str] = ()
) -> Iterator[None]:
    """A block that opens files by a function of loadax; an error in it names the call that opens the first of them.

    Args:
        function: Name of the function.
        paths: What it opens. Only a local file is looked at.
        before: Whether to look at the file before the block too, as the function opens almost any bytes.
        accepted: Endings in `CALLS` of formats that the function opens, or refuses by itself.

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
    ending = content or ending_of(path.name)
    if ending not in CALLS or ending in accepted or f"loadax.{function}(" in CALLS[ending]:
        return
    call = CALLS[ending].format(repr(str(path)))
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
    """The ending in `CALLS` that stands for a file's content, and a noun for messages; None if it is not recognised."""
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
