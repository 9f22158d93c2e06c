"""Mappings of classes that JAX does not know become dicts in batches, in which JAX finds the leaves."""

from collections import Counter, OrderedDict, UserDict, defaultdict
from collections.abc import Callable
from types import MappingProxyType
from typing import Any

import jax
import numpy as np
import pytest

import loadax
from loadax import Dataloader

ROWS = 16


class Attributes(dict[str, Any]):
    """Entries are attributes, as in many packages of configurations."""

    def __getattr__(self, name: str) -> Any:
        return self[name]


class Fixed(dict[str, Any]):
    """Can't be changed."""

    def __setitem__(self, key: Any, value: Any) -> None:
        raise TypeError


class Ordered(OrderedDict[str, Any]):
    """JAX knows its base alone."""


class Defaults(defaultdict[str, Any]):
    """As `Ordered`, with another constructor."""


UNKNOWN: dict[str, Callable[[dict[str, Any]], Any]] = {
    "attributes": Attributes,
    "fixed": Fixed,
    "ordered": Ordered,
    "defaults": lambda values: Defaults(list, values),
    "counter": Counter,
    "UserDict": UserDict,
    "proxy": MappingProxyType,
}


class Bulk:
    spec = None

    def __init__(self, make: Any):
        self.make = make

    def __len__(self) -> int:
        return ROWS

    def read(self, rows: Any) -> Any:
        return self.make({"b": rows, "a": self.make({"x": rows * 2})})


def entry(make: Any, row: Any) -> Any:
    return make({"b": row, "a": make({"x": row * 2})})


DOORS: dict[str, Callable[[Any], Any]] = {
    "rows": lambda make: [entry(make, row) for row in range(ROWS)],
    "read": Bulk,
    "map": lambda make: loadax.from_arrays(np.arange(ROWS)).map(lambda row: entry(make, row)),
    "map twice": lambda make: (
        loadax.from_arrays(np.arange(ROWS)).map(lambda row: entry(make, row)).map(lambda row: row)
    ),
    "map_batch": lambda make: loadax.from_arrays(np.arange(ROWS)).map_batch(lambda rows: entry(make, rows)),
    "stream": lambda make: loadax.from_stream(lambda *_: (entry(make, row) for row in range(ROWS)), lanes=1),
    "blocks": lambda make: loadax.from_stream(lambda *_: iter([entry(make, np.arange(ROWS))]), lanes=1, batched=True),
    "arrays": lambda make: loadax.from_arrays(entry(make, np.arange(ROWS))),
    "concat": lambda make: loadax.concat(
        [[entry(make, row) for row in range(8)], [entry(dict, row) for row in range(8, ROWS)]]
    ),
    "pad": lambda make: (
        loadax.from_arrays(np.arange(ROWS))
        .map(lambda row: make({"b": [row], "a": make({"x": row * 2})}))
        .pad({"b": 1})
        .map_batch(lambda rows: {"b": rows["b"][:, 0], "a": rows["a"]})
    ),
}


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("kind", UNKNOWN)
def test_mappings_that_jax_does_not_know_are_dicts_in_batches(kind: str, door: str) -> None:
    batches = list(Dataloader(loadax.as_dataset(DOORS[door](UNKNOWN[kind])), 8))
    assert len(batches) == 2
    for batch in batches:
        assert type(batch) is dict
        assert type(batch["a"]) is dict
        assert str(jax.tree.structure(batch)) == str(jax.tree.structure({"a": {"x": 0}, "b": 0}))
    np.testing.assert_array_equal(np.concatenate([batch["a"]["x"] for batch in batches]), np.arange(ROWS) * 2)


@pytest.mark.parametrize("kind", ["attributes", "ordered", "defaults", "counter"])
def test_maps_see_the_class_of_a_row(kind: str) -> None:
    make, seen = UNKNOWN[kind], list[Any]()

    def note(row: Any) -> int:
        seen.append(row)
        return 0

    data = loadax.from_source([make({"x": row, "list": [1, 2]}) for row in range(4)]).map(note)
    assert data.read(range(4)).tolist() == [0] * 4
    assert {type(row) for row in seen} == {type(make({}))}
    assert seen[0]["list"].tolist() == [1, 2]


def test_classes_that_jax_knows_stay() -> None:
    class Known(dict[str, Any]):
        """Registered below."""

    jax.tree_util.register_pytree_node(
        Known,
        lambda node: (list(node.values()), list(node)),
        lambda keys, values: Known(zip(keys, values, strict=True)),
    )
    for make in (OrderedDict, lambda values: defaultdict(list, values), Known):
        (batch,) = Dataloader([make({"b": row, "a": row}) for row in range(8)], 8)
        assert type(batch) is type(make({}))
        assert [leaf.shape for leaf in jax.tree.leaves(batch)] == [(8,), (8,)]


@pytest.mark.parametrize("make", [OrderedDict, lambda values: defaultdict(list, values), Ordered])
@pytest.mark.parametrize("lengths", [8, {"a": 8, "b": 6}])
def test_packed_rows_are_a_dict_whatever_a_document_is(make: Any, lengths: Any) -> None:
    def packed(make: Any) -> Any:
        documents = loadax.from_source([make({"b": np.arange(3), "a": np.arange(3)}) for _ in range(4)])
        return documents.pack(lengths, method="best_fit")

    assert type(packed(make)[0]) is dict
    assert list(packed(make)[0]) == list(packed(dict)[0])
    if lengths == 8:  # else the order of the leaves is part of the plan
        states = [
            Dataloader(packed(one), 1, shard_index=0, shard_count=1).host_batches().get_state() for one in (make, dict)
        ]
        assert states[0] == states[1]


@pytest.mark.processes
def test_mapping_classes_of_rows_in_worker_processes() -> None:
    class Known(dict[str, Any]):
        """Registered below, which worker processes can't see."""

    jax.tree_util.register_pytree_node(
        Known,
        lambda node: (list(node.values()), list(node)),
        lambda keys, values: Known(zip(keys, values, strict=True)),
    )
    for make, kind in ((Attributes, dict), (Known, Known)):
        data = loadax.from_arrays(np.arange(ROWS)).map(lambda row, make=make: make({"x": row}))
        assert {type(batch) for batch in Dataloader(data, 8, worker_type="process", num_workers=1)} == {kind}
