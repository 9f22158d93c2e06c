"""Plans packs of sparse rows: which consecutive rows are in each, and how many entries each has room for."""

import numpy as np

from loadax.core.formatting import count_text
from loadax.errors import ArgumentError
from loadax.protocols import Integers

PLAN_VERSION = 1  # another version packs the same lengths in another way
_ROOM = 1.5  # most entries of a pack in means of packs, unless the budget is given


def plan_packs(
    lengths: Integers, rows: int, most: int | None, names: Integers
) -> tuple[Integers, int]:
    """Cuts consecutive rows into packs of at most `rows` rows, whose entries fit a budget.

    Args:
        lengths: Entries of each row, int64[n], at least one row.
        rows: Most rows of a pack.
        most: The budget. None: the entries of the largest pack, if all have `rows` rows; or 1.5 times their mean, if
            that is less and holds the longest row.
        names: Row at each position, for errors.

    Returns:
        First position of each pack, and the end of the last one, int64[packs + 1]; and the budget.

    Raises:
        ArgumentError: When a row has more entries than the budget; names it.
    """
    size = len(lengths)
    firsts = np.arange(0, size, rows)
    longest = int(lengths.max())
    largest = int(np.add.reduceat(lengths, firsts).max())
    if most is None:
        roomy = int(_ROOM * rows * lengths.mean()) + 1
        # a multiple of 128
        budget = -(-max(1, longest, min(largest, roomy)) // 128) * 128
    else:
        budget = most
    if longest > budget:
        raise ArgumentError(
            f"row {names[np.argmax(lengths)]} has "
            f"{count_text(longest, 'entry', 'entries')}, more than "
            f"entries={budget}; pass entries={longest} or more"
        )
    if largest <= budget:
        return np.append(firsts, size), budget
    ends = np.cumsum(lengths)
    bounds = [0]
    while bounds[-1] < size:
        first = bounds[-1]
        room = ends[first] - lengths[first] + budget
        fitting = int(np.searchsorted(ends, room, side="right"))
        bounds.append(min(fitting, first + rows))
    return np.array(bounds, np.int64), budget
