"""Records of TFRecord files against the obvious loop, and examples against Google's own protocol buffers."""

import gzip
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import loadax
from loadax.errors import ArgumentError, LeafError, SourceError, UnsupportedError
from loadax.protocols import Location
from loadax.sources.shards.example_proto import parse_example, varints
from loadax.testing import check_source
from tests.servers.faults import FaultProxy
from tests.servers.s3 import S3Server
from tests.sources.shards.corpora import encoded, example_class, texts, write_tfrecord

pytest_plugins = ["tests.servers.fixtures"]

INT64 = st.integers(-(2**63), 2**63 - 1)
VALUES = st.one_of(
    st.lists(st.binary(max_size=20), max_size=5),
    st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=40).map(lambda one: np.array(one, np.float32)),
    st.lists(st.one_of(INT64, st.integers(0, 127)), min_size=1, max_size=40).map(lambda one: np.array(one, np.int64)),
)


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    """Two files with 7 and 5 records, and an empty one between them."""
    for number, (count, first) in enumerate([(7, 0), (0, 0), (5, 7)]):
        write_tfrecord(tmp_path / "shards" / f"train.tfrecord-{number:05}-of-00003", texts(count, first))
    return tmp_path / "shards"


def test_records_are_those_that_were_written(shards: Path) -> None:
    data = loadax.from_tfrecord(shards)
    assert [data[row] for row in range(12)] == texts(12)
    assert repr(data.source) == "12 records in 3 TFRecord files"
    rows = np.array([11, 0, 3, 3])
    assert data.read(rows).tolist() == [texts(12)[row] for row in rows]
    begin = 12 + 16 * 1 + len(texts(1)[0])
    assert data.source.locate(1) == [Location(str(min(shards.iterdir())), begin, begin + 36, "")]


class TestTheContractOfASource:
    @pytest.mark.processes
    def test_local(self, tmp_path: Path) -> None:
        records = [
            encoded({"label": np.array([i]), "x": np.arange(4) / (i + 1), "name": [b"%d" % i]}) for i in range(9)
        ]
        write_tfrecord(tmp_path / "x.tfrecord", records)
        features = {"label": "int32", "x": ("float32", 4)}
        data = loadax.from_tfrecord(tmp_path / "x.tfrecord", features=features)
        check_source(data)
        np.testing.assert_array_equal(data.read(np.array([8, 2]))["x"][1], (np.arange(4) / 3).astype(np.float32))
        check_source(loadax.from_tfrecord(tmp_path / "x.tfrecord").source, loader=False)

    @pytest.mark.processes
    def test_in_a_bucket(
        self, shards: Path, tmp_path: Path, s3_server: S3Server, s3_proxy: FaultProxy, bucket: str
    ) -> None:
        s3_server.upload(shards, bucket, "shards/")
        data = loadax.from_tfrecord(f"s3://{bucket}/shards/", index=tmp_path / "index")
        assert len(s3_proxy.log) == 1 + 2  # a list, and the files that are not empty
        s3_proxy.clear()
        again = loadax.from_tfrecord(f"s3://{bucket}/shards/", index=tmp_path / "index")
        assert len(s3_proxy.log) == 1
        rows = np.random.default_rng(0).permutation(12)
        s3_proxy.clear()
        assert again.read(rows).tolist() == [texts(12)[row] for row in rows]
        assert len(s3_proxy.log) == 2
        check_source(data.map(lambda record: np.int32(len(record))))


class TestExamples:
    @given(features=st.dictionaries(st.text(max_size=5), VALUES, max_size=4))
    def test_are_parsed_like_by_protocol_buffers(self, features: dict[str, Any]) -> None:
        parsed = parse_example(memoryview(encoded(features)))
        assert parsed.keys() == features.keys()
        for name, values in features.items():
            if isinstance(values, list):
                assert parsed[name] == values
            else:
                assert np.asarray(parsed[name]).tobytes() == values.tobytes()

    def test_lists_may_be_written_one_by_one(self) -> None:
        """As old writers did: a field for each entry instead of a packed list."""
        integers = b"".join(bytes([0x08]) + varint for varint in (b"\x01", b"\x96\x01", b"\xff" * 9 + b"\x01"))
        floats = b"".join(bytes([0x0D]) + np.float32(value).tobytes() for value in (1.5, -2))
        content = b""
        for name, kind, values in ((b"i", 3, integers), (b"f", 2, floats)):
            feature = bytes([kind << 3 | 2, len(values)]) + values
            entry = b"\x0a\x01" + name + b"\x12" + bytes([len(feature)]) + feature
            content += b"\x0a" + bytes([len(entry)]) + entry
        message = b"\x0a" + bytes([len(content)]) + content
        theirs = example_class().FromString(message).features.feature
        mine = parse_example(memoryview(message))
        assert np.asarray(mine["i"]).tolist() == list(theirs["i"].int64_list.value) == [1, 150, -1]
        assert np.asarray(mine["f"]).tolist() == list(theirs["f"].float_list.value) == [1.5, -2]

    @given(content=st.binary(max_size=60))
    def test_anything_else_is_an_error_or_an_example(self, content: bytes) -> None:
        with suppress(ValueError):
            parse_example(memoryview(content))

    @pytest.mark.parametrize("content", [b"\x80" * 9, b"\x80" * 11 + b"\x01", b"\x01" * 8 + b"\xff"])
    def test_integers_that_end_too_late(self, content: bytes) -> None:
        with pytest.raises(ValueError, match=r"cut short|more than ten bytes"):
            varints(memoryview(content))

    def test_ragged_features_are_packed_or_padded_by_a_map(self, tmp_path: Path) -> None:
        tokens = [np.arange(count) + 100 * count for count in (3, 0, 7, 2)]
        records = [encoded({"tokens": values, "id": [b"%d" % len(values)]}) for values in tokens]
        write_tfrecord(tmp_path / "x.tfrecord", records)
        data = loadax.from_tfrecord(tmp_path / "x.tfrecord", features={"tokens": ("int32", None), "id": bytes})
        for row, values in enumerate(tokens):
            example = data[row]
            assert (example["tokens"].tolist(), example["id"]) == (values.tolist(), b"%d" % len(values))
            assert example["tokens"].dtype == np.int32
        with pytest.raises(LeafError, match="row 2"):
            data.read(np.array([0, 2]))
        assert data.map(lambda example: len(example["tokens"])).read(np.arange(4)).tolist() == [3, 0, 7, 2]

    @pytest.mark.parametrize(
        ("features", "message"),
        [
            ({"y": "int32"}, r"has no feature 'y'; its features: name \(one bytes\), x \(3 int64\), z \(2 float32\)"),
            ({"x": "int32"}, r"feature 'x' is 3 int64, but features= asks for int32; pass bytes, a dtype"),
            ({"x": ("int32", 4)}, r"feature 'x' is 3 int64, but features= asks for int32\[4\]; pass"),
            ({"x": bytes}, r"feature 'x' is 3 int64, but features= asks for bytes"),
            ({"name": "int32"}, r"feature 'name' is one bytes, but features= asks for int32"),
            ({"z": ("int32", 2)}, r"feature 'z' is 2 float32, but features= asks for int32\[2\]"),
            ({"x": ("uint8", 3)}, r"feature 'x' has values that uint8 can't hold; pass a wider dtype"),
        ],
    )
    def test_another_feature_than_asked_for(self, features: dict[str, Any], message: str, tmp_path: Path) -> None:
        record = encoded({"x": np.array([1, 2, 300]), "name": [b"n"], "z": np.array([0.5, 1.5])})
        path = write_tfrecord(tmp_path / "x.tfrecord", [record])
        data = loadax.from_tfrecord(path, features=features)
        with pytest.raises(LeafError, match=rf"row 0 \({path}, byte 12\).*{message}"):
            data.read(np.zeros(1, np.int64))
        with pytest.raises(SourceError, match=r"row 0 \(.*\): the record is not a tf.train.Example: .* in a map"):
            loadax.from_tfrecord(write_tfrecord(path, [b"not one"]), features=features)[0]

    @pytest.mark.parametrize(
        "features", [[], {}, {1: "int32"}, {"x": "str"}, {"x": ("int32", -1)}, {"x": ("int32", "a")}]
    )
    def test_features_that_are_none(self, features: Any, shards: Path) -> None:
        with pytest.raises(ArgumentError, match="features"):
            loadax.from_tfrecord(shards, features=features)


class TestBadInput:
    def test_a_record_that_is_damaged(self, tmp_path: Path) -> None:
        path = write_tfrecord(tmp_path / "x.tfrecord", [b"one", b"two", b"three"])
        content = bytearray(path.read_bytes())
        content[19 + 12] ^= 1
        path.write_bytes(content)
        data = loadax.from_tfrecord(path)
        with pytest.raises(
            SourceError, match=rf"row 1 \({path}, byte 31\): the record is damaged: its checksum is wro"
        ):
            data.read(np.arange(3))
        assert data.exclude([1]).read(np.arange(2)).tolist() == [b"one", b"three"]
        content[19] ^= 1
        path.write_bytes(content)
        with pytest.raises(
            SourceError, match=f"{path}: record 1 at byte 19 is damaged: the checksum of its size is wr"
        ):
            loadax.from_tfrecord(path)

    @pytest.mark.parametrize("cut", [1, 4, 8, 20])
    def test_a_file_that_is_cut_short(self, cut: int, tmp_path: Path) -> None:
        path = write_tfrecord(tmp_path / "x.tfrecord", [b"one", b"twotwo"])
        size = path.stat().st_size - cut
        os.truncate(path, size)
        with pytest.raises(SourceError, match=f"{path}: the file is cut short at byte {size}, in record 1 at byte 19"):
            loadax.from_tfrecord(path)

    def test_other_files(self, tmp_path: Path) -> None:
        path = tmp_path / "x.tfrecord"
        for content, message in {
            gzip.compress(b"x" * 100): "is compressed by gzip.*; write it without compression",
            b"hello" * 100: "is not a TFRecord file: it begins with b'hellohel'",
            b"": "has no records; was its writer closed too early",
        }.items():
            path.write_bytes(content)
            with pytest.raises(SourceError, match=f"{path} {message}"):
                loadax.from_tfrecord(path)
        (tmp_path / "folder").mkdir()
        with pytest.raises(SourceError, match=r"the folder has no file with .tfrecord in its name"):
            loadax.from_tfrecord(tmp_path / "folder")

    def test_without_the_library(self, shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "google_crc32c", None)
        with pytest.raises(UnsupportedError, match=r"which can't be imported .*: pip install google-crc32c"):
            loadax.from_tfrecord(shards)
