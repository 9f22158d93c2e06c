"""The data side: what a spec is found by, what is checked, and what each part is called with."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from loadax import Dataset, concat, from_arrays, from_source, mix
from loadax.errors import ArgumentError, LeafError, SourceError
from loadax.protocols import ArraySpec
from loadax.sources.arrays import ArraySource

VALUES = np.arange(20, dtype=np.int32).reshape(10, 2)
F64, I32, I64 = np.dtype(np.float64), np.dtype(np.int32), np.dtype(np.int64)


class Counting:
    """A source that remembers which rows it was asked for."""

    def __init__(self, values: Any = VALUES, spec: Any = None) -> None:
        self.values, self.spec = values, spec
        self.asked: list[list[int]] = []

    def __len__(self) -> int:
        return len(self.values)

    def read(self, rows: Any) -> Any:
        self.asked.append(rows.tolist())
        return self.values[rows]


def test_a_stated_spec_needs_no_row() -> None:
    source = Counting(spec=np.zeros(2, np.int32))
    stated = np.zeros((), np.float64)
    data = from_source(source).map(lambda row: row.sum() * 1.0, spec=stated).map(lambda x: x, spec=stated)
    assert data.spec == ArraySpec((), F64)
    assert source.asked == []


def test_an_unknown_spec_is_found_by_position_0_of_epoch_0() -> None:
    source, called = Counting(), []

    def widen(row: Any) -> Any:
        called.append(row.tolist())
        return {"x": row * 1.5}

    data = from_source(source).map(widen)[3:].shuffle(0)
    first = int(data.order.visits(np.zeros(1, np.int64), np.zeros(1, np.int64)).rows[0])
    assert data.spec == {"x": ArraySpec((2,), F64)}
    assert data.reader.specs == (ArraySpec((2,), I32), {"x": ArraySpec((2,), F64)})
    assert source.asked == [[first]] * 2  # a second time, to find randomness
    assert called == [VALUES[first].tolist()] * 2


def test_a_map_after_one_with_a_stated_spec_gets_its_result() -> None:
    called: list[Any] = []

    def first(row: Any) -> Any:
        called.append("first")
        return row.astype(np.float32)

    data = from_arrays(VALUES).map(first, spec=np.zeros(2, np.float32)).map(lambda row: {"sum": row.sum()})
    assert data.spec == {"sum": ArraySpec((), np.dtype(np.float32))}
    assert called == ["first"] * 2  # a second time, to find randomness


def test_a_map_may_change_what_it_is_given() -> None:
    def spoil(row: Any) -> Any:
        row *= -1
        return row

    data = from_arrays(VALUES.copy()).map(spoil).map_batch(spoil).map(spoil)
    for _ in range(2):
        np.testing.assert_array_equal(data.read([0, 3, 3]), -VALUES[[0, 3, 3]])


def test_columns_can_be_read_only_where_no_map_stands_between() -> None:
    plain = from_arrays(VALUES)
    assert plain.reader.traits.reads_columns
    assert not plain.map(lambda row: row).reader.traits.reads_columns
    assert plain.map(lambda row: row).reader.source.traits.reads_columns
    assert not from_source(Counting()).reader.source.traits.reads_columns


def test_elementwise_is_a_promise_of_all_maps_together() -> None:
    plain = from_arrays(VALUES)
    halved = plain.map_batch(lambda rows: rows / 2, elementwise=True)
    assert plain.reader.elementwise
    assert halved.reader.elementwise
    assert not halved.map(lambda row: row).reader.elementwise
    assert not halved.map_batch(lambda rows: rows).reader.elementwise
    assert halved.spec == ArraySpec((2,), F64)


def draw(row: Any, rng: np.random.Generator) -> Any:
    return rng.random(2)


def test_random_and_depth_count_maps_within_a_concatenation_too() -> None:
    plain = from_arrays(VALUES * 1.0)
    drawn = plain.map(lambda row: row).map(draw, rng=True)
    assert not plain.reader.traits.random
    assert drawn.reader.traits.random
    assert concat([plain, drawn]).reader.traits.random
    assert not concat([plain, plain]).reader.traits.random
    assert concat([plain, drawn]).reader.traits.num_maps == 2
    assert concat([plain, drawn]).map(lambda row: row).reader.traits.num_maps == 3
    assert concat([plain, plain]).reader.traits.num_maps == 0


def test_describe_tells_the_maps_within_a_concatenation() -> None:
    plain = from_arrays(VALUES * 1.0)
    made = [concat([plain, plain.map(draw, rng=True, seed=seed)]) for seed in (0, 1)]
    made += [concat([plain.map(draw, rng=True), plain]), concat([plain, plain]), made[0].map(lambda row: row)]
    described = [str(each.reader.describe()) for each in made]
    assert len(set(described)) == len(made)
    assert from_arrays(VALUES).reader.describe() == []


def test_a_source_that_breaks_its_promise_is_named() -> None:
    with pytest.raises(
        LeafError, match=r"the source's read of row 3 gave leaf of the batch as int32\[1, 2\] .*expected int32\[1, 5\]"
    ):
        from_source(Counting(spec=np.zeros(5, np.int32))).read([3])
    with pytest.raises(LeafError, match=r"the source's read of 2 rows \(3, 4\) gave .* expected float32\[2, 2\]"):
        from_source(Counting(spec=np.zeros(2, np.float32))).read([3, 4])
    with pytest.raises(LeafError, match=r"the source's read of 9 rows \(0, 1, 2, 3, 4, 5, 6, 7, …\) gave the leaves"):
        from_source(Counting(spec={"x": np.zeros(2, np.int32)})).read(range(9))


@pytest.mark.parametrize("rows", [[7], [7, 8], [8, 7], [6, 7, 8]])
def test_a_row_of_another_shape_is_named_whatever_is_read_with_it(rows: list[int]) -> None:
    """Pieces begin anywhere, so the odd row may be the first one of its piece, or alone in it."""
    dataset = from_source([{"x": np.zeros(4 if row == 7 else 2)} for row in range(9)])
    with pytest.raises(
        LeafError, match=r"^row 7: leaf \['x'\] is float64\[4\], expected float64\[2\]; rows are ragged"
    ):
        dataset.read(rows)


def test_a_source_that_raises_keeps_its_exception() -> None:
    class Broken(Counting):
        def read(self, rows: Any) -> Any:
            raise OSError("disk")

    with pytest.raises(OSError, match="disk") as caught:
        from_source(Broken(spec=VALUES[0])).read([3, 4])
    assert caught.value.__notes__ == ["loadax: reading 2 rows (3, 4)"]

    class BrokenInto(ArraySource):  # type: ignore[misc]
        def read_into(self, *_: Any) -> None:
            raise OSError("disk")

    with pytest.raises(OSError, match="disk") as caught:
        from_source(BrokenInto(VALUES)).reader.read_columns(np.array([3]), [((0, 2),)], [np.zeros((1, 2), np.int32)])
    assert caught.value.__notes__ == ["loadax: reading row 3"]


def test_a_spec_of_the_source_without_shape() -> None:
    with pytest.raises(ArgumentError, match=r"spec\['x'\] is 3: pass an object with a shape and a dtype"):
        _ = from_source(Counting(spec={"x": 3})).spec


@pytest.mark.parametrize(
    ("leaf", "shape"), [(np.int32(5), r"\[\]"), (np.zeros((2, 3)), r"\[2, 3\]"), (np.zeros((0, 3)), r"\[0, 3\]")]
)
def test_rows_must_come_first(leaf: Any, shape: str) -> None:
    class Wrong(Counting):
        def read(self, rows: Any) -> Any:
            return {"x": np.zeros(1), "y": leaf}

    remedy = r"for 1 row; the first dimension of every leaf must be the number of requested rows"
    with pytest.raises(ArgumentError, match=rf"the source gave leaf \['y'\] with shape {shape} {remedy}"):
        _ = from_source(Wrong()).spec
    with pytest.raises(ArgumentError, match=rf"<lambda> .*gave leaf of the batch with shape {shape} {remedy}"):
        _ = from_arrays(VALUES).map_batch(lambda rows: leaf).spec


def test_no_rows_and_no_spec() -> None:
    message = "the dataset has no rows, and no spec can be inferred; (pass spec= to its maps|leave it out)"
    for data in (
        from_source([]),
        from_arrays(VALUES[:0]).map(lambda row: row),
        from_arrays(VALUES)[:0].map(lambda row: row),
    ):
        with pytest.raises(SourceError, match=message):
            _ = data.spec
    assert from_arrays(VALUES[:0]).spec == ArraySpec((2,), I32)


def transposed(rows: Any) -> Any:
    return {"x": rows["x"].swapaxes(1, 2)}


def renamed(rows: Any) -> Any:
    return {"z": rows["x"]}


@pytest.mark.parametrize(
    ("function", "became"), [(transposed, r"'x'.*\[3, 2\], 'int64'"), (renamed, r"'z'.*\[2, 3\], 'int64'")]
)
def test_what_is_not_elementwise_is_refused_as_such(function: Any, became: str) -> None:
    data: Dataset = from_arrays({"x": np.zeros((4, 2, 3), np.int64)}).map_batch(function, elementwise=True)
    message = (
        rf"map_batch {function.__name__} .*is elementwise=True, "
        "but its result and its input differ in leaves or shapes: "
    )
    with pytest.raises(
        ArgumentError, match=message + rf".*'x'.*\[2, 3\], 'int64'.* became .*{became}.*; leave elementwise out"
    ):
        _ = data.spec


def test_an_error_that_names_its_row_gets_no_second_note() -> None:
    data = from_source([np.zeros(2), np.zeros(2), np.zeros(3)])
    with pytest.raises(LeafError, match="row 2: leaf of the example") as caught:
        data.read([0, 2])
    assert not hasattr(caught.value, "__notes__")


def test_a_map_that_writes_leaves_the_sources_memory_alone() -> None:
    """Also where a user's source gives views of its own memory away."""

    class Views:
        def __init__(self) -> None:
            self.memory = np.arange(8.0)
            self.spec = ArraySpec((), np.dtype(np.float64))

        def __len__(self) -> int:
            return 8

        def read(self, rows: Any) -> Any:
            return self.memory[rows[0] : rows[-1] + 1]

    def double(batch: Any) -> Any:
        batch *= 2
        return batch

    source = Views()
    data = from_source(source).map_batch(double)
    for _ in range(2):
        assert data.read(range(8)).tolist() == [0, 2, 4, 6, 8, 10, 12, 14]
    assert source.memory.tolist() == list(range(8))


def test_documents_of_a_map_that_returns_one_array_for_all() -> None:
    """They are read one by one."""
    buffer = np.zeros(4, np.int64)

    def fill(example: Any) -> Any:
        buffer[:] = example
        return buffer

    data = from_arrays(np.arange(1, 7))
    reads: list[Callable[[Dataset], Dataset]] = [
        lambda made: made.pack(4)[:],
        lambda made: made.filter(lambda row: row[0] == 3),
    ]
    for read in reads:
        with pytest.raises(
            LeafError, match=r"map .*fill .* returned one array for several rows.*return a new array \(a copy\)"
        ):
            read(data.map(fill))
    copying = data.map(lambda example: fill(example).copy())
    assert [row["tokens"].tolist() for row in copying.pack(4)] == [[number] * 4 for number in range(1, 7)]
    assert len(copying.filter(lambda example: example[0] == 3)) == 1


class Located:
    """A source of rows that differ, in one file; it remembers which rows were located."""

    spec = None
    addresses = ("rows.txt",)

    def __init__(self, lengths: list[int]) -> None:
        self.lengths = lengths
        self.located: list[int] = []

    def __len__(self) -> int:
        return len(self.lengths)

    def read(self, rows: Any) -> Any:
        raise LeafError(f"rows {rows.tolist()} differ")

    def examples(self, rows: Any) -> list[Any]:
        return [{"n": row, "text": str(row), "x": np.zeros(self.lengths[row])} for row in rows.tolist()]

    def locate(self, row: int) -> list[tuple[str, int, int]]:
        self.located.append(row)
        return [("rows.txt", 10 * row, 10 * row + 9)]


def test_rows_are_located_for_errors_alone() -> None:
    source = Located([2, 2, 3, 2])
    data = from_source(source).map(lambda row: row)
    assert data.read([0, 1, 3])["text"].tolist() == ["0", "1", "3"]
    assert source.located == []
    message = r"^row 2 \(rows.txt, byte 20\): leaf \['x'\] is float64\[3\], expected float64\[2\]; rows are ragged"
    with pytest.raises(LeafError, match=message):
        data.read([0, 2])
    assert source.located == [2]


def test_note_of_a_failing_first_row_names_parts_only_where_there_are_some() -> None:
    def misspelt(row: Any) -> Any:
        return row["image"]

    data = from_arrays({"x": np.arange(4)})
    with pytest.raises(KeyError) as caught:
        data.map(misspelt).spec  # noqa: B018
    assert caught.value.__notes__[-1] == "loadax: this row was read and mapped to infer the spec of examples"
    with pytest.raises(KeyError) as caught:
        mix({"a": data.map(misspelt), "b": data}, [1, 1])
    assert caught.value.__notes__[-1].startswith("loadax: if only some rows of this part fail, pass spec= to its maps")
    spec = {"x": np.float64(0)}
    advised = mix({"a": data.map(misspelt, spec=spec), "b": from_arrays({"x": np.zeros(4)})}, [1, 1])
    assert advised.spec["x"].dtype == np.float64
