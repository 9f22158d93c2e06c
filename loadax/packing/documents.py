"""Documents: the rows of a dataset that are packed, as leaves of any length."""

import copy
import threading
from collections.abc import Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass
from typing import Any, NamedTuple, final

import numpy as np

from loadax.core.formatting import name_of
from loadax.errors import ArgumentError, LeafError, SourceError
from loadax.kept.kept_pass import part_size
from loadax.packing.form import Column, Form, find_form
from loadax.plan.order import check_fixed_rows
from loadax.plan.pack import PackOptions
from loadax.protocols import Array, Integers, Order, Visits
from loadax.reader import Reader
from loadax.sources.base import BaseSource
from loadax.transforms import BatchMap

_INFINITE = 1 << 40  # documents, more than any dataset has
DOCUMENTS_PER_READ = 512  # documents per read of one thread
_LENGTHS_PER_CALL = 1 << 20  # rows per request for known lengths


class PartsRequest(NamedTuple):
    """Parts of documents to read: numbers of the documents, first entries, lengths, and which leaves are wanted."""

    numbers: Integers
    skips: Integers
    lengths: Integers
    wanted: Sequence[bool]


def check_documents(reader: Reader, order: Order) -> None:
    """Checks that rows can be packed, without reading one.

    Raises:
        ArgumentError: If there are none, or infinitely many, or a map is random.
    """
    if not order.size:
        raise ArgumentError(
            "pack() needs documents, but the dataset has no rows; check its source "
            "or slice"
        )
    if order.size >= _INFINITE:
        raise ArgumentError(
            "pack() of a dataset that never ends; mix with stop='first' or 'all', or "
            "pack first"
        )
    check_fixed_rows(order, "pack()")
    if reader.traits.random:
        raise ArgumentError(
            "pack() reads documents once; call pack() first, then the random map, or "
            "one with_epoch=True"
        )
    refuse_batch_maps(reader)


@final
class Documents:
    """The documents at the positions of an order, as in epoch 0, numbered from 0.

    Args:
        reader: Reader of the documents.
        order: Order of the documents.
        options: How they are packed. With several budgets, documents are read whole.
        key: Identifier of the maps in an index; None: their fingerprints.

    Raises:
        LeafError: If a record is not a document. The message names its row.
    """

    def __init__(
        self, reader: Reader, order: Order, options: PackOptions, key: str | None
    ):
        self.reader = reader
        self.order = order
        self.size = order.size
        self.key = key
        self.traits = reader.traits
        visits = (
            self.visits(np.array([number]))
            for number in range(min(self.size, DOCUMENTS_PER_READ))
        )
        found = find_form(
            ((self.reader.examples(each)[0], int(each.rows[0])) for each in visits),
            options,
        )
        assert found is not None, "a dataset without rows is refused"
        self.form: Form = found[0]
        self.options: PackOptions = found[1]  # with the budgets of all leaves
        self.flat = (
            reader.traits.reads_parts
            and not options.by_leaf
            and not self.form.one_value
        )
        # int64[n, lengths]: expected lengths of documents that are read whole; a change is an error.
        self.known: Integers | None = None

    def with_source(self, source: BaseSource) -> "Documents":
        other = copy.copy(self)
        other.reader = self.reader.with_source(source)
        return other

    def visits(self, numbers: Integers) -> Visits:
        """Visits of the documents with these numbers."""
        return self.order.visits(np.zeros_like(numbers), numbers)

    def row_of(self, numbers: Integers) -> Integers:
        return self.visits(numbers).rows

    def columns(self, numbers: Integers) -> list[Column]:
        """The leaves of these documents, read whole, by leaf. They must be neither written to nor kept."""
        visits = self.visits(numbers)
        return self.form.columns(
            self.reader.lent_examples(visits), visits.rows.tolist()
        )

    def parts(self, requests: Sequence[PartsRequest]) -> list[list[Array | None]]:
        """Reads parts of documents, concatenated, for every wanted leaf of each request."""
        if self.flat:
            read = self.reader.source.read_parts
            return [
                read(self.row_of(numbers), skips, lengths, wanted)
                if any(wanted)
                else [None] * len(wanted)
                for numbers, skips, lengths, wanted in requests
            ]
        needed = [request.numbers for request in requests if any(request.wanted)]
        numbers = np.unique(np.concatenate([np.empty(0, np.int64), *needed]))
        if len(numbers):
            columns = self.columns(numbers)
        else:
            columns = [[]] * len(self.form.dtypes)
        self._check_unchanged(numbers, columns)
        return [
            cut_documents(
                request._replace(numbers=np.searchsorted(numbers, request.numbers)),
                columns,
                self.form,
            )
            for request in requests
        ]

    def known_lengths(self) -> Integers | None:
        """int64[n, 1]: the length of every document, if the source knows it without reading them."""
        if self.options.by_leaf:
            return None
        out = np.empty(self.size, np.int64)
        for start in range(0, self.size, _LENGTHS_PER_CALL):
            numbers = np.arange(start, min(start + _LENGTHS_PER_CALL, self.size))
            lengths = self.reader.lengths(self.row_of(numbers))
            if lengths is None:
                return None
            out[numbers] = lengths
        if (out < 0).any():
            wrong = np.flatnonzero(out < 0)[:1]
            what = (
                f"{self.reader.source.type_name}.lengths gave {out[wrong][0]} for "
                f"row {self.row_of(wrong)[0]}"
            )
            raise SourceError(
                f"{what}; return the length of each document, 0 or more"
            )
        return out[:, None]

    def measure(self, numbers: Integers) -> Integers:
        """int64[n, budgets]: lengths of these documents, which are read."""
        return self.form.lengths(self.columns(numbers))

    def identity(self) -> dict[str, Any]:
        """The facts that identify these documents, for an index; see `loadax.packing.documents_identity`."""
        from loadax.packing.documents_identity import documents_identity

        return documents_identity(self)

    def _check_unchanged(self, numbers: Integers, columns: Sequence[Column]) -> None:
        if self.known is None:
            return
        known = self.known[numbers]
        found = self.form.lengths(columns)
        for index in np.flatnonzero((found != known).any(axis=1))[:1]:
            row, now, before = (
                self.row_of(numbers[[index]])[0],
                *(str(each[index].tolist())[1:-1] for each in (found, known)),
            )
            raise LeafError(
                f"row {row} has length {now}, but had length {before} when it was "
                "packed; data and maps must return the same on every read: call "
                "pack() again, and apply random maps after it"
            )


@final
@dataclass(frozen=True)
class LengthWork:
    """Measurement of the lengths of documents; see `loadax.kept.pass_work.Work`.

    Args:
        documents: The documents.
    """

    documents: Documents
    label: str = "reading lengths"
    unit: str = "document"

    @property
    def parts(self) -> list[range]:
        """The documents of each part."""
        documents = range(self.documents.size)
        size = part_size(len(documents), DOCUMENTS_PER_READ)
        return [documents[begin : begin + size] for begin in documents[::size]]

    @property
    def sizes(self) -> list[int]:
        return list(map(len, self.parts))

    def compute(self, part: int, over: threading.Event) -> dict[str, Array]:
        """Lengths of the documents of a part."""
        numbers = np.array(self.parts[part])
        lengths = []
        for low in range(0, len(numbers), DOCUMENTS_PER_READ):
            if over.is_set():
                raise CancelledError
            lengths.append(
                self.documents.measure(numbers[low : low + DOCUMENTS_PER_READ])
            )
        return {"lengths": np.concatenate(lengths)}


def refuse_batch_maps(reader: Reader) -> None:
    """Refuses documents that are mapped in batches.

    Raises:
        ArgumentError: When they are.
    """
    for transform in reader.maps:
        if isinstance(transform, BatchMap):
            what = (
                f"map_batch {name_of(transform.function)} needs rows of equal shape"
            )
            raise ArgumentError(
                f"{what}, but documents differ in length; use map before pack"
            )


def cut_documents(
    request: PartsRequest, columns: Sequence[Column], form: Form
) -> list[Array | None]:
    """Parts of documents, concatenated, for every wanted leaf of a request.

    Args:
        request: The parts; its numbers are indices of documents in the columns.
        columns: Leaves of the documents, by leaf.
        form: Form of the documents.
    """
    numbers = request.numbers.tolist()
    total = int(request.lengths.sum())
    out = list[Array | None]()
    for column, dtype, shape, want in zip(
        columns, form.dtypes, form.shapes, request.wanted, strict=True
    ):
        parts = [column[number] for number in numbers if want]
        if sum(map(len, parts)) != total:  # not whole documents
            bounds = zip(
                request.skips.tolist(),
                (request.skips + request.lengths).tolist(),
                strict=True,
            )
            parts = [
                part[low:high]
                for part, (low, high) in zip(parts, bounds, strict=False)
            ]
        out.append(
            np.concatenate(parts or [np.empty((0, *shape), dtype)]) if want else None
        )
    return out
