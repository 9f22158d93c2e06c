"""Several datasets in one id space of rows."""

from typing import Any

import numpy as np
import pytest

from loadax import concat, from_arrays, from_source
from loadax.composition.concatenated import ConcatenatedSource
from loadax.errors import LeafError
from loadax.protocols import Visits
from loadax.reader import Reader

LENGTHS = (4, 0, 7, 1)
WHOLE = np.arange(12 * 6, dtype=np.int32).reshape(12, 6)
PIECES = np.split(WHOLE, np.cumsum(LENGTHS)[:-1])


def parts() -> list[Reader]:
    return [from_arrays({"x": piece, "y": piece[:, 0].astype(np.float32)}).reader for piece in PIECES]


class ReadOnly:
    """A source without `read_into`."""

    def __init__(self, values: Any) -> None:
        self.values = values
        self.spec = {"x": values[0]} if len(values) else {"x": np.zeros(6, np.int32)}

    def __len__(self) -> int:
        return len(self.values)

    def read(self, rows: Any) -> Any:
        return {"x": self.values[rows]}


def test_rows_are_numbered_on_from_part_to_part() -> None:
    source = ConcatenatedSource(parts())
    assert len(source) == 12
    rows = np.array([11, 0, 4, 3, 10, 10, 5])
    batch = source.read(rows)
    np.testing.assert_array_equal(batch["x"], WHOLE[rows])
    np.testing.assert_array_equal(batch["y"], WHOLE[rows, 0])
    assert source.read(np.empty(0, np.int64))["x"].shape == (0, 6)
    assert repr(source) == "concatenation of 4"


def test_columns_can_be_read_only_when_every_part_can() -> None:
    readable = from_arrays({"x": WHOLE})
    assert ConcatenatedSource([readable.reader, readable.reader]).traits.reads_columns
    assert not ConcatenatedSource([readable.reader, from_source(ReadOnly(WHOLE)).reader]).traits.reads_columns
    assert not ConcatenatedSource([readable.reader, readable.map(lambda row: row).reader]).traits.reads_columns


def test_rows_of_many_parts_in_memory_are_read_without_a_read_of_each(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.arange(300 * 6, dtype=np.int32).reshape(300, 6)
    texts = np.array([f"row {row}" for row in range(300)], object)
    pieces = [slice(begin, begin + 3) for begin in range(0, 300, 3)]
    # Another byte order, and arrays that are not contiguous
    stored = [values[piece] if piece.start % 2 else np.asfortranarray(values[piece]).astype(">i4") for piece in pieces]
    trees = [{"x": x, "y": texts[piece]} for x, piece in zip(stored, pieces, strict=True)]
    source = ConcatenatedSource([from_arrays(tree).reader for tree in trees])
    monkeypatch.setattr("loadax.sources.arrays.ArraySource.read_into", None)
    rows = np.random.default_rng(0).integers(0, 300, 200)
    out = np.empty((200, 2), np.int32), np.empty(200, object)
    source.read_into(rows, [((2, 4),), ()], out)
    np.testing.assert_array_equal(out[0], values[rows, 2:4])
    assert out[1].tolist() == texts[rows].tolist()
    source.read_into(rows[:0], [((2, 4),), ()], [leaf[:0] for leaf in out])
    monkeypatch.undo()
    source.read_into(rows % 9, [((2, 4),), None], [out[0], None])
    np.testing.assert_array_equal(out[0], values[rows % 9, 2:4])


def test_parts_of_every_kind_go_together() -> None:
    mapped = from_arrays(WHOLE[:4]).map(lambda row: {"x": row})
    listed = from_source([{"x": row} for row in WHOLE[4:9]])
    source = ConcatenatedSource([mapped.reader, listed.reader, from_source(ReadOnly(WHOLE[9:])).reader])
    rows = np.array([11, 3, 8, 0, 4])
    np.testing.assert_array_equal(source.read(rows)["x"], WHOLE[rows])


def test_a_part_is_read_once_a_call_and_only_when_it_is_met() -> None:
    asked: list[tuple[int, list[int]]] = []

    class Counting(ReadOnly):
        def read(self, rows: Any) -> Any:
            asked.append((len(self), rows.tolist()))
            return super().read(rows)

    source = ConcatenatedSource([from_source(Counting(piece)).reader for piece in PIECES])
    source.read(np.array([9, 1, 4, 0]))
    assert asked == [(4, [1, 0]), (7, [5, 0])]


def test_each_part_knows_its_epoch() -> None:
    def draw(row: Any, rng: np.random.Generator) -> Any:
        return rng.integers(1 << 30)

    part = from_arrays(WHOLE).map(draw, rng=True)
    source = ConcatenatedSource([part.reader, part.reader])
    both = source.read_visits(Visits(np.array([3, 15, 3, 15]), np.array([0, 0, 5, 5])))
    expected = [part.read([3], epoch)[0] for epoch in (0, 0, 5, 5)]
    assert both.tolist() == expected
    assert both[0] != both[2]
    assert source.read(np.array([3])).tolist() == both[:1].tolist()


def test_reads_under_way_are_those_of_the_part_that_waits_most() -> None:
    class Remote(ReadOnly):
        concurrent_reads = 7

    near = from_arrays({"x": WHOLE})
    assert ConcatenatedSource([near.reader, from_source(Remote(WHOLE)).reader]).traits.concurrent_reads == 7
    assert ConcatenatedSource([near.reader]).traits.concurrent_reads == 1


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (
            {"x": WHOLE[:, :3]},
            r"concat: leaf \['x'\] is int32\[3\] in part 1 and int32\[6\] in part 0; map them to one shape",
        ),
        (
            {"x": WHOLE.astype(np.int64)},
            r"leaf \['x'\] is int64\[6\] in part 1 and int32\[6\] in part 0; .* and dtype first",
        ),
        ({"y": WHOLE}, r"concat: part 1 has the leaves \[\"\['y'\]\"\], part 0 has \[\"\['x'\]\"\]"),
        (WHOLE, r"concat: part 1 has the leaves \[''\], part 0 has"),
    ],
)
def test_parts_that_differ(other: Any, message: str) -> None:
    with pytest.raises(LeafError, match=message):
        concat([from_arrays({"x": WHOLE}), from_arrays(other)])
    with pytest.raises(LeafError, match=r"leaf of the example is int32\[6\] in part 2"):
        concat([from_arrays(WHOLE[:, :2]), from_arrays(WHOLE[:, :2]), from_arrays(WHOLE)])


def test_byte_order_is_no_difference() -> None:
    both = concat([from_arrays(WHOLE), from_arrays(WHOLE.astype(">i4"))])
    np.testing.assert_array_equal(both.read([3, 15]), WHOLE[[3, 3]])


def test_what_joins_unlike_rows_is_joined_again() -> None:
    unlike = concat([from_source(["a"]), from_source([np.arange(2)])])
    for joined in (concat([unlike, from_source([7])]), concat([from_source([7]), unlike]), concat([unlike, unlike])):
        assert len(list(joined)) == len(joined)
        assert joined.map(np.size).read(range(len(joined))).shape == (len(joined),)
        with pytest.raises(LeafError, match=r"leaf of the example is int64(\[2\] in part 1|\[\] in part 0)"):
            joined.read([0])
    documents = [from_source([np.arange(2)]), from_source([np.arange(3)])]
    packed = concat([concat(documents), concat(documents[::-1])]).pack(5)
    assert packed.read([0, 1])["tokens"].tolist() == [[0, 1, 0, 1, 2], [0, 1, 2, 0, 1]]


@pytest.mark.parametrize("lengths", [([2, 3, 4], [2, 3, 4]), ([2, 3, 4], [3, 4, 4]), ([4, 4], [2, 4]), ([3], [3, 2])])
def test_ragged_rows_are_right_or_refused(lengths: Any) -> None:
    rows = [[np.full(length, index) for index, length in enumerate(part)] for part in lengths]
    data, expected = concat([from_source(part) for part in rows]), [*rows[0], *rows[1]]
    assert list(map(str, data)) == list(map(str, expected))
    for length in (2, 3, 4):  # rows that are alike among others
        positions = [position for position, row in enumerate(expected) if len(row) == length]
        try:
            assert data.read(positions).tolist() == [expected[position].tolist() for position in positions]
        except LeafError:
            assert length != len(expected[0]) or {len(part[0]) for part in rows} != {length}
    with pytest.raises(LeafError, match=r"rows are ragged: pad them with|map them to one shape"):
        data.read(range(len(data)))
    padded = data.pad(4).read(range(len(data)))
    assert padded["length"].tolist() == list(map(len, expected))
    assert [row[:length].tolist() for row, length in zip(*padded.values(), strict=True)] == [
        row.tolist() for row in expected
    ]
