"""Which leaves `Buckets` pads: those that are named, and those that are as long as the first of them."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from loadax.core.leaf_names import path_of, value_at
from loadax.core.log import log
from loadax.core.spec import array_or_object
from loadax.core.tree import flatten
from loadax.dataset import Dataset
from loadax.errors import ArgumentError
from loadax.protocols import Array, Integers, Tree, Visits

# rows that can't be read, before leaves without a name are left as they are
_MOST_TRIED = 8


def padded_leaves(
    dataset: Dataset, names: tuple[str, ...], rows: Integers, lengths: Integers
) -> tuple[str, ...]:
    """These names, and those of the other leaves of numbers that are as long as the first one.

    The shortest and the longest row tell: a leaf that has both of their lengths has no shape of its
    own. A row where it has another length is an error when it is read.

    Args:
        dataset: Dataset of the rows.
        names: Names of leaves; the first one has the lengths.
        rows: Rows to choose from, int64[n].
        lengths: Their lengths, int64[n].

    Raises:
        ArgumentError: If such a leaf was padded to one length before.
    """
    if dataset.maps:
        known = None
    else:
        known = dataset.source.structure
    if (
        not len(rows)
        or lengths.min() == lengths.max()
        or (known is not None and len(known.paths) == 1)
    ):
        return names
    ascending = np.argsort(lengths, kind="stable")
    shortest = _first_readable(dataset, rows[ascending[:_MOST_TRIED]])
    longest = _first_readable(dataset, rows[ascending[::-1][:_MOST_TRIED]])
    pair = [
        {} if example is None else _arrays(example) for example in (shortest, longest)
    ]
    leading = [_entries(arrays.get(names[0])) for arrays in pair]
    if None in leading or leading[0] == leading[1]:
        return names
    found = []
    for name in pair[0]:
        if name in names or name not in pair[1]:
            continue
        entries = [_entries(arrays[name]) for arrays in pair]
        if entries == leading:
            found.append(name)
        elif (
            None not in entries
            and [_value(arrays.get(f"{name}_length")) for arrays in pair] == leading
        ):
            raise ArgumentError(
                f"Buckets: leaf {name!r} has as many entries as {names[0]!r}, but is "
                f"padded to {entries[0]} in every bucket; leave out its pad(), and "
                f"pass Buckets({(names[0], name)}, …, value={{{name!r}: …}}), or "
                f"Buckets(({names[0]!r},), …) to keep {entries[0]}"
            )
    if found:
        log.info(
            "Buckets: pads %s too, which are as long as %r; name them in value=",
            found,
            names[0],
        )
    return (*names, *found)


def _first_readable(dataset: Dataset, rows: Integers) -> Tree | None:
    """The first of these rows that can be read."""
    for row in rows:
        visits = Visits(np.array([row]), np.zeros(1, np.int64))
        try:
            return dataset.reader.examples(visits)[0]
        except Exception as error:  # noqa: BLE001 - whoever reads the row in the run meets the error
            log.debug("Buckets: row %d can't be read: %s", row, error)
    return None


def _arrays(example: Tree) -> dict[str, Array]:
    """The leaves of a dict by their names."""
    if not isinstance(example, Mapping):
        return {}
    names = flatten(example, is_leaf=lambda node: type(node) is list)[1].names
    return {
        name: array_or_object(value_at(example, path_of(example, name) or ()))
        for name in names
    }


def _entries(array: Array | None) -> int | None:
    """Length of an array of numbers; None: it is something else."""
    if array is None or not array.ndim or array.dtype.kind in "OSUMm":
        return None
    return len(array)


def _value(array: Any) -> int | None:
    """Value of an integer; None: it is something else."""
    if array is not None and not array.ndim and array.dtype.kind in "iu":
        return int(array)
    return None
