"""Access to private JAX, isolated in this module. Each function has a fallback when JAX moves its internals.

One is in `core/distributed.py`, for rooms that never import JAX.

The rest of loadax uses only the public API of JAX 0.10 and newer.
"""

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

import jax
from jax.sharding import Mesh, Sharding
from numpy.typing import NDArray


def _private(name: str) -> Any:
    """A private module of JAX. None if a newer JAX has moved it."""
    try:
        return import_module(f"jax._src.{name}")
    except ImportError:
        return None


# The public path to the same module (`jax.interpreters.pxla.thread_resources`) raises a DeprecationWarning.
_mesh = _private("mesh")
_core = _private("core")
_pxla = _private("interpreters.pxla")
# Parameters of `batched_device_put` that `array_maker` passes.
_PUT = ("aval:", "sharding:", "xs:", "devices:", "committed:", "enable_x64:")


def legacy_mesh() -> Mesh | None:
    """The mesh of the enclosing `with mesh:` block of this thread.

    `jax.sharding.get_mesh` does not see such blocks, and this function does not see `jax.set_mesh`.

    Returns:
        The same mesh object; None outside such a block, or if this JAX version has removed the private API.

    Examples:
        >>> from loadax.sharding.compat import legacy_mesh
        >>> legacy_mesh() is None
        True
    """
    try:
        mesh: Mesh = _mesh.thread_resources.env.physical_mesh
    except AttributeError:
        return None
    if mesh.empty:
        return None
    return mesh


def array_maker(
    shape: tuple[int, ...], dtype: Any, sharding: Sharding
) -> Callable[[Sequence[NDArray[Any]]], jax.Array] | None:
    """The last step of `jax.make_array_from_callback`, prepared once for many arrays of the same shape.

    The steps that this skips take longer than making the array.

    Args:
        shape: Global shape.
        dtype: Dtype of the arrays. It may be 64-bit, whatever the x64 flag is.
        sharding: Sharding of the arrays. It must include devices of this process.

    Returns:
        A function of a list of NumPy arrays, one per device of this process, in the order of
        `sharding.addressable_devices_indices_map(shape)`. It does not check their shapes and dtypes. None if this JAX
        version has changed the private API.

    Examples:
        >>> import jax
        >>> import numpy as np
        >>> from loadax.sharding.compat import array_maker
        >>> sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
        >>> array_maker((3,), np.int32, sharding)([np.arange(3, dtype=np.int32)]).tolist()
        [0, 1, 2]
    """
    try:
        put = _pxla.xc.batched_device_put
        aval = _core.update_aval_with_sharding(
            _core.ShapedArray(shape, dtype), sharding
        )
        devices = list(sharding.addressable_devices_indices_map(shape))
        if not all(name in put.__doc__ for name in _PUT):
            return None
    except (AttributeError, TypeError):
        return None
    return lambda arrays: put(aval, sharding, arrays, devices, True, enable_x64=True)
