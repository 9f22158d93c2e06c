"""Sequence-length schedules: crops the leaves of a dataset to their first entries."""

from collections.abc import Sequence
from typing import Any

from loadax.core.arguments import shown
from loadax.core.formatting import count_text
from loadax.core.leaf_names import path_of, unknown_leaf, value_at
from loadax.core.spec import flatten_spec
from loadax.core.tree import Structure, flatten
from loadax.dataset import Dataset
from loadax.errors import ArgumentError
from loadax.protocols import ArraySpec
from loadax.sources.wrappers.cropped import CroppedSource, first_columns
from loadax.transforms import BatchMap


def cut_to(
    dataset: Dataset, lengths: Sequence[tuple[str, int]], given: Any
) -> Dataset:
    """Crops sequences of the dataset to their first entries.

    Leaves whose first dimension is that of the named leaf are cropped with it. Without a name, that
    is the longest first dimension, if no other leaf could be meant.

    Args:
        dataset: The dataset.
        lengths: Length of each named leaf; the name "" is for the longest one.
        given: What the user passed as `seq_len`, for errors.

    Raises:
        ArgumentError: If no leaf is that long, several could be meant, or there is no such leaf.
    """
    specs, structure = flatten_spec(dataset.spec)
    cropped: dict[int, int] = {}  # length by first dimension
    for name, length in lengths:
        if name:
            full = _named(name, specs, structure)
        else:
            full = _longest(length, given, specs, structure)
        if name and not full:
            raise ArgumentError(
                f"seq_len={shown(given)}: leaf {name!r} has no entries to crop; name "
                "a leaf whose first dimension is the sequence, of "
                f"{', '.join(structure.paths)}"
            )
        if not 1 <= length <= full:
            if name:
                which = f"leaf {name!r}"
            else:
                which = "the longest leaf"
            raise ArgumentError(
                f"seq_len={length}: {which} has "
                f"{count_text(full, 'entry', 'entries')} "
                f"({', '.join(structure.paths)}); pass 1 to {full}"
            )
        if cropped.setdefault(full, length) != length:
            raise ArgumentError(
                f"seq_len={shown(given)}: {name!r} has "
                f"{count_text(full, 'entry', 'entries')}, as a leaf before it that "
                f"is cropped to {cropped[full]}; leaves of one length are cropped "
                "together, so name one of them"
            )
    cut = structure.build(
        ArraySpec(
            (cropped.get(spec.shape[0], spec.shape[0]), *spec.shape[1:]), spec.dtype
        )
        if spec.shape
        else spec
        for spec in specs
    )
    if not dataset.maps:
        return Dataset(CroppedSource(dataset.source, cut), dataset.order)

    def crop(batch: Any) -> Any:
        leaves = zip(flatten(batch)[0], flatten_spec(cut)[0], strict=True)
        return structure.build(
            first_columns(leaf, leaf_spec) for leaf, leaf_spec in leaves
        )

    place = dataset.reader.traits.num_maps
    cropping = BatchMap(crop, rng=False, seed=0, place=place, spec=cut)
    return Dataset(
        dataset.source, dataset.order, (*dataset.maps, cropping)
    ).probed_at(dataset.reader.first)


def _named(name: str, specs: Sequence[ArraySpec], structure: Structure) -> int:
    """First dimension of a leaf."""
    tree = structure.build(range(len(specs)))
    path = path_of(tree, name)
    if path is None:
        leaf = None
    else:
        leaf = value_at(tree, path)
    if not isinstance(leaf, int):
        raise ArgumentError(
            f"seq_len: {unknown_leaf(name, structure.names)}", argument="seq_len"
        )
    if specs[leaf].shape:
        return specs[leaf].shape[0]
    return 0


def _longest(
    length: int, given: Any, specs: Sequence[ArraySpec], structure: Structure
) -> int:
    """The longest first dimension of all leaves, if no shorter one could be cropped to the length."""
    firsts: dict[int, str] = {}  # a leaf by its first dimension
    for spec, name in zip(specs, structure.names, strict=True):
        if spec.shape:
            firsts.setdefault(spec.shape[0], name)
    full = max(firsts, default=0)
    others = [name for first, name in firsts.items() if length <= first < full]
    if others and length >= 1:
        leaves = ", ".join(
            f"{name!r} has {count_text(first, 'entry', 'entries')}"
            for first, name in firsts.items()
            if first >= length
        )
        raise ArgumentError(
            f"seq_len={shown(given)}: leaves of several lengths could be cropped: "
            f"{leaves}; name the one that is meant: seq_len={{{others[0]!r}: "
            f"{given!r}}} or, as in earlier releases, seq_len={{{firsts[full]!r}: "
            f"{given!r}}}"
        )
    return full
