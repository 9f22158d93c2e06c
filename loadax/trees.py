"""Nested examples, taken apart and put together in JAX's leaf order, without JAX.

Containers are dicts (keys sorted, as JAX sorts them; an OrderedDict keeps its own order), lists, tuples, namedtuples and
dataclasses (fields in order); None is a container without leaves. Everything else is a leaf.
"""

import dataclasses
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from loadax.errors import ArgumentError, LeafError

_LEAVES = {np.ndarray, int, float, bool, complex, str, bytes, *np.sctypeDict.values()}
"""Types that are no containers, which needs no further look."""


@dataclass(frozen=True)
class Structure:
    """The shape of a tree: which container stands where. Two trees have the same structure iff these are equal."""

    kind: Any  # None: a leaf
    keys: tuple[Any, ...] = ()
    children: tuple["Structure", ...] = ()

    @property
    def paths(self) -> list[str]:
        """A name for every leaf, in leaf order, as one would write it behind the tree: `['image']`, `[0].mask`, or `` ``."""
        return [path for path, _ in self._walk("")]

    def _walk(self, prefix: str) -> Iterator[tuple[str, "Structure"]]:
        if self.kind is None:
            yield prefix, self
        for key, child in zip(self.keys, self.children, strict=True):
            attribute = dataclasses.is_dataclass(self.kind) or hasattr(self.kind, "_fields")
            yield from child._walk(f"{prefix}.{key}" if attribute else f"{prefix}[{key!r}]")

    @cached_property
    def flat(self) -> bool:
        """Whether this is a plain dict of leaves, as most examples are: then rows are taken apart and put together in one step each."""
        return self.kind is dict and all(child.kind is None for child in self.children)

    def build_all(self, columns: Sequence[Any], count: int) -> list[Any]:
        """Trees of this structure: the i-th has the i-th entry of each column, in leaf order. For a structure without leaves, `count` of them."""
        if not columns:
            return [self.build(()) for _ in range(count)]
        rows = zip(*columns, strict=True)
        if not self.flat:
            return list(map(self.build, rows))
        keys = self.keys
        return [dict(zip(keys, row, strict=True)) for row in rows]

    def build(self, leaves: Iterable[Any]) -> Any:
        """The tree of this structure with these leaves, in leaf order."""
        return dict(zip(self.keys, leaves, strict=True)) if self.flat else self._build(iter(leaves))

    def plain_leaves(self, tree: Any) -> list[Any] | None:
        """The leaves of a tree, quickly, when it is easily seen to have this structure; None when `flatten` must look."""
        if self.kind is None:
            return [tree] if type(tree) in _LEAVES else None
        if not self.flat or type(tree) is not dict or len(tree) != len(self.keys):
            return None
        try:
            leaves = [tree[key] for key in self.keys]
        except KeyError:
            return None
        return leaves if all(type(leaf) in _LEAVES for leaf in leaves) else None

    def _build(self, leaves: Iterator[Any]) -> Any:
        if self.kind is None:
            return next(leaves)
        values = [child._build(leaves) for child in self.children]
        if self.kind is type(None):
            return None
        if isinstance(self.kind, type) and issubclass(self.kind, dict):
            items = zip(self.keys, values, strict=True)
            return defaultdict(None, items) if self.kind is defaultdict else self.kind(items)
        if self.kind in (list, tuple):
            return self.kind(values)
        return self.kind(**dict(zip(self.keys, values, strict=True)))


LEAF = Structure(None)


def _children(tree: Any) -> tuple[Any, tuple[Any, ...], Sequence[Any]] | None:
    """`(kind, keys, values)` of a container, None for a leaf."""
    if tree is None:
        return type(None), (), ()
    if isinstance(tree, dict):
        keys = tuple(tree)
        if not isinstance(tree, OrderedDict):
            try:
                keys = tuple(sorted(tree))
            except TypeError as error:
                raise ArgumentError(
                    f"the keys {list(tree)!r} of a dict can't be sorted ({error}); "
                    "JAX orders the leaves of a dict by its keys: use keys of one type, say strings"
                ) from None
        return type(tree), keys, [tree[key] for key in keys]
    if type(tree) in (list, tuple):
        return type(tree), tuple(range(len(tree))), tree
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree), tuple(tree._fields), tree
    if dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        keys = tuple(field.name for field in dataclasses.fields(tree))
        return type(tree), keys, [getattr(tree, key) for key in keys]
    return None


def flatten(tree: Any, is_leaf: Callable[[Any], bool] | None = None) -> tuple[list[Any], Structure]:
    """The leaves of `tree` in JAX's order, and its structure.

    Args:
        tree: nested containers.
        is_leaf: says of a node whether to stop there, though it may be a container.

    Example:
        >>> leaves, structure = flatten({"b": 1, "a": (2, 3)})
        >>> leaves, structure.paths
        ([2, 3, 1], ["['a'][0]", "['a'][1]", "['b']"])
        >>> structure.build([20, 30, 10])
        {'a': (20, 30), 'b': 10}
    """
    leaves: list[Any] = []
    return leaves, _flatten_into(leaves, tree, is_leaf)


# Not a function inside `flatten`: one that calls itself refers to itself, and so would keep every leaf until the garbage is collected.
def _flatten_into(leaves: list[Any], node: Any, is_leaf: Callable[[Any], bool] | None) -> Structure:
    parts = None if is_leaf is not None and is_leaf(node) else _children(node)
    if parts is None:
        leaves.append(node)
        return LEAF
    kind, keys, values = parts
    return Structure(kind, keys, tuple(_flatten_into(leaves, value, is_leaf) for value in values))


def map_leaves(function: Callable[..., Any], tree: Any, *rest: Any) -> Any:
    """A tree of `function(leaf, *leaves of rest)`, where `rest` have the structure of `tree`.

    Raises:
        LeafError: when a tree of `rest` has another structure.
    """
    leaves, structure = flatten(tree)
    columns = [leaves, *(flatten_like(structure, other) for other in rest)]
    return structure.build(function(*items) for items in zip(*columns, strict=True))


def map_values(function: Callable[[Any], Any], tree: Any) -> Any:
    """As `map_leaves` of one tree, for trees whose dicts have keys of any kind: they keep the order that they have."""
    kind = type(tree)
    if kind in _LEAVES:
        return function(tree)
    if kind is dict:
        return {key: function(value) if type(value) in _LEAVES else map_values(function, value) for key, value in tree.items()}
    if kind is list or kind is tuple:
        return kind(map_values(function, value) for value in tree)
    return map_leaves(function, tree)


def flatten_like(structure: Structure, tree: Any) -> list[Any]:
    """The leaves of `tree`, which must have this structure.

    Raises:
        LeafError: when it has another one; it shows the leaves of both.
    """
    leaves, actual = flatten(tree)
    if actual != structure:
        raise LeafError(f"a tree with the leaves {structure.paths} was expected, this one has {actual.paths}")
    return leaves


def broadcast_prefix(prefix: Any, structure: Structure, is_leaf: Callable[[Any], bool]) -> list[tuple[Any, bool]]:
    """For every leaf of `structure` the leaf of `prefix` above it, and whether it was given for that very leaf alone.

    Args:
        prefix: a tree that `structure` continues downwards.
        structure: of the full tree.
        is_leaf: says which nodes of `prefix` are its leaves.

    Raises:
        ArgumentError: when the prefix has containers or keys that the tree has not; it names the place.
    """

    def visit(node: Any, below: Structure, path: str) -> Iterator[tuple[Any, bool]]:
        if is_leaf(node):
            count = len(below.paths)
            yield from ((node, below.kind is None) for _ in range(count))
            return
        parts = _children(node)
        where = f" at {path}" if path else ""
        if parts is None or below.kind is None:
            raise ArgumentError(f"{node!r}{where} was not expected; the leaves there are {[path + leaf for leaf in below.paths]}")
        _, keys, values = parts
        if set(keys) != set(below.keys) or len(keys) != len(below.keys):
            raise ArgumentError(
                f"the keys{where} are {sorted(map(str, keys))}, those of the data are {sorted(map(str, below.keys))}"
            )
        given = dict(zip(keys, values, strict=True))
        for key, child in zip(below.keys, below.children, strict=True):
            yield from visit(given[key], child, f"{path}[{key!r}]")

    return list(visit(prefix, structure, ""))
