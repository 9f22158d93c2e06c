"""ArrayRecord files: records of bytes, of numbers padded to one length, and of what a function makes of them."""

import resource
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from array_record.python.array_record_module import ArrayRecordWriter

import loadax
from loadax.errors import ArgumentError, LeafError, LeafTypeError, SourceError, UnsupportedError
from loadax.sources.array_record import record_files
from loadax.testing import check_source

PAD = 24


def write(path: Path, records: Sequence[bytes], options: str = "group_size:1") -> Path:
    writer = ArrayRecordWriter(str(path), options)
    for record in records:
        writer.write(record)
    writer.close()
    return path


def tokens(count: int, seed: int = 0, shortest: int = 0) -> list[bytes]:
    random = np.random.default_rng(seed)
    return [
        random.integers(0, 2**16, length, np.uint16).tobytes() for length in random.integers(shortest, PAD + 1, count)
    ]


def padded(records: Sequence[bytes], rows: Sequence[int], length: int = PAD, dtype: Any = np.uint16) -> dict[str, Any]:
    """The oracle: row by row."""
    data, lengths = np.zeros((len(rows), length), dtype), []
    for place, row in enumerate(rows):
        entries = np.frombuffer(records[row], dtype)[:length]
        data[place, : len(entries)] = entries
        lengths.append(len(entries))
    return {"data": data, "length": np.array(lengths, np.int32)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three files of 40 records, in groups of 1, of 8, and of 1 again, and something else beside them."""
    folder = tmp_path_factory.mktemp("records")
    records = tokens(120)
    for number, options in enumerate(("group_size:1", "group_size:8", "group_size:1,uncompressed")):
        write(folder / f"t.array_record-{number}-of-3", records[number * 40 : number * 40 + 40], options)
    (folder / "notes.txt").write_text("beside")
    return folder


RECORDS = tokens(120)
ROWS = np.random.default_rng(1).integers(0, 120, 500)


def open_source(paths: Any, pad: int | None = None, truncate: bool = False, **arguments: Any) -> Any:
    """The source, whose methods beyond `Source` are looked at too."""
    data = loadax.from_array_record(paths, **arguments)
    return (data if pad is None else data.pad(pad, truncate=truncate)).source


@pytest.mark.parametrize("slow", [1e9, 0.0], ids=["one by one", "together"])
def test_random_rows_with_repeats(slow: float, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_files, "SLOW", slow)
    source = open_source(folder)
    assert source.read(ROWS).tolist() == [RECORDS[row] for row in ROWS]
    for row in (0, 39, 40, 79, 80, 119):
        assert source.read(np.array([row])).tolist() == [RECORDS[row]]
    source = open_source(folder, dtype=np.uint16, pad=PAD)
    jax.tree.map(np.testing.assert_array_equal, source.read(ROWS), padded(RECORDS, ROWS.tolist()))


def test_what_is_slow_is_read_together_unless_the_file_has_far_more_chunks_than_that_is_worth(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    together: list[int] = []
    original = record_files.RecordFiles._together

    def noticed(self: Any, number: int, spans: Any) -> Any:
        together.append(number)
        return original(self, number, spans)

    monkeypatch.setattr(record_files.RecordFiles, "_together", noticed)
    source = open_source(folder)
    monkeypatch.setattr(record_files, "SLOW", 1e9)  # whatever the machine does at the moment
    source.read(ROWS)
    monkeypatch.setattr(record_files, "SLOW", 0.0)
    source.read(ROWS[:8])
    monkeypatch.setattr(record_files, "SCAN", 1e9)
    source.read(ROWS)
    assert not together
    monkeypatch.setattr(record_files, "SCAN", 2e-9)
    source.read(ROWS)
    assert together == [0, 1, 2]


@pytest.mark.parametrize("pad_to", [PAD, 5, 1, 100])
@pytest.mark.parametrize("dtype", [np.uint16, ">u2", np.uint8, np.float16, "bool"])
def test_padding_and_cutting(pad_to: int, dtype: Any, folder: Path) -> None:
    data = loadax.from_array_record(folder, dtype=dtype).pad(pad_to, truncate=True)
    batch = data.source.read(ROWS)
    expected = padded(RECORDS, ROWS.tolist(), pad_to, dtype)
    assert batch["data"].dtype.isnative
    native = expected["data"].astype(expected["data"].dtype.newbyteorder("="))
    assert batch["data"].tobytes() == native.tobytes()  # NaNs too
    np.testing.assert_array_equal(batch["length"], expected["length"])


@pytest.mark.processes
@pytest.mark.parametrize(
    "arguments",
    [{}, {"dtype": np.uint16, "pad": PAD}, {"dtype": ">u2", "pad": 7, "truncate": True}],
    ids=["bytes", "padded", "big-endian, cut"],
)
@pytest.mark.filterwarnings("ignore:shuffle.seed. of data whose chunks hold")  # `check_source` does that
def test_the_contract(arguments: dict[str, Any], folder: Path) -> None:
    check_source(open_source(folder, **arguments), loader="dtype" in arguments)


@pytest.mark.processes
def test_records_of_one_length_need_no_padding(tmp_path: Path) -> None:
    values = np.random.default_rng(0).normal(size=(30, 6)).astype(">f4")
    data = loadax.from_array_record(write(tmp_path / "x.array_record", [row.tobytes() for row in values]), dtype=">f4")
    batch = loadax.Dataloader(data, batch_size=24)[0]
    np.testing.assert_array_equal(np.asarray(batch), values[:24].astype(np.float32))
    check_source(data.source)


def test_records_of_any_length_can_be_packed(folder: Path) -> None:
    packed = loadax.from_array_record(folder, dtype=np.uint16).pack(32)
    rows = packed.read(range(len(packed)))
    there = rows["tokens"][rows["segment_ids"] > 0]
    assert there.tolist() == np.frombuffer(b"".join(RECORDS), np.uint16).tolist()


def test_files_without_records_among_others(tmp_path: Path) -> None:
    records = tokens(10, seed=3)
    parts = [[], records[:4], [], records[4:], []]
    paths = [write(tmp_path / f"{number}", part) for number, part in enumerate(parts)]
    source = open_source(paths)
    assert source.read(np.arange(10)).tolist() == records
    assert source.read(np.empty(0, np.int64)).tolist() == []
    grouped = open_source(write(tmp_path / "g", records, "group_size:4"), dtype=np.uint16, pad=PAD)
    assert grouped.chunks.tolist() == [0, 4, 8]


def test_chunks_are_told_of_where_records_are_decoded_together(folder: Path) -> None:
    paths = [folder / f"t.array_record-{number}-of-3" for number in range(3)]
    assert open_source(paths, dtype=np.uint16, pad=PAD).chunks.tolist() == [
        *range(40),
        *range(40, 80, 8),
        *range(80, 120),
    ]
    assert open_source(paths[0], dtype=np.uint16, pad=PAD).chunks is None


def test_no_more_files_are_open_than_half_of_those_that_may_be(folder: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    source = open_source([folder] * 5)  # 15 files
    before = len(list(Path("/proc/self/fd").iterdir()))
    most = 0
    # half of it is what other tests of this process have open, and 20
    limit = before + 20
    resource.setrlimit(resource.RLIMIT_NOFILE, (2 * limit, hard))
    try:
        many = open_source([folder] * (limit // 3 + 5))
        for row in range(0, len(many), 40):
            assert many.read(np.array([row])).tolist() == [RECORDS[row % 120]]
            most = max(most, many._files._reader.cache_info().currsize)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert most == limit
    assert not source._files._reader.cache_info().currsize  # opened when read, not before
    source.read(np.arange(0, 600, 7))
    assert source._files._reader.cache_info().currsize == 15


# What can be wrong with arguments


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"dtype": "many"}, r"dtype='many' is not a dtype; pass for example 'uint16'"),
        ({"dtype": "U4"}, r"dtype='U4' is <U4, but entries are numbers; .*decode the bytes in a map"),
        ({"dtype": object}, r"is object, but entries are numbers"),
    ],
)
def test_arguments_that_can_not_be_used(arguments: dict[str, Any], message: str, folder: Path) -> None:
    with pytest.raises(ArgumentError, match=message):
        loadax.from_array_record(folder, **arguments)


def test_without_the_library(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "array_record.python.array_record_module", None)
    with pytest.raises(
        UnsupportedError, match=r"needs array-record, which can't be imported \(.*\): pip install array-record"
    ):
        loadax.from_array_record(folder)


# What can be wrong with files


def test_files_of_another_kind(folder: Path, tmp_path: Path) -> None:
    whole = (folder / "t.array_record-0-of-3").read_bytes()
    for name, content in {
        "text": b"text" * 50_000,
        "short": b"text",
        "cut": whole[:-1],
        "tail": whole[70_000:],
    }.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(
            SourceError,
            match=rf"/{name} can't be opened as ArrayRecord: it has another format, or its writer",
        ):
            loadax.from_array_record([folder, tmp_path / name])


def test_files_without_anything(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    with pytest.raises(SourceError, match=r"/empty: the file is empty"):
        loadax.from_array_record(tmp_path / "empty")
    paths = [write(tmp_path / f"none-{number}", []) for number in range(3)]
    with pytest.raises(SourceError, match=r"/none-0 has no records"):
        loadax.from_array_record(paths[0])
    with pytest.raises(SourceError, match=r"/none-0, … has no records"):
        loadax.from_array_record(paths)


@pytest.mark.parametrize(("group", "named"), [(1, r"record 120 can't"), (8, r"records 120 to 121 can't")])
@pytest.mark.parametrize("slow", [1e9, 0.0], ids=["one by one", "together"])
def test_a_damaged_record_is_named(
    group: int, named: str, slow: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_files, "SLOW", slow)
    records = [np.random.default_rng(number).bytes(1000) for number in range(200)]
    path = write(tmp_path / "x", records, f"group_size:{group},uncompressed")
    content = bytearray(path.read_bytes())
    content[content.index(records[120]) + 500] ^= 1
    path.write_bytes(content)
    source = open_source(path)
    rows = np.array([*range(0, 80, 4), 120, 121, 190])
    with pytest.raises(
        SourceError, match=rf"/x: {named} be read: .*; the file is damaged or has changed: copy it again"
    ):
        source.read(rows)
    good = np.array([*range(0, 80, 4), 190])
    assert source.read(good).tolist() == [records[row] for row in good]


# What can be wrong with records


def test_bytes_can_not_be_placed(folder: Path) -> None:
    with pytest.raises(
        LeafTypeError, match=r"has dtype object .*; if rows are bytes, decode them there: \.map\(decode\)"
    ):
        loadax.Dataloader(loadax.from_array_record(folder), batch_size=8)


def test_ragged_rows_are_named(tmp_path: Path) -> None:
    lengths = [5, 5, 5, 3, 5, 5, 5, 5, 7]
    path = write(tmp_path / "x", [np.arange(length, dtype=np.uint16).tobytes() for length in lengths])
    data = loadax.from_array_record([path, path], dtype="uint16")
    assert data[3].tolist() == [0, 1, 2]
    assert data[17].tolist() == list(range(7))
    with pytest.raises(
        LeafError,
        match=r"row 12 \(.*/x, record 3\) has 3 entries and row 1 has 5: the rows are ragged; "
        r"pad them with \.pad\(length\), .*or pack them with \.pack",
    ):
        data.source.read(np.array([1, 12, 3]))
    assert data.filter(lambda row: len(row) == 3).read([1, 0]).tolist() == [[0, 1, 2]] * 2
    assert data.source.read(np.empty(0, np.int64)).shape == (0, 5)
    parsed = loadax.from_array_record(path).map(lambda record: np.frombuffer(record, np.uint16))
    with pytest.raises(
        LeafError,
        match=r"row 3 \(.*/x, record 3\): leaf of the example is uint16\[3\], expected uint16\[5\]; .*are ragged.*"
        r"pad them with \.pad",
    ):
        parsed.read([1, 3])


def test_records_longer_than_they_may_be(tmp_path: Path) -> None:
    path = write(tmp_path / "x", [bytes(length) for length in (2, 6, 12, 8)])
    data = loadax.from_array_record(path, dtype="uint16").pad(4)
    assert data[3]["length"] == 4
    message = (
        r"row 2 \(.*/x, record 2\) has 6 entries, more than 4, the length of padded rows; pass a larger length, or tru"
    )
    with pytest.raises(LeafError, match=message):
        data.read([0, 3, 2])


def test_bytes_that_are_no_whole_entries(tmp_path: Path) -> None:
    path = write(tmp_path / "x", [bytes(4), bytes(7)])
    plain = loadax.from_array_record(path, dtype="u2")
    for data in (plain, plain.pad(9)):
        with pytest.raises(
            SourceError,
            match=r"row 1 \(.*/x, record 1\) has 7 bytes, not a multiple of 2, the size of a uint16 entry; check",
        ):
            data[1]
