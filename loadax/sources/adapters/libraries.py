"""Tests which library an object comes from, without importing it."""

import sys
from typing import Any


def comes_from(data: Any, module: str, *names: str) -> bool:
    """Whether `data` is an instance of one of these classes of a module, if that is loaded."""
    loaded = sys.modules.get(module)
    kinds = tuple(kind for name in names if isinstance(kind := getattr(loaded, name, None), type))
    return isinstance(data, kinds)
