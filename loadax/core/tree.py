"""Flattens pytrees in JAX's leaf order, without importing JAX.

Containers are dicts and other mappings (keys sorted, as in JAX; an OrderedDict keeps its order), lists, tuples,
namedtuples and dataclasses (data fields in order); None is a container without leaves. Everything else is a leaf, also
an object of a class that only JAX can take apart, which `as_array` refuses. A mapping of a class that JAX does not know
is taken for a dict, since JAX would find no leaves in it.

Static fields are part of the structure. If JAX is loaded and knows the class, its registry lists them; otherwise the
metadata of the fields does: `pytree_node=False` (flax.struct) or `static=True` (equinox, JAX). A structure that is
unpickled in another process registers its own fields, since a class that is pickled by value is not registered there.
"""

import copy
import dataclasses
import sys
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, final
from weakref import WeakKeyDictionary, WeakSet

import numpy as np

from loadax.core.formatting import with_article
from loadax.errors import ArgumentError, LeafError

# Common types of leaves, for the fast path.
_LEAVES = {np.ndarray, int, float, bool, complex, str, bytes, *np.sctypeDict.values()}


class _Fields(NamedTuple):
    """Names of a dataclass's data fields and static fields."""

    data: tuple[str, ...]
    static: tuple[str, ...]


# Cached fields of dataclasses that JAX knows, here or where a structure was pickled. Registrations never change.
_REGISTERED: WeakKeyDictionary[type, _Fields] = WeakKeyDictionary()


# Levels of containers; Python allows 1,000 calls inside each other, and some functions need three a level.
_DEEPEST = 100

# Classes of mappings that JAX knows, here or where a structure was pickled.
_MAPPINGS: WeakSet[type] = WeakSet((dict, OrderedDict, defaultdict))


@final
class Static:
    """A static value in a structure: compared by value, even if it is not hashable."""

    def __init__(self, value: Any):
        self.value = value

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Static):
            return NotImplemented
        if self.value is other.value:
            return True
        try:
            return bool(self.value == other.value)
        except ValueError:  # the truth value of an array is ambiguous
            return np.array_equal(self.value, other.value)

    def __hash__(self) -> int:
        return hash(Static)

    def __repr__(self) -> str:
        return repr(self.value)


@dataclass(frozen=True)
class Structure:
    """The nested containers of a tree, without its leaves; comparable with `==`."""

    kind: Any  # None: a leaf
    keys: tuple[Any, ...] = ()
    children: tuple["Structure", ...] = ()
    # Static fields by name.
    static: tuple[tuple[str, Static], ...] = ()

    def __reduce__(self) -> Any:
        return _arrived, (self.kind, self.keys, self.children, self.static)

    @property
    def paths(self) -> list[str]:
        """Path of every leaf, in leaf order, as in Python code: `['image']`, `[0].mask`; empty for a single leaf."""
        if self.kind is None:
            return [""]
        pairs = zip(self.keys, self.children, strict=True)
        return [
            self._name(key) + path for key, child in pairs for path in child.paths
        ]

    @property
    def names(self) -> list[str]:
        """Keys of every leaf joined by dots, in leaf order; empty for a single leaf."""
        if self.kind is None:
            return [""]
        pairs = zip(self.keys, self.children, strict=True)
        return [
            f"{key}.{name}" if name else str(key)
            for key, child in pairs
            for name in child.names
        ]

    def _name(self, key: Any) -> str:
        attribute = dataclasses.is_dataclass(self.kind) or hasattr(
            self.kind, "_fields"
        )
        if attribute:
            return f".{key}"
        return f"[{key!r}]"

    def static_difference(self, other: "Structure", path: str = "") -> str | None:
        """Text about the first static field that differs in `other`; None if the containers differ, or nothing."""
        if self == other or (self.kind, self.keys) != (other.kind, other.keys):
            return None
        for (name, own), (_, theirs) in zip(self.static, other.static, strict=False):
            if own != theirs:
                return f"static field {path}.{name} is {theirs!r}, expected {own!r}"
        pairs = zip(self.keys, self.children, other.children, strict=True)
        differences = (
            own.static_difference(theirs, path + self._name(key))
            for key, own, theirs in pairs
        )
        return next(
            (difference for difference in differences if difference is not None), None
        )

    @cached_property
    def flat(self) -> bool:
        """Whether this is a plain dict of leaves, as most examples are; enables the fast paths."""
        return self.kind is dict and all(
            child.kind is None for child in self.children
        )

    def build_all(self, columns: Sequence[Any], count: int) -> list[Any]:
        """Builds `count` trees: tree i has entry i of each column, in leaf order."""
        if not columns:
            return [self.build(()) for _ in range(count)]
        rows = zip(*columns, strict=True)
        if not self.flat:
            return list(map(self.build, rows))
        keys = self.keys
        return [dict(zip(keys, row, strict=True)) for row in rows]

    def build(self, leaves: Iterable[Any]) -> Any:
        """Builds a tree from leaves, in leaf order."""
        if self.flat:
            return dict(zip(self.keys, leaves, strict=True))
        return self._build(iter(leaves))

    def plain_leaves(self, tree: Any) -> list[Any] | None:
        """Fast path of `flatten` for a tree with this structure; None if `flatten` is needed."""
        if self.kind is None:
            if type(tree) in _LEAVES:
                return [tree]
            return None
        if not self.flat or type(tree) is not dict or len(tree) != len(self.keys):
            return None
        try:
            leaves = [tree[key] for key in self.keys]
        except KeyError:
            return None
        if all(type(leaf) in _LEAVES for leaf in leaves):
            return leaves
        return None

    def _build(self, leaves: Iterator[Any]) -> Any:
        if self.kind is None:
            return next(leaves)
        return self.container([child._build(leaves) for child in self.children])

    def container(self, values: list[Any]) -> Any:
        """Builds the outermost container from the values of its keys."""
        if self.kind is type(None):
            return None
        items = zip(self.keys, values, strict=True)
        if self.kind is defaultdict:
            return defaultdict(None, items)
        if self.kind in (list, tuple):
            return self.kind(values)
        if issubclass(self.kind, Mapping):
            return self.kind(dict(items))
        given = {**dict(items), **{name: value.value for name, value in self.static}}
        if dataclasses.is_dataclass(self.kind):
            return _dataclass_of(self.kind, given)
        return self.kind(**given)


LEAF = Structure(None)


def _arrived(
    kind: Any,
    keys: tuple[Any, ...],
    children: tuple[Structure, ...],
    static: tuple[tuple[str, Static], ...],
) -> Structure:
    """Unpickles a structure, and registers which fields of its class are static."""
    structure = Structure(kind, keys, children, static)
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        _REGISTERED[kind] = _Fields(keys, tuple(name for name, _ in static))
    elif isinstance(kind, type) and issubclass(kind, Mapping):
        _MAPPINGS.add(kind)
    return structure


def _dataclass_of(kind: Any, given: dict[str, Any]) -> Any:
    """A dataclass of these fields: by its `__init__`, unless that refuses or converts them.

    It may check or convert rows, of which specs and batches are none. As in JAX, a class with a custom `__init__`, as
    equinox modules may have, is built without calling it.
    """
    if kind.__dataclass_params__.init and not str(type(kind).__module__).startswith(
        "equinox."
    ):
        with suppress(Exception):  # the user's code
            built = kind(**given)
            if all(getattr(built, name) is value for name, value in given.items()):
                return built
    try:
        built = object.__new__(kind)
    except TypeError:  # a subclass of another built-in class
        built = kind.__new__(kind)
    for name, value in given.items():
        object.__setattr__(built, name, value)
    return built


class _Children(NamedTuple):
    """A container taken apart; see `Structure`."""

    kind: Any
    keys: tuple[Any, ...]
    values: Sequence[Any]
    static: tuple[tuple[str, Static], ...] = ()


def _children(tree: Any) -> _Children | None:
    """The parts of a container; None for a leaf."""
    if type(tree) in _LEAVES or isinstance(tree, type):
        return None
    if tree is None:
        return _Children(type(None), (), ())
    if isinstance(tree, dict):
        return _children_of_mapping(tree)
    if type(tree) in (list, tuple):
        return _Children(type(tree), tuple(range(len(tree))), tree)
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return _Children(type(tree), tuple(tree._fields), tree)
    return _children_of_class(tree)


def members(tree: Any) -> Iterable[tuple[Any, Any]] | None:
    """Keys and values of a container, the keys as text if it is not a mapping; None for a leaf."""
    if isinstance(tree, Mapping):
        return tree.items()
    parts = _children(tree)
    if parts is None:
        return None
    return zip(map(str, parts.keys), parts.values, strict=True)


def with_members(tree: Any, values: dict[Any, Any]) -> Any:
    """A container like `tree` with other values of its `members`; only a mapping may have other keys."""
    if isinstance(tree, Mapping):
        return with_values(tree, values)
    parts = _children(tree)
    assert parts is not None
    return Structure(parts.kind, parts.keys, (), parts.static).container(
        [*values.values()]
    )


def _children_of_class(tree: Any) -> _Children | None:
    if dataclasses.is_dataclass(tree) and (fields := _fields_of(tree)) is not None:
        static = tuple((name, Static(getattr(tree, name))) for name in fields.static)
        return _Children(
            type(tree),
            fields.data,
            [getattr(tree, name) for name in fields.data],
            static,
        )
    if isinstance(tree, Mapping):
        return _children_of_mapping(tree)
    return None


def _children_of_mapping(tree: Mapping[Any, Any]) -> _Children:
    if type(tree) is dict or type(tree) in _MAPPINGS or jax_knows(tree):
        kind = type(tree)
    else:
        kind = dict
    if issubclass(kind, OrderedDict):
        keys = tuple(tree)
    else:
        keys = _sorted_keys(tree)
    return _Children(kind, keys, [tree[key] for key in keys])


def _sorted_keys(tree: Mapping[Any, Any]) -> tuple[Any, ...]:
    try:
        return tuple(sorted(tree))
    except TypeError as error:
        raise ArgumentError(
            f"the keys {list(tree)!r} of a dict can't be sorted ({error}); JAX "
            "orders the leaves of a dict by its keys: use keys of one type, such as "
            "strings"
        ) from None


def _fields_of(tree: Any) -> _Fields | None:
    """Data and static fields of a dataclass; None if JAX flattens it in another way."""
    kind = type(tree)
    if kind in _REGISTERED:
        return _REGISTERED[kind]
    # Fields that __init__ does not accept are derived from the others.
    fields = [
        field
        for field in dataclasses.fields(tree)
        if field.init or not kind.__dataclass_params__.init
    ]
    names = [field.name for field in fields]
    if not jax_knows(tree):
        nodes = [field for field in fields if field.metadata.get("pytree_node", True)]
        data = [
            field.name for field in nodes if not field.metadata.get("static", False)
        ]
        return _Fields(tuple(data), tuple(name for name in names if name not in data))
    entries = _jax_trees().tree_flatten_with_path(
        tree, is_leaf=lambda node: node is not tree
    )[0]
    data = [getattr(path[0], "name", "") for path, _ in entries]
    if not set(data) <= set(names):
        return None
    _REGISTERED[kind] = _Fields(
        tuple(data), tuple(name for name in names if name not in data)
    )
    return _REGISTERED[kind]


def _jax_trees() -> Any:
    """`jax.tree_util`, if it is loaded already: a worker process must not import JAX just for this."""
    return sys.modules.get("jax.tree_util")


def jax_knows(tree: Any) -> bool:
    """Whether JAX is loaded, and the object's class is registered with it."""
    registry = getattr(_jax_trees(), "default_registry", None)
    return registry is not None and registry.flatten_one_level(tree) is not None


def refuse_node(leaf: Any, name: object) -> None:
    """Refuses a leaf that is a pytree to JAX, but not to `flatten`.

    Raises:
        LeafError: When it is one; `name` names the leaf.
    """
    if type(leaf) not in _LEAVES and _children(leaf) is None and jax_knows(leaf):
        raise LeafError(
            f"{name} is {with_article(type(leaf).__qualname__)}, a class that only "
            "JAX can take apart; return a dict, or a dataclass known to "
            "jax.tree_util.register_dataclass, and make the object from it in the "
            "training step"
        )


def flatten(
    tree: Any, is_leaf: Callable[[Any], bool] | None = None
) -> tuple[list[Any], Structure]:
    """The leaves of `tree` in JAX's order, and its structure.

    Args:
        tree: Pytree.
        is_leaf: Predicate of nodes to treat as leaves even if they are containers.

    Examples:
        >>> from loadax.core.tree import flatten
        >>> leaves, structure = flatten({"b": 1, "a": (2, 3)})
        >>> leaves, structure.paths
        ([2, 3, 1], ["['a'][0]", "['a'][1]", "['b']"])
        >>> structure.build([20, 30, 10])
        {'a': (20, 30), 'b': 10}
    """
    leaves: list[Any] = []
    return leaves, _flatten_into(leaves, tree, is_leaf, 0)


# Not a closure in `flatten`: a recursive closure is a reference cycle, and would keep every leaf alive until garbage
# collection.
def _flatten_into(
    leaves: list[Any], node: Any, is_leaf: Callable[[Any], bool] | None, depth: int
) -> Structure:
    if depth > _DEEPEST:
        raise too_deep()
    if is_leaf is not None and is_leaf(node):
        parts = None
    else:
        parts = _children(node)
    if parts is None:
        leaves.append(node)
        return LEAF
    children = []
    for value in parts.values:
        if type(value) in _LEAVES and is_leaf is None:  # fast path without a call
            leaves.append(value)
            children.append(LEAF)
        else:
            children.append(_flatten_into(leaves, value, is_leaf, depth + 1))
    return Structure(parts.kind, parts.keys, tuple(children), parts.static)


def too_deep() -> LeafError:
    """The error of a tree that is nested so deep that functions of its nodes would exceed Python's limit of calls."""
    return LeafError(
        f"a tree of leaves is nested more than {_DEEPEST} deep; flatten it in a map, "
        "or keep its text, such as JSON, as one leaf"
    )


def map_leaves(function: Callable[[Any], Any], tree: Any) -> Any:
    """Maps a function over the leaves of a tree."""
    leaves, structure = flatten(tree)
    return structure.build(map(function, leaves))


def map_values(function: Callable[[Any], Any], tree: Any) -> Any:
    """Same as `map_leaves`, but dicts keep their class and order, and their keys may be of any kind."""
    kind = type(tree)
    if kind in _LEAVES:
        return function(tree)
    if isinstance(tree, dict):
        values = {
            key: function(value)
            if type(value) in _LEAVES
            else map_values(function, value)
            for key, value in tree.items()
        }
        return with_values(tree, values)
    if kind is list or kind is tuple:
        return kind(map_values(function, value) for value in tree)
    return map_leaves(function, tree)


def with_values(tree: Mapping[Any, Any], values: dict[Any, Any]) -> dict[Any, Any]:
    """`values` as a dict of the class of `tree`, or a plain dict if that is no class of dicts, or does not allow it."""
    if type(tree) is dict or not isinstance(tree, dict):
        return values
    try:
        copied = copy.copy(tree)
        for key, value in values.items():
            copied[key] = value
    except Exception:  # noqa: BLE001 - the user's code
        return values
    return copied


def broadcast_prefix(
    prefix: Any, structure: Structure, is_leaf: Callable[[Any], bool]
) -> list[tuple[Any, bool]]:
    """For every leaf of `structure`: its leaf in `prefix`, and whether that applies to it alone.

    Args:
        prefix: Prefix of a tree with this structure.
        structure: Structure of the full tree.
        is_leaf: Predicate of the leaves of `prefix`.

    Raises:
        ArgumentError: When `prefix` is not a prefix of such a tree.
    """

    def visit(node: Any, below: Structure, path: str) -> Iterator[tuple[Any, bool]]:
        if is_leaf(node):
            yield from ((node, below.kind is None) for _ in below.paths)
            return
        parts = _children(node)
        if path:
            position = f" at {path}"
        else:
            position = ""
        if parts is None or below.kind is None:
            raise ArgumentError(
                f"{node!r}{position} is unexpected; name the leaves "
                f"{[path + leaf for leaf in below.paths]}"
            )
        if set(parts.keys) != set(below.keys) or len(parts.keys) != len(below.keys):
            raise ArgumentError(
                f"the keys{position} are {sorted(map(str, parts.keys))}; pass those "
                f"of the data: {sorted(map(str, below.keys))}"
            )
        given = dict(zip(parts.keys, parts.values, strict=True))
        for key, child in zip(below.keys, below.children, strict=True):
            yield from visit(given[key], child, f"{path}[{key!r}]")

    return list(visit(prefix, structure, ""))
