"""Integers of each row, such as sizes and counts: given as arrays, or computed by a function in a pass."""

from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadax.composition.flat_mapped import Counts
from loadax.core.arguments import (
    MOST_POSITIONS,
    function,
    index_key,
    integer,
    refuse_given,
    shown,
)
from loadax.core.digest import digest_values
from loadax.core.formatting import name_of
from loadax.errors import ArgumentError, LeafTypeError
from loadax.kept.index_folder import Entry, check_digest
from loadax.plan.order import check_fixed_rows
from loadax.protocols import Integers, Order
from loadax.reader import Reader
from loadax.row_index.build import Options, Question, answers
from loadax.row_index.scan import RowSpan, results

_LARGEST = 1 << 40  # so that sums of some millions fit in int64


def integers_of(
    verb: str,
    argument: str,
    given: Any,
    names: list[str],
    reader: Reader,
    order: Order,
    options: Options,
) -> Integers:
    """Integers from 0 of the row at each position, as in epoch 0, int64[positions, names].

    Args:
        verb: Name of the dataset's verb.
        argument: Name of its argument.
        given: Arrays of one integer a position, or a function of an example: a dict of them by name, or one.
        names: Names of the integers; `[""]`: there is one, which is not in a dict.
        reader: Reader of the rows.
        order: Order of the rows.
        options: Options of the pass, which is for functions.

    Raises:
        ArgumentError: When they are not such integers, or rows differ between epochs.
        LeafTypeError: When the function returns anything else; names the row.
    """
    check_fixed_rows(order, f"{verb}()")
    if not 0 < order.size < MOST_POSITIONS:
        what = "a dataset without rows; check its source"
        if order.size:
            what = "a dataset that never ends; cut it: ds.subset_per_epoch(range(n))"
        raise ArgumentError(f"{verb}() of {what}")
    # A function's sizes, as the lengths of packed documents, may be those of epoch 0.
    if order.varies and (verb == "flat_map" or not callable(given)):
        what = (
            f"{argument}= is by position, and a position has another row in each "
            "epoch here"
        )
        raise ArgumentError(f"{what}; call {verb}() first, then shuffle")
    if not callable(given):
        refuse_given(
            f"a function, which {argument}= is not",
            index=options.index,
            key=options.key,
        )
        return _given(argument, given, names, order.size)
    function(argument, given, "a function of one example", "example")
    index_key(options.key, options.index, f"{argument} changes")
    rows = order.visits(np.zeros(order.size, np.int64), np.arange(order.size)).rows
    met = np.zeros(reader.num_rows, bool)
    met[rows] = True
    if options.key is None:
        known_as = None
    else:
        known_as = ["key", options.key, *names]
    judge = partial(_of_span, given, f"{verb} {name_of(given)}", names)
    check = partial(check_integers, len(names))
    question = Question(verb, name_of(given), judge, np.int64, known_as, given, check)
    found, _ = answers(question, reader, met, options)
    return found.reshape(-1, len(names))[np.cumsum(met)[rows] - 1]


def flat_map_counts(
    reader: Reader, order: Order, given: Any, options: Options
) -> Counts:
    """The argument `counts` of `Dataset.flat_map`, checked; see `integers_of`."""
    ends = np.cumsum(
        integers_of("flat_map", "counts", given, [""], reader, order, options)
    )
    return Counts(
        order, ends, int(ends[-1]), ["counts", digest_values(ends), order.describe()]
    )


def _given(argument: str, given: Any, names: list[str], size: int) -> Integers:
    if names == [""]:
        named = {"": given}
    else:
        named = given
    if not isinstance(named, Mapping) or named.keys() != set(names):
        what = (
            f"{argument}={shown(given)}: pass a function of an example, or a dict of "
            "arrays"
        )
        raise ArgumentError(f"{what}: {', '.join(names)}")
    columns = []
    for name in names:
        try:
            column = np.asarray(named[name])
        except ValueError:  # ragged
            column = np.empty(())
        are_integers = column.shape == (size,) and column.dtype.kind in "iu"
        if not are_integers or not 0 <= column.min() <= column.max() <= _LARGEST:
            what = (
                f"{argument}{[name] if name else ''}={shown(named[name])} is "
                f"{column.dtype}{list(column.shape)}"
            )
            raise ArgumentError(
                f"{what}: pass int64[{size}] of values from 0 to 2**40, one a "
                "position, or a function"
            )
        columns.append(column.astype(np.int64))
    return np.column_stack(columns)


def _of_span(given: Any, label: str, names: list[str], span: RowSpan) -> Integers:
    """The integers of the rows of a span, one row after the other."""
    found = [
        _checked(result, names, label, row)
        for row, result in results(span, given, label)
    ]
    return np.array(found, np.int64).reshape(-1)


def _checked(result: Any, names: list[str], label: str, row: int) -> list[int]:
    with suppress(ArgumentError, AttributeError):
        if names == [""]:
            named = {"": result}
        else:
            named = result
        if named.keys() == set(names):
            return [integer("", named[name], 0, _LARGEST) for name in names]
    if names == [""]:
        wanted = "an integer from 0"
    else:
        wanted = f"a dict of integers from 0: {', '.join(names)}"
    raise LeafTypeError(
        f"{label} returned {shown(result)} for row {row}; return {wanted}"
    )


def check_integers(width: int, entry: Entry, met: NDArray[np.bool_]) -> None:
    """Checks the integers of an index: `width` of each row."""
    check_digest(entry, "answers", np.int64, int(met.sum()) * width, 0, _LARGEST)
