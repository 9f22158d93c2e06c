"""PackedRows: the leaves of packed rows, and how they are filled from parts of documents."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from loadax.core.casting import fill_value
from loadax.core.tree import flatten
from loadax.errors import ArgumentError
from loadax.packing.documents import PartsRequest
from loadax.packing.form import Form
from loadax.plan.pack import ALL
from loadax.protocols import ArraySpec, Columns, Integers, Segments, Tree
from loadax.sources.io.byte_stream import indices

_MASK = "loss_mask"
_ADDED = {"segment_ids": np.dtype(np.int32), "positions": np.dtype(np.int32)}

ReadParts = Callable[[Sequence[PartsRequest]], list[list[NDArray[Any] | None]]]
"""Reads parts of documents, concatenated, for every wanted leaf of each request."""


class Filling(NamedTuple):
    """What is in rows beside the entries of documents.

    Args:
        value: Value of the padding of the documents' leaves; or a dict of values by leaf, 0 for the others.
        bos: As `value`, of an entry before every document, which the plan counts as its first; None: there is none.
        given: Whether documents bring shifted targets, so that `loss_mask` is True for all of their entries.
    """

    value: Any
    bos: Any
    given: bool


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
class PackedRows:
    """Several documents in each row of fixed length, each leaf padded to the length of its group.

    Rows are dicts of the documents' leaves and of `segment_ids` (1, 2, … within the row; 0: padding), `positions`
    (from 0 in every segment) and `loss_mask` (whether the previous entry is of the same segment, so that this one can
    be predicted; and, if documents have a leaf of that name, whether that is true). If leaves have lengths of their
    own, each leaf `x` has `x_segment_ids` and `x_positions`, and there is no `loss_mask`.

    Args:
        form: Leaves of the documents.
        seq_lens: Entries of a row by leaf, in the order of the documents' leaves; or one of the name `ALL`.
        filling: What else is in them.

    Raises:
        ArgumentError: When a leaf of the documents has the name of an added leaf, or a value does not fit a leaf.
    """

    def __init__(self, form: Form, seq_lens: Mapping[str, int], filling: Filling):
        self._form, self._given, bos = form, filling.given, filling.bos
        by_leaf = ALL not in seq_lens
        leaves = [_Shown(leaf if by_leaf else 0, leaf, dtype) for leaf, dtype in enumerate(form.dtypes)]
        shows: dict[str, _Shown] = {**form.build(leaves)}  # a dict, whatever mapping a document is
        self._own_mask = None if by_leaf else _own_mask(shows.get(_MASK))
        for index, group in enumerate(seq_lens):
            for name, dtype in (_ADDED if by_leaf else {**_ADDED, _MASK: np.dtype(np.bool_)}).items():
                leaf = f"{group}_{name}" if by_leaf else name
                if leaf in shows and leaf != _MASK:
                    raise ArgumentError(f"pack() adds {leaf!r}, which documents have; rename or drop it in a map")
                shows[leaf] = _Shown(index, name, dtype)
        self._shows: list[_Shown]
        self._shows, self._structure = flatten(shows, is_leaf=lambda node: isinstance(node, _Shown))
        sizes = [*seq_lens.values()]
        self._specs = [ArraySpec((sizes[shown.group],), shown.dtype) for shown in self._shows]
        self.spec = self._structure.build(self._specs)
        """Spec of a row."""
        self._fills = self._fill_values("value", filling.value)
        self._bos_values: Any = None if bos is None else self._fill_values("bos", bos)

    def _fill_values(self, argument: str, value: Any) -> list[Any]:
        """Value of every leaf where no document has an entry."""
        named = {path[2:-2]: shown for path, shown in zip(self._structure.paths, self._shows, strict=True)}
        own = [name for name, shown in named.items() if isinstance(shown.what, int)]
        if wrong := [name for name in value if name not in own] if isinstance(value, dict) else []:
            what = f"{argument} has the key {wrong[0]!r}, which is not a leaf of the documents: {own}"
            raise ArgumentError(f"{what}; leave it out", argument=argument)
        return [fill_value(name, value, shown.dtype, argument) if name in own else 0 for name, shown in named.items()]

    def read(self, rows: int, segments: Sequence[Segments], parts: ReadParts) -> Tree:
        """Reads rows.

        Args:
            rows: Number of rows.
            segments: Segments of the rows, for each group.
            parts: Reads parts of their documents.
        """
        out = [np.empty((rows, *spec.shape), spec.dtype) for spec in self._specs]
        self.read_into(segments, parts, [((0, spec.shape[0]),) for spec in self._specs], out)
        return self._structure.build(out)

    def read_into(
        self,
        segments: Sequence[Segments],
        parts: ReadParts,
        boxes: Sequence[Columns | None],
        out: Sequence[NDArray[Any] | None],
    ) -> None:
        """Reads columns of rows into memory, see `BaseSource.read_into`; other arguments as for `read`."""
        together: dict[tuple[int, int, int], dict[int, NDArray[Any]]] = {}
        for leaf, (box, destination) in enumerate(zip(boxes, out, strict=True)):
            if box is not None and destination is not None:
                destination[...] = self._fills[leaf]
                together.setdefault((self._shows[leaf].group, *box[0]), {})[leaf] = destination
        cuts = [self._cut(segments[group], low, high, leaves) for (group, low, high), leaves in together.items()]
        for cut, read in zip(cuts, parts([cut.request for cut in cuts]), strict=True):
            self._write(cut, read)

    def without_bos(self, skips: Integers, lengths: Integers) -> tuple[Integers, Integers, NDArray[np.bool_]]:
        """First entries and lengths of parts in the documents themselves, and which parts begin with `bos`."""
        if self._bos_values is None:
            return skips, lengths, np.zeros(len(skips), np.bool_)
        begins = skips == 0
        return np.maximum(skips - 1, 0), lengths - begins, begins

    def _cut(self, segments: Segments, low: int, high: int, out: dict[int, NDArray[Any]]) -> _Cut:
        first = np.maximum(segments.columns, low)
        lengths = np.minimum(segments.columns + segments.lengths, high) - first
        visible = lengths > 0
        segments, first, lengths = Segments(*(field[visible] for field in segments)), first[visible], lengths[visible]
        begun = first - segments.columns
        wanted = [False] * len(self._form.dtypes)
        for leaf in out:
            number = self._own_mask if self._shows[leaf].what == _MASK else self._shows[leaf].what
            if isinstance(number, int):
                wanted[number] = True
        skips, read, begins = self.without_bos(segments.skips + begun, lengths)
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


def _own_mask(shown: Any) -> int | None:
    """Index of the documents' own loss mask, if they have one.

    Args:
        shown: What their leaf of that name shows; None: there is none.
    """
    if shown is None:
        return None
    if not isinstance(shown, _Shown) or shown.dtype.kind != "b":
        what = f"the documents' leaf {_MASK!r} is not an array of bools, True where the loss counts"
        raise ArgumentError(f"{what}; cast it in a map, or rename it if it is something else")
    assert isinstance(shown.what, int)
    return shown.what


def _scatter(values: NDArray[Any], places: Integers, destination: NDArray[Any]) -> None:
    if len(places) == destination.size:  # no padding
        destination[...] = values.reshape(destination.shape)
    elif destination.flags.c_contiguous:
        destination.reshape(-1)[places] = values
    else:
        np.put(destination, places, values)
