"""Offsets of the groups that a leaf names: one pass that keeps the first row of each group, and no value of a row."""

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadax.core.arguments import text
from loadax.core.distributed import this_process
from loadax.core.formatting import count_text
from loadax.core.leaf_selection import selection
from loadax.core.spec import flatten_spec
from loadax.core.tree import flatten
from loadax.errors import ArgumentError
from loadax.kept.index_folder import check_digest
from loadax.plan.groups.offsets import checked_offsets, seams
from loadax.plan.order import check_fixed_rows
from loadax.plan.subset import met_rows, rows_in_order
from loadax.protocols import Integers, Order
from loadax.reader import Reader
from loadax.row_index.build import Options, Question, answers, scan_options
from loadax.row_index.groups import Words, by_leaf, hashes
from loadax.row_index.scan import RowFunction, RowSpan
from loadax.sources.selection import keep_selected

_CHUNK = 1 << 20  # rows per pass
_VERB = "offsets"


def dataset_offsets(
    order: Order, reader: Reader, by: Any, options: Options
) -> Integers:
    """The offsets of the groups of a leaf, or, without one, of those that a dataset has by itself.

    Raises:
        ArgumentError: When the order varies, there is no such leaf, or rows of a group are not together.
    """
    check_fixed_order(order, "offsets()")
    if by is None:
        return np.append(seams(order, reader.source.groups), order.size)
    leaf = text("by", by, "the name of a leaf, such as 'episode'")
    return leaf_offsets(order, reader, leaf, "by", options)


def given_offsets(
    order: Order, reader: Reader, given: Any, name: str, verb: str
) -> Integers:
    """The offsets of the argument of a verb: checked, or those of the leaf that it names.

    Args:
        order: Order that does not vary.
        reader: Reader of the rows.
        given: Offsets of groups, or the name of a leaf.
        name: Name of the argument.
        verb: Name of the verb.

    Raises:
        ArgumentError: When it is neither, the order varies, or rows of a group are not together; or if each of several
            processes would read all rows.
    """
    check_fixed_order(order, f"{verb}({name}=)")
    if not isinstance(given, str):
        return checked_offsets(given, order.size, name)
    processes = this_process().count
    if processes > 1:
        raise ArgumentError(
            f"{name}={given!r} would read all rows in each of "
            f"{count_text(processes, 'process', 'processes')}; pass "
            f"{name}=data.offsets({given!r}, index=folder), with a folder that they "
            "share, so that each reads a part",
            argument=name,
        )
    options = scan_options(None, None, None, None)
    return leaf_offsets(order, reader, given, name, options)


def check_fixed_order(order: Order, verb: str) -> None:
    """Checks that groups of positions have the same rows in every epoch.

    Raises:
        ArgumentError: When they don't.
    """
    check_fixed_rows(order, verb)
    if order.varies:
        raise ArgumentError(
            f"{verb} needs the same order of rows in every epoch; call it before "
            f"{order.text()[-1]}"
        )


def leaf_groups(
    order: Order, reader: Reader, leaf: str, name: str, options: Options
) -> tuple[Integers, Words]:
    """First positions of the groups of consecutive rows with equal values of a leaf, and a hash of each value.

    Args:
        order: Order that does not vary.
        reader: Reader of the rows.
        leaf: Name of a leaf of integers or text.
        name: Name of the argument, for messages.
        options: Options of the pass over all rows.

    Raises:
        ArgumentError: When there is no such leaf.
    """
    by_leaf(reader.spec, leaf, name)  # or a selection of leaves would refuse it
    own = _of_leaf(reader, leaf, name)
    values = None if own.maps else own.source.memory
    if values is not None and not values[0].dtype.hasobject:
        starts = _starts(values[0])
        words = hashes(values[0][starts])
    else:
        starts, words = _groups_of_pass(order, own, name, leaf, options)
    if order.row_range == range(own.num_rows):
        return starts, words
    groups = np.searchsorted(starts, rows_in_order(order, _VERB), side="right") - 1
    begins = _starts(words[groups])
    return begins, words[groups[begins]]


def torn_groups(words: Words) -> tuple[Integers, Integers]:
    """Groups whose value an earlier group has too, and that earlier one, both int64[n]."""
    _, firsts, numbers = np.unique(words, return_index=True, return_inverse=True)
    earlier = firsts[numbers]
    torn = np.flatnonzero(earlier != np.arange(len(earlier)))
    return torn, earlier[torn]


def leaf_offsets(
    order: Order, reader: Reader, leaf: str, name: str, options: Options
) -> Integers:
    """The offsets of the groups of a leaf; see `leaf_groups`.

    Raises:
        ArgumentError: When there is no such leaf, or rows of a group are not together.
    """
    starts, words = leaf_groups(order, reader, leaf, name, options)
    torn, earlier = torn_groups(words)
    if len(torn):
        first = starts[earlier[0]]
        again = starts[torn[0]]
        raise ArgumentError(
            f"{name}={leaf!r}: rows {first} and {again} are of one group, and rows "
            f"of others are between them ({count_text(len(torn), 'such place')}); sort the rows "
            f"first: data.select(numpy.argsort(data.keep({leaf!r}).read(range("
            f"len(data)))[{leaf!r}], kind='stable'))",
            argument=name,
        )
    return np.append(starts, order.size)


def _of_leaf(reader: Reader, leaf: str, name: str) -> Reader:
    """A reader of one leaf, which reads no other if the source can."""
    selected = selection("keep", (leaf,), name)
    if not reader.maps:
        structure = flatten_spec(reader.spec)[1]
        kept = keep_selected(reader.source, structure, selected)
        if kept is not None:
            return replace(reader, source=kept)
    return replace(reader, maps=(*reader.maps, selected))


def _groups_of_pass(
    order: Order, reader: Reader, name: str, leaf: str, options: Options
) -> tuple[Integers, Words]:
    """First rows of groups of the rows of an order, and their hashes, by a kept pass; `reader`: of the leaf alone."""
    path, words_of = by_leaf(reader.spec, leaf, name)
    question = Question(
        _VERB,
        path,
        partial(_pairs_of_span, words_of),
        np.uint64,
        ["leaf", path],
        None,
        lambda entry, _: check_digest(entry, "answers", np.uint64, None),
        _CHUNK,
    )
    met = met_rows(order, _VERB, reader.num_rows)
    answered, _ = answers(question, reader, met, options)
    pairs = answered.reshape(-1, 2)
    # A group that reaches over the end of a span begins in both.
    pairs = pairs[_starts(pairs[:, 1])]
    return pairs[:, 0].astype(np.int64), pairs[:, 1]


def _starts(values: NDArray[Any]) -> Integers:
    """Indices at which a value begins that the entry before has not, from 0."""
    starts = [np.arange(min(1, len(values)))]
    for begin in range(1, len(values), _CHUNK):
        chunk = values[begin - 1 : begin + _CHUNK]
        starts.append(begin + np.flatnonzero(chunk[1:] != chunk[:-1]))
    return np.concatenate(starts)


def _pairs_of_span(words_of: RowFunction, span: RowSpan) -> Words:
    """Rows of a span at which a group begins, each followed by the hash of its value."""
    values = None
    if span.batch is not None:
        (values,) = flatten(span.batch)[0]
    if values is not None and not values.dtype.hasobject:
        starts = _starts(values)
        words = hashes(values[starts])
    else:
        words = words_of(span)
        starts = _starts(words)
        words = words[starts]
    return np.stack([span.rows[starts].astype(np.uint64), words], axis=1).reshape(-1)
