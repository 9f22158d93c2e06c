"""Opens trees of arrays: in memory, memory-mapped, or in open stores of other libraries."""

import numpy as np

from loadax.core.tree import flatten
from loadax.protocols import Tree
from loadax.sources.arrays import ArraySource
from loadax.sources.base import BaseSource
from loadax.sources.library import comes_from, is_stored


def open_tree(tree: Tree) -> BaseSource:
    """The source of a tree of arrays: in memory, mapped, or stored and read by rows.

    Raises:
        SourceError: when a leaf is no array, has no rows, or the leaves' lengths differ; names the leaf.
    """
    tree = _by_fields(tree)
    leaves, structure = flatten(tree, is_leaf=is_stored)
    stored = [leaf for leaf in leaves if is_stored(leaf)]
    if not stored:
        return ArraySource(tree)
    if all(comes_from(leaf, "tensorstore", "TensorStore") for leaf in leaves):
        from loadax.sources.zarr.source import TensorStoreSource

        return TensorStoreSource(structure.build(leaves))
    from loadax.sources.libraries.rows_of_store import StoreSource

    return StoreSource(tree)


def _by_fields(tree: Tree) -> Tree:
    """The tree, or the fields of an array that has some."""
    if not isinstance(tree, np.ndarray) or tree.dtype.names is None:
        return tree
    from loadax.sources.libraries.objects_of_domains import fields_of

    return fields_of(tree)
