"""Tests which library an object comes from, without importing it, and whether packages can be imported."""

import sys
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from loadax.errors import UnsupportedError


def comes_from(data: Any, module: str, *names: str) -> bool:
    """Whether `data` is an instance of one of these classes of a module, if that is loaded."""
    loaded = sys.modules.get(module)
    kinds = tuple(
        kind
        for name in names
        if isinstance(kind := getattr(loaded, name, None), type)
    )
    return isinstance(data, kinds)


# Classes of open arrays whose rows are read when they are asked for, by the module that has them.
STORES = {
    "tensorstore": "TensorStore",
    "zarr": "Array",
    "h5py": "Dataset",
    "xarray": "DataArray",
}


def is_stored(data: Any) -> bool:
    """Whether something is an open array of a supported library."""
    for module, name in STORES.items():  # noqa: SIM110 - asked of every leaf: a generator makes twice the calls
        if comes_from(data, module, name):
            return True
    return False


def require(
    what: str, packages: Mapping[str, str], extra: str = "", hint: str = ""
) -> None:
    """Refuses to go on without packages.

    Args:
        what: What needs them, for the message.
        packages: A module of each package, by the name that pip knows.
        extra: Extra of loadax with these packages; empty if they are installed with it.
        hint: What to do where a package is there, but does not find what it imports.

    Raises:
        UnsupportedError: When a module can't be imported; says what to install.
    """
    for package, module in packages.items():
        try:
            import_module(module)
        except ImportError as error:
            name = module.partition(".")[0]
            if hint and find_spec(name) is not None:
                raise UnsupportedError(
                    f"{what} needs {package}, whose import has failed ({error}): {hint}"
                ) from error
            if extra:
                clone = f", or, in a clone of loadax, pip install -e '.[{extra}]'"
            else:
                clone = ""
            install = f"pip install {' '.join(packages)}{clone}"
            raise UnsupportedError(
                f"{what} needs {package}, which can't be imported ({error}): "
                f"{install}"
            ) from error
