"""Converts arrays and columns of other libraries to NumPy, and refuses what is neither."""

from typing import Any

import numpy as np

from loadax.core.arguments import shown
from loadax.core.formatting import type_text
from loadax.core.tree import refuse_node
from loadax.errors import SourceError
from loadax.protocols import Array
from loadax.sources.frame_columns import column_array, is_column, is_frame
from loadax.sources.library import comes_from


def is_array(leaf: Any) -> bool:
    """Whether a leaf is an array in memory: of NumPy (also memory-mapped), JAX, torch or TensorFlow.

    `__array__` alone does not prove that: lazily opened stores have it and would be read whole, and data frames have it
    and would become one array of one dtype.
    """
    known = (("jax", "Array"), ("torch", "Tensor"), ("tensorflow", "Tensor"))
    return isinstance(leaf, np.ndarray | np.generic) or any(
        comes_from(leaf, *kind) for kind in known
    )


def library_array(leaf: Any, name: str) -> Array:
    """A leaf that is not an array of NumPy, as one.

    Args:
        leaf: The leaf.
        name: Name of the leaf, for errors.

    Raises:
        SourceError: When it is not an array in memory, or can't be converted; says what to pass.
        LeafError: When it is a pytree to JAX alone.
    """
    if is_column(leaf):
        return column_array(leaf, name)
    if not is_array(leaf):
        refuse_node(leaf, name)
        if is_frame(leaf):
            raise SourceError(
                f"{name} is {type_text(leaf)}, whose columns may differ in dtype; "
                "open it as a table: loadax.as_dataset(frame)"
            )
        if hasattr(leaf, "__array__"):
            raise SourceError(
                f"{name} is {type_text(leaf)}, which would be read into memory "
                "whole; if it fits in memory, pass numpy.asarray of it; if its "
                "entries are rows, loadax.from_source reads them one by one"
            )
        is_sparse = hasattr(leaf, "toarray")
        if is_sparse:
            remedy = (
                "the array of it: matrix.toarray(), or rows that stay sparse beside "
                "arrays: loadax.from_sparse(matrix.tocsr(), obs={'y': y})"
            )
        elif isinstance(leaf, str | bytes):
            remedy = (
                "a list of texts as numpy.array(texts), and name its leaf in "
                "Dataloader(…, host_leaves=name), since devices hold numbers"
            )
        else:
            remedy = (
                "NumPy arrays whose dim 0 counts rows, such as numpy.array(values) of a "
                "list"
            )
        raise SourceError(
            f"{name} is {type(leaf).__name__} {shown(leaf)}, not an array; pass "
            f"{remedy}"
        )
    try:
        return np.asanyarray(leaf)
    except (
        TypeError,
        RuntimeError,
    ) as error:  # on another device, of a dtype that NumPy lacks, or with a gradient
        raise SourceError(
            f"{name} is {type_text(leaf)} that NumPy can't convert ({error}); "
            "convert it first, a torch tensor by "
            "tensor.detach().cpu().float().numpy()"
        ) from error
