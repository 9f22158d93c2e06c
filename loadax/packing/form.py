"""Form of documents: leaves of arbitrary length, usually the same for all leaves, or of one value a document."""

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from loadax.core.spec import array_or_object, entries_like
from loadax.core.tree import Structure, flatten
from loadax.errors import LeafError
from loadax.packing.budgets import Budgets
from loadax.plan.pack import ALL, DOCUMENTS, PackOptions
from loadax.protocols import Tree

BARE = "tokens"
"""Leaf name for a document that is a bare array."""


@final
class Form:
    """The leaves that every document has: their dtypes, the shapes of their entries, and their budgets.

    Args:
        structure: Structure of a document.
        arrays: Leaves of a document.
        options: Options with the budgets of all leaves.
    """

    def __init__(self, structure: Structure, arrays: Sequence[NDArray[Any]], options: PackOptions):
        self._structure, self.paths = structure, structure.paths
        names = structure.names
        budgets = [*options.seq_lens, DOCUMENTS]
        own = [name if options.by_leaf else ALL for name in names]
        self.groups = [budgets.index(options.leaves.get(name, budget)) for name, budget in zip(names, own, strict=True)]
        """Index of the budget of each leaf; that of `DOCUMENTS` comes after those of `seq_lens`."""
        self.num_lengths = len(budgets) - 1
        self.dtypes = [array.dtype.newbyteorder("=") for array in arrays]
        self.shapes = [
            array.shape[group < self.num_lengths :] for array, group in zip(arrays, self.groups, strict=True)
        ]
        """Shape of one entry of each leaf."""
        self._like = [
            (dtype, shape, group < self.num_lengths)
            for dtype, shape, group in zip(self.dtypes, self.shapes, self.groups, strict=True)
        ]
        self._ndims = [1 + len(shape) for shape in self.shapes]
        self._of_one_value = [leaf for leaf, group in enumerate(self.groups) if group == self.num_lengths]
        self._of_budget = [self.groups.index(group) for group in range(self.num_lengths)]
        if options.by_leaf:
            self._of_budget = [names.index(name) for name in options.seq_lens]
        self._as_long = [
            (leaf, self._of_budget[group])
            for leaf, group in enumerate(self.groups)
            if group < self.num_lengths and leaf != self._of_budget[group]
        ]

    def leaves(self, example: Tree, row: int) -> list[NDArray[Any]]:
        """Returns the leaves of a document. A leaf of one value a document has one entry.

        Raises:
            LeafError: When its form differs from that of the first; names the row and the leaf.
        """
        arrays = self._plain_leaves(example)
        if arrays is None:
            arrays = self._cast_leaves(example, row)
        self._check_lengths(arrays, row)
        return arrays

    def _plain_leaves(self, example: Tree) -> list[NDArray[Any]] | None:
        """The leaves of a document, if they are arrays of the expected dtypes and shapes already."""
        leaves = self._structure.plain_leaves(example)
        if leaves is None:
            return None
        # Comparing lists is quick: this is most of the work for small documents, such as graphs.
        if any(kind is not np.ndarray for kind in map(type, leaves)) or [leaf.dtype for leaf in leaves] != self.dtypes:
            return None
        for index in self._of_one_value:
            leaves[index] = leaves[index][None]
        alike = [leaf.shape[1:] for leaf in leaves] == self.shapes and [leaf.ndim for leaf in leaves] == self._ndims
        return leaves if alike else None

    def _cast_leaves(self, example: Tree, row: int) -> list[NDArray[Any]]:
        arrays = _arrays(example, row, self._structure)
        for index, (array, (dtype, shape, ragged)) in enumerate(zip(arrays, self._like, strict=True)):
            label = f"row {row}: leaf {self.paths[index]}"
            arrays[index] = entries_like(array if ragged else array[None], dtype, shape, label)
        return arrays

    def lengths(self, leaves: Sequence[NDArray[Any]]) -> list[int]:
        """Lengths of a document, one for each budget."""
        return [len(leaves[leaf]) for leaf in self._of_budget]

    @property
    def one_value(self) -> bool:
        """Whether a leaf has one value a document."""
        return bool(self._of_one_value)

    def build(self, leaves: list[Any]) -> dict[Any, Any]:
        built: dict[Any, Any] = self._structure.build(leaves)
        return built

    def _check_lengths(self, arrays: list[NDArray[Any]], row: int) -> None:
        """Checks that leaves of one budget are equally long."""
        for leaf, other in self._as_long:
            if len(arrays[leaf]) != len(arrays[other]):
                break
        else:
            return
        shown = ", ".join(f"{path}: {len(array)}" for path, array in zip(self.paths, arrays, strict=True))
        many = self.num_lengths > 1
        remedy = "make leaves of one budget" if many else "make all leaves of a document"
        ways = "name it in seq_len" if many else "pass seq_len as a dict with a row length for each leaf"
        raise LeafError(
            f"row {row} has leaves of different lengths ({shown}); {remedy} equally long, or {ways}, and "
            "method='best_fit'"
        )


def find_form(
    documents: Iterable[tuple[Tree, int]], options: PackOptions
) -> tuple[Form, PackOptions, list[NDArray[Any]]] | None:
    """Form, options with the budgets of all leaves, and the leaves of one of the first documents. None: there are none.

    That is the first document without an empty leaf, else the first one.

    Args:
        documents: Documents, each with its row.
        options: Options as they were given.

    Raises:
        LeafError: When a document is none; names the row and the leaf.
    """
    remaining = iter(documents)
    first = next(remaining, None)
    if first is None:
        return None
    structure = flatten(_named(*first), is_leaf=_is_list)[1]
    if not structure.paths:
        raise LeafError(f"row {first[1]} is a document without leaves; give it at least one array, such as tokens")
    budgets, chosen, full = Budgets(options, structure.names), first, False
    for document in chain([first], remaining):
        arrays = _arrays(*document, structure)
        budgets.see(arrays, document[1])
        if not full and all(len(array) for array in arrays if array.shape):
            chosen, full = document, True
        if full and budgets.settled:
            break
    found = budgets.options()
    form = Form(structure, _arrays(*chosen, structure), found)
    return form, found, form.leaves(*chosen)


def _arrays(example: Tree, row: int, structure: Structure) -> list[NDArray[Any]]:
    """The leaves of a document as arrays of their own dtypes."""
    named = _named(example, row)
    leaves = structure.plain_leaves(named)
    if leaves is None:
        leaves, found = flatten(named, is_leaf=_is_list)
        if found != structure:
            what = f"row {row} is a document with the leaves {found.paths}, others have {structure.paths}"
            raise LeafError(f"{what}; give all documents the same leaves")
    return [_array(leaf, path, row) for leaf, path in zip(leaves, structure.paths, strict=True)]


def _named(example: Tree, row: int) -> dict[Any, Any]:
    if isinstance(example, dict):
        return example
    if type(example) is list or (not isinstance(example, tuple | str | bytes) and np.ndim(example)):
        return {BARE: example}
    what = "a document is an array of entries, or a dict of these"
    raise LeafError(f"row {row} is {_brief(example)}; {what}; tokenize text in a map first: .map(tokenize).pack(…)")


def _array(leaf: Any, path: str, row: int) -> NDArray[Any]:
    array = array_or_object(leaf, f"row {row}: leaf {path}")
    if array.dtype.kind in "OUSMm":
        shown = f"{array.dtype}{list(array.shape)}" if array.dtype.kind not in "OUS" else _brief(leaf)
        what = f"row {row}: leaf {path} is {shown}, not an array of numbers"
        raise LeafError(f"{what}; drop or convert it in a map before pack()")
    return array


def _is_list(node: Any) -> bool:
    return type(node) is list


def _brief(value: Any) -> str:
    text = f"{type(value).__name__} {value.item() if isinstance(value, np.generic) else value!r}"
    return text if len(text) <= 60 else text[:57] + "..."
