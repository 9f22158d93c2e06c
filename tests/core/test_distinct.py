import numpy as np
import pytest

from loadax.core.distinct import distinct


@pytest.mark.parametrize("values", [[3], [-2, 5, 5, -2, 0], [1 << 60, 3, 1 << 60], list(range(9, 0, -1))])
def test_distinct_values_equal_those_of_unique(values: list[int]) -> None:
    for got, expected in zip(distinct(np.array(values)), np.unique(values, return_inverse=True), strict=True):
        assert got.tolist() == expected.tolist()
