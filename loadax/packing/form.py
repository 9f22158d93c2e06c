"""Form of documents: one-dimensional leaves of arbitrary length, which is usually the same for all leaves."""

from collections.abc import Iterable
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from loadax.core.spec import array_or_object
from loadax.core.tree import flatten
from loadax.errors import LeafError
from loadax.protocols import Tree

BARE = "tokens"
"""Leaf name for a document that is a bare array."""


@final
class Form:
    """The leaves that every document has, and their dtypes.

    Args:
        example: First document.
        row: Row of the document, for messages.
        by_leaf: Whether the leaves of a document may have different lengths.

    Raises:
        LeafError: When it is not a document; names the row and the leaf.
    """

    def __init__(self, example: Tree, row: int, by_leaf: bool = False):
        self._by_leaf = by_leaf
        self._structure = flatten(_named(example, row), is_leaf=_is_list)[1]
        self.paths = self._structure.paths
        if not self.paths:
            raise LeafError(f"row {row} is a document without leaves; give it at least one array, such as tokens")
        self.dtypes = [array.dtype.newbyteorder("=") for array in self._arrays(example, row)]

    def leaves(self, example: Tree, row: int) -> list[NDArray[Any]]:
        """Returns the leaves of a document.

        Raises:
            LeafError: When its form differs from that of the first; names the row and the leaf.
        """
        arrays = self._arrays(example, row)
        for index, (array, dtype) in enumerate(zip(arrays, self.dtypes, strict=True)):
            if not array.size:
                arrays[index] = np.empty(0, dtype)  # NumPy makes an empty list float64
            elif array.dtype.newbyteorder("=") != dtype:
                what = f"row {row}: leaf {self.paths[index]} is {array.dtype}, in other documents it is {dtype}"
                raise LeafError(f"{what}; cast it in a map")
        return arrays

    def _arrays(self, example: Tree, row: int) -> list[NDArray[Any]]:
        """The leaves of a document as arrays of their own dtypes."""
        leaves, structure = flatten(_named(example, row), is_leaf=_is_list)
        if structure != self._structure:
            what = f"row {row} is a document with the leaves {structure.paths}, others have {self.paths}"
            raise LeafError(f"{what}; give all documents the same leaves")
        arrays = [_array(leaf, path, row) for leaf, path in zip(leaves, self.paths, strict=True)]
        if not self._by_leaf and len(set(map(len, arrays))) > 1:
            shown = ", ".join(f"{path}: {len(array)}" for path, array in zip(self.paths, arrays, strict=True))
            raise LeafError(
                f"row {row} has leaves of different lengths ({shown}); make all leaves of a document equally long, "
                "or pass seq_len as a dict with a row length for each leaf, and method='best_fit'"
            )
        return arrays

    def build(self, leaves: list[Any]) -> dict[Any, Any]:
        built: dict[Any, Any] = self._structure.build(leaves)
        return built


def find_form(documents: Iterable[tuple[Tree, int]], by_leaf: bool) -> tuple[Form, list[NDArray[Any]]] | None:
    """Form and leaves of the first document without an empty leaf, else of the first one. None: there are none.

    Args:
        documents: Documents, each with its row.
        by_leaf: As for `Form`.
    """
    found: list[tuple[Form, list[NDArray[Any]]]] = []
    for example, row in documents:
        form = Form(example, row, by_leaf)
        found.append((form, form.leaves(example, row)))
        if all(map(len, found[-1][1])):
            return found[-1]
    return found[0] if found else None


def _named(example: Tree, row: int) -> dict[Any, Any]:
    if isinstance(example, dict):
        return example
    if type(example) is list or (not isinstance(example, tuple | str | bytes) and np.ndim(example)):
        return {BARE: example}
    what = "a document is a one-dimensional array, or a dict of these"
    raise LeafError(f"row {row} is {_brief(example)}; {what}; tokenize text in a map first: .map(tokenize).pack(…)")


def _array(leaf: Any, path: str, row: int) -> NDArray[Any]:
    array = array_or_object(leaf, f"row {row}: leaf {path}")
    if array.dtype.kind in "OUSMm" or array.ndim != 1:
        shown = f"{array.dtype}{list(array.shape)}" if array.dtype.kind not in "OUS" else _brief(leaf)
        what = f"row {row}: leaf {path} is {shown}, not a one-dimensional array of numbers"
        raise LeafError(f"{what}; drop or convert it in a map before pack()")
    return array


def _is_list(node: Any) -> bool:
    return type(node) is list


def _brief(value: Any) -> str:
    text = f"{type(value).__name__} {value.item() if isinstance(value, np.generic) else value!r}"
    return text if len(text) <= 60 else text[:57] + "..."
