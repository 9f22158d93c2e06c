"""Recognises files of tokens that begin with a header: those of llm.c and lit-gpt."""

import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from loadax.core.formatting import count_text
from loadax.errors import SourceError
from loadax.files.byte_ranges import ByteRange
from loadax.files.files import Files
from loadax.files.magic import NPY

# magic, version and number of tokens, in 256 int32
_LLM_C = struct.Struct("<iii1012x")
_LLM_C_TOKENS = {(20240520, 1): "<u2", (20240801, 7): "<u4"}  # of GPT-2 and Llama 3
# Of other files: models, states, a tokenizer, examples for evaluation.
_LLM_C_MAGIC = (
    20240326,
    20240327,
    20240328,
    20240520,
    20240522,
    20240527,
    20240801,
    20240803,
)
_LLM_C_VERSIONS = range(1, 100)
# magic, version, code of the dtype, tokens of a chunk
_LITGPT = struct.Struct("<7sQBQ")
_LITGPT_TOKENS = {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}
_LONGEST_CONFIG = 1 << 16  # bytes of the description in a Mosaic shard


class TokenHeader(NamedTuple):
    """Content of a header: the dtype of the tokens, and their first byte in the file. They end with the file."""

    dtype: np.dtype[Any]
    begin: int


def read_token_headers(
    files: Files, locations: Sequence[str]
) -> list[TokenHeader | None]:
    """Reads the headers of files of tokens; None for a file without one.

    A header is recognised by its magic number and version, or by several numbers that fit the file's size.

    Raises:
        SourceError: When a header does not fit its file, or is that of a format which can't be read; names the file.
    """
    starts = files.read_starts(locations, _LLM_C.size)
    headers = []
    for location, start, size in zip(
        locations, starts, files.sizes(locations), strict=True
    ):
        if start.startswith(NPY):
            raise SourceError(
                f"{location} is a .npy file; give it a name that ends in .npy"
            )
        headers.append(
            _llm_c(location, start, size) or _litgpt(location, start, size)
        )
        count, first = struct.unpack("<II", start[:8].ljust(8, b"\0"))
        end = 4 * (count + 1)  # where the last offset is: that of the end of the file
        if count and 4 <= first - end <= _LONGEST_CONFIG and first <= size:
            (last,) = files.read([ByteRange(location, end, end + 4)])
            if int.from_bytes(last, "little") == size:
                raise _refusal(
                    location,
                    "litdata or Mosaic's Streaming",
                    f"of {count_text(count, 'sample')}",
                )
    return headers


def _llm_c(location: str, start: bytes, size: int) -> TokenHeader | None:
    magic, version, count = _LLM_C.unpack(
        start[: _LLM_C.size].ljust(_LLM_C.size, b"\0")
    )
    if magic not in _LLM_C_MAGIC or version not in _LLM_C_VERSIONS:
        return None
    dtype = np.dtype(_LLM_C_TOKENS.get((magic, version), "V1"))
    if dtype.kind == "V" or size != _LLM_C.size + count * dtype.itemsize:
        raise _refusal(
            location,
            "llm.c",
            f"{magic}, version {version}, {count_text(count, 'entry', 'entries')}, "
            f"in a file of {count_text(size, 'byte')}",
        )
    return TokenHeader(dtype, _LLM_C.size)


def _litgpt(location: str, start: bytes, size: int) -> TokenHeader | None:
    magic, version, code, count = _LITGPT.unpack(
        start[: _LITGPT.size].ljust(_LITGPT.size, b"\0")
    )
    if magic != b"LITPKDS":
        return None
    header = TokenHeader(np.dtype(_LITGPT_TOKENS.get(code, "V1")), _LITGPT.size)
    chunk = count * header.dtype.itemsize
    if (
        version != 1
        or code not in _LITGPT_TOKENS
        or not chunk
        or size == header.begin
        or (size - header.begin) % chunk
    ):
        what = (
            f"LITPKDS, version {version}, dtype {code}, chunks of "
            f"{count_text(count, 'token')}, in a file of {count_text(size, 'byte')}"
        )
        raise _refusal(location, "lit-gpt", what)
    return header


def _refusal(location: str, writer: str, header: str) -> SourceError:
    return SourceError(
        f"{location}: its header is that of {writer} ({header}), but not of a whole "
        "file of tokens that loadax reads; copy the file again if it should be, or "
        "read it by the library that wrote it"
    )
