"""Plans of documents whose leaves have different lengths, as they are read from an index."""

from typing import Any

import numpy as np
import pytest

from loadax.plan.pack_by_leaf import check_by_leaf, plan_by_leaf

LENGTHS = np.array([[3, 1], [0, 0], [10, 1], [4, 4], [2, 0]])
SEQ_LENS = {"inputs": 9, "targets": 5}


def plan() -> dict[str, Any]:
    return plan_by_leaf(LENGTHS, SEQ_LENS, best=True, drop=True, window=100, most_documents=2)


def test_a_plan_passes_its_own_check() -> None:
    assert {name: array.tolist() for name, array in plan().items()} == {"bounds": [0, 2, 3], "documents": [0, 3, 4]}
    check_by_leaf(plan(), LENGTHS, SEQ_LENS)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"documents": np.array([0, 3, 3])}, "a document is missing, or in too many rows"),
        ({"documents": np.array([0, 3, 2])}, "a document is missing, or in too many rows"),
        ({"documents": np.array([0, 3, -1])}, "a document is missing, or in too many rows"),
        ({"documents": np.array([0.0, 3.0, 4.0])}, "the arrays are not flat arrays of int64"),
        ({"bounds": np.array([0, 2, 2, 3])}, "the bounds of the rows don't ascend from 0 to 3"),
        ({"bounds": np.array([1, 3])}, "the bounds of the rows don't ascend from 0 to 3"),
        ({"bounds": np.array([0, 2])}, "the bounds of the rows don't ascend from 0 to 3"),
    ],
)
def test_plans_that_are_refused(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_by_leaf({**plan(), **changed}, LENGTHS, SEQ_LENS)


def test_a_row_that_is_too_long_is_refused() -> None:
    with pytest.raises(ValueError, match=r"a row is longer than \{'inputs': 8, 'targets': 4\}"):
        check_by_leaf(plan(), LENGTHS, {"inputs": 8, "targets": 4})
