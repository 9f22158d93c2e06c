"""Laws of a contract and their errors, and the comparison of two batches."""

import pickle
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from loadax.core.arguments import shown
from loadax.core.formatting import some
from loadax.errors import ConformanceError


@final
class Law(NamedTuple):
    """A rule that every source or map must keep.

    Args:
        name: Name of the law in messages.
        contract: Duty of the author of the source or map.
    """

    name: str
    contract: str

    def broken(self, subject: str, evidence: str) -> ConformanceError:
        """The error that `subject` breaks this law, with evidence."""
        return ConformanceError(
            f"{subject} breaks the law '{self.name}': {evidence}; {self.contract}"
        )

    @contextmanager
    def during(self, subject: str, action: str) -> Iterator[None]:
        """Turns any exception of an action into a breach of this law."""
        try:
            yield
        except ConformanceError:
            raise
        except Exception as error:
            raise self.broken(
                subject, f"{action} raised {show_error(error)}"
            ) from error


def show_rows(rows: Any) -> str:
    """Text of the first few of `rows`."""
    return f"[{some(np.asarray(rows).tolist())}]"


def show_error(error: BaseException) -> str:
    """Type and message of an exception."""
    return f"{type(error).__name__}: {error}".removesuffix(": ")


def difference(
    got: Sequence[NDArray[Any]],
    expected: Sequence[NDArray[Any]],
    paths: Sequence[str],
    rows: Any,
    rtol: float = 0.0,
) -> str | None:
    """Text of the first bitwise difference between two batches, with both values; None if they are equal.

    NaN equals NaN. Strings are compared by value, and so is any leaf with one of objects.

    Args:
        got: Leaves of one batch, rows first.
        expected: Leaves of the other.
        paths: Names of the leaves.
        rows: Row of each entry of dim 0, for the message.
        rtol: Tolerance of floating-point numbers, relative to the expected ones.
    """
    for path, one, other in zip(paths, got, expected, strict=True):
        if path:
            name = f"leaf {path}"
        else:
            name = "the leaf"
        kinds = {one.dtype.kind, other.dtype.kind}
        by_value = "O" in kinds or kinds <= {"S", "U"}
        if one.shape != other.shape or not (by_value or one.dtype == other.dtype):
            return (
                f"{name} is {one.dtype}{list(one.shape)}, expected "
                f"{other.dtype}{list(other.shape)}"
            )
        if by_value:
            differs = np.asarray(_UNLIKE(one, other), bool)
        else:
            differs = _unequal(one, other, rtol)
        if differs.any():
            entry, *index = np.argwhere(differs)[0].tolist()
            if index:
                element = f" at {index}"
            else:
                element = ""
            value, wanted = (
                shown(array[(entry, *index, ...)].tolist()) for array in (one, other)
            )
            row = np.asarray(rows)[entry]
            return (
                f"{name} of row {row} (entry {entry} of {len(one)}){element} is "
                f"{value}, expected {wanted}"
            )
    return None


def _unequal(
    one: NDArray[Any], other: NDArray[Any], rtol: float
) -> NDArray[np.bool_]:
    # ignores padding between the fields of a structured dtype
    if one.dtype.names is not None:
        return np.asarray(one != other)
    # A value that is not equal to itself is a NaN or NaT; `isnan` does not support all dtypes.
    both_nan = np.not_equal(one, one) & np.not_equal(other, other)
    if rtol and np.issubdtype(one.dtype, np.inexact):
        return ~(np.isclose(one, other, rtol=rtol, atol=0.0) | both_nan)
    shape = *one.shape, one.dtype.itemsize
    one_bytes, other_bytes = (
        np.frombuffer(array.tobytes(), np.uint8).reshape(shape)
        for array in (one, other)
    )
    return (one_bytes != other_bytes).any(-1) & ~both_nan


def _unlike(one: Any, other: Any) -> bool:
    # Pickles, for objects that don't define equality, or that contain a NaN or an array.
    for question in (
        lambda: one is other,
        lambda: one == other,
        lambda: pickle.dumps(one) == pickle.dumps(other),
    ):
        with suppress(Exception):  # a user's `==` or pickling may raise anything
            if question() is True:
                return False
    return True


_UNLIKE = np.frompyfunc(_unlike, 2, 1)
