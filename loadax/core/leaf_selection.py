"""LeafSelection: which leaves of an example `rename`, `keep` and `drop` return, and under which names.

A name is a leaf's keys joined by dots, or that of a subtree, which stands for all of its leaves.
"""

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, final

from loadax.core.arguments import entries, shown
from loadax.core.tree import flatten, members
from loadax.errors import ArgumentError, LeafError
from loadax.protocols import Tree

Path = tuple[Any, ...]


@final
@dataclass(frozen=True, repr=False)
class LeafSelection:
    """Arguments of `rename`, `keep` or `drop`, by which fingerprints and messages know them.

    Args:
        verb: Name of the verb.
        names: New name of each given name; for `keep` and `drop`, the name itself.
    """

    verb: Literal["rename", "keep", "drop"]
    names: dict[str, str]

    def __repr__(self) -> str:
        return f"{self.verb}({self.names if self.verb == 'rename' else ', '.join(map(repr, self.names))})"

    def describe(self) -> list[Any]:
        """The selection as JSON."""
        return [self.verb, self.names] if self.verb == "rename" else [self.verb, *self.names]


def renaming(names: Any) -> LeafSelection:
    """The selection of `rename`.

    Raises:
        ArgumentError: When `names` is not a dict of names.
    """
    if not isinstance(names, Mapping) or not names or not all(isinstance(name, str) for name in names.values()):
        remedy = "new names by old ones, such as {'tokens': 'inputs'}"
        raise ArgumentError(f"names={shown(names)}: pass {remedy}", argument="names")
    return LeafSelection("rename", dict(sorted(names.items())))


def selection(verb: Literal["keep", "drop"], names: Sequence[Any]) -> LeafSelection:
    """The selection of `keep` or `drop`.

    Raises:
        ArgumentError: When `names` are not one or more names, or one list of them.
    """
    given = entries("names", names[0], "names") if len(names) == 1 and not isinstance(names[0], str) else names
    if not given or not all(isinstance(name, str) for name in given):
        raise ArgumentError(f"names={shown(names)}: pass names of leaves: {verb}('tokens', 'label')", argument="names")
    return LeafSelection(verb, {name: name for name in sorted(given)})


def select_leaves(selected: LeafSelection, tree: Tree) -> dict[Any, Any]:
    """The leaves of a tree that a selection has, in nested dicts. Subtrees without a selected name stay as they are.

    Raises:
        ArgumentError: When the tree lacks a name, two leaves get one name, or no leaf is left; lists the names.
    """
    named: set[str] = set()
    both = {*selected.names, *selected.names.values()}
    deeper = {name[:end] for name in both for end, letter in enumerate(name) if letter == "."}
    found = list(_selected(selected, deeper, tree, (), None if selected.verb == "keep" else (), named))
    if missing := [name for name in selected.names if name not in named]:
        known = flatten(tree)[1].names
        if known == [""]:
            remedy = "name it in a map before: .map(lambda x: {'x': x})"
            raise ArgumentError(f"{selected}: an example is a single leaf without a name; {remedy}")
        close = difflib.get_close_matches(missing[0], known, 1)
        guess = f"did you mean {close[0]!r}? " if close else ""
        raise ArgumentError(f"{selected}: there is no leaf {missing[0]!r}; {guess}the names of leaves are {known}")
    if not found:
        raise ArgumentError(f"{selected} leaves nothing of {flatten(tree)[1].names}; keep at least one leaf")
    nodes: dict[Path, dict[Any, Any]] = {(): {}}
    for path, value in found:
        for end in range(1, len(path)):
            if path[:end] not in nodes:
                nodes[path[:end]] = _put(selected, nodes[path[: end - 1]], path[:end], {})
        _put(selected, nodes[path[:-1]], path, value)
    return nodes[()]


def select_of_rows(selected: LeafSelection, examples: Sequence[Tree], rows: Sequence[int]) -> list[Tree]:
    """Selects leaves of each example.

    Raises:
        LeafError: When a name is missing, or given twice, or no leaf is left; names the row.
    """
    results = []
    for row, example in zip(rows, examples, strict=True):
        try:
            results.append(select_leaves(selected, example))
        except ArgumentError as error:
            raise LeafError(f"row {row}: {error}") from None
    return results


def _selected(
    selected: LeafSelection, deeper: set[str], tree: Tree, keys: Path, target: Path | None, named: set[str]
) -> Iterator[tuple[Path, Any]]:
    """Yields the selected subtrees of a tree, each with its new path.

    Args:
        selected: The selection.
        deeper: Names of the subtrees of which some leaves are named, or get such a name.
        tree: A tree, or a subtree.
        keys: Path of the subtree.
        target: Its new path. None: it is not selected.
        named: Receives the names that it has.
    """
    prefix = "".join(f"{key}." for key in keys)
    for key, value in members(tree) or ():
        name = f"{prefix}{key}"
        path = None if target is None else (*target, key)
        if name in selected.names:
            named.add(name)
            new = {"keep": (*keys, key), "drop": None, "rename": tuple(selected.names[name].split("."))}
            path = new[selected.verb]
        if name in deeper and members(value) is not None:
            yield from _selected(selected, deeper, value, (*keys, key), path, named)
        elif path is not None:
            yield path, value


def _put(selected: LeafSelection, node: dict[Any, Any], path: Path, value: Any) -> Any:
    if path[-1] in node:
        name = ".".join(map(str, path))
        raise ArgumentError(f"{selected}: two leaves would be called {name!r}; rename or drop one of them first")
    node[path[-1]] = value
    return value
