"""Readers of some leaves of rows, for functions that look at these alone."""

from dataclasses import dataclass, replace
from typing import Any, final

from loadax.core.arguments import entries
from loadax.core.spec import flatten_spec
from loadax.errors import ArgumentError
from loadax.protocols import Tree
from loadax.reader import Reader
from loadax.transforms import Map


def reader_of_columns(reader: Reader, columns: Any) -> Reader:
    """A reader of dicts of some leaves, which reads only these if there are no maps and the source can.

    Args:
        reader: Reader of all leaves.
        columns: Names of leaves: their keys joined by dots.

    Raises:
        ArgumentError: When there is no such leaf; lists the leaves.
    """
    names = [columns] if isinstance(columns, str) else entries("columns", columns, "names of leaves")
    structure = (None if reader.maps else reader.source.structure) or flatten_spec(reader.spec)[1]
    known = structure.names
    if not names:
        raise ArgumentError(f"columns={columns!r}: pass the names of one or more leaves: {known}", argument="columns")
    if wrong := [name for name in names if name not in known]:
        raise ArgumentError(
            f"columns={columns!r}: {wrong[0]!r} is not the name of a leaf; the leaves are {known}", argument="columns"
        )
    chosen = {name: known.index(name) for name in names}
    kept = None if reader.maps else reader.source.keep_leaves(chosen)
    if kept is not None:
        return Reader(kept, (), reader.first)
    return replace(reader, maps=(*reader.maps, Map(_ChosenLeaves(chosen), False, 0, reader.traits.num_maps, None)))


@final
@dataclass(frozen=True)
class _ChosenLeaves:
    """Function of an example that returns some of its leaves, by name."""

    leaves: dict[str, int]

    def __call__(self, example: Tree) -> dict[str, Any]:
        from loadax.core.tree import flatten  # a global would be part of the fingerprint, by which indices are known

        found = flatten(example)[0]
        return {name: found[index] for name, index in self.leaves.items()}
