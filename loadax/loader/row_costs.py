"""Costs of rows, by which `balance=` arranges the rows of a step."""

from collections.abc import Callable
from typing import Any

import numpy as np

from loadax.core.arguments import shown
from loadax.core.formatting import count_text
from loadax.dataset import Dataset
from loadax.errors import ArgumentError
from loadax.plan.batches import Costs
from loadax.protocols import Array, Integers, Visits

_REMEDY = (
    "None for no balance, 'attention' for packed rows, an array with the cost of "
    "each row of the source, or a function of row ids"
)


def costs_of(balance: Any, dataset: Dataset) -> Costs:
    """Function of visits that returns the costs of their rows, float64[n].

    Raises:
        ArgumentError: If it can't be used with this dataset.
    """
    given = f"balance={shown(balance)}"
    if dataset.is_stream:
        raise ArgumentError(
            f"{given}: the rows of a stream are not known ahead; leave it out, or "
            "use a dataset"
        )
    if dataset.order.lane_assignments(0, 0, 1):
        raise ArgumentError(
            f"{given}: shuffle(block=…) arranges the rows of a step by lane, so that "
            "hosts read few chunks; leave out one of the two: shuffle(seed) alone, "
            "or no balance"
        )
    of_rows = _of_rows(balance, given, dataset)

    def costs(visits: Visits) -> Array:
        try:
            found = of_rows(visits.rows)
        except Exception as error:
            error.add_note(
                f"loadax: {given} was called with an array of {len(visits.rows)} row "
                "ids"
            )
            raise
        return _checked(found, len(visits.rows), given)

    return costs


def _of_rows(balance: Any, given: str, dataset: Dataset) -> Callable[[Integers], Any]:
    if isinstance(balance, str):
        if balance != "attention":
            raise ArgumentError(f"{given}: pass {_REMEDY}")
        if dataset.source.squared_lengths(np.zeros(1, np.int64)) is None:
            raise ArgumentError(
                f"{given}: rows are not packed, so they have no segments; pass costs "
                "by row, or pack()"
            )
        return dataset.source.squared_lengths
    if callable(balance):
        return balance
    costs = np.asarray(balance)
    rows = len(dataset.source)
    if costs.ndim == 0:
        raise ArgumentError(f"{given}: pass {_REMEDY}")
    if costs.shape != (rows,):
        raise ArgumentError(
            f"{given} has the shape {costs.shape}, but the source has "
            f"{count_text(rows, 'row')}; pass {_REMEDY}"
        )
    _checked(costs, rows, given)
    return lambda rows: costs[rows]


def _checked(costs: Any, count: int, given: str) -> Array:
    """The costs as float64.

    Raises:
        ArgumentError: If they are not numbers of 0 or more, one for each row.
    """
    costs = np.asarray(costs)
    if costs.shape != (count,) or costs.dtype.kind not in "biuf":
        raise ArgumentError(
            f"{given} gives {costs.dtype}{list(costs.shape)} for "
            f"{count_text(count, 'row')}; one number for each is needed, such as "
            f"float64[{count}]"
        )
    costs = costs.astype(np.float64)
    wrong = costs[~(costs >= 0) | np.isinf(costs)]
    if len(wrong):
        raise ArgumentError(
            f"{given}: {wrong[0]} is not a cost; pass finite numbers of 0 or more"
        )
    return costs
