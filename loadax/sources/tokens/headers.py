"""Recognises files of tokens that begin with a header: those of llm.c, lit-gpt, litdata and Mosaic's Streaming."""

import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from loadax.errors import SourceError
from loadax.sources.io.byte_ranges import ByteRange
from loadax.sources.io.files import Files
from loadax.sources.npy.header import HEADER_BYTES

_LLM_C = struct.Struct("<iii")  # magic, version, number of tokens; at the beginning of 256 int32
_LLM_C_SIZE = 1024
_LLM_C_TOKENS = {20240520: (1, "<u2"), 20240801: (7, "<u4")}  # version and dtype of the tokens, for GPT-2 and Llama 3
_LLM_C_OTHERS = {
    20240326: "a model",
    20240327: "a state for debugging",
    20240328: "a tokenizer",
    20240522: "examples for evaluation",
    20240527: "the state of a run",
    20240803: "a model",
}
_VERSIONS = range(1, 100)

_LITGPT = struct.Struct("<7sQBQ")  # magic, version, dtype, tokens of a chunk
_LITGPT_MAGIC = b"LITPKDS"
_LITGPT_DTYPES = {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}

_LONGEST_CONFIG = 1 << 16  # bytes between the offsets and the first sample of a Mosaic shard


class TokenHeader(NamedTuple):
    """What a header says: the dtype of the tokens, and their first byte in the file. They end with the file."""

    dtype: np.dtype[Any]
    begin: int


def read_token_headers(files: Files, locations: Sequence[str]) -> list[TokenHeader | None]:
    """Reads the headers of files of tokens; None for a file without one.

    A header is recognised by its magic number and version, and must fit the size of its file.

    Raises:
        SourceError: When a header does not fit its file, or is that of a format which can't be read; names the file.
    """
    files.exists(locations, HEADER_BYTES)  # one request for size and start
    sizes = files.sizes(locations)
    starts = files.read_starts(locations, HEADER_BYTES)
    for location, start, size in zip(locations, starts, sizes, strict=True):
        _refuse_samples(files, location, start, size)
    return [
        _llm_c(location, start, size) or _litgpt(location, start, size)
        for location, start, size in zip(locations, starts, sizes, strict=True)
    ]


def _llm_c(location: str, start: bytes, size: int) -> TokenHeader | None:
    if len(start) < _LLM_C.size:
        return None
    magic, version, count = _LLM_C.unpack_from(start)
    if version not in _VERSIONS or not (magic in _LLM_C_TOKENS or magic in _LLM_C_OTHERS):
        return None
    if magic in _LLM_C_OTHERS:
        raise SourceError(
            f"{location} contains {_LLM_C_OTHERS[magic]} of llm.c (its header has the number {magic}), not a stream of "
            "tokens; pass the files of tokens"
        )
    known, dtype = _LLM_C_TOKENS[magic]
    if version != known:
        raise SourceError(
            f"{location} has a header of llm.c of version {version}, but only version {known} of {magic} is supported; "
            "write it again by llm.c's write_datafile"
        )
    end = _LLM_C_SIZE + count * np.dtype(dtype).itemsize
    if size != end:
        raise SourceError(
            f"{location}: its header of llm.c counts {count} tokens of {np.dtype(dtype)}, with which the file would "
            f"have {end} bytes, but it has {size}; copy it again"
        )
    return TokenHeader(np.dtype(dtype), _LLM_C_SIZE)


def _litgpt(location: str, start: bytes, size: int) -> TokenHeader | None:
    if not start.startswith(_LITGPT_MAGIC) or len(start) < _LITGPT.size:
        return None
    _, version, code, count = _LITGPT.unpack_from(start)
    if version != 1 or code not in _LITGPT_DTYPES:
        raise SourceError(
            f"{location} has a header of lit-gpt (LITPKDS) of version {version} with the dtype {code}, but only "
            "integers of version 1 are supported; write it again"
        )
    dtype = np.dtype(_LITGPT_DTYPES[code])
    if not count or size == _LITGPT.size or (size - _LITGPT.size) % (count * dtype.itemsize):
        raise SourceError(
            f"{location}: its header of lit-gpt (LITPKDS) announces chunks of {count} tokens of {dtype}, which don't "
            f"fill the {size - _LITGPT.size} bytes after it; copy it again"
        )
    return TokenHeader(dtype, _LITGPT.size)


def _refuse_samples(files: Files, location: str, start: bytes, size: int) -> None:
    """Refuses a file of samples: their number, the first byte of each and the end of the file, as uint32."""
    if len(start) < 8:
        return
    count, first = struct.unpack_from("<II", start)
    end = 4 * (count + 1)  # of the file, in the header
    if not count or not end + 4 <= first <= end + 4 + _LONGEST_CONFIG or first > size:
        return
    (last,) = files.read([ByteRange(location, end, end + 4)])
    if int.from_bytes(last, "little") == size:
        raise SourceError(
            f"{location} is a file of {count} samples with a header, as litdata and Mosaic's Streaming write it, not a "
            "flat file of tokens; open its folder by that library, and pass its dataset to loadax.from_source"
        )
