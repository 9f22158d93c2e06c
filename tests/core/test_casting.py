from typing import Any

import numpy as np
import pytest

from loadax.core.casting import cast_into
from loadax.errors import LeafError


@pytest.mark.parametrize(
    ("source", "target", "value"),
    [
        (np.array([1, 2**40], np.int64), np.int32, 2**40),
        (np.array([1, -(2**31) - 1], np.int64), np.int32, -(2**31) - 1),
        (np.array([2**32], np.uint64), np.uint32, 2**32),
    ],
)
def test_an_integer_that_does_not_fit_is_an_error_and_writes_nothing(source: Any, target: Any, value: int) -> None:
    destination = np.full(source.shape, 7, target)
    name = np.dtype(target).name
    message = (
        rf"leaf \['id'\]: the {source.dtype} value {value} does not fit {name}. "
        "Set jax_enable_x64, or bring it into range"
    )
    with pytest.raises(LeafError, match=message):
        cast_into(destination, source, "['id']")
    assert (destination == 7).all()


@pytest.mark.parametrize("values", [[-(2**31), 2**31 - 1, 0], []])
def test_integers_that_fit_are_copied(values: list[int]) -> None:
    destination = np.empty(len(values), np.int32)
    cast_into(destination, np.array(values, np.int64), "")
    assert destination.tolist() == values


def test_floats_are_narrowed_silently_also_beyond_their_range() -> None:
    destination = np.empty(3, np.float32)
    cast_into(destination, np.array([1.1, 1e300, np.nan]), "")
    np.testing.assert_array_equal(destination, np.array([1.1, np.inf, np.nan], np.float32))
