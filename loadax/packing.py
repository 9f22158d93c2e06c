"""Packs documents into rows: measures their lengths, plans the rows, and keeps both in an index folder."""

import copy
import logging
import os
import threading
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import permutations
from typing import Any, NamedTuple, final, get_args

import numpy as np
from numpy.typing import NDArray

from loadax.core.arguments import choice, integer
from loadax.core.context import Caller
from loadax.core.fingerprint import fingerprint, unrecognised
from loadax.core.formatting import count_text, name_of
from loadax.core.progress import progress_bar
from loadax.errors import ArgumentError, LeafError, SourceError
from loadax.plan.order import check_fixed_rows
from loadax.plan.pack import PACK_VERSION, Long, Method, check_arrays, packed, plan_arrays
from loadax.protocols import Integers, Order, Visits
from loadax.reader import Reader
from loadax.sources.base import BaseSource
from loadax.sources.io.index_folder import Entry, IndexFolder, check_array, check_digest, digest_values
from loadax.sources.wrappers.document_form import Form
from loadax.sources.wrappers.packed import PackedSource
from loadax.transforms import BatchMap, Transform
from loadax.writing.identity import digest_of, identify, spread

_log = logging.getLogger("loadax")

_WINDOW = 1 << 20  # default number of documents that are packed together
_LARGEST = 1 << 62  # bytes, more than any file has
_INFINITE = 1 << 40  # documents, more than any dataset has
_DOCUMENTS_PER_READ = 512  # documents per read of one thread
_SHIFTED_SAMPLE, _SHIFTED_LENGTH = 8, 4  # documents that are searched for shifted targets, and entries of these
_SAMPLE = 32  # documents whose contents are part of the identity of the data
_LENGTHS_PER_CALL = 1 << 20  # rows per request for known lengths


class PackOptions(NamedTuple):
    """The arguments of `Dataset.pack` that decide the packed rows."""

    seq_len: int
    method: Method
    long: Long
    window: int
    align: int = 1
    most_documents: int | None = None

    @property
    def described(self) -> list[Any]:
        """The options as JSON; later ones only where they are used, so that states of earlier runs stay as they are."""
        later = {"align": self.align, "most_documents": self.most_documents}
        return [*self[:4], *([name, value] for name, value in later.items() if value != self._field_defaults[name])]

    def check(self) -> None:
        """Raises an ArgumentError if a value can't be used."""
        choice(
            "method",
            self.method,
            get_args(Method),
            "'split' (documents are cut), 'best_fit' or 'first_fit' (documents are not cut)",
        )
        choice(
            "long", self.long, get_args(Long), "'error', 'cut' or 'drop': what to do with documents longer than seq_len"
        )
        if self.method == "split" and self.long != "error":
            raise ArgumentError(
                f"long={self.long!r} is for best_fit and first_fit: method='split' always cuts documents; leave it out"
            )
        for name in ("align", "most_documents"):
            if self.method == "split" and getattr(self, name) != self._field_defaults[name]:
                raise ArgumentError(
                    f"{name}={getattr(self, name)} is for best_fit and first_fit: method='split' fills every row with "
                    "whatever comes next; leave it out",
                    argument=name,
                )
        if self.seq_len % self.align:
            raise ArgumentError(
                f"align={self.align} does not divide seq_len={self.seq_len}; pass a divisor of it", argument="align"
            )
        if self.seq_len >= 1 << 31:
            raise ArgumentError(f"seq_len={self.seq_len}: pass less than 2^31")


def pack_options(seq_len: Any, method: Method, long: Long, window: Any, align: Any, most_documents: Any) -> PackOptions:
    """The arguments of `Dataset.pack` as options, each of its type; `pack` checks them together.

    Raises:
        ArgumentError: When one is not an int of its range, or `window` is given where documents are not fitted.
    """
    is_split = isinstance(method, str) and method == "split"
    if window is not None and is_split:
        raise ArgumentError(f"window={window!r} is for best_fit and first_fit: method='split' needs none; leave it out")
    fitted = _WINDOW if window is None else integer("window", window, 1)
    most = None if most_documents is None else integer("most_documents", most_documents, 1)
    return PackOptions(
        integer("seq_len", seq_len, 1), method, long, 0 if is_split else fitted, integer("align", align, 1), most
    )


# The counts that the summary mentions, and their descriptions.
_COUNT_TEXTS = {"empty": "empty and left out", "cut": "cut", "dropped": "too long and left out"}


@final
class Documents:
    """The documents at the positions of an order, as in epoch 0.

    Implements `loadax.sources.wrappers.packed_rows.Documents`.

    Args:
        reader: Reader of the documents.
        order: Order of the documents.
        by_leaf: Whether the leaves of a document may have different lengths; such documents are read whole.

    Raises:
        ArgumentError: If there are no documents, or infinitely many, or a map is random.
        LeafError: If a record is not a document. The message names its row.
    """

    def __init__(self, reader: Reader, order: Order, by_leaf: bool = False):
        if not order.size:
            raise ArgumentError("pack() needs documents, but the dataset has no rows; check its source or slice")
        if order.size >= _INFINITE:
            raise ArgumentError(
                "pack() needs a finite dataset, but this one never ends; mix with stop='first' or 'all', or pack first"
            )
        check_fixed_rows(order, "pack()")
        if reader.random:
            raise ArgumentError(
                "pack() reads documents once, as in epoch 0, but a map before it is random; "
                "call pack() first, then the random map"
            )
        for transform in reader.maps:
            if isinstance(transform, BatchMap):
                raise ArgumentError(
                    f"map_batch {name_of(transform.function)} needs rows of equal shape, "
                    "but documents differ in length; use map before pack"
                )
        self._reader, self.order, self.size, self._by_leaf = reader, order, order.size, by_leaf
        self.flat = reader.reads_parts and not by_leaf
        self.depth = reader.depth
        self.form = self._find_form()
        self.known: Integers | None = None
        """int64[n], or int64[n, leaves]: expected lengths of documents that are read whole; a change is an error."""

    @property
    def source(self) -> BaseSource:
        return self._reader.source

    @property
    def maps(self) -> Sequence[Transform]:
        return self._reader.maps

    @property
    def concurrent_reads(self) -> int:
        return self._reader.concurrent_reads

    def with_source(self, source: BaseSource) -> "Documents":
        other = copy.copy(self)
        other._reader = self._reader.with_source(source)  # noqa: SLF001
        return other

    def visits(self, numbers: Integers) -> Visits:
        """Visits of the documents with these numbers."""
        return self.order.visits(np.zeros_like(numbers), numbers)

    def row_of(self, numbers: Integers) -> Integers:
        return self.visits(numbers).rows

    def leaves(self, numbers: Integers) -> list[list[NDArray[Any]]]:
        """The leaves of each document, read whole."""
        visits = self.visits(numbers)
        examples = self._reader.examples(visits)
        return [self.form.leaves(example, row) for example, row in zip(examples, visits.rows.tolist(), strict=True)]

    def parts(
        self, numbers: Integers, skips: Integers, lengths: Integers, wanted: Sequence[bool]
    ) -> list[NDArray[Any] | None]:
        if self.flat:
            return self._reader.source.read_parts(self.row_of(numbers), skips, lengths, wanted)
        distinct, inverse = np.unique(numbers, return_inverse=True)
        documents = self.leaves(distinct)
        self._check_unchanged(distinct, documents)
        bounds = list(zip(inverse.tolist(), skips.tolist(), (skips + lengths).tolist(), strict=True))
        return [
            np.concatenate([np.empty(0, dtype), *(documents[index][leaf][low:high] for index, low, high in bounds)])
            if want
            else None
            for leaf, (dtype, want) in enumerate(zip(self.form.dtypes, wanted, strict=True))
        ]

    def whole(self, numbers: Integers) -> list[NDArray[Any]]:
        """Every leaf of whole documents, concatenated."""
        distinct, inverse = np.unique(numbers, return_inverse=True)
        documents = self.leaves(distinct)
        self._check_unchanged(distinct, documents)
        return [
            np.concatenate([np.empty(0, dtype), *(documents[index][leaf] for index in inverse.tolist())])
            for leaf, dtype in enumerate(self.form.dtypes)
        ]

    def lengths(self, progress: bool | None) -> Integers:
        """int64[n]: length of every document, from the source, or else measured by reading all documents in threads."""
        known = self._known_lengths()
        return self.measure_lengths(progress)[:, 0].copy() if known is None else known

    def _known_lengths(self) -> Integers | None:
        out = np.empty(self.size, np.int64)
        for start in range(0, self.size, _LENGTHS_PER_CALL):
            numbers = np.arange(start, min(start + _LENGTHS_PER_CALL, self.size))
            lengths = self._reader.lengths(self.row_of(numbers))
            if lengths is None:
                return None
            out[numbers] = lengths
        if (out < 0).any():
            wrong = np.flatnonzero(out < 0)[:1]
            raise SourceError(
                f"{self.source.type_name}.lengths gave {out[wrong[0]]} for row {int(self.row_of(wrong)[0])}; "
                "return the length of each document, 0 or more"
            )
        return out

    def measure_lengths(self, progress: bool | None) -> Integers:
        """int64[n, leaves], or int64[n, 1] if all leaves are equally long: lengths, by reading all documents."""
        out = np.empty((self.size, len(self.form.dtypes) if self._by_leaf else 1), np.int64)
        over, caller = threading.Event(), Caller()
        workers = max(self.concurrent_reads, min(8, os.cpu_count() or 1))

        def measure(start: int) -> int:
            numbers = np.arange(start, min(start + _DOCUMENTS_PER_READ, self.size))
            if over.is_set():
                return 0
            out[numbers] = [self._measured(leaves) for leaves in self.leaves(numbers)]
            return len(numbers)

        with (
            progress_bar("reading lengths", self.size, "document", progress) as done,
            ThreadPoolExecutor(workers, "loadax-lengths") as pool,
        ):
            try:
                for count in pool.map(partial(caller.run, measure), range(0, self.size, _DOCUMENTS_PER_READ)):
                    done(count)
            finally:
                over.set()
        return out

    def identity(self) -> dict[str, Any]:
        """The facts that identify these documents, regardless of their location; see `loadax.writing.identity`."""
        sample = self.leaves(spread(self.size, _SAMPLE))
        return {
            "documents": self.size,
            "order": self.order.describe(),
            "maps": self.describe_maps(),
            "functions": [fingerprint(transform.function).digest for transform in self._reader.maps],
            "leaves": [[path, str(dtype)] for path, dtype in zip(self.form.paths, self.form.dtypes, strict=True)],
            "contents of a sample": digest_of(leaf for leaves in sample for leaf in leaves),
            **identify(self._reader.source),
        }

    def describe_order(self) -> list[Any]:
        """The order of the documents, as JSON."""
        return self.order.describe()

    def describe_maps(self) -> list[Any]:
        """The maps before packing, as JSON."""
        return self._reader.describe()

    def _find_form(self) -> Form:
        """The form of the first document without an empty leaf, or of the first one."""
        forms: list[Form] = []
        for index in range(min(self.size, _DOCUMENTS_PER_READ)):
            visits = self.visits(np.array([index]))
            example, row = self._reader.examples(visits)[0], int(visits.rows[0])
            forms.append(Form(example, row, self._by_leaf))
            if all(map(len, forms[-1].leaves(example, row))):
                return forms[-1]
        return forms[0]

    def _measured(self, leaves: list[NDArray[Any]]) -> list[int]:
        """Lengths of a document: of each leaf, or the one that all leaves have."""
        return [len(leaf) for leaf in (leaves if self._by_leaf else leaves[:1])]

    def _check_unchanged(self, numbers: Integers, documents: list[list[NDArray[Any]]]) -> None:
        if self.known is None:
            return
        known = self.known.reshape(self.size, -1)[numbers].tolist()
        for index, leaves, lengths in zip(numbers.tolist(), documents, known, strict=True):
            found = self._measured(leaves)
            if found != lengths:
                raise LeafError(
                    f"row {int(self.row_of(np.array([index]))[0])} has length {', '.join(map(str, found))}, "
                    f"but had length {', '.join(map(str, lengths))} when it was packed; "
                    "data and maps must return the same on every read: "
                    "call pack() again, and apply random maps after it"
                )


def pack(
    reader: Reader,
    order: Order,
    options: PackOptions,
    index: Any,
    progress: bool | None,
    value: Any,
    bos: Any = None,
    given: bool = False,
) -> PackedSource:
    """Packs the documents that a reader returns in an order; see `Dataset.pack`.

    `given`: whether documents bring shifted targets.
    """
    options.check()
    folder = open_index(reader, index)
    documents = Documents(reader, order)
    if not given:
        _warn_of_shifted(documents)
    check = partial(_check_lengths, documents=documents.size)
    lengths = cached(folder, "lengths", documents.identity, check, partial(_compute_lengths, documents, progress))
    if not documents.flat:
        documents.known = lengths.arrays["lengths"]
    plan = _cached_plan(documents, lengths, options, folder, bos is not None)
    facts = plan.facts
    described = [
        "pack",
        PACK_VERSION,
        *options.described,
        lengths.facts["digest"],
        documents.describe_order(),
        documents.describe_maps(),
        *([["value", value]] if value else []),  # states of runs without it stay as they are
        *([["bos", bos]] if bos is not None else []),
        *([["targets", "given"]] if given else []),
    ]
    rows = packed(options.method, options.seq_len, plan.arrays, options.align)
    summary = (
        f"{documents.size} documents packed by {options.method} into rows of {options.seq_len}, "
        f"{facts['entries'] / rows.size / options.seq_len:.1%} full"
        + "".join(
            f", {count_text(facts[name], 'document')} {said}" for name, said in _COUNT_TEXTS.items() if facts[name]
        )
    )
    return PackedSource(documents, rows, options.seq_len, described, summary, value, bos, given)


def _warn_of_shifted(documents: Documents) -> None:
    """Warns if a leaf of the first documents is another one without its first entry, as targets are."""
    dtypes, paths = documents.form.dtypes, documents.form.paths
    ints = [leaf for leaf, dtype in enumerate(dtypes) if dtype.kind in "iu"]
    sample = documents.leaves(np.arange(min(documents.size, _SHIFTED_SAMPLE))) if len(ints) > 1 else []
    long = [leaves for leaves in sample if len(leaves[0]) >= _SHIFTED_LENGTH]
    for one, other in permutations(ints, 2):
        # Leaves of few distinct values, such as roles, may look shifted by chance.
        varied = dtypes[one] == dtypes[other] and any(len(np.unique(leaves[one])) > 2 for leaves in long)
        if varied and all(np.array_equal(leaves[one][1:], leaves[other][:-1]) for leaves in long):
            warnings.warn(
                f"leaf {paths[other]} of the documents is {paths[one]} shifted by one entry, so the first target of "
                "each document can be predicted, but `loss_mask` is False there; pass pack(…, targets='given'), with "
                "which it is True for all entries of documents",
                UserWarning,
                stacklevel=4,
            )
            return


def open_index(reader: Reader, index: Any) -> IndexFolder | None:
    """The index folder of documents; None if there is none, or if their maps can't be identified, which is logged."""
    if index is None:
        return None
    folder = IndexFolder(index)
    reason = unrecognised(transform.function for transform in reader.maps)
    if reason is None:
        return folder
    _log.warning("index %s is neither read nor written: %s; use a plain function", index, reason)
    return None


def cached(
    folder: IndexFolder | None,
    name: str,
    identify: Callable[[], dict[str, Any]],
    check: Callable[[Entry], object],
    compute: Callable[[], Entry],
) -> Entry:
    """An entry of an index folder, computed where it is missing or there is no folder."""
    if folder is None:
        return compute()
    identity = identify()
    entry = folder.get(name, identity, check)
    if entry is None:
        entry = compute()
        folder.put(name, identity, entry)
    return entry


def _compute_lengths(documents: Documents, progress: bool | None) -> Entry:
    lengths = documents.lengths(progress)
    return Entry({"lengths": lengths}, {"digest": digest_values(lengths)})


def _cached_plan(
    documents: Documents, lengths: Entry, options: PackOptions, folder: IndexFolder | None, with_bos: bool
) -> Entry:
    # A plan depends only on its name and the lengths, so plans with different options share the folder.
    later = [part for option in options.described[4:] for part in option]
    name = "-".join(
        map(
            str, (options.method, options.seq_len, options.long, options.window, *later, *(["bos"] if with_bos else []))
        )
    )
    known = lengths.arrays["lengths"]
    if with_bos:
        known = known + (known > 0)

    def plan() -> Entry:
        noun = "document with its bos entry" if with_bos else "document"
        arrays = plan_arrays(
            known, *options, row_of=lambda index: int(documents.row_of(np.array([index]))[0]), noun=noun
        )
        entry = Entry(arrays, _counts(known, options))
        for count_name, reason in (("empty", "empty"), ("dropped", f"longer than {options.seq_len}, and dropped")):
            if count := entry.facts[count_name]:
                _log.info("pack: %d of %d documents are %s", count, documents.size, reason)
        return entry

    check = partial(_check_plan, known=known, options=options)
    return cached(folder, name, lambda: {"lengths": lengths.facts["digest"], "version": PACK_VERSION}, check, plan)


def _check_lengths(entry: Entry, documents: int) -> None:
    lengths = check_array(entry, "lengths", np.int64, documents, 0)
    check_digest(entry, "lengths")
    if np.sum(lengths, dtype=np.float64) >= _LARGEST:
        raise ValueError("all lengths together are larger than any file")


def _check_plan(entry: Entry, known: Integers, options: PackOptions) -> None:
    if entry.facts != _counts(known, options):
        raise ValueError("its counts are not those of the lengths")
    check_arrays(entry.arrays, known, options.seq_len, options.method, options.long, options.align)


def _counts(lengths: Integers, options: PackOptions) -> dict[str, int]:
    too_long = lengths > options.seq_len
    dropped = too_long if options.long == "drop" else np.zeros_like(too_long)
    return {
        "entries": int(lengths.sum()) - int(lengths[dropped].sum()),
        "empty": int((lengths == 0).sum()),
        "cut": int(too_long.sum()) if options.method != "split" and options.long == "cut" else 0,
        "dropped": int(dropped.sum()),
    }
