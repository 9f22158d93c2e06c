"""Packing plans: the documents, or parts of documents, in each row of fixed length.

A plan is a few flat arrays, so it can be memory-mapped from disk, and any packed row can be looked up directly.
"""

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple, TypeAlias, final

import numpy as np

from loadax.core.formatting import count_text
from loadax.errors import ArgumentError
from loadax.plan.fit import fit, fit_by_leaf
from loadax.protocols import Array, Integers, Segments

# Version of the packing algorithms. Another version packs the same lengths into other rows.
PACK_VERSION = 1

Method: TypeAlias = Literal["split", "best_fit", "first_fit"]
Long: TypeAlias = Literal["error", "cut", "drop"]
Packed: TypeAlias = "Split | Fitted"
Arrays: TypeAlias = dict[str, Array]

# The name of a length that all leaves of a document have.
ALL = ""
# The name of the budget of leaves that have one value a document; it has `most_documents` entries.
DOCUMENTS = "most_documents"
# The leaves that are added to packed rows.
ADDED = ("segment_ids", "positions", "loss_mask")


class PackOptions(NamedTuple):
    """Settings that decide the packed rows, besides the lengths of the documents.

    Args:
        seq_lens: Entries of a row, by leaf; or one of the name `ALL`.
        method: "split" (of one length only), "best_fit" or "first_fit".
        long: What happens with documents that are longer than a row, unless `method` is "split"; "cut" needs one
            length.
        window: Number of documents that are packed together.
        align: Divisor of the first column of every document, unless `method` is "split". It divides the rows.
        most_documents: Largest number of documents of a row, unless `method` is "split"; None: no limit.
        bos: Whether an entry is put before every document.
        shift: Whether rows have inputs and targets, so that a document of n entries has n - 1 of each.
        leaves: Budget of each leaf that has not the one of its own name, or `ALL`.
        offsets: Budgets whose entries before a document are added to a leaf of indices, by leaf.
        add: Leaves that are added, in the order of `ADDED`.
        missing: Value of leaves of indices that stays as it is; None: there is none.
    """

    seq_lens: dict[str, int]
    method: Method
    long: Long
    window: int
    align: int = 1
    most_documents: int | None = None
    bos: bool = False
    shift: bool = False
    leaves: Mapping[str, str] = {}
    offsets: Mapping[str, str] = {}
    add: tuple[str, ...] = ADDED
    missing: int | None = None

    @property
    def by_leaf(self) -> bool:
        """Whether leaves have lengths of their own."""
        return ALL not in self.seq_lens

    @property
    def seq_len(self) -> int | dict[str, int]:
        """The argument of `Dataset.pack`."""
        if self.by_leaf:
            return self.seq_lens
        return self.seq_lens[ALL]

    @property
    def sizes(self) -> Integers:
        """Entries of a row, int64[lengths]."""
        return np.array([*self.seq_lens.values()], np.int64)

    @property
    def described(self) -> list[Any]:
        """The options as JSON; later ones only where they are used, so that states of earlier runs stay as they are."""
        first = [
            self.seq_len,
            self.method,
            self.long,
            self.window,
            *([self.most_documents] if self.by_leaf else []),
        ]
        return [*first, *([name, value] for name, value in self._later())]

    @property
    def decisive(self) -> list[Any]:
        """All options as JSON, for digests and caches; those of later versions only where they are used."""
        return [[*self[: self._fields.index("shift")]], *self.newer]

    @property
    def newer(self) -> list[Any]:
        """Options of later versions than `described`, as JSON, where they are used."""
        names = ("shift", "leaves", "offsets", "add", "missing")
        return [
            [name, value]
            for name in names
            if (value := getattr(self, name)) != self._field_defaults[name]
        ]

    @property
    def name(self) -> str:
        """Name of the plan in an index. Names of leaves may not be fit for that of a file."""
        if self.by_leaf:
            kind = ["by-leaf"]
        else:
            kind = []
        first = [self.method, *self.seq_lens.values(), self.long, self.window]
        if self.by_leaf:
            most = [self.most_documents]
        else:
            most = []
        later = [part for option in self._later() for part in option]
        ends = ["bos"] * self.bos + ["shift"] * self.shift
        return "-".join(map(str, [*kind, *first, *most, *later, *ends]))

    def _later(self) -> list[tuple[str, Any]]:
        later = {"align": self.align} | (
            {} if self.by_leaf else {"most_documents": self.most_documents}
        )
        return [
            (name, value)
            for name, value in later.items()
            if value != self._field_defaults[name]
        ]

    def lengths(self, documents: Integers) -> Integers:
        """Lengths with the entries that are put before documents, or of pairs, int64[documents, lengths]."""
        if self.bos:
            documents = documents + documents.any(axis=1, keepdims=True)
        if self.shift:
            return np.maximum(documents - 1, 0)
        return documents

    def counts(self, lengths: Integers) -> Integers:
        """Number of parts of each document, from its lengths, int64[documents]; 0: it is empty, or left out."""
        counts = (-(-lengths // self.sizes)).max(axis=1)
        if self.long == "drop" and self.method != "split":
            return np.where(counts > 1, 0, counts)
        return counts

    def parts(self, lengths: Integers) -> tuple[Integers, Integers, Integers]:
        """Parts of documents that are fitted into rows.

        Args:
            lengths: Lengths of the documents, int64[documents, lengths].

        Returns:
            Document of each part, int64[parts], and its first entries and lengths, int64[parts, lengths].
        """
        documents, within = _spread(self.counts(lengths))
        skips = within[:, None] * self.sizes
        return documents, skips, np.minimum(lengths[documents] - skips, self.sizes)

    def aligned(self, lengths: Integers) -> Integers:
        """Columns that parts of these lengths take."""
        return -(-lengths // self.align) * self.align


@final
class Split:
    """All documents concatenated, and cut every `seq_len` entries. The last row may be shorter.

    Args:
        seq_len: Entries of a row.
        arrays: `ends`, int64[documents]: the end of each document in the concatenation.
    """

    def __init__(self, seq_len: int, arrays: Mapping[str, Array]):
        self._seq_len = seq_len
        self._ends = arrays["ends"]
        self.entries = int(self._ends[-1])
        self.size = -(-self.entries // seq_len)

    in_order = True  # whether consecutive rows hold consecutive documents

    @property
    def reads_per_document(self) -> float:
        """Mean number of reads of a document in one pass: one more for every row that it continues in."""
        return 1 + self.size / len(self._ends)

    def first_documents(self, rows: Integers) -> Integers:
        """First document of each row."""
        return np.searchsorted(self._ends, rows * self._seq_len, side="right")

    def segments(self, rows: Integers) -> Segments:
        """Segments of `rows`."""
        start = rows * self._seq_len
        stop = np.minimum(start + self._seq_len, self.entries)
        first = np.searchsorted(self._ends, start, side="right")
        counts = np.searchsorted(self._ends, stop, side="left") + 1 - first
        owners, within = _spread(counts)
        documents = np.repeat(first, counts) + within
        ends = np.asarray(self._ends[documents])
        begins = np.where(documents > 0, self._ends[documents - 1], 0)
        low = np.maximum(begins, start[owners])
        high = np.minimum(ends, stop[owners])
        not_empty = high > low  # excludes empty documents
        owners = owners[not_empty]
        documents = documents[not_empty]
        low = low[not_empty]
        # in each row, from 1
        numbers = np.arange(1, len(owners) + 1) - np.searchsorted(owners, owners)
        skips = low - begins[not_empty]
        lengths = high[not_empty] - low
        return Segments(
            owners, documents, skips, low - start[owners], lengths, numbers
        )


@final
class Fitted:
    """Whole documents, several per row; the rest of a row is empty.

    Args:
        align: Divisor of the first column of every segment.
        arrays: `bounds`, int64[rows + 1]: index of each row's first segment in the others; `documents`: document of
            each segment; `lengths`: its length; `skips`, only if long documents were cut: its first entry.
    """

    def __init__(self, align: int, arrays: Mapping[str, Array]):
        self._align = align
        self._bounds = arrays["bounds"]
        self._documents = arrays["documents"]
        self._lengths = arrays["lengths"]
        self._skips = arrays.get("skips")
        self.size = len(self._bounds) - 1

    in_order = False

    @property
    def reads_per_document(self) -> float:
        """Mean number of reads of a document in one pass: 1, unless documents were cut."""
        if self._skips is None:
            return 1.0
        return len(self._documents) / max(1, int((self._skips == 0).sum()))

    def first_documents(self, rows: Integers) -> Integers:
        """First document of each row."""
        return np.asarray(self._documents[self._bounds[rows]], np.int64)

    @property
    def entries(self) -> int:
        """Number of document entries in all rows."""
        return int(np.sum(self._lengths, dtype=np.int64))

    def segments(self, rows: Integers) -> Segments:
        """Segments of `rows`."""
        first = np.asarray(self._bounds[rows])
        owners, within = _spread(self._bounds[rows + 1] - first)
        places = first[owners] + within
        lengths = self._lengths[places].astype(np.int64)
        widths = -(-lengths // self._align) * self._align
        before = np.cumsum(widths) - widths
        columns = before - before[np.searchsorted(owners, owners)]
        if self._skips is None:
            skips = np.zeros_like(lengths)
        else:
            skips = self._skips[places].astype(np.int64)
        return Segments(
            owners,
            self._documents[places].astype(np.int64),
            skips,
            columns,
            lengths,
            within + 1,
        )


def packed(
    options: PackOptions, arrays: Mapping[str, Array], lengths: Integers
) -> list[Packed]:
    """The plans with these arrays, which `plan_arrays` made: one for each budget, with the same documents in each row.

    Args:
        options: Options of `plan_arrays`.
        arrays: Its result.
        lengths: Lengths of the documents, int64[documents, lengths].
    """
    if options.method == "split":
        return [Split(options.seq_lens[ALL], arrays)]
    plain = {"bounds": arrays["bounds"], "documents": arrays["documents"]}
    one_value = DOCUMENTS in options.leaves.values()
    if one_value:
        ones = [
            Fitted(1, {**plain, "lengths": np.ones(len(plain["documents"]), np.int8)})
        ]
    else:
        ones = []
    if not options.by_leaf:
        return [Fitted(options.align, arrays), *ones]
    known = options.lengths(lengths)
    documents = arrays["documents"]
    return [
        *(
            Fitted(options.align, {**arrays, "lengths": leaf[documents]})
            for leaf in known.T
        ),
        *ones,
    ]


def plan_arrays(
    lengths: Integers, options: PackOptions, row_of: Callable[[int], int] = int
) -> Arrays:
    """Arrays of a plan, by name.

    Args:
        lengths: Lengths of the documents, int64[documents, lengths].
        options: The other arguments.
        row_of: Function that returns the row of a document, for errors.

    Raises:
        ArgumentError: When nothing is left to pack, or a document is longer than a row and `long` is "error".
    """
    lengths = options.lengths(lengths)
    if not lengths.any():
        if options.shift:
            what = "a target, which is the entry after another"
        else:
            what = "an entry"
        raise ArgumentError(
            f"pack(): none of {count_text(len(lengths), 'document')} has {what}; pack "
            "a dataset with entries"
        )
    if options.method == "split":
        return {"ends": np.cumsum(lengths[:, 0], dtype=np.int64)}
    check_lengths(lengths, options, row_of)
    if not options.counts(lengths).any():
        what = (
            f"long='drop': none of {count_text(len(lengths), 'document')} has entries "
            f"and fits seq_len={options.seq_len}"
        )
        raise ArgumentError(f"{what}; pass a larger one")
    return _fitted_arrays(lengths, options)


def check_lengths(
    lengths: Integers, options: PackOptions, row_of: Callable[[int], object]
) -> None:
    """Checks that documents that are fitted are not longer than a row, unless they may be cut or dropped.

    Args:
        lengths: Lengths with the entries that are put before documents, int64[documents, lengths].
        options: Options of `plan_arrays`.
        row_of: Function that returns the row of a document, for errors.

    Raises:
        ArgumentError: When one is; names its row.
    """
    too_long = lengths > options.sizes
    if options.long != "error" or not too_long.any():
        return
    document, leaf = np.argwhere(too_long)[0].tolist()
    if options.by_leaf:
        what = f"whose leaf {[*options.seq_lens][leaf]!r} has length"
    else:
        what = "of"
    if options.shift:
        with_bos = " in inputs"
    elif options.bos:
        with_bos = " with its bos entry"
    else:
        with_bos = ""
    ways = "long='drop' (leaves them out), or "
    cut = f"long='cut' (cuts them into rows), {ways}method='split'"
    if options.by_leaf:
        ways = f"{ways}truncate them in a map"
    else:
        ways = cut
    others = (
        f", as are {int(too_long.any(axis=1).sum()) - 1} more of {len(lengths)}"
        * (len(lengths) > 1)
    )
    raise ArgumentError(
        f"row {row_of(document)} is a document{with_bos} {what} "
        f"{lengths[document, leaf]}, longer than seq_len={options.seq_len}{others}; "
        f"pass {ways}"
    )


def check_arrays(
    arrays: Mapping[str, Array], lengths: Integers, options: PackOptions
) -> None:
    """Checks that arrays are a plan of documents with these lengths: every entry in one row, and no row too long.

    Args:
        arrays: Arrays that may be of `plan_arrays`, by name.
        lengths: As in `plan_arrays`.
        options: As in `plan_arrays`.

    Raises:
        ValueError: When they are not.
    """
    lengths = options.lengths(lengths)
    if options.method == "split":
        if arrays["ends"].dtype != np.int64 or not np.array_equal(
            arrays["ends"], np.cumsum(lengths)
        ):
            raise ValueError(
                "the ends of the documents are not the sums of their lengths"
            )
        return
    if any(
        array.ndim != 1 or array.dtype not in (np.int32, np.int64)
        for array in arrays.values()
    ):
        raise ValueError("the arrays are not flat arrays of integers")
    counts = options.counts(lengths)
    number = int(counts.sum())
    cut = bool(options.long == "cut" and counts.max(initial=0) > 1)
    bounds = arrays["bounds"]
    documents = arrays["documents"]
    if (
        len(bounds) < 2
        or bounds[0]
        or bounds[-1] != number
        or (np.diff(bounds) <= 0).any()
    ):
        raise ValueError(f"the bounds of the rows don't ascend from 0 to {number}")
    if ("skips" in arrays) != cut or any(
        len(array) != number for name, array in arrays.items() if name != "bounds"
    ):
        raise ValueError(f"the arrays don't have {count_text(number, 'value')}")
    if documents.min() < 0 or not np.array_equal(
        np.bincount(documents, minlength=len(lengths)), counts
    ):
        raise ValueError("a document is missing, or in too many rows")
    sizes = lengths[documents]
    if cut:
        begins = arrays["skips"].astype(np.int64)[:, None]
        most = options.sizes
        parts, rest = np.divmod(begins, most)
        if (
            rest.any()
            or begins.min() < 0
            or len(np.unique(documents * counts.max() + parts[:, 0])) < number
        ):
            raise ValueError("the parts of a cut document overlap")
        sizes = np.minimum(sizes - begins, most)
    if not options.by_leaf and (
        (arrays["lengths"] != sizes[:, 0]).any() or sizes.min() < 1
    ):
        raise ValueError("the lengths are not those of the documents")
    if (np.add.reduceat(options.aligned(sizes), bounds[:-1]) > options.sizes).any():
        raise ValueError(f"a row is longer than {options.seq_len}")


def _fitted_arrays(lengths: Integers, options: PackOptions) -> Arrays:
    small = np.int32 if len(lengths) < 1 << 31 else np.int64
    parts: dict[str, list[Array]] = {
        "bounds": [np.zeros(1, np.int64)],
        "documents": [],
    }
    if not options.by_leaf:
        parts["lengths"] = []
    if options.long == "cut" and (lengths > options.sizes).any():
        parts["skips"] = []
    before = 0
    for start in range(0, len(lengths), options.window):
        documents, skips, sizes = options.parts(
            lengths[start : start + options.window]
        )
        if not len(documents):
            continue
        rows = fit_parts(sizes, options)
        by_row = np.argsort(rows.astype(np.int32), kind="stable")
        parts["documents"].append((documents[by_row] + start).astype(small))
        if "lengths" in parts:
            parts["lengths"].append(sizes[by_row, 0].astype(np.int32))
        if "skips" in parts:
            parts["skips"].append(skips[by_row, 0])
        parts["bounds"].append(before + np.cumsum(np.bincount(rows)))
        before += len(documents)
    return {name: np.concatenate(arrays) for name, arrays in parts.items()}


def fit_parts(sizes: Integers, options: PackOptions) -> Integers:
    """Row of each part, int64[parts], numbered by their first part.

    Args:
        sizes: Lengths of the parts, int64[parts, lengths].
        options: Options that are not those of "split".
    """
    widths = options.aligned(sizes)
    best = options.method == "best_fit"
    seq_lens = [*options.seq_lens.values()]
    if options.most_documents is None:
        most = len(widths)
    else:
        most = options.most_documents
    if options.by_leaf:
        return fit_by_leaf(widths, seq_lens, best, most)
    return fit(widths[:, 0], seq_lens[0], best, min(most, seq_lens[0]))


def _spread(counts: Integers) -> tuple[Integers, Integers]:
    """Each index repeated `counts` times, and the number of each repetition, from 0."""
    owners = np.repeat(np.arange(len(counts), dtype=np.int64), counts)
    return owners, np.arange(len(owners), dtype=np.int64) - np.repeat(
        np.cumsum(counts) - counts, counts
    )
