"""Packs documents into rows: measures their lengths, plans the rows, and keeps both in an index folder."""

import hashlib
import json
import os
import warnings
from collections.abc import Callable, Iterable, Sequence
from itertools import permutations
from typing import Any

import numpy as np

from loadax.core.digest import digest_values
from loadax.core.formatting import count_text
from loadax.core.log import log
from loadax.kept.index_folder import Entry, IndexFolder, cached, check_digest
from loadax.kept.kept_pass import PassOptions, check_index, kept_pass
from loadax.packing.documents import Documents, LengthWork
from loadax.packing.form import Column, Form
from loadax.packing.packed import Group, PackedSource
from loadax.packing.packed_rows import Filling, PackedRows
from loadax.plan.fixed_part import describe_first_epoch
from loadax.plan.pack import (
    DOCUMENTS,
    PACK_VERSION,
    Packed,
    PackOptions,
    check_arrays,
    packed,
    plan_arrays,
)
from loadax.protocols import Integers, Order
from loadax.reader import Reader
from loadax.row_index.build import Options

# documents that are searched for shifted targets, and entries of these
_SHIFTED_SAMPLE = 8
_SHIFTED_LENGTH = 4
_LARGEST = 1 << 62  # bytes, more than any file has

# The counts that the summary mentions, and their descriptions.
_COUNT_TEXTS = {
    "empty": "empty and left out",
    "single": "too short for a target and left out",
    "cut": "cut",
    "dropped": "too long and left out",
}


def pack(
    reader: Reader,
    order: Order,
    options: PackOptions,
    filling: Filling,
    scan: Options,
) -> PackedSource:
    """Packs the documents that a reader returns in an order; see `Dataset.pack`."""
    folder = _open_index(reader, scan)
    documents = Documents(reader, order, options, scan.key)
    options = documents.options
    if not (filling.given or options.shift or options.by_leaf):
        warn_of_shifted(
            documents.form,
            lambda: documents.columns(
                np.arange(min(documents.size, _SHIFTED_SAMPLE))
            ),
        )
    workers = max(documents.traits.concurrent_reads, min(8, os.cpu_count() or 1))
    lengths, digest = _cached_lengths(
        documents, folder, PassOptions(workers, scan.executor, scan.progress)
    )
    if not documents.flat:
        documents.known = lengths
    plans = packed(
        options, _cached_arrays(documents, lengths, digest, options, folder), lengths
    )
    described = [
        "pack by leaf" if options.by_leaf else "pack",
        PACK_VERSION,
        *options.described,
        digest,
        describe_first_epoch(documents.order),
        documents.reader.describe(),
        # States of runs without these stay as they are.
        *(
            [filling.value]
            if options.by_leaf
            else [["value", filling.value]]
            if filling.value
            else []
        ),
        *([["bos", filling.bos]] if options.bos else []),
        *([["targets", "given"]] if filling.given else []),
        *options.newer,
    ]
    groups = [
        Group(name, plan)
        for name, plan in zip([*options.seq_lens, DOCUMENTS], plans, strict=False)
    ]
    rows = PackedRows(documents.form, options, filling)
    return PackedSource(
        documents,
        groups,
        rows,
        described,
        _summary(documents, lengths, options, plans),
    )


def warn_of_shifted(
    form: Form, first_documents: Callable[[], Sequence[Column]]
) -> None:
    """Warns if a leaf of the first documents is another one without its first entry, as targets are."""
    dtypes = form.dtypes
    paths = form.paths
    ints = [
        leaf
        for leaf, dtype in enumerate(dtypes)
        if dtype.kind in "iu" and not form.groups[leaf]
    ]
    if len(ints) > 1:
        sample = first_documents()
    else:
        sample = []
    long = [
        leaves
        for leaves in zip(*sample, strict=True)
        if len(leaves[ints[0]]) >= _SHIFTED_LENGTH
    ]
    for one, other in permutations(ints, 2):
        # Leaves of few distinct values, such as roles, may look shifted by chance.
        varied = dtypes[one] == dtypes[other] and any(
            len(np.unique(leaves[one])) > 2 for leaves in long
        )
        if varied and all(
            np.array_equal(leaves[one][1:], leaves[other][:-1]) for leaves in long
        ):
            warnings.warn(
                f"leaf {paths[other]} of the documents is {paths[one]} shifted by "
                "one entry, so the first target of each document can be predicted, "
                "but `loss_mask` is False there; pass pack(…, targets='given'), with "
                "which it is True for all entries of documents",
                UserWarning,
                stacklevel=4,
            )
            return


def _open_index(reader: Reader, scan: Options) -> IndexFolder | None:
    """The index folder of documents; None if there is none, or if their maps can't be identified, which is logged."""
    if scan.index is None:
        return None
    from loadax.core.fingerprint import unrecognised
    from loadax.row_index.index_identity import refuse_shared

    folder = IndexFolder(scan.index)
    if scan.key is not None:
        reason = None
    else:
        reason = unrecognised(transform.function for transform in reader.maps)
    if reason is None:
        return folder
    refuse_shared(
        scan.index,
        f"{reason}; pass key=, a text that you change with the maps",
        scan.executor,
    )
    return None


def _cached_lengths(
    documents: Documents, folder: IndexFolder | None, options: PassOptions
) -> tuple[Integers, str]:
    """Lengths of the documents, int64[n, lengths], and their digest."""

    def check(entry: Entry) -> None:
        lengths = check_digest(
            entry, "lengths", np.int64, documents.size * documents.form.num_lengths, 0
        )
        if np.sum(lengths, dtype=np.float64) >= _LARGEST:
            raise ValueError("all lengths together are larger than any file")

    def entry_of(parts: Iterable[Integers]) -> Entry:
        lengths = np.concatenate([part.reshape(-1) for part in parts])
        return Entry({"lengths": lengths}, {"digest": digest_values(lengths)})

    if documents.options.by_leaf:
        name = "lengths-by-leaf"
    else:
        name = "lengths"
    if documents.options.leaves:
        name += (
            "-"
            + hashlib.sha256(
                json.dumps(documents.options.leaves).encode()
            ).hexdigest()[:8]
        )
    known = documents.known_lengths()
    if known is not None:
        entry = cached(
            folder, name, documents.identity, check, lambda: entry_of([known])
        )
    else:
        check_index(folder, "pack", count_text(documents.size, "document"))
        entry = kept_pass(
            folder,
            name,
            documents.identity,
            check,
            lambda: LengthWork(documents),
            lambda parts: entry_of(part["lengths"] for part in parts),
            options,
        )
    return entry.arrays["lengths"].reshape(
        documents.size, documents.form.num_lengths
    ), entry.facts["digest"]


def _cached_arrays(
    documents: Documents,
    lengths: Integers,
    digest: str,
    options: PackOptions,
    folder: IndexFolder | None,
) -> Any:
    """The arrays of the plan. They depend only on its name and the lengths, so plans share a folder."""

    def make() -> Entry:
        arrays = plan_arrays(
            lengths,
            options,
            lambda number: int(documents.row_of(np.array([number]))[0]),
        )
        counts = _counts(lengths, options)
        for name, count in counts.items():
            if count:
                log.info(
                    "pack: %d of %d documents are %s",
                    count,
                    documents.size,
                    _COUNT_TEXTS[name],
                )
        return Entry(arrays, counts)

    return cached(
        folder,
        options.name,
        lambda: {"lengths": digest, "version": PACK_VERSION},
        lambda entry: check_arrays(entry.arrays, lengths, options),
        make,
    ).arrays


def _counts(lengths: Integers, options: PackOptions) -> dict[str, int]:
    """Numbers of documents that are not as they were given."""
    full = options.lengths(lengths)
    too_long = int((full > options.sizes).any(axis=1).sum())
    return {
        "single" if options.shift else "empty": int((~full.any(axis=1)).sum()),
        "cut": too_long if options.method != "split" and options.long == "cut" else 0,
        "dropped": too_long
        if options.method != "split" and options.long == "drop"
        else 0,
    }


def _summary(
    documents: Documents, lengths: Integers, options: PackOptions, plans: list[Packed]
) -> str:
    shares = ", ".join(
        f"{name} {plan.entries / plan.size / size:.1%}".strip()
        for (name, size), plan in zip(options.seq_lens.items(), plans, strict=False)
    )
    counts = [
        f"{count_text(count, 'document')} {_COUNT_TEXTS[name]}"
        for name, count in _counts(lengths, options).items()
        if count
    ]
    packed_rows = (
        f"{count_text(documents.size, 'document')} packed by {options.method} into "
        f"rows of {options.seq_len}"
    )
    return ", ".join(
        [
            packed_rows,
            f"full: {shares}" if options.by_leaf else f"{shares} full",
            *counts,
        ]
    )
