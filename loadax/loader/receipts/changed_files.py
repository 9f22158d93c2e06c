"""Which of many files have changed, from a few sums of their hashes.

Of at most 32 files, the sums are the hashes themselves. Of more, they are 32 sums of the hashes times powers of the
files' numbers, modulo a prime, as the syndromes of a Reed-Solomon code: any 16 changed files are found from them.
"""

from collections.abc import Sequence

import numpy as np

_PRIME = (1 << 31) - 1
_SUMS = 32


def num_sums(count: int) -> int:
    """Number of the sums of `count` files."""
    return min(count, _SUMS)


def sums_of(hashes: Sequence[int]) -> list[int]:
    """Sums of the hashes of files, each below 2^31 - 1."""
    terms = np.array(hashes, np.int64) % _PRIME
    if len(terms) <= _SUMS:
        return terms.tolist()
    numbers = np.arange(1, len(terms) + 1)
    sums = []
    for _ in range(_SUMS):
        sums.append(int(terms.sum() % _PRIME))
        terms = terms * numbers % _PRIME
    return sums


def changed(
    count: int,
    here: Sequence[int],
    saved: Sequence[int],
) -> list[int] | None:
    """Indices of the files whose hashes differ, ascending. None: of more than 32 files, more than 16 have changed.

    Args:
        count: Number of files.
        here: Sums of their hashes now.
        saved: Sums of their hashes before.
    """
    differences = [
        (one - other) % _PRIME for one, other in zip(here, saved, strict=True)
    ]
    if count <= _SUMS:
        return [index for index, value in enumerate(differences) if value]
    locator = _recurrence(differences)
    numbers = np.arange(1, count + 1)
    # its reverse is 0 at the numbers of the files that have changed
    values = np.zeros(count, np.int64)
    for coefficient in locator:
        values = (values * numbers + coefficient) % _PRIME
    found = np.flatnonzero(values == 0).tolist()
    if not found or len(found) != len(locator) - 1:
        return None
    return found


def _recurrence(terms: Sequence[int]) -> list[int]:
    """Coefficients of the shortest linear recurrence of a sequence modulo the prime, the first 1 (Berlekamp-Massey)."""
    current = [1]
    before = [1]
    length = 0
    since = 1
    scale = 1
    for index in range(len(terms)):
        error = 0
        for back, coefficient in enumerate(current[: length + 1]):
            error += coefficient * terms[index - back]
        error %= _PRIME
        if not error:
            since += 1
            continue
        factor = error * pow(scale, -1, _PRIME) % _PRIME
        shifted = [0] * since + [factor * each % _PRIME for each in before]
        longer = current + [0] * (len(shifted) - len(current))
        shifted += [0] * (len(longer) - len(shifted))
        following = [
            (one - other) % _PRIME for one, other in zip(longer, shifted, strict=True)
        ]
        if 2 * length <= index:
            before = current
            length = index + 1 - length
            scale = error
            since = 1
        else:
            since += 1
        current = following
    return current[: length + 1]
