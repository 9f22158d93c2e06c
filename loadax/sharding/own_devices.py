"""Compiled programs that run only on this process's devices of a mesh, independent of other processes.

A program over a mesh of several processes must be launched by all of them, in the same order relative to their other
collective programs. Prefetch threads can't guarantee that order, so nothing that the loader computes on devices is such
a program. If the mesh spans processes, this process's devices form a mesh of their own. Each array is seen there as the
concatenation of its local shards, and the results are wrapped as arrays of the whole mesh again. No data moves.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any, TypeAlias, final

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

# Shape, dtype and `NamedSharding` of a global array.
Placed: TypeAlias = jax.ShapeDtypeStruct

# A function from global arrays to global arrays.
Program: TypeAlias = Callable[[Sequence[jax.Array]], list[jax.Array]]

_AXIS = "device"
_BYTE = 8  # bits


@final
class OwnDevices:
    """This process's devices of a mesh.

    Examples:
        >>> import jax
        >>> import numpy as np
        >>> from jax.sharding import NamedSharding, PartitionSpec
        >>> from loadax.sharding.mesh import data_parallel
        >>> from loadax.sharding.own_devices import OwnDevices
        >>> devices = OwnDevices(data_parallel())
        >>> sharding = NamedSharding(devices.mesh, PartitionSpec("data"))
        >>> placed = jax.ShapeDtypeStruct((16,), np.float32, sharding=sharding)
        >>> double = devices.compile(lambda part: [2 * part], [placed], [placed])
        >>> print(double([jax.device_put(np.arange(16, dtype=np.float32), placed.sharding)])[0][:3])
        [0. 2. 4.]
    """

    def __init__(self, mesh: Mesh):
        own = [
            device
            for device in mesh.devices.flat
            if device.process_index == device.client.process_index()
        ]
        self._is_whole_mesh = len(own) == mesh.size
        self._count = len(own)
        self.mesh = mesh
        if own and not self._is_whole_mesh:
            self.mesh = Mesh(np.array(own), (_AXIS,))

    def __len__(self) -> int:
        """Number of devices."""
        return self._count

    @staticmethod
    def part(placed: Placed) -> tuple[int, ...]:
        """The shape of one device's shard of an array."""
        return _sharding(placed).shard_shape(placed.shape)

    def compile(
        self,
        function: Callable[..., Sequence[jax.Array]],
        inputs: Sequence[Placed],
        outputs: Sequence[Placed],
        donate: Sequence[int] = (),
    ) -> Program:
        """Compiles a function that maps one device's shards of the inputs to its shards of the outputs.

        The function is traced now, with x64 enabled if this thread has it enabled or an array has a 64-bit dtype.
        Calling the result traces nothing, on any thread.

        Args:
            function: Function that JAX traces once.
            inputs: Global arrays whose shards it takes.
            outputs: Global arrays whose shards it returns, in a list.
            donate: Indices of the inputs that are donated; outputs may reuse their memory.
        """
        if not self._count:  # nothing to compute: the arrays have no local shards
            make = jax.make_array_from_single_device_arrays
            return lambda _: [
                make(placed.shape, placed.sharding, [], dtype=placed.dtype)
                for placed in outputs
            ]
        inner = [self._local_view(placed) for placed in inputs]
        outer = [_sharding(self._local_view(placed)) for placed in outputs]
        spread = jax.shard_map(
            function,
            mesh=self.mesh,
            in_specs=tuple(_sharding(placed).spec for placed in inner),
            out_specs=[placed.spec for placed in outer],
            check_vma=False,  # replicated outputs are computed from replicated inputs
        )
        tracing = partial(_running, self.mesh, [*inputs, *outputs])
        with tracing():
            # Request exactly these shardings: on Explicit axes JAX would normalise their specs.
            jitted = jax.jit(
                spread, donate_argnums=tuple(donate), out_shardings=outer
            )
            compiled: Callable[..., Sequence[jax.Array]] = jitted.lower(
                *inner
            ).compile()
        # Programs that are compiled ahead of time refuse all int4 arrays on given devices, for their layout (JAX 0.10).
        # The jitted function takes them, and finds what was compiled above.
        narrow = any(
            jax.dtypes.itemsize_bits(placed.dtype) < _BYTE for placed in inputs
        )

        def program(arrays: Sequence[jax.Array]) -> list[jax.Array]:
            parts = [
                self._rewrapped(array, placed)
                for array, placed in zip(arrays, inner, strict=True)
            ]
            with tracing() if narrow else _running():
                results = (jitted if narrow else compiled)(*parts)
            return [
                self._rewrapped(array, placed)
                for array, placed in zip(results, outputs, strict=True)
            ]

        return program

    def _local_view(self, placed: Placed) -> Placed:
        """The local view of a global array, as the program takes it."""
        if self._is_whole_mesh:
            return placed
        rows, *columns = self.part(placed)
        shape = (self._count * rows, *columns)
        return jax.ShapeDtypeStruct(
            shape,
            placed.dtype,
            sharding=NamedSharding(self.mesh, PartitionSpec(_AXIS)),
        )

    def _rewrapped(self, array: jax.Array, placed: Placed) -> jax.Array:
        """The same shards on the same devices, as an array of another shape and mesh."""
        if self._is_whole_mesh:
            return array
        with _x64_if_needed([placed]):
            parts = [shard.data for shard in array.addressable_shards]
            return jax.make_array_from_single_device_arrays(
                placed.shape, _sharding(placed), parts
            )


@contextmanager
def _running(
    mesh: Mesh | None = None, arrays: Sequence[Placed] = ()
) -> Iterator[None]:
    """A context for compiled programs, which `jax.disable_jit` refuses. NaNs and infinities may be in the data.

    To trace a program, it also overrides the caller's current mesh, and its x64 flag if the data is 64-bit already.
    """
    quiet = jax.disable_jit(False), jax.debug_nans(False), jax.debug_infs(False)
    with (
        quiet[0],
        quiet[1],
        quiet[2],
        jax.set_mesh(mesh) if mesh else nullcontext(),
        _x64_if_needed(arrays),
    ):
        yield


def _x64_if_needed(arrays: Sequence[Placed]) -> AbstractContextManager[Any]:
    """A context that enables 64-bit dtypes on this thread if one of the arrays needs them."""
    wide = any(
        array.dtype in (np.int64, np.uint64, np.float64, np.complex128)
        for array in arrays
    )
    if wide:
        return jax.enable_x64(True)
    return nullcontext()


def _sharding(placed: Placed) -> NamedSharding:
    assert isinstance(placed.sharding, NamedSharding)
    return placed.sharding
