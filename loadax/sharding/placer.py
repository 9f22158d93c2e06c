"""Global arrays out of this process's boxes: the one way in which loadax hands memory to JAX.

It goes through `jax.make_array_from_callback`, or what that ends in, which only ever looks at this process's devices.
(`jax.device_put` with a sharding that spans processes compares the data of all hosts: a collective, which hangs when a
prefetch thread runs it.)
"""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, final

import jax
import numpy as np
from jax.sharding import NamedSharding
from numpy.typing import NDArray

from loadax.sharding.compat import array_maker
from loadax.sharding.layout import LeafLayout


@final
class Placer:
    """Makes global arrays of one shape, dtype and sharding out of this process's boxes. Never communicates.

    Args:
        layout: what this process holds.
        sharding: on a mesh whose devices hold just that.
        dtype: of the arrays; they get exactly this one, also 64-bit ones on a thread without x64.
        microbatches: k > 1: the arrays have shape (k, rows / k, …) instead, and row r is entry (r % k, r // k): then
            every device's rows stay where they are. The sharding is for that shape; boxes must hold multiples of k
            rows.

    Examples:
        >>> from jax.sharding import PartitionSpec
        >>> from loadax.sharding.layout import plan_leaf
        >>> from loadax.sharding.mesh import data_parallel, grid_of
        >>> mesh = data_parallel()
        >>> sharding = NamedSharding(mesh, PartitionSpec("data"))
        >>> place = Placer(plan_leaf(grid_of(mesh), ("data",), (8,)), sharding, np.int32)
        >>> print(place([np.full(1, number, np.int32) for number in range(8)]))
        [0 1 2 3 4 5 6 7]
    """

    def __init__(self, layout: LeafLayout, sharding: NamedSharding, dtype: Any, microbatches: int = 1):
        self._micro = microbatches
        rows = layout.shape[:1] if microbatches == 1 else (microbatches, layout.shape[0] // microbatches)
        self.shape = (*rows, *layout.shape[1:])
        self.sharding = sharding
        self.dtype = np.dtype(dtype)
        # Only the dims that are cut tell boxes apart, and only there does JAX's index have a start.
        dims = [dim for dim, size in enumerate(layout.shape) if any(box[dim] != (0, size) for box in layout.boxes)]
        units = {0: microbatches}  # JAX counts rows of a microbatch
        numbers = {
            tuple(box[dim][0] // units.get(dim, 1) for dim in dims): number for number, box in enumerate(layout.boxes)
        }
        self._dims = [dim + (microbatches > 1) for dim in dims]
        # JAX asks for the data of a replicated array even where none of its devices are, and throws it away: zeros, of
        # no memory.
        self._nothing = () if layout.boxes else (np.broadcast_to(np.zeros((), self.dtype), self.shape),)
        self._numbers = numbers or {(): 0}
        self._wide = self.dtype in (np.int64, np.uint64, np.float64, np.complex128)
        # Set once an array was made in the public way.
        self._make: Callable[[Sequence[NDArray[Any]]], jax.Array] | None = None

    def __call__(self, buffers: Sequence[NDArray[Any]]) -> jax.Array:
        """The array whose boxes are `buffers`, in the order of the layout's.

        On the CPU it may live on that very memory, which must then not be written again while it does.
        """
        held = self._nothing or (buffers if self._micro == 1 else [self._turned(each) for each in buffers])
        # The user's transfer guard is for transfers that nobody asked for. The x64 flag is the thread's, and this may
        # be another thread than the one that the dtype was chosen on.
        with jax.transfer_guard_host_to_device("allow"), jax.enable_x64(True) if self._wide else nullcontext():
            if self._make is None:
                array = self._made_publicly(held)  # which checks what the others are like
                self._make = self._quick() or self._made_publicly
                return array
            return self._make(held)

    def _made_publicly(self, held: Sequence[NDArray[Any]]) -> jax.Array:
        return jax.make_array_from_callback(self.shape, self.sharding, lambda index: held[self._box(index)], self.dtype)

    def _quick(self) -> Callable[[Sequence[NDArray[Any]]], jax.Array] | None:
        """The same in less than half the time, where there is a way and this process has devices."""
        make = None if self._nothing else array_maker(self.shape, self.dtype, self.sharding)
        if make is None:
            return None
        boxes = [self._box(index) for index in self.sharding.addressable_devices_indices_map(self.shape).values()]
        return lambda held: make([held[box] for box in boxes])

    def _box(self, index: Any) -> int:
        """Which box JAX means by an index of the array."""
        return self._numbers[tuple([index[dim].start for dim in self._dims])]

    def _turned(self, buffer: NDArray[Any]) -> NDArray[Any]:
        """A box of rows as microbatches: a copy, since the rows of each lie apart."""
        return np.ascontiguousarray(buffer.reshape(-1, self._micro, *buffer.shape[1:]).swapaxes(0, 1))


def place(buffers: Sequence[NDArray[Any]], layout: LeafLayout, sharding: NamedSharding, dtype: Any) -> jax.Array:
    """One array, of one NumPy array for each box of `layout`; to make many alike, keep a `Placer`."""
    return Placer(layout, sharding, dtype)(buffers)
