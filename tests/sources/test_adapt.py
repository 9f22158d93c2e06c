"""Anything with `__len__` and `__getitem__`."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from loadax import from_source
from loadax.errors import ArgumentError, LeafError, SourceError
from loadax.protocols import Source
from loadax.sources.adapt import ObjectSource


class Squares:
    """A dataset as torch users write them; remembers what it was asked for."""

    def __init__(self, size: int = 10) -> None:
        self.size = size
        self.asked: list[Any] = []

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, row: int) -> dict[str, Any]:
        self.asked.append(row)
        if row == 8:
            raise KeyError("broken record")
        return {"x": np.full(2, row, np.float32), "y": row * row}


class Many(Squares):
    """One that gives many rows at once."""

    def __getitems__(self, rows: list[int]) -> Any:
        self.asked.append(rows)
        return [{"x": np.full(2, row, np.float32), "y": row * row} for row in rows]


def test_rows_are_asked_for_with_python_ints_in_order() -> None:
    items = Squares()
    source = ObjectSource(items)
    assert isinstance(source, Source)
    assert repr(source) == "Squares object"
    batch = source.read(np.array([3, 1, 3]))
    assert items.asked == [3, 1, 3]
    assert all(type(row) is int for row in items.asked)
    np.testing.assert_array_equal(batch["x"], [[3, 3], [1, 1], [3, 3]])
    assert batch["y"].tolist() == [9, 1, 9]
    assert batch["x"].dtype == np.float32


def test_getitems_is_asked_for_many_rows_at_once() -> None:
    items = Many()
    assert ObjectSource(items).read(np.array([3, 8, 3]))["y"].tolist() == [9, 64, 9]
    assert items.asked == [[3, 8, 3]]
    assert all(type(row) is int for row in items.asked[0])


def test_spec_of_rows_does_not_depend_on_earlier_reads() -> None:
    source = ObjectSource([1, 2.5, 3.5])
    assert source.read(np.array([0])).dtype == np.int64
    assert source.read(np.array([2, 1])).tolist() == [3.5, 2.5]
    assert source.read(np.array([], np.int64)).dtype == np.int64
    data = from_source([1, 2.5, 3.5])
    assert data[:1].read([0]).tolist() == [1]
    assert data[1:].read([0, 1]).tolist() == [2.5, 3.5]
    with pytest.raises(LeafError, match=r"^row 1: .* expected int64\[\]; give all rows one shape and dtype in a map"):
        data.read([1])
    assert data.map(np.float32).read([0, 1]).tolist() == [1, 2.5]


def test_lists_tuples_and_texts_are_rows() -> None:
    batch = ObjectSource(((1, "a"), (3, "longer"))).read(np.array([1, 0]))
    assert (batch[0].tolist(), batch[1].tolist()) == ([3, 1], ["longer", "a"])


def test_no_rows_are_an_empty_batch() -> None:
    assert ObjectSource(Squares()).read(np.empty(0, np.int64))["x"].shape == (0, 2)
    assert ObjectSource(Many()).read(np.empty(0, np.int64))["x"].shape == (0, 2)


def test_a_row_that_differs_is_named() -> None:
    items = [np.zeros(2), np.zeros(2), np.zeros(3)]
    with pytest.raises(
        LeafError, match=r"row 2: leaf of the example is float64\[3\], expected float64\[2\]; rows are ragged"
    ):
        ObjectSource(items).read(np.array([1, 2]))


def test_error_of_an_item_keeps_its_type_and_gets_its_row() -> None:
    with pytest.raises(KeyError, match="broken record") as caught:
        ObjectSource(Squares()).read(np.array([7, 8]))
    assert caught.value.__notes__ == ["loadax: in Squares[8]"]


def test_error_of_getitems_keeps_its_type_and_gets_the_rows() -> None:
    class Broken(Many):
        def __getitems__(self, rows: list[int]) -> Any:
            raise OSError("disk")

    with pytest.raises(OSError, match="disk") as caught:
        ObjectSource(Broken(20)).read(np.arange(12))
    assert caught.value.__notes__ == ["loadax: in Broken.__getitems__([0, 1, 2, 3, 4, 5, 6, 7, …])"]


@pytest.mark.parametrize(
    ("answer", "shown"),
    [
        ({"x": [1, 2]}, "a dict of 1 entry"),
        ([1], "a list of 1 entry"),
        (np.zeros(2), "a ndarray of 2 entries"),
        (5, "an int of no"),
    ],
)
def test_many_rows_must_come_as_a_list_of_examples(answer: Any, shown: str) -> None:
    class Wrong(Squares):
        def __getitems__(self, rows: list[int]) -> Any:
            return answer

    with pytest.raises(
        SourceError, match=rf"Wrong\.__getitems__ returned {shown}.* for 2 rows; it must return a list with one example"
    ):
        ObjectSource(Wrong()).read(np.array([0, 1]))


@pytest.mark.parametrize(
    ("items", "missing"),
    [(5, "__len__ and __getitem__"), (iter([1]), "__len__ and __getitem__"), ({1, 2}, "__getitem__")],
)
def test_objects_without_rows_are_refused(items: Any, missing: str) -> None:
    message = (
        rf"the data is an? \w+ without {missing}, so it has no random access; "
        r"pass a Source \(with read, __len__ and spec\), or any object"
    )
    with pytest.raises(ArgumentError, match=message):
        ObjectSource(items)


def test_eight_threads_read_what_one_reads() -> None:
    source = ObjectSource(Many(1000))
    asked = [np.random.default_rng(number).integers(0, 1000, 50) for number in range(64)]
    with ThreadPoolExecutor(8) as threads:
        for rows, batch in zip(asked, threads.map(source.read, asked), strict=True):
            np.testing.assert_array_equal(batch["y"], rows**2)


@pytest.mark.parametrize("view", [False, True])
def test_an_array_that_is_given_for_every_row_is_copied(view: bool) -> None:
    class Reusing:
        def __init__(self) -> None:
            self.memory = np.zeros(6)

        def __len__(self) -> int:
            return 8

        def __getitem__(self, row: int) -> dict[str, Any]:
            self.memory[:] = row
            return {"x": self.memory[:3] if view else self.memory}

    rows = np.arange(8)
    found = ObjectSource(Reusing()).read(rows)["x"]
    assert found.tolist() == [[row] * (3 if view else 6) for row in range(8)]
