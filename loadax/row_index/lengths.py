"""Lengths of a leaf in the rows of a run of a pass."""

import numpy as np

from loadax.core.leaf_names import path_of, value_at
from loadax.errors import LeafError
from loadax.protocols import Integers
from loadax.row_index.scan import RowSpan


def lengths_in(verb: str, leaf: str, span: RowSpan) -> Integers:
    """Lengths of a leaf in the rows of a span, int64[n].

    Args:
        verb: Name of the verb or argument that asks, for errors.
        leaf: Name of the leaf.
        span: The rows.

    Raises:
        LeafError: If a row does not have the leaf, or it is a single number; names the row.
    """
    found = []
    for row, example in span.examples():
        try:
            path = path_of(example, leaf)
            found.append(
                len(example[leaf] if path is None else value_at(example, path))
            )
        except (TypeError, KeyError, IndexError) as error:
            raise LeafError(
                f"{verb}: row {row} has no leaf {leaf!r} with a length; pass the "
                "name of an array"
            ) from error
    return np.array(found, np.int64)
