"""Trees come apart in JAX's leaf order, under JAX's names, and go together again."""

import dataclasses
from collections import OrderedDict, defaultdict
from typing import Any, NamedTuple

import jax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadax.errors import ArgumentError, LeafError
from loadax.trees import LEAF, Structure, broadcast_prefix, flatten, flatten_like, map_leaves


class Pair(NamedTuple):
    second: Any
    first: Any


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Sample:
    tokens: Any
    mask: Any


KEYS = st.text(alphabet="abz'\\", max_size=3)


def containers(children: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        st.dictionaries(KEYS, children, max_size=4),
        st.dictionaries(st.integers(-20, 20), children, max_size=3),
        st.lists(st.tuples(KEYS, children), max_size=3).map(OrderedDict),
        st.lists(children, max_size=3),
        st.lists(children, max_size=3).map(tuple),
        st.builds(Pair, children, children),
        st.builds(Sample, children, children),
    )


TREES = st.recursive(st.integers() | st.none() | st.text(max_size=3), containers, max_leaves=12)


@settings(deadline=None)
@given(TREES)
def test_leaves_and_names_are_those_of_jax(tree: Any) -> None:
    leaves, structure = flatten(tree)
    theirs = jax.tree_util.tree_flatten_with_path(tree)[0]
    assert leaves == [leaf for _, leaf in theirs]
    assert structure.paths == [jax.tree_util.keystr(path) for path, _ in theirs]


@settings(deadline=None)
@given(TREES)
def test_what_was_taken_apart_goes_together_again(tree: Any) -> None:
    leaves, structure = flatten(tree)
    again = structure.build(leaves)
    assert again == tree
    assert str(jax.tree.structure(again)) == str(jax.tree.structure(tree))  # also tells an OrderedDict from a dict


def test_a_defaultdict_is_sorted_as_a_dict_is() -> None:
    tree = defaultdict(int, {"b": 1, "a": 2})
    leaves, structure = flatten(tree)
    assert leaves == [2, 1] == jax.tree.leaves(tree)
    assert structure.build(leaves) == {"a": 2, "b": 1}


def test_structures_are_equal_when_and_only_when_the_trees_look_alike() -> None:
    assert flatten({"a": 1, "b": [2]})[1] == flatten({"b": [5], "a": 7})[1]
    different: list[Any] = [{"a": 1}, {"b": 1}, {"a": [1]}, [1], (1,), 1, None, OrderedDict(a=1), Pair(1, 2), (1, 2), {"a": None}]
    structures = [flatten(tree)[1] for tree in different]
    for number, structure in enumerate(structures):
        assert structures.index(structure) == number


def test_is_leaf_stops_there() -> None:
    leaves, structure = flatten({"a": (1, 2), "b": [3]}, is_leaf=lambda node: isinstance(node, tuple))
    assert leaves == [(1, 2), 3]
    assert structure.build(["x", "y"]) == {"a": "x", "b": ["y"]}


def test_one_leaf_is_a_tree_without_a_name() -> None:
    leaves, structure = flatten(7)
    assert (leaves, structure, structure.paths) == ([7], LEAF, [""])


def test_a_dataclass_itself_is_a_leaf() -> None:
    assert flatten(Sample)[1] == LEAF


def test_keys_that_cannot_be_sorted() -> None:
    with pytest.raises(ArgumentError, match=r"keys \['a', 1\] of a dict can't be sorted.*use keys of one type, say strings"):
        flatten({"a": 0, 1: 0})


def test_map_leaves_goes_through_several_trees_together() -> None:
    assert map_leaves(lambda one, other: one - other, {"a": 5, "b": (7,)}, {"b": (1,), "a": 2}) == {"a": 3, "b": (6,)}


@pytest.mark.parametrize("other", [{"a": 1}, {"a": 1, "c": 2}, [1, 2], 3])
def test_another_structure_shows_the_leaves_of_both(other: Any) -> None:
    structure = flatten({"a": 1, "b": 2})[1]
    with pytest.raises(LeafError) as caught:
        flatten_like(structure, other)
    assert str(structure.paths) in str(caught.value)
    assert str(flatten(other)[1].paths) in str(caught.value)
    with pytest.raises(LeafError, match="was expected"):
        map_leaves(lambda one, two: one, {"a": 1, "b": 2}, other)


def structure_of(tree: Any) -> Structure:
    return flatten(tree)[1]


def is_text(node: Any) -> bool:
    return isinstance(node, str)


def test_a_prefix_covers_what_is_below_it() -> None:
    full = structure_of({"a": {"x": 0, "y": 0}, "b": 0})
    assert broadcast_prefix("p", full, is_text) == [("p", False)] * 3
    assert broadcast_prefix({"b": "q", "a": "p"}, full, is_text) == [("p", False), ("p", False), ("q", True)]
    assert broadcast_prefix({"a": {"x": "1", "y": "2"}, "b": "3"}, full, is_text) == [("1", True), ("2", True), ("3", True)]
    assert broadcast_prefix("p", LEAF, is_text) == [("p", True)]
    assert broadcast_prefix("p", structure_of({}), is_text) == []


def test_a_prefix_of_an_ordered_dict_follows_the_order_of_the_data() -> None:
    full = structure_of(OrderedDict([("b", 0), ("a", 0)]))
    assert broadcast_prefix({"a": "A", "b": "B"}, full, is_text) == [("B", True), ("A", True)]


@pytest.mark.parametrize(
    ("prefix", "message"),
    [
        ({"a": "p"}, r"the keys are \['a'\], those of the data are \['a', 'b'\]"),
        ({"a": {"x": "p", "z": "q"}, "b": "r"}, r"the keys at \['a'\] are \['x', 'z'\], those of the data are \['x', 'y'\]"),
        ({"a": "p", "b": {"c": "q"}}, r"{'c': 'q'} at \['b'\] was not expected; the leaves there are \[\"\['b'\]\"\]"),
        (7, r"7 was not expected; the leaves there are"),
    ],
)
def test_a_prefix_that_does_not_fit_names_the_place(prefix: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        broadcast_prefix(prefix, structure_of({"a": {"x": 0, "y": 0}, "b": 0}), is_text)
