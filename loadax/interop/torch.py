"""The batches of a loader in PyTorch: the same rows in the same order, bit by bit, on any number of ranks."""

from collections.abc import Iterator
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from loadax.core.casting import leaf_name
from loadax.core.tree import flatten
from loadax.core.warn import warn_user
from loadax.errors import LeafTypeError
from loadax.interop.ranks import BatchSampler, on_rank, rank_of
from loadax.loader.dataloader import Dataloader
from loadax.protocols import Tree
from loadax.sources.library import require

require("loadax.interop.torch", {"torch": "torch"}, extra="torch")
import torch  # noqa: E402

__all__ = ["BatchSampler", "RankBatches", "batches"]

# Dtypes that NumPy has by ml_dtypes; torch takes their bits.
_BY_BITS = {
    "bfloat16": torch.bfloat16,
    "float8_e4m3fn": torch.float8_e4m3fn,
    "float8_e4m3fnuz": torch.float8_e4m3fnuz,
    "float8_e5m2": torch.float8_e5m2,
    "float8_e5m2fnuz": torch.float8_e5m2fnuz,
    "float8_e8m0fnu": torch.float8_e8m0fnu,
}


def batches(
    loader: Dataloader,
    rank: int | None = None,
    world_size: int | None = None,
    *,
    start: Any = 0,
    device: Any = None,
    pin_memory: bool = False,
) -> "RankBatches":
    """Iterates over one rank's part of every batch of a loader, as tensors.

    Rank r of n has the r-th of n contiguous parts of each batch: all ranks together have the batch that
    `loader[step]` places on JAX's devices, bit by bit and in its dtypes. Without JAX's setting x64, 64-bit leaves have
    32 bits, as in JAX; those in `host_leaves=` keep theirs. No JAX device is used or looked for.

    Args:
        loader: The loader of all ranks, the same in each process. Its mesh and partition have no effect.
        rank: Number of this process, from 0. None: that of `torch.distributed`, or of `torchrun`, or 0.
        world_size: Number of processes. None: likewise, or 1.
        start: Step, or a state: of this, of a `BatchSampler` or of the JAX loader, on any number of ranks.
        device: Device of the tensors, as `torch.device` takes it. None: the host, without a copy.
        pin_memory: Whether to copy tensors to pinned memory, from which they are copied to `device` asynchronously.
            Ignored with a warning where there is no CUDA device.

    Raises:
        ArgumentError: If a batch can't be split over the ranks, or the loader has `device_map=`.
        StateError: If the state belongs to other data.

    Examples:
        >>> import numpy as np
        >>> import loadax
        >>> from loadax.interop.torch import batches
        >>> data = loadax.from_arrays({"x": np.arange(64.0)}).shuffle(seed=0)
        >>> loader = loadax.Dataloader(data, batch_size=16)
        >>> with batches(loader, rank=1, world_size=4) as part:
        ...     next(part)["x"].shape
        torch.Size([4])
    """
    return RankBatches(loader, rank, world_size, start, device, pin_memory)


@final
class RankBatches(Iterator[Tree]):
    """One rank's part of every batch, as tensors. Made by `batches`; a context manager, which ends reading ahead.

    The tree is the loader's. Tensors on the host share the memory that rows were read into; no other batch, and no
    source, has it. Leaves of `host_leaves=` whose dtype torch lacks, such as strings, stay NumPy arrays. With
    `microbatches=k`, leaves have shape (k, rows / k, …).

    Args:
        loader: As for `batches`.
        rank: As for `batches`.
        world_size: As for `batches`.
        start: As for `batches`.
        device: As for `batches`.
        pin_memory: As for `batches`.

    Attributes:
        rank: Number of this process.
        world_size: Number of processes.
        host_batches: Iterator of the NumPy arrays, with `stats()`, `report()` and `timeline()`.
    """

    def __init__(
        self,
        loader: Dataloader,
        rank: int | None,
        world_size: int | None,
        start: Any,
        device: Any,
        pin_memory: bool,
    ):
        self.rank, self.world_size = rank_of(rank, world_size)
        own = on_rank(loader, self.rank, self.world_size)
        self._streams = own.dataset.is_stream
        self._microbatches = [
            phase.pipeline.options.microbatches for phase in own.phases
        ]
        self._device = None
        if device is not None:
            self._device = torch.device(device)
        if pin_memory and not torch.cuda.is_available():
            warn_user("pin_memory=True has no effect: there is no CUDA device")
            pin_memory = False
        self._pin_memory = pin_memory
        self.host_batches = own.host_batches(start)

    def __next__(self) -> Tree:
        source = self.host_batches
        # Lanes of streams need their whole state, which takes a while.
        before = source.get_state() if self._streams else source.step
        phase = source.phase
        batch = next(source)
        try:
            leaves, structure = flatten(batch)
            microbatches = self._microbatches[phase]
            return structure.build(
                self._placed(array, microbatches, path)
                for array, path in zip(leaves, structure.paths, strict=True)
            )
        except BaseException:
            # also a Ctrl-C: the next call has this batch again
            source.set_state(before)
            raise

    def _placed(
        self,
        array: NDArray[Any],
        microbatches: int,
        path: str,
    ) -> Any:
        if microbatches > 1:
            rows = array.reshape(-1, microbatches, *array.shape[1:])
            array = np.ascontiguousarray(rows.swapaxes(0, 1))
        tensor = _tensor(array, path)
        if tensor is None:
            return array
        if self._pin_memory:
            tensor = tensor.pin_memory()
        if self._device is None:
            return tensor
        return tensor.to(self._device, non_blocking=self._pin_memory)

    @property
    def step(self) -> int:
        """Next step: number of batches handed out so far, counted from the run's first step."""
        return self.host_batches.step

    @property
    def epoch(self) -> int:
        """Epoch of the next batch."""
        return self.host_batches.epoch

    def __len__(self) -> int:
        """Number of steps of the run, however many are left.

        Raises:
            TypeError: If it is infinite.
        """
        steps = self.host_batches.num_steps
        if steps is None:
            raise TypeError("the loader is infinite and has no len()")
        return steps

    def state_dict(self) -> dict[str, Any]:
        """The loader's state after the batches handed out: JSON, equal on all ranks.

        That of a stream has the lanes of this rank; a resume on another number of ranks takes a list of all states.
        """
        return self.host_batches.get_state()

    def load_state_dict(self, state: Any) -> None:
        """Continues from a state, saved on any number of ranks, or by the JAX loader on any mesh.

        Raises:
            StateError: If it belongs to other data. Nothing has changed then.
        """
        self.host_batches.set_state(state)

    def set_weights(self, weights: Any) -> None:
        """Sets the weights of the mixture from the next batch on, as `DataIterator.set_weights`.

        All ranks must set the same weights at the same step. Nothing compares them here: ranks whose `state_dict()` are
        equal have.

        Args:
            weights: Weights by name, or a sequence, as of `mix`.

        Raises:
            ArgumentError: If a weight is wrong, or the last verb of the dataset but for maps is not `mix`. Nothing has
                changed then.
        """
        self.host_batches.set_weights(weights)

    def close(self) -> None:
        """Ends reading ahead. Idempotent."""
        self.host_batches.close()

    def __enter__(self) -> "RankBatches":
        return self

    def __exit__(self, *error: Any) -> None:  # noqa: PYI036 - as they came
        self.host_batches.__exit__(*error)

    def __repr__(self) -> str:
        return (
            f"RankBatches(rank={self.rank}, world_size={self.world_size}, "
            f"{self.host_batches!r})"
        )


def _tensor(array: NDArray[Any], path: str) -> torch.Tensor | None:
    """A tensor in the memory of an array, or in a copy where torch can't have it. None: torch lacks the dtype.

    Raises:
        LeafTypeError: If it is a dtype of JAX's.
    """
    dtype = array.dtype
    if not (array.flags.writeable and dtype.isnative):
        array = np.array(array, dtype.newbyteorder("="))
    if dtype.name in _BY_BITS:
        bits = array.view(f"u{dtype.itemsize}")
        return torch.from_numpy(bits).view(_BY_BITS[dtype.name])
    if dtype.kind == "V" and dtype.names is None:
        raise LeafTypeError(
            f"{leaf_name(path)} has dtype {dtype}, which torch lacks; change it in a map, "
            "to int8 or float32"
        )
    # neither strings, objects and dates, nor `longdouble`
    if dtype.kind not in "biufc" or dtype.char in "gG":
        return None
    return torch.from_numpy(array)
