"""The JAX dtype of host data. `loadax.core.casting` does the cast."""

from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from loadax.core.casting import leaf_name
from loadax.errors import LeafError, LeafTypeError


def placed_dtype(dtype: Any, path: str) -> np.dtype[Any]:
    """The dtype that data of `dtype` has as a `jax.Array`, under the x64 flag of the calling thread.

    Args:
        dtype: Dtype of the host data.
        path: Path of the leaf, for the error message.

    Raises:
        LeafTypeError: If JAX has no such dtype: strings, objects, dates, structured, non-native byte order, longdouble.

    Examples:
        >>> import numpy as np
        >>> from loadax.sharding.dtypes import placed_dtype
        >>> placed_dtype(np.float64, "['x']"), placed_dtype(np.uint8, "['x']")
        (dtype('float32'), dtype('uint8'))
    """
    dtype = np.dtype(dtype)
    name = leaf_name(path)
    if not dtype.isnative:
        native = dtype.newbyteorder("=")
        raise LeafTypeError(
            f"{name} has dtype {dtype.str}, which is not in native byte order; JAX "
            f"supports only that. Convert it in a map: x.astype({str(native)!r})"
        )
    longer = dtype.kind in "fc" and dtype.itemsize > (8 if dtype.kind == "f" else 16)
    numeric = dtype.kind == "b" or (
        dtype.kind not in "mM" and jax.numpy.issubdtype(dtype, np.number)
    )
    if longer or not numeric:
        if dtype.kind in "SU":
            what = dtype.str
        else:
            what = str(dtype)
        more = ""
        if dtype.names is not None:
            more = ", one leaf a field: {name: value[name] for name in value.dtype.names}"
        elif dtype.hasobject:
            what = "object (strings, bytes, None, or values of several kinds)"
            more = (
                ", where objects become dicts of arrays: of attrs "
                ".map(attrs.asdict), of pydantic .map(lambda row: row.model_dump()); "
                "if rows are bytes, decode them there: .map(decode). Where files are "
                "opened, columns= leaves out a leaf, and decode=, dtype= or "
                "features= decode bytes"
            )
        raise LeafTypeError(
            f"{name} has dtype {what}; JAX arrays are numeric. Drop it or encode it "
            f"in a map{more}"
        )
    return np.dtype(jax.dtypes.canonicalize_dtype(dtype))


def host_array(leaf: Any, path: str) -> NDArray[Any]:
    """One leaf of host data as a NumPy array. Python and NumPy scalars have rank 0; no leaf is weakly typed.

    Raises:
        LeafError: If the leaf is an integer beyond 64 bits, or a `jax.Array` that spans several processes.
        LeafTypeError: If it is masked, traced by `jax.jit`, or an array of random keys.

    Examples:
        >>> from loadax.sharding.dtypes import host_array
        >>> host_array(2.5, "['rate']")
        array(2.5)
    """
    name = leaf_name(path)
    if isinstance(leaf, np.ma.MaskedArray):
        raise LeafTypeError(
            f"{name} is a masked array, which JAX does not have. Fill it, and keep "
            "the mask as a leaf"
        )
    if isinstance(leaf, jax.core.Tracer):
        raise LeafTypeError(
            f"{name} is traced by jax.jit; only host arrays can be placed: call this "
            "outside jit"
        )
    if isinstance(leaf, jax.Array):
        if jax.numpy.issubdtype(leaf.dtype, jax.dtypes.extended):
            raise LeafTypeError(
                f"{name} has dtype {leaf.dtype}; place jax.random.key_data(it) "
                "instead"
            )
        if not (leaf.is_fully_addressable or leaf.is_fully_replicated):
            raise LeafError(
                f"{name} is a jax.Array that already spans processes: "
                f"{leaf.sharding}. Pass host data"
            )
    if isinstance(leaf, int) and not -(2**63) <= leaf < 2**64:
        raise LeafError(
            f"{name}: the value {leaf} does not fit in 64 bits. Reduce it or make it "
            "a float, in a map"
        )
    return np.asarray(leaf)
