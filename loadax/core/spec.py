"""Element specs: shapes and dtypes of one example, and checks of rows against them."""

from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple, final

import numpy as np

from loadax.core.formatting import count_text, with_article
from loadax.core.tree import Structure, flatten, map_values, refuse_node, too_deep
from loadax.errors import ArgumentError, LeafError
from loadax.protocols import Array, ArraySpec, Columns, Tree

_PLAIN: dict[type, np.dtype[Any]] = {
    kind: np.dtype(kind) for kind in (int, float, bool, complex)
}
_NUMBERS = set(_PLAIN)
_dimensions = attrgetter("ndim")
# Types of immutable leaves that need no conversion.
_UNCHANGED = {str, bytes, *np.sctypeDict.values()} - _NUMBERS


def flatten_spec(spec: Tree) -> tuple[list[ArraySpec], Structure]:
    """The `ArraySpec`s of a spec, in leaf order, and its structure."""
    return flatten(spec, is_leaf=lambda node: isinstance(node, ArraySpec))


def describe_spec(spec: Tree) -> list[Any]:
    """Path, shape and dtype of each leaf, as JSON."""
    specs, structure = flatten_spec(spec)
    return [
        [path, list(leaf.shape), str(leaf.dtype)]
        for path, leaf in zip(structure.paths, specs, strict=True)
    ]


def all_columns(shape: Sequence[int]) -> Columns:
    """All columns of a leaf whose examples have this shape."""
    return tuple((0, extent) for extent in shape)


def spec_of(example: Tree) -> Tree:
    """The tree of `ArraySpec`s of one example. Strings, bytes and other objects have dtype `object`."""
    leaves, structure = flatten(example)
    specs = []
    for leaf, path in zip(leaves, structure.paths, strict=True):
        array = as_array(leaf, f"leaf {path or 'of the example'}")
        if array.dtype.kind in "USO":
            dtype = np.dtype(object)
        else:
            dtype = array.dtype.newbyteorder("=")
        specs.append(ArraySpec(array.shape, dtype))
    return structure.build(specs)


def spec_or_object(example: Tree) -> Tree:
    """The spec of an example that is never stacked, so it may be any object."""
    try:
        return spec_of(example)
    except (
        ArgumentError,
        LeafError,
    ):  # a dict whose keys can't be sorted, or an object that NumPy can't convert
        return ArraySpec((), np.dtype(object))


def own_all(examples: Sequence[Tree], rows: Sequence[int | str]) -> list[Tree]:
    """A copy of each example, see `own`.

    Raises:
        LeafError: When a leaf has masked entries; names its row. When an example is nested too deep.
    """
    try:
        return _own_rows(examples)
    except RecursionError:
        raise too_deep() from None
    except LeafError:
        for index, example in enumerate(examples):
            refuse_masked(example, f"row {rows[index]}: leaf")
        raise


def refuse_masked(tree: Tree, name: str) -> Tree:
    """A tree as it is, unless a leaf has masked entries.

    Raises:
        LeafError: When one has; `name` goes before its path.
    """
    leaves, structure = flatten(tree)
    if any(isinstance(leaf, np.ma.MaskedArray) for leaf in leaves):
        for leaf, path in zip(leaves, structure.paths, strict=True):
            unmasked(leaf, f"{name} {path or 'of the example'}")
    return tree


def unmasked(leaf: Any, name: object) -> Any:
    """A leaf as it is, or the data of a masked array without masked entries.

    Raises:
        LeafError: When it has masked entries.
    """
    if not isinstance(leaf, np.ma.MaskedArray):
        return leaf
    if masked := int(np.count_nonzero(np.ma.getmaskarray(leaf).view(bool))):
        raise LeafError(
            f"{name} has {count_text(masked, 'masked entry', 'masked entries')}, which "
            "would become data; fill them: array.filled(0)"
        )
    return leaf.data


def own(example: Tree) -> Tree:
    """A copy of an example: arrays and array-likes are copied, numbers become NumPy scalars, other leaves are kept.

    Raises:
        LeafError: When a leaf has masked entries.
    """
    return map_values(_own_leaf, example)


def _own_rows(examples: Sequence[Tree]) -> list[Tree]:
    """Copies leaf by leaf, without a call of Python per leaf, if they are arrays, or dicts of the same keys."""
    kinds = {*map(type, examples)}
    if kinds == {np.ndarray} and all(map(_dimensions, examples)):
        return list(map(np.ndarray.copy, examples))
    if kinds != {dict} or len({*map(len, examples)}) > 1:
        return list(map(own, examples))
    copies = list(map(dict.copy, examples))
    for key in copies[0]:
        try:
            leaves = list(map(itemgetter(key), examples))
        except KeyError:
            return list(map(own, examples))
        kinds = {*map(type, leaves)}
        if kinds == {np.ndarray} and all(map(_dimensions, leaves)):
            owned: Iterable[Any] = map(np.ndarray.copy, leaves)
        elif kinds <= _UNCHANGED:
            continue
        else:
            owned = [map_values(_own_leaf, leaf) for leaf in leaves]
        for copied, leaf in zip(copies, owned, strict=True):
            copied[key] = leaf
    return copies


def _own_leaf(leaf: Any) -> Any:
    kind = type(leaf)
    if kind is np.ndarray:
        if leaf.ndim or leaf.dtype.hasobject:
            return leaf.copy()
        return leaf[()]
    if kind in _UNCHANGED:
        return leaf
    if kind not in _NUMBERS:
        if not hasattr(leaf, "__array__"):
            return leaf
        leaf = unmasked(leaf, "a leaf")
    try:
        return np.array(leaf)[()]
    except Exception:  # noqa: BLE001 - kept; where an array is needed, `as_array` raises an error that names it
        return leaf


def same_memory(leaf: Any, other: Any) -> bool:
    """Whether two leaves are the same array, or views of one array that begin at the same entry."""
    if (
        not isinstance(leaf, np.ndarray)
        or not isinstance(other, np.ndarray)
        or not leaf.size
        or not other.size
    ):
        # an empty view may have another view's address without sharing memory
        return False
    return leaf is other or (
        leaf.base is not None
        and leaf.base is other.base
        and leaf.ctypes.data == other.ctypes.data
    )


def split_rows(batch: Tree, count: int) -> list[Tree]:
    """Splits a tree of arrays whose first dimension is `count` into `count` examples, as views."""
    leaves, structure = flatten(batch)
    return structure.build_all(leaves, count)


def leaf_arrays(example: Tree) -> list[Array]:
    """The leaves of any example as arrays; leaves that NumPy can't convert become object arrays."""
    try:
        return [array_or_object(leaf) for leaf in flatten(example)[0]]
    except ArgumentError:  # a dict whose keys can't be sorted
        return [_object(example)]


def array_or_object(leaf: Any, name: object = "a leaf") -> Array:
    """A leaf as an array: an object array if NumPy can't convert it.

    Raises:
        LeafError: When it has masked entries.
    """
    leaf = unmasked(leaf, name)
    try:
        return np.asarray(leaf)
    except Exception:  # noqa: BLE001 - conversion runs the leaf's own code
        return _object(leaf)


def entries_like(
    array: Array, dtype: np.dtype[Any], shape: Sequence[int], label: str
) -> Array:
    """The array, if its entries along the first dimension have this dtype and shape.

    Raises:
        LeafError: Otherwise; begins with `label`.
    """
    if array.ndim and not len(array):  # NumPy makes an empty list float64
        return np.empty((0, *shape), dtype)
    if (
        not array.ndim
        or array.shape[1:] != (*shape,)
        or array.dtype.newbyteorder("=") != dtype
    ):
        if array.ndim:
            has = f"entries of {array.dtype}{list(array.shape[1:])}"
        else:
            has = f"one {array.dtype}"
        raise LeafError(
            f"{label} has {has}, in other rows entries of {dtype}{list(shape)}; cast "
            "it in a map"
        )
    return array


def _object(value: Any) -> Array:
    box = np.empty((), object)
    box[()] = value
    return box


def as_array(leaf: Any, name: object) -> Array:
    """A leaf from user code, as an array; strings of NumPy's `StringDType` become objects.

    Args:
        leaf: The leaf.
        name: Name of the leaf for errors, as `str` gives it.

    Raises:
        LeafError: When NumPy can't convert it, it has masked entries, or it is a pytree to JAX alone.
    """
    leaf = unmasked(leaf, name)
    refuse_node(leaf, name)
    try:
        array = np.asarray(leaf)
    except Exception as error:
        kind = with_article(f"{type(leaf).__module__}.{type(leaf).__qualname__}")
        raise LeafError(
            f"{name} is {kind} that NumPy can't convert to an array ({error}); "
            "return an array of numbers (from a torch tensor: "
            "tensor.detach().float().numpy())"
        ) from error
    if not array.ndim and array.dtype.hasobject and hasattr(leaf, "toarray"):
        kind = with_article(type(leaf).__qualname__)
        raise LeafError(
            f"{name} is {kind}, which is sparse; return an array: matrix.toarray(), "
            "of one row matrix.toarray().ravel()"
        )
    if array.dtype.kind == "T":
        return array.astype(object)
    return array


def normalise_spec(spec: Tree) -> Tree:
    """A user's tree of objects with `shape` and `dtype`, as `ArraySpec`s; None stays None.

    Raises:
        ArgumentError: When a leaf has no shape or dtype.
    """
    leaves, structure = flatten(spec, is_leaf=_has_spec)
    for index, leaf in enumerate(leaves):
        if not _has_spec(leaf):
            raise ArgumentError(
                f"spec{structure.paths[index]} is {leaf!r}: pass an object with a "
                "shape and a dtype, such as jax.ShapeDtypeStruct"
            )
    return structure.build(
        ArraySpec(tuple(leaf.shape), np.dtype(leaf.dtype).newbyteorder("="))
        for leaf in leaves
    )


def _has_spec(node: Any) -> bool:
    # A class such as numpy.float32 has them too, but as descriptors.
    return (
        hasattr(node, "shape")
        and hasattr(node, "dtype")
        and not isinstance(node, type)
    )


def stack(examples: Sequence[Tree], spec: Tree, rows: Sequence[int | str]) -> Tree:
    """Stacks examples into one tree of arrays whose first dimension is `len(examples)`.

    Args:
        examples: One tree per row.
        spec: Tree of `ArraySpec`s.
        rows: Rows of the examples, or texts that name them, for errors.

    Raises:
        LeafError: When the structure, a shape or a dtype of an example differs from `spec`.
    """
    specs, structure = flatten_spec(spec)
    out = [
        np.empty((len(examples), *leaf_spec.shape), leaf_spec.dtype)
        for leaf_spec in specs
    ]
    stack_into(examples, specs, structure, rows, out)
    return structure.build(out)


def stack_into(
    examples: Sequence[Tree],
    specs: Sequence[ArraySpec],
    structure: Structure,
    rows: Sequence[int | str],
    out: Sequence[Array],
) -> None:
    """Same as `stack`, for a spec that is flattened already, into `out`."""
    if _fill_columns(examples, structure, out):
        return
    columns = [
        (column, spec.shape, spec.dtype)
        for column, spec in zip(out, specs, strict=True)
    ]
    for index, example in enumerate(examples):
        leaves = structure.plain_leaves(example)
        if leaves is None:
            leaves = _leaves_like(example, structure, rows, index)
        for leaf_index, (leaf, (column, shape, dtype)) in enumerate(
            zip(leaves, columns, strict=True)
        ):
            if (
                type(leaf) is not np.ndarray
                or leaf.dtype != dtype
                or leaf.shape != shape
                or dtype.hasobject
            ):
                name = _LeafName(rows, index, structure.paths[leaf_index])
                leaf = _checked(leaf, specs[leaf_index], name)  # noqa: PLW2901
            column[index] = leaf


def _fill_columns(
    examples: Sequence[Tree], structure: Structure, out: Sequence[Array]
) -> bool:
    """Fills `out` leaf by leaf on a fast path; returns False if the examples must be checked one by one."""
    if structure.kind is None:
        return _fill(examples, out[0])
    if (
        not structure.flat
        or {*map(type, examples)} != {dict}
        or {*map(len, examples)} != {len(out)}
    ):
        return False
    try:
        return all(
            _fill(list(map(itemgetter(key), examples)), column)
            for key, column in zip(structure.keys, out, strict=True)
        )
    except KeyError:
        return False


def _fill(values: Sequence[Any], out: Array) -> bool:
    """Fills an array with `values`; returns False if they are not plain, or their dtype or shape differs."""
    kinds = {*map(type, values)}
    if len(kinds) != 1 or out.dtype.hasobject:
        return False
    (kind,) = kinds
    try:
        if kind is np.ndarray:
            if out.ndim < 2 or not out.size or {*map(len, values)} != {out.shape[1]}:
                return False
            # `concatenate` checks all other dimensions and, with casting="no", the dtypes.
            np.concatenate(values, out=out.reshape(-1, *out.shape[2:]), casting="no")
            return True
        if out.ndim == 1 and (
            kind is out.dtype.type or _PLAIN.get(kind) == out.dtype
        ):
            out[...] = values
            return True
    except (TypeError, ValueError, OverflowError):
        return False
    return False


def _leaves_like(
    example: Tree, structure: Structure, rows: Sequence[int | str], index: int
) -> list[Any]:
    leaves, actual = flatten(example)
    if actual != structure:
        if difference := structure.static_difference(actual):
            raise LeafError(
                f"row {rows[index]}: {difference}; a batch has one value of it, so "
                "all rows must have the same: make it a data field, or set it in a "
                "map"
            )
        lost = [path for path in structure.paths if path not in actual.paths]
        if actual.paths and len(lost) + len(actual.paths) == len(structure.paths):
            raise LeafError(
                f"row {rows[index]}: {', '.join(lost)} is None or missing, but the "
                "rows before it have it; replace None in a map, or leave such rows "
                "out with filter()"
            )
        raise LeafError(
            f"row {rows[index]} has the leaves {', '.join(actual.paths) or 'none'}, "
            f"the rows before it had {', '.join(structure.paths)}; return the same "
            "leaves for every row"
        )
    return leaves


@final
class RowNames(Sequence[str]):
    """Names of rows for errors, made only where one is needed.

    Args:
        count: Number of rows.
        name: Gives the name of a row from its index.
    """

    def __init__(self, count: int, name: Callable[[int], str]):
        self._count = count
        self._name = name

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: Any) -> Any:
        return self._name(index)


class _LeafName(NamedTuple):
    """A leaf of a row in messages, made only where one is needed: the row may be looked up."""

    rows: Sequence[int | str]
    example: int
    path: str

    def __str__(self) -> str:
        return f"row {self.rows[self.example]}: leaf {self.path or 'of the example'}"


def _checked(leaf: Any, spec: ArraySpec, name: _LeafName) -> Any:
    leaf = unmasked(leaf, name)
    if spec.dtype.hasobject and not spec.shape:
        return leaf
    array = as_array(leaf, name)
    if spec.dtype.hasobject and array.shape == spec.shape:
        return leaf
    if array.shape != spec.shape or array.dtype.newbyteorder("=") != spec.dtype:
        raise LeafError(
            f"{name} is {array.dtype}{list(array.shape)}, expected "
            f"{spec.dtype}{list(spec.shape)}; {_remedy(array, spec)}"
        )
    return array


def _remedy(array: Array, spec: ArraySpec) -> str:
    if array.ndim == len(spec.shape) and array.shape != spec.shape:
        return (
            "rows are ragged: pad them with .pad(lengths), crop them in a map, or, "
            "unless they come from a stream, pack them with .pack(seq_len)"
        )
    return "give all rows one shape and dtype in a map (pad, crop or cast)"


def check_batch(batch: Tree, count: int, spec: Tree, origin: str) -> Tree:
    """`batch`, if its structure, shapes and dtypes are those of `count` rows of `spec`.

    Raises:
        LeafError: Otherwise; names `origin`, which returned the batch.
    """
    return check_leaves(batch, count, *flatten_spec(spec), origin)


def check_leaves(
    batch: Tree,
    count: int,
    specs: Sequence[ArraySpec],
    structure: Structure,
    origin: str,
) -> Tree:
    """Same as `check_batch`, for a spec that is flattened already."""
    leaves = structure.plain_leaves(batch)
    if leaves is None:
        leaves, actual = flatten(batch)
        if actual != structure:
            difference = structure.static_difference(actual)
            leaves_text = (
                f"the leaves {actual.paths}, expected {structure.paths}; return the "
                "leaves of spec"
            )
            raise LeafError(f"{origin} gave {difference or leaves_text}")
    checked = []
    for index, (leaf, leaf_spec) in enumerate(zip(leaves, specs, strict=True)):
        if (
            type(leaf) is np.ndarray
            and leaf.dtype == leaf_spec.dtype
            and leaf.shape == (count, *leaf_spec.shape)
        ):
            checked.append(leaf)
            continue
        path = structure.paths[index]
        array = as_array(leaf, f"{origin}: leaf {path or 'of the batch'}")
        if (
            array.dtype != leaf_spec.dtype
            and array.dtype.newbyteorder("=") == leaf_spec.dtype
        ):
            array = array.astype(leaf_spec.dtype)
        wrong_dtype = array.dtype != leaf_spec.dtype and not leaf_spec.dtype.hasobject
        if array.shape != (count, *leaf_spec.shape) or wrong_dtype:
            raise LeafError(
                f"{origin} gave leaf {path or 'of the batch'} as "
                f"{array.dtype}{list(array.shape)} for {count_text(count, 'row')}, "
                f"expected {leaf_spec.dtype}{[count, *leaf_spec.shape]}; return one "
                "entry per row, all of that shape and dtype (pad, crop or cast "
                "them in a map)"
            )
        checked.append(array)
    return structure.build(checked)


def spec_of_batch(batch: Tree, name: str) -> Tree:
    """The spec of a row of a batch of one row.

    Raises:
        ArgumentError: When the first dimension of a leaf is not that of rows.
        LeafError: When a leaf can't be an array; both name `name`, which gave it.
    """
    leaves, structure = flatten(batch)
    for path, leaf in zip(structure.paths, leaves, strict=True):
        array = as_array(
            leaf, f"what {name} returned as leaf {path or 'of the batch'}"
        )
        if array.ndim == 0 or len(array) != 1:
            raise ArgumentError(
                f"{name} gave leaf {path or 'of the batch'} with shape "
                f"{list(array.shape)} for 1 row; the first dimension of every leaf "
                "must be the number of requested rows"
            )
    return spec_of(structure.build(np.asarray(leaf)[0] for leaf in leaves))
