"""Megatron's index files: what they say, and what is said of those that are damaged."""

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loadax.errors import SourceError
from loadax.sources.io.files import Files
from loadax.sources.tokens.megatron import read_index
from loadax.sources.tokens.windows import open_tokens
from tests.sources.token_corpora import CODES, index_bytes, stream, write_pair

GOOD = index_bytes(8, [3, 0, 4], [0, 6, 6], [0, 2, 3])


def index(folder: Path, content: bytes) -> str:
    (folder / "x.idx").write_bytes(content)
    return str(folder / "x.idx")


def test_what_an_index_says(tmp_path: Path) -> None:
    found = read_index(Files(), index(tmp_path, GOOD))
    assert found.dtype == np.uint16
    assert found.tokens == 7
    assert found.begins.tolist() == [0, 3]


@pytest.mark.parametrize("name", [name for name in CODES if "float" not in name])
def test_dtypes(name: str, tmp_path: Path) -> None:
    tokens = stream(20, name)
    source = open_tokens(write_pair(tmp_path / "x.bin", [[tokens]]), 19)
    assert source.spec["tokens"].dtype == np.dtype(name)
    assert source.read(np.array([0]))["tokens"][0].tolist() == tokens.tolist()


def test_an_index_of_many_sequences_is_read_in_pieces(tmp_path: Path) -> None:
    count = 1_200_000  # 9.6 MB of pointers
    head = b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, 1, count, 2)
    content = (
        head + np.ones(count, "<i4").tobytes() + np.arange(count, dtype="<i8").tobytes() + struct.pack("<2q", 0, count)
    )
    found = read_index(Files(), index(tmp_path, content))
    assert (found.tokens, found.begins.tolist()) == (count, [0])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", r"bytes 0 to 33 are missing: the file is cut short, or of another kind"),
        (
            b"no index at all" * 5,
            r"is not a Megatron index: it begins with b'no index '; pass the \.bin file itself, with dtype=",
        ),
        (
            index_bytes(8, [3], [0], [0, 1], version=2),
            r"has version 2, but only version 1 is supported; write it again",
        ),
        (
            index_bytes(6, [3], [0], [0, 1]),
            r"the dtype of its tokens has the code 6, which is float64: tokens are integers",
        ),
        (index_bytes(9, [3], [0], [0, 1]), r"the dtype of its tokens has the code 9, which is unknown"),
        (GOOD[:-1], r"the file is cut short: 3 sequences and 3 document indices take 94 bytes; copy it again"),
        (GOOD[:40], r"the file is cut short: 3 sequences and 3 document indices take 94 bytes; copy it again"),
        (
            index_bytes(8, [3, 4], [0, 8], [0, 2]),
            (
                r"sequence 1 has 4 tokens and begins at byte 8, expected byte 6, the end of the previous one; "
                r"the file is damaged"
            ),
        ),
        (index_bytes(8, [3, -4], [0, 6], [0, 2]), r"sequence 1 has -4 tokens and begins at byte 6, expected byte 6"),
        (
            index_bytes(8, [3, 4], [0, 6], [0, 1]),
            r"its 2 document indices don't ascend from 0 to 2, the number of its sequences",
        ),
        (index_bytes(8, [3, 4], [0, 6], [0, 2, 1, 2]), r"its 4 document indices don't ascend from 0 to 2"),
        (index_bytes(8, [3, 4], [0, 6], [1, 2]), r"its 2 document indices don't ascend from 0 to 2"),
        (index_bytes(8, [3, 4], [0, 6], []), r"its 0 document indices don't ascend from 0 to 2"),
    ],
)
def test_indices_that_are_damaged(content: bytes, message: str, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"x\.idx:? " + message):
        read_index(Files(), index(tmp_path, content))


def test_a_pair_that_does_not_match(tmp_path: Path) -> None:
    path = write_pair(tmp_path / "x.bin", [[stream(50)]])
    content = path.read_bytes()
    for changed, how in {content[:-2]: "shorter", content + b"\x00": "longer", b"": "shorter"}.items():
        path.write_bytes(changed)
        with pytest.raises(
            SourceError,
            match=rf"x\.bin is {how} than the 100 bytes \(50 tokens of uint16\) according to .*x\.idx; copy",
        ):
            open_tokens(path, 4)
    path.write_bytes(content)
    with pytest.raises(
        SourceError, match=r"x\.bin contains uint16 tokens, but dtype=int32 was passed; leave dtype out"
    ):
        open_tokens(path, 4, dtype="int32")
    path.unlink()
    given: list[Any] = [path, path.with_suffix(".idx"), tmp_path, tmp_path / "x"]
    for each in given:
        with pytest.raises(
            SourceError, match=r"x\.bin: there is no such file, but .*x\.idx describes it; keep both in one folder"
        ):
            open_tokens(each, 4)
