"""Casts host data to the dtype that JAX will use, and refuses integer casts that overflow. Does not import JAX.

Without x64, JAX converts int64 to int32 and lets values wrap; here, overflow is an error. Floats and complex numbers
lose precision silently, as everywhere in JAX.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadax.core.arguments import number
from loadax.errors import ArgumentError, LeafError


def leaf_name(path: str) -> str:
    """Name of the leaf at `path` in errors; the path of the only leaf is empty.

    Examples:
        >>> from loadax.core.casting import leaf_name
        >>> leaf_name("['tokens']"), leaf_name("")
        ("leaf ['tokens']", 'the only leaf')
    """
    if path:
        return f"leaf {path}"
    return "the only leaf"


def cast_into(destination: NDArray[Any], source: NDArray[Any], path: str) -> None:
    """Copies `source` into `destination`, an array of the same shape.

    Args:
        destination: Array to write to; its dtype is `placed_dtype` of the source's.
        source: Array to copy.
        path: Path of the leaf, for the error.

    Raises:
        LeafError: When an integer overflows; then nothing is written.

    Examples:
        >>> import numpy as np
        >>> from loadax.core.casting import cast_into
        >>> narrow = np.empty(2, np.int32)
        >>> cast_into(narrow, np.array([1, 2]), "['id']")
        >>> narrow
        array([1, 2], dtype=int32)
    """
    check_cast(source, destination.dtype, path)
    # A float that overflows becomes inf, as in JAX; NumPy would warn.
    with np.errstate(over="ignore"):
        np.copyto(destination, source, casting="unsafe")


def check_cast(source: NDArray[Any], dtype: np.dtype[Any], path: str) -> None:
    """Checks that integers fit `dtype`, for `cast_into`.

    Raises:
        LeafError: When one does not.
    """
    if (
        dtype == source.dtype
        or source.dtype.kind not in "iu"
        or dtype.kind not in "iu"
        or not source.size
    ):
        return
    limits = np.iinfo(dtype)
    for value in (int(source.max()), int(source.min())):
        if not limits.min <= value <= limits.max:
            raise LeafError(
                f"{leaf_name(path)}: the {source.dtype} value {value} does not fit "
                f"{dtype}. Set jax_enable_x64, or bring it into range in a map"
            )


def fill_value(
    name: str, value: Any, dtype: np.dtype[Any], argument: str = "value"
) -> Any:
    """The value of a leaf's padding, cast to its dtype.

    Args:
        name: Name of the leaf.
        value: The value; or a dict of values by name, 0 for other leaves.
        dtype: Dtype of the leaf.
        argument: Name of the argument, for the error.

    Raises:
        ArgumentError: When the value does not fit the dtype.
    """
    if isinstance(value, dict):
        given = value.get(name, 0)
    else:
        given = value
    with np.errstate(invalid="ignore", over="ignore"):
        cast = np.asarray(given if abs(given) < 1 << 63 else float(given)).astype(
            dtype
        )
    if dtype.kind not in "fc" and cast != given:
        raise ArgumentError(
            f"{argument}={given!r} does not fit leaf {name!r}, which is {dtype}; "
            "pass another, or cast it in a map"
        )
    return cast


def fill_values(value: Any, argument: str = "value") -> Any:
    """The `value` of padding: a number, or a dict of numbers by leaf.

    Raises:
        ArgumentError: When it is neither.
    """
    if isinstance(value, Mapping):
        return {
            name: _fill(f"{argument}[{name!r}]", fill) for name, fill in value.items()
        }
    return _fill(argument, value)


def _fill(name: str, fill: Any) -> int | float:
    checked = number(name, fill, "a number")
    if hasattr(fill, "__index__"):
        return int(fill)
    return checked
