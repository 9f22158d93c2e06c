"""Finds the files of a token stream: flat, with a header, one-dimensional `.npy`, or Megatron's `.bin` and `.idx`."""

from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import numpy as np

from loadax.core.arguments import dtype as checked_dtype
from loadax.core.formatting import count_text
from loadax.core.log import log
from loadax.errors import ArgumentError, SourceError
from loadax.files.byte_ranges import no_such_file
from loadax.files.byte_stream import FileSpan, open_stream
from loadax.files.files import Files
from loadax.files.magic import NPY
from loadax.files.paths import local_path
from loadax.sources.expand import expand, file_name
from loadax.sources.stream_array import StreamArray
from loadax.sources.tokens.format import FORMAT
from loadax.sources.tokens.headers import read_token_headers


class TokenFile(NamedTuple):
    """The tokens of one file, their stored dtype, and the `.idx` file with its document offsets."""

    segment: FileSpan
    dtype: np.dtype[Any]
    index_file: str | None = None


class TokenFiles(NamedTuple):
    """The files of a stream, in order, and their reader."""

    files: Files
    entries: tuple[TokenFile, ...]


def find_token_files(
    path: Any, dtype: Any, documents: bool, files: Files
) -> TokenFiles:
    """Opens the files of a token stream.

    Args:
        path: Path or URL of a file, a folder (its `.bin` and `.npy` files, sorted by name) or a glob pattern (sorted),
            or a list of these, which keeps its order. An `.idx` file selects the pair.
        dtype: Dtype of the tokens in flat files without a header; other files contain it.
        documents: Whether document offsets are required.
        files: Reader of the files.

    Raises:
        ArgumentError: When an argument is invalid, or `dtype` is missing.
        SourceError: When a file is missing, cut short or mislabelled, or dtypes differ; names the file.
    """
    if dtype is None:
        wanted = None
    else:
        wanted = checked_dtype("dtype", dtype)
    if wanted is not None and wanted.kind not in "iu":
        what = f"dtype={dtype!r} is {wanted}, but tokens are integers"
        raise ArgumentError(f"{what}; pass 'uint16' or another integer dtype")
    given = [_named_pair(location) for location in expand(path, FORMAT, files)]
    pairs = {location for location in given if _suffix(location) == ".bin"}
    # An index next to its .bin in the same list is not a separate file.
    given = [
        location
        for location in given
        if _suffix(location) != ".idx" or _sibling(location, ".bin") not in pairs
    ]
    # Remote optional files are requested only when they matter: some servers answer 403 for a missing file, not 404.
    entries = _describe(
        files,
        given,
        wanted,
        documents,
        look=not files.far(given) or documents or wanted is None,
    )
    _check_alike(entries, wanted)
    return TokenFiles(files, tuple(entries))


def open_token_stream(token_files: TokenFiles) -> StreamArray:
    """The tokens of all files, as one flat array."""
    segments = [entry.segment for entry in token_files.entries]
    return StreamArray(
        open_stream(segments, token_files.files), token_files.entries[0].dtype
    )


def _describe(
    files: Files,
    given: Sequence[str],
    dtype: np.dtype[Any] | None,
    documents: bool,
    look: bool,
) -> list[TokenFile]:
    arrays = _with_npy_headers(
        files, [location for location in given if _suffix(location) == ".npy"], dtype
    )
    if arrays:
        by_location = dict(zip(arrays, _npy_files(files, arrays), strict=True))
    else:
        by_location = {}
    flat = [location for location in given if location not in by_location]
    required = {location for location in flat if _suffix(location) == ".idx"}
    candidates = [
        location
        for location in flat
        if location in required or (look and _suffix(location) == ".bin")
    ]
    index_exists = files.exists(
        [_sibling(location, ".idx") for location in candidates]
    )
    for location, exists in zip(candidates, index_exists, strict=True):
        if exists:
            by_location[location] = _indexed_file(
                files, _sibling(location, ".bin"), _sibling(location, ".idx")
            )
        elif location in required:
            raise no_such_file(location)
    plain = [location for location in flat if location not in by_location]
    by_location.update(zip(plain, _plain_files(files, plain, dtype), strict=True))
    if documents:
        for entry in by_location.values():
            if entry.index_file is None:
                raise SourceError(
                    f"{entry.segment.location}: there is no .idx file next to it "
                    "with the document offsets; leave segment_ids out (or, for "
                    "documents, pass offsets=), or write a Megatron .bin and .idx "
                    "pair"
                )
    return [by_location[location] for location in given]


def _with_npy_headers(
    files: Files, arrays: Sequence[str], dtype: np.dtype[Any] | None
) -> Sequence[str]:
    """The arrays, or none where all lack a header: OLMo, Dolma and nanotron call flat files of tokens `.npy`."""
    if (
        dtype is None
        or not arrays
        or any(start == NPY for start in files.read_starts(arrays, len(NPY)))
    ):
        return arrays
    log.warning(
        "%s has no header of NumPy: it is read as a flat file, since dtype= was "
        "passed",
        arrays[0],
    )
    return []


def _npy_files(files: Files, locations: Sequence[str]) -> list[TokenFile]:
    from loadax.files.npy_header import read_npy_headers

    entries = []
    for header, location in zip(
        read_npy_headers(files, locations), locations, strict=True
    ):
        what = f"{location} is {header.dtype}{list(header.shape)}"
        if len(header.shape) != 1:
            raise SourceError(
                f"{what}, not one-dimensional; open it with loadax.from_npy, or save "
                "array.reshape(-1)"
            )
        if header.dtype.kind not in "iu":
            raise SourceError(f"{what}: tokens are integers")
        entries.append(
            TokenFile(FileSpan(location, header.begin, header.size), header.dtype)
        )
    return entries


def _indexed_file(files: Files, location: str, index: str) -> TokenFile:
    from loadax.sources.tokens.megatron import read_index

    parsed = read_index(files, index)
    size = parsed.tokens * parsed.dtype.itemsize
    if not files.exists([location])[0]:
        raise SourceError(
            f"{location}: there is no such file, but {index} describes it; keep both "
            "in one folder"
        )
    (stored,) = files.sizes([location])
    if stored != size:
        tokens = count_text(parsed.tokens, "token")
        described = f"{count_text(size, 'byte')} ({tokens} of {parsed.dtype})"
        raise SourceError(
            f"{location} has {count_text(stored, 'byte')} instead of {described}, "
            f"as {index} says; copy both again"
        )
    return TokenFile(FileSpan(location, 0, size), parsed.dtype, index)


def _plain_files(
    files: Files, locations: Sequence[str], dtype: np.dtype[Any] | None
) -> list[TokenFile]:
    entries = []
    headers = read_token_headers(files, locations)
    for location, header, size in zip(
        locations, headers, files.sizes(locations), strict=True
    ):
        if header is not None:
            entries.append(
                TokenFile(
                    FileSpan(location, header.begin, size - header.begin),
                    header.dtype,
                )
            )
            continue
        if dtype is None:
            what = f"{location}: the file does not contain the dtype of its tokens"
            raise ArgumentError(
                f"{what}; pass dtype=, such as 'uint16'", argument="dtype"
            )
        if size % dtype.itemsize:
            what = (
                f"{location}: its size of {count_text(size, 'byte')} is not a "
                f"multiple of {dtype.itemsize}, that of {dtype}"
            )
            raise SourceError(f"{what}; check dtype=, or copy the file again")
        entries.append(TokenFile(FileSpan(location, 0, size), dtype))
    return entries


def _check_alike(entries: Sequence[TokenFile], dtype: np.dtype[Any] | None) -> None:
    first = entries[0]
    for entry in entries:
        if dtype is not None and entry.dtype.newbyteorder("=") != dtype.newbyteorder(
            "="
        ):
            what = (
                f"{entry.segment.location} contains {entry.dtype} tokens, but "
                f"dtype={dtype} was passed"
            )
            raise SourceError(f"{what}; leave dtype out", argument="dtype")
        if entry.dtype != first.dtype:
            raise SourceError(
                f"{first.segment.location} contains {_spelled(first.dtype)} tokens "
                f"and {entry.segment.location} {_spelled(entry.dtype)}; a stream has "
                "one dtype: convert some files, or open them separately"
            )


def _spelled(dtype: np.dtype[Any]) -> str:
    if dtype.isnative:
        return str(dtype)
    return f"{dtype.newbyteorder('=')} (big-endian)"


def _named_pair(location: str) -> str:
    """Resolves the common prefix of a `.bin` and `.idx` pair, as Megatron's own tools do, to the `.idx` file."""
    local = local_path(location)
    pair = local is not None and not local.exists() and Path(f"{local}.idx").exists()
    if pair:
        return f"{local}.idx"
    return location


def _suffix(location: str) -> str:
    return PurePosixPath(file_name(location)).suffix


def _sibling(location: str, suffix: str) -> str:
    """Replaces the suffix of a path or URL, also in front of a query."""
    before, stem, after = location.rpartition(_suffix(location))
    assert stem
    return before + suffix + after
