"""LeafSelection: which leaves of an example `rename`, `keep` and `drop` return, and under which names.

A name is a leaf's keys joined by dots, or that of a subtree, which stands for all of its leaves.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar, Literal, final

from loadax.core.arguments import entries, shown
from loadax.core.leaf_names import Path, unknown_leaf
from loadax.core.tree import flatten, members
from loadax.errors import ArgumentError, LeafError
from loadax.protocols import Tree


@final
@dataclass(frozen=True, repr=False)
class LeafSelection:
    """A transform of examples, or of batches of them, that returns some leaves. It is not a map of a user's.

    Args:
        verb: Name of the verb.
        names: New name of each given name; for `keep` and `drop`, the name itself.
    """

    verb: Literal["rename", "keep", "drop"]
    names: dict[str, str]
    kind: ClassVar[Literal["select"]] = "select"
    spec = stream = None
    rng = with_index = with_epoch = False
    elementwise = True
    # for fingerprints and messages, as other transforms have a function
    function = property(lambda self: self)

    def __repr__(self) -> str:
        return f"{self.verb}({self.names if self.verb == 'rename' else ', '.join(map(repr, self.names))})"

    text = __repr__

    def describe(self) -> list[Any]:
        if self.verb == "rename":
            return [self.verb, self.names]
        return [self.verb, *self.names]

    def of_tree(self, tree: Tree) -> dict[Any, Any]:
        """The selected leaves of a tree, in nested dicts. Subtrees without a selected name stay as they are.

        Raises:
            ArgumentError: When the tree lacks a name, two leaves get one name, or no leaf is left; lists the names.
        """
        named: set[str] = set()
        both = {*self.names, *self.names.values()}
        deeper = {
            name[:end]
            for name in both
            for end, letter in enumerate(name)
            if letter == "."
        }
        found = list(
            _selected(
                self, deeper, tree, (), None if self.verb == "keep" else (), named
            )
        )
        if len(named) < len(self.names) or not found:
            raise _missing(self, named, flatten(tree)[1].names)
        if self.verb == "rename":
            paths = sorted(tuple(map(str, path)) for path, _ in found)
        else:
            paths = []
        for path, following in pairwise(paths):
            if following[: len(path)] == path:
                name = ".".join(path)
                raise ArgumentError(
                    f"{self}: two leaves would be called {name!r}; rename or drop "
                    "one of them first"
                )
        result: dict[Any, Any] = {}
        for path, value in found:
            node = result
            for key in path[:-1]:
                node = node.setdefault(key, {})
            node[path[-1]] = value
        return result

    def of_rows(self, examples: Sequence[Tree], rows: Sequence[int]) -> list[Tree]:
        """The selected leaves of each example.

        Raises:
            LeafError: When a name is missing, or given twice, or no leaf is left; names the row.
        """
        results = []
        for row, example in zip(rows, examples, strict=True):
            try:
                results.append(self.of_tree(example))
            except ArgumentError as error:
                raise LeafError(f"row {row}: {error}") from None
        return results


def selection(
    verb: Literal["rename", "keep", "drop"], names: Any, argument: str = "names"
) -> LeafSelection:
    """The selection of a verb.

    Args:
        verb: The verb.
        names: Its argument, or a tuple of its arguments.
        argument: Name of the argument, for errors.

    Raises:
        ArgumentError: When `names` is not a dict of names for `rename`, or one or more names, or one list of them.
    """
    if verb == "rename":
        if isinstance(names, Mapping):
            given = names
        else:
            given = {}
        remedy = "new names by old ones: {'tokens': 'inputs'}"
    else:
        if len(names) == 1 and not isinstance(names[0], str):
            listed = entries(argument, names[0], "names")
        else:
            listed = names
        given = {name: name for name in listed}
        remedy = "names of leaves, such as 'tokens', 'label'"
    if not given or not all(
        isinstance(name, str) for name in (*given, *given.values())
    ):
        raise ArgumentError(
            f"{argument}={shown(names)}: pass {remedy}", argument=argument
        )
    return LeafSelection(verb, dict(sorted(given.items())))


def _selected(
    selected: LeafSelection,
    deeper: set[str],
    tree: Tree,
    keys: Path,
    target: Path | None,
    named: set[str],
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
        if target is None:
            path = None
        else:
            path = (*target, key)
        if name in selected.names:
            named.add(name)
            new = {
                "keep": (*keys, key),
                "drop": None,
                "rename": tuple(selected.names[name].split(".")),
            }
            path = new[selected.verb]
        if name in deeper and members(value) is not None:
            yield from _selected(selected, deeper, value, (*keys, key), path, named)
        elif path is not None:
            yield path, value


def _missing(
    selected: LeafSelection, named: set[str], known: list[str]
) -> ArgumentError:
    """The error of a selection of names that are not known, or of no leaves."""
    absent = [name for name in selected.names if name not in named]
    if not absent:
        return ArgumentError(
            f"{selected} leaves nothing of {known}; keep at least one leaf"
        )
    if known == [""]:
        remedy = "name it in a map before: .map(lambda x: {'x': x})"
        return ArgumentError(
            f"{selected}: an example is a single leaf without a name; {remedy}"
        )
    return ArgumentError(f"{selected}: {unknown_leaf(absent[0], known)}")
