"""Grain's transforms as arguments of `map` and `filter`."""

import dataclasses
from pathlib import Path
from typing import Any

import grain
import numpy as np
import pytest

import loadax
from loadax import testing
from loadax.core.fingerprint import fingerprint
from loadax.errors import ArgumentError
from loadax.seeds import row_generator

DATA = loadax.from_arrays({"x": np.arange(20.0)})


@dataclasses.dataclass(frozen=True)
class Scale(grain.transforms.Map):  # type: ignore[misc] # Grain ships no types
    factor: float

    def map(self, element: Any) -> Any:
        return {"x": element["x"] * self.factor}


class Jitter(grain.transforms.RandomMap):  # type: ignore[misc] # Grain ships no types
    def __init__(self, width: float):
        self.width = width

    def random_map(self, element: Any, rng: np.random.Generator) -> Any:
        return {"x": element["x"] + self.width * rng.random()}


@dataclasses.dataclass(frozen=True)
class Above(grain.transforms.Filter):  # type: ignore[misc] # Grain ships no types
    least: float

    def filter(self, element: Any) -> bool:
        return bool(element["x"] >= self.least)


class Duck:
    """No class of Grain's, but the same methods."""

    def map(self, element: Any) -> Any:
        return {"x": element["x"] + 1}


class DuckOfChance:
    def random_map(self, element: Any, rng: np.random.Generator) -> Any:
        return {"x": element["x"] + rng.random()}


def test_transforms_apply_their_methods() -> None:
    x = np.arange(20.0)
    assert DATA.map(Scale(3.0)).read(range(20))["x"].tolist() == (3 * x).tolist()
    assert DATA.map(Duck()).read(range(20))["x"].tolist() == (x + 1).tolist()
    assert DATA.filter(Above(5.0)).read(range(15))["x"].tolist() == x[5:].tolist()
    for epoch in (0, 2):
        oracle = [each + 2.0 * row_generator(7, 1, epoch, row).random() for row, each in enumerate(x * 3)]
        mapped = DATA.map(Scale(3.0)).map(Jitter(2.0), seed=7)
        assert mapped.read(range(20), epoch)["x"].tolist() == oracle
        same = DATA.map(Scale(3.0)).map(Jitter(2.0).random_map, rng=True, seed=7)
        assert mapped.order_facts == same.order_facts
    assert DATA.map(DuckOfChance()).reader.traits.random


@pytest.mark.processes
def test_the_laws_of_maps() -> None:
    def rows_by_themselves(batch: Any) -> Any:
        return loadax.from_arrays(batch).map(Scale(3.0)).read(range(len(batch["x"])))

    testing.check_map(rows_by_themselves, {"x": np.arange(20.0)})
    testing.check_source(DATA.map(Scale(3.0)).map(Jitter(2.0), seed=7).shuffle(1), timeout=120)


def test_fingerprints_notice_the_parameters_of_a_transform() -> None:
    assert fingerprint(Scale(2.0).map) == fingerprint(Scale(2.0).map) != fingerprint(Scale(3.0).map)
    assert fingerprint(Above(2.0).filter).unknown is None
    assert "Jitter" in str(fingerprint(Jitter(2.0).random_map).unknown)  # no dataclass says what it holds


def test_an_index_is_of_one_filter(tmp_path: Path) -> None:
    for least in (5.0, 5.0, 9.0):
        assert len(DATA.filter(Above(least), index=tmp_path / "index")) == 20 - least


def test_a_cache_of_another_transform_is_refused(tmp_path: Path) -> None:
    DATA.map(Scale(2.0)).cache(tmp_path / "cache")
    DATA.map(Scale(2.0)).cache(tmp_path / "cache")
    with pytest.raises(ArgumentError, match="function"):
        DATA.map(Scale(3.0)).cache(tmp_path / "cache")


class Indexed(grain.transforms.MapWithIndex):  # type: ignore[misc] # Grain ships no types
    def map_with_index(self, index: int, element: Any) -> Any:
        return element


class Split:
    def flat_map(self, element: Any) -> list[Any]:
        return [element]


@pytest.mark.parametrize(
    ("verb", "given", "remedy"),
    [
        ("map", Above(1.0), r"Above\(least=1.0\) has filter, and map\(\) can't apply that; pass it to data.filter"),
        ("filter", Scale(1.0), r"has map, and filter\(\) can't apply that; pass it to data.map"),
        ("filter", Jitter(1.0), r"has random_map, .*; pass it to data.map"),
        ("map", Indexed(), r"has map_with_index, .*: data.map\(fn, with_index=True\)$"),
        ("map", Split(), r"has flat_map, .* in Grain"),
        ("map", grain.transforms.Batch(8), r"has batch_size, .*: loadax.Dataloader\(data, batch_size=8\)"),
        ("map", object(), "can't be called"),
        ("map", DATA, "can't be called; pass a function"),
        ("filter", DATA, "can't be called; pass a function"),
        ("map_batch", Scale(1.0), r"has map, and map_batch\(\) can't apply that; pass it to data.map$"),
    ],
)
def test_transforms_of_another_kind_are_refused(verb: str, given: Any, remedy: str) -> None:
    with pytest.raises(ArgumentError, match=rf"^fn=.*{remedy}"):
        getattr(DATA, verb)(given)


@pytest.mark.parametrize(("verb", "given"), [("map", Scale), ("map", DuckOfChance), ("filter", Above)])
def test_a_class_is_refused_and_an_instance_is_taken(verb: str, given: Any) -> None:
    with pytest.raises(ArgumentError, match=rf"^fn={given.__name__} is a class .*: {verb}\({given.__name__}\(…\)\)$"):
        getattr(DATA, verb)(given)
    given = DuckOfChance() if given is DuckOfChance else given(1.0)
    assert len(getattr(DATA, verb)(given)) in (19, 20)


def test_a_map_that_gets_no_generator_wants_none() -> None:
    with pytest.raises(ArgumentError, match=r"fn=Scale.map .* but is called as fn\(example, rng\)"):
        DATA.map(Scale(1.0), rng=True)
