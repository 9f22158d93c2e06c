"""Ranks of a run without JAX devices: each reads its rows of every step, as NumPy arrays or by indices alone."""

import os
import sys
from collections.abc import Iterator
from typing import Any, final

from loadax.core.arguments import integer
from loadax.core.formatting import type_text
from loadax.core.warn import warn_user
from loadax.errors import ArgumentError
from loadax.loader.dataloader import Dataloader, restored
from loadax.loader.loader_arguments import LoaderArguments
from loadax.loader.phase import Phase
from loadax.loader.phases import Phases
from loadax.sharding.mesh import plan_mesh


def rank_of(rank: int | None, world_size: int | None) -> tuple[int, int]:
    """Rank and number of ranks. None: those of `torch.distributed`, or of `torchrun`, or 0 of 1.

    Raises:
        ArgumentError: If they are not a rank and a number of ranks.
    """
    if (rank is None) != (world_size is None):
        raise ArgumentError(
            f"rank={rank} and world_size={world_size}: pass both, or neither"
        )
    if rank is None or world_size is None:
        rank, world_size = _own_rank()
    count = integer("world_size", world_size, 1)
    return integer("rank", rank, 0, count - 1), count


def _own_rank() -> tuple[int, int]:
    if "torch" in sys.modules:
        from torch import distributed

        if distributed.is_available() and distributed.is_initialized():
            return distributed.get_rank(), distributed.get_world_size()
    # of torchrun
    number = int(os.environ.get("RANK", "0"))
    return number, int(os.environ.get("WORLD_SIZE", "1"))


def on_rank(
    loader: Dataloader,
    rank: int,
    world_size: int,
) -> Dataloader:
    """The loader of one rank's rows, whose `host_batches` and `local_rows` need no device.

    Rank r of n has the r-th of n contiguous parts of every batch. States and digests are those of the loader.

    Args:
        loader: The loader of all ranks. Its mesh and partition have no effect.
        rank: Number of the rank, from 0.
        world_size: Number of ranks.

    Raises:
        ArgumentError: If a batch can't be split into as many parts, or the loader has `device_map=`, or is no
            `Dataloader`.

    Examples:
        >>> import numpy as np
        >>> from loadax import Dataloader
        >>> from loadax.interop.ranks import on_rank
        >>> loader = Dataloader(np.arange(16), batch_size=8)
        >>> for rank in range(2):
        ...     print(next(on_rank(loader, rank, 2).host_batches()))
        [0 1 2 3]
        [4 5 6 7]
    """
    if not isinstance(loader, Dataloader):
        raise ArgumentError(
            f"loader is {type_text(loader)}; pass a Dataloader", argument="loader"
        )
    return restored(
        *(
            (
                _arguments(phase, rank, world_size),
                phase.plan.skips,
                phase.order.weights,
            )
            for phase in loader.phases
        )
    )


def _arguments(
    phase: Phase,
    rank: int,
    world_size: int,
) -> LoaderArguments:
    arguments = phase.arguments
    place = arguments.place
    if place.device_map is not None:
        raise ArgumentError(
            "the loader has device_map=, which only JAX's devices apply; leave it "
            "out, and do the same at the start of the model",
            argument="loader",
        )
    microbatches = place.microbatches
    multiple = world_size * microbatches
    for segment in phase.plan.segments:
        if segment.batch_size % multiple:
            raise ArgumentError(
                f"batch_size={segment.batch_size} can't be split over "
                f"world_size={world_size} ranks with microbatches={microbatches}; "
                f"use a multiple of {multiple}"
            )
    return arguments._replace(
        place=place._replace(
            # a planned one, so that a mesh of the caller is not asked
            mesh=plan_mesh({"rank": 1}, hosts=1),
            partition=None,
            keep_on_device=False,
            shard_index=rank,
            shard_count=world_size,
        )
    )


@final
class BatchSampler:
    """Indices of one rank's rows, a list for every step, for `torch.utils.data.DataLoader(dataset, batch_sampler=…)`.

    The dataset is the user's, and map-style; loadax only plans, and reads nothing. The indices are those of
    `loader.rows(step)`: of the rows of the loader's source. Each `iter()` goes through all epochs of the run, from step
    0 or the state that was loaded. It has a state too, which torchdata's `StatefulDataLoader` saves.

    Args:
        loader: The loader of all ranks. Its mesh and partition have no effect.
        rank: Number of this process, from 0. None: that of `torch.distributed`, or of `torchrun`, or 0.
        world_size: Number of processes. None: likewise, or 1.
        start: Step or state to begin at.

    Raises:
        ArgumentError: If a batch can't be split over the ranks, or rows would have to be padding: `remainder="pad"` or
            `quarantine=`.
        StreamError: If the loader reads a stream.
        StateError: If the state belongs to other data.

    Examples:
        >>> import numpy as np
        >>> from loadax import Dataloader
        >>> from loadax.interop.ranks import BatchSampler
        >>> loader = Dataloader(np.arange(16), batch_size=8)
        >>> list(BatchSampler(loader, rank=1, world_size=2))
        [[4, 5, 6, 7], [12, 13, 14, 15]]
    """

    def __init__(
        self,
        loader: Dataloader,
        rank: int | None = None,
        world_size: int | None = None,
        start: Any = 0,
    ):
        self.rank, self.world_size = rank_of(rank, world_size)
        self.loader = on_rank(loader, self.rank, self.world_size)
        # of a stream, an error
        _ = loader.steps_per_epoch
        for phase in loader.phases:
            padded = phase.plan.remainder == "pad"
            if padded or len(phase.pipeline.options.quarantine):
                raise ArgumentError(
                    "the loader has remainder='pad' or quarantine=, and a dataset of "
                    "torch has no rows for padding; leave them out here, or use "
                    "loadax.interop.torch.batches, whose leaf 'mask' is False there",
                    argument="loader",
                )
        phases = loader.phases
        self._varies = any(phase.dataset.order.varies for phase in phases)
        self._steps = Phases([(phase.plan, phase.order) for phase in phases])
        self._start = self._steps.start_of(start)
        self._latest: SampledSteps | None = None

    def __iter__(self) -> "SampledSteps":
        again = self._latest is not None and self._latest.step > self._start
        if again and self._varies:
            warn_user(
                f"the sampler begins at step {self._start} again, so it repeats the "
                "batches of the first pass in the same order; set the loader's "
                "num_epochs, and loop over the DataLoader once"
            )
        self._latest = SampledSteps(self.loader, self._steps, self._start)
        return self._latest

    def __len__(self) -> int:
        """Number of steps of the run, or a TypeError if it is infinite."""
        return len(self.loader)

    def state_dict(self, step: int | None = None) -> dict[str, Any]:
        """The loader's state, equal on all ranks: of `batches`, of the JAX loader, and on any number of ranks.

        Args:
            step: Number of batches that were trained on. None: those whose indices were handed out, which are more
                where the workers of a `DataLoader` read ahead.
        """
        if step is not None:
            return self._steps.state(self._steps.start_of(step))
        if self._latest is None:
            return self._steps.state(self._start)
        return self._latest.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Sets where the next `iter()` begins.

        Raises:
            StateError: If the state belongs to other data.
        """
        self._start = self._steps.start_of(state)
        self._latest = None

    def __repr__(self) -> str:
        return (
            f"BatchSampler(rank={self.rank}, world_size={self.world_size}, "
            f"start={self._start}, {self.loader!r})"
        )


@final
class SampledSteps(Iterator[list[int]]):
    """An iterator of a `BatchSampler`, with a state of its own."""

    def __init__(
        self,
        loader: Dataloader,
        steps: Phases,
        step: int,
    ):
        self._loader = loader
        self._steps = steps
        self.step = step

    def __next__(self) -> list[int]:
        if self.step == self._steps.num_steps:
            raise StopIteration
        rows = self._loader.local_rows(self.step)
        self.step += 1
        return rows.tolist()

    def state_dict(self) -> dict[str, Any]:
        """The state after the steps handed out."""
        return self._steps.state(self.step)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues from a state.

        Raises:
            StateError: If it belongs to other data.
        """
        self.step = self._steps.start_of(state)
