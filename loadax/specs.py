"""What one example looks like (its spec), and whether other rows look the same."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadax.errors import ArgumentError, LeafError
from loadax.protocols import ArraySpec, Tree
from loadax.trees import Structure, flatten


def flatten_spec(spec: Tree) -> tuple[list[ArraySpec], Structure]:
    """The `ArraySpec`s of a spec, in leaf order, and its structure (an `ArraySpec` is itself a tuple, but a leaf here)."""
    return flatten(spec, is_leaf=lambda node: isinstance(node, ArraySpec))


def spec_of(example: Tree) -> Tree:
    """The tree of `ArraySpec`s of one example. What is not a number (strings, bytes, objects) is `object`."""
    leaves, structure = flatten(example)
    return structure.build(
        _leaf_spec(leaf, f"leaf {path or 'of the example'}") for leaf, path in zip(leaves, structure.paths, strict=True)
    )


def as_array(leaf: Any, name: str) -> NDArray[Any]:
    """A leaf that a user's code gave, as an array.

    Raises:
        LeafError: when NumPy can't make one of it; names it, and says what it is.
    """
    try:
        return np.asarray(leaf)
    except Exception as error:
        raise LeafError(
            f"{name} is a {type(leaf).__module__}.{type(leaf).__qualname__} that NumPy can't make an array of ({error}); return an array of "
            "numbers (of a torch tensor: tensor.detach().float().numpy())"
        ) from error


def _leaf_spec(leaf: Any, name: str) -> ArraySpec:
    array = as_array(leaf, name)
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
    specs, structure = flatten_spec(spec)
    out = [np.empty((len(examples), *each.shape), each.dtype) for each in specs]
    columns = [(each, spec.shape, spec.dtype) for each, spec in zip(out, specs, strict=True)]
    for index, example in enumerate(examples):
        leaves = structure.plain_leaves(example)
        if leaves is None:
            leaves = _leaves_like(example, structure, rows[index])
        for number, (leaf, (column, shape, dtype)) in enumerate(zip(leaves, columns, strict=True)):
            if type(leaf) is not np.ndarray or leaf.dtype != dtype or leaf.shape != shape or dtype.hasobject:
                leaf = _checked(leaf, specs[number], f"row {rows[index]}: leaf {structure.paths[number] or 'of the example'}")  # noqa: PLW2901
            column[index] = leaf
    return structure.build(out)


def _leaves_like(example: Tree, structure: Structure, row: int) -> list[Any]:
    leaves, actual = flatten(example)
    if actual != structure:
        raise LeafError(
            f"row {row} has the leaves {actual.paths or 'none'}, the rows before it had {structure.paths}; "
            "every row must give the same ones"
        )
    return leaves


def _checked(leaf: Any, spec: ArraySpec, name: str) -> Any:
    if spec.dtype.hasobject:
        return leaf
    array = as_array(leaf, name)
    if array.shape != spec.shape or array.dtype.newbyteorder("=") != spec.dtype:
        raise LeafError(
            f"{name} is {array.dtype}{list(array.shape)}, expected {spec.dtype}{list(spec.shape)}; {_remedy(array, spec)}"
        )
    return array


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
        raise LeafError(f"{origin} gave the leaves {actual.paths}, expected {structure.paths}")
    checked = []
    for path, leaf, each in zip(structure.paths, leaves, specs, strict=True):
        array = as_array(leaf, f"{origin}: leaf {path or 'of the batch'}")
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
