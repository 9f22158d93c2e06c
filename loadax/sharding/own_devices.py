"""Programs that run on this process's devices of a mesh and know nothing of any other process.

A program over a mesh of many processes is theirs together: they must all start it, and in the same order among all that
they start together, which threads that read ahead can't promise. So what the loader itself computes on devices never is
such a program. Where a mesh spans processes, this process's devices become a mesh of their own, each array is seen
there as the parts that these devices hold, laid one behind the other, and the results are put together as arrays of the
whole mesh again; no data moves for that.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeAlias, final

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from loadax.errors import MeshError

Placed: TypeAlias = jax.ShapeDtypeStruct
"""Shape, dtype and `NamedSharding` of a global array."""

Program: TypeAlias = Callable[[Sequence[jax.Array]], list[jax.Array]]
"""From global arrays to global arrays."""

_AXIS = "device"


@final
class OwnDevices:
    """This process's devices of a mesh.

    Examples:
        >>> from loadax.sharding.mesh import data_parallel
        >>> devices = OwnDevices(data_parallel())
        >>> sharding = NamedSharding(devices.mesh, PartitionSpec("data"))
        >>> placed = jax.ShapeDtypeStruct((16,), np.float32, sharding=sharding)
        >>> double = devices.compile(lambda part: [2 * part], [placed], [placed])
        >>> print(double([jax.device_put(np.arange(16, dtype=np.float32), placed.sharding)])[0][:3])
        [0. 2. 4.]
    """

    def __init__(self, mesh: Mesh):
        own = [device for device in mesh.devices.flat if device.process_index == device.client.process_index()]
        self._whole = len(own) == mesh.size
        self._count = len(own)
        self.mesh = mesh
        if own and not self._whole:
            grid = np.empty(len(own), object)
            grid[:] = own
            self.mesh = Mesh(grid, (_AXIS,))

    def __len__(self) -> int:
        """How many there are."""
        return self._count

    @staticmethod
    def part(placed: Placed) -> tuple[int, ...]:
        """The shape of what one device holds of an array."""
        return _sharding(placed).shard_shape(placed.shape)

    def compile(
        self,
        function: Callable[..., Sequence[jax.Array]],
        inputs: Sequence[Placed],
        outputs: Sequence[Placed],
        donate: Sequence[int] = (),
    ) -> Program:
        """Compiles a function of the parts that one device holds, which gives its parts of the results.

        It is traced here and now, with x64 when this thread has it or an array is of such a dtype; calling the result
        traces nothing more, on whichever thread.

        Args:
            function: traced by JAX, once.
            inputs: the global arrays whose parts it gets.
            outputs: the global arrays whose parts it gives, in a list.
            donate: the numbers of inputs that are used up, and whose memory results may take.
        """
        if not self._count:  # all that there is to do is to say what the arrays are
            return lambda _: [
                jax.make_array_from_single_device_arrays(each.shape, each.sharding, [], dtype=each.dtype)
                for each in outputs
            ]
        inner = [self._seen(each) for each in inputs]
        outer = [_sharding(self._seen(each)) for each in outputs]
        spread = jax.shard_map(
            function,
            mesh=self.mesh,
            in_specs=tuple(_sharding(each).spec for each in inner),
            out_specs=[each.spec for each in outer],
            check_vma=False,  # that copies are equal follows from what they are made of
        )
        # The mesh that the caller is in may be another one, and is not meant; nor is this thread's x64 flag, where data
        # is wide already.
        with jax.set_mesh(self.mesh), _wide([*inputs, *outputs]):
            # The very shardings that were asked for: on explicit axes JAX would write their specs in another way.
            compiled = jax.jit(spread, donate_argnums=tuple(donate), out_shardings=outer).lower(*inner).compile()

        def program(arrays: Sequence[jax.Array]) -> list[jax.Array]:
            results = compiled(*(self._enter(array, each) for array, each in zip(arrays, inner, strict=True)))
            return [self._leave(array, each) for array, each in zip(results, outputs, strict=True)]

        return program

    def _seen(self, placed: Placed) -> Placed:
        """What a program is given for a global array."""
        if self._whole:
            return placed
        rows, *columns = self.part(placed)
        shape = (self._count * rows, *columns)
        return jax.ShapeDtypeStruct(shape, placed.dtype, sharding=NamedSharding(self.mesh, PartitionSpec(_AXIS)))

    def _enter(self, array: jax.Array, seen: Placed) -> jax.Array:
        return array if self._whole else _regrouped(array, seen)

    def _leave(self, array: jax.Array, placed: Placed) -> jax.Array:
        return array if self._whole else _regrouped(array, placed)


def _regrouped(array: jax.Array, placed: Placed) -> jax.Array:
    """The same parts on the same devices, as an array of another shape and mesh."""
    with _wide([placed]):
        parts = [shard.data for shard in array.addressable_shards]
        return jax.make_array_from_single_device_arrays(placed.shape, _sharding(placed), parts)


def _wide(arrays: Sequence[Placed]) -> AbstractContextManager[Any]:
    """Lets 64-bit arrays be, on any thread."""
    wide = any(each.dtype in (np.int64, np.uint64, np.float64, np.complex128) for each in arrays)
    return jax.enable_x64(True) if wide else nullcontext()


def _sharding(placed: Placed) -> NamedSharding:
    if not isinstance(placed.sharding, NamedSharding):
        raise MeshError(f"{placed} is on no mesh that is there; pass mesh= a jax.sharding.Mesh")
    return placed.sharding
