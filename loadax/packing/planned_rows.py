"""PlannedRow: a packed row of which only the parts are known. Many are filled at once, where they are stacked."""

from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple, final

import numpy as np

from loadax.packing.documents import PartsRequest, cut_documents
from loadax.packing.form import Column, Form
from loadax.packing.packed_rows import PackedRows
from loadax.plan.pack import PackOptions
from loadax.protocols import Array, Segments


@final
class PlannedRow:
    """A packed row that is not filled yet: a leaf of trees, as `Lane` sees it.

    Args:
        rows: Row of the document of each part.
        columns: For each leaf, the documents of the parts.
        skips: First entry of each part.
        lengths: For each budget, lengths of the parts.
    """

    __slots__ = ("columns", "lengths", "rows", "skips")

    def __init__(
        self,
        rows: list[int],
        columns: list[Column],
        skips: list[int],
        lengths: list[list[int]],
    ):
        self.rows = rows
        self.columns = columns
        self.skips = skips
        self.lengths = lengths


class Packing(NamedTuple):
    """How documents are packed: their form, the options, and the leaves of rows."""

    form: Form
    options: PackOptions
    rows: PackedRows

    def fill(self, planned: Sequence[PlannedRow], out: Sequence[Array]) -> None:
        """Fills rows.

        Args:
            planned: The rows.
            out: An array for each leaf, with as many rows.

        Raises:
            LeafError: When an index is not one of its document; names the row.
        """
        counts = np.array([len(row.skips) for row in planned])
        skips = np.array([skip for row in planned for skip in row.skips])
        lengths = np.array(
            [
                [*chain.from_iterable(row.lengths[budget] for row in planned)]
                for budget in range(self.form.num_lengths)
            ]
        ).T
        widths = self.options.aligned(lengths)
        if self.form.one_value:
            one = np.ones((len(skips), 1), np.int64)
            lengths = np.concatenate([lengths, one], axis=1)
            widths = np.concatenate([widths, one], axis=1)
        places = np.arange(len(skips))
        first = np.repeat(np.cumsum(counts) - counts, counts)
        before = np.cumsum(widths, axis=0) - widths
        begins = before - before[first]
        rows = np.repeat(np.arange(len(planned)), counts)
        segments = [
            Segments(rows, places, skips, begin, length, places - first + 1)
            for begin, length in zip(begins.T, lengths.T, strict=True)
        ]
        columns = [
            [*chain.from_iterable(column)]
            for column in zip(*(row.columns for row in planned), strict=True)
        ]

        def read(requests: Sequence[PartsRequest]) -> list[list[Array | None]]:
            return [
                cut_documents(request, columns, self.form) for request in requests
            ]

        def row_of(part: int) -> int:
            return [*chain.from_iterable(row.rows for row in planned)][part]

        self.rows.read_into(segments, read, row_of, self.rows.boxes, out)
