"""Finds the files of a token stream, and what each holds.

Flat `.bin`, one-dimensional `.npy`, or Megatron's `.bin` and `.idx`.
"""

from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple, final

import numpy as np

from loadax.core.arguments import dtype as checked_dtype
from loadax.errors import ArgumentError, SourceError
from loadax.sources.io.byte_stream import Segment
from loadax.sources.io.expand import FileKind, expand, file_name
from loadax.sources.io.files import ByteRange, Files, LocalFiles, no_such_file
from loadax.sources.io.paths import local_path
from loadax.sources.io.remote import RemoteFiles
from loadax.sources.npy.header import read_npy_headers
from loadax.sources.tokens.megatron import read_index

_FILES = FileKind(
    "path",
    "a file of tokens",
    lambda name: PurePosixPath(name).suffix in (".bin", ".idx", ".npy"),
    (".bin or .npy file in it", "the files of tokens, or a pattern such as *.tokens"),
)
_LIKELY = ("uint8", "uint16", "int32", "int64")


class TokenFile(NamedTuple):
    """The tokens of one file, their dtype as it is stored, and the `.idx` file that says where its documents begin."""

    segment: Segment
    dtype: np.dtype[Any]
    index_file: str | None = None


@final
class TokenFiles(NamedTuple):
    """The files of a stream, in its order, and through what they are opened."""

    files: Files
    entries: tuple[TokenFile, ...]


def find_token_files(path: Any, dtype: Any, documents: bool) -> TokenFiles:
    """Opens the files of a token stream.

    Args:
        path: of a file, of a folder (its `.bin` and `.npy` files, sorted by name), a glob pattern (sorted), a URL of
            one of these, or a list of them, which keeps its order. An `.idx` file stands for the pair.
        dtype: of the tokens in `.bin` files without an `.idx`; other files say it themselves.
        documents: whether it must be known where documents begin.

    Raises:
        ArgumentError: when an argument can't be used, or `dtype` is missing.
        SourceError: when a file is missing, cut short, or not what its name says; when dtypes differ; names the file.
    """
    wanted = None if dtype is None else _token_dtype(dtype)
    given = [_named_pair(location) for location in expand(path, _FILES)]
    pairs = {location for location in given if _suffix(location) == ".bin"}
    # An index beside its .bin in the same list is no file of its own.
    given = [location for location in given if _suffix(location) != ".idx" or _sibling(location, ".bin") not in pairs]
    local = all(local_path(location) is not None for location in given)
    files: Files = LocalFiles() if local else RemoteFiles()
    # Far away, a file that need not be there is asked for only when it matters: where a missing one is a refusal, not a
    # 404.
    entries = _describe(files, given, wanted, documents, look=local or documents or wanted is None)
    _check_alike(entries, wanted)
    return TokenFiles(files, tuple(entries))


def _describe(
    files: Files, given: Sequence[str], dtype: np.dtype[Any] | None, documents: bool, look: bool
) -> list[TokenFile]:
    arrays = [location for location in given if _suffix(location) == ".npy"]
    by_location = dict(zip(arrays, _npy_files(files, arrays), strict=True))
    flat = [location for location in given if _suffix(location) != ".npy"]
    required = {location for location in flat if _suffix(location) == ".idx"}
    candidates = [location for location in flat if location in required or (look and _suffix(location) == ".bin")]
    index_exists = files.exists([_sibling(location, ".idx") for location in candidates])
    for location, exists in zip(candidates, index_exists, strict=True):
        if exists:
            by_location[location] = _indexed_file(files, _sibling(location, ".bin"), _sibling(location, ".idx"))
        elif location in required:
            raise no_such_file(location)
    plain = [location for location in flat if location not in by_location]
    by_location.update(zip(plain, _plain_files(files, plain, dtype), strict=True))
    if documents:
        for entry in by_location.values():
            if entry.index_file is None:
                raise SourceError(
                    f"{entry.segment.location}: "
                    "there is no .idx file beside it, so it isn't known where its documents begin; "
                    "leave segment_ids out (or, of documents, pass offsets=), or write a Megatron .bin and .idx pair"
                )
    return [by_location[location] for location in given]


def _npy_files(files: Files, locations: Sequence[str]) -> list[TokenFile]:
    entries = []
    for header, location in zip(read_npy_headers(files, locations), locations, strict=True):
        if len(header.shape) != 1:
            raise SourceError(
                f"{location} is {header.dtype}{list(header.shape)}: a stream of tokens has one dimension; "
                "open an array of rows with loadax.from_npy, or save array.reshape(-1)"
            )
        if header.dtype.kind not in "iu":
            raise SourceError(f"{location} is {header.dtype}{list(header.shape)}: tokens are integers")
        entries.append(TokenFile(Segment(location, header.begin, header.size), header.dtype))
    return entries


def _indexed_file(files: Files, location: str, index: str) -> TokenFile:
    parsed = read_index(files, index)
    size = parsed.tokens * parsed.dtype.itemsize
    if not files.exists([location])[0]:
        raise SourceError(f"{location}: there is no such file, and {index} describes it; keep the two side by side")
    last, behind = ByteRange(location, max(size - 1, 0), size), ByteRange(location, size, size + 1)
    whole, longer = files.contains([last, behind])
    if not whole or longer:
        raise SourceError(
            f"{location}: it is {'longer' if longer else 'shorter'} than the {size} bytes ({parsed.tokens} tokens "
            f"of {parsed.dtype}) that {index} says; copy both again"
        )
    return TokenFile(Segment(location, 0, size), parsed.dtype, index)


def _plain_files(files: Files, locations: Sequence[str], dtype: np.dtype[Any] | None) -> list[TokenFile]:
    entries = []
    for location, size in zip(locations, files.sizes(locations), strict=True):
        if dtype is None:
            fits = ", ".join(
                f"{size // np.dtype(name).itemsize} of {name}"
                for name in _LIKELY
                if size % np.dtype(name).itemsize == 0
            )
            raise ArgumentError(
                f"{location}: the file doesn't say which dtype its tokens have; "
                f"pass dtype= what they were written as (its {size} bytes would be {fits} tokens)",
                argument="dtype",
            )
        if size % dtype.itemsize:
            raise SourceError(
                f"{location}: its size of {size} bytes is not a multiple of {dtype.itemsize}, the size of a {dtype} "
                "token; check dtype=, or copy the file again"
            )
        entries.append(TokenFile(Segment(location, 0, size), dtype))
    return entries


def _check_alike(entries: Sequence[TokenFile], dtype: np.dtype[Any] | None) -> None:
    first = entries[0]
    for entry in entries:
        if dtype is not None and entry.dtype.newbyteorder("=") != dtype.newbyteorder("="):
            raise SourceError(
                f"{entry.segment.location} holds {entry.dtype} tokens, and dtype={dtype} was passed; leave dtype out",
                argument="dtype",
            )
        if entry.dtype != first.dtype:
            raise SourceError(
                f"{first.segment.location} holds {_spelled(first.dtype)} tokens and {entry.segment.location} "
                f"{_spelled(entry.dtype)}; the files of a stream must be alike: convert some, or open them one by one"
            )


def _spelled(dtype: np.dtype[Any]) -> str:
    return str(dtype) if dtype.isnative else f"{dtype.newbyteorder('=')} (big-endian)"


def _token_dtype(value: Any) -> np.dtype[Any]:
    dtype = checked_dtype("dtype", value)
    if dtype.kind not in "iu":
        raise ArgumentError(f"dtype={value!r} is {dtype}, and tokens are integers; pass say 'uint16'", argument="dtype")
    return dtype


def _named_pair(location: str) -> str:
    """The `.idx` file of a pair that is called by what its names have in common, as Megatron's own tools call it."""
    local = local_path(location)
    pair = local is not None and not local.exists() and Path(f"{local}.idx").exists()
    return f"{local}.idx" if pair else location


def _suffix(location: str) -> str:
    return PurePosixPath(file_name(location)).suffix


def _sibling(location: str, suffix: str) -> str:
    """The file of another suffix beside one, also where a query stands behind it."""
    before, stem, after = location.rpartition(_suffix(location))
    assert stem
    return before + suffix + after
