"""Sources of selected leaves alone, where a source can read some of its leaves without the others."""

from loadax.core.leaf_selection import LeafSelection
from loadax.core.tree import Structure, flatten
from loadax.sources.base import BaseSource


def keep_selected(
    source: BaseSource, structure: Structure, selection: LeafSelection
) -> BaseSource | None:
    """The source with selected leaves alone; None: it can't keep some of its leaves.

    Args:
        source: The source.
        structure: Structure of a row.
        selection: The leaves.

    Raises:
        ArgumentError: When a leaf does not exist, two get one name, or none is left.
    """
    names = structure.names
    known = source.traits.attributes
    chosen = selection.of_tree(structure.build(range(len(names))))
    kept = source.keep_leaves(chosen)
    if kept is not None:
        indices, after = flatten(chosen)
        origins = zip(after.names, (names[index] for index in indices), strict=True)
        kept.traits = kept.traits._replace(
            attributes={new: known[name] for new, name in origins if name in known}
        )
        kept.described = [*source.describe(), selection.describe()]
    return kept
