"""Form of documents: leaves of arbitrary length, usually the same for all leaves, or of one value a document."""

from collections.abc import Iterable, Sequence
from itertools import chain
from operator import attrgetter
from typing import Any, TypeAlias, final

import numpy as np

from loadax.core.spec import array_or_object, entries_like
from loadax.core.tree import Structure, flatten
from loadax.errors import LeafError
from loadax.packing.budgets import Budgets
from loadax.plan.pack import ALL, DOCUMENTS, PackOptions
from loadax.protocols import Array, Integers, Tree

BARE = "tokens"  # leaf name for a document that is a bare array
Column: TypeAlias = Sequence[Array]  # a leaf of several documents
_KIND = attrgetter("dtype", "ndim")


@final
class Form:
    """The leaves that every document has: their dtypes, the shapes of their entries, and their budgets.

    Args:
        structure: Structure of a document.
        arrays: Leaves of a document.
        options: Options with the budgets of all leaves.
    """

    def __init__(
        self, structure: Structure, arrays: Sequence[Array], options: PackOptions
    ):
        self._structure = structure
        self.paths = structure.paths
        self.names = names = structure.names
        budgets = [*options.seq_lens, DOCUMENTS]
        own = [name if options.by_leaf else ALL for name in names]
        # Index of the budget of each leaf; that of `DOCUMENTS` comes after those of `seq_lens`.
        self.groups = [
            budgets.index(options.leaves.get(name, budget))
            for name, budget in zip(names, own, strict=True)
        ]
        self.num_lengths = len(budgets) - 1
        self.dtypes = [array.dtype.newbyteorder("=") for array in arrays]
        # Shape of one entry of each leaf.
        self.shapes = [
            array.shape[group < self.num_lengths :]
            for array, group in zip(arrays, self.groups, strict=True)
        ]
        ragged = [group < self.num_lengths for group in self.groups]
        self._like = [*zip(self.dtypes, self.shapes, ragged, strict=True)]
        self.one_value = not all(ragged)  # whether a leaf has one value a document
        self._of_budget = [
            self.groups.index(group) for group in range(self.num_lengths)
        ]
        if options.by_leaf:
            self._of_budget = [names.index(name) for name in options.seq_lens]
        self._as_long = [
            (leaf, self._of_budget[group])
            for leaf, group in enumerate(self.groups)
            if group < self.num_lengths and leaf != self._of_budget[group]
        ]

    def leaves(self, example: Tree, row: int) -> list[Array]:
        """Returns the leaves of a document. A leaf of one value a document has one entry.

        Raises:
            LeafError: When its form differs from that of the first; names the row and the leaf.
        """
        arrays = _arrays(example, row, self._structure)
        for index, (array, (dtype, shape, ragged)) in enumerate(
            zip(arrays, self._like, strict=True)
        ):
            label = f"row {row}: leaf {self.paths[index]}"
            arrays[index] = entries_like(
                array if ragged else array[None], dtype, shape, label
            )
        self._check_lengths(arrays, row)
        return arrays

    def columns(self, examples: Sequence[Tree], rows: Sequence[int]) -> list[Column]:
        """The leaves of all documents, by leaf; see `leaves`."""
        return self._plain_columns(examples) or [
            *zip(*map(self.leaves, examples, rows), strict=True)
        ]

    def _plain_columns(self, examples: Sequence[Tree]) -> list[Column] | None:
        """The leaves of all documents, if they are arrays of the expected dtypes, shapes and lengths already."""
        if not self._structure.flat:
            return None
        keys = self._structure.keys
        kinds = {*map(type, examples)}
        bare = kinds == {np.ndarray} and keys == (BARE,)
        if not bare and (kinds != {dict} or {*map(len, examples)} != {len(keys)}):
            return None
        columns = list[Column]()
        # Sets over all documents are quick: these checks are most of the work for small ones, such as graphs.
        for key, (dtype, shape, ragged) in zip(keys, self._like, strict=True):
            if bare:
                column = [*examples]
            else:
                column = [example.get(key) for example in examples]
            if {*map(type, column)} != {np.ndarray} or {*map(_KIND, column)} != {
                (dtype, ragged + len(shape))
            }:
                return None
            if shape and {array.shape[ragged:] for array in column} != {shape}:
                return None
            columns.append(column if ragged else [array[None] for array in column])
        sizes = [[*map(len, column)] for column in columns]
        if all(sizes[leaf] == sizes[other] for leaf, other in self._as_long):
            return columns
        return None

    def lengths(self, columns: Sequence[Column]) -> Integers:
        """int64[n, budgets]: lengths of documents, for each budget."""
        return np.array(
            [[*map(len, columns[leaf])] for leaf in self._of_budget], np.int64
        ).T

    def build(self, leaves: list[Any]) -> Any:
        return self._structure.build(leaves)

    def _check_lengths(self, arrays: list[Array], row: int) -> None:
        """Checks that leaves of one budget are equally long."""
        if all(
            len(arrays[leaf]) == len(arrays[other]) for leaf, other in self._as_long
        ):
            return
        shown = ", ".join(
            f"{path}: {len(array)}"
            for path, array in zip(self.paths, arrays, strict=True)
        )
        many = self.num_lengths > 1
        if many:
            remedy = "make leaves of one budget"
        else:
            remedy = "make all leaves of a document"
        if many:
            ways = "name it in seq_len"
        else:
            ways = "pass seq_len as a dict with a row length for each leaf"
        raise LeafError(
            f"row {row} has leaves of different lengths ({shown}); {remedy} equally "
            f"long, or {ways}, and method='best_fit'"
        )


def find_form(
    documents: Iterable[tuple[Tree, int]], options: PackOptions
) -> tuple[Form, PackOptions, list[Array]] | None:
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
        raise LeafError(
            f"row {first[1]} is a document without leaves; give it at least one "
            "array, such as tokens"
        )
    budgets = Budgets(options, structure.names)
    chosen = first
    full = False
    for document in chain([first], remaining):
        arrays = _arrays(*document, structure)
        budgets.see(arrays, document[1])
        if not full and all(len(array) for array in arrays if array.shape):
            chosen = document
            full = True
        if full and budgets.settled:
            break
    found = budgets.options()
    form = Form(structure, _arrays(*chosen, structure), found)
    return form, found, form.leaves(*chosen)


def _arrays(example: Tree, row: int, structure: Structure) -> list[Array]:
    """The leaves of a document as arrays of their own dtypes."""
    named = _named(example, row)
    leaves = structure.plain_leaves(named)
    if leaves is None:
        leaves, found = flatten(named, is_leaf=_is_list)
        if found != structure:
            what = (
                f"row {row} is a document with the leaves {found.paths}, others have "
                f"{structure.paths}"
            )
            raise LeafError(f"{what}; give all documents the same leaves")
    return [
        _array(leaf, path, row)
        for leaf, path in zip(leaves, structure.paths, strict=True)
    ]


def _named(example: Tree, row: int) -> dict[Any, Any]:
    if isinstance(example, dict):
        return example
    if type(example) is list or (
        not isinstance(example, tuple | str | bytes) and np.ndim(example)
    ):
        return {BARE: example}
    what = "a document is an array of entries, or a dict of these"
    raise LeafError(
        f"row {row} is {_brief(example)}; {what}; make one in a map before: "
        ".map(tokenize).pack(…)"
    )


def _array(leaf: Any, path: str, row: int) -> Array:
    array = array_or_object(leaf, f"row {row}: leaf {path}")
    if array.dtype.kind in "OUSMm":
        if array.dtype.kind not in "OUS":
            shown = f"{array.dtype}{list(array.shape)}"
        else:
            shown = _brief(leaf)
        what = f"row {row}: leaf {path} is {shown}, not an array of numbers"
        raise LeafError(f"{what}; drop or convert it in a map before pack()")
    return array


def _is_list(node: Any) -> bool:
    return type(node) is list


def _brief(value: Any) -> str:
    text = (
        f"{type(value).__name__} "
        f"{value.item() if isinstance(value, np.generic) else value!r}"
    )
    if len(text) <= 60:
        return text
    return text[:57] + "..."
