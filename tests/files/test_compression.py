"""Decompression of any door: every codec, streams joined by `cat`, damage, and one limit."""

import bz2
import gzip
import io
import lzma
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest

from loadax.errors import SourceError
from loadax.files import compression
from loadax.files.compression import MAGIC_BYTES, compression_of, decompress

CODECS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "bz2": bz2.compress,
    "xz": lzma.compress,
    "zstd": lambda content: pa.compress(content, "zstd", asbytes=True),
}
CONTENT = np.random.default_rng(0).bytes(100_000) + b"x" * 3_000_000


def whole(content: bytes) -> bytes:
    return b"".join(decompress(io.BytesIO(content), "a.gz", len(content)))


@pytest.mark.parametrize("codec", CODECS)
def test_joined_streams_are_decompressed_in_bounded_blocks(codec: str) -> None:
    for parts in ([CONTENT], [CONTENT, b"ab"], [b"a", b"", b"bc" * 9], [b""]):
        packed = b"".join(map(CODECS[codec], parts))
        assert compression_of(packed[:MAGIC_BYTES]) == codec
        blocks = list(decompress(io.BytesIO(packed), "a", len(packed)))
        assert b"".join(blocks) == b"".join(parts)
        assert max(map(len, blocks), default=0) <= 1 << 20


@pytest.mark.parametrize("codec", CODECS)
def test_cut_or_damaged_compressed_file_is_named(codec: str) -> None:
    packed = CODECS[codec](CONTENT)
    for damaged in (packed[:-3], packed[: len(packed) // 2], packed + b"garbage"):
        with pytest.raises(SourceError, match=r"^a\.gz: the file can't be decompressed: .*; copy it again"):
            whole(damaged)


@pytest.mark.parametrize("start", [b"", b"a,b\n", b"BZh,b\n", b'{"a": 1}', b"\x1f\x8b", b"P*"])
def test_other_first_bytes_are_not_compression(start: bytes) -> None:
    assert compression_of(start) is None
    with pytest.raises(SourceError, match=r"a\.gz: the file is not compressed: it begins with .*; rename it"):
        whole(start)


@pytest.mark.parametrize("codec", CODECS)
def test_decompressed_content_has_one_limit(codec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compression, "MOST", 1 << 20)
    packed = CODECS[codec](b"x" * 8_000_000)
    read: list[bytes] = []
    with pytest.raises(SourceError, match=r"a\.gz: its .* more than 200 times as many.*decompress it yourself"):
        read.extend(decompress(io.BytesIO(packed), "a.gz", len(packed)))
    assert sum(map(len, read)) <= max(1 << 20, 200 * len(packed))
    assert len(whole(CODECS[codec](CONTENT))) == len(CONTENT)  # a smaller ratio


def test_xz_dictionary_has_a_limit() -> None:
    """A file of 60 bytes, whose dictionary takes 512 MiB; compressing it takes seconds."""
    packed = (
        "fd377a585a000004e6d6b44602002101220000008240acdc010000780000"
        "000045aeef83f8ee160a00011901a52c81cc1fb6f37d010000000004595a"
    )
    with pytest.raises(SourceError, match=r"a\.gz: the file can't be decompressed: Memory usage limit exceeded"):
        whole(bytes.fromhex(packed))
