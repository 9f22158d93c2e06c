"""A first row that differs when it is read a second time is told of once, by the name of what made it."""

import random
import re
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from PIL import Image

import loadax
from loadax import Dataloader, Dataset, concat, from_arrays, from_source, from_stream, mix
from loadax.core import first_row, user_object

ARRAYS = from_arrays({"x": np.arange(64.0)})


class Clock:
    """A clock that only `passes` moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def passes(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(first_row, "perf_counter", made)
    monkeypatch.setattr(user_object, "perf_counter", made)
    return made


class RandomItems:
    def __len__(self) -> int:
        return 64

    def __getitem__(self, row: int) -> Any:
        return {"x": row + random.random()}


class Reads:
    spec = None

    def __len__(self) -> int:
        return 64

    def read(self, rows: Any) -> Any:
        return {"x": rows + np.random.rand(len(rows))}  # noqa: NPY002


class Fixed:
    def __len__(self) -> int:
        return 64

    def __getitem__(self, row: int) -> Any:
        return {"x": float(row)}


def drawn(row: Any) -> Any:
    return {"x": row["x"] + random.random()}


def drawn_by_numpy(row: Any) -> Any:
    return {"x": row["x"] + np.random.rand()}  # noqa: NPY002


def timed(row: Any) -> Any:
    return {"x": row["x"], "t": time.perf_counter()}


def grown(row: Any, seen: list[int] = []) -> Any:  # noqa: B006 - the mistake
    seen.append(1)
    return {"x": row["x"] + len(seen)}


def half_seeded(row: Any, rng: np.random.Generator) -> Any:
    return {"x": row["x"] + rng.random() + random.random()}


def drawn_batch(batch: Any) -> Any:
    return {"x": batch["x"] + random.random()}


def fails_later(row: Any, calls: list[int] = []) -> Any:  # noqa: B006 - the mistake
    calls.append(1)
    if len(calls) > 1:
        raise RuntimeError("used up")
    return row


def noise(row: Any) -> Any:
    values = [random.randrange(256) for _ in range(16)]
    return Image.fromarray(np.array(values, np.uint8).reshape(4, 4) + 0 * np.uint8(row["x"]))


def opaque(row: Any) -> Any:
    return [row["x"] + random.random(), object()]


def pixels(image: Any) -> Any:
    return {"x": np.asarray(image)}


def lists(row: Any) -> Any:
    return [{"x": row["x"] + random.random()}] * 2


def rows_of(lane: int, lanes: int) -> Iterator[Any]:
    return iter([{"x": float(row)} for row in range(lane, 64, lanes)])


OWN: dict[str, tuple[Callable[[], Dataset], str]] = {
    "__getitem__": (lambda: from_source(RandomItems()), "RandomItems gave"),
    "read": (lambda: from_source(Reads()), "Reads gave"),
    "__getitem__, mapped": (lambda: from_source(RandomItems()).map(lambda row: row), "RandomItems gave"),
    "shuffled": (lambda: from_source(RandomItems()).shuffle(0), "RandomItems gave"),
    "map": (lambda: ARRAYS.map(drawn), "map drawn .*gave"),
    "np.random": (lambda: ARRAYS.map(drawn_by_numpy), "map drawn_by_numpy .*gave"),
    "time": (lambda: ARRAYS.map(timed), "map timed .*gave"),
    "default argument": (lambda: ARRAYS.map(grown), "map grown .*gave"),
    "rng and others": (lambda: ARRAYS.map(half_seeded, rng=True), "map half_seeded .*gave"),
    "map_batch": (lambda: ARRAYS.map_batch(drawn_batch), "map_batch drawn_batch .*gave"),
    "between maps": (lambda: ARRAYS.map(lambda row: row).map(drawn).map(lambda row: row), "map drawn .*gave"),
    "image": (lambda: ARRAYS.map(noise).map(pixels), "map noise .*gave"),
    "objects": (lambda: ARRAYS.map(opaque).map(lambda pair: {"x": pair[0]}), "map opaque .* or map .*gave"),
    "flat_map": (lambda: ARRAYS.flat_map(lists, fan_out=2), "lists .*gave"),
    "concat": (lambda: concat([from_source(RandomItems()), ARRAYS]), "RandomItems gave"),
    "mix": (lambda: mix({"a": ARRAYS.map(drawn), "b": ARRAYS}, [1, 1]), "map drawn .*gave"),
    "mix, mapped": (lambda: mix({"a": ARRAYS.map(drawn)}, [1]).map(lambda row: row), "map drawn .*gave"),
    "zip": (lambda: loadax.zip({"a": from_source(RandomItems()), "b": ARRAYS}), "RandomItems gave"),
    "windows": (lambda: from_source(RandomItems()).windows(4), "RandomItems gave"),
    "group": (
        lambda: from_source(RandomItems()).group(8, sizes=np.full(64, 4)).map(lambda rows: rows[0]),
        "RandomItems gave",
    ),
    "stream": (lambda: from_stream(rows_of, lanes=8).map(drawn), "map drawn .*gave"),
}


@pytest.mark.parametrize("kind", OWN)
def test_own_randomness_is_told_once_by_name(kind: str) -> None:
    make, match = OWN[kind]
    with pytest.warns(UserWarning, match=match) as caught:
        Dataloader(data := make(), 8)
    assert len(caught) == 1
    assert caught[0].filename == __file__
    text = str(caught[0].message)
    assert re.search(r"row \d+ was read a second time", text)
    assert "rng" in text
    assert "docs/guides/random.md" in text
    Dataloader(data, 8)  # a warning is an error here
    assert data.map(lambda row: row).spec  # reads the row


def test_row_that_raises_the_second_time_is_told_of() -> None:
    with pytest.warns(UserWarning, match="map fails_later .*raised RuntimeError: used up when row 0 was read a second"):
        Dataloader(ARRAYS.map(fails_later), 8)


SAME: dict[str, Callable[[], Dataset]] = {
    "arrays": lambda: ARRAYS,
    "items": lambda: from_source(Fixed()),
    "rng": lambda: ARRAYS.map(lambda row, rng: {"x": row["x"] + rng.random()}, rng=True),
    "rng of a batch": lambda: ARRAYS.map_batch(
        lambda batch, rngs: {"x": batch["x"] + [rng.random() for rng in rngs]}, rng=True
    ),
    "NaN": lambda: ARRAYS.map(lambda row: {"x": row["x"] * np.nan, "o": np.array([np.nan, None], object)[1:]}),
    "structured": lambda: ARRAYS.map(lambda row: {"x": np.zeros(2, np.dtype([("a", "i1"), ("b", "f8")], align=True))}),
    "in place": lambda: from_source(Fixed()).map(lambda row: row | {"x": row["x"] + 1}),
    "opaque objects": lambda: ARRAYS.map(lambda row: {"x": object(), "y": row["x"]}),
    "spec given": lambda: ARRAYS.map(drawn, spec={"x": np.float64(0)}),
    "stream": lambda: from_stream(rows_of, lanes=8),
}


@pytest.mark.parametrize("kind", SAME)
def test_rows_that_are_equal_are_quiet(kind: str) -> None:
    Dataloader(SAME[kind](), 8, host_leaves=("o",) if kind == "NaN" else ("x",) if kind != "arrays" else ())


@pytest.mark.parametrize(("seconds", "calls"), [(0.005, 2), (0.006, 1)])
def test_row_that_takes_long_is_not_read_again(clock: Clock, seconds: float, calls: int) -> None:
    called = []

    def slow(row: Any) -> Any:
        called.append(row["x"])
        clock.passes(seconds)
        return {"x": row["x"] + len(called)}

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        Dataloader(ARRAYS.map(slow), 8)
    assert len(called) == calls
    assert len(caught) == calls - 1


def test_slow_source_is_not_read_again(clock: Clock) -> None:
    rows = []

    class Slow(Fixed):
        def __getitem__(self, row: int) -> Any:
            rows.append(row)
            clock.passes(0.006)
            return super().__getitem__(row)

    Dataloader(from_source(Slow()).map(lambda row: row), 8)
    assert rows == [0]


def test_advice_works_to_the_letter() -> None:
    def fn(row: Any, rng: np.random.Generator) -> Any:
        return {"x": row["x"] + rng.random()}

    for data in (from_source(Fixed()).map(fn, rng=True), ARRAYS.map(fn, rng=True)):
        loader = Dataloader(data, 8)
        assert np.array_equal(loader[0]["x"], loader[0]["x"])


def test_stream_loses_no_row() -> None:
    opened = []

    def live(lane: int, lanes: int) -> Iterator[Any]:
        opened.append(lane)
        return rows_of(lane, lanes)

    batches = [np.asarray(batch["x"]) for batch in Dataloader(from_stream(live, lanes=4).map(dict), 8)]
    assert sorted(np.concatenate(batches)) == [*range(64)]
    assert opened.count(0) == 1


def test_randomness_that_maps_leave_out_is_not_told() -> None:
    class Rows:
        def __len__(self) -> int:
            return 4

        def __getitem__(self, row: int) -> Any:
            return {"x": np.int64(row), "read_at": np.float64(np.random.default_rng().random())}

    assert loadax.from_source(Rows()).keep("x").spec["x"].dtype == np.int64
    with pytest.warns(UserWarning, match="Rows gave other values"):
        _ = loadax.from_source(Rows()).map(lambda row: row).spec
