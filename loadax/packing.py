"""Packs documents into rows: measures them, plans the rows, keeps both in an index on disk."""

import copy
import logging
import os
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, final, get_args

import numpy as np
from numpy.typing import NDArray

from loadax.core.arguments import choice
from loadax.core.fingerprint import fingerprint
from loadax.core.formatting import count_text, name_of
from loadax.core.progress import progress_bar
from loadax.errors import ArgumentError, LeafError, SourceError
from loadax.plan.order import check_fixed_rows
from loadax.plan.pack import PACK_VERSION, Long, Method, packed, plan_arrays
from loadax.protocols import Integers, Order, Visits
from loadax.reader import Reader
from loadax.row_index.index_folder import Entry, IndexFolder, digest_values
from loadax.sources.base import BaseSource
from loadax.sources.wrappers.document_form import Form
from loadax.sources.wrappers.packed import PackedSource
from loadax.transforms import BatchMap, Transform
from loadax.writing.identity import digest_of, identify, spread

_log = logging.getLogger("loadax")

WINDOW = 1 << 20  # documents that are fitted together by default
_ENDLESS = 1 << 40  # documents: no data has so many
_TOGETHER = 512  # documents that one thread reads at a time
_SAMPLE = 32  # documents whose contents tell data from other data
_KNOWN_AT_ONCE = 1 << 20  # rows whose lengths are asked for at a time


class PackOptions(NamedTuple):
    """The arguments of `Dataset.pack` that decide the rows."""

    seq_len: int
    method: Method
    long: Long
    window: int

    def check(self) -> None:
        """Raises an ArgumentError when a value can't be used."""
        choice(
            "method", self.method, get_args(Method), "'split' (cut everywhere), 'best_fit' or 'first_fit' (cut nowhere)"
        )
        choice(
            "long", self.long, get_args(Long), "'error', 'cut' or 'drop': what becomes of documents longer than seq_len"
        )
        if self.method == "split" and self.long != "error":
            raise ArgumentError(
                f"long={self.long!r} is for best_fit and first_fit: method='split' cuts documents anyway; leave it out"
            )
        if self.seq_len >= 1 << 31:
            raise ArgumentError(f"seq_len={self.seq_len}: pass less than 2^31")


# The counts that a message mentions, and its words for them.
_SAID = {"empty": "empty and left out", "cut": "cut", "dropped": "too long and left out"}


@final
class Documents:
    """The documents at the positions of an order, as epoch 0 meets them.

    See `loadax.sources.wrappers.packed.Documents`.

    Args:
        reader: of the documents.
        order: which of them, and in which order.

    Raises:
        ArgumentError: when there are none or endlessly many, or a map is random.
        LeafError: when a record is no document; names its row.
    """

    def __init__(self, reader: Reader, order: Order):
        if not order.size:
            raise ArgumentError("pack() of a dataset without documents; nothing would be left to pack")
        if order.size >= _ENDLESS:
            raise ArgumentError(
                "pack() of a dataset that never ends; mix with stop='first' or 'all', or pack before you mix"
            )
        check_fixed_rows(order, "pack()")
        if reader.random:
            raise ArgumentError(
                "pack() reads documents as epoch 0 does, once, but a map before it is random; "
                "pack first, then map at random"
            )
        for each in reader.maps:
            if isinstance(each, BatchMap):
                raise ArgumentError(
                    f"map_batch {name_of(each.function)} wants rows that are all alike, but documents are read one by "
                    "one; use map before pack"
                )
        self._reader, self.order, self.size = reader, order, order.size
        self.flat = reader.reads_parts
        self.depth = reader.depth
        self.form = self._find_form()
        self.known: Integers | None = None
        """The lengths, where documents are read whole: what they must still be."""

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
        """Where the documents are."""
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
        once, which = np.unique(numbers, return_inverse=True)
        documents = self.leaves(once)
        self._check_unchanged(once, documents)
        bounds = list(zip(which.tolist(), skips.tolist(), (skips + lengths).tolist(), strict=True))
        return [
            np.concatenate([np.empty(0, dtype), *(documents[each][leaf][low:high] for each, low, high in bounds)])
            if want
            else None
            for leaf, (dtype, want) in enumerate(zip(self.form.dtypes, wanted, strict=True))
        ]

    def lengths(self, progress: bool | None) -> Integers:
        """How long every document is: as the source says, or found by reading all of them, in threads."""
        known = self._known_lengths()
        return self._measured(progress) if known is None else known

    def _known_lengths(self) -> Integers | None:
        out = np.empty(self.size, np.int64)
        for start in range(0, self.size, _KNOWN_AT_ONCE):
            numbers = np.arange(start, min(start + _KNOWN_AT_ONCE, self.size))
            found = self._reader.lengths(self.row_of(numbers))
            if found is None:
                return None
            out[numbers] = found
        if (out < 0).any():
            wrong = np.flatnonzero(out < 0)[:1]
            raise SourceError(
                f"{self.source.type_name}.lengths says that row {int(self.row_of(wrong)[0])} has {out[wrong[0]]} "
                "entries; give the length of each document, 0 or more"
            )
        return out

    def _measured(self, progress: bool | None) -> Integers:
        out = np.empty(self.size, np.int64)
        over = threading.Event()
        workers = max(self.concurrent_reads, min(8, os.cpu_count() or 1))

        def measure(start: int) -> int:
            numbers = np.arange(start, min(start + _TOGETHER, self.size))
            if over.is_set():
                return 0
            out[numbers] = [len(leaves[0]) for leaves in self.leaves(numbers)]
            return len(numbers)

        with (
            progress_bar("reading lengths", self.size, "document", progress) as done,
            ThreadPoolExecutor(workers, "loadax-lengths") as pool,
        ):
            try:
                for count in pool.map(measure, range(0, self.size, _TOGETHER)):
                    done(count)
            finally:
                over.set()
        return out

    def identity(self) -> dict[str, Any]:
        """What tells these documents from others: where they lie is not part of it; see `loadax.writing.identity`."""
        sample = self.leaves(spread(self.size, _SAMPLE))
        return {
            "documents": self.size,
            "order": self.order.describe(),
            "maps": self.describe_maps(),
            "functions": [fingerprint(each.function).digest for each in self._reader.maps],
            "leaves": [[path, str(dtype)] for path, dtype in zip(self.form.paths, self.form.dtypes, strict=True)],
            "contents of a sample": digest_of(leaf for leaves in sample for leaf in leaves),
            **identify(self._reader.source),
        }

    def describe_order(self) -> list[Any]:
        """What decides which documents there are, and their order, as JSON."""
        return self.order.describe()

    def describe_maps(self) -> list[Any]:
        """The maps before, as JSON."""
        return self._reader.describe()

    def _find_form(self) -> Form:
        """Of the first document that is not empty, or of the first."""
        forms: list[Form] = []
        for number in range(min(self.size, _TOGETHER)):
            visits = self.visits(np.array([number]))
            example, row = self._reader.examples(visits)[0], int(visits.rows[0])
            forms.append(Form(example, row))
            if len(forms[-1].leaves(example, row)[0]):
                return forms[-1]
        return forms[0]

    def _check_unchanged(self, numbers: Integers, documents: list[list[NDArray[Any]]]) -> None:
        if self.known is None:
            return
        for number, leaves, length in zip(numbers.tolist(), documents, self.known[numbers].tolist(), strict=True):
            if len(leaves[0]) != length:
                raise LeafError(
                    f"row {int(self.row_of(np.array([number]))[0])} is a document of {len(leaves[0])} now, "
                    f"and was one of {length} when it was packed; data and maps must give the same every time: "
                    "pack anew, and map at random behind pack"
                )


def pack(reader: Reader, order: Order, options: PackOptions, index: Any, progress: bool | None) -> PackedSource:
    """The packed rows of the documents that a reader gives in an order; see `Dataset.pack`."""
    options.check()
    folder = None if index is None else IndexFolder(index)
    documents = Documents(reader, order)
    lengths = _kept_lengths(documents, folder, progress)
    if not documents.flat:
        documents.known = lengths.arrays["lengths"]
    plan = _kept_plan(documents, lengths, options, folder)
    facts = plan.facts
    described = [
        "pack",
        PACK_VERSION,
        *options,
        lengths.facts["digest"],
        documents.describe_order(),
        documents.describe_maps(),
    ]
    rows = packed(options.method, options.seq_len, plan.arrays)
    summary = (
        f"{documents.size} documents packed by {options.method} into rows of {options.seq_len}, "
        f"{facts['entries'] / rows.size / options.seq_len:.1%} full"
        + "".join(f", {count_text(facts[name], 'document')} {said}" for name, said in _SAID.items() if facts[name])
    )
    return PackedSource(documents, rows, options.seq_len, described, summary)


def _kept_lengths(documents: Documents, folder: IndexFolder | None, progress: bool | None) -> Entry:
    if folder is None:
        return _found_lengths(documents, progress)
    identity = documents.identity()
    kept = folder.get("lengths", identity)
    if kept is None:
        kept = _found_lengths(documents, progress)
        folder.put("lengths", identity, kept)
    return kept


def _found_lengths(documents: Documents, progress: bool | None) -> Entry:
    lengths = documents.lengths(progress)
    return Entry({"lengths": lengths}, {"digest": digest_values(lengths)})


def _kept_plan(documents: Documents, lengths: Entry, options: PackOptions, folder: IndexFolder | None) -> Entry:
    # All that decides a plan is in its name and in the lengths, so that plans of several kinds lie side by side.
    name = "-".join(map(str, (options.method, options.seq_len, options.long, options.window)))
    identity = {"lengths": lengths.facts["digest"], "version": PACK_VERSION}
    kept = None if folder is None else folder.get(name, identity)
    if kept is not None:
        return kept
    known = lengths.arrays["lengths"]
    arrays = plan_arrays(known, *options, row_of=lambda number: int(documents.row_of(np.array([number]))[0]))
    made = Entry(arrays, _facts(known, options))
    for what, count in made.facts.items():
        if what in ("empty", "dropped") and count:
            _log.info(
                "pack: %d of %d documents are %s",
                count,
                documents.size,
                "empty" if what == "empty" else f"longer than {options.seq_len}, and dropped",
            )
    if folder is not None:
        folder.put(name, identity, made)
    return made


def _facts(lengths: Integers, options: PackOptions) -> dict[str, int]:
    too_long = lengths > options.seq_len
    dropped = too_long if options.long == "drop" else np.zeros_like(too_long)
    return {
        "entries": int(lengths.sum()) - int(lengths[dropped].sum()),
        "empty": int((lengths == 0).sum()),
        "cut": int(too_long.sum()) if options.method != "split" and options.long == "cut" else 0,
        "dropped": int(dropped.sum()),
    }
