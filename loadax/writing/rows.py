"""Rows that `write_zarr` writes: a protocol, and the mapped rows of a dataset with the facts that identify them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, final

import numpy as np

from loadax.core.fingerprint import fingerprint
from loadax.core.formatting import name_of
from loadax.core.spec import describe_spec, leaf_arrays
from loadax.protocols import Integers, Order, Tree
from loadax.reader import Examples, Reader
from loadax.seeds import ORDER_VERSION
from loadax.sources.base import Attributes
from loadax.writing.identity import digest_of, identify, sample_size, spread

_SAMPLE = 64  # rows whose contents identify the data of a store


class Rows(Protocol):
    """Rows at positions, with an identity, so that a store is never resumed with different data."""

    @property
    def spec(self) -> Tree:
        """Tree of `ArraySpec`s of one example."""
        ...

    @property
    def attributes(self) -> Attributes:
        """What the numbers of leaves mean."""
        ...

    def __len__(self) -> int: ...

    def read(self, positions: Integers) -> Tree:
        """Reads the examples at `positions` (int64[n]) as a tree of arrays, rows first; called concurrently."""
        ...

    def describe(self) -> Any:
        """Everything that determines the rows, as JSON: equal descriptions mean equal rows."""
        ...


@final
@dataclass(frozen=True)
class Written:
    """The examples at the positions of an order, as in epoch 0. Implements `Rows`.

    The functions of maps are part of its description, as far as their fingerprints differ.

    Args:
        reader: Reader of the examples.
        order: Order of the positions.
        stored: Reads examples that were read already, and stored; None: `reader` reads them.
    """

    reader: Reader
    order: Order
    stored: Callable[[Integers], Tree] | None = None

    @property
    def spec(self) -> Tree:
        return self.reader.spec

    @property
    def attributes(self) -> Attributes:
        return self.reader.traits.attributes

    def __len__(self) -> int:
        return self.order.size

    def read(self, positions: Integers) -> Tree:
        if self.stored is not None:
            return self.stored(positions)
        return self.reader.read_visits(self.order.visits(np.zeros_like(positions), positions))

    def describe(self) -> Any:
        functions = [
            f"{name_of(transform.function).split(' ')[0]} {fingerprint(transform.function).digest}"
            for transform in self.reader.maps
        ]
        return {
            "order version": ORDER_VERSION,
            "order": self.order.describe(),
            "maps": self.reader.describe(),
            "examples": describe_spec(self.spec),
            "functions": functions,
            "sample": self._sample(),
            **identify(self.reader.source),
        }

    def _sample(self) -> str:
        """A hash of some rows before the maps and of one row after them.

        It changes with the data and with the result of a map.
        """
        positions = spread(len(self), sample_size(self.reader.source, self.reader.source_row_bytes, _SAMPLE))
        read = self.reader.read_source(self.order.visits(np.zeros_like(positions), positions))
        before = read.items if isinstance(read, Examples) else [read]
        trees = (*before, self.read(positions[len(positions) // 2 :][:1]))
        return digest_of(leaf for tree in trees for leaf in leaf_arrays(tree))
