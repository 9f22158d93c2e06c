"""Check that two datasets share no row of their sources, such as the parts of a split."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from loadax.core.arguments import MOST_POSITIONS, integer
from loadax.core.formatting import count_text
from loadax.dataset import Dataset
from loadax.errors import ArgumentError
from loadax.io import as_dataset
from loadax.protocols import Visits
from loadax.sources.base import Below, walk
from loadax.sources.origins import SourceNumbers, origins
from loadax.testing.laws import Law, show_rows

APART = Law(
    "parts share no row",
    "split before rows are repeated, mixed, cut into windows or packed, and shuffle "
    "each part: see the guide 'Splits that don't leak'",
)
_CHUNK = 1 << 16  # positions per pass


class _Seen(NamedTuple):
    """The dataset, epoch, and position that a row is first read at."""

    name: str
    epoch: int
    position: int


def disjoint(a: Any, b: Any, epochs: int = 1) -> None:
    """Checks that two datasets share no row of their sources in any of some epochs. Call it in your tests.

    Rows are those of the data itself: of windows, chunks of `flat_map`, packs and groups, the rows that they are made
    of; of `concat`, `mix` and `zip`, those of each part. No row is read: orders alone are compared, all positions of
    all epochs.

    Sources are told apart by the object, by arrays in memory, and by paths and URLs; not by contents. What `cache`,
    `write_zarr` and other libraries have written is a source of its own.

    Args:
        a: Dataset, or anything else that `loadax.Dataloader` accepts.
        b: The other one, made of the same data.
        epochs: Number of epochs, from 0 on.

    Raises:
        ConformanceError: When they share rows; shows them, and where one of them is read.
        ArgumentError: When an argument is invalid, a dataset is a stream or never ends, or the two have no source in
            common, so that their rows can't be compared.

    Examples:
        >>> import numpy as np
        >>> from loadax import from_arrays
        >>> from loadax.testing import disjoint
        >>> data = from_arrays(np.arange(1000)).shuffle(seed=42)
        >>> validation, train = data[:200], data[200:]
        >>> disjoint(train, validation, epochs=3)
        >>> disjoint(data.subset_per_epoch(range(200)), data.subset_per_epoch(range(200, 1000)), epochs=2)
        Traceback (most recent call last):
        ...
        loadax.errors.ConformanceError: the pair breaks the law 'parts share no row': ...
        >>> days = from_arrays(np.arange(1000))
        >>> past, future = days.split(0.8, contiguous=True)
        >>> disjoint(past.windows(24), future.windows(24))
    """
    epochs = integer("epochs", epochs, 1)
    datasets = {"a": _checked("a", a), "b": _checked("b", b)}
    numbers = SourceNumbers(files=True)
    seen: list[dict[str, NDArray[np.bool_]]] = []
    for name, dataset in datasets.items():
        for _, _, below in _reads(dataset, epochs):
            number = numbers(below.source)
            if number == len(seen):
                seen.append(
                    {each: np.zeros(len(below.source), bool) for each in datasets}
                )
            seen[number][name][below.visits.rows] = True
    if not any(own["a"].any() and own["b"].any() for own in seen):
        _check_comparable(datasets, numbers)
    for number, own in enumerate(seen):
        shared = np.flatnonzero(own["a"] & own["b"])
        if len(shared):
            row = int(shared[0])
            places = [
                f"position {at.position} of epoch {at.epoch} of {at.name}"
                for name, dataset in datasets.items()
                for at in _find(name, dataset, epochs, numbers, (number, row))
            ]
            raise APART.broken(
                "the pair",
                f"{count_text(len(shared), 'row')} of {numbers.sources[number]!r} in "
                f"both within {count_text(epochs, 'epoch')}: {show_rows(shared)}; "
                f"row {row} is read at {' and '.join(places)}",
            )


def _checked(name: str, data: Any) -> Dataset:
    dataset = as_dataset(data)
    if dataset.is_stream:
        raise ArgumentError(
            f"{name} is a stream, whose rows have no numbers; check the datasets "
            "that it is made of"
        )
    if dataset.order.size >= MOST_POSITIONS:
        raise ArgumentError(
            f"{name} never ends; check its parts, or "
            f"{name}.subset_per_epoch(range(n))"
        )
    if any(
        source.traits.own_epochs and not source.children
        for source in walk(dataset.source)
    ):
        raise ArgumentError(
            f"{name}: the source has another order in each epoch, so that its row "
            "numbers tell nothing; shuffle with loadax: .shuffle(seed)"
        )
    return dataset


def _reads(dataset: Dataset, epochs: int) -> Iterator[tuple[int, int, Below]]:
    """Epoch and first position of runs of positions, and the rows of each source that they are made of."""
    for epoch in range(epochs):
        for start in range(0, len(dataset), _CHUNK):
            positions = np.arange(
                start, min(start + _CHUNK, len(dataset)), dtype=np.int64
            )
            visits: Visits = dataset.order.visits(
                np.full_like(positions, epoch), positions
            )
            for below in origins(dataset.source, visits):
                yield epoch, start, below


def _find(
    name: str,
    dataset: Dataset,
    epochs: int,
    numbers: SourceNumbers,
    row: tuple[int, int],
) -> Iterator[_Seen]:
    """The first read of a row, which is the number of a source and the row of it."""
    for epoch, start, below in _reads(dataset, epochs):
        at = (
            np.flatnonzero(below.visits.rows == row[1])
            if numbers(below.source) == row[0]
            else ()
        )
        if len(at):
            yield _Seen(name, epoch, start + int(below.asked[at].min()))
            return


def _check_comparable(datasets: dict[str, Dataset], numbers: SourceNumbers) -> None:
    """Checks that two datasets that share no row have a source in common."""
    leaves = {
        name: {numbers(leaf) for leaf in walk(dataset.source) if not leaf.children}
        for name, dataset in datasets.items()
    }
    if not leaves["a"] & leaves["b"]:
        shown = {
            name: ", ".join(
                repr(numbers.sources[each]) for each in sorted(leaves[name])
            )
            for name in leaves
        }
        raise ArgumentError(
            f"a reads {shown['a']}, and b {shown['b']}: they have no source in "
            "common, so that row numbers can't be compared; open the data once, and "
            "make both of that dataset"
        )
