"""The one place that touches private JAX, each time with a way to go on without it.

Everything else in loadax keeps to JAX's public interface, of version 0.10 and newer.
"""

import inspect
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
from jax.sharding import Mesh, Sharding
from numpy.typing import NDArray

try:
    # The public road (`jax.interpreters.pxla.thread_resources`) leads to the same object, with a DeprecationWarning.
    from jax._src import mesh as _private
except ImportError:  # it moved in a newer JAX
    _private = None  # type: ignore[assignment]
try:
    from jax._src import core as _core
    from jax._src.interpreters import pxla as _pxla
except ImportError:
    _core = _pxla = None  # type: ignore[assignment]


def legacy_mesh() -> Mesh | None:
    """The mesh of the `with mesh:` block that this thread is in.

    `jax.sharding.get_mesh` does not see such blocks, and `jax.set_mesh` is not seen here.

    Returns:
        The very mesh object; None outside such a block, and where a newer JAX has none of this any more.

    Examples:
        >>> legacy_mesh() is None
        True
    """
    try:
        mesh: Mesh = _private.thread_resources.env.physical_mesh
    except AttributeError:
        return None
    return None if mesh.empty else mesh


def array_maker(
    shape: tuple[int, ...], dtype: Any, sharding: Sharding
) -> Callable[[Sequence[NDArray[Any]]], jax.Array] | None:
    """What `jax.make_array_from_callback` ends in, for many arrays alike.

    The rest of it takes longer than the array itself.

    Args:
        shape: Global shape.
        dtype: Of the arrays. The x64 flag must allow it, here and in each call.
        sharding: Of the arrays, which must have devices of this process.

    Returns:
        A function of one NumPy array for each of this process's devices, in the order of
        `sharding.addressable_devices_indices_map(shape)`. It checks neither their shapes nor their dtypes. None where a
        newer JAX has none of this any more.

    Examples:
        >>> import numpy as np
        >>> sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
        >>> array_maker((3,), np.int32, sharding)([np.arange(3, dtype=np.int32)]).tolist()
        [0, 1, 2]
    """
    try:
        put = _pxla.batched_device_put
        aval = _core.update_aval_with_sharding(_core.ShapedArray(shape, dtype), sharding)
        devices = list(sharding.addressable_devices_indices_map(shape))
        inspect.signature(put).bind(aval, sharding, [], devices=devices)
    except (AttributeError, TypeError):
        return None
    return partial(put, aval, sharding, devices=devices)
