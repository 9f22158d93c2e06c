"""Blocks of rows, which lanes yield with `batched=True`: their checks, their parts, and their rows one by one."""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, final

import numpy as np

from loadax.core.arguments import shown
from loadax.core.formatting import count_text
from loadax.core.spec import check_leaves, flatten_spec
from loadax.core.tree import Structure, flatten
from loadax.errors import LeafError
from loadax.protocols import Array, Integers, Tree

_REMEDY = (
    "yield trees of arrays whose first dimension is rows, or leave out batched=True"
)


class BlockPart(NamedTuple):
    """Consecutive rows of a block.

    Args:
        leaves: Leaves of the block.
        begin: First of its rows.
        end: Index after the last one.
    """

    leaves: Sequence[Array]
    begin: int
    end: int


def rows_of_block(block: Any, name: str) -> tuple[list[Array], Structure]:
    """Leaves and structure of a block.

    Raises:
        LeafError: If it is not a tree of arrays of one length; names the block and the leaf.
    """
    leaves, structure = flatten(block)
    if not leaves:
        raise LeafError(
            f"{name}: batched=True, but this item is {shown(block)}; {_REMEDY}"
        )
    for path, leaf in zip(structure.paths, leaves, strict=True):
        subject = f"{name}: leaf {path or 'of the block'}"
        if not getattr(leaf, "shape", ()):
            raise LeafError(
                f"{subject} is {shown(leaf)}, which has no rows, but batched=True; "
                f"{_REMEDY}"
            )
        if len(leaf) != len(leaves[0]):
            first = structure.paths[0]
            raise LeafError(
                f"{subject} has {count_text(len(leaf), 'row')}, but leaf {first} has "
                f"{len(leaves[0])}; yield leaves of one length"
            )
    return [np.asanyarray(leaf) for leaf in leaves], structure


@final
class BlockSpec:
    """Spec of the blocks of a stream.

    Args:
        spec: Spec of a row.
    """

    def __init__(self, spec: Tree):
        self._specs, self._structure = flatten_spec(spec)
        # Key, dtype and shape of each leaf. None: blocks are not flat dicts.
        self._expected: list[tuple[str, np.dtype[Any], tuple[int, ...]]] | None = None
        if self._structure.flat and self._structure.keys:
            self._expected = [
                (key, leaf.dtype, leaf.shape)
                for key, leaf in zip(self._structure.keys, self._specs, strict=True)
            ]

    def plain_leaves(self, block: Any) -> list[Array] | None:
        """Leaves of a flat dict of arrays as specified, of one length. None: it is another block.

        Small blocks come by the thousand, so this does as little as it can.
        """
        expected = self._expected
        if expected is None or type(block) is not dict or len(block) != len(expected):
            return None
        leaves: list[Array] = []
        rows = -1
        for key, dtype, shape in expected:
            leaf = block.get(key)
            if type(leaf) is not np.ndarray or leaf.dtype != dtype:
                return None
            count, *row = leaf.shape or (-2,)
            if tuple(row) != shape or (count != rows and leaves):
                return None
            rows = count
            leaves.append(leaf)
        if rows < 0:
            return None
        return leaves

    def leaves(self, block: Any, name: str) -> Sequence[Array]:
        """Leaves of a block.

        Args:
            block: An item of a lane.
            name: Name of the block, for errors.

        Raises:
            LeafError: If it is not a tree of arrays of one length as specified; names block and leaf.
        """
        count = len(rows_of_block(block, name)[0][0])
        return flatten(
            check_leaves(block, count, self._specs, self._structure, f"{name},")
        )[0]


def join_parts(parts: Sequence[BlockPart], out: Sequence[Array]) -> None:
    """Joins parts of blocks.

    Args:
        parts: The parts, which were checked.
        out: An array for each leaf, of as many rows.
    """
    for index, into in enumerate(out):
        np.concatenate(
            [leaves[index][begin:end] for leaves, begin, end in parts], out=into
        )


def choose_rows(parts: Sequence[BlockPart], rows: Integers) -> list[BlockPart]:
    """Rows of parts.

    Args:
        parts: Parts of the blocks of one lane, in order.
        rows: Indices of rows among those of all parts, ascending, int64[n].
    """
    chosen = []
    begin = 0
    for part in parts:
        end = begin + part.end - part.begin
        inside = (
            rows[np.searchsorted(rows, begin) : np.searchsorted(rows, end)]
            - begin
            + part.begin
        )
        if len(inside):
            chosen.append(
                BlockPart([leaf[inside] for leaf in part.leaves], 0, len(inside))
            )
        begin = end
    return chosen


@final
class BlockRows(Iterator[Tree]):
    """The rows of the blocks of a lane, one by one. Its state is that of the lane before the block, and a number.

    Args:
        blocks: Blocks of a lane.
        name: Name of the lane.
        methods: What gives the state of `blocks` and sets it.
    """

    def __init__(
        self,
        blocks: Iterator[Any],
        name: str,
        methods: tuple[Callable[[], Any], Callable[[Any], Any]] | None,
    ):
        self._blocks = blocks
        self._name = name
        self._methods = methods
        self._block: tuple[list[Array], Structure] = [], flatten(None)[1]
        self._length = self._row = 0  # of the block; the next one
        self._before: Any = None  # state of `blocks` before the block

    def __next__(self) -> Tree:
        while self._row == self._length:
            if self._methods is not None:
                # the lane may change it
                self._before = copy.deepcopy(self._methods[0]())
            block = next(self._blocks)
            self._block = rows_of_block(block, f"{self._name}: a block")
            self._length = len(self._block[0][0])
            self._row = 0
        leaves, structure = self._block
        row = structure.build(
            np.array(leaf[self._row]) if leaf.ndim > 1 else leaf[self._row]
            for leaf in leaves
        )
        self._row += 1
        return row

    def get_state(self) -> dict[str, Any] | None:
        assert self._methods is not None
        if self._row == self._length:
            state = self._methods[0]()
            if state is None:
                return None
            return {"block": state, "row": 0}
        if self._before is None:
            return None
        return {"block": self._before, "row": self._row}

    def set_state(self, state: Mapping[str, Any]) -> None:
        assert self._methods is not None
        self._methods[1](state["block"])
        self._length = self._row = 0
        for _ in range(state["row"]):
            next(self)


@final
class FilledRows(Iterator[Tree]):
    """The rows of a lane that yields rows to be filled, one by one. Its state is that of the lane, if that has one.

    Args:
        items: What the lane yields.
        filled: Returns the row of an item.
    """

    def __init__(self, items: Iterator[Any], filled: Callable[[Any], Tree]):
        self._items: Any = items
        self._filled = filled

    def __next__(self) -> Tree:
        return self._filled(next(self._items))

    def get_state(self) -> Any:
        return self._items.get_state()

    def set_state(self, state: Any) -> None:
        self._items.set_state(state)


def block_rows(
    blocks: Iterator[Any],
    name: str,
    methods: tuple[Callable[[], Any], Callable[[Any], Any]] | None,
) -> Iterator[Tree]:
    """The rows of the blocks of a lane, which has states if `methods` are given."""
    rows = BlockRows(blocks, name, methods)
    if methods is not None:
        return rows
    return (row for row in rows)
