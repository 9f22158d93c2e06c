"""Specs of a batch, generated leaves included. Without JAX, so that worker processes can import it."""

from dataclasses import dataclass
from typing import Any, NamedTuple, final

import numpy as np

from loadax.core.tree import Structure
from loadax.protocols import ArraySpec

MASK = "mask"
"""The key of the bool leaf that says which rows of a padded batch are real."""

KEY = "key"
"""The key of the leaf with the data of a JAX random key for every row."""

ASKED_BY = {MASK: "remainder='pad'", KEY: "key_seed="}
"""By which argument a leaf that the loader makes is asked for."""


class BatchLeaf(NamedTuple):
    """One leaf of the batch.

    `source` is its number among the leaves of an example; None for one that the loader makes, whose key `made` then is.
    `spec` is what the dataset gives for a row, `dtype` what the device gets.
    """

    path: str
    source: int | None
    spec: ArraySpec
    dtype: np.dtype[Any]
    made: str = ""


@final
@dataclass(frozen=True)
class BatchSpec:
    """What a batch looks like, wherever it is: its leaves in JAX's order."""

    structure: Structure
    leaves: tuple[BatchLeaf, ...]
