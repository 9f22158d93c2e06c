"""Checks that a `device_map` function gives the same values on cut columns as on whole examples.

Shapes don't tell: less its own mean, or turned around, a part has the shape that it should have. So the function is run
on examples that are made up, whole and by parts, on one device.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax import numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from numpy.typing import NDArray

from loadax.sharding.layout import axes_of
from loadax.sharding.mesh import axis_sizes
from loadax.sharding.own_devices import OwnDevices

Shape = jax.ShapeDtypeStruct

_MOST_EXAMPLES, _ENOUGH = 16, 16 << 20
_LARGEST = 64 << 20
"""Bytes of an example, or of its results, from which on it would take too long, and more memory than a device that
holds parts may have.
"""


def first_difference(
    function: Callable[..., Sequence[jax.Array]],
    mesh: Mesh,
    leaves: Sequence[tuple[Shape, PartitionSpec]],
    results: Sequence[tuple[Shape, PartitionSpec]],
) -> int | None:
    """The number of the first result of which a device would have other values than those of its columns in the whole.

    Args:
        function: of the leaves of several examples; traced by JAX, twice.
        mesh: over whose columns examples are cut.
        leaves: what each looks like in an example, and how batches of it are cut.
        results: the same of what the function gives.

    Returns:
        None when there is none, or none can be looked for: an example is too large, or no device of the mesh is this
        process's.
    """
    size = max(sum(shape.size * shape.dtype.itemsize for shape, _ in each) for each in (leaves, results))
    if size > _LARGEST or not mesh.local_devices:
        return None
    device, sizes = mesh.local_devices[0], axis_sizes(mesh)
    # Several, because a function may toss a coin with its random key.
    count = int(np.clip(_ENOUGH // max(1, size), 2, _MOST_EXAMPLES))
    rng = np.random.default_rng(0)
    examples = [_made_up(rng, count, shape, _cut_dims(spec, sizes)) for shape, spec in leaves]
    whole = _compiled(function, device, examples)(examples)
    run = None
    for place in _places([spec for _, spec in leaves], sizes):
        parts = [_held(leaf, spec, place, sizes) for leaf, (_, spec) in zip(examples, leaves, strict=True)]
        run = run or _compiled(function, device, parts)
        for number, (made, (_, spec)) in enumerate(zip(run(parts), results, strict=True)):
            if not _agree(made, _held(whole[number], spec, place, sizes)):
                return number
    return None


def _compiled(
    function: Callable[..., Sequence[jax.Array]], device: jax.Device, examples: Sequence[NDArray[Any]]
) -> Callable[[Sequence[NDArray[Any]]], list[NDArray[Any]]]:
    """The function on one device, from the host's arrays to the host's."""
    mesh = Mesh(np.array([device]), ("device",))
    everywhere = NamedSharding(mesh, PartitionSpec())
    inputs = [jax.ShapeDtypeStruct(each.shape, each.dtype, sharding=everywhere) for each in examples]

    def plain(*leaves: jax.Array) -> list[jax.Array]:
        return [jax.random.key_data(each) if _is_key(each) else each for each in function(*leaves)]

    shapes = jax.eval_shape(plain, *(jax.ShapeDtypeStruct(each.shape, each.dtype) for each in examples))
    outputs = [jax.ShapeDtypeStruct(each.shape, each.dtype, sharding=everywhere) for each in shapes]
    program = OwnDevices(mesh).compile(plain, inputs, outputs)
    return lambda arrays: jax.device_get(program(jax.device_put(list(arrays), everywhere)))


def _is_key(array: jax.Array) -> bool:
    return jax.dtypes.issubdtype(array.dtype, jax.dtypes.prng_key)


def _made_up(rng: np.random.Generator, count: int, leaf: Shape, dims: Sequence[int]) -> NDArray[Any]:
    """That many examples of a leaf.

    The second half is sorted along its cut dims, so that no two parts have like means, extremes or sums.
    """
    shape = (count, *leaf.shape)
    values: NDArray[Any]
    if leaf.dtype == bool:
        values = rng.random(shape) < 0.5
    elif jnp.issubdtype(leaf.dtype, jnp.integer):
        values = rng.integers(0, 256, shape).astype(leaf.dtype)  # int8 has negative ones of them
    else:
        values = rng.standard_normal(shape, np.float32)
    for dim in dims:
        values[count // 2 :].sort(axis=dim)
    if jnp.issubdtype(leaf.dtype, jnp.complexfloating):
        values = values * (1 + 2j)
    return values.astype(leaf.dtype)


def _cut_dims(spec: PartitionSpec, sizes: Mapping[str, int]) -> list[int]:
    return [dim for dim, entry in enumerate(spec) if dim and any(sizes[axis] > 1 for axis in axes_of(entry))]


def _places(specs: Sequence[PartitionSpec], sizes: Mapping[str, int]) -> list[dict[str, int]]:
    """All places of devices along the axes that cut columns."""
    axes = sorted({axis for spec in specs for entry in spec[1:] for axis in axes_of(entry)})
    return [dict(zip(axes, place, strict=True)) for place in np.ndindex(*(sizes[axis] for axis in axes))]


def _held(leaf: NDArray[Any], spec: PartitionSpec, place: Mapping[str, int], sizes: Mapping[str, int]) -> NDArray[Any]:
    """What the device at a place holds of examples, of each some columns."""
    held = [slice(None)]
    for length, entry in zip(leaf.shape[1:], spec[1:], strict=False):
        part, parts = 0, 1
        for axis in axes_of(entry):
            part, parts = part * sizes[axis] + place[axis], parts * sizes[axis]
        width = length // parts
        held.append(slice(part * width, (part + 1) * width))
    return leaf[tuple(held)]


def _agree(part: NDArray[Any], whole: NDArray[Any]) -> bool:
    """Equal, but for the rounding of programs for different shapes."""
    if not jnp.issubdtype(whole.dtype, jnp.inexact):
        return np.array_equal(part, whole)
    wide = np.complex128 if jnp.issubdtype(whole.dtype, jnp.complexfloating) else np.float64
    made, wanted = part.astype(wide), whole.astype(wide)
    # What counts as small is told by the smaller values: a large one may be there to mask others.
    sizes = np.abs(wanted[np.isfinite(wanted) & (wanted != 0)])
    small = 1e-4 * float(np.quantile(sizes, 0.25)) if sizes.size else 0.0
    step = 0.0 if whole.dtype.itemsize > 2 else float(np.spacing(np.ones((), whole.dtype)))
    return np.allclose(made, wanted, rtol=max(1e-4, 2 * step), atol=small, equal_nan=True)
