"""PackedByLeaf: several documents in each row, with a row length, segment ids and positions for each leaf."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol, final

import numpy as np
from numpy.typing import NDArray

from loadax.core.casting import fill_value
from loadax.errors import ArgumentError
from loadax.protocols import ArraySpec, Integers, Tree
from loadax.sources.base import BaseSource, MapChild
from loadax.sources.checks import check_rows
from loadax.sources.io.byte_stream import indices
from loadax.sources.wrappers.packed_rows import Documents, PackedRows, Plan

_ADDED = ("segment_ids", "positions")


class WholeDocuments(Documents, Protocol):
    """Documents that are read whole."""

    def with_source(self, source: BaseSource) -> "WholeDocuments": ...

    def whole(self, numbers: Integers) -> list[NDArray[Any]]:
        """Every leaf of whole documents, concatenated."""
        ...


class PackedDocument(NamedTuple):
    """A document in a packed row: source row, and length and first column by leaf."""

    row: int
    lengths: dict[str, int]
    columns: dict[str, int]

    @property
    def length(self) -> int:
        """Entries of all leaves."""
        return sum(self.lengths.values())


@final
class PackedByLeaf(PackedRows):
    """Row i: the documents of row i of a plan, each leaf padded to a length of its own.

    Examples are dicts of the documents' leaves, and for each leaf `x` of `x_segment_ids` (the number of the document
    within the row, from 1, the same for all leaves; 0: padding) and `x_positions` (from 0 in every segment).

    Args:
        documents: Documents to pack.
        plans: For each leaf, the assignment of its entries to rows; with the same documents in each row.
        seq_lens: Length of a row by leaf, in the order of `plans`.
        described: Everything that determines the rows, as JSON.
        summary: Text for `repr`.
        value: Value of the padding of the documents' leaves; or a dict of values by leaf, 0 for the others.

    Raises:
        ArgumentError: When a leaf of the documents has the name of an added leaf, or `value` does not fit a leaf.
    """

    spec: Tree = None
    runs_python = True  # documents are read one by one

    def __init__(
        self,
        documents: WholeDocuments,
        plans: Sequence[Plan],
        seq_lens: Mapping[str, int],
        described: list[Any],
        summary: str,
        value: Any = 0,
    ):
        super().__init__(documents, plans[0], described, summary)
        self._whole, self._plans, self._seq_lens, self._value = documents, plans, seq_lens, value
        for name in value if isinstance(value, dict) else ():
            if name not in seq_lens:
                raise ArgumentError(
                    f"value has the key {name!r}, which is not a leaf of the documents: {list(seq_lens)}; leave it out",
                    argument="value",
                )
        self.spec = {}
        self._fills = []
        for (name, seq_len), dtype in zip(seq_lens.items(), documents.form.dtypes, strict=True):
            self._fills.append(fill_value(name, value, dtype))
            self.spec[name] = ArraySpec((seq_len,), dtype)
            for added in (f"{name}_{each}" for each in _ADDED):
                if added in seq_lens:
                    raise ArgumentError(
                        f"the documents have a leaf {added!r}, which pack() adds; rename or drop it in a map"
                    )
                self.spec[added] = ArraySpec((seq_len,), np.dtype(np.int32))

    def map_children(self, wrap: MapChild) -> "PackedByLeaf":
        documents = self._whole.with_source(wrap(self.children[0]))
        return PackedByLeaf(documents, self._plans, self._seq_lens, self._described, self._summary, self._value)

    def read(self, rows: Integers) -> Tree:
        rows = check_rows(rows, len(self))
        documents = self._whole.whole(self._plan.segments(rows).documents)
        out: dict[str, NDArray[Any]] = {}
        for name, plan, fill, values in zip(self._seq_lens, self._plans, self._fills, documents, strict=True):
            seq_len, segments = self._seq_lens[name], plan.segments(rows)
            entries = indices(segments.rows * seq_len + segments.columns, segments.lengths)
            positions = indices(np.zeros_like(segments.lengths), segments.lengths)
            for leaf, padding, each in (
                (name, fill, values),
                (f"{name}_segment_ids", 0, np.repeat(segments.numbers, segments.lengths)),
                (f"{name}_positions", 0, positions),
            ):
                out[leaf] = np.full((len(rows), seq_len), padding, self.spec[leaf].dtype)
                out[leaf].reshape(-1)[entries] = each
        return out

    def documents(self, row: int) -> list[PackedDocument]:
        leaves = [plan.segments(check_rows([row], len(self))) for plan in self._plans]
        rows = self._documents.row_of(leaves[0].documents).tolist()
        lengths, columns = (
            [dict(zip(self._seq_lens, values, strict=True)) for values in np.stack(field, axis=1).tolist()]
            for field in ([each.lengths for each in leaves], [each.columns for each in leaves])
        )
        return [PackedDocument(*fields) for fields in zip(rows, lengths, columns, strict=True)]
