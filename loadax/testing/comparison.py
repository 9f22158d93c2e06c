"""Bitwise comparison of two batches, except that NaN equals NaN."""

import pickle
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

_LONGEST = 60  # characters of a value in a message


def difference(
    got: Sequence[NDArray[Any]], expected: Sequence[NDArray[Any]], paths: Sequence[str], rows: Any, rtol: float = 0.0
) -> str | None:
    """Text of the first difference between two batches, with both values; None if they are equal.

    Args:
        got: Leaves of one batch, rows first.
        expected: Leaves of the other.
        paths: Names of the leaves.
        rows: Row of each entry of dim 0, for the message.
        rtol: Tolerance of floating-point numbers, relative to the expected ones.
    """
    for path, one, other in zip(paths, got, expected, strict=True):
        name = f"leaf {path}" if path else "the leaf"
        if one.shape != other.shape or not _comparable(one.dtype, other.dtype):
            return f"{name} is {one.dtype}{list(one.shape)}, expected {other.dtype}{list(other.shape)}"
        apart = np.argwhere(_differs(one, other, rtol))
        if len(apart):
            index_apart = tuple(int(index) for index in apart[0])
            element = f" at {list(index_apart[1:])}" if len(index_apart) > 1 else ""
            return (
                f"{name} of row {np.asarray(rows)[index_apart[0]]} (entry {index_apart[0]} of {len(one)}){element} "
                f"is {_brief(one[index_apart])}, expected {_brief(other[index_apart])}"
            )
    return None


def _comparable(one: np.dtype[Any], other: np.dtype[Any]) -> bool:
    """Whether the dtypes are equal, or both are strings or objects, which are compared by value."""
    return one == other or (one.kind in "OSU" and other.kind in "OSU")


def _differs(one: NDArray[Any], other: NDArray[Any], rtol: float) -> NDArray[np.bool_]:
    if one.dtype.kind in "OSU":
        alike = [_alike(*pair) for pair in zip(one.ravel().tolist(), other.ravel().tolist(), strict=True)]
        return ~np.array(alike, bool).reshape(one.shape)
    if one.dtype.names is not None:  # ignores padding between the fields of a structured dtype
        return np.asarray(one != other)
    # A value that is not equal to itself is a NaN or NaT; `isnan` does not support all dtypes.
    both_nan = np.not_equal(one, one) & np.not_equal(other, other)
    if rtol and np.issubdtype(one.dtype, np.inexact):
        return ~(np.isclose(one, other, rtol=rtol, atol=0.0) | both_nan)
    return (_bytes(one) != _bytes(other)).any(-1) & ~both_nan


def _bytes(array: NDArray[Any]) -> NDArray[np.uint8]:
    return np.frombuffer(array.tobytes(), np.uint8).reshape(*array.shape, array.dtype.itemsize)


def _alike(one: Any, other: Any) -> bool:
    # Pickles, for objects that don't define equality, or that contain a NaN or an array.
    return one is other or _holds(lambda: one == other) or _holds(lambda: pickle.dumps(one) == pickle.dumps(other))


def _holds(question: Callable[[], Any]) -> bool:
    try:
        return question() is True
    except Exception:  # noqa: BLE001 - a user's `==` or pickling may raise anything
        return False


def _brief(value: Any) -> str:
    # Numbers without the name of their type, strings with quotes.
    text = str(value) if isinstance(value, np.generic) and not isinstance(value, np.flexible) else repr(value)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
