"""What an example looks like, and what happens to a row that looks otherwise."""

import sys
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given as for_all, strategies as st

from loadax.core import spec
from loadax.core.spec import check_batch, flatten_spec, normalise_spec, own, own_all, spec_of, split_rows, stack
from loadax.core.tree import flatten
from loadax.errors import ArgumentError, LeafError
from loadax.protocols import ArraySpec

F32, I64 = np.dtype(np.float32), np.dtype(np.int64)
SPEC = {"x": ArraySpec((2,), F32), "y": ArraySpec((), I64)}


def test_the_spec_of_an_example() -> None:
    example = {"a": np.zeros((2, 3), np.uint8), "b": 1.5, "c": (7, True), "d": "text", "e": b"bytes", "f": [1, 2]}
    assert spec_of(example) == {
        "a": ArraySpec((2, 3), np.dtype(np.uint8)),
        "b": ArraySpec((), np.dtype(np.float64)),
        "c": (ArraySpec((), I64), ArraySpec((), np.dtype(bool))),
        "d": ArraySpec((), np.dtype(object)),
        "e": ArraySpec((), np.dtype(object)),
        "f": [ArraySpec((), I64), ArraySpec((), I64)],  # a list is a container, as it is to JAX
    }


def test_a_spec_says_native_byte_order() -> None:
    assert spec_of(np.zeros(3, ">f4")) == ArraySpec((3,), F32)
    assert normalise_spec(np.zeros(3, ">f4")) == ArraySpec((3,), F32)


@pytest.mark.parametrize(
    "leaf", [jax.ShapeDtypeStruct((2,), np.float32), ArraySpec((2,), F32), np.zeros(2, np.float32)]
)
def test_anything_with_a_shape_and_a_dtype_is_a_spec(leaf: Any) -> None:
    assert normalise_spec({"x": leaf}) == {"x": ArraySpec((2,), F32)}


def test_flatten_spec_takes_an_array_spec_for_a_leaf() -> None:
    leaves, structure = flatten_spec(SPEC)
    assert leaves == [SPEC["x"], SPEC["y"]]
    assert structure.paths == ["['x']", "['y']"]


@pytest.mark.parametrize("wrong", [3, "float32", np.float32])
def test_a_spec_without_shape_names_the_leaf(wrong: Any) -> None:
    with pytest.raises(
        ArgumentError, match=r"spec\['x'\] is .*: pass an object with a shape and a dtype, such as jax.ShapeDtypeStruct"
    ):
        normalise_spec({"x": wrong, "y": np.zeros(())})


def test_stack_puts_rows_first() -> None:
    examples = [{"x": np.full(2, value, np.float32), "y": value} for value in range(3)]
    batch = stack(examples, SPEC, [5, 6, 7])
    np.testing.assert_array_equal(batch["x"], [[0, 0], [1, 1], [2, 2]])
    np.testing.assert_array_equal(batch["y"], [0, 1, 2])
    assert batch["x"].dtype == F32


def test_stack_keeps_objects_as_they_are() -> None:
    spec = ArraySpec((), np.dtype(object))
    assert stack(["a", b"bb"], spec, [0, 1]).tolist() == ["a", b"bb"]
    assert stack([], spec, []).shape == (0,)


@pytest.mark.parametrize(
    ("second", "shape"), [(np.array(["a", "b", "c"]), r"<U1\[3\]"), (np.array(["a"]), r"<U1\[1\]"), ("a", r"<U1\[\]")]
)
def test_objects_of_another_shape_are_named(second: Any, shape: str) -> None:
    spec = spec_of(np.array(["a", "b"]))
    assert stack([np.array(["a", "b"]), np.array(["c", 1], object)], spec, [4, 9]).tolist() == [["a", "b"], ["c", 1]]
    with pytest.raises(LeafError, match=f"row 9: leaf of the example is {shape}, expected object"):
        stack([np.array(["a", "b"]), second], spec, [4, 9])


def test_stack_takes_the_other_byte_order_for_what_it_is() -> None:
    batch = stack([{"x": np.array([1, 2], ">f4"), "y": np.array(3, ">i8")}], SPEC, [0])
    assert batch["x"].tolist() == [[1, 2]]
    assert batch["y"].tolist() == [3]


@pytest.mark.parametrize(
    ("second", "message"),
    [
        (
            {"x": np.zeros(3, np.float32), "y": 1},
            (
                r"row 9: leaf \['x'\] is float32\[3\], expected float32\[2\]; "
                r"rows are ragged: pad them with \.pad\(lengths\), crop"
            ),
        ),
        (
            {"x": np.zeros(2), "y": 1},
            r"row 9: leaf \['x'\] is float64\[2\], expected float32\[2\]; give all rows one shape and dtype in a map",
        ),
        ({"x": np.zeros(2, np.float32), "y": 1.0}, r"row 9: leaf \['y'\] is float64\[\], expected int64\[\]"),
        (
            {"x": np.zeros(2, np.float32)},
            r"row 9: \['y'\] is None or missing, but the rows before it have it; replace None in a map, or leave",
        ),
        ((), r"row 9 has the leaves none"),
    ],
)
def test_a_row_that_differs_is_named(second: Any, message: str) -> None:
    with pytest.raises(LeafError, match=message):
        stack([{"x": np.zeros(2, np.float32), "y": 1}, second], SPEC, [4, 9])


def test_a_lone_leaf_is_called_the_examples() -> None:
    with pytest.raises(LeafError, match=r"row 3: leaf of the example is int64\[\]"):
        stack([1], ArraySpec((2,), F32), [3])


def test_check_batch_lets_a_good_batch_through() -> None:
    batch = {"x": np.zeros((4, 2), np.float32), "y": np.arange(4)}
    checked = check_batch(batch, 4, SPEC, "it")
    assert checked["x"] is batch["x"]  # no copy
    swapped = check_batch({"x": np.ones((4, 2), ">f4"), "y": np.arange(4)}, 4, SPEC, "it")
    assert swapped["x"].dtype == F32
    assert swapped["x"].dtype.isnative
    assert (swapped["x"] == 1).all()


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ({"x": np.zeros((4, 2), np.float32)}, r"it gave the leaves \[.*x.*\], expected \[.*x.*y.*\]"),
        (
            {"x": np.zeros((3, 2), np.float32), "y": np.arange(4)},
            r"it gave leaf \['x'\] as float32\[3, 2\] for 4 rows, expected",
        ),
        (
            {"x": np.zeros((4, 2), np.float32), "y": np.arange(4.0)},
            r"leaf \['y'\] as float64\[4\] .* expected int64\[4\]; return one",
        ),
        ({"x": np.float32(0), "y": np.arange(4)}, r"leaf \['x'\] as float32\[\] for 4 rows, expected float32\[4, 2\]"),
    ],
)
def test_a_batch_that_differs_is_named(batch: Any, message: str) -> None:
    with pytest.raises(LeafError, match=message):
        check_batch(batch, 4, SPEC, "it")


LEAVES: list[Any] = [
    1, 2**63, 2**70, True, 1.5, np.float32(2), np.int64(3), np.array(4),
    np.arange(2), np.arange(3), np.arange(2.0), np.arange(4).reshape(2, 2), np.arange(2).astype(">i8"),
    np.empty(0, np.int64), np.empty((2, 0)), "ab", b"c", [1, 2], None, np.array(["a", "b"]), np.arange(4)[::2],
]  # fmt: skip


@for_all(
    st.lists(st.tuples(st.sampled_from(range(len(LEAVES))), st.sampled_from("xyz")), min_size=1, max_size=4),
    st.booleans(),
)
def test_leaf_by_leaf_is_row_by_row(chosen: list[tuple[int, str]], bare: bool) -> None:
    """Examples that are easily seen to be alike are stacked otherwise: to the same, or to the same error."""
    rows = [LEAVES[number] if bare else {"a": np.arange(2), name: LEAVES[number]} for number, name in chosen]
    rows = [rows[0], *rows]

    def outcome() -> Any:
        try:
            leaves, structure = flatten(stack(rows, spec_of(rows[0]), range(len(rows))))
        except LeafError as error:
            return str(error)
        return structure, [(leaf.dtype, leaf.shape, leaf.tolist()) for leaf in leaves]

    quick = outcome()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spec, "_fill_columns", lambda *_: False)
        assert repr(outcome()) == repr(quick)


def test_an_example_of_ones_own_shares_no_memory() -> None:
    given: Any = {"a": np.arange(3), "b": [np.arange(2), 1, "text"], 3: (True, None), "c": np.array(1.5)}
    copied = own(given)
    assert list(copied) == list(given)  # keys that can't be sorted stay as they stand
    assert repr(copied) == repr(
        {"a": np.arange(3), "b": [np.arange(2), np.int64(1), "text"], 3: (np.True_, None), "c": np.float64(1.5)}
    )
    assert not np.shares_memory(copied["a"], given["a"])
    assert not np.shares_memory(copied["b"][0], given["b"][0])
    opaque = object()
    assert own([opaque])[0] is opaque


def test_rows_of_a_batch_are_its_examples() -> None:
    assert split_rows({"a": np.arange(2), "b": (np.arange(4).reshape(2, 2),)}, 2)[1]["b"][0].tolist() == [2, 3]
    assert split_rows({}, 3) == [{}, {}, {}]


ROW = {"x": np.arange(3.0), "y": np.arange(4, dtype=np.int32)}
LIKE_ROWS: dict[str, list[Any]] = {
    "arrays": [ROW, ROW],
    "scalars": [{"x": np.array(1.0)}, {"x": np.float32(2)}, {"x": 3}],
    "arrays without dimensions": [{"x": np.arange(2)}, {"x": np.array(1)}],
    "text and numbers": [{"x": "a", "y": 1}, {"x": b"b", "y": 2.5}],
    "nested": [{"x": {"a": np.arange(2)}}, {"x": {"a": np.arange(2)}}],
    "other keys": [{"x": np.arange(2)}, {"y": np.arange(2)}],
    "more keys": [{"x": np.arange(2)}, {"x": np.arange(2), "y": np.arange(2)}],
    "bare": [np.arange(2), np.arange(2)],
    "other order": [{"x": 1, "y": np.arange(2)}, {"y": np.arange(2), "x": 1}],
    "no leaves": [{}, {}],
    "none": [],
}


@pytest.mark.parametrize("name", LIKE_ROWS)
def test_own_all_is_own_of_each_row(name: str) -> None:
    rows = LIKE_ROWS[name]
    copies, expected = own_all(rows, range(len(rows))), [own(row) for row in rows]
    assert len(copies) == len(expected)
    for copied, other, row in zip(copies, expected, rows, strict=True):
        (found, structure), (wanted, wanted_structure) = flatten(copied), flatten(other)
        assert structure == wanted_structure
        assert not isinstance(row, dict) or list(copied) == list(row)
        for leaf, wanted_leaf, given in zip(found, wanted, flatten(row)[0], strict=True):
            assert type(leaf) is type(wanted_leaf)
            np.testing.assert_array_equal(leaf, wanted_leaf)
            assert not np.shares_memory(leaf, given)


def test_rows_of_arrays_are_copied_without_a_call_of_python_a_row() -> None:
    count, called = 1000, list[str]()
    rows = [ROW] * count
    sys.setprofile(lambda _frame, event, _value: called.append(event))
    try:
        own_all(rows, range(count))
    finally:
        sys.setprofile(None)
    assert called.count("call") < count / 10
