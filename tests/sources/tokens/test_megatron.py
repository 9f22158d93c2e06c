"""Megatron's index files: their contents, and errors for damaged ones."""

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import loadax
from loadax.errors import SourceError
from loadax.files.files import Files
from loadax.sources.tokens.megatron import read_index
from tests.sources.token_corpora import CODES, index_bytes, open_tokens, stream, write_pair

GOOD = index_bytes(8, [3, 0, 4], [0, 6, 6], [0, 2, 3])


def index(folder: Path, content: bytes) -> str:
    (folder / "x.idx").write_bytes(content)
    return str(folder / "x.idx")


def test_index_has_dtype_tokens_and_documents(tmp_path: Path) -> None:
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
        (b"", r"bytes 0 to 25 are missing: the file is cut short, or of another kind"),
        (
            b"no index at all" * 5,
            r"is not an index of Megatron's or fairseq's mmap format: b'no index '; write it",
        ),
        (
            index_bytes(8, [3], [0], [0, 1], version=2),
            r"has version 2, not 1; write it again",
        ),
        (
            index_bytes(6, [3], [0], [0, 1]),
            r"the code 6 of its dtype is not one of integers; convert the tokens",
        ),
        (index_bytes(11, [3], [0], [0, 1]), r"the code 11 of its dtype is not one of integers"),
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
    for changed in (content[:-2], content + b"\x00", b""):
        path.write_bytes(changed)
        with pytest.raises(
            SourceError,
            match=rf"x\.bin has {len(changed)} bytes instead of 100 bytes \(50 tokens of uint16\), as .*x\.idx says",
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


def fairseq_bytes(code: int, lengths: list[int], itemsize: int) -> bytes:
    """An index of fairseq, which has no documents."""
    starts = [sum(lengths[:number]) * itemsize for number in range(len(lengths))]
    head = b"MMIDIDX\x00\x00" + struct.pack("<QBQ", 1, code, len(lengths))
    return head + struct.pack(f"<{len(lengths)}i{len(starts)}q", *lengths, *starts)


@pytest.mark.parametrize(("code", "dtype"), [(4, "<i4"), (5, "<i8"), (8, "<u2"), (9, "<u4"), (10, "<u8")])
def test_each_sequence_of_fairseq_is_a_document(code: int, dtype: str, tmp_path: Path) -> None:
    tokens = np.arange(12, dtype=dtype)
    tokens.tofile(tmp_path / "train.bin")
    (tmp_path / "train.idx").write_bytes(fairseq_bytes(code, [3, 4, 5], tokens.itemsize))
    assert loadax.from_tokens(tmp_path / "train.bin", 11)[0]["tokens"].tolist() == list(range(12))
    assert [row.tolist() for row in loadax.from_documents(tmp_path)] == [[0, 1, 2], [3, 4, 5, 6], [7, 8, 9, 10, 11]]


@pytest.mark.parametrize("magic", [b"TNTIDX\x00\x00", b"HUFFIDX\x00\x00"])
def test_older_formats_of_fairseq_are_named(magic: bytes, tmp_path: Path) -> None:
    np.arange(12, dtype="<i4").tofile(tmp_path / "train.bin")
    (tmp_path / "train.idx").write_bytes(magic + bytes(80))
    for path in (tmp_path, tmp_path / "train.bin", tmp_path / "train.idx", tmp_path / "train"):
        with pytest.raises(SourceError, match=rf"train\.idx is not an index .*{magic[:6].decode()}.*dataset-impl mmap"):
            loadax.from_tokens(path, 4)


def test_index_of_another_program_beside_flat_tokens_is_moved_away(tmp_path: Path) -> None:
    np.arange(12, dtype="<u2").tofile(tmp_path / "x.bin")
    index(tmp_path, b"0 17\n17 17\n" * 9)
    with pytest.raises(SourceError, match=r"move it elsewhere, and pass the \.bin file with dtype="):
        loadax.from_tokens(tmp_path / "x.bin", 11, dtype="uint16")
    (tmp_path / "x.idx").rename(tmp_path / "index-of-another-program")
    assert loadax.from_tokens(tmp_path / "x.bin", 11, dtype="uint16")[0]["tokens"].tolist() == list(range(12))
