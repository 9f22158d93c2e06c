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
    given = [_named_pair(each) for each in expand(path, _FILES)]
    pairs = {location for location in given if _suffix(location) == ".bin"}
    # An index beside its .bin in the same list is no file of its own.
    given = [each for each in given if _suffix(each) != ".idx" or _sibling(each, ".bin") not in pairs]
    local = all(local_path(each) is not None for each in given)
    files: Files = LocalFiles() if local else RemoteFiles()
    # Far away, a file that need not be there is asked for only when it matters: where a missing one is a refusal, not a
    # 404.
    entries = _describe(files, given, wanted, documents, look=local or documents or wanted is None)
    _check_alike(entries, wanted)
    return TokenFiles(files, tuple(entries))


def _describe(
    files: Files, given: Sequence[str], dtype: np.dtype[Any] | None, documents: bool, look: bool
) -> list[TokenFile]:
    arrays = [each for each in given if _suffix(each) == ".npy"]
    found = dict(zip(arrays, _npy_files(files, arrays), strict=True))
    flat = [each for each in given if _suffix(each) != ".npy"]
    required = {each for each in flat if _suffix(each) == ".idx"}
    candidates = [each for each in flat if each in required or (look and _suffix(each) == ".bin")]
    there = files.exists([_sibling(each, ".idx") for each in candidates])
    for each, exists in zip(candidates, there, strict=True):
        if exists:
            found[each] = _indexed_file(files, _sibling(each, ".bin"), _sibling(each, ".idx"))
        elif each in required:
            raise no_such_file(each)
    plain = [each for each in flat if each not in found]
    found.update(zip(plain, _plain_files(files, plain, dtype), strict=True))
    if documents:
        for entry in found.values():
            if entry.index_file is None:
                raise SourceError(
                    f"{entry.segment.location}: "
                    "there is no .idx file beside it, so it isn't known where its documents begin; "
                    "leave segment_ids out (or, of documents, pass offsets=), or write a Megatron .bin and .idx pair"
                )
    return [found[each] for each in given]


def _npy_files(files: Files, locations: Sequence[str]) -> list[TokenFile]:
    entries = []
    for header, where in zip(read_npy_headers(files, locations), locations, strict=True):
        if len(header.shape) != 1:
            raise SourceError(
                f"{where} is {header.dtype}{list(header.shape)}: a stream of tokens has one dimension; "
                "open an array of rows with loadax.from_npy, or save array.reshape(-1)"
            )
        if header.dtype.kind not in "iu":
            raise SourceError(f"{where} is {header.dtype}{list(header.shape)}: tokens are integers")
        entries.append(TokenFile(Segment(where, header.begin, header.size), header.dtype))
    return entries


def _indexed_file(files: Files, where: str, index: str) -> TokenFile:
    found = read_index(files, index)
    size = found.tokens * found.dtype.itemsize
    if not files.exists([where])[0]:
        raise SourceError(f"{where}: there is no such file, and {index} describes it; keep the two side by side")
    last, behind = ByteRange(where, max(size - 1, 0), size), ByteRange(where, size, size + 1)
    whole, longer = files.contains([last, behind])
    if not whole or longer:
        raise SourceError(
            f"{where}: it is {'longer' if longer else 'shorter'} than the {size} bytes ({found.tokens} tokens "
            f"of {found.dtype}) that {index} says; copy both again"
        )
    return TokenFile(Segment(where, 0, size), found.dtype, index)


def _plain_files(files: Files, locations: Sequence[str], dtype: np.dtype[Any] | None) -> list[TokenFile]:
    entries = []
    for where, size in zip(locations, files.sizes(locations), strict=True):
        if dtype is None:
            fits = ", ".join(
                f"{size // np.dtype(each).itemsize} of {each}"
                for each in _LIKELY
                if size % np.dtype(each).itemsize == 0
            )
            raise ArgumentError(
                f"{where}: the file doesn't say which dtype its tokens have; "
                f"pass dtype= what they were written as (its {size} bytes would be {fits} tokens)",
                argument="dtype",
            )
        if size % dtype.itemsize:
            raise SourceError(
                f"{where}: its {size} bytes are no whole number of {dtype} tokens of {dtype.itemsize} bytes; is it cut "
                "short, or dtype= another?"
            )
        entries.append(TokenFile(Segment(where, 0, size), dtype))
    return entries


def _check_alike(entries: Sequence[TokenFile], dtype: np.dtype[Any] | None) -> None:
    first = entries[0]
    for each in entries:
        if dtype is not None and each.dtype.newbyteorder("=") != dtype.newbyteorder("="):
            raise SourceError(
                f"{each.segment.location} holds {each.dtype} tokens, and dtype={dtype} was passed; leave dtype out",
                argument="dtype",
            )
        if each.dtype != first.dtype:
            raise SourceError(
                f"{first.segment.location} holds {_spelled(first.dtype)} tokens and {each.segment.location} "
                f"{_spelled(each.dtype)}; the files of a stream must be alike: convert some, or open them one by one"
            )


def _spelled(dtype: np.dtype[Any]) -> str:
    return str(dtype) if dtype.isnative else f"{dtype.newbyteorder('=')} (big-endian)"


def _token_dtype(value: Any) -> np.dtype[Any]:
    found = checked_dtype("dtype", value)
    if found.kind not in "iu":
        raise ArgumentError(f"dtype={value!r} is {found}, and tokens are integers; pass say 'uint16'", argument="dtype")
    return found


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
