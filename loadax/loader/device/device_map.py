"""Applies a user's function to each row of a batch on the devices, vmapped and without communication.

The function takes one example, like that of `map`. It can't mix rows, so each device maps its own rows without
communication. The function is traced once before the first batch, for the shapes of its results and the leaves that
they depend on.
"""

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, wraps
from typing import Any, TypeAlias, final

import jax
import jax.extend.core
import numpy as np
from jax import numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from loadax.core.arguments import flag, function
from loadax.core.casting import leaf_name
from loadax.core.formatting import name_of, type_text
from loadax.core.tree import Structure, flatten, refuse_node
from loadax.errors import LeafError, PartitionError
from loadax.loader.assembly.host_shard import HostShard
from loadax.loader.batch_spec import ADDED_BY
from loadax.protocols import Tree
from loadax.sharding.layout import axes_of
from loadax.sharding.mesh import PlannedMesh, axis_sizes
from loadax.sharding.own_devices import OwnDevices, Program

Function = Callable[[Tree], Tree]

# Index of the leaf that a value passes through, or of the leaves that it is computed from.
_Origin: TypeAlias = int | frozenset[int]

_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
_ROWS_ALONE = "partition that leaf by rows alone, or do this in the training step"


@final
@dataclass(frozen=True)
class DeviceMap:
    """A function for `Dataloader(device_map=…)` with its properties.

    Args:
        function: Function of one example, traced by JAX, that returns an example.
        elementwise: Whether the function is elementwise along the dimensions, other than rows, that the partition
            splits. Each device then calls it with the columns that it holds.

    Raises:
        ArgumentError: If `function` can't be called with one example.

    Examples:
        >>> from loadax import DeviceMap
        >>> halve = DeviceMap(lambda example: {"x": example["x"] / 2}, elementwise=True)
    """

    function: Function
    elementwise: bool = False

    def __post_init__(self) -> None:
        wanted = (
            "a function of one example, traced by JAX, that returns an example; its "
            "random key, with key_seed=, is the leaf 'key' of the example"
        )
        function("device_map", self.function, wanted, "example")
        flag("elementwise", self.elementwise)


@final
class DevicePrograms:
    """Programs of a `device_map`, one per shard. They use 64-bit types if x64 was enabled when this was created.

    Args:
        device_map: Function of one example, or a `DeviceMap`.
    """

    def __init__(self, device_map: Function | DeviceMap):
        if isinstance(device_map, DeviceMap):
            self._map = device_map
        else:
            self._map = DeviceMap(device_map)
        self._x64 = jax.dtypes.canonicalize_dtype(np.int64) == np.int64
        self._programs: dict[HostShard, DeviceProgram] = {}

    def on(self, shard: HostShard) -> "DeviceProgram":
        """The program for batches of this shard; traced once per shard."""
        if shard not in self._programs:
            with jax.enable_x64(self._x64):
                program = DeviceProgram(self._map, shard)
            same_mesh = {
                other: known
                for other, known in self._programs.items()
                if other.mesh == shard.mesh
            }
            self._programs = same_mesh | {shard: program}
        return self._programs[shard]

    def compiled(self, shard: HostShard) -> "DeviceProgram":
        """The same program, compiled, so that it can be called on any thread."""
        program = self.on(shard)
        with jax.enable_x64(self._x64):
            _ = program.compiled
        return program


@final
class DeviceProgram:
    """A `device_map` for the batches of one shard.

    Raises:
        LeafError: If the function does not return an example; names the leaf.
        PartitionError: If a device lacks columns that the function needs; names the leaf.
    """

    def __init__(self, device_map: DeviceMap, shard: HostShard):
        self._shard = shard
        self._name = f"device_map {name_of(device_map.function)}"
        self._elementwise = device_map.elementwise
        self._example = _Example(
            device_map.function, shard.batch.structure, self._name
        )
        # For each leaf: the axes that split each dim other than the rows.
        self._cuts = [
            {
                dim: axes
                for dim, entry in enumerate(spec)
                if dim and (axes := self._axes([entry]))
            }
            for spec in shard.specs
        ]
        leaves = [
            jax.ShapeDtypeStruct(leaf.spec.shape, leaf.dtype)
            for leaf in shard.batch.leaves
        ]
        self._shapes, self._origins, self._traced = _trace(self._example, leaves)
        self._paths = self._example.result.paths
        self._check_rows()
        # For each computed result: the leaves that it depends on and whose columns are split over devices.
        self._cut_sources = [
            []
            if isinstance(origin, int)
            else [leaf for leaf in sorted(origin) if self._cuts[leaf]]
            for origin in self._origins
        ]
        self._specs = [
            self._resolve_spec(result) for result in range(len(self._paths))
        ]
        if any(self._cut_sources):
            self._check_parts()

    @property
    def described(self) -> list[str]:
        """The results and a digest of the traced operations, equal in every process that traces the same."""
        results = zip(self._paths, self._shapes, self._specs, strict=True)
        return [
            *(
                f"{leaf_name(path)}: {shape.dtype}{list(shape.shape)}, {spec}"
                for path, shape, spec in results
            ),
            f"operations with the digest {_digest(self._traced)}",
        ]

    @property
    def shape_dtypes(self) -> Tree:
        """The mapped batch as `jax.ShapeDtypeStruct`s, with shardings unless the mesh is a planned one."""
        return self._example.result.build(self._outputs)

    @cached_property
    def _outputs(self) -> list[jax.ShapeDtypeStruct]:
        shard = self._shard
        mesh = self._shard.mesh
        before: tuple[Any, ...]
        if shard.microbatches > 1:
            before = (None,)
        else:
            before = ()
        rows = flatten(shard.shape_dtypes)[0][0].shape[: len(before) + 1]
        outputs = []
        for shape, spec in zip(self._shapes, self._specs, strict=True):
            if isinstance(mesh, PlannedMesh):
                sharding = None
            else:
                sharding = NamedSharding(mesh, PartitionSpec(*before, *spec))
            outputs.append(
                jax.ShapeDtypeStruct(
                    (*rows, *shape.shape), shape.dtype, sharding=sharding
                )
            )
        return outputs

    def __call__(self, arrays: Sequence[jax.Array]) -> Tree:
        """Maps a batch with these leaves. Asynchronous; never communicates."""
        computed = iter(self.compiled(arrays))
        return self._example.result.build(
            arrays[origin] if isinstance(origin, int) else next(computed)
            for origin in self._origins
        )

    @cached_property
    def compiled(self) -> Program:
        """Computes the results that the function changes. Leaves that it passes through are not copied."""
        outputs = self._computed(self._outputs)
        if not outputs:
            return lambda _: []
        assert not isinstance(self._shard.mesh, PlannedMesh)
        inputs = flatten(self._shard.shape_dtypes)[0]
        rows = jax.vmap(self._of_row)
        if self._shard.microbatches > 1:
            mapped = jax.vmap(rows)
        else:
            mapped = rows
        return OwnDevices(self._shard.mesh).compile(mapped, inputs, outputs)

    def _computed(self, results: Iterable[Any]) -> list[Any]:
        """The results that the function does not pass through."""
        return [
            value
            for value, origin in zip(results, self._origins, strict=True)
            if not isinstance(origin, int)
        ]

    def _of_row(self, *leaves: jax.Array) -> list[jax.Array]:
        """Maps one row: with the device's columns for results that depend on split leaves, else with whole leaves."""
        # Zeros replace split leaves: these results don't depend on their values.
        values = zip(leaves, self._shard.batch.leaves, self._cuts, strict=True)
        whole = self._example(
            *(
                jnp.zeros(to.spec.shape, to.dtype) if cuts else leaf
                for leaf, to, cuts in values
            )
        )
        if not any(self._cut_sources):
            return self._computed(whole)
        parts = self._example(*leaves)
        return self._computed(
            part if sources else value
            for value, part, sources in zip(
                whole, parts, self._cut_sources, strict=True
            )
        )

    def _check_rows(self) -> None:
        shard = self._shard
        first, *others = shard.batch.leaves
        for leaf, spec in zip(others, shard.specs[1:], strict=True):
            if self._axes(spec[:1]) != self._axes(shard.specs[0][:1]):
                raise PartitionError(
                    f"{self._name}: {leaf_name(first.path)} is partitioned "
                    f"{shard.specs[0]} and {leaf_name(leaf.path)} {spec}, so a "
                    "device holds different rows of the two; partition the rows of "
                    "all leaves alike, or leave device_map out"
                )

    def _resolve_spec(self, result: int) -> PartitionSpec:
        """Partition of a result: that of the leaf that it passes through or replaces, or by rows."""
        shard = self._shard
        path = self._paths[result]
        origin = self._origins[result]
        sources = self._cut_sources[result]
        if isinstance(origin, int):
            return shard.specs[origin]
        if sources and not self._elementwise:
            raise PartitionError(
                f"{self._name}: {leaf_name(path)} of the result depends on "
                f"{self._cut_text(sources[0])}, so a device has only some of its "
                "columns; if the function is elementwise, pass "
                "device_map=loadax.DeviceMap(fn, elementwise=True); else "
                f"{_ROWS_ALONE}"
            )
        shape = self._shapes[result].shape
        cuts = [self._cuts[source] for source in sources] or [{}]
        for leaf, spec, own_cuts in zip(
            shard.batch.leaves, shard.specs, self._cuts, strict=True
        ):
            if (
                leaf.path == path
                and len(leaf.spec.shape) == len(shape)
                and all(cut == own_cuts for cut in cuts)
            ):
                return spec
        if sources:
            raise PartitionError(
                f"{self._name}: {leaf_name(path)} of the result depends on "
                f"{self._cut_text(sources[0])}, and can't be partitioned like it; "
                "return it under that leaf's key, with the same number of dims, "
                f"{_ROWS_ALONE}"
            )
        return PartitionSpec(*shard.specs[0][:1])

    def _check_parts(self) -> None:
        """Checks that a device computes its columns of each result from its columns of the leaves."""
        shard = self._shard
        parts = []
        for leaf, spec in shard.leaf_specs:
            counts = self._counts(spec, len(leaf.spec.shape))
            columns = tuple(
                size // count
                for size, count in zip(leaf.spec.shape, counts, strict=True)
            )
            parts.append(jax.ShapeDtypeStruct(columns, leaf.dtype))
        cut = self._cut_text(
            next(sources[0] for sources in self._cut_sources if sources)
        )
        name = f"{self._name} has elementwise=True"
        remedy = f"{cut}; {_ROWS_ALONE}"
        try:
            shapes = _trace(self._example, parts)[0]
        except Exception as error:
            reason = f"{type(error).__name__}: {error}".partition("\n")[0]
            raise PartitionError(
                f"{name} and takes a whole example, but it fails with the columns of "
                f"a device ({reason}): {remedy}"
            ) from error
        for result, sources in enumerate(self._cut_sources):
            whole = self._shapes[result].shape
            part = shapes[result].shape
            if sources and whole != tuple(
                np.multiply(part, self._counts(self._specs[result], len(part)))
            ):
                raise PartitionError(
                    f"{name}, but {leaf_name(self._paths[result])} of the result has "
                    f"the shape {list(whole)} for an example and {list(part)} for "
                    f"the columns of a device: {remedy}"
                )

    def _counts(self, spec: PartitionSpec, dims: int) -> list[int]:
        """Number of parts that each dim of an example's leaf is split into."""
        sizes = axis_sizes(self._shard.mesh)
        cuts = [
            int(np.prod([sizes[axis] for axis in axes_of(entry)]))
            for entry in spec[1:]
        ]
        return [*cuts, *[1] * dims][:dims]

    def _cut_text(self, leaf: int) -> str:
        cuts = [
            f"along dim {dim} by the mesh {'axis' if len(axes) == 1 else 'axes'} "
            f"{' and '.join(map(repr, axes))}"
            for dim, axes in self._cuts[leaf].items()
        ]
        return (
            f"{leaf_name(self._shard.batch.leaves[leaf].path)}, cut "
            f"{' and '.join(cuts)}"
        )

    def _axes(self, entries: Iterable[Any]) -> tuple[str, ...]:
        """The axes with more than one device."""
        sizes = axis_sizes(self._shard.mesh)
        return tuple(
            axis for entry in entries for axis in axes_of(entry) if sizes[axis] > 1
        )


@final
class _Example:
    """The user's function as a function from leaves to leaves, for tracing.

    Attributes:
        function: The user's function.
        result: Structure of the result, once traced.
    """

    def __init__(self, function: Function, structure: Structure, name: str):
        self.function = function
        self._structure = structure
        self._name = name
        self.result = structure

    def __call__(self, *leaves: Any) -> list[jax.Array]:
        try:
            result = self.function(self._structure.build(leaves))
        except Exception as error:
            error.add_note(f"loadax: in {self._name}, traced by JAX with one example")
            for name, argument in ADDED_BY.items():
                if (
                    isinstance(error, KeyError)
                    and error.args == (name,)
                    and f"[{name!r}]" not in self._structure.paths
                ):
                    error.add_note(
                        f"loadax: pass {argument} to the Dataloader to add the leaf "
                        f"{name!r} to examples"
                    )
            raise
        if result is None:
            raise LeafError(
                f"{self._name} returned None; did you forget to return the example?"
            )
        values, self.result = flatten(result)
        if not values:
            raise LeafError(
                f"{self._name} returned {result!r}, which has no leaves; return an "
                "example"
            )
        arrays = []
        for value, path in zip(values, self.result.paths, strict=True):
            refuse_node(value, f"{self._name}: {leaf_name(path)} of the result")
            try:
                array = jnp.asarray(value)
            except TypeError:
                raise LeafError(
                    f"{self._name}: {leaf_name(path)} of the result is "
                    f"{type_text(value)}, {value!r}; return arrays"
                ) from None
            arrays.append(
                jnp.asarray(array, dtype=array.dtype) if array.weak_type else array
            )
        return arrays


def _trace(
    example: _Example, shapes: Sequence[jax.ShapeDtypeStruct]
) -> tuple[list[jax.ShapeDtypeStruct], list[_Origin], Any]:
    """Traces a function with leaves of these shapes: the shapes of its results, their origins, and the trace."""
    # A new function for each trace, with the name of the user's function for JAX's errors. For the same function, JAX
    # would return a cached trace, although a function that it calls may have been edited.
    fresh = wraps(example.function)(lambda *leaves: example(*leaves))  # noqa: PLW0108 - a new one
    closed = jax.make_jaxpr(fresh)(*shapes)
    traced = closed.jaxpr
    results = [
        jax.ShapeDtypeStruct(result.aval.shape, result.aval.dtype)
        for result in traced.outvars
    ]
    return results, _follow(traced, range(len(shapes))), closed


def _digest(closed: Any) -> str:
    """Digest of a trace: its operations and its constants, without addresses of objects in this process."""
    digest = hashlib.sha256(_ADDRESS.sub("", str(closed.jaxpr)).encode())
    for constant in _constants(closed):
        digest.update(_content(constant))
    return digest.hexdigest()[:16]


def _content(constant: Any) -> bytes:
    """The bytes of a constant; none of an array that is on devices of several processes."""
    if isinstance(constant, jax.Array):
        if not constant.is_fully_addressable:
            return b""
        if jnp.issubdtype(constant.dtype, jax.dtypes.prng_key):
            constant = jax.random.key_data(constant)
    return np.asarray(constant).tobytes()


def _constants(closed: Any) -> Iterator[Any]:
    """The constants of a trace and of the functions in it, which its text only names."""
    yield from closed.consts
    for equation in closed.jaxpr.eqns:
        for parameter in equation.params.values():
            for inner in parameter if isinstance(parameter, tuple) else (parameter,):
                if isinstance(inner, jax.extend.core.ClosedJaxpr):
                    yield from _constants(inner)


def _follow(jaxpr: Any, inputs: Iterable[_Origin]) -> list[_Origin]:
    """Follows the origins of a trace's inputs to its results, through jitted functions too."""
    origins = dict(zip(jaxpr.invars, inputs, strict=True))

    def origin(variable: Any) -> _Origin:  # a literal has none
        if hasattr(variable, "val"):
            return frozenset()
        return origins.get(variable, frozenset())

    for equation in jaxpr.eqns:
        arguments = list(map(origin, equation.invars))
        if equation.primitive.name in ("jit", "pjit"):
            results = _follow(equation.params["jaxpr"].jaxpr, arguments)
        else:
            leaves = frozenset().union(
                *({each} if isinstance(each, int) else each for each in arguments)
            )
            results = [leaves] * len(equation.outvars)
        origins.update(zip(equation.outvars, results, strict=True))
    return list(map(origin, jaxpr.outvars))
