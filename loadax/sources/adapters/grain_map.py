"""Grain's MapDatasets, each epoch as Grain itself gives it."""

from collections.abc import Iterator
from typing import Any, final

import numpy as np

from loadax.core.spec import own, spec_of, stack
from loadax.errors import ArgumentError, LeafError
from loadax.protocols import Integers, Tree, Visits
from loadax.sources.adapters.libraries import comes_from
from loadax.sources.base import BaseSource
from loadax.sources.checks import check_rows
from loadax.sources.objects import with_arrays

_ENDLESS = 1 << 62  # rows: an order has at most so many, and Grain says 2**63 - 1 for a dataset without an end
_SAME_IN_ALL_EPOCHS = {"Source", "Range", "Map", "Slice", "Concatenate", "Zip", "Repeat", "_WithSeed"}
"""Grain's datasets that have the same rows in every epoch when what they stand on has.

The names of their classes, without MapDataset.
"""


@final
class GrainSource(BaseSource):
    """The rows of a `grain.MapDataset`.

    Row r of epoch e is its element `r + e * len(dataset)`, which is how Grain counts epochs.

    Args:
        dataset: that has an end, and whose elements are examples.

    Raises:
        ArgumentError: when it goes on without end, leaves rows out, or makes batches; says what to hand over instead.
    """

    def __init__(self, dataset: Any):
        _check(dataset)
        self._dataset = dataset
        self._size = len(dataset)
        self._own_epochs = not all(map(_is_same_in_all_epochs, _chain(dataset)))
        self._spec: Tree | None = None

    def __len__(self) -> int:
        return self._size

    def __repr__(self) -> str:
        return f"Grain's {type(self._dataset).__name__}"

    @property
    def spec(self) -> Tree | None:
        """None until the first read, whose first example decides it."""
        return self._spec

    @property
    def owns_memory(self) -> bool:
        return True

    @property
    def own_epochs(self) -> bool:
        return self._own_epochs

    @property
    def random(self) -> bool:
        return self._own_epochs

    @property
    def reads_examples(self) -> bool:
        return True

    @property
    def runs_python(self) -> bool:
        return True

    def read(self, rows: Integers) -> Tree:
        """The examples at `rows` in epoch 0."""
        rows = check_rows(rows, self._size)
        return self.read_visits(Visits(rows, np.zeros_like(rows)))

    def read_visits(self, visits: Visits) -> Tree:
        """The examples at `visits.rows`, each of its own epoch."""
        examples = self._examples(visits)
        if self._spec is None:
            self._spec = spec_of(examples[0] if examples else self._example(0, 0))
        return stack(examples, self._spec, visits.rows.tolist())

    def read_examples(self, visits: Visits) -> list[Tree]:
        return list(map(own, self._examples(visits)))

    def _examples(self, visits: Visits) -> list[Tree]:
        rows = check_rows(visits.rows, self._size).tolist()
        return [self._example(*visit) for visit in zip(rows, visits.epochs.tolist(), strict=True)]

    def _example(self, row: int, epoch: int) -> Tree:
        try:
            example = self._dataset[row + epoch * self._size]
        except Exception as error:
            error.add_note(
                f"loadax: in {type(self._dataset).__name__}[{row} + {epoch} * {self._size}], "
                f"which is row {row} of epoch {epoch}"
            )
            raise
        if example is None:
            raise LeafError(
                f"row {row}: the Grain dataset gave None instead of an example in epoch {epoch}; "
                "return one for every row, and leave rows out with loadax: "
                "loadax.from_source(base).filter(fn), where base is the Grain dataset before rows become None"
            )
        return with_arrays(example)


def is_grain(data: Any) -> bool:
    """Whether something is a `grain.MapDataset`."""
    return comes_from(data, "grain", "MapDataset")


def refuse_grain(data: Any) -> None:
    """Refuses what Grain can only iterate over.

    Raises:
        ArgumentError: says what to hand over instead.
    """
    if comes_from(data, "grain", "IterDataset", "DatasetIterator"):
        raise ArgumentError(
            f"the data is Grain's {type(data).__name__}, which can only be iterated over; hand over the MapDataset "
            "before .to_iter_dataset(): it can be read at any row, and the Dataloader reads ahead and batches by itself"
        )
    if comes_from(data, "grain", "DataLoader"):
        raise ArgumentError(
            "the data is a grain.DataLoader, which can only be iterated over; hand over its data source, "
            "and shuffle and map with loadax: loadax.from_source(data_source).shuffle(seed).map(fn)"
        )


def _check(dataset: Any) -> None:
    if len(dataset) >= _ENDLESS:
        raise ArgumentError(
            "the Grain dataset goes on without end; hand over the dataset before .repeat(), "
            "and pass num_epochs=None to the Dataloader: every epoch is Grain's own"
        )
    for each in _chain(dataset):
        name = type(each).__name__
        if name == "FilterMapDataset":
            raise ArgumentError(
                "the Grain dataset leaves rows out by .filter, where it gives None; "
                "hand over the dataset before it, and filter with loadax: loadax.from_source(base).filter(fn)"
            )
        if name == "BatchMapDataset":
            raise ArgumentError(
                f"the Grain dataset makes batches ({each}), so each of its rows would be one; "
                "hand over the dataset before .batch(), and pass batch_size= to the Dataloader"
            )


def _chain(dataset: Any) -> Iterator[Any]:
    """A dataset and all that it stands on; not what is taken apart again, as batches are by a flat map."""
    yield dataset
    if not type(dataset).__name__.startswith("FlatMap"):
        for parent in dataset.parents:
            yield from _chain(parent)


def _is_same_in_all_epochs(dataset: Any) -> bool:
    # A class of the user's own may do anything, and so may what Grain adds one day.
    return (
        type(dataset).__module__.startswith("grain.")
        and type(dataset).__name__.removesuffix("MapDataset") in _SAME_IN_ALL_EPOCHS
    )
