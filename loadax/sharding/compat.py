"""The one place that touches private JAX, each time with a way to go on without it.

Everything else in loadax keeps to JAX's public interface, of version 0.10 and newer.
"""

from jax.sharding import Mesh

try:
    # The public road (`jax.interpreters.pxla.thread_resources`) leads to the same object, with a DeprecationWarning.
    from jax._src import mesh as _private
except ImportError:  # it moved in a newer JAX
    _private = None  # type: ignore[assignment]


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
