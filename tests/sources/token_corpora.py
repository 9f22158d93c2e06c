"""Files of tokens for tests, written byte by byte as their formats say, and what windows of them are, found slowly."""

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadax import from_tokens
from loadax.sources.tokens.windows import TokenSource

CODES = {"uint8": 1, "int8": 2, "int16": 3, "int32": 4, "int64": 5, "float64": 6, "float32": 7, "uint16": 8}


def stream(count: int, dtype: Any = np.uint16, seed: int = 0) -> NDArray[Any]:
    return np.random.default_rng(seed).integers(0, 100, count).astype(dtype)


def open_tokens(*given: Any, **options: Any) -> TokenSource:
    """The source that `from_tokens` opens."""
    source = from_tokens(*given, **options).source
    assert isinstance(source, TokenSource)
    return source


def write_bin(path: Path, tokens: NDArray[Any]) -> Path:
    path.write_bytes(tokens.tobytes())
    return path


def write_npy(path: Path, tokens: NDArray[Any]) -> Path:
    np.save(path, tokens)
    return path


def write_pair(path: Path, documents: Sequence[Sequence[NDArray[Any]]]) -> Path:
    """A Megatron pair: documents, each of some sequences. The path of the .bin file."""
    sequences = [sequence for document in documents for sequence in document]
    dtype = sequences[0].dtype
    path.write_bytes(b"".join(each.tobytes() for each in sequences))
    lengths = [len(each) for each in sequences]
    starts = [sum(lengths[:number]) * dtype.itemsize for number in range(len(lengths))]
    firsts = [sum(len(document) for document in documents[:number]) for number in range(len(documents) + 1)]
    path.with_suffix(".idx").write_bytes(index_bytes(CODES[dtype.name], lengths, starts, firsts))
    return path


def index_bytes(
    code: int, lengths: Sequence[int], starts: Sequence[int], firsts: Sequence[int], version: int = 1
) -> bytes:
    head = b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", version, code, len(lengths), len(firsts))
    return head + struct.pack(f"<{len(lengths)}i{len(starts)}q{len(firsts)}q", *lengths, *starts, *firsts)


def windows(tokens: NDArray[Any], seq_len: int, stride: int) -> NDArray[Any]:
    """All of them, one by one."""
    found = []
    start = 0
    while start + seq_len + 1 <= len(tokens):
        found.append(tokens[start : start + seq_len + 1])
        start += stride
    return np.array(found)


def document_numbers(lengths: Sequence[int], seq_len: int, stride: int) -> NDArray[Any]:
    """For each window the number of the document of each token, from 1, by counting."""
    owner = [number for number, length in enumerate(lengths) for _ in range(length)]
    found = []
    start = 0
    while start + seq_len + 1 <= len(owner):
        mine = owner[start : start + seq_len + 1]
        order = list(dict.fromkeys(mine))
        found.append([1 + order.index(each) for each in mine])
        start += stride
    return np.array(found)
