"""Refuses splits whose parts would share rows of the data: overlapping windows, chunks of one document, copies."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from loadax.errors import ArgumentError
from loadax.plan.fixed_part import other_rows, part_name
from loadax.plan.select import Selected
from loadax.plan.slice import Sliced
from loadax.protocols import Integers, Order, Visits
from loadax.sources.base import BaseSource
from loadax.sources.origins import (
    SharedRow,
    first_shared,
    first_shared_of,
    largest_distance,
)

_CHUNK = 1 << 14  # positions per pass: each may be of many rows


class Gap(NamedTuple):
    """Rows that a contiguous split leaves out between two parts.

    Args:
        rows: Number of them.
        order: Order whose positions are split.
    """

    rows: int
    order: Order


def check_parts(
    verb: str, source: BaseSource, parts: Sequence[Order], gap: Gap | None = None
) -> None:
    """Checks that parts of a dataset share no row of the data.

    Args:
        verb: The verb that splits.
        source: Source of the rows.
        parts: Orders of the parts.
        gap: Gap of a contiguous split; None: rows are split one by one.

    Raises:
        ArgumentError: When they do; names the row, and says what to do.
    """
    shared = first_shared_of([(source, first_epoch(order)) for order in parts])
    if shared is None:
        return
    remedy = _remedy(source)
    if gap is not None:
        least = largest_distance(source, first_epoch(gap.order))
        if gap.rows < least < gap.order.size // len(parts):
            remedy = f"pass gap={least}, with which they share none; or {remedy}"
    raise ArgumentError(
        f"{verb} after {source.traits.shared_by or 'repeated rows'}: "
        f"{_shown(shared)}, which are in parts {shared.parts[0]} and "
        f"{shared.parts[1]}; {remedy}; to split all the same, pass "
        "allow_shared_rows=True"
    )


def check_rows_apart(part: Sliced | Selected, source: BaseSource) -> None:
    """Checks that no two rows of a shuffled order share a row of the data, so that any parts of it are disjoint.

    Args:
        part: Positions of the order.
        source: Source of the rows.

    Raises:
        ArgumentError: When two do; names the row, and says what to do.
    """
    shared = first_shared(
        source, ((visits.rows, visits) for _, visits in first_epoch(part.parent))
    )
    if shared is None:
        return
    raise ArgumentError(
        f"{part_name(part)} behind a shuffle of {source.traits.shared_by}: "
        f"{_shown(shared)}, so that two parts share rows; {_remedy(source)}, and "
        f"shuffle each; or, {other_rows(part)}"
    )


def _shown(shared: SharedRow) -> str:
    return (
        f"row {shared.row} of {shared.source!r} is in rows {shared.rows[0]} and "
        f"{shared.rows[1]}"
    )


def _remedy(source: BaseSource) -> str:
    verb = source.traits.shared_by.partition("(")[0]
    match verb:
        case "windows":
            return (
                "call split(fraction, contiguous=True) before windows(), and make "
                "windows of each part"
            )
        case "concat" | "mix" | "zip":
            return f"split each dataset before {verb}(), and {verb} the parts"
        case "":
            return "split before rows are listed several times"
    return (
        f"call split(fraction) before {verb}(), and {verb.replace('_', ' ')} each "
        "part"
    )


def first_epoch(
    order: Order, most: int | None = None
) -> Iterator[tuple[Integers, Visits]]:
    """Positions and visits of epoch 0 in chunks; `most`: number of positions, None: all."""
    if most is None:
        size = order.size
    else:
        size = min(order.size, most)
    for start in range(0, size, _CHUNK):
        positions = np.arange(start, min(start + _CHUNK, size), dtype=np.int64)
        yield positions, order.visits(np.zeros_like(positions), positions)
