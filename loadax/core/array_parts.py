"""Copies parts of arrays: many runs of entries in few calls of NumPy."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadax.protocols import Integers

_LONG = 64  # entries of a part from which slices are faster than an index array


def indices(starts: Integers, lengths: Integers) -> Integers:
    """Concatenates the indices of all entries of some parts of an array."""
    before = np.cumsum(lengths) - lengths
    return np.repeat(starts - before, lengths) + np.arange(
        int(lengths.sum()), dtype=np.int64
    )


def take_parts(
    array: NDArray[Any], starts: Integers, lengths: Integers
) -> NDArray[Any]:
    """Copies and concatenates parts of an array."""
    if len(starts) and (starts[1:] == (starts + lengths)[:-1]).all():
        return array[starts[0] : starts[-1] + lengths[-1]].copy()
    if lengths.sum() >= _LONG * len(starts):
        parts = [
            array[low:high]
            for low, high in zip(
                starts.tolist(), (starts + lengths).tolist(), strict=True
            )
        ]
        # whose byte order it would change
        return np.concatenate(parts, dtype=array.dtype)
    return array[indices(starts, lengths)]


def put_parts(
    array: NDArray[Any],
    starts: Integers,
    lengths: Integers,
    out: NDArray[Any],
    places: Integers,
) -> None:
    """Copies parts of an array to entries of `out` from each of `places` on."""
    if lengths.sum() < _LONG * len(starts):
        out[indices(places, lengths)] = array[indices(starts, lengths)]
        return
    for start, length, place in zip(
        starts.tolist(), lengths.tolist(), places.tolist(), strict=True
    ):
        out[place : place + length] = array[start : start + length]
