"""Applies a user's function to each row of a batch on the devices, vmapped and without communication.

The function is one of an example, as that of `map` is, so it can't mix rows, and the devices need not talk: every one
of them maps the rows that it holds. What the result looks like is found out by tracing the function once, before there
is any batch.
"""

from collections.abc import Callable, Collection, Sequence
from functools import cached_property, wraps
from typing import Any, final

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from loadax.core.casting import leaf_name
from loadax.core.formatting import name_of
from loadax.core.tree import Structure, flatten
from loadax.errors import ArgumentError, LeafError, PartitionError
from loadax.loader.assembly.host_shard import HostShard
from loadax.loader.batch_spec import ASKED_BY
from loadax.loader.device.column_check import first_difference
from loadax.protocols import Tree
from loadax.sharding.layout import axes_of
from loadax.sharding.mesh import PlannedMesh, axis_sizes
from loadax.sharding.own_devices import OwnDevices, Program

Function = Callable[[Tree], Tree]

"""What a batch has beside the dataset's leaves, and what it has them for."""

_NO_COLUMNS = "partition by rows alone what the function needs whole, or do this in the training step"


@final
class DeviceMap:
    """A function of an example, for batches of any share. It computes with 64 bits when it was made where JAX does.

    Raises:
        ArgumentError: when it is no function.
    """

    def __init__(self, function: Any):
        if not callable(function):
            raise ArgumentError(
                f"device_map={function!r} can't be called; pass a function of one example, traced by JAX, "
                "that returns an example"
            )
        self._function: Function = function
        self._x64 = jax.dtypes.canonicalize_dtype(np.int64) == np.int64
        self._known: dict[HostShard, Mapped] = {}

    def on(self, share: HostShard) -> "Mapped":
        """The function for batches of this share; traced once for each."""
        found = self._known.get(share)
        if found is None:
            with jax.enable_x64(self._x64):
                found = Mapped(self._function, share)
            self._known = {key: each for key, each in self._known.items() if key.mesh == share.mesh} | {share: found}
        return found

    def compiled(self, share: HostShard) -> "Mapped":
        """The same, ready to be called on any thread; compiled once for each."""
        found = self.on(share)
        with jax.enable_x64(self._x64):
            _ = found.program
        return found


@final
class Mapped:
    """The function for the batches of one share.

    Raises:
        LeafError: when the function gives no example; names the leaf.
        PartitionError: when a device does not hold what the function would need; names the leaf.
    """

    def __init__(self, function: Function, share: HostShard):
        self._share = share
        self._name = f"device_map {name_of(function)}"
        self._example = _Example(function, share.batch.structure, self._name)
        shapes = [jax.ShapeDtypeStruct(leaf.spec.shape, leaf.dtype) for leaf in share.batch.leaves]
        self._traced = _Traced(self._example, shapes)
        self._paths = self._example.result.paths
        self._specs = self._resolve_specs()

    @property
    def shape_dtypes(self) -> Tree:
        """The batch behind the function as `jax.ShapeDtypeStruct`s, with shardings where the mesh is there."""
        return self._example.result.build(self._outputs)

    @cached_property
    def _outputs(self) -> list[jax.ShapeDtypeStruct]:
        share, mesh = self._share, self._share.mesh
        before: tuple[Any, ...] = (None,) if share.microbatches > 1 else ()
        rows = flatten(share.shape_dtypes)[0][0].shape[: len(before) + 1]
        outputs = []
        for shape, spec in zip(self._traced.shapes, self._specs, strict=True):
            sharding = None if isinstance(mesh, PlannedMesh) else NamedSharding(mesh, PartitionSpec(*before, *spec))
            outputs.append(jax.ShapeDtypeStruct((*rows, *shape.shape), shape.dtype, sharding=sharding))
        return outputs

    def __call__(self, arrays: Sequence[jax.Array]) -> Tree:
        """The batch of these leaves, mapped. Never communicates, and waits for nothing."""
        made = iter(self.program(arrays))
        passed = self._traced.passed
        return self._example.result.build(next(made) if number is None else arrays[number] for number in passed)

    @cached_property
    def program(self) -> Program:
        """Makes what the function changes; leaves that it hands on are not touched, and their memory is not either."""
        outputs = [each for each, number in zip(self._outputs, self._traced.passed, strict=True) if number is None]
        if not outputs:
            return lambda _: []
        assert not isinstance(self._share.mesh, PlannedMesh)
        inputs = flatten(self._share.shape_dtypes)[0]
        return OwnDevices(self._share.mesh).compile(self._of_part, inputs, outputs)

    def _of_part(self, *leaves: jax.Array) -> list[jax.Array]:
        """The function for all rows of a device."""
        rows = self._of_rows
        return (jax.vmap(rows) if self._share.microbatches > 1 else rows)(*leaves)

    def _of_rows(self, *leaves: jax.Array) -> list[jax.Array]:
        def changed(*leaves: jax.Array) -> list[jax.Array]:
            results = self._example(*leaves)
            return [each for each, number in zip(results, self._traced.passed, strict=True) if number is None]

        return jax.vmap(changed)(*leaves)

    def _resolve_specs(self) -> list[PartitionSpec]:
        """How each leaf of the result is cut: as the leaf in whose place it stands, or over its rows."""
        share = self._share
        paths = [leaf.path for leaf in share.batch.leaves]
        rows = [self._axes(spec[:1]) for spec in share.specs]
        for path, axes, spec in zip(paths, rows, share.specs, strict=True):
            if axes != rows[0]:
                raise PartitionError(
                    f"{self._name}: {leaf_name(paths[0])} is partitioned {share.specs[0]} "
                    f"and {leaf_name(path)} {spec}, so a device holds other rows of the one than of the other; "
                    "give all leaves the same rows, or leave device_map out"
                )
        given = {
            path: (leaf.spec, spec) for path, leaf, spec in zip(paths, share.batch.leaves, share.specs, strict=True)
        }
        specs = []
        for path, shape in zip(self._paths, self._traced.shapes, strict=True):
            before, spec = given.get(path, (None, share.specs[0]))
            same = before is not None and len(before.shape) == len(shape.shape)
            specs.append(spec if same else PartitionSpec(*spec[:1]))
        if any(self._axes(spec[1:]) for spec in share.specs):
            self._check_columns(specs)
        return specs

    def _check_columns(self, specs: Sequence[PartitionSpec]) -> None:
        """Where a device has some columns of a leaf, what follows from that leaf must be cut alike."""
        share = self._share
        for path, spec, sources in zip(self._paths, specs, self._traced.sources, strict=True):
            held = set(self._axes(spec[1:]))
            for number in sorted(sources):
                if not held.issuperset(self._axes(share.specs[number][1:])):
                    raise PartitionError(
                        f"{self._name}: "
                        f"{leaf_name(path)} of the result follows from {leaf_name(share.batch.leaves[number].path)}, "
                        f"of which {share.specs[number]} gives a device some columns only; "
                        "put the result in that leaf's place, with as many dims, or partition its rows alone"
                    )
        for path, spec, whole, part in zip(
            self._paths, specs, self._traced.shapes, self._results_of_parts(), strict=True
        ):
            counts = self._counts(spec, len(part.shape))
            if whole.shape != tuple(size * count for size, count in zip(part.shape, counts, strict=True)):
                raise PartitionError(
                    f"{self._name}: {leaf_name(path)} has the shape {list(whole.shape)} for an example, "
                    f"and for the columns of a device {list(part.shape)}, which {spec} does not fit; "
                    "where columns are cut, the function must act on each by itself"
                )
        self._check_values(specs)

    def _results_of_parts(self) -> list[jax.ShapeDtypeStruct]:
        """What the function makes of the columns that a device holds, as far as shapes and dtypes go."""
        shapes = []
        for leaf, spec in zip(self._share.batch.leaves, self._share.specs, strict=True):
            counts = self._counts(spec, len(leaf.spec.shape))
            part = tuple(size // count for size, count in zip(leaf.spec.shape, counts, strict=True))
            shapes.append(jax.ShapeDtypeStruct(part, leaf.dtype))
        try:
            return _Traced(self._example, shapes).shapes
        except Exception as error:
            reason = f"{type(error).__name__}: {error}".partition("\n")[0]
            raise PartitionError(
                f"{self._name} works on a whole example, and on the columns of a device it fails ({reason}): "
                f"{self._cut_leaves()}; {_NO_COLUMNS}"
            ) from error

    def _check_values(self, specs: Sequence[PartitionSpec]) -> None:
        """What a device makes of its columns must be what stands there in the whole, whatever the shapes say."""
        share, passed = self._share, self._traced.passed
        changed = [number for number, source in enumerate(passed) if source is None]
        if not changed or isinstance(share.mesh, PlannedMesh):
            return
        shapes = [jax.ShapeDtypeStruct(leaf.spec.shape, leaf.dtype) for leaf in share.batch.leaves]
        leaves = list(zip(shapes, share.specs, strict=True))
        found = first_difference(
            self._of_rows, share.mesh, leaves, [(self._traced.shapes[each], specs[each]) for each in changed]
        )
        if found is not None:
            number = changed[found]
            raise PartitionError(
                f"{self._name}: {leaf_name(self._paths[number])} of the result has other "
                "values where a device has some columns only than in a whole example: "
                f"{self._cut_leaves(self._traced.sources[number])}; {_NO_COLUMNS}"
            )

    def _cut_leaves(self, numbers: Collection[int] = ()) -> str:
        """Which leaves are cut, where and by which axes; those of these numbers if any of them is."""
        named = {}
        for number, (leaf, spec) in enumerate(zip(self._share.batch.leaves, self._share.specs, strict=True)):
            cuts = {dim: axes for dim, entry in enumerate(spec) if dim and (axes := self._axes([entry]))}
            if cuts:
                places = " and ".join(f"along dim {dim} by the mesh {_axes_text(axes)}" for dim, axes in cuts.items())
                named[number] = f"{leaf_name(leaf.path)} is cut {places}"
        return ", ".join(named[each] for each in [each for each in named if each in numbers] or named)

    def _counts(self, spec: PartitionSpec, dims: int) -> list[int]:
        """In how many each dim of an example's leaf is cut."""
        sizes = axis_sizes(self._share.mesh)
        cuts = [int(np.prod([sizes[axis] for axis in axes_of(entry)])) for entry in spec[1:]]
        return [*cuts, *[1] * dims][:dims]

    def _axes(self, entries: Sequence[Any]) -> tuple[str, ...]:
        """The axes that really cut."""
        sizes = axis_sizes(self._share.mesh)
        return tuple(axis for entry in entries for axis in axes_of(entry) if sizes[axis] > 1)


@final
class _Example:
    """The function from leaves to leaves, under JAX's trace.

    Attributes:
        result: the structure of what it gives, once it was traced.
    """

    def __init__(self, function: Function, structure: Structure, name: str):
        self._function = function
        self._structure = structure
        self._name = name
        self.result = structure

    def __call__(self, *leaves: Any) -> list[jax.Array]:
        try:
            result = self._function(self._structure.build(leaves))
        except Exception as error:
            error.add_note(f"loadax: in {self._name}, which JAX traces with one example")
            for name, argument in ASKED_BY.items():
                if isinstance(error, KeyError) and error.args == (name,) and f"[{name!r}]" not in self._structure.paths:
                    error.add_note(f"loadax: an example has the leaf {name!r} when the loader gets {argument}")
            raise
        if result is None:
            raise LeafError(f"{self._name} returned None; did you forget to return the example?")
        values, self.result = flatten(result)
        if not values:
            raise LeafError(f"{self._name} returned {result!r}, which has no leaves; return an example")
        return [
            _strong(value, f"{self._name}: {leaf_name(path)}")
            for value, path in zip(values, self.result.paths, strict=True)
        ]

    def fresh(self) -> Callable[..., list[jax.Array]]:
        """Another function for each trace.

        JAX would hand out an earlier trace, made before a function that is called was edited.

        It is called as the user's is, in the errors that JAX raises.
        """

        @wraps(self._function)
        def traced(*leaves: Any) -> list[jax.Array]:
            return self(*leaves)

        return traced


def _strong(value: Any, name: str) -> jax.Array:
    """A result as an array whose dtype does not yield to others."""
    try:
        array = jax.numpy.asarray(value)
    except TypeError:
        raise LeafError(f"{name} of the result is a {type(value).__name__}, {value!r}; return arrays") from None
    return jax.numpy.asarray(array, dtype=array.dtype) if array.weak_type else array


@final
class _Traced:
    """What the trace of a function of an example tells of its results.

    Attributes:
        shapes: shape and dtype of each.
        passed: the number of the leaf that it is, unchanged; None: it is computed.
        sources: the numbers of the leaves that it follows from.
    """

    def __init__(self, example: _Example, shapes: Sequence[jax.ShapeDtypeStruct]):
        traced = jax.make_jaxpr(example.fresh())(*shapes).jaxpr
        numbers = {variable: number for number, variable in enumerate(traced.invars)}
        sources = {variable: {number} for variable, number in numbers.items()}
        for equation in traced.eqns:
            found = {number for each in equation.invars if not _literal(each) for number in sources.get(each, ())}
            sources.update(dict.fromkeys(equation.outvars, found))
        results = traced.outvars
        self.shapes = [jax.ShapeDtypeStruct(each.aval.shape, each.aval.dtype) for each in results]
        self.passed = [None if _literal(each) else numbers.get(each) for each in results]
        self.sources = [set() if _literal(each) else sources.get(each, set()) for each in results]


def _axes_text(axes: Sequence[str]) -> str:
    return f"{'axis' if len(axes) == 1 else 'axes'} {' and '.join(map(repr, axes))}"


def _literal(variable: Any) -> bool:
    return hasattr(variable, "val")
