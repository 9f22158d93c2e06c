"""PackedSource: several documents in each row of fixed length, with segment ids and positions."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from loadax.core.casting import fill_value
from loadax.core.tree import flatten
from loadax.errors import ArgumentError
from loadax.packing.documents import Documents, PartsRequest
from loadax.plan.pack import ALL, Packed
from loadax.protocols import ArraySpec, Columns, Integers, Location, Order, Segments, Tree
from loadax.sources.base import BaseSource, Child, MapChild, Traits
from loadax.sources.checks import check_rows, chunk_starts
from loadax.sources.io.byte_stream import indices

_AT_ONCE = 1 << 20  # rows per step of a scan over all rows

_MASK = "loss_mask"
_ADDED = {"segment_ids": np.dtype(np.int32), "positions": np.dtype(np.int32)}


class DocumentPart(NamedTuple):
    """Part of a document in a packed row: source row, first entry, length, and first column."""

    row: int
    start: int
    length: int
    column: int


class PackedDocument(NamedTuple):
    """A document in a packed row: source row, and length and first column by leaf."""

    row: int
    lengths: dict[str, int]
    columns: dict[str, int]

    @property
    def length(self) -> int:
        """Entries of all leaves."""
        return sum(self.lengths.values())


class Group(NamedTuple):
    """Leaves of one length.

    Args:
        name: Name of the leaf; `ALL`: these are all leaves.
        seq_len: Entries of a row.
        plan: Assignment of their entries to rows, with the same documents in each row for all groups.
    """

    name: str
    seq_len: int
    plan: Packed


class _Shown(NamedTuple):
    """What a leaf of the rows shows: a leaf of the documents by its index, or an added one by its name."""

    group: int
    what: int | str
    dtype: np.dtype[Any]


class _Cut(NamedTuple):
    """Columns of the rows of one group: the segments in them, and the leaves to write."""

    segments: Segments
    begun: Integers
    """Entries of each segment before the first column."""
    lengths: Integers
    places: Integers
    """Index of each entry among the columns."""
    own: NDArray[np.bool_]
    """Whether an entry is the document's own."""
    request: PartsRequest
    out: dict[int, NDArray[Any]]


@final
class PackedSource(BaseSource):
    """Row i: the documents of row i of a plan, each leaf padded to the length of its group.

    Examples are dicts of the documents' leaves and of `segment_ids` (1, 2, … within the row; 0: padding), `positions`
    (from 0 in every segment) and `loss_mask` (whether the previous entry is of the same segment, so that this one can
    be predicted; and, if documents have a leaf of that name, whether that is true). If leaves have lengths of their
    own, each leaf `x` has `x_segment_ids` and `x_positions`, and there is no `loss_mask`.

    Args:
        documents: Documents to pack.
        groups: Groups of leaves: one of all leaves, or one for each leaf of the documents in their order.
        described: Everything that determines the rows, as JSON.
        summary: Text for `repr`.
        value: Value of the padding of the documents' leaves; or a dict of values by leaf, 0 for the others.
        bos: As `value`, of an entry before every document, which the plan counts as its first; None: there is none.
        given: Whether documents bring shifted targets, so that `loss_mask` is True for all of their entries.

    Raises:
        ArgumentError: When a leaf of the documents has the name of an added leaf, or `value` does not fit a leaf.
    """

    spec: Tree = None

    def __init__(
        self,
        documents: Documents,
        groups: Sequence[Group],
        described: list[Any],
        summary: str,
        value: Any = 0,
        bos: Any = None,
        given: bool = False,
    ):
        self._documents, self._groups, self._plan = documents, groups, groups[0].plan
        self._described, self._summary, self._value, self._bos = described, summary, value, bos
        self._given = given
        flat = documents.flat
        self.traits = Traits(
            reads_columns=flat,  # documents that are read whole cost the same for any columns
            owns_memory=True,
            concurrent_reads=documents.traits.concurrent_reads,
            num_maps=documents.traits.num_maps + 1,
            runs_python=not flat or documents.reader.source.traits.runs_python,  # whole documents are read one by one
        )
        self._by_leaf = groups[0].name != ALL
        form = documents.form
        leaves = [_Shown(leaf if self._by_leaf else 0, leaf, dtype) for leaf, dtype in enumerate(form.dtypes)]
        shows: dict[str, _Shown] = {**form.build(leaves)}  # a dict, whatever mapping a document is
        self._own_mask = None if self._by_leaf else _own_mask(shows.get(_MASK))
        for index, group in enumerate(groups):
            for name, dtype in (_ADDED if self._by_leaf else {**_ADDED, _MASK: np.dtype(np.bool_)}).items():
                leaf = f"{group.name}_{name}" if self._by_leaf else name
                if leaf in shows and leaf != _MASK:
                    raise ArgumentError(
                        f"the documents have a leaf {leaf!r}, which pack() adds; rename or drop it in a map"
                    )
                shows[leaf] = _Shown(index, name, dtype)
        self._shows: list[_Shown]
        self._shows, self._structure = flatten(shows, is_leaf=lambda node: isinstance(node, _Shown))
        self._specs = [ArraySpec((groups[shown.group].seq_len,), shown.dtype) for shown in self._shows]
        self.spec = self._structure.build(self._specs)
        self._fills = self._fill_values("value", value)
        self._bos_values: Any = None if bos is None else self._fill_values("bos", bos)

    def _fill_values(self, argument: str, value: Any) -> list[Any]:
        """Value of every leaf where no document has an entry."""
        named = {path[2:-2]: shown for path, shown in zip(self._structure.paths, self._shows, strict=True)}
        own = [name for name, shown in named.items() if isinstance(shown.what, int)]
        if wrong := [name for name in value if name not in own] if isinstance(value, dict) else []:
            raise ArgumentError(
                f"{argument} has the key {wrong[0]!r}, which is not a leaf of the documents: {own}; leave it out",
                argument=argument,
            )
        return [fill_value(name, value, shown.dtype, argument) if name in own else 0 for name, shown in named.items()]

    def __len__(self) -> int:
        return self._plan.size

    def __repr__(self) -> str:
        return self._summary

    @property
    def children(self) -> Sequence[Child]:
        documents = self._documents
        times = self._plan.reads_per_document * documents.size / max(1, len(documents.reader.source))
        return (Child("", documents.reader.source, None, times),)

    def map_children(self, wrap: MapChild) -> "PackedSource":
        documents = self._documents.with_source(wrap(self.children[0]))
        return PackedSource(
            documents, self._groups, self._described, self._summary, self._value, self._bos, self._given
        )

    @property
    def order(self) -> Order:
        """Order of the packed documents in the source."""
        return self._documents.order

    @property
    def in_order(self) -> bool:
        """Whether consecutive rows hold consecutive documents of `order`."""
        return self._plan.in_order

    def describe(self) -> list[Any]:
        return [self._described]

    @cached_property
    def chunks(self) -> Integers | None:
        """First packed rows per chunk of documents, if documents are packed in source order; None otherwise."""
        starts = chunk_starts(self._documents.reader.source)
        if starts is None or not self._plan.in_order:
            return None
        begins, last = [], -1
        for low in range(0, len(self), _AT_ONCE):
            rows = np.arange(low, min(low + _AT_ONCE, len(self)))
            firsts = self._documents.row_of(self._plan.first_documents(rows))
            chunk = (
                firsts // starts.step
                if isinstance(starts, range)
                else np.searchsorted(starts, firsts, side="right") - 1
            )
            turns = np.diff(chunk, prepend=last)
            if (turns < 0).any():
                return None
            begins.append(rows[turns > 0])
            last = int(chunk[-1])
        return np.concatenate(begins)

    def rows_below(self, rows: Integers) -> tuple[Integers, Integers]:
        segments = self._plan.segments(rows)
        return segments.rows, self._documents.row_of(segments.documents)

    def locate(self, row: int) -> list[Location]:
        """Files of the documents in a packed row, as far as they are known."""
        _, rows = self.rows_below(check_rows([row], len(self)))
        return [location for inner in rows.tolist() for location in self._documents.reader.source.locate(inner)]

    def documents(self, row: int) -> list[DocumentPart] | list[PackedDocument]:
        segments = [group.plan.segments(check_rows([row], len(self))) for group in self._groups]
        rows = self._documents.row_of(segments[0].documents).tolist()
        parts = [
            [skips.tolist(), lengths.tolist(), (segment.columns + begins).tolist()]
            for segment in segments
            for skips, lengths, begins in [self._without_bos(segment.skips, segment.lengths)]
        ]
        if not self._by_leaf:
            return [DocumentPart(*fields) for fields in zip(rows, *parts[0], strict=True)]
        names = [group.name for group in self._groups]
        return [
            PackedDocument(
                inner,
                *({name: part[field][index] for name, part in zip(names, parts, strict=True)} for field in (1, 2)),
            )
            for index, inner in enumerate(rows)
        ]

    def read(self, rows: Integers) -> Tree:
        rows = check_rows(rows, len(self))
        out = [np.empty((len(rows), *spec.shape), spec.dtype) for spec in self._specs]
        self.read_into(rows, [((0, spec.shape[0]),) for spec in self._specs], out)
        return self._structure.build(out)

    def read_into(self, rows: Integers, boxes: Sequence[Columns | None], out: Sequence[NDArray[Any] | None]) -> None:
        rows = check_rows(rows, len(self))
        together: dict[tuple[int, int, int], dict[int, NDArray[Any]]] = {}
        for leaf, (box, destination) in enumerate(zip(boxes, out, strict=True)):
            if box is not None and destination is not None:
                destination[...] = self._fills[leaf]
                together.setdefault((self._shows[leaf].group, *box[0]), {})[leaf] = destination
        cuts = [self._cut(rows, *columns, leaves) for columns, leaves in together.items()]
        for cut, parts in zip(cuts, self._documents.parts([cut.request for cut in cuts]), strict=True):
            self._write(cut, parts)

    def _cut(self, rows: Integers, group: int, low: int, high: int, out: dict[int, NDArray[Any]]) -> _Cut:
        segments = self._groups[group].plan.segments(rows)
        first = np.maximum(segments.columns, low)
        lengths = np.minimum(segments.columns + segments.lengths, high) - first
        visible = lengths > 0
        segments, first, lengths = Segments(*(field[visible] for field in segments)), first[visible], lengths[visible]
        begun = first - segments.columns
        wanted = [False] * len(self._documents.form.dtypes)
        for leaf in out:
            number = self._own_mask if self._shows[leaf].what == _MASK else self._shows[leaf].what
            if isinstance(number, int):
                wanted[number] = True
        skips, read, begins = self._without_bos(segments.skips + begun, lengths)
        places = indices(segments.rows * (high - low) + first - low, lengths)
        own = np.ones(len(places), np.bool_)
        own[(np.cumsum(lengths) - lengths)[begins]] = False
        return _Cut(segments, begun, lengths, places, own, PartsRequest(segments.documents, skips, read, wanted), out)

    def _write(self, cut: _Cut, parts: list[NDArray[Any] | None]) -> None:
        """Writes leaves to destinations, which contain padding."""
        for leaf, destination in cut.out.items():
            match self._shows[leaf].what:
                case "segment_ids":
                    values: Any = np.repeat(cut.segments.numbers, cut.lengths)
                case "positions":
                    values = indices(cut.begun, cut.lengths)
                case "loss_mask":
                    values = cut.own.copy() if self._given else indices(cut.begun, cut.lengths) > 0
                    if self._own_mask is not None:
                        values[cut.own] &= parts[self._own_mask]
                case number:
                    assert isinstance(number, int)
                    values = parts[number]
                    if self._bos_values is not None:
                        values = np.full(len(cut.places), self._bos_values[leaf], destination.dtype)
                        values[cut.own] = parts[number]
            _scatter(values, cut.places, destination)

    def _without_bos(self, skips: Integers, lengths: Integers) -> tuple[Integers, Integers, NDArray[np.bool_]]:
        """First entries and lengths of parts in the documents themselves, and which parts begin with `bos`."""
        if self._bos_values is None:
            return skips, lengths, np.zeros(len(skips), np.bool_)
        begins = skips == 0
        return np.maximum(skips - 1, 0), lengths - begins, begins


def _own_mask(shown: Any) -> int | None:
    """Index of the documents' own loss mask, if they have one.

    Args:
        shown: What their leaf of that name shows; None: there is none.
    """
    if shown is None:
        return None
    if not isinstance(shown, _Shown) or shown.dtype.kind != "b":
        raise ArgumentError(
            f"the documents' leaf {_MASK!r} is not an array of bools, True where the loss counts; "
            "cast it in a map, or rename it if it is something else"
        )
    assert isinstance(shown.what, int)
    return shown.what


def _scatter(values: NDArray[Any], places: Integers, destination: NDArray[Any]) -> None:
    if len(places) == destination.size:  # no padding
        destination[...] = values.reshape(destination.shape)
    elif destination.flags.c_contiguous:
        destination.reshape(-1)[places] = values
    else:
        np.put(destination, places, values)
