"""Windows of token streams: any files, any stride, any columns, equal to what slicing the whole stream gives."""

import os
import pickle
import re
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from loadax.errors import ArgumentError, RowIndexError, SourceError
from loadax.io import from_tokens
from loadax.protocols import ArraySpec, Location
from loadax.sources.tokens.windows import TokenSource
from loadax.testing import check_source
from tests.limits import examples
from tests.sources.token_corpora import document_numbers, open_tokens, stream, windows, write_bin, write_npy, write_pair

DTYPES = ["uint8", "uint16", "<i4", "uint32", "int64", ">u2", ">i4"]


def test_with_the_default_stride_each_token_is_a_target_once(tmp_path: Path) -> None:
    source = open_tokens(
        write_bin(tmp_path / "x.bin", np.arange(101, dtype=np.uint16)), 10, dtype="uint16", targets=True
    )
    batch = source.read(np.arange(len(source)))
    assert batch["targets"].reshape(-1).tolist() == list(range(1, 101))
    assert batch["inputs"].reshape(-1).tolist() == list(range(100))
    assert source.spec == {name: ArraySpec((10,), np.dtype(np.uint16)) for name in ("inputs", "targets")}


@settings(max_examples=examples(150), deadline=None)
@given(
    sizes=st.lists(st.integers(0, 60), min_size=1, max_size=6),
    kinds=st.lists(st.sampled_from(["bin", "npy"]), min_size=6, max_size=6),
    dtype=st.sampled_from(DTYPES),
    seq_len=st.integers(1, 30),
    stride=st.none() | st.integers(1, 40),
    targets=st.booleans(),
    data=st.data(),
)
def test_windows_are_what_slicing_the_whole_stream_gives(
    sizes: list[int], kinds: list[str], dtype: str, seq_len: int, stride: int | None, targets: bool, data: st.DataObject
) -> None:
    tokens = stream(sum(sizes), dtype)
    cuts = np.cumsum([0, *sizes])
    with tempfile.TemporaryDirectory() as folder:
        paths = []
        for number, kind in enumerate(kinds[: len(sizes)]):
            write = write_bin if kind == "bin" else write_npy
            paths.append(write(Path(folder) / f"{number}.{kind}", tokens[cuts[number] : cuts[number + 1]]))
        expected = windows(tokens, seq_len, stride or seq_len)
        if not len(expected):
            with pytest.raises(SourceError, match=rf"{len(tokens)} tokens?, less than one row of .* = {seq_len + 1}"):
                open_tokens(paths, seq_len, dtype=dtype, stride=stride, targets=targets)
            return
        source = open_tokens(paths, seq_len, dtype=dtype, stride=stride, targets=targets)
        assert len(source) == len(expected)
        rows = np.array(data.draw(st.lists(st.integers(0, len(source) - 1), max_size=20)), np.int64)
        leaves = {"inputs": (0, seq_len), "targets": (1, seq_len + 1)} if targets else {"tokens": (0, seq_len + 1)}
        batch = source.read(rows)
        boxes, out, wanted = [], [], []
        for name, (start, stop) in leaves.items():
            whole = expected[rows][:, start:stop]
            np.testing.assert_array_equal(batch[name], whole)
            assert batch[name].dtype == np.dtype(dtype).newbyteorder("=")
            low = data.draw(st.integers(0, stop - start - 1))
            high = data.draw(st.integers(low + 1, stop - start))
            # Within memory that is wider, so that its rows are not contiguous.
            within = np.full((len(rows), high - low + 3), 7, data.draw(st.sampled_from([batch[name].dtype, np.int64])))
            boxes.append(((low, high),))
            out.append(within[:, 1:-2])
            wanted.append((within, whole[:, low:high]))
        source.read_into(rows, boxes, out)
        for within, part in wanted:
            np.testing.assert_array_equal(within[:, 1:-2], part)
            assert (within[:, [0, -2, -1]] == 7).all()


def test_many_rows_of_a_large_file(tmp_path: Path) -> None:
    """More than are copied at a time."""
    tokens = stream(1 << 18)
    source = open_tokens(write_bin(tmp_path / "x.bin", tokens), 512, dtype="uint16", stride=3)
    rows = np.random.default_rng(1).integers(0, len(source), 700)
    np.testing.assert_array_equal(source.read(rows)["tokens"], tokens[rows[:, None] * 3 + np.arange(513)])


@settings(max_examples=examples(100), deadline=None)
@given(
    files=st.lists(
        st.lists(st.lists(st.integers(0, 12), min_size=1, max_size=3), min_size=1, max_size=5), min_size=1, max_size=3
    ),
    seq_len=st.integers(1, 15),
    stride=st.none() | st.integers(1, 20),
    targets=st.booleans(),
    data=st.data(),
)
def test_documents_are_numbered_within_each_window(
    files: list[list[list[int]]], seq_len: int, stride: int | None, targets: bool, data: st.DataObject
) -> None:
    lengths = [sum(document) for documents in files for document in documents]
    tokens = stream(sum(lengths), np.int32)
    with tempfile.TemporaryDirectory() as folder:
        place, paths = 0, []
        for number, documents in enumerate(files):
            parts = []
            for document in documents:
                parts.append(
                    [tokens[place + sum(document[:k]) : place + sum(document[: k + 1])] for k in range(len(document))]
                )
                place += sum(document)
            paths.append(write_pair(Path(folder) / f"{number}.bin", parts))
        expected = document_numbers(lengths, seq_len, stride or seq_len)
        if not len(expected):
            return
        source = open_tokens(paths, seq_len, stride=stride, targets=targets, segment_ids=True)
        length = seq_len if targets else seq_len + 1
        assert source.spec["segment_ids"] == ArraySpec((length,), np.dtype(np.int32))
        assert list(source.spec) == sorted(source.spec)
        rows = np.array(data.draw(st.lists(st.integers(0, len(source) - 1), max_size=10)), np.int64)
        batch = source.read(rows)
        np.testing.assert_array_equal(batch["segment_ids"], expected.reshape(len(expected), -1)[rows][:, :length])
        name = "inputs" if targets else "tokens"
        np.testing.assert_array_equal(batch[name], windows(tokens, seq_len, stride or seq_len)[rows][:, :length])
        low = data.draw(st.integers(0, length - 1))
        high = data.draw(st.integers(low + 1, length))
        out = np.zeros((len(rows), high - low), np.int32)
        asked: list[Any] = [((low, high),) if each == "segment_ids" else None for each in source.spec]
        source.read_into(rows, asked, [out if each == "segment_ids" else None for each in source.spec])
        np.testing.assert_array_equal(out, expected[rows][:, low:high])


def test_a_pair_is_found_by_either_of_its_names(tmp_path: Path) -> None:
    tokens = stream(40, np.int32)
    path = write_pair(tmp_path / "corpus.bin", [[tokens[:15]], [tokens[15:20], tokens[20:]]])
    names: list[Any] = [
        path,
        str(tmp_path / "corpus.idx"),
        tmp_path / "corpus",
        [path, tmp_path / "corpus.idx"],
        tmp_path,
        f"file://{path}",
    ]
    for name in names:
        source = open_tokens(name, 4)
        np.testing.assert_array_equal(source.read(np.arange(len(source)))["tokens"], windows(tokens, 4, 4))


def test_rows_are_located_in_their_files(tmp_path: Path) -> None:
    tokens = stream(30)
    one = write_bin(tmp_path / "one.bin", tokens[:12])
    two = write_npy(tmp_path / "two.npy", tokens[12:])
    source = open_tokens([one, two], 9, dtype="uint16")
    assert source.locate(0) == [Location(str(one), 0, 19)]
    assert source.locate(1) == [Location(str(one), 18, 23), Location(str(two), 128, 128 + 13)]
    for row in range(len(source)):
        joined = b"".join(
            Path(name).read_bytes()[first : last + 1]
            for name, first, last, _ in source.locate(row)
            if first is not None and last is not None
        )
        assert joined == source.read(np.array([row]))["tokens"].tobytes()
    with pytest.raises(RowIndexError, match="row 3 is out of range"):
        source.locate(3)


def test_source_pickles_as_paths(tmp_path: Path) -> None:
    tokens = stream(200_000, np.int32)
    path = write_pair(tmp_path / "x.bin", [[each] for each in np.split(tokens, 10_000)])
    source = open_tokens(path, 100, segment_ids=True)
    rows = np.array([3, 1998, 0, 77])
    before = source.read(rows)
    carried = pickle.dumps(source)
    assert len(carried) < 2000
    after = pickle.loads(carried).read(rows)
    for name in ("tokens", "segment_ids"):
        np.testing.assert_array_equal(after[name], before[name])


@pytest.mark.processes
@pytest.mark.parametrize(
    "arguments", [{}, {"targets": True}, {"segment_ids": True, "targets": True}, {"stride": 7}], ids=str
)
def test_the_law_of_sources(arguments: dict[str, Any], tmp_path: Path) -> None:
    tokens = stream(3000)
    pair = write_pair(tmp_path / "a.bin", [[tokens[:700]], [tokens[700:710]], [tokens[710:1800]]])
    other = write_pair(tmp_path / "b.bin", [[tokens[1800:]]])
    check_source(open_tokens([pair, other], 16, **arguments))


def test_repr_shows_the_numbers_and_the_files(tmp_path: Path) -> None:
    for name in ("a.bin", "b.bin"):
        write_bin(tmp_path / name, stream(50))
    data = from_tokens(tmp_path, seq_len=10, dtype="uint16", stride=5)
    assert repr(data) == f"Dataset(18 rows of 10 + 1 of 100 uint16 tokens, every 5, in {tmp_path}/a.bin and 1 more)"
    assert (
        repr(open_tokens(tmp_path / "a.bin", 3, dtype=">u2"))
        == f"3 + 1 of 50 uint16 tokens, every 3, in {tmp_path}/a.bin"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"path": []}, r"path=\[\] is empty; pass the path or URL of a file of tokens"),
        ({"path": 7}, "path=7 is an int: pass the path or URL of a file of tokens, or a list of these"),
        ({"path": ["x.bin", None]}, "path=None is a NoneType: pass the path or URL"),
        ({"dtype": "token"}, "dtype='token' is not a dtype; pass for example 'uint16'"),
        ({"dtype": "float32"}, "dtype='float32' is float32, but tokens are integers; pass 'uint16'"),
        ({"cache_bytes": 1000}, "cache_bytes=1000: pass an int of 131072 or more, the size of one block"),
        ({"cache": 7}, "cache=7 is an int: pass the path of a local folder"),
        ({"cache": "s3://bucket/x"}, "cache='s3://bucket/x' is a URL: pass the path of a local folder"),
    ],
)
def test_arguments_that_can_not_be_used(arguments: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = write_bin(tmp_path / "x.bin", stream(100))
    with pytest.raises(ArgumentError, match=message):
        open_tokens(**{"path": path, "seq_len": 4, "dtype": "uint16", **arguments})


def test_a_bin_file_without_a_dtype(tmp_path: Path) -> None:
    write_bin(tmp_path / "x.bin", np.zeros(2000, np.uint8))
    with pytest.raises(ArgumentError, match=r"x\.bin: the file does not contain the dtype of its tokens; pass dtype="):
        open_tokens(tmp_path / "x.bin", 4)


def write_wrong_files(folder: Path) -> None:
    """Files of tokens that can't be read, named by what is wrong."""
    arrays: dict[str, Any] = {
        "table": np.zeros((6, 4), np.int32),
        "floats": np.zeros(6),
        "wide": np.zeros(6, np.int64),
        "big": np.zeros(6, ">u2"),
        "narrow": stream(20),
    }
    for name, array in arrays.items():
        write_npy(folder / f"{name}.npy", array)
    write_bin(folder / "odd.bin", np.zeros(21, np.uint8))
    write_bin(folder / "flat.bin", stream(20))
    np.save(folder / "objects.npy", np.array([{}, 1], object), allow_pickle=True)
    content = (folder / "wide.npy").read_bytes()
    (folder / "cut.npy").write_bytes(content[:-1])
    (folder / "short.npy").write_bytes(b"\x93NUMPY\x01\x00")
    (folder / "header.npy").write_bytes(content.replace(b"descr", b"dexcr"))
    (folder / "unclosed.npy").write_bytes(content[:100])
    (folder / "folder.bin").mkdir()
    (folder / "folder.bin" / "notes.txt").write_text("x")
    (folder / "loop.bin").symlink_to(folder / "loop.bin")
    os.mkfifo(folder / "pipe.bin")


ONE_DTYPE = "; a stream has one dtype: convert some files, or open them separately"


@pytest.mark.parametrize(
    ("names", "dtype", "message"),
    [
        (
            "odd.bin",
            "uint16",
            r": its size of 21 bytes is not a multiple of 2, that of uint16; check dtype=, or copy",
        ),
        ("table.npy", "uint16", r" is int32\[6, 4\], not one-dimensional; .* loadax\.from_npy"),
        ("floats.npy", "uint16", r" is float64\[6\]: tokens are integers"),
        ("wide.npy", "uint16", " contains int64 tokens, but dtype=uint16 was passed; leave dtype out"),
        ("objects.npy", "uint16", r" contains Python objects; save an array of numbers with numpy\.save"),
        ("cut.npy", "uint16", r": the file is cut short: int64\[6\] of its header needs 176 bytes; copy it again"),
        ("short.npy", "uint16", ": bytes 0 to 11 are missing: the file is cut short, or of another kind"),
        ("header.npy", "uint16", r": the header of this \.npy file can't be read: .*keys: .*'dexcr'.*; copy it again"),
        ("unclosed.npy", "uint16", ": bytes 10 to 127 are missing: the file is cut short, or of another kind"),
        ("nowhere.bin", "uint16", ": there is no such file"),
        ("nowhere.npy", "uint16", ": there is no such file"),
        ("nowhere.idx", "uint16", ": there is no such file"),
        ("no*.bin", "uint16", ": no file matches this pattern"),
        ("folder.bin", "uint16", r": the folder has no \.bin or \.npy file in it, but notes\.txt; pass the files"),
        ("loop.bin", "uint16", ": the file can't be opened: .*Too many levels of symbolic links"),
        ("pipe.bin", "uint16", ": the file can.t be opened: it is a pipe"),
        ("flat.bin big.npy", "uint16", rf" contains uint16 tokens and .*big\.npy uint16 \(big-endian\){ONE_DTYPE}"),
        ("narrow.npy wide.npy", None, rf" contains uint16 tokens and .*wide\.npy int64{ONE_DTYPE}"),
    ],
)
def test_wrong_files_are_named(names: str, dtype: str | None, message: str, tmp_path: Path) -> None:
    write_wrong_files(tmp_path)
    first, *_ = names.split()
    with pytest.raises(SourceError, match=re.escape(f"{tmp_path}/{first}") + message):
        open_tokens([tmp_path / name for name in names.split()], 4, dtype=dtype)


def test_segment_ids_need_an_index(tmp_path: Path) -> None:
    path = write_bin(tmp_path / "flat.bin", stream(20))
    with pytest.raises(SourceError, match=r"flat\.bin: there is no \.idx file next to it with the document offsets"):
        open_tokens(path, 4, dtype="uint16", segment_ids=True)


def test_a_file_that_shrinks_is_an_error_and_no_crash(tmp_path: Path) -> None:
    paths = [write_bin(tmp_path / f"{number}.bin", stream(5000)) for number in range(2)]
    message = re.escape("1.bin: the file has become shorter since it was opened; data must not change")
    met = open_tokens(paths, 10, dtype="uint16")
    unmet = open_tokens(paths, 10, dtype="uint16")
    met.read(np.array([900]))
    os.truncate(paths[1], 4000)
    for source in (met, unmet):
        with pytest.raises(SourceError, match=message):
            source.read(np.array([900]))
        assert source.read(np.array([3]))["tokens"].shape == (1, 11)


def test_one_of_three_shards_that_shrinks_between_two_steps_is_an_error_at_once(tmp_path: Path) -> None:
    paths = [write_bin(tmp_path / f"{number}.bin", stream(5000)) for number in range(3)]
    source = open_tokens(paths, 10, dtype="uint16")
    rows = np.array([100, 600, 1100])
    source.read(rows)
    os.truncate(paths[1], 1000)
    with pytest.raises(SourceError, match=re.escape("1.bin: the file has become shorter since it was opened")):
        source.read(rows)


def test_a_file_that_vanishes_before_it_is_mapped(tmp_path: Path) -> None:
    path = write_bin(tmp_path / "x.bin", stream(50))
    source: TokenSource = open_tokens(path, 10, dtype="uint16")
    path.unlink()
    with pytest.raises(SourceError, match=r"x\.bin: the file can't be memory-mapped: .*No such file"):
        source.read(np.array([0]))
