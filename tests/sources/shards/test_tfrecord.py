"""Records of TFRecord files against the obvious loop, and examples against Google's own protocol buffers."""

import gzip
import os
import sys
import zlib
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

import loadax
from loadax.errors import ArgumentError, LeafError, SourceError, UnsupportedError
from loadax.protocols import Location
from loadax.sources.shards.example_message import example_class, parse_example
from loadax.testing import check_source
from tests.servers.faults import FaultProxy
from tests.servers.s3 import S3Server
from tests.sources.shards.corpora import encoded, texts, write_tfrecord

pytest_plugins = ["tests.servers.fixtures"]

INT64 = st.integers(-(2**63), 2**63 - 1)
VALUES = st.one_of(
    st.lists(st.binary(max_size=20), max_size=5),
    st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=40).map(lambda one: np.array(one, np.float32)),
    st.lists(st.one_of(INT64, st.integers(0, 127)), min_size=1, max_size=40).map(lambda one: np.array(one, np.int64)),
)


INTEGER = b"\x08\x07"


def tagged(number: int, content: bytes) -> bytes:
    """A field of a message that holds fewer than 128 bytes."""
    return bytes([number << 3 | 2, len(content)]) + content


def entry(name: bytes, feature: bytes) -> bytes:
    return tagged(1, name) + tagged(2, feature)


def example(*entries: bytes) -> bytes:
    return tagged(1, b"".join(tagged(1, one) for one in entries))


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
        parsed = parse_example(encoded(features))
        assert parsed.keys() == features.keys()
        for name, values in features.items():
            if isinstance(values, list):
                assert parsed[name] == values
            else:
                assert np.asarray(parsed[name]).tobytes() == values.tobytes()

    @pytest.mark.parametrize(
        ("message", "features"),
        [
            (example(entry(b"i", tagged(3, b"\x08\x01\x08\x96\x01\x08" + b"\xff" * 9 + b"\x01"))), {"i": [1, 150, -1]}),
            (example(entry(b"i", tagged(3, b"\x0a\x02\x01\x02\x08\x03\x0a\x01\x04"))), {"i": [1, 2, 3, 4]}),
            (example(entry(b"f", tagged(2, b"\x0d\0\0\xc0\x3f\x0d\0\0\0\xc0"))), {"f": [1.5, -2.0]}),
            (example(entry(b"i", tagged(3, INTEGER) + tagged(3, INTEGER))), {"i": [7, 7]}),
            (example(entry(b"x", tagged(3, INTEGER) + tagged(1, b"\x0a\x01b"))), {"x": [b"b"]}),
            (example(entry(b"i", tagged(1, b"\x0a\x01b")), entry(b"i", tagged(3, INTEGER))), {"i": [7]}),
            (example(entry(b"i", tagged(3, INTEGER))) + example(entry(b"j", b"")), {"i": [7], "j": []}),
            (example(tagged(2, tagged(3, INTEGER)) + tagged(1, b"late")), {"late": [7]}),
            (example(entry(b"i", tagged(3, INTEGER)) + tagged(9, b"unknown")) + b"\x7a\x01x\x50\x05", {"i": [7]}),
            (example(entry(b"", tagged(3, INTEGER))), {"": [7]}),
            (b"", {}),
        ],
    )
    def test_encodings_of_an_example(self, message: bytes, features: dict[str, Any]) -> None:
        """Packed or not, merged, in any order, with the last of several kinds and names, as TensorFlow reads them."""
        parsed = parse_example(message)
        assert {name: np.asarray(value).tolist() for name, value in parsed.items()} == features

    @pytest.mark.parametrize(
        "message",
        [
            b"not one",
            example(entry(b"i", tagged(3, INTEGER)))[:-1],
            example(entry(b"\xff", tagged(3, INTEGER))),
            example(entry(b"i", tagged(3, b"\x0a\x02\x80\x80"))),
            example(entry(b"i", tagged(3, b"\x08" + b"\xff" * 10 + b"\x01"))),
            example(entry(b"f", tagged(2, b"\x0a\x03\0\0\0"))),
            b"\x80" * 11 + b"\x01",
        ],
    )
    def test_damaged_example_names_file_and_record(self, message: bytes, tmp_path: Path) -> None:
        path = write_tfrecord(tmp_path / "x.tfrecord", [encoded({"i": np.array([1])}), message])
        data = loadax.from_tfrecord(path, features={"i": "int64"})
        assert data[0] == {"i": 1}
        with pytest.raises(SourceError, match=rf"^row 1 \({path}, byte \d+\): the record is not a tf.train.Example: "):
            data[1]
        assert loadax.from_tfrecord(path).map(bytes)[1] == message

    @given(content=st.binary(max_size=60))
    def test_other_bytes_are_an_error_or_an_example(self, content: bytes) -> None:
        with suppress(ValueError):
            parse_example(content)

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
            zlib.compress(b"x" * 100): "is compressed by zlib.*; write it without compression",
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
        with pytest.raises(
            UnsupportedError, match=r"can't be imported .*: pip install google-crc32c, or, .* '\.\[tfrecord\]'$"
        ):
            loadax.from_tfrecord(shards)

    def test_features_without_protobuf(self, shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "google.protobuf", None)
        monkeypatch.setattr("loadax.sources.shards.tfrecord.example_class", example_class.__wrapped__)
        with pytest.raises(UnsupportedError, match=r"which can't be imported .*: pip install protobuf"):
            loadax.from_tfrecord(shards, features={"x": "int64"})
        assert loadax.from_tfrecord(shards)[1] == texts(2)[1]
