"""A sharding constraint for Auto and Explicit mesh axes.

On Auto axes it is a hint to the compiler, on Explicit axes the array is resharded.
"""

from functools import partial
from typing import Any

import jax
from jax.sharding import (
    AbstractMesh,
    AxisType,
    Mesh,
    NamedSharding,
    PartitionSpec,
    Sharding,
)

from loadax.errors import ArgumentError, UnsupportedError
from loadax.sharding.compat import legacy_mesh
from loadax.sharding.layout import axes_of


def with_sharding_constraint(x: Any, shardings: Any) -> Any:
    """Constrains the sharding of `x`, inside and outside `jax.jit`.

    Uses `jax.sharding.reshard` on Explicit axes and `jax.lax.with_sharding_constraint` on Auto axes.

    Args:
        x: Pytree of arrays.
        shardings: `PartitionSpec` on the current mesh, `NamedSharding`, or a pytree of these that is a prefix of `x`.

    Returns:
        The same pytree. It is `x` itself if no mesh has more than one device, so a model runs unchanged on one device.

    Raises:
        ArgumentError: If `shardings` contains anything else or is not a prefix of `x`.
        UnsupportedError: If a spec splits one dim over both Auto and Explicit axes.

    Examples:
        >>> from jax.sharding import PartitionSpec
        >>> from loadax.sharding import with_sharding_constraint
        >>> with_sharding_constraint("anything", PartitionSpec("data"))
        'anything'
    """
    # The mesh of `jax.set_mesh` (abstract, so it works inside jit too), else the mesh of `with mesh:`.
    abstract = jax.sharding.get_abstract_mesh()
    context = legacy_mesh() if abstract.empty else abstract
    given = jax.tree.leaves(shardings, is_leaf=lambda node: node is None)
    if all(_on_one_device(sharding, context) for sharding in given):
        return x
    leaf_shardings = broadcast_shardings(
        "shardings", shardings, x, PartitionSpec, Sharding
    )
    leaves, structure = jax.tree.flatten(x)
    constrained = [
        _constrain(leaf, sharding, context)
        for leaf, sharding in zip(leaves, leaf_shardings, strict=True)
    ]
    return jax.tree.unflatten(structure, constrained)


def _on_one_device(sharding: Any, context: Mesh | AbstractMesh | None) -> bool:
    if isinstance(sharding, PartitionSpec):
        return context is None or context.size <= 1
    return isinstance(sharding, Sharding) and sharding.num_devices <= 1


def broadcast_shardings(
    argument: str, prefix: Any, tree: Any, *kinds: type
) -> list[Any]:
    """Broadcasts a pytree prefix of specs or shardings: one for every leaf of `tree`.

    Raises:
        ArgumentError: If the prefix contains anything but `kinds`, or is not a prefix of the tree.
    """

    def is_leaf(node: Any) -> bool:
        return node is None or isinstance(node, kinds)

    for sharding in jax.tree.leaves(prefix, is_leaf=is_leaf):
        if not isinstance(sharding, kinds):
            raise ArgumentError(
                f"{argument} contains {sharding!r}: pass a PartitionSpec; P() "
                "replicates"
            )
    try:
        return jax.tree.leaves(
            jax.tree.broadcast(prefix, tree, is_leaf=is_leaf), is_leaf=is_leaf
        )
    except ValueError as error:
        raise ArgumentError(
            f"{argument}={prefix!r} is not a pytree prefix of the arrays: {error}"
        ) from None


def _constrain(leaf: Any, sharding: PartitionSpec | Sharding, context: Any) -> Any:
    if _on_one_device(sharding, context):
        return leaf
    if isinstance(sharding, PartitionSpec):
        sharding = NamedSharding(context, sharding)
    if not isinstance(sharding, NamedSharding):
        return jax.lax.with_sharding_constraint(leaf, sharding)
    mesh = sharding.mesh
    spec = sharding.spec
    kinds = dict(zip(mesh.axis_names, mesh.axis_types, strict=True))
    if AxisType.Explicit not in kinds.values():
        return jax.lax.with_sharding_constraint(leaf, sharding)
    if AxisType.Auto not in kinds.values():
        return jax.sharding.reshard(leaf, sharding)
    explicit = PartitionSpec(
        *(_entry_of_kind(entry, kinds, spec, explicit=True) for entry in spec)
    )
    auto = PartitionSpec(
        *(_entry_of_kind(entry, kinds, spec, explicit=False) for entry in spec)
    )
    return _reshard_and_hint(
        leaf, sharding.update(spec=explicit), sharding.update(spec=auto)
    )


# Outside jit the hint would undo the reshard over Explicit axes. Inside jit those axes are part of the array's type.
@partial(jax.jit, static_argnums=(1, 2))
def _reshard_and_hint(leaf: Any, explicit: Any, auto: Any) -> Any:
    return jax.lax.with_sharding_constraint(
        jax.sharding.reshard(leaf, explicit), auto
    )


def _entry_of_kind(
    entry: Any, kinds: dict[str, AxisType], spec: PartitionSpec, *, explicit: bool
) -> Any:
    """`entry` if its axes are of the requested kind, else None."""
    if entry is PartitionSpec.UNCONSTRAINED:
        if explicit:
            return None
        return entry
    entry_is_explicit = {
        kinds.get(axis) is AxisType.Explicit for axis in axes_of(entry)
    }
    if len(entry_is_explicit) > 1:
        raise UnsupportedError(
            f"{spec} splits a dim over Auto and Explicit axes of {kinds}: use one "
            "kind for each dim"
        )
    if entry_is_explicit == {explicit}:
        return entry
    return None
