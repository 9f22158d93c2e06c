"""BlockSpec: lengths, parts and columns of the blocks of rows that lanes yield with `batched=True`."""

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any, final

import numpy as np

from loadax.core.arguments import shown
from loadax.core.spec import check_leaves, flatten_spec
from loadax.core.tree import flatten
from loadax.errors import LeafError
from loadax.protocols import Array, Integers, Tree


@final
class BlockSpec:
    """Spec of the blocks of a stream.

    Args:
        spec: Spec of a row.
    """

    def __init__(self, spec: Tree):
        self._specs, self._structure = flatten_spec(spec)
        self._keys = self._structure.keys if self._structure.flat else ()
        self._first = self._keys[0] if self._keys else None

    def length(self, block: Any, name: Callable[[], str]) -> int:
        """Number of rows of a block, which is not checked any further.

        Args:
            block: What a lane gave.
            name: Returns the name of the block, for errors.

        Raises:
            LeafError: If it is not a tree of arrays that have rows.
        """
        if type(block) is dict and type(leaf := block.get(self._first)) is np.ndarray and leaf.ndim:
            return len(leaf)
        leaves = flatten(block)[0]
        if not leaves or any(not hasattr(leaf, "shape") or not leaf.shape for leaf in leaves):
            what = f"{name()}: batched=True, but this item is {shown(block)}"
            raise LeafError(f"{what}; yield arrays with rows as first dimension, or leave out batched=True")
        return len(leaves[0])

    def leaves(self, block: Any, name: str) -> list[Array]:
        """Leaves of a block.

        Raises:
            LeafError: If it is not a tree of arrays of one length as specified; names the block.
        """
        length = self.length(block, lambda: name)
        return flatten(check_leaves(block, length, self._specs, self._structure, f"{name},"))[0]

    def cut(self, leaves: Sequence[Array], rows: slice | Integers) -> Tree:
        """A block of some rows of another one's leaves."""
        return self._structure.build(leaf[rows] for leaf in leaves)

    def join(self, blocks: Sequence[Tree], rows: Sequence[str], out: Sequence[Array]) -> None:
        """Joins blocks.

        Args:
            blocks: The blocks.
            rows: Names of all their rows, for errors.
            out: An array for each leaf, of as many rows.

        Raises:
            LeafError: As for `leaves`.
        """
        if self._join_plain(blocks, out):
            return
        begin, checked = 0, []
        for block in blocks:
            leaves = self.leaves(block, rows[begin])
            checked.append(leaves)
            begin += len(leaves[0])
        for into, column in zip(out, zip(*checked, strict=True), strict=True):
            np.concatenate(column, out=into)

    def _join_plain(self, blocks: Sequence[Tree], out: Sequence[Array]) -> bool:
        """Joins leaf by leaf on a fast path; returns False if the blocks must be checked one by one."""
        if not self._keys or {*map(type, blocks)} != {dict} or {*map(len, blocks)} != {len(out)}:
            return False
        lengths = None
        try:
            for key, into in zip(self._keys, out, strict=True):
                column = list(map(itemgetter(key), blocks))
                if {*map(type, column)} != {np.ndarray} or into.dtype.hasobject:
                    return False
                if lengths is None:
                    lengths = list(map(len, column))
                elif lengths != list(map(len, column)):
                    return False
                # `concatenate` checks all other dimensions and, with casting="no", the dtypes.
                np.concatenate(column, out=into, casting="no")
        except (KeyError, TypeError, ValueError):
            return False
        return True
