"""Names of a store's arrays: the leaves' keys, joined by dots."""

from loadax.core.tree import Structure
from loadax.errors import ArgumentError


def array_names(structure: Structure) -> list[str]:
    """Returns the name of every leaf's array, in leaf order; "" if the example is a bare array.

    Raises:
        ArgumentError: When there is no leaf, two leaves get the same name, or a name is invalid; names the leaves.
    """
    if not structure.paths:
        raise ArgumentError("the examples have no leaves to write; give them at least one array")
    names = structure.names
    first: dict[str, str] = {}
    for name, path in zip(names, structure.paths, strict=True):
        if name in first:
            raise ArgumentError(
                f"leaves {first[name]} and {path} would both be the array {name!r}; rename one of them in a map"
            )
        first[name] = path
        reason = _reason(name) if path else None
        if reason:
            raise ArgumentError(f"leaf {path} would be the array {name!r}, but {reason}; rename it in a map")
    return names


def array_label(location: str, name: str) -> str:
    """Name of a store's array in messages."""
    return f"{location}: array {name!r}" if name else location


def _reason(name: str) -> str | None:
    """Reason why an array can't have this name; None if it can."""
    if not name.strip("."):
        return "a name needs a character other than a dot"
    if "/" in name or "\\" in name:
        return "slashes separate folders"
    if not name.isprintable():
        return "it contains unprintable characters"
    if name.startswith("__"):
        return "zarr reserves names that begin with two underscores"
    if name == "zarr.json" or name.startswith("loadax."):
        return "the store uses this name for a file"
    return None
