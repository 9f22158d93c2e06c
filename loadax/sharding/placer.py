"""Makes global arrays from this process's boxes. All host memory that loadax gives to JAX goes through this module.

It uses `jax.make_array_from_callback`, or its last step, which only involves this process's devices.
(`jax.device_put` with a sharding that spans processes compares the data of all hosts. That is a hidden collective, and
it hangs when a prefetch thread runs it.)
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, final

import jax
import numpy as np
from jax.sharding import NamedSharding
from numpy.typing import NDArray

from loadax.sharding.compat import array_maker
from loadax.sharding.layout import LeafLayout


@final
class Placer:
    """Makes global arrays of one shape, dtype and sharding from this process's boxes, without communication.

    Args:
        layout: Boxes that this process holds.
        sharding: Sharding with the same layout.
        dtype: Exact dtype of the arrays, also if it is 64-bit and this thread has x64 disabled.
        microbatches: Number k of microbatches. For k > 1, arrays have shape (k, rows / k, …) and row r is entry
            (r % k, r // k), so that every row stays on its device. `sharding` is for that shape, and the height of the
            boxes must be a multiple of k.

    Examples:
        >>> import numpy as np
        >>> from jax.sharding import NamedSharding, PartitionSpec
        >>> from loadax.sharding.layout import plan_leaf
        >>> from loadax.sharding.mesh import data_parallel, grid_of
        >>> from loadax.sharding.placer import Placer
        >>> mesh = data_parallel()
        >>> sharding = NamedSharding(mesh, PartitionSpec("data"))
        >>> place = Placer(plan_leaf(grid_of(mesh), ("data",), (8,)), sharding, np.int32)
        >>> print(place([np.full(1, number, np.int32) for number in range(8)]))
        [0 1 2 3 4 5 6 7]
    """

    def __init__(
        self,
        layout: LeafLayout,
        sharding: NamedSharding,
        dtype: Any,
        microbatches: int = 1,
    ):
        self._microbatches = microbatches
        if microbatches == 1:
            rows = layout.shape[:1]
        else:
            rows = (microbatches, layout.shape[0] // microbatches)
        self.shape = (*rows, *layout.shape[1:])
        self.sharding = sharding
        self.dtype = np.dtype(dtype)
        # Boxes differ only along split dims, and only there do JAX's indices have a start.
        dims = [
            dim
            for dim, size in enumerate(layout.shape)
            if any(box[dim] != (0, size) for box in layout.boxes)
        ]
        # JAX's row indices are those within a microbatch
        row_units = {0: microbatches}
        box_indices = {
            tuple(box[dim][0] // row_units.get(dim, 1) for dim in dims): index
            for index, box in enumerate(layout.boxes)
        }
        self._split_dims = [dim + (microbatches > 1) for dim in dims]
        # JAX asks for the data of a replicated array even on a process without its devices, and discards it. These
        # broadcast zeros take no memory.
        self._zeros = (
            ()
            if layout.boxes
            else (np.broadcast_to(np.zeros((), self.dtype), self.shape),)
        )
        self._box_indices = box_indices or {(): 0}
        self._is_64_bit = self.dtype in (
            np.int64,
            np.uint64,
            np.float64,
            np.complex128,
        )
        # Set after the first array was made by the public API.
        self._make: Callable[[Sequence[NDArray[Any]]], jax.Array] | None = None

    def __call__(self, buffers: Sequence[NDArray[Any]]) -> jax.Array:
        """Makes the array whose boxes are `buffers`, in the order of the layout.

        On CPU the array may alias this memory, which must not be written to while the array exists.
        """
        local_data = self._zeros or (
            buffers
            if self._microbatches == 1
            else [self._by_microbatch(buffer) for buffer in buffers]
        )
        with _explicit_transfer():
            if self._make is None:
                # it checks shapes and dtypes, which later buffers share
                array = self._make_by_callback(local_data)
                self._make = self._fast_maker() or self._make_by_callback
                return array
            return self._make(local_data)

    def _make_by_callback(self, local_data: Sequence[NDArray[Any]]) -> jax.Array:
        # The x64 flag is thread-local, and the dtype may have been chosen on another thread.
        with jax.enable_x64(True) if self._is_64_bit else nullcontext():
            return jax.make_array_from_callback(
                self.shape,
                self.sharding,
                lambda index: local_data[self._box_index(index)],
                self.dtype,
            )

    def _fast_maker(self) -> Callable[[Sequence[NDArray[Any]]], jax.Array] | None:
        """A function that does the same in less than half the time, or None without it or without local devices."""
        make = (
            None
            if self._zeros
            else array_maker(self.shape, self.dtype, self.sharding)
        )
        if make is None:
            return None
        boxes = [
            self._box_index(index)
            for index in self.sharding.addressable_devices_indices_map(
                self.shape
            ).values()
        ]
        if boxes == [*range(len(boxes))]:
            return make
        return lambda local_data: make([local_data[box] for box in boxes])

    def _box_index(self, index: Any) -> int:
        """Index of the box that an index of the array refers to."""
        return self._box_indices[
            tuple([index[dim].start for dim in self._split_dims])
        ]

    def _by_microbatch(self, buffer: NDArray[Any]) -> NDArray[Any]:
        """Copies a box of rows into microbatch order, in which the rows of one microbatch are contiguous."""
        rows = len(buffer) // self._microbatches
        return np.ascontiguousarray(
            buffer.reshape(rows, self._microbatches, *buffer.shape[1:]).swapaxes(0, 1)
        )


def _explicit_transfer() -> AbstractContextManager[None]:
    """Allows a transfer: the user's transfer guard is meant for implicit ones. Entering JAX's own context is slow."""
    config: Any = jax.config  # its attributes are made at run time
    unguarded = (
        config.jax_transfer_guard is None
        and config.jax_transfer_guard_host_to_device is None
    )
    if unguarded:
        return nullcontext()
    return jax.transfer_guard_host_to_device("allow")
