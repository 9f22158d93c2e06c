"""Batches of users' own pytrees come back as JAX registers them.

Static fields stay what they are, here and from worker processes.
"""

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import equinox
import flax.struct
import jax
import numpy as np
import pytest
from flax.core import FrozenDict

import loadax
from loadax.errors import LeafError
from tests.worker_types import WORKER_TYPES


@flax.struct.dataclass
class OfFlax:
    x: Any
    k: int = flax.struct.field(pytree_node=False)  # type: ignore[no-untyped-call]
    mask: Any = None


@dataclasses.dataclass
class Registered:
    k: int
    x: Any


jax.tree_util.register_dataclass(Registered, data_fields=["x"], meta_fields=["k"])


class OfEquinox(equinox.Module):
    x: Any = equinox.field(converter=np.asarray)  # would turn a sharded array into NumPy's
    k: int = equinox.field(static=True)


class WithInit(equinox.Module):
    x: Any
    k: int = equinox.field(static=True)

    def __init__(self, x: Any, k: int):
        self.x, self.k = x, k


@jax.tree_util.register_pytree_node_class
class Custom:
    def __init__(self, x: Any, k: int):
        self.x, self.k = x, k

    def tree_flatten(self) -> Any:
        return (self.x,), self.k

    @classmethod
    def tree_unflatten(cls, k: int, children: Any) -> "Custom":
        return cls(children[0], k)


@jax.tree_util.register_pytree_node_class
@dataclasses.dataclass
class CustomFields(Custom):
    """Flattens itself, although it is a dataclass."""

    x: Any
    k: int


KINDS = [OfFlax, Registered, OfEquinox, WithInit]


def rows(kind: Any, count: int = 8, k: Any = 7) -> list[Any]:
    return [kind(x=np.int32(1), k=k) for _ in range(count)]


def check_batch(batch: Any, kind: Any) -> None:
    assert type(batch) is kind
    assert (type(batch.k), batch.k) == (int, 7)
    assert isinstance(batch.x, jax.Array)
    assert str(jax.tree.structure(batch)) == str(jax.tree.structure(rows(kind)[0]))
    assert int(jax.jit(lambda s: s.x.sum() * s.k)(batch)) == 56


@pytest.mark.parametrize("kind", KINDS)
def test_a_static_field_is_a_constant_of_the_jitted_step(kind: Any) -> None:
    (batch,) = loadax.Dataloader(loadax.from_source(rows(kind)), 8, num_workers=1)
    check_batch(batch, kind)


@pytest.mark.processes
def test_so_is_that_of_each_class_from_a_worker_process() -> None:
    examples = [dict(zip("abcd", each, strict=True)) for each in zip(*map(rows, KINDS), strict=True)]
    (batch,) = loadax.Dataloader(loadax.from_source(examples), 8, worker_type="process", num_workers=1)
    for name, kind in zip("abcd", KINDS, strict=True):
        check_batch(batch[name], kind)


@pytest.mark.parametrize("worker_type", WORKER_TYPES)
def test_so_is_one_of_a_class_that_travels_by_value(worker_type: str) -> None:
    """As those of scripts and notebooks do: in the worker nobody has registered it."""

    @dataclasses.dataclass
    class Local:
        k: int
        x: Any

    jax.tree_util.register_dataclass(Local, data_fields=["x"], meta_fields=["k"])
    data = loadax.from_source(rows(dict)).map(lambda row: Local(x=row["x"] * 2, k=3))
    (batch,) = loadax.Dataloader(data, 8, worker_type=worker_type, num_workers=1)
    assert int(jax.jit(lambda s: s.x.sum() * s.k)(batch)) == 48


@pytest.mark.parametrize("kind", KINDS)
def test_every_way_of_making_examples_keeps_it(kind: Any) -> None:
    arrays = kind(x=np.ones(8, np.int32), k="seven")
    plain = loadax.from_arrays({"x": np.ones(8, np.int32)})
    ways = [
        loadax.from_arrays(arrays),
        loadax.from_source(rows(kind, k="seven")),
        plain.map(lambda row: kind(x=row["x"], k="seven")),
        plain.map_batch(lambda batch: kind(x=batch["x"], k="seven")),
        plain.map(lambda row: kind(x=row["x"], k="seven"), spec=kind(x=np.int32(0), k="seven")),
        loadax.concat([loadax.from_arrays(arrays)] * 2)[:8],
    ]
    for way in ways:
        loader = loadax.Dataloader(way, 8)
        assert loader[0].k == loader.spec.k == loader.host_batch(0).k == way[0].k == "seven"
        assert int(loader[0].x.sum()) == 8


def test_a_device_map_keeps_it() -> None:
    loader = loadax.Dataloader(loadax.from_source(rows(OfFlax)), 8, device_map=lambda s: s.replace(x=s.x * s.k))
    assert int(loader[0].x.sum()) == 56
    assert loader[0].k == 7


@pytest.mark.parametrize("kind", [OfFlax, Registered, OfEquinox])
def test_rows_that_differ_in_it_are_an_error_that_names_it(kind: Any) -> None:
    mixed = rows(kind, 4) + rows(kind, 4, k=8)
    with pytest.raises(LeafError, match=r"row 4: static field \.k is 8, expected 7; a batch has one value of it"):
        loadax.Dataloader(loadax.from_source(mixed), 8)[0]
    with pytest.raises(
        LeafError, match=r"in part 1 static field \.k is 8, expected 7 as in part 0; map them to one value"
    ):
        _ = loadax.concat([loadax.from_source(rows(kind)), loadax.from_source(rows(kind, k=8))]).spec
    data = loadax.from_arrays(np.arange(8)).map_batch(lambda x: kind(x=x, k=int(x[0])), spec=kind(x=np.int64(0), k=0))
    with pytest.raises(LeafError, match=r"map_batch .* gave static field \.k is 5, expected 0"):
        data.read([5])


ONLY_JAX = (
    "a class that only JAX can take apart; return a dict, or a dataclass known to jax.tree_util.register_dataclass"
)


@pytest.mark.parametrize("kind", [Custom, CustomFields])
def test_classes_that_flatten_themselves_are_refused(kind: Any) -> None:
    plain = loadax.from_arrays({"x": np.ones(8, np.int32)})
    ways: dict[str, Any] = {
        "of the example": lambda: loadax.from_source(rows(kind)),
        r"\['a'\]": lambda: loadax.from_source([{"a": row} for row in rows(kind)]),
        "leaf of the example": lambda: plain.map(lambda row: kind(x=row["x"], k=7)),
        "leaf of the batch": lambda: plain.map_batch(lambda batch: kind(x=batch["x"], k=7)),
        "leaf given": lambda: loadax.as_dataset(kind(x=np.ones(8, np.int32), k=7)),
    }
    for name, data in ways.items():
        with pytest.raises(LeafError, match=f"{name}.* is a {kind.__name__}, {ONLY_JAX}"):
            loadax.Dataloader(data(), 8)[0]
    with pytest.raises(LeafError, match=f"device_map .*of the result is a {kind.__name__}, {ONLY_JAX}"):
        loadax.Dataloader(plain, 8, device_map=lambda row: kind(x=row["x"], k=7))[0]


@pytest.mark.parametrize("make", [dict, Registered])
def test_such_a_class_is_read_by_maps_and_made_in_the_step(make: Any) -> None:
    """As its error says."""
    data = loadax.from_source(rows(Custom)).map(lambda row: {"example": make(x=row.x * 2, k=row.k)})
    (batch,) = loadax.Dataloader(data, 8)

    def step(example: Any) -> Any:
        fields = example if isinstance(example, dict) else vars(example)
        return Custom(**fields)

    made = jax.jit(step)(batch["example"])
    assert (type(made), int(made.x.sum())) == (Custom, 16)


def test_a_static_array_is_compared_by_value() -> None:
    same = [OfFlax(x=np.int32(row), k=np.arange(3)) for row in range(8)]  # type: ignore[arg-type]
    assert loadax.Dataloader(loadax.from_source(same), 8)[0].k.tolist() == [0, 1, 2]
    other = [*same[:4], OfFlax(x=np.int32(4), k=np.arange(4)), *same[5:]]  # type: ignore[arg-type]
    with pytest.raises(LeafError, match=r"row 4: static field \.k is array\(\[0, 1, 2, 3\]\)"):
        loadax.Dataloader(loadax.from_source(other), 8)[0]


@pytest.mark.parametrize(("given", "kind"), [(FrozenDict, FrozenDict), (MappingProxyType, dict)])
@pytest.mark.parametrize("worker_type", WORKER_TYPES)
def test_mappings_are_trees(given: Any, kind: Any, worker_type: str) -> None:
    """One that JAX takes for a leaf comes back as a dict, which it doesn't."""
    data = loadax.from_source(rows(dict)).map(lambda row: given({"b": row["x"], "a": given({"c": row["k"]})}))
    (batch,) = loadax.Dataloader(data, 8, worker_type=worker_type, num_workers=1)
    assert type(batch) is kind
    assert isinstance(batch["a"], Mapping)
    assert len(jax.tree.leaves(batch)) == 2
    assert int(batch["a"]["c"].sum()) == 56
