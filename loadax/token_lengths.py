"""Lengths of the rows of a mixture's datasets, for `mix(by="tokens")`."""

import hashlib
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from loadax.dataset import Dataset
from loadax.errors import ArgumentError
from loadax.plan.mix import Mixed
from loadax.plan.order import depth_first
from loadax.plan.sample import Sampled
from loadax.plan.subset import met_rows
from loadax.plan.token_turns import Lengths, PartTokens
from loadax.protocols import Array, Integers
from loadax.row_index.build import Question, answers, scan_options
from loadax.row_index.integers import check_integers
from loadax.row_index.lengths import lengths_in

_VERB = "mix(by='tokens')"
_CHUNK = 1 << 20  # rows whose lengths are hashed together


def part_tokens(
    name: str, part: Dataset, leaf: str, index: Any, key: str | None
) -> PartTokens:
    """Tokens of a dataset of a mixture.

    Args:
        name: Its name.
        part: The dataset.
        leaf: Name of the leaf whose length counts.
        index: Folder of the lengths of all datasets; None: they are not kept.
        key: Identifier of the maps in it.

    Raises:
        ArgumentError: If the rows or their lengths are not the same in every epoch, or all are empty.
        LeafError: If a row has no such leaf.
    """
    if part.is_stream:
        raise ArgumentError(
            f"{_VERB}: the lengths of stream {name!r} are not known before it is "
            "read; mix rows of ds.pack(…), or by='example'"
        )
    order = part.order
    if any(isinstance(below, Mixed | Sampled) for below in depth_first(order)):
        raise ArgumentError(
            f"{_VERB}: dataset {name!r} draws other rows in every epoch; pass its "
            "own datasets to one mix()"
        )
    num_rows = part.reader.num_rows
    try:
        met = met_rows(order, _VERB, num_rows)
    except ArgumentError as error:
        raise ArgumentError(
            f"{_VERB}: dataset {name!r} may have other rows in every epoch; slice "
            "before shuffle(), and shuffle with loadax"
        ) from error
    if any(each.rng or each.with_epoch for each in part.maps):
        raise ArgumentError(
            f"{_VERB}: dataset {name!r} has maps that change rows in every epoch, and "
            "perhaps their lengths; map after mix()"
        )
    lengths = _lengths(name, part, leaf, met, index, key)
    digest = hashlib.sha256()
    for start in range(0, num_rows, _CHUNK):
        rows = np.arange(start, min(start + _CHUNK, num_rows), dtype=np.int64)
        digest.update(lengths(rows[met[rows]]).astype("<i8").data)
    return PartTokens(name, order, lengths, digest.hexdigest()[:16])


def _lengths(
    name: str, part: Dataset, leaf: str, met: Array, index: Any, key: str | None
) -> Lengths:
    """Function of rows that returns their lengths: from offsets of the source, or of an index."""
    alone = part
    if leaf in _leaves(part):
        alone = part.keep(leaf)
    for reader in (part.reader, alone.reader):
        if reader.lengths(np.flatnonzero(met)[:1]) is not None:
            return partial(_known, reader)
    question = Question(
        "mix",
        leaf,
        partial(lengths_in, _VERB, leaf),
        np.int64,
        ["length", leaf],
        None,
        partial(check_integers, 1),
    )
    if index is None:
        folder = None
    else:
        folder = Path(index) / name
    options = scan_options(folder, None, None, None, key)
    found, _ = answers(question, alone.reader, met, options)
    by_row = np.zeros(len(met), np.int64)
    by_row[met] = found
    return by_row.__getitem__


def _leaves(part: Dataset) -> list[str]:
    if isinstance(part.spec, dict):
        return [*part.spec]
    return []


def _known(reader: Any, rows: Integers) -> Integers:
    """Lengths that a source knows."""
    lengths: Integers = reader.lengths(rows)
    return lengths
