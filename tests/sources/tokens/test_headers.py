"""Headers of token files are skipped or refused by name, never read as tokens."""

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import loadax
from loadax.errors import ArgumentError, SourceError
from tests.servers.s3 import S3Server

pytest_plugins = ["tests.servers.fixtures"]

TOKENS = np.arange(100, 200)


def llm_c(tokens: Any, magic: int = 20240520, version: int = 1, count: int | None = None) -> bytes:
    header = np.zeros(256, "<i4")
    header[:3] = magic, version, len(tokens) if count is None else count
    return header.tobytes() + tokens.tobytes()


def litgpt(tokens: Any, code: int, chunk: int | None = None, version: int = 1) -> bytes:
    return b"LITPKDS" + struct.pack("<QBQ", version, code, chunk or len(tokens)) + tokens.tobytes()


def samples(count: int, config: bytes = b"") -> bytes:
    """A chunk of litdata, or a shard of Mosaic's Streaming, which has a description too."""
    first = 4 * (count + 2) + len(config)
    offsets = [first + 16 * number for number in range(count + 1)]
    return struct.pack(f"<{count + 2}I", count, *offsets) + config + bytes(16 * count)


HEADERS = {
    "llm.c of GPT-2": llm_c(TOKENS.astype("<u2")),
    "llm.c of Llama 3": llm_c(TOKENS.astype("<u4"), 20240801, 7),
    "lit-gpt uint16": litgpt(TOKENS.astype("<u2"), 8),
    "lit-gpt int32": litgpt(TOKENS.astype("<i4"), 4),
    "lit-gpt of several chunks": litgpt(TOKENS.astype("<u2"), 8, chunk=25),
}
REFUSED = {
    "llm.c cut short": (
        HEADERS["llm.c of GPT-2"][:-2],
        r"llm\.c \(20240520, version 1, 100 entries, in a file",
    ),
    "llm.c of another version": (llm_c(TOKENS.astype("<u2"), 20240520, 2), r"llm\.c \(20240520, version 2"),
    "llm.c of negative length": (llm_c(TOKENS.astype("<u2"), count=-1), r"llm\.c \(20240520, version 1, -1 entries"),
    "evaluation of llm.c": (llm_c(TOKENS.astype("<u2"), 20240522, 1, 7), r"llm\.c \(20240522"),
    "tokenizer of llm.c": (llm_c(TOKENS.astype("u1"), 20240328, 2), r"llm\.c \(20240328"),
    "lit-gpt cut short": (litgpt(TOKENS.astype("<u2"), 8)[:-2], r"lit-gpt \(LITPKDS, version 1, dtype 8"),
    "lit-gpt of floats": (litgpt(TOKENS.astype("<f4"), 6), r"lit-gpt \(LITPKDS, version 1, dtype 6"),
    "lit-gpt of another version": (litgpt(TOKENS.astype("<u2"), 8, version=2), r"lit-gpt \(LITPKDS, version 2"),
    "lit-gpt without tokens": (litgpt(TOKENS[:0], 8, chunk=4), r"lit-gpt \(LITPKDS"),
    "litdata": (samples(6), r"litdata or Mosaic's Streaming \(of 6 samples"),
    "litdata of many samples": (samples(5000), r"litdata or Mosaic's Streaming \(of 5,000 samples"),
    "Mosaic": (samples(6, b'{"column_names": ["tokens"]}  '), r"litdata or Mosaic's Streaming \(of 6 samples"),
}
WAYS: dict[str, Callable[[Path], Any]] = {
    "file": lambda path: path,
    "folder": lambda path: path.parent,
    "list": lambda path: [path],
    "pattern": lambda path: path.parent / "*.bin",
    "URL": lambda path: path.as_uri(),
}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("content", HEADERS.values(), ids=HEADERS)
def test_header_is_skipped_and_states_the_dtype(content: bytes, way: Callable[[Path], Any], tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(content)
    data = loadax.from_tokens(way(tmp_path / "a.bin"), 99)
    assert data[0]["tokens"].tolist() == TOKENS.tolist()
    begin = len(content) - len(TOKENS) * data[0]["tokens"].itemsize
    assert data.source.locate(0)[0][1:3] == (begin, len(content) - 1)
    documents = loadax.from_documents(way(tmp_path / "a.bin"), [0, 30, 100])
    assert [row.tolist() for row in documents] == [TOKENS[:30].tolist(), TOKENS[30:].tolist()]
    with pytest.raises(SourceError, match=r"a\.bin contains .* tokens, but dtype=int64 was passed; leave dtype out"):
        loadax.from_tokens(way(tmp_path / "a.bin"), 99, dtype="int64")


@pytest.mark.parametrize(("content", "message"), REFUSED.values(), ids=REFUSED)
def test_header_that_does_not_fit_is_refused_by_name(content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(content)
    for dtype in ("uint8", None):
        with pytest.raises(SourceError, match=rf"a\.bin: its header is that of {message}.*; copy the file again if"):
            loadax.from_tokens(tmp_path, 4, dtype=dtype)


@pytest.mark.parametrize("place", [0, 1, 2])
def test_each_file_is_looked_at(place: int, tmp_path: Path) -> None:
    parts = np.split(TOKENS.astype("<u2")[:99], 3)
    for number, part in enumerate(parts):
        (tmp_path / f"{number}.bin").write_bytes(llm_c(part) if number == place else part.tobytes())
    data = loadax.from_tokens(tmp_path, 98, dtype="uint16")
    assert data[0]["tokens"].tolist() == TOKENS[:99].tolist()
    with pytest.raises(ArgumentError, match="pass dtype="):
        loadax.from_tokens(tmp_path, 98)


def test_in_a_bucket(s3_server: S3Server, bucket: str, tmp_path: Path) -> None:
    for number, content in enumerate((HEADERS["llm.c of GPT-2"], HEADERS["lit-gpt uint16"])):
        (tmp_path / f"{number}.bin").write_bytes(content)
    s3_server.upload(tmp_path, bucket, "tokens/")
    (tmp_path / "2.bin").write_bytes(REFUSED["litdata of many samples"][0])
    s3_server.upload(tmp_path, bucket, "chunks/")
    url = f"s3://{bucket}/tokens"
    for path in (url, f"{url}/", f"{url}/*.bin", [f"{url}/0.bin", f"{url}/1.bin"]):
        assert loadax.from_tokens(path, 199)[0]["tokens"].tolist() == TOKENS.tolist() * 2
    with pytest.raises(SourceError, match=r"chunks/2\.bin: its header is that of litdata"):
        loadax.from_tokens(f"s3://{bucket}/chunks", 199, dtype="uint16")


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "int32", "int64"])
def test_flat_tokens_are_never_taken_for_a_header(dtype: str, tmp_path: Path) -> None:
    """Random tokens, ascending ones, one value, and the magic number of llm.c in front of others."""
    rng = np.random.default_rng(0)
    llm_c_magic = np.frombuffer(struct.pack("<i", 20240520), dtype) if dtype != "int64" else np.array([20240520])
    for tokens in (
        *(rng.integers(0, 120, size).astype(dtype) for size in range(2, 50)),
        *(np.full(size, size, dtype) for size in range(2, 40)),
        *(np.arange(start, start + 60).astype(dtype) for start in range(20)),
        np.append(llm_c_magic, rng.integers(300, 400, 600)).astype(dtype),
        np.frombuffer(b"LITPKDX" + bytes(41), dtype),
    ):
        (tmp_path / "a.bin").write_bytes(tokens.tobytes())
        data = loadax.from_tokens(tmp_path / "a.bin", len(tokens) - 1, dtype=dtype)
        assert data[0]["tokens"].tolist() == tokens.tolist()


def test_array_of_another_name_is_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", TOKENS.astype("<u2"))
    (tmp_path / "a.npy").rename(tmp_path / "a.bin")
    with pytest.raises(SourceError, match=r"a\.bin is a \.npy file; give it a name that ends in \.npy"):
        loadax.from_tokens(tmp_path / "a.bin", 99, dtype="uint16")
    (tmp_path / "a.bin").rename(tmp_path / "b.npy")
    assert loadax.from_tokens(tmp_path, 99)[0]["tokens"].tolist() == TOKENS.tolist()


class TestFlatTokensCalledNpy:
    def test_are_read_where_dtype_says_so(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        for number in range(2):
            TOKENS.astype("<u2").tofile(tmp_path / f"part-{number}.npy")
        for path in (tmp_path, tmp_path / "*.npy", sorted(tmp_path.iterdir())):
            caplog.clear()
            assert loadax.from_tokens(path, 199, dtype="uint16")[0]["tokens"].tolist() == TOKENS.tolist() * 2
            assert "part-0.npy has no header of NumPy: it is read as a flat file" in caplog.text

    def test_are_named_else(self, tmp_path: Path) -> None:
        TOKENS.astype("<u2").tofile(tmp_path / "a.npy")
        advice = "if it is a flat file of tokens, open it with from_tokens and dtype="
        with pytest.raises(SourceError, match=advice):
            loadax.from_tokens(tmp_path, 99)
        with pytest.raises(SourceError, match=advice):
            loadax.from_npy(tmp_path / "a.npy")
        assert loadax.from_tokens(tmp_path / "a.npy", 99, dtype="uint16")[0]["tokens"].tolist() == TOKENS.tolist()

    def test_beside_arrays_are_refused(self, tmp_path: Path) -> None:
        TOKENS.astype("<u2").tofile(tmp_path / "a.npy")
        np.save(tmp_path / "b.npy", TOKENS.astype("<u2"))
        with pytest.raises(SourceError, match=r"a\.npy is not a \.npy file"):
            loadax.from_tokens(tmp_path, 99, dtype="uint16")


def test_documents_that_cross_files_are_whole_whichever_are_read_together(tmp_path: Path) -> None:
    tokens = np.arange(60, dtype=np.uint16)
    for number, part in enumerate(np.split(tokens, [20, 41])):
        part.tofile(tmp_path / f"{number}.bin")
    offsets = [0, 5, 15, 24, 25, 60]
    files = [tmp_path / f"{number}.bin" for number in range(3)]
    documents = loadax.from_documents(files, offsets, dtype="uint16")
    expected = [part.tolist() for part in np.split(tokens, offsets[1:-1])]
    assert [documents[row].tolist() for row in range(5)] == expected
    packed = documents.pack(60)[0]["tokens"]  # of all documents in one read
    assert packed.tolist() == tokens.tolist()
