"""What one example looks like (its spec), and whether other rows look the same."""

from collections.abc import Sequence
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from loadax.errors import ArgumentError, LeafError
from loadax.protocols import ArraySpec, Tree
from loadax.trees import Structure, flatten, map_leaves


def flatten_spec(spec: Tree) -> tuple[list[ArraySpec], Structure]:
    """The `ArraySpec`s of a spec, in leaf order, and its structure (an `ArraySpec` is itself a tuple, but a leaf here)."""
    return flatten(spec, is_leaf=lambda node: isinstance(node, ArraySpec))


def spec_of(example: Tree) -> Tree:
    """The tree of `ArraySpec`s of one example. What is not a number (strings, bytes, objects) is `object`."""
    return map_leaves(_leaf_spec, example)


def _leaf_spec(leaf: Any) -> ArraySpec:
    array = np.asarray(leaf)
    if array.dtype.kind in "USO":
        return ArraySpec(array.shape, np.dtype(object))
    return ArraySpec(array.shape, array.dtype.newbyteorder("="))


def normalise_spec(spec: Tree, name: str) -> Tree:
    """A user's tree of things with `shape` and `dtype`, as `ArraySpec`s.

    Raises:
        ArgumentError: when a leaf has no shape or dtype; names it.
    """
    leaves, structure = flatten(spec, is_leaf=_has_spec)
    for path, leaf in zip(structure.paths, leaves, strict=True):
        if not _has_spec(leaf):
            raise ArgumentError(f"{name}{path} is {leaf!r}: pass something with a shape and a dtype, say jax.ShapeDtypeStruct")
    return structure.build(ArraySpec(tuple(leaf.shape), np.dtype(leaf.dtype).newbyteorder("=")) for leaf in leaves)


def _has_spec(node: Any) -> bool:
    # A class such as numpy.float32 has them too, but as descriptors.
    return hasattr(node, "shape") and hasattr(node, "dtype") and not isinstance(node, type)


def stack(examples: Sequence[Tree], spec: Tree, rows: Sequence[int]) -> Tree:
    """Examples, each checked against `spec`, as one tree of arrays whose first dimension is `len(examples)`.

    Args:
        examples: one tree a row.
        spec: a tree of `ArraySpec`s.
        rows: the row ids, for messages.

    Raises:
        LeafError: when an example has another structure, shape or dtype than `spec`; names the row and the leaf.
    """
    stacked = Stack(spec, rows)
    for index, example in enumerate(examples):
        stacked.put(index, example)
    return stacked.tree


@final
class Stack:
    """Arrays that examples are copied into one by one, each as soon as it is there.

    Args:
        spec: a tree of `ArraySpec`s, of one example.
        rows: the row ids, one for each example, for messages.
    """

    def __init__(self, spec: Tree, rows: Sequence[int]):
        self._specs, self._structure = flatten_spec(spec)
        self.rows = rows
        self.arrays = [np.empty((len(rows), *each.shape), each.dtype) for each in self._specs]
        """One for each leaf, rows first."""
        self._columns = [(each, spec.shape, spec.dtype) for each, spec in zip(self.arrays, self._specs, strict=True)]

    @property
    def tree(self) -> Tree:
        """The arrays as a tree."""
        return self._structure.build(self.arrays)

    def put(self, index: int, example: Tree) -> list[Any]:
        """Copies an example; returns its leaves.

        Raises:
            LeafError: when it has another structure, shape or dtype than the spec; names the row and the leaf.
        """
        leaves = self._structure.plain_leaves(example)
        if leaves is None:
            leaves = _leaves_like(example, self._structure, self.rows[index])
        for number, (leaf, (column, shape, dtype)) in enumerate(zip(leaves, self._columns, strict=True)):
            if type(leaf) is not np.ndarray or leaf.dtype != dtype or leaf.shape != shape or dtype.hasobject:
                column[index] = self._checked(leaf, number, index)
            else:
                column[index] = leaf
        return leaves

    def _checked(self, leaf: Any, number: int, index: int) -> Any:
        spec = self._specs[number]
        if spec.dtype.hasobject:
            return leaf
        array = np.asarray(leaf)
        if array.shape != spec.shape or array.dtype.newbyteorder("=") != spec.dtype:
            raise LeafError(
                f"row {self.rows[index]}: leaf {self._structure.paths[number] or 'of the example'} is {array.dtype}{list(array.shape)}, expected "
                f"{spec.dtype}{list(spec.shape)}; {_remedy(array, spec)}"
            )
        return array


def _leaves_like(example: Tree, structure: Structure, row: int) -> list[Any]:
    leaves, actual = flatten(example)
    if actual != structure:
        if difference := structure.static_difference(actual):
            raise LeafError(
                f"row {row}: {difference}; a batch has one value of it, so every row must have the same: make it a data field, or set it in a map"
            )
        raise LeafError(
            f"row {row} has the leaves {actual.paths or 'none'}, the rows before it had {structure.paths}; "
            "every row must give the same ones"
        )
    return leaves


def _remedy(array: NDArray[Any], spec: ArraySpec) -> str:
    if array.ndim == len(spec.shape) and array.shape != spec.shape:
        return "make all rows alike: these are ragged, so pad or crop them in a map, pass pad_to= where the source takes it, or pack them"
    return "make all rows alike in a map (pad, crop or cast), or state them with spec="


def check_batch(batch: Tree, count: int, spec: Tree, origin: str) -> Tree:
    """`batch`, when it has the structure of `spec` and every leaf `count` rows of the promised shape and dtype.

    Raises:
        LeafError: otherwise; names `origin`, the leaf, what it is and what it should be.
    """
    specs, structure = flatten_spec(spec)
    leaves, actual = flatten(batch)
    if actual != structure:
        difference = structure.static_difference(actual)
        raise LeafError(f"{origin} gave {difference or f'the leaves {actual.paths}, expected {structure.paths}'}")
    checked = []
    for path, leaf, each in zip(structure.paths, leaves, specs, strict=True):
        array = np.asarray(leaf)
        if array.dtype != each.dtype and array.dtype.newbyteorder("=") == each.dtype:
            array = array.astype(each.dtype)
        wrong_dtype = array.dtype != each.dtype and not each.dtype.hasobject
        if array.shape != (count, *each.shape) or wrong_dtype:
            raise LeafError(
                f"{origin} gave leaf {path or 'of the batch'} as {array.dtype}{list(array.shape)} for {count} rows, "
                f"expected {each.dtype}{[count, *each.shape]}; return one entry per row, all alike"
            )
        checked.append(array)
    return structure.build(checked)
