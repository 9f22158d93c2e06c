"""PackedRows: the leaves of packed rows, and how they are filled from parts of documents."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from loadax.core.casting import fill_value
from loadax.core.formatting import count_text
from loadax.core.tree import flatten
from loadax.errors import ArgumentError, LeafError
from loadax.packing.documents import PartsRequest
from loadax.packing.form import BARE, Form
from loadax.plan.pack import ADDED, PackOptions
from loadax.protocols import ArraySpec, Columns, Integers, Segments, Tree
from loadax.sources.base import asked_for

# bounds, and entries for each, up to which a copy of each stretch is slower than one by a mask
_FEW = 32
_SHORT = 16
_MASK = "loss_mask"
_DTYPES = dict(zip(ADDED, map(np.dtype, ("int32", "int32", "bool")), strict=True))

# Row of a document, by its number in segments, for errors.
RowOf = Callable[[int], int]
# Reads parts of documents, concatenated, for every wanted leaf of each request.
ReadParts = Callable[[Sequence[PartsRequest]], list[list[NDArray[Any] | None]]]


class Filling(NamedTuple):
    """Leaves of rows beside the entries of documents.

    Args:
        value: Value of the padding of the documents' leaves; or a dict of values by leaf, 0 for the others.
        bos: As `value`, of an entry before every document, which the plan counts as its first; None: there is none.
        given: Whether documents bring shifted targets, so that `loss_mask` is True for all of their entries.
    """

    value: Any
    bos: Any
    given: bool


class _Shown(NamedTuple):
    """Content of a leaf of the rows.

    Args:
        group: Index of its budget.
        what: Leaf of the documents by its index, or an added one by its name.
        dtype: Its dtype.
        shape: Shape of one entry.
        ahead: Whether it shows the entries after those of the inputs.
        offset: Index of the budget whose entries before the document are added; None: it is not a leaf of indices.
    """

    group: int
    what: int | str
    dtype: np.dtype[Any]
    shape: tuple[int, ...] = ()
    ahead: bool = False
    offset: int | None = None


@final
@dataclass(frozen=True)
class _Cut:
    """Columns of the rows of one group: the segments in them, and the leaves to write."""

    segments: Segments
    begun: Integers  # entries of each segment before the first column
    lengths: Integers
    columns: Integers  # first column of each segment, counted over all rows
    begins: NDArray[np.bool_]  # whether the first entry of a segment is `bos`
    visible: NDArray[np.bool_]  # which of the given segments these are
    paired: bool  # whether the entry after each segment is read too, for targets
    request: PartsRequest
    out: dict[int, NDArray[Any]]

    @cached_property
    def total(self) -> int:
        """Number of entries."""
        return int(self.lengths.sum())

    @cached_property
    def before(self) -> Integers:
        """Entries of the segments before each one."""
        return np.cumsum(self.lengths) - self.lengths

    @cached_property
    def own(self) -> NDArray[np.bool_]:
        """Whether each entry is the document's own."""
        own = np.ones(self.total, np.bool_)
        own[self.before[self.begins]] = False
        return own

    @cached_property
    def positions(self) -> Integers:
        """Position of each entry in its segment."""
        narrow: Any
        if self.total < 1 << 31:
            narrow = np.int32
        else:
            narrow = np.int64
        found: Integers = np.repeat(
            (self.begun - self.before).astype(narrow), self.lengths
        )
        return found + np.arange(self.total, dtype=narrow)

    @cached_property
    def bounds(self) -> Integers:
        """Begin and end of each stretch of columns with entries, counted over all rows."""
        bounds, counts = np.unique(
            [self.columns, self.columns + self.lengths], return_counts=True
        )
        return bounds[counts == 1]  # the others are where two segments adjoin


@final
class PackedRows:
    """Several documents in each row of fixed length, each leaf padded to the length of its group.

    Rows are dicts of the documents' leaves and of `segment_ids` (1, 2, … within the row; 0: padding), `positions`
    (from 0 in every segment) and `loss_mask` (whether the previous entry is of the same segment, so that this one can
    be predicted; and, if documents have a leaf of that name, whether that is true). With several budgets, each budget
    `x` has `x_segment_ids` and `x_positions`, and there is no `loss_mask`.

    Args:
        form: Leaves of the documents.
        options: How they are packed, with the budgets of all leaves.
        filling: What else is in them.

    Raises:
        ArgumentError: When a leaf of the documents has the name of an added leaf, or an option does not fit a leaf.
    """

    def __init__(self, form: Form, options: PackOptions, filling: Filling):
        self.seq_lens = options.seq_lens
        self._form = form
        self._shift = options.shift
        self._bos = filling.bos is not None
        self._all_count = filling.given or options.shift
        self._missing = options.missing
        self._offsets = options.offsets
        budgets = [*options.seq_lens]
        leaves = [
            _Shown(group, leaf, dtype, shape)
            for leaf, (group, dtype, shape) in enumerate(
                zip(form.groups, form.dtypes, form.shapes, strict=True)
            )
        ]
        for name, budget in options.offsets.items():
            leaf = form.names.index(name)
            leaves[leaf] = _with_offset(name, leaves[leaf], budgets, budget, options)
        # a dict, whatever mapping a document is
        shows: dict[str, Any] = {**form.build(leaves)}
        if options.shift:
            _shift_leaves(shows)
        added = {
            f"{budget}_{name}" if options.by_leaf else name: _Shown(
                group, name, _DTYPES[name]
            )
            for group, budget in enumerate(budgets)
            for name in options.add
            if not (options.by_leaf and name == _MASK)
        }
        if _MASK in added:
            self._own_mask = _own_mask(shows.get(_MASK))
        else:
            self._own_mask = None
        if form.one_value and "segment_ids" in options.add:
            if "documents_segment_ids" in added:
                what = (
                    "the budget 'documents' and leaves of one value a document would "
                    "share 'documents_segment_ids'"
                )
                raise ArgumentError(
                    f"{what}; name it otherwise: .rename({{'documents': 'texts'}})",
                    argument="seq_len",
                )
            added["documents_segment_ids"] = _Shown(
                len(budgets), "segment_ids", _DTYPES["segment_ids"]
            )
        for name in added:
            if name in shows and name != _MASK:
                raise ArgumentError(
                    f"pack() adds {name!r}, which documents have; rename or drop it "
                    "in a map"
                )
        self._shows: list[_Shown]
        self._shows, self._structure = flatten(
            {**shows, **added}, is_leaf=lambda node: isinstance(node, _Shown)
        )
        sizes = [*options.seq_lens.values(), options.most_documents or 0]
        self._specs = [
            ArraySpec((sizes[shown.group], *shown.shape), shown.dtype)
            for shown in self._shows
        ]
        self.spec = self._structure.build(self._specs)  # of a row
        self._fills = self._fill_values("value", filling.value)
        self._bos_values = self._fill_values(
            "bos", 0 if filling.bos is None else filling.bos
        )

    def _fill_values(self, argument: str, value: Any) -> list[Any]:
        """Value of every leaf where no document has an entry."""
        named = dict(zip(self._structure.names, self._shows, strict=True))
        own = [name for name, shown in named.items() if isinstance(shown.what, int)]
        if (
            wrong := [name for name in value if name not in own]
            if isinstance(value, dict)
            else []
        ):
            what = (
                f"{argument} has the key {wrong[0]!r}, which is not a leaf of the "
                f"documents: {own}"
            )
            raise ArgumentError(f"{what}; leave it out", argument=argument)
        return [
            fill_value(name, value, shown.dtype, argument) if name in own else 0
            for name, shown in named.items()
        ]

    def read(
        self, rows: int, segments: Sequence[Segments], parts: ReadParts, row_of: RowOf
    ) -> Tree:
        """Reads rows.

        Args:
            rows: Number of rows.
            segments: Segments of the rows, for each group.
            parts: Reads parts of their documents.
            row_of: Row of a document.

        Raises:
            LeafError: When an index is not one of its document; names the row.
        """
        out = [np.empty((rows, *spec.shape), spec.dtype) for spec in self._specs]
        self.read_into(segments, parts, row_of, self.boxes, out)
        return self._structure.build(out)

    @cached_property
    def boxes(self) -> list[Columns]:
        """All columns of all leaves."""
        return [tuple((0, size) for size in spec.shape) for spec in self._specs]

    def read_into(
        self,
        segments: Sequence[Segments],
        parts: ReadParts,
        row_of: RowOf,
        boxes: Sequence[Columns | None],
        out: Sequence[NDArray[Any] | None],
    ) -> None:
        """Reads columns of rows into memory, see `BaseSource.read_into`; other arguments as for `read`."""
        together: dict[tuple[int, int, int], dict[int, NDArray[Any]]] = {}
        for leaf, box, destination in asked_for(range(len(self._shows)), boxes, out):
            together.setdefault((self._shows[leaf].group, *box[0]), {})[leaf] = (
                destination
            )
        cuts = [
            self._cut(segments[group], group, low, high, leaves)
            for (group, low, high), leaves in together.items()
        ]
        for cut, read in zip(cuts, parts([cut.request for cut in cuts]), strict=True):
            self._write(cut, read, boxes, segments, row_of)

    def without_bos(
        self, skips: Integers, lengths: Integers
    ) -> tuple[Integers, Integers, NDArray[np.bool_]]:
        """First entries and lengths of parts in the documents themselves, and which parts begin with `bos`."""
        if not self._bos:
            return skips, lengths, np.zeros(len(skips), np.bool_)
        begins = skips == 0
        return np.maximum(skips - 1, 0), lengths - begins, begins

    def _cut(
        self,
        segments: Segments,
        group: int,
        low: int,
        high: int,
        out: dict[int, NDArray[Any]],
    ) -> _Cut:
        first = np.maximum(segments.columns, low)
        lengths = np.minimum(segments.columns + segments.lengths, high) - first
        visible = lengths > 0
        segments = Segments(*(field[visible] for field in segments))
        first = first[visible]
        lengths = lengths[visible]
        begun = first - segments.columns
        wanted = [False] * len(self._form.dtypes)
        for leaf in out:
            number = (
                self._own_mask
                if self._shows[leaf].what == _MASK
                else self._shows[leaf].what
            )
            if isinstance(number, int):
                wanted[number] = True
        paired = self._shift and group < self._form.num_lengths
        if group < self._form.num_lengths:
            skips, read, begins = self.without_bos(segments.skips + begun, lengths)
        else:  # one value a document
            skips = np.zeros_like(lengths)
            read = lengths
            begins = np.zeros(len(lengths), np.bool_)
        request = PartsRequest(segments.documents, skips, read + paired, wanted)
        columns = segments.rows * (high - low) + first - low
        return _Cut(
            segments, begun, lengths, columns, begins, visible, paired, request, out
        )

    def _write(
        self,
        cut: _Cut,
        parts: list[NDArray[Any] | None],
        boxes: Sequence[Columns | None],
        segments: Sequence[Segments],
        row_of: RowOf,
    ) -> None:
        """Writes leaves, and their padding, to destinations."""
        after: Sequence[Any] = [None] * len(parts)
        if cut.paired:  # the last entry of each segment is only a target
            last = np.cumsum(cut.request.lengths) - 1
            kept = np.ones(cut.request.lengths.sum(), np.bool_)
            kept[last] = False
            after = [None if part is None else part[last] for part in parts]
            parts = [None if part is None else part[kept] for part in parts]
        for leaf, destination in cut.out.items():
            shown = self._shows[leaf]
            box = boxes[leaf]
            match shown.what:
                case "segment_ids":
                    values: Any = np.repeat(
                        cut.segments.numbers.astype(shown.dtype), cut.lengths
                    )
                case "positions":
                    values = cut.positions
                case "loss_mask":
                    values = self._countable(cut, parts, after)
                case number:
                    assert isinstance(number, int)
                    assert box is not None
                    if shown.ahead:
                        following = after[number]
                    else:
                        following = None
                    values = _entries(
                        cut, parts[number], self._bos_values[leaf], following
                    )
                    values = values[:, *(slice(*bounds) for bounds in box[1:])]
                    if shown.offset is not None:
                        values = self._moved(
                            leaf, values, cut, segments[shown.offset], row_of
                        )
            _put(values, cut.bounds, self._fills[leaf], destination)

    def _moved(
        self,
        leaf: int,
        indices: NDArray[Any],
        cut: _Cut,
        segments: Segments,
        row_of: RowOf,
    ) -> NDArray[Any]:
        """Indices of the row, from those of each document.

        Args:
            leaf: The leaf.
            indices: Its entries.
            cut: Columns of rows.
            segments: Segments of the budget that they are indices of.
            row_of: Row of a document.

        Raises:
            LeafError: When one is not an index of its document; names the row.
        """
        missing = self._missing
        counts = np.repeat(segments.lengths[cut.visible], cut.lengths)
        shape = (-1, *[1] * (indices.ndim - 1))
        wrong = (indices < 0) | (indices >= counts.reshape(shape))
        if missing is None:
            left = None
        else:
            left = indices == missing
        if left is not None:
            wrong &= ~left
        if wrong.any():
            entry = np.unravel_index(int(np.argmax(wrong)), wrong.shape)
            document = int(np.repeat(cut.segments.documents, cut.lengths)[entry[0]])
            raise self._out_of_range(
                leaf, int(indices[entry]), int(counts[entry[0]]), row_of(document)
            )
        before = (
            np.repeat(segments.columns[cut.visible], cut.lengths)
            .astype(indices.dtype)
            .reshape(shape)
        )
        if left is None:
            return indices + before
        return np.where(left, indices, indices + before)

    def _out_of_range(self, leaf: int, index: int, count: int, row: int) -> LeafError:
        name = self._structure.names[leaf]
        remedy = "mend it in a map"
        if index < 0 and self._missing is None:
            remedy = f"pass missing={index} if it marks that there is none"
        return LeafError(
            f"row {row}: leaf {name!r} has the index {index}, but "
            f"{self._offsets[name]!r} has {count_text(count, 'entry', 'entries')} "
            "there, and offsets= is for indices of 0 or more and below that; "
            f"{remedy}"
        )

    def _countable(
        self, cut: _Cut, parts: Sequence[Any], after: Sequence[Any]
    ) -> NDArray[np.bool_]:
        """Whether each entry is a target."""
        mask = self._own_mask
        if self._shift:
            if mask is None:
                return np.ones(cut.total, np.bool_)
            return _entries(cut, parts[mask], True, after[mask])
        if self._all_count:
            counts = cut.own.copy()
        else:
            counts = cut.positions > 0
        if mask is not None:
            counts[cut.own] &= parts[mask]
        return counts


def _put(
    values: NDArray[Any], bounds: Integers, fill: Any, rows: NDArray[Any]
) -> None:
    """Writes values to the stretches of rows with these bounds, and `fill` between them."""
    flat = np.ascontiguousarray(rows).reshape(-1, *rows.shape[2:])
    if len(values) < len(flat):
        flat[...] = fill
    if len(bounds) > _FEW and len(values) < _SHORT * len(bounds):
        lengths = np.diff(bounds, prepend=0, append=len(flat))
        flat[np.repeat(np.arange(len(lengths)) % 2 == 1, lengths)] = values
    else:
        start = 0
        for begin, end in bounds.reshape(-1, 2).tolist():
            flat[begin:end] = values[start : start + end - begin]
            start += end - begin
    if not rows.flags.c_contiguous:
        rows[...] = flat.reshape(rows.shape)


def _entries(cut: _Cut, part: Any, bos: Any, after: Any) -> NDArray[Any]:
    """Entries of a leaf of the documents, with `bos` before; or the ones after these.

    Args:
        cut: Columns of rows.
        part: The documents' own entries.
        bos: The entry before a document.
        after: The entry after each segment; None: the entries themselves are returned.
    """
    values: NDArray[Any] = part
    if len(part) < cut.total:
        values = np.full((cut.total, *part.shape[1:]), bos, part.dtype)
        values[cut.own] = part
    if after is None:
        return values
    targets = np.empty_like(values)
    targets[:-1] = values[1:]
    targets[cut.before + cut.lengths - 1] = after
    return targets


def _with_offset(
    name: str, shown: _Shown, budgets: list[str], budget: str, options: PackOptions
) -> _Shown:
    """A leaf of indices that count on in the row.

    Raises:
        ArgumentError: When it can't be one.
    """
    if budget not in budgets:
        what = f"offsets[{name!r}]={budget!r} is not a budget"
        raise ArgumentError(f"{what}; pass one of {budgets}")
    largest = options.seq_lens[budget] - 1
    if shown.dtype.kind not in "iu" or np.iinfo(shown.dtype).max < largest:
        what = (
            f"offsets: leaf {name!r} is {shown.dtype}, which can't be an index of up "
            f"to {largest}"
        )
        raise ArgumentError(f"{what}; cast it to int32 in a map", argument="offsets")
    limits = np.iinfo(shown.dtype)
    if (
        options.missing is not None
        and not limits.min <= options.missing <= limits.max
    ):
        what = (
            f"missing={options.missing} does not fit leaf {name!r}, which is "
            f"{shown.dtype}"
        )
        raise ArgumentError(
            f"{what}; leave it out, or cast the leaf to int32 in a map",
            argument="missing",
        )
    return shown._replace(offset=budgets.index(budget))


def _shift_leaves(shows: dict[str, Any]) -> None:
    """Makes `inputs` and `targets` of the leaf of tokens; a loss mask of the documents is that of the targets.

    Raises:
        ArgumentError: When it is unknown which leaf that is, or documents have these leaves.
    """
    mask = shows.get(_MASK)
    ragged = [
        name
        for name, shown in shows.items()
        if not (isinstance(shown, _Shown) and shown.group)
    ]
    if BARE in ragged:
        tokens = [BARE]
    else:
        tokens = [name for name in ragged if name != _MASK]
    if len(tokens) != 1 or not isinstance(shows[tokens[0]], _Shown):
        what = (
            "targets='shift' is for one leaf of tokens, but documents have "
            f"{[*shows]}"
        )
        name = (
            f"name it {BARE!r}: .rename({{'input_ids': {BARE!r}}}), and mask targets "
            f"by a leaf {_MASK!r} of bools"
        )
        raise ArgumentError(
            f"{what}; {name}; or pass targets='given' if they bring shifted targets"
        )
    token = shows.pop(tokens[0])
    for name in ("inputs", "targets"):
        if name in shows:
            raise ArgumentError(
                f"targets='shift' adds {name!r}, which documents have; rename or "
                "drop it in a map"
            )
    shows |= {"inputs": token, "targets": token._replace(ahead=True)}
    if isinstance(mask, _Shown):
        shows[_MASK] = mask._replace(ahead=True)


def _own_mask(shown: Any) -> int | None:
    """Index of the documents' own loss mask, if they have one.

    Args:
        shown: What their leaf of that name shows; None: there is none.
    """
    if shown is None:
        return None
    if (
        not isinstance(shown, _Shown)
        or shown.dtype.kind != "b"
        or shown.shape
        or shown.group
    ):
        what = (
            f"the documents' leaf {_MASK!r} is not an array of bools, True where the "
            "loss counts"
        )
        raise ArgumentError(
            f"{what}; cast it in a map, or rename it if it is something else"
        )
    assert isinstance(shown.what, int)
    return shown.what
