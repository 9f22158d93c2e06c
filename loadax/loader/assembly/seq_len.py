"""Sequence-length schedules: crops the leaves of a dataset to their first entries."""

from typing import Any

from loadax.core.spec import flatten_spec
from loadax.core.tree import flatten
from loadax.dataset import Dataset
from loadax.errors import ArgumentError
from loadax.protocols import ArraySpec
from loadax.sources.wrappers.crop import CroppedSource, first_columns
from loadax.transforms import BatchMap


def cut_to(dataset: Dataset, length: int) -> Dataset:
    """Crops every full-length sequence of the dataset to its first `length` entries.

    Full length is the longest first dimension of any leaf of an example.

    Raises:
        ArgumentError: If no leaf is that long.
    """
    specs, structure = flatten_spec(dataset.spec)
    full = max((spec.shape[0] for spec in specs if spec.shape), default=0)
    if not 1 <= length <= full:
        raise ArgumentError(
            f"seq_len={length}: the longest leaf has {full} entries ({', '.join(structure.paths)}); pass 1 to {full}"
        )
    cut = structure.build(
        ArraySpec((length, *spec.shape[1:]), spec.dtype) if spec.shape and spec.shape[0] == full else spec
        for spec in specs
    )
    if not dataset.maps:
        return Dataset(CroppedSource(dataset.source, cut), dataset.order)

    def crop(batch: Any) -> Any:
        leaves = zip(flatten(batch)[0], flatten_spec(cut)[0], strict=True)
        return structure.build(first_columns(leaf, leaf_spec) for leaf, leaf_spec in leaves)

    place = dataset.reader.traits.num_maps
    cropping = BatchMap(crop, rng=False, seed=0, place=place, spec=cut)
    return Dataset(dataset.source, dataset.order, (*dataset.maps, cropping)).probed_at(dataset.reader.first)
