"""What the arrays of a store are called: the leaves' keys, joined by dots."""

from collections.abc import Iterator

from loadax.core.tree import Structure
from loadax.errors import ArgumentError


def array_names(structure: Structure) -> list[str]:
    """The name of every leaf's array, in leaf order; `` `` for an example that is itself the array.

    Raises:
        ArgumentError: when there is no leaf, two leaves get the same name, or zarr can't hold one; names the leaves.
    """
    if not structure.paths:
        raise ArgumentError("the examples have no leaves: there is nothing to write; give them at least one array")
    names = [".".join(keys) for keys in _keys(structure, ())]
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
    """An array of a store, as messages call it."""
    return f"{location}: array {name!r}" if name else location


def _keys(structure: Structure, above: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    if structure.kind is None:
        yield above
    for key, child in zip(structure.keys, structure.children, strict=True):
        yield from _keys(child, (*above, str(key)))


def _reason(name: str) -> str | None:
    """Why zarr can't hold an array of this name, if so."""
    if not name.strip("."):
        return "a name needs a character that is no dot"
    if "/" in name or "\\" in name:
        return "a slash parts the names of folders"
    if not name.isprintable():
        return "it holds characters that can't be printed"
    if name.startswith("__"):
        return "zarr keeps names that begin with two underscores for itself"
    if name == "zarr.json" or name.startswith("loadax."):
        return "files of the store are called so"
    return None
