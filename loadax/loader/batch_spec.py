"""Spec of a batch with its generated leaves. Does not import JAX, so that worker processes can use it."""

from typing import Any, NamedTuple

import numpy as np

from loadax.core.tree import Structure, flatten
from loadax.protocols import Array, ArraySpec

# Key of the bool leaf that is False for padding.
MASK = "mask"

# Key of the leaf with the data of a JAX random key per row.
KEY = "key"

# Argument of `Dataloader` that adds each generated leaf.
ADDED_BY = {MASK: "remainder='pad'", KEY: "key_seed="}


class BatchLeaf(NamedTuple):
    """One leaf of the batch.

    Args:
        path: Path of the leaf.
        source: Index among the leaves of an example; None for a generated leaf.
        spec: Shape and dtype of one row in the dataset.
        dtype: Dtype on the device.
        generated: Key of a generated leaf; else empty.
        missing: Padding of a leaf of objects: "" of strings, b"" of bytes, None of others.
    """

    path: str
    source: int | None
    spec: ArraySpec
    dtype: np.dtype[Any]
    generated: str = ""
    missing: str | bytes | None = None

    def padding(
        self, count: int, shape: tuple[int, ...], dtype: np.dtype[Any]
    ) -> Array:
        """`count` rows of this shape and dtype in place of missing ones: zeros, empty strings, None."""
        if dtype.hasobject:
            return np.full((count, *shape), self.missing, object)
        return np.zeros((count, *shape), dtype)


class BatchSpec(NamedTuple):
    """Structure of a batch and its leaves in JAX's order, independent of any mesh."""

    structure: Structure
    leaves: tuple[BatchLeaf, ...]


# Spec of batches without leaves.
NO_LEAVES = BatchSpec(flatten({})[1], ())
