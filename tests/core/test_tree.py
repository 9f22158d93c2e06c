"""Trees come apart in JAX's leaf order, under JAX's names, and go together again."""

import dataclasses
import pickle
import subprocess
import sys
from collections import OrderedDict, defaultdict
from typing import Any, NamedTuple

import flax.struct
import jax
import numpy as np
import pytest
from flax.core import FrozenDict
from hypothesis import given, settings, strategies as st

from loadax.core.tree import LEAF, Structure, broadcast_prefix, flatten
from loadax.errors import ArgumentError
from loadax.protocols import ArraySpec


class Pair(NamedTuple):
    second: Any
    first: Any


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Sample:
    tokens: Any
    mask: Any


@flax.struct.dataclass
class Marked:
    """Its leaves stand in the order that JAX gives them."""

    name: str = flax.struct.field(pytree_node=False)  # type: ignore[no-untyped-call]
    data: Any = None
    more: Any = None


@dataclasses.dataclass(frozen=True)
class Turned:
    unit: str
    first: Any
    second: Any
    both: Any = dataclasses.field(init=False, compare=False, default=None)


jax.tree_util.register_dataclass(Turned, data_fields=["second", "first"], meta_fields=["unit"])


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
        st.builds(Marked, st.text(max_size=3), children, children),
        st.builds(Turned, st.text(max_size=3), children, children),
        st.dictionaries(KEYS, children, max_size=3).map(FrozenDict),
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
    different: list[Any] = [
        {"a": 1},
        {"b": 1},
        {"a": [1]},
        [1],
        (1,),
        1,
        None,
        OrderedDict(a=1),
        Pair(1, 2),
        (1, 2),
        {"a": None},
    ]
    structures = [flatten(tree)[1] for tree in different]
    for number, structure in enumerate(structures):
        assert structures.index(structure) == number


def test_static_fields_are_part_of_the_structure() -> None:
    one, same, other = (flatten([Marked(name, 1, 2)])[1] for name in ("a", "a", "b"))
    assert one == same
    assert one != other
    assert one.static_difference(same) is None
    assert one.static_difference(other) == "static field [0].name is 'b', expected 'a'"
    assert one.static_difference(flatten({"a": 1})[1]) is None
    hash(flatten(Marked([], 1, 2))[1])  # type: ignore[arg-type]  # as that of a key of what was compiled


def test_a_structure_survives_the_way_to_another_process() -> None:
    trees: list[Any] = [Marked("a", 1, (2, 3)), Turned("m", 1, 2), FrozenDict({"a": 1})]  # type: ignore[no-untyped-call]
    for tree in trees:
        leaves, structure = flatten(tree)
        again = pickle.loads(pickle.dumps(structure))
        assert again == structure
        assert again.build(leaves) == tree


@pytest.mark.processes
def test_metadata_tells_where_jax_is_not_loaded() -> None:
    program = """
import dataclasses, sys
from types import MappingProxyType
from loadax.core.tree import flatten
@dataclasses.dataclass
class Example:
    k: int = dataclasses.field(metadata={"pytree_node": False})
    j: int = dataclasses.field(metadata={"static": True})
    x: int
    y: int = dataclasses.field(init=False, default=5)
leaves, structure = flatten(MappingProxyType({"b": Example(1, 2, 3), "a": 4}))
assert leaves == [4, 3] and structure.paths == ["['a']", "['b'].x"], structure.paths
assert structure.build([40, 30]) == {"a": 40, "b": Example(1, 2, 30)}
assert "jax" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_is_leaf_stops_there() -> None:
    leaves, structure = flatten({"a": (1, 2), "b": [3]}, is_leaf=lambda node: isinstance(node, tuple))
    assert leaves == [(1, 2), 3]
    assert structure.build(["x", "y"]) == {"a": "x", "b": ["y"]}


def test_one_leaf_is_a_tree_without_a_name() -> None:
    leaves, structure = flatten(7)
    assert (leaves, structure, structure.paths) == ([7], LEAF, [""])


def test_a_dataclass_itself_is_a_leaf() -> None:
    assert flatten(Sample)[1] == LEAF


class Refuses:
    def __post_init__(self) -> None:
        if np.shape(self.x) != (3,):  # type: ignore[attr-defined]
            raise ValueError


class Converts:
    def __post_init__(self) -> None:
        object.__setattr__(self, "x", np.asarray(self.x, np.float32))  # type: ignore[attr-defined]


# By the options of the dataclass, and what it checks.
OPTIONS: list[dict[str, Any]] = [{}, {"frozen": True}, {"slots": True}, {"kw_only": True}]
CHECKED: dict[str, Any] = {
    f"{check.__name__} {options}": dataclasses.make_dataclass(
        "Checked", [("x", Any), ("y", Any, dataclasses.field(default=0))], bases=(check,), **options
    )
    for check in (Refuses, Converts, object, ValueError)
    for options in OPTIONS
}


@pytest.mark.parametrize("kind", CHECKED)
def test_dataclasses_that_check_or_convert_hold_the_leaves_of_specs_and_batches(kind: str) -> None:
    example = CHECKED[kind](x=np.zeros(3), y=1)
    _, structure = flatten(example)
    for leaves in ([ArraySpec((3,), np.dtype("f8")), ArraySpec((), np.dtype("i8"))], [np.zeros((8, 3)), np.arange(8)]):
        built = structure.build(leaves)
        assert type(built) is CHECKED[kind]
        assert built.x is leaves[0]
        assert built.y is leaves[1]
        again, same = flatten(built, is_leaf=lambda node: isinstance(node, ArraySpec))
        assert (list(map(id, again)), same) == (list(map(id, leaves)), structure)


def test_dataclass_that_takes_its_leaves_keeps_what_it_derives_from_them() -> None:
    @dataclasses.dataclass
    class Derives:
        x: Any
        wanted: dataclasses.InitVar[int] = 3
        double: Any = dataclasses.field(init=False)

        def __post_init__(self, wanted: int) -> None:
            self.double = self.x * 2
            self.hidden = wanted

    built = flatten(Derives(1, wanted=4))[1].build([np.arange(3)])
    assert (built.double.tolist(), built.hidden) == ([0, 2, 4], 3)
    spec = flatten(Derives(1))[1].build([ArraySpec((), np.dtype("i8"))])
    assert spec.x == ArraySpec((), np.dtype("i8"))


def test_keys_that_cannot_be_sorted() -> None:
    with pytest.raises(
        ArgumentError, match=r"keys \['a', 1\] of a dict can't be sorted.*use keys of one type, such as strings"
    ):
        flatten({"a": 0, 1: 0})


def structure_of(tree: Any) -> Structure:
    return flatten(tree)[1]


def is_text(node: Any) -> bool:
    return isinstance(node, str)


def test_a_prefix_covers_what_is_below_it() -> None:
    full = structure_of({"a": {"x": 0, "y": 0}, "b": 0})
    assert broadcast_prefix("p", full, is_text) == [("p", False)] * 3
    assert broadcast_prefix({"b": "q", "a": "p"}, full, is_text) == [("p", False), ("p", False), ("q", True)]
    assert broadcast_prefix({"a": {"x": "1", "y": "2"}, "b": "3"}, full, is_text) == [
        ("1", True),
        ("2", True),
        ("3", True),
    ]
    assert broadcast_prefix("p", LEAF, is_text) == [("p", True)]
    assert broadcast_prefix("p", structure_of({}), is_text) == []


def test_a_prefix_of_an_ordered_dict_follows_the_order_of_the_data() -> None:
    full = structure_of(OrderedDict([("b", 0), ("a", 0)]))
    assert broadcast_prefix({"a": "A", "b": "B"}, full, is_text) == [("B", True), ("A", True)]


@pytest.mark.parametrize(
    ("prefix", "message"),
    [
        ({"a": "p"}, r"the keys are \['a'\]; pass those of the data: \['a', 'b'\]"),
        (
            {"a": {"x": "p", "z": "q"}, "b": "r"},
            r"the keys at \['a'\] are \['x', 'z'\]; pass those of the data: \['x', 'y'\]",
        ),
        ({"a": "p", "b": {"c": "q"}}, r"{'c': 'q'} at \['b'\] is unexpected; name the leaves \[\"\['b'\]\"\]"),
        (7, r"7 is unexpected; name the leaves"),
    ],
)
def test_a_prefix_that_does_not_fit_names_the_place(prefix: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        broadcast_prefix(prefix, structure_of({"a": {"x": 0, "y": 0}, "b": 0}), is_text)
