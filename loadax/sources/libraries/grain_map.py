"""GrainSource: rows of a `grain.MapDataset`, with Grain's own epochs."""

from collections.abc import Iterator
from contextlib import suppress
from typing import Any, final

import numpy as np

from loadax.core.arguments import MOST_POSITIONS
from loadax.core.formatting import count_text
from loadax.core.spec import own, spec_of, stack
from loadax.core.user_object import UserObject
from loadax.errors import ArgumentError, LeafError, SourceError
from loadax.protocols import ArraySpec, Integers, Tree, Visits
from loadax.sources.adapt import ObjectSource, all_with_arrays, each_item
from loadax.sources.base import BaseSource, Traits
from loadax.sources.checks import check_rows
from loadax.sources.library import comes_from

_ENDLESS = MOST_POSITIONS  # Grain says 2**63 - 1 for a dataset without an end
# Names of Grain's classes of datasets, without "MapDataset".
# Element i is computed from element i of the parent.
_ROW_BY_ROW = {"Map", "MapWithIndex", "RandomMap", "Filter", "_WithSeed"}
# Records are the same in every epoch if those of the parents are.
_SAME_RECORDS = {
    *_ROW_BY_ROW,
    "Source",
    "Range",
    "Slice",
    "Concatenate",
    "Zip",
    "Repeat",
    "Batch",
}
# The same record may have another value in each epoch: Grain's indices continue from epoch to epoch.
_RANDOM = {"MapWithIndex", "RandomMap"}


@final
class GrainSource(BaseSource):
    """The rows of a `grain.MapDataset`.

    Row r of epoch e is its element `r + e * len(dataset)`, which is how Grain counts epochs. An epoch of a dataset that
    `.repeat()` made endless has the rows of the parent.

    Args:
        dataset: Dataset whose elements are examples; None where a filter dropped one.

    Raises:
        ArgumentError: If the length of an epoch is unknown.
    """

    spec: Tree | None = None  # until the first read

    def __init__(self, dataset: Any):
        self._dataset = dataset
        self._object = UserObject(dataset)
        self._length = _epoch_length(dataset)
        kinds = set(map(_kind, _chain(dataset)))
        own_epochs = not kinds <= _SAME_RECORDS
        random = own_epochs or not kinds.isdisjoint(_RANDOM)
        self.traits = Traits(
            reads_examples=True,
            owns_memory=True,
            random=random,
            own_epochs=own_epochs,
            runs_python=True,
        )
        # The second epoch of a slice of an endless dataset begins after 2**63 - 1 rows.
        self._cut = len(dataset) < _ENDLESS and any(
            len(each) >= _ENDLESS for each in _chain(dataset)
        )

    def __repr__(self) -> str:
        return f"Grain's {type(self._dataset).__name__}"

    def read_visits(self, visits: Visits) -> Tree:
        """The examples at `visits.rows`, each of its own epoch."""
        examples = self._examples(visits)
        if self.spec is None:
            zero = np.zeros(1, np.int64)
            self.spec = spec_of((examples or self._examples(Visits(zero, zero)))[0])
        return stack(examples, self.spec, visits.rows.tolist())

    def read_examples(self, visits: Visits) -> list[Tree]:
        return list(map(own, self._examples(visits)))

    def _examples(self, visits: Visits) -> list[Tree]:
        rows = check_rows(visits.rows, self._length)
        if _epoch_length(self._dataset) != self._length:
            raise SourceError(
                f"the Grain dataset had {count_text(self._length, 'row')} and has "
                f"{_epoch_length(self._dataset)} now; open it again"
            )
        if self._cut and visits.epochs.any():
            raise SourceError(
                f"epoch {visits.epochs.max()}: the Grain dataset is a slice of one "
                "without end, and has one epoch; pass num_epochs=1, or slice it "
                "before .repeat()"
            )
        examples = self._object.call(self._elements, rows, visits.epochs)
        missing = [
            number for number, example in enumerate(examples) if example is None
        ]
        if missing:
            raise LeafError(
                f"row {rows[missing[0]]}: the Grain dataset gave None instead of an "
                f"example in epoch {visits.epochs[missing[0]]}; return one for every "
                "row, or, if they are the same in every epoch, leave them out: "
                "loadax.from_grain(data.filter(lambda example: True))"
            )
        return all_with_arrays(examples)

    def _elements(self, rows: Integers, epochs: Integers) -> list[Tree]:
        dataset = self._dataset
        indices = (rows + epochs * self._length).tolist()
        # It has no public name, but all of Grain's datasets have it for their own batches. Reading element by element
        # takes half as long again.
        many = getattr(dataset, "_getitems", None)
        if many is not None and len(indices) > 1:
            with suppress(Exception):  # the loop below finds the element that failed
                return list(many(indices))
        return each_item(
            dataset,
            indices,
            lambda n: f"[{indices[n]}], which is row {rows[n]} of epoch {epochs[n]}",
        )


@final
class PresenceSource(BaseSource):
    """Whether each element of a `grain.MapDataset` exists: a filter leaves None in place of the others."""

    traits = Traits(runs_python=True)
    spec = ArraySpec((), np.dtype(bool))

    def __init__(self, dataset: Any):
        self._dataset = dataset
        self._length = _epoch_length(dataset)

    def read(self, rows: Integers) -> Tree:
        return np.array(
            [self._dataset[row] is not None for row in rows.tolist()], bool
        )


def open_grain(data: Any) -> tuple[BaseSource, PresenceSource | None]:
    """The source of a MapDataset, and, if Grain filters it, the source of which rows exist.

    Raises:
        ArgumentError: If its elements are batches, or a filter drops other rows in every epoch. Says what to write.
    """
    batched = next((part for part in _chain(data) if _kind(part) == "Batch"), None)
    if batched is not None:
        raise ArgumentError(
            f"the Grain dataset makes batches ({batched}), so each of its rows would "
            "be one; pass the dataset before .batch(), and batch_size= to the "
            "Dataloader"
        )
    # A dataset of records alone is read without Grain, which is faster, and many at once if they have __getitems__.
    # The records have no public name.
    if _kind(data) == "Source":
        records = getattr(data, "_source", None)
    else:
        records = None
    if records is not None:
        return ObjectSource(records), None
    sparse = any(_kind(part) == "Filter" for part in _chain(data))
    return GrainSource(data), PresenceSource(_deciding(data)) if sparse else None


def is_there(present: Any) -> bool:
    """Whether a row of a `PresenceSource` is kept."""
    return bool(present)


def is_grain(data: Any) -> bool:
    """Whether something is a `grain.MapDataset`."""
    return comes_from(data, "grain", "MapDataset")


def refuse_grain(data: Any) -> None:
    """Refuses data that Grain can only iterate over.

    Raises:
        ArgumentError: Says what to pass instead.
    """
    remedies = {
        (
            "IterDataset",
            "DatasetIterator",
        ): "the MapDataset before .to_iter_dataset()",
        (
            "DataLoader",
            "DataLoaderIterator",
        ): "its data source: loadax.from_source(data_source).shuffle(seed).map(fn)",
    }
    for names, remedy in remedies.items():
        if comes_from(data, "grain", *names):
            raise ArgumentError(
                f"the data is Grain's {type(data).__name__}, which can only be "
                f"iterated over; pass {remedy}"
            )


def _epoch_length(dataset: Any) -> int:
    """The rows of an epoch.

    Raises:
        ArgumentError: If the dataset is endless for another reason than a `.repeat()`.
    """
    below = dataset
    while len(below) >= _ENDLESS:
        if _kind(below) == "Repeat":
            return len(below.parents[0])
        if _kind(below) not in _ROW_BY_ROW:
            raise ArgumentError(
                f"the Grain dataset is endless, and its {type(below).__name__} hides "
                "how long an epoch is; leave out the .repeat() before it, and pass "
                "num_epochs=None to the Dataloader, or cut it to one epoch: "
                "loadax.from_grain(data[:rows])"
            )
        below = below.parents[0]
    return len(below)


def _deciding(dataset: Any) -> Any:
    """The part of a dataset with filters that decides which rows exist.

    Raises:
        ArgumentError: If other rows are dropped in every epoch.
    """
    deciding = dataset
    while _kind(deciding) in _ROW_BY_ROW - {"Filter"}:
        deciding = deciding.parents[0]
    if set(map(_kind, _chain(deciding))) <= _SAME_RECORDS - _RANDOM:
        return deciding
    raise ArgumentError(
        "the Grain dataset shuffles or maps at random before a .filter, so each "
        "epoch may have other rows; pass the dataset with its filter alone, and "
        "shuffle and map with loadax: "
        "loadax.from_grain(base.filter(fn)).shuffle(seed).map(fn, rng=True)"
    )


def _chain(dataset: Any) -> Iterator[Any]:
    """A dataset and all of its ancestors; not those of a flat map, which may split their batches."""
    yield dataset
    if not type(dataset).__name__.startswith("FlatMap"):
        for parent in dataset.parents:
            yield from _chain(parent)


def _kind(dataset: Any) -> str:
    """Name of Grain's class without MapDataset; "" for a user's class, which may do anything."""
    if str(type(dataset).__module__).startswith("grain."):
        return type(dataset).__name__.removesuffix("MapDataset")
    return ""
