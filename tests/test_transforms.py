"""Maps: row by row or many at once, with random streams that belong to rows."""

import copy
import functools
import pickle
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from loadax.core.arguments import takes
from loadax.errors import LeafError
from loadax.protocols import ArraySpec, Visits
from loadax.reader import Reader
from loadax.seeds import row_generator
from loadax.sources.arrays import ArraySource
from loadax.transforms import BatchMap, Map

I64 = np.dtype(np.int64)
VISITS = Visits(np.array([7, 2, 7]), np.array([0, 3, 1]))
SPEC = {"x": ArraySpec((), I64)}


def batch() -> dict[str, Any]:
    return {"x": np.array([70, 20, 70]), "y": np.arange(6.0).reshape(3, 2)}


def mapped(each: Map, rows: Any, visits: Visits, spec: Any) -> Any:
    """What a map makes of a batch, by a reader of it."""
    return Reader(ArraySource(rows), (each if each.spec is not None else replace(each, spec=spec),), None).apply(
        rows, visits
    )


def test_a_map_of_no_rows_calls_nothing() -> None:
    nothing = Visits(np.empty(0, np.int64), np.empty(0, np.int64))
    result = mapped(Map(lambda example: 1 / 0, False, 0, 0, None), {"x": np.empty(0, np.int64)}, nothing, SPEC)
    assert result["x"].shape == (0,)


def draw(example: Any, rng: np.random.Generator) -> Any:
    return {"x": rng.integers(1 << 60)}


def test_no_two_streams_are_alike() -> None:
    keys = [
        (seed, place, epoch, row) for seed in (-1, 0, 1) for place in (0, 1) for epoch in (0, 1, 2) for row in (0, 1, 2)
    ]
    streams = [tuple(row_generator(*key).integers(1 << 30, size=4)) for key in keys]
    assert len(set(streams)) == len(keys)


def test_streams_of_neighbours_never_overlap() -> None:
    """A row's stream does not run into that of the next row."""
    first = set(row_generator(0, 0, 0, 5).integers(1 << 62, size=3000).tolist())
    for neighbour in (
        row_generator(0, 0, 0, 6),
        row_generator(0, 0, 1, 5),
        row_generator(0, 1, 0, 5),
        row_generator(1, 0, 0, 5),
    ):
        assert not first & set(neighbour.integers(1 << 62, size=3000).tolist())


def test_streams_are_pinned() -> None:
    """A new NumPy or loadax must not draw otherwise: a resumed run would see other data."""
    assert row_generator(1, 2, 3, 4).bit_generator.random_raw(2).tolist() == [
        11977381676744033955,
        15097021557017575587,
    ]
    assert row_generator(0, 0, 2**62, 2**62).random() != row_generator(0, 0, 0, 0).random()


def test_what_a_stream_spawns_is_pinned_too() -> None:
    """NumPy would take it from the operating system, differently in every run."""
    spawned = row_generator(1, 2, 3, 4).spawn(2)
    assert [int(each.integers(1 << 60)) for each in spawned] == [1050968984880120394, 502863698750187756]
    rng = row_generator(1, 2, 3, 4)
    first, second, third = *rng.spawn(1), *rng.spawn(2)
    drawn = [int(each.integers(1 << 60)) for each in (first, second, third)]
    assert drawn[:2] == [int(each.integers(1 << 60)) for each in row_generator(1, 2, 3, 4).spawn(2)]
    assert len({*drawn, int(row_generator(1, 2, 3, 5).spawn(1)[0].integers(1 << 60))}) == 4
    seeds: list[Any] = [rng.bit_generator.seed_seq, row_generator(1, 2, 3, 4).bit_generator.seed_seq]
    one, other = (np.random.PCG64(seed).random_raw() for seed in seeds)
    assert one == other


def test_a_stream_travels() -> None:
    rng = row_generator(1, 2, 3, 4)
    rng.random()
    rng.spawn(1)
    pickled, copied = pickle.loads(pickle.dumps(rng)), copy.deepcopy(rng)
    drawn, spawned = rng.random(), rng.spawn(1)[0].random()
    for again in (pickled, copied):
        assert again.random() == drawn
        assert again.spawn(1)[0].random() == spawned


def broken(example: Any) -> Any:
    if np.ndim(example["x"]) == 0 and example["x"] == 70:
        return {"x": example["x"]}
    raise ZeroDivisionError("mine")


def test_what_a_map_raises_keeps_its_type_and_names_the_row() -> None:
    with pytest.raises(ZeroDivisionError, match="mine") as caught:
        mapped(Map(broken, False, 0, 0, None), batch(), VISITS, SPEC)
    (note,) = caught.value.__notes__
    assert note.startswith("loadax: in map broken (")
    assert "test_transforms.py:" in note
    assert note.endswith("on row 2 in epoch 3")


def test_what_a_batch_map_raises_keeps_its_type_and_names_the_rows() -> None:
    with pytest.raises(ZeroDivisionError, match="mine") as caught:
        BatchMap(broken, False, 0, 0, None)(batch(), VISITS, SPEC)
    (note,) = caught.value.__notes__
    assert note.startswith("loadax: in map_batch broken (")
    assert note.endswith("on 3 rows (7, 2, 7)")
    many = Visits(np.arange(20), np.zeros(20, np.int64))
    with pytest.raises(ZeroDivisionError) as caught:
        BatchMap(broken, False, 0, 0, None)({"x": np.arange(20)}, many, SPEC)
    assert caught.value.__notes__[0].endswith("on 20 rows (0, 1, 2, 3, 4, 5, 6, 7, …)")


def test_a_map_whose_result_differs_names_the_row_and_the_map() -> None:
    def ragged(example: Any) -> Any:
        return {"x": np.zeros(int(example["x"]) // 10, np.int64)}

    with pytest.raises(LeafError, match=r"row 2: leaf \['x'\] is int64\[2\], expected int64\[7\]") as caught:
        mapped(Map(ragged, False, 0, 0, None), batch(), VISITS, {"x": ArraySpec((7,), I64)})
    assert caught.value.__notes__[0].startswith("loadax: returned by map ")
    assert "ragged" in caught.value.__notes__[0]


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (
            {"x": np.zeros(2, np.int64)},
            r"gave leaf \['x'\] as int64\[2\] for 3 rows, expected int64\[3\]; return one entry per row",
        ),
        ({"x": np.zeros(3)}, r"gave leaf \['x'\] as float64\[3\] for 3 rows, expected int64\[3\]"),
        ({"z": np.zeros(3)}, r"gave the leaves \[\"\['z'\]\"\], expected \[\"\['x'\]\"\]"),
        ({"x": 5}, r"gave leaf \['x'\] as int64\[\] for 3 rows"),
    ],
)
def test_a_batch_map_whose_result_differs_is_named(result: Any, message: str) -> None:
    def wrong(rows: Any) -> Any:
        return result

    with pytest.raises(LeafError, match=rf"map_batch .*wrong \(.*test_transforms\.py:\d+\) {message}"):
        BatchMap(wrong, False, 0, 0, None)(batch(), VISITS, SPEC)


def test_maps_describe_what_changes_their_result_but_not_the_function() -> None:
    described = [
        Map(draw, rng, seed, 0, None).describe()
        if kind is Map
        else BatchMap(draw, rng, seed, 0, None, elementwise=False).describe()
        for kind in (Map, BatchMap)
        for rng, seed in ((False, 0), (True, 0), (True, 1))
    ]
    described += [
        Map(draw, False, 0, 0, None, with_index=True).describe(),
        BatchMap(draw, False, 0, 0, None, with_index=True).describe(),
    ]
    assert len({str(each) for each in described}) == 8
    assert Map(draw, False, 5, 0, None).describe() == Map(len, False, 0, 0, None).describe()


class Mapper:
    def method(self, example: Any, rng: Any) -> Any:
        return example

    def __call__(self, example: Any) -> Any:
        return example


@pytest.mark.parametrize(
    ("function", "counts"),
    [
        (lambda example: example, [1]),
        (lambda example, rng: example, [2]),
        (lambda example, scale=2: example, [1, 2]),
        (lambda *examples: examples, [0, 1, 2, 3]),
        (lambda example, *, rng: example, []),
        (functools.partial(draw, rng=np.random.default_rng(0)), [1]),
        (functools.partial(draw, 3), [1]),
        (Mapper(), [1]),
        (Mapper().method, [2]),
        (Mapper.method, [3]),
        (len, [1]),
        (divmod, [2]),
    ],
)
def test_how_many_arguments_a_function_takes(function: Callable[..., Any], counts: list[int]) -> None:
    assert [count for count in range(4) if takes(function, count)] == counts
    assert {takes(function, count) for count in range(4)} <= {True, False}


class Strange:
    __signature__ = "no signature"

    def __call__(self, example: Any) -> Any:
        return example


@pytest.mark.parametrize("function", [dict, Strange()])
def test_of_some_functions_that_can_not_be_told(function: Callable[..., Any]) -> None:
    assert takes(function, 1) is None


def reusing(shape: tuple[int, ...] = (3,), view: bool = False) -> Any:
    """A function that fills one array anew for every row."""
    buffer = np.zeros(shape)

    def fill(example: Any) -> Any:
        buffer[...] = example["x"]
        return {"x": buffer[:] if view else buffer}

    return fill


@pytest.mark.parametrize("view", [False, True])
def test_a_function_that_returns_one_array_for_several_rows_is_refused(view: bool) -> None:
    made = Map(reusing(view=view), False, 0, 0, None)
    with pytest.raises(
        LeafError,
        match=r"map reusing.<locals>.fill \(.*\) returned one array for several rows.*row 2, leaf 0$",
    ):
        mapped(made, batch(), VISITS, {"x": ArraySpec((3,), np.dtype(float))})


def test_following_the_advice() -> None:
    fill = reusing()
    made = Map(lambda example: {"x": fill(example)["x"].copy()}, False, 0, 0, None)
    result = mapped(made, batch(), VISITS, {"x": ArraySpec((3,), np.dtype(float))})
    np.testing.assert_array_equal(result["x"], batch()["x"][:, None] * np.ones(3))


def test_empty_views_are_no_array_that_is_returned_again() -> None:
    """A document of length 0 begins where the next one does."""
    flat = np.arange(4)
    given = [flat[0:2], flat[2:2], flat[2:4]]
    found = Map(lambda row: row, False, 0, 0, None).results(list(given), Visits(np.arange(3), np.zeros(3, np.int64)))
    assert [row.tolist() for row in found] == [[0, 1], [], [2, 3]]


def test_an_array_that_is_returned_in_another_call_too() -> None:
    """Slow functions get one row a call: then threads could overwrite each other's rows all the same."""
    spec = {"x": ArraySpec((3,), np.dtype(float))}
    made = Map(reusing(), False, 0, 0, spec)
    one, other = ({"x": np.array([value])} for value in (1.0, 2.0))
    visits = Visits(np.array([7]), np.array([0]))
    assert mapped(made, one, visits, spec)["x"].tolist() == [[1, 1, 1]]
    again = copy.deepcopy(made)
    with pytest.raises(
        LeafError, match=r"returned one array for several rows.*return a new array \(a copy\): row 7, leaf"
    ):
        mapped(made, other, visits, spec)
    assert mapped(again, other, visits, spec)["x"].tolist() == [[2, 2, 2]]  # a copy has returned nothing yet


def test_constants_and_views_of_the_example_are_fine() -> None:
    constant, table = np.arange(3.0), np.arange(12.0).reshape(4, 3)
    rows = {"x": np.arange(4), "y": np.arange(12).reshape(4, 3)}
    visits = Visits(np.arange(4), np.zeros(4, np.int64))

    def several(example: Any) -> Any:
        return {"a": constant, "b": table[example["x"]], "c": example["y"][:2], "d": 1, "e": constant[:2]}

    def changed(example: Any) -> Any:
        example["y"] += 1
        return {"y": example["y"]}

    spec = {
        name: ArraySpec((size,), np.dtype(dtype))
        for name, size, dtype in (("a", 3, float), ("b", 3, float), ("c", 2, int), ("e", 2, float))
    }
    made = Map(several, False, 0, 0, None)
    mapped(made, rows, visits, {**spec, "d": ArraySpec((), np.dtype(int))})
    result = mapped(made, rows, visits, {**spec, "d": ArraySpec((), np.dtype(int))})
    assert result["a"].tolist() == [[0, 1, 2]] * 4
    assert result["b"].tolist() == table.tolist()
    assert result["c"].tolist() == rows["y"][:, :2].tolist()
    assert result["d"].tolist() == [1] * 4
    expected = rows["y"] + 1
    assert (
        mapped(Map(changed, False, 0, 0, None), rows, visits, {"y": ArraySpec((3,), np.dtype(int))})["y"].tolist()
        == expected.tolist()
    )


def test_a_map_keeps_no_batch_alive() -> None:
    made = Map(lambda example: {"x": example["x"]}, False, 0, 0, None)
    rows = np.zeros((4, 3))
    gone = weakref.ref(rows)
    mapped(made, {"x": rows}, Visits(np.arange(4), np.zeros(4, np.int64)), {"x": ArraySpec((3,), np.dtype(float))})
    del rows
    assert gone() is None
