"""Hashes of groups: a 64-bit word for each row, computed from the group's key alone."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadax import seeds
from loadax.core.formatting import name_of
from loadax.core.spec import flatten_spec
from loadax.errors import ArgumentError, LeafTypeError
from loadax.protocols import Tree
from loadax.row_index.scan import RowFunction, RowSpan, results

Words = NDArray[np.uint64]


def by_leaf(spec: Tree, name: str, argument: str = "key") -> tuple[str, RowFunction]:
    """Returns a leaf's path, and a function that hashes its values.

    Args:
        spec: Spec of the examples.
        name: Path of a leaf as in messages (`['meta']['user']`), or its keys joined by dots.
        argument: Name of the argument, for messages; where it is not "key", it takes no function.

    Raises:
        ArgumentError: When there is no such leaf, or it is neither an integer nor text; lists the leaves.
    """
    specs, structure = flatten_spec(spec)
    names = structure.names
    matches = [
        index
        for index, path in enumerate(structure.paths)
        if name in (path, names[index])
    ]
    if len(matches) != 1:
        raise ArgumentError(
            f"{argument}={name!r} is not the name of one leaf; pass one of {names}"
            + ", or a function of a row" * (argument == "key")
        )
    index = matches[0]
    leaf = specs[index]
    if leaf.shape or not (leaf.dtype.kind in "iu" or leaf.dtype.hasobject):
        raise ArgumentError(
            f"{argument}={name!r} is {leaf.dtype}{list(leaf.shape)}, not an integer or "
            f"text; pass {'a function' if argument == 'key' else 'offsets'}"
        )

    return structure.paths[index], partial(_words_of_leaf, index, names[index])


def words_of_function(function: Callable[..., Any], span: RowSpan) -> Words:
    """Hashes the user function's result for each example."""
    name = name_of(function)
    return _words(results(span, function, f"split_by {name}"), name)


def hashes(values: NDArray[Any]) -> Words:
    """Hashes integers, as `word_of` does one of them."""
    return np.asarray(seeds.derive(0, "group", values), np.uint64)


def word_of(key: Any) -> int | None:
    """Hashes one key; None if its type is not supported."""
    if getattr(key, "shape", None) == () and hasattr(key, "item"):
        key = key.item()
    if isinstance(key, bytes):
        # the leading 1 distinguishes keys that differ in trailing zeros
        return int(
            seeds.derive(0, "group bytes", int.from_bytes(b"\1" + key, "little"))
        )
    known = isinstance(key, int | str)
    if known:
        return int(
            seeds.derive(0, "group", int(key) if isinstance(key, bool) else key)
        )
    return None


def _words_of_leaf(index: int, name: str, span: RowSpan) -> Words:
    values = span.column(index, name)
    if isinstance(values, np.ndarray) and not values.dtype.hasobject:
        return hashes(values)
    return _words(zip(span.rows.tolist(), values, strict=True), f"leaf {name!r}")


def _words(keys: Any, origin: str) -> Words:
    known: dict[tuple[type, Any], int] = {}
    words = []
    for row, key in keys:
        try:
            word = known.get((type(key), key))
        except TypeError:  # unhashable
            word = None
        if word is None:
            word = word_of(key)
            if word is None:
                raise LeafTypeError(
                    f"split_by: {origin} is {key!r:.80} for row {row}; return an "
                    "int, a str or bytes"
                )
            if not hasattr(key, "shape") or isinstance(key, np.generic):
                known[type(key), key] = word
        words.append(word)
    return np.array(words, np.uint64)
