"""Integers of each row, such as sizes and counts: given as arrays, or computed by a function in a pass."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadax.core.arguments import MOST_POSITIONS, function, index_key, integer, shown
from loadax.core.formatting import name_of
from loadax.errors import ArgumentError, LeafTypeError
from loadax.plan.order import check_fixed_rows
from loadax.protocols import Integers, Order
from loadax.reader import Reader
from loadax.row_index.build import Options, Question, answers
from loadax.row_index.scan import Run, results
from loadax.sources.io.index_folder import Entry, check_array, check_digest, digest_values
from loadax.sources.wrappers.flat_map import Counts

_LARGEST = 1 << 40  # so that sums of some millions fit in int64


def integers_of(
    verb: str,
    argument: str,
    given: Any,
    names: Sequence[str] | None,
    reader: Reader,
    order: Order,
    key: str | None,
    options: Options,
) -> Integers:
    """Integers from 0 of the row at each position, as in epoch 0, int64[positions, names].

    Args:
        verb: Name of the dataset's verb.
        argument: Name of its argument.
        given: Arrays of one integer a position, or a function of an example: a dict of them by name, or one.
        names: Names of the integers; None: there is one without a name.
        reader: Reader of the rows.
        order: Order of the rows.
        key: Identifier of the function in the index; None: its fingerprint.
        options: Options of the pass, which is for functions.

    Raises:
        ArgumentError: When they are not such integers, or rows differ between epochs.
        LeafTypeError: When the function returns anything else; names the row.
    """
    check_fixed_rows(order, f"{verb}()")
    if not 0 < order.size < MOST_POSITIONS:
        what = "a dataset that never ends; cut it: ds[:n]" if order.size else "a dataset without rows; check its source"
        raise ArgumentError(f"{verb}() of {what}")
    # A function's sizes, as the lengths of packed documents, may be those of epoch 0.
    if order.varies and (verb == "flat_map" or not callable(given)):
        what = f"{argument}= is by position, and a position has another row in each epoch here"
        raise ArgumentError(f"{what}; call {verb}() first, then shuffle", argument=argument)
    if not callable(given):
        if key is not None or options.index is not None:
            what = f"index={options.index!r} and key={key!r} are for a function, which {argument}= is not"
            raise ArgumentError(f"{what}; leave them out", argument="index")
        if names is None:
            return _column(argument, given, order.size)[:, None]
        if isinstance(given, Mapping) and given.keys() == set(names):
            return np.column_stack([_column(f"{argument}[{name!r}]", given[name], order.size) for name in names])
        what = f"{argument}={shown(given)}: pass a function of an example, or a dict of arrays"
        raise ArgumentError(f"{what}: {', '.join(names)}", argument=argument)
    function(argument, given, "a function of one example", "example")
    index_key(key, options.index, f"{argument} changes")
    rows = order.visits(np.zeros(order.size, np.int64), np.arange(order.size)).rows
    met = np.zeros(reader.num_rows, bool)
    met[rows] = True
    known_as = None if key is None else ["key", key, *(names or ())]
    width, judge = len(names or [verb]), partial(_of_run, given, f"{verb} {name_of(given)}", names)
    question = Question(verb, name_of(given), judge, np.int64, known_as, given, partial(_check, width))
    found, _ = answers(question, reader, met, options)
    return found.reshape(-1, width)[np.cumsum(met)[rows] - 1]


def flat_map_counts(reader: Reader, order: Order, given: Any, key: str | None, options: Options) -> Counts:
    """The argument `counts` of `Dataset.flat_map`, checked; see `integers_of`."""
    ends = np.cumsum(integers_of("flat_map", "counts", given, None, reader, order, key, options))
    return Counts(order, ends, int(ends[-1]), digest_values(ends))


def _column(name: str, given: Any, size: int) -> Integers:
    try:
        array = np.asarray(given)
    except ValueError:  # ragged
        array = np.empty(())
    if array.shape != (size,) or array.dtype.kind not in "iu" or not 0 <= array.min() <= array.max() <= _LARGEST:
        what = (
            f"{name}={shown(given)} is {array.dtype}{list(array.shape)}: pass int64[{size}] of values from 0 to 2**40"
        )
        raise ArgumentError(f"{what}, one a position, or a function of an example")
    return array.astype(np.int64)


def _of_run(given: Any, label: str, names: Sequence[str] | None, run: Run) -> Integers:
    """The integers of the rows of a run, one row after the other."""
    found = [_checked(result, names, label, row) for row, result in results(run, given, label)]
    return np.array(found, np.int64).reshape(-1)


def _checked(result: Any, names: Sequence[str] | None, label: str, row: int) -> list[int]:
    try:
        if names is None:
            return [integer("", result, 0, _LARGEST)]
        if result.keys() == set(names):
            return [integer("", result[name], 0, _LARGEST) for name in names]
    except (ArgumentError, AttributeError):
        pass
    wanted = f"a dict of integers from 0: {', '.join(names)}" if names else "an integer from 0"
    raise LeafTypeError(f"{label} returned {shown(result)} for row {row}; return {wanted}")


def _check(width: int, entry: Entry, met: NDArray[np.bool_]) -> None:
    """Checks the integers of an index."""
    check_array(entry, "answers", np.int64, int(met.sum()) * width, 0, _LARGEST)
    check_digest(entry, "answers")
