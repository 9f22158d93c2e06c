"""PackedRows: what sources of packed rows share, and what they need: documents, and a plan of their rows."""

from collections.abc import Sequence
from typing import Any, Protocol

from numpy.typing import NDArray

from loadax.protocols import Integers, Location, Order, Segments
from loadax.sources.base import BaseSource, Child
from loadax.sources.checks import check_rows
from loadax.sources.wrappers.document_form import Form


class Plan(Protocol):
    """Assignment of documents to rows; see `loadax.plan.pack`."""

    @property
    def size(self) -> int: ...

    @property
    def in_order(self) -> bool:
        """Whether consecutive rows hold consecutive documents."""
        ...

    @property
    def reads_per_document(self) -> float:
        """Reads per document in one pass over the rows, if documents are read whole."""
        ...

    def first_documents(self, rows: Integers) -> Integers:
        """First document of each row, int64[n]."""
        ...

    def segments(self, rows: Integers) -> Segments: ...


class Documents(Protocol):
    """The documents to pack, numbered as in the plan."""

    @property
    def size(self) -> int: ...

    @property
    def order(self) -> Order:
        """Order of the documents in the source."""
        ...

    @property
    def source(self) -> BaseSource:
        """Source of the documents."""
        ...

    @property
    def maps(self) -> Sequence[Any]:
        """Maps of the documents."""
        ...

    def with_source(self, source: BaseSource) -> "Documents":
        """The same documents, read from another source."""
        ...

    @property
    def form(self) -> Form: ...

    @property
    def flat(self) -> bool:
        """Whether parts of documents can be read without the rest."""
        ...

    @property
    def concurrent_reads(self) -> int: ...

    @property
    def depth(self) -> int:
        """Number of maps of the documents."""
        ...

    def parts(
        self, numbers: Integers, skips: Integers, lengths: Integers, wanted: Sequence[bool]
    ) -> list[NDArray[Any] | None]:
        """Reads parts of documents, concatenated, for every wanted leaf."""
        ...

    def row_of(self, numbers: Integers) -> Integers:
        """Rows of the source that documents come from, int64[n]."""
        ...


class PackedRows(BaseSource):
    """Row i: the documents of row i of a plan.

    Args:
        documents: Documents to pack.
        plan: Assignment of documents to rows.
        described: Everything that determines the rows, as JSON.
        summary: Text for `repr`.
    """

    owns_memory = True

    def __init__(self, documents: Documents, plan: Plan, described: list[Any], summary: str):
        self._documents, self._plan, self._described, self._summary = documents, plan, described, summary

    def __len__(self) -> int:
        return self._plan.size

    def __repr__(self) -> str:
        return self._summary

    @property
    def children(self) -> Sequence[Child]:
        documents = self._documents
        times = self._plan.reads_per_document * documents.size / max(1, len(documents.source))
        return (Child("", documents.source, None, times),)

    @property
    def order(self) -> Order:
        """Order of the packed documents in the source."""
        return self._documents.order

    def rows_below(self, rows: Integers) -> tuple[Integers, Integers]:
        segments = self._plan.segments(rows)
        return segments.rows, self._documents.row_of(segments.documents)

    @property
    def concurrent_reads(self) -> int:
        return self._documents.concurrent_reads

    @property
    def num_maps(self) -> int:
        return self._documents.depth + 1

    def describe(self) -> list[Any]:
        return [self._described]

    def locate(self, row: int) -> list[Location]:
        """Files of the documents in a packed row, as far as they are known."""
        _, rows = self.rows_below(check_rows([row], len(self)))
        return [location for inner in rows.tolist() for location in self._documents.source.locate(inner)]
