"""Packs documents whose leaves have different lengths into rows with a length for each leaf."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from loadax.core.arguments import choice, integer
from loadax.core.formatting import count_text
from loadax.errors import ArgumentError
from loadax.packing import Documents, cached, open_index
from loadax.plan.pack_by_leaf import PACK_BY_LEAF_VERSION, check_by_leaf, packable, plan_by_leaf, plans_by_leaf
from loadax.protocols import Order
from loadax.reader import Reader
from loadax.sources.io.index_folder import Entry, IndexFolder, check_array, check_digest, digest_values
from loadax.sources.wrappers.packed_by_leaf import PackedByLeaf

_WINDOW = 1 << 12  # default number of documents that are packed together, each of which is compared with all open rows


class LeafPackOptions(NamedTuple):
    """The arguments of `Dataset.pack` that decide the packed rows, if it is given a length for each leaf."""

    seq_lens: dict[str, int]
    method: str
    long: str
    window: int
    most_documents: int | None


def leaf_pack_options(
    seq_lens: Mapping[Any, Any], method: Any, long: Any, window: Any, align: Any, most_documents: Any, bos: Any
) -> LeafPackOptions:
    """The arguments of `Dataset.pack` as options.

    Raises:
        ArgumentError: When one can't be used.
    """
    if not seq_lens:
        raise ArgumentError(
            "seq_len={} has no leaves; pass a length for each leaf of the documents", argument="seq_len"
        )
    lengths = {name: integer(f"seq_len[{name!r}]", length, 1) for name, length in seq_lens.items()}
    for name, length in lengths.items():
        if length >= 1 << 31:
            raise ArgumentError(f"seq_len[{name!r}]={length}: pass less than 2^31")
    choice(
        "method",
        method,
        ("best_fit", "first_fit"),
        "'best_fit' or 'first_fit': with a length for each leaf, documents are never cut",
    )
    choice("long", long, ("error", "drop"), "'error' or 'drop': with a length for each leaf, documents are never cut")
    for name, value, default in (("align", align, 1), ("bos", bos, None)):
        if value is not default and value != default:
            raise ArgumentError(
                f"{name}={value!r} is for one seq_len, not for a length for each leaf; leave it out, "
                "and add such entries in a map before pack()",
                argument=name,
            )
    most = None if most_documents is None else integer("most_documents", most_documents, 1)
    return LeafPackOptions(lengths, method, long, _WINDOW if window is None else integer("window", window, 1), most)


def pack_by_leaf(
    reader: Reader, order: Order, options: LeafPackOptions, index: Any, progress: bool | None, value: Any
) -> PackedByLeaf:
    """Packs the documents that a reader returns in an order; see `Dataset.pack`."""
    folder = open_index(reader, index)
    documents = Documents(reader, order, by_leaf=True)
    leaves = documents.form.build(list(range(len(documents.form.dtypes))))
    if set(leaves) != set(options.seq_lens) or not all(isinstance(number, int) for number in leaves.values()):
        raise ArgumentError(
            f"seq_len={options.seq_lens} does not name the leaves of the documents, which are "
            f"{', '.join(documents.form.paths)}; "
            "pass a length for each of them, or drop the others in a map",
            argument="seq_len",
        )
    names = sorted(leaves, key=leaves.__getitem__)
    options = options._replace(seq_lens={name: options.seq_lens[name] for name in names})
    lengths = _cached_lengths(documents, folder, progress)
    known = documents.known = lengths.arrays["lengths"].reshape(documents.size, len(names))
    plan = _cached_plan(documents, lengths, options, folder)
    rows = plans_by_leaf(plan.arrays, known)
    described = [
        "pack by leaf",
        PACK_BY_LEAF_VERSION,
        *options,
        lengths.facts["digest"],
        documents.describe_order(),
        documents.describe_maps(),
        value,
    ]
    full = ", ".join(
        f"{name} {each.entries / each.size / seq_len:.1%}"
        for each, (name, seq_len) in zip(rows, options.seq_lens.items(), strict=True)
    )
    empty = int((~known.any(axis=1)).sum())
    dropped = documents.size - empty - len(plan.arrays["documents"])
    summary = f"{documents.size} documents packed by {options.method} into rows of {options.seq_lens}, full: {full}"
    for count, said in ((empty, "empty and left out"), (dropped, "too long and left out")):
        summary += f", {count_text(count, 'document')} {said}" if count else ""
    return PackedByLeaf(documents, rows, options.seq_lens, described, summary, value)


def _cached_lengths(documents: Documents, folder: IndexFolder | None, progress: bool | None) -> Entry:
    def measured() -> Entry:
        lengths = documents.measure_lengths(progress).reshape(-1)
        return Entry({"lengths": lengths}, {"digest": digest_values(lengths)})

    def check(entry: Entry) -> None:
        check_array(entry, "lengths", np.int64, documents.size * len(documents.form.dtypes), 0, 1 << 40)
        check_digest(entry, "lengths")

    return cached(folder, "lengths-by-leaf", documents.identity, check, measured)


def _cached_plan(documents: Documents, lengths: Entry, options: LeafPackOptions, folder: IndexFolder | None) -> Entry:
    known, seq_lens = documents.known, options.seq_lens
    assert known is not None
    # Leaves are in the identity of the lengths; their names may not be fit for a file's.
    name = "-".join(map(str, ("by-leaf", options.method, *seq_lens.values(), *options[2:])))
    identity = {"lengths": lengths.facts["digest"], "version": PACK_BY_LEAF_VERSION}

    def plan() -> Entry:
        arrays = plan_by_leaf(
            known,
            seq_lens,
            options.method == "best_fit",
            options.long == "drop",
            options.window,
            options.most_documents,
            lambda number: int(documents.row_of(np.array([number]))[0]),
        )
        return Entry(arrays, {"documents": len(packable(known, seq_lens))})

    return cached(folder, name, lambda: identity, lambda entry: check_by_leaf(entry.arrays, known, seq_lens), plan)
