"""loadax in Levanter: placed batches with named axes, and a dataset for Levanter's own loader."""

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any, final

import jax
import numpy as np

from loadax.errors import RowIndexError
from loadax.io import as_dataset
from loadax.loader.dataloader import Dataloader
from loadax.protocols import Tree
from loadax.sources.library import require

require(
    "loadax.interop.levanter",
    {
        "levanter": "levanter.data",
        "haliax": "haliax",
        "gitpython": "git",
        "chex": "chex",
    },
)
import haliax  # noqa: E402
from levanter.data import dataset as levanter_dataset  # noqa: E402

# a pytree like a batch, or a prefix of it, of tuples of `haliax.Axis`; None: not named
_Axes = Any


def batches(loader: Dataloader, axes: _Axes, start: Any = 0) -> Iterator[Tree]:
    """Iterates over a loader for `trainer.training_steps` or `trainer.train`: leaves are `haliax.NamedArray`s.

    Args:
        loader: Its mesh is the trainer's, and its partition cuts rows as the trainer does:
            `mesh=trainer.device_mesh, partition=P(haliax.partitioning.physical_axis_name(Batch, mapping))` with the
            trainer's `compute_axis_mapping`.
        axes: Axes of every leaf of a batch: tuples in a pytree like it, or in a prefix of it, such as
            `{"tokens": (Batch, Pos), "weight": (Batch,)}`. None for a leaf that stays a `jax.Array`.
        start: Step or state to start at, as for `loader.iterate`: `state.step` of the trainer resumes.
    """
    with loader.iterate(start) as placed:
        for batch in placed:
            yield _named(axes, batch)


@final
class AsyncDataset(levanter_dataset.AsyncDataset[Any]):  # type: ignore[misc] # Levanter may be absent
    """A dataset for Levanter's own `DataLoader`: example `position + epoch * len` is that position of that epoch.

    Args:
        dataset: `Dataset`, or what `loadax.as_dataset` accepts.
        axes: Axes of every leaf of an example, as for `batches`. None: not named.
        num_epochs: Number of epochs. None: infinite.
    """

    def __init__(self, dataset: Any, axes: _Axes = None, num_epochs: int | None = 1):
        super().__init__()
        self._dataset = as_dataset(dataset)
        self._axes = axes
        if num_epochs is None:
            self._length = None
        else:
            self._length = len(self._dataset) * num_epochs

    async def async_len(self) -> int:
        """Number of examples of all epochs.

        Raises:
            TypeError: If they are infinite.
        """
        if self._length is None:
            raise TypeError(
                "num_epochs=None: the dataset is infinite; pass num_epochs= for one "
                "with a length"
            )
        return self._length

    async def current_len(self) -> int | None:
        return self._length

    async def final_length_is_known(self) -> bool:
        return self._length is not None

    def is_finite(self) -> bool:
        return self._length is not None

    async def get_batch(self, indices: Sequence[int]) -> Sequence[Tree]:
        """Reads examples all at once, on another thread."""
        return await asyncio.to_thread(self._read, np.asarray(indices, np.int64))

    def _read(self, indices: np.ndarray[Any, np.dtype[np.int64]]) -> list[Tree]:
        outside = indices[(indices < 0) | (indices >= (self._length or np.inf))]
        if len(outside):
            raise RowIndexError(
                f"index {outside[0]} is out of range: pass indices of at least 0 and "
                f"below {self._length or 'infinity'}"
            )
        epochs, positions = np.divmod(indices, len(self._dataset))
        examples = self._dataset.reader.examples(
            self._dataset.order.visits(epochs, positions)
        )
        return [_named(self._axes, example) for example in examples]


def _named(axes: _Axes, tree: Tree) -> Tree:
    def name(leaf_axes: tuple[haliax.Axis, ...] | None, part: Tree) -> Tree:
        if leaf_axes is None:
            return part
        return jax.tree.map(lambda leaf: haliax.named(leaf, leaf_axes), part)

    return jax.tree.map(name, axes, tree, is_leaf=_is_axes)


def _is_axes(node: Any) -> bool:
    return node is None or (
        isinstance(node, tuple)
        and all(isinstance(axis, haliax.Axis) for axis in node)
    )
