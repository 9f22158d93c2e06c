"""Names of leaves: the keys of a leaf joined by dots, and the way from a name to its leaf.

A key that has the whole name comes before a leaf of a subtree: `{"meta.user": 1, "meta": {"user": 2}}` has 1 there.
"""

import difflib
from typing import Any

from loadax.core.tree import members, with_members
from loadax.protocols import Tree

Path = tuple[Any, ...]  # keys of the containers around a leaf, and its own


def path_of(tree: Tree, name: str) -> Path | None:
    """Path of the leaf or subtree with a name; None: the tree has none.

    Examples:
        >>> from loadax.core.leaf_names import path_of
        >>> tree = {"meta": {"user": 1}, "pair": (2, 3)}
        >>> path_of(tree, "meta.user"), path_of(tree, "pair.1"), path_of(tree, "user")
        (('meta', 'user'), ('pair', '1'), None)
    """
    if type(tree) is dict and name in tree:
        return (name,)
    entries = [(str(key), key, value) for key, value in members(tree) or ()]
    for text, key, _ in entries:
        if text == name:
            return (key,)
    for text, key, value in entries:
        if name.startswith(f"{text}."):
            below = path_of(value, name[len(text) + 1 :])
        else:
            below = None
        if below is not None:
            return (key, *below)
    return None


def value_at(tree: Tree, path: Path) -> Any:
    """The leaf or subtree at a path of `path_of`."""
    for wanted in path:
        tree = next(value for key, value in members(tree) or () if key == wanted)
    return tree


def with_value(tree: Tree, path: Path, value: Any) -> Tree:
    """A copy of a tree with a value at a path, where a dict may get a new key. Containers keep their classes."""
    if not path:
        return value
    first, *rest = path
    below = dict(members(tree) or ())
    if rest:
        below[first] = with_value(below[first], tuple(rest), value)
    else:
        below[first] = value
    return with_members(tree, below)


def without(tree: Tree, path: Path) -> dict[Any, Any]:
    """A copy of a tree as a dict without the leaf or subtree at a path, as are the subtrees around it, if not empty."""
    first, *rest = path
    kept = dict(members(tree) or ())
    below = kept.pop(first)
    if rest and (remaining := without(below, tuple(rest))):
        kept[first] = remaining
    return kept


def unknown_leaf(name: str, names: list[str]) -> str:
    """Text for errors about a name that is not one of these leaves."""
    if names == [""]:
        return f"there is no leaf {name!r}: the example is one array, without a name"
    close = difflib.get_close_matches(name, names, 1)
    if close:
        guess = f"did you mean {close[0]!r}? "
    else:
        guess = ""
    return f"there is no leaf {name!r}; {guess}the names of leaves are {names}"
