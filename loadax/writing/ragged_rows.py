"""Ragged rows: their form, found by a sample of rows, and their parts, read as flat arrays of entries.

See `loadax.sources.tokens.ragged` for the store. A row is an array, or a pytree of arrays; lists of numbers count as
arrays. Leaves that have one shape in all rows of the sample are arrays of rows, as in other stores.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from loadax.core.spec import array_or_object, spec_of
from loadax.core.tree import Structure, flatten
from loadax.errors import LeafError
from loadax.protocols import Array, ArraySpec, Integers, Tree
from loadax.writing.chunk_layout import Layout, Sizes, plan_ragged_layout
from loadax.writing.written_rows import Written

_SAMPLE = 32  # rows that tell which leaves are ragged, and how large parts are


@final
@dataclass(frozen=True)
class RaggedRows:
    """Rows of a dataset, some leaves of which are ragged.

    Args:
        rows: The rows.
        structure: Structure of an example.
        layout: Layout of the store: the leaves in their order, then the lengths.
    """

    rows: Written
    structure: Structure
    layout: Layout

    def describe(self) -> Any:
        """Everything that determines the rows, as JSON, without what takes mapping a row."""
        return self.rows.described(self.structure.paths, self.rows.sample_unmapped())

    def read(self, positions: Integers) -> list[list[Array]]:
        """Reads the leaves of rows.

        Raises:
            LeafError: When a row has another form than those of the sample; names the row and the leaf.
        """
        examples = self.rows.examples(positions)
        return [
            self._leaves(*example)
            for example in zip(examples, positions.tolist(), strict=True)
        ]

    def regions(self, part: int, lengths: Integers) -> list[Any]:
        """The region of each array, but the lengths, that a part fills.

        Args:
            part: Number of the part.
            lengths: Lengths of its rows, int64[rows, ragged leaves].
        """
        totals = iter(lengths.sum(axis=0).tolist())
        rows = slice(*self.layout.part(part))
        return [
            (part, slice(0, array.blocks(next(totals))))
            if array.shard_blocks
            else rows
            for array in self.layout.arrays[:-1]
        ]

    def boxes(
        self, part: int, rows: Sequence[list[Array]]
    ) -> list[tuple[Any, Array]]:
        """The region of each array that a part fills, and its values.

        Args:
            part: Number of the part.
            rows: The leaves of its rows.
        """
        columns = list(zip(*rows, strict=True))
        arrays = self.layout.arrays[:-1]
        ragged = [
            column
            for column, array in zip(columns, arrays, strict=True)
            if array.shard_blocks
        ]
        lengths = np.array([list(map(len, column)) for column in ragged], np.int64).T
        values = [
            array.in_blocks(column) if array.shard_blocks else np.stack(column)
            for column, array in zip(columns, arrays, strict=True)
        ]
        regions = [*self.regions(part, lengths), slice(*self.layout.part(part))]
        return list(zip(regions, [*values, lengths], strict=True))

    def _leaves(self, example: Tree, position: int) -> list[Array]:
        leaves, structure = _flatten(example)
        if structure != self.structure:
            raise LeafError(
                f"row {self.rows.row_of(position)} has the leaves {structure.paths}, "
                f"others have {self.structure.paths}; return the same leaves for "
                "every row"
            )
        for index, (leaf, array) in enumerate(
            zip(leaves, self.layout.arrays, strict=False)
        ):
            if array.shard_blocks:
                if leaf.ndim:
                    shape = leaf.shape[1:]
                else:
                    shape = None
            else:
                shape = leaf.shape
            if not leaf.size and shape == array.spec.shape:
                # NumPy makes an empty list float64
                leaves[index] = leaf.astype(array.spec.dtype)
            elif (
                shape != array.spec.shape
                or leaf.dtype.newbyteorder("=") != array.spec.dtype
            ):
                expected = f"{array.spec.dtype}{['any length'] * bool(array.shard_blocks) + list(array.spec.shape)}"
                raise LeafError(
                    f"row {self.rows.row_of(position)}: leaf "
                    f"{structure.paths[index] or 'of the example'} is "
                    f"{leaf.dtype}{list(leaf.shape)}, in other rows it is "
                    f"{expected}; cast or pad it in a map, or pass ragged=True if "
                    "the lengths of all leaves may differ"
                )
        return leaves


def find_ragged(
    rows: Written, ragged: bool | None, sizes: Sizes
) -> RaggedRows | None:
    """The rows as `RaggedRows`; None if a sample of them has leaves of one shape, so that they can be stacked.

    Args:
        rows: The rows.
        ragged: Whether all leaves with a dimension are ragged; None: those whose lengths differ in the sample.
        sizes: Sizes of chunks and shards.
    """
    if (
        not len(rows)
        or ragged is False
        or (ragged is None and not rows.reader.ragged)
    ):
        return None
    sample = list(map(_flatten, rows.sample(_SAMPLE)))
    structure = sample[0][1]
    if any(other != structure for _, other in sample):
        return None
    columns = zip(*(leaves for leaves, _ in sample), strict=True)
    specs, lengths = zip(
        *(_spec_and_length(column, ragged is True) for column in columns), strict=True
    )
    if not any(length is not None for length in lengths):
        return None
    return RaggedRows(
        rows,
        structure,
        plan_ragged_layout(structure.build(specs), len(rows), lengths, sizes),
    )


def _spec_and_length(
    column: Sequence[Array], ragged: bool
) -> tuple[ArraySpec, float | None]:
    """The spec of a leaf by its values in a sample, and its mean length; None if it is not ragged."""
    spec = spec_of(next((leaf for leaf in column if leaf.size), column[0]))
    if not all(leaf.ndim for leaf in column) or (
        not ragged and len(set(map(len, column))) == 1
    ):
        return spec, None
    length = sum(map(len, column)) / len(column)
    return ArraySpec((round(length), *spec.shape[1:]), spec.dtype), length


def _flatten(example: Tree) -> tuple[list[Array], Structure]:
    leaves, structure = flatten(example, is_leaf=_is_numbers)
    return [array_or_object(leaf) for leaf in leaves], structure


def _is_numbers(node: Any) -> bool:
    """Whether a node is a list of numbers, as tokenizers return, or an empty one."""
    return type(node) is list and all(
        isinstance(entry, int | float | np.generic) for entry in node[:1]
    )
