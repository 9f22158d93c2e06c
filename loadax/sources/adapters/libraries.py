"""Tests which library an object comes from, without importing it, and whether pyarrow can be imported."""

import sys
from typing import Any

from loadax.errors import UnsupportedError


def comes_from(data: Any, module: str, *names: str) -> bool:
    """Whether `data` is an instance of one of these classes of a module, if that is loaded."""
    loaded = sys.modules.get(module)
    kinds = tuple(kind for name in names if isinstance(kind := getattr(loaded, name, None), type))
    return isinstance(data, kinds)


def require_pyarrow(what: str) -> None:
    """Refuses to go on without pyarrow.

    Args:
        what: What is read by it, for the message.

    Raises:
        UnsupportedError: When pyarrow can't be imported; says how to install it.
    """
    try:
        import pyarrow as pa  # noqa: F401
    except ImportError as error:
        raise UnsupportedError(
            f"{what} is read by pyarrow, which can't be imported ({error}): pip install pyarrow"
        ) from error
