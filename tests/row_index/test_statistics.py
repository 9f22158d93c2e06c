"""`statistics`: equal to float64 NumPy over the rows of the dataset, however they are read."""

import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.extra.numpy import arrays

from loadax import Dataset, Statistics, concat, from_arrays, from_source, from_stream, mix
from loadax.errors import ArgumentError, LeafError, LeafTypeError, StreamError
from loadax.row_index import statistics as room
from loadax.row_index.leaf_summary import Summary, most_points
from tests.limits import examples

RANDOM = np.random.default_rng(0)
STATE = RANDOM.normal(1000, 0.1, (5000, 3)).astype(np.float32)
FRACTIONS = (0.0, 0.01, 0.25, 0.5, 0.9, 1.0)


def one(data: Dataset, **options: Any) -> Statistics:
    (found,) = data.statistics(**options).values()
    return found


def assert_equal(found: Statistics, values: Any, rank: float = 0.0) -> None:
    """Compares with NumPy over the first dimension. `rank`: by what share of the values quantiles may be off."""
    wide = np.asarray(values, np.float64)
    assert (found.count == len(wide)).all()
    assert not found.missing.any()
    np.testing.assert_allclose(found.mean, wide.mean(0), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(found.std, wide.std(0), rtol=1e-9, atol=1e-9 * np.abs(wide).max(initial=1))
    np.testing.assert_array_equal(found.least, wide.min(0))
    np.testing.assert_array_equal(found.most, wide.max(0))
    for fraction in FRACTIONS:
        low = np.quantile(wide, max(0.0, fraction - rank), 0)
        high = np.quantile(wide, min(1.0, fraction + rank), 0)
        quantile = found.quantile(fraction)
        slack = 1e-9 * np.abs(wide).max(initial=1)
        assert (low - slack <= quantile).all()
        assert (quantile <= high + slack).all()


@settings(max_examples=examples(200))
@given(
    arrays(np.float64, st.tuples(st.integers(1, 40), st.integers(1, 3)), elements=st.floats(-1e6, 1e6)),
    st.lists(st.integers(0, 40)),
)
def test_summary_of_parts_is_that_of_the_whole(values: Any, cuts: list[int]) -> None:
    parts = np.split(values, sorted(cut % (len(values) + 1) for cut in cuts))
    merged = Summary.merged([Summary.of(part) for part in parts])
    whole = Summary.of(values)
    for field in ("number", "missing", "least", "most"):
        np.testing.assert_array_equal(getattr(merged, field), getattr(whole, field))
    np.testing.assert_allclose(merged.mean, values.mean(0), rtol=1e-12, atol=1e-8)
    np.testing.assert_allclose(merged.squares, whole.squares, rtol=1e-9, atol=1e-3)
    for fraction in FRACTIONS:
        np.testing.assert_allclose(merged.quantiles(fraction), np.quantile(values, fraction, 0), rtol=1e-9, atol=1e-9)


def test_variance_of_large_numbers_that_differ_little_does_not_cancel() -> None:
    values = (1e8 + RANDOM.normal(size=(100_000, 1)) * 1e-2).astype(np.float64)
    merged = Summary.merged([Summary.of(part) for part in np.split(values, 50)])
    np.testing.assert_allclose(merged.squares / len(values), values.var(0), rtol=1e-6)


@pytest.mark.parametrize("columns", [1, 64, 500])
def test_quantiles_of_many_values_are_off_by_a_known_share_of_the_ranks(columns: int) -> None:
    values = RANDOM.exponential(size=(20_000, columns)) ** 3
    merged = Summary.merged([Summary.of(part) for part in np.array_split(values, 7)])
    assert merged.points.shape == (columns, most_points(columns))
    for fraction in FRACTIONS:
        quantile = merged.quantiles(fraction)
        ranks = (values < quantile).sum(0) / len(values)
        assert np.abs(ranks - fraction).max() <= 2 / most_points(columns)


@pytest.mark.parametrize("columns", ["column", "leaf"])
def test_equal_to_numpy_whatever_the_order(columns: Any, tmp_path: Path) -> None:
    data = from_arrays({"state": STATE, "name": np.array(["a"] * len(STATE))})
    expected = STATE if columns == "column" else STATE.reshape(-1)
    with ThreadPoolExecutor(2) as pool:
        for each in (data, data.shuffle(1), data.repeat(2)):
            assert set(each.statistics(per=columns)) == {"state"}
            assert_equal(one(each, per=columns, index=tmp_path, executor=pool), expected, 0.002)
            assert_equal(one(each, per=columns), expected, 0.002)


def test_only_rows_of_the_part_count_with_their_maps() -> None:
    train, rest = from_arrays({"x": np.arange(100), "y": np.zeros(100)}).split(0.8)
    doubled = train.map(lambda row: {**row, "x": 2 * row["x"]})
    rows = np.array([row["x"] for row in train])
    assert len(rest)
    assert_equal(doubled.statistics("x")["x"], 2 * rows)
    assert doubled.statistics("x")["x"].mean.shape == ()


def test_images_have_statistics_of_each_channel_or_one() -> None:
    images = RANDOM.integers(0, 256, (40, 8, 8, 3)).astype(np.uint8)
    data = from_arrays(images)
    assert_equal(data.statistics()[""], images.reshape(-1, 3), 0.002)
    assert_equal(data.statistics(per="leaf")[""], images.reshape(-1), 0.002)


def test_memory_of_many_bytes_is_bounded() -> None:
    values = RANDOM.integers(0, 256, (1 << 20, 3)).astype(np.uint8)
    tracemalloc.start()
    try:
        found = room.summary_of(values)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 4 * values.nbytes  # 40 times, if all were float64 at once
    whole = Summary.of(values)
    for field in ("number", "missing", "least", "most"):
        np.testing.assert_array_equal(getattr(found, field), getattr(whole, field))
    np.testing.assert_allclose(found.mean, whole.mean, rtol=1e-12)
    np.testing.assert_allclose(found.squares, whole.squares, rtol=1e-9)
    np.testing.assert_allclose(found.quantiles(0.3), np.quantile(values, 0.3, 0), atol=1)


def test_values_that_are_not_finite_are_counted_apart() -> None:
    values = np.array([[1.0, np.nan], [np.inf, np.nan], [3.0, np.nan]])
    found = one(from_arrays(values))
    assert found.count.tolist() == [2, 0]
    assert found.missing.tolist() == [1, 3]
    assert found.mean[0] == 2
    assert found.quantile(0.5)[0] == 2
    for column in (found.mean, found.std, found.least, found.most, found.quantile(0.5)):
        assert np.isnan(column[1])


def test_rows_of_several_lengths_have_one_value_for_all() -> None:
    rows = [{"x": np.arange(length)} for length in (3, 3, 0, 5)]
    data = from_source(rows)
    assert_equal(data.statistics(per="leaf")["x"], np.concatenate([row["x"] for row in rows]))
    with pytest.raises(LeafTypeError, match=r"leaf 'x' has \(0,\) columns in row 2, and 3 before; pass per='leaf'"):
        data.statistics()


def test_index_keeps_the_result_and_tells_other_data_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = from_arrays({"x": STATE, "y": STATE[:, 0]})
    found = data.statistics("x", index=tmp_path)["x"]
    monkeypatch.setattr(room, "row_spans", lambda *_: pytest.fail("reads rows"))
    again = from_arrays({"x": STATE, "y": STATE[:, 0]}).statistics("x", index=tmp_path)["x"]
    assert repr(again) == repr(found)
    monkeypatch.undo()
    assert_equal(from_arrays({"x": STATE + 1}).statistics("x", index=tmp_path)["x"], STATE + 1, 0.002)
    assert_equal(data.statistics("y", index=tmp_path)["y"], STATE[:, 0], 0.002)


def test_index_of_another_form_is_not_used(tmp_path: Path) -> None:
    data = from_arrays(STATE)
    data.statistics(index=tmp_path)
    monkey = pytest.MonkeyPatch()
    with monkey.context() as patch:  # as if an index of another form had right checksums
        patch.setattr(room, "most_points", lambda _: 1)
        with pytest.raises(Exception, match="too many points"):
            data.statistics(index=tmp_path)
    assert_equal(one(data, index=tmp_path), STATE, 0.002)


def test_bad_arguments_are_named() -> None:
    data = from_arrays({"x": np.arange(4), "name": np.array(list("abcd"))})
    with pytest.raises(ArgumentError, match="leaf 'name' is <U1, of which there are no statistics; name leaves of"):
        data.statistics("name")
    with pytest.raises(ArgumentError, match=r"of leaves \['name'\], none of which is of real numbers; cast one"):
        data.keep("name").statistics()
    with pytest.raises(ArgumentError, match="per='row': pass 'column' or 'leaf'"):
        data.statistics(per="row")  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match=r"statistics\(\) of no rows; call it on a dataset with rows"):
        data[:0].statistics()
    with pytest.raises(ArgumentError, match=r"call it before random maps and maps with_epoch=True"):
        data.map(lambda row, epoch: row, with_epoch=True).statistics()
    with pytest.raises(ArgumentError, match=r"fraction=1\.5 is not within 0 and 1; pass such as 0\.99"):
        data.statistics("x")["x"].quantile(1.5)
    for several in ([0.1, 0.9], None, "median", float("nan")):
        with pytest.raises(ArgumentError, match=r"fraction=.*: pass one number from 0 to 1, such as 0\.99"):
            data.statistics("x")["x"].quantile(several)  # type: ignore[arg-type]
    with pytest.raises(StreamError, match="statistics"):
        from_stream(lambda lane, lanes: iter([np.int32(1)]), lanes=1).statistics()


def test_parts_of_a_concatenation_count_together() -> None:
    both = concat([from_arrays(STATE[:100]), from_arrays(STATE[100:])])
    assert_equal(one(both), STATE, 0.002)


def test_rows_with_other_leaves_are_looked_up_by_name() -> None:
    rows = [{"y": 1.0}, {"a": 50.0, "y": 2.0}, {"y": 6.0}]
    assert one(from_source(rows)).mean == 3
    for missing in ({"x": 1.0}, {"y": None}, {"y": {"z": 1.0}}):
        message = r"row 1: leaf 'y' is None or missing, but the first row has it; replace None in a map, or leave"
        data = from_source([rows[0], missing, rows[2]])
        with pytest.raises(LeafError, match=message):
            data.statistics()
        assert one(data.filter(lambda row: isinstance(row.get("y"), float))).mean == 3.5
        assert one(data.map(lambda row: {"y": row["y"] if isinstance(row.get("y"), float) else 2.0})).mean == 3
    assert one(from_source([{"": 1.0}, {"": 2.0}])).mean == 1.5
    assert one(from_source([1.0, 2.0])).mean == 1.5


def test_rows_of_something_else_than_real_numbers_are_named() -> None:
    for value in ("7", 1j, np.datetime64(0, "s")):
        data = from_source([{"x": 1.0}, {"x": value}])
        with pytest.raises(LeafTypeError, match=r"leaf 'x' is \S+ in row 1, not a real number; cast it in a map"):
            data.statistics()
        assert one(data.map(lambda row: {"x": np.asarray(row["x"]).astype(np.complex128).real})).count == 2


def test_leaf_without_columns_has_statistics_of_none() -> None:
    for data in (from_arrays({"x": np.zeros((5, 0))}), from_source([{"x": np.zeros(0)}] * 2)):
        found = one(data)
        assert found.count.shape == found.mean.shape == found.quantile(0.5).shape == (0,)
        assert one(data, per="leaf").count == 0
    with pytest.raises(LeafTypeError, match=r"has \(2,\) columns in row 1, and 0 before"):
        from_source([{"x": np.zeros(0)}, {"x": np.zeros(2)}]).statistics()


class Scale:
    """Map whose changes a fingerprint can't see."""

    __slots__ = ("factor",)

    def __init__(self, factor: float):
        self.factor = factor

    def __call__(self, row: Any) -> Any:
        return {"x": row["x"] * self.factor}


def test_index_is_not_used_if_changes_of_a_map_can_be_invisible(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data = from_arrays({"x": STATE.astype(np.float64)})
    for factor in (2.0, 3.0):
        found = one(data.map(Scale(factor)), index=tmp_path)
        assert_equal(found, STATE.astype(np.float64) * factor, 0.002)
        assert "is neither read nor written" in caplog.text


def test_can_be_compared_and_be_a_key() -> None:
    found = one(from_arrays(STATE))
    assert found in {found: 1}
    assert found != one(from_arrays(STATE))


def test_row_that_is_selected_twice_counts_once() -> None:
    data = from_arrays(np.arange(10.0))
    assert_equal(one(data.select([5, 5, 7])), [5.0, 7.0])


def test_of_a_mixture_its_parts_are_asked() -> None:
    parts = [from_arrays(np.arange(4.0)), from_arrays(np.arange(6.0))]
    with pytest.raises(ArgumentError, match=r"statistics\(\) after mix\(\) .* call it on concat\(\) of the parts"):
        mix(parts, [1, 1]).statistics()
    assert_equal(one(concat(parts)), np.concatenate([np.arange(4.0), np.arange(6.0)]))
