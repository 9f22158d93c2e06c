"""Opens sparse matrices by rows: SciPy's CSR, `.npz`, AnnData, and sparse groups of HDF5 and zarr."""

import os
from collections.abc import Mapping
from importlib import import_module
from typing import Any

import numpy as np

from loadax.core.arguments import entries, integer, path, text
from loadax.core.formatting import count_text, some, type_text
from loadax.errors import ArgumentError, SourceError
from loadax.files.paths import local_path
from loadax.protocols import Integers
from loadax.sources.arrays import ArraySource
from loadax.sources.base import BaseSource
from loadax.sources.libraries.array_tree import open_tree
from loadax.sources.libraries.sparse_matrices import is_group
from loadax.sources.library import comes_from, is_stored, require
from loadax.sources.library_arrays import is_array
from loadax.sources.sparse.entries import open_entries
from loadax.sources.sparse.observations import read_observations
from loadax.sources.sparse.source import DENSE, INDICES, VALUES, SparseSource

_MEMBERS = ("data", "indices", "indptr")


def open_sparse(
    data: Any, matrix: Any, obs: Any, dense: bool | None, nulls: Any
) -> BaseSource:
    """Opens the rows of a matrix; see `loadax.from_sparse`.

    Args:
        data: The object, or a path.
        matrix: Path of the matrix in AnnData.
        obs: Columns beside it.
        dense: Whether rows are dense; None: if the matrix is.
        nulls: Code of missing categories.

    Raises:
        ArgumentError: When an argument can't be used; says what to write.
        SourceError: When a file is none of a sparse matrix, or damaged.
        LeafTypeError: When a column of `obs` is not numeric.
    """
    text("matrix", matrix, "a path in the data, such as 'X' or 'layers/counts'")
    if nulls is not None:
        nulls = integer("nulls", nulls)
    if not isinstance(data, str | os.PathLike):
        return _open_rows(data, matrix, obs, dense, nulls)
    opened = _open_path(path("data", data))
    try:
        return _open_rows(opened, matrix, obs, dense, nulls)
    except BaseException:
        # so that the file can be written again, although the error holds it
        if hasattr(opened, "close"):
            opened.close()
        raise


def _open_rows(
    data: Any, member: str, obs: Any, dense: bool | None, nulls: int | None
) -> BaseSource:
    matrix, table, name = _find(data, member)
    if isinstance(obs, Mapping):
        columns = {key: np.asanyarray(column) for key, column in obs.items()}
        attributes: dict[str, Any] = {}
    else:
        columns, attributes = read_observations(
            table, entries("obs", obs, "names"), nulls
        )
    arrays = _arrays_of(matrix, name)
    if arrays is None and dense is False:
        raise ArgumentError(f"{name} is dense; pass dense=True")
    rows, width = matrix.shape if arrays is None else map(int, arrays["shape"])
    for key, column in columns.items():
        if key in (INDICES, VALUES, DENSE):
            raise ArgumentError(
                f"obs has the column {key!r}, a leaf of the matrix; rename it"
            )
        if column.shape[:1] != (rows,):
            raise ArgumentError(
                f"obs[{key!r}] is {column.dtype}{list(column.shape)}, but {name} has "
                f"{count_text(rows, 'row')}; pass one entry a row"
            )
    if arrays is None:
        source = open_tree({DENSE: matrix, **columns})
        source.traits = source.traits._replace(attributes=attributes)
        return source
    bounds = np.asarray(arrays["indptr"][...]).astype(np.int64)
    indices = open_entries(arrays["indices"], f"indices of {name}")
    values = open_entries(arrays["data"], f"data of {name}")
    _check_bounds(bounds, rows, len(indices), len(values), name)
    beside = ArraySource(columns) if columns else None
    return SparseSource(
        (indices, values), bounds, width, name, beside, bool(dense), attributes
    )


def _find(data: Any, member: str) -> tuple[Any, Any, str]:
    """The matrix in an object, the table of its rows (None: there is none), and its name for messages."""
    if comes_from(data, "anndata", "AnnData"):
        if data.is_view and data.isbacked:
            raise ArgumentError(
                "the data is a view of a backed AnnData, whose rows would be read into "
                "memory; open the file and select rows: "
                f"loadax.from_sparse({os.fspath(data.filename)!r}).select(rows)"
            )
        found = data
        for part in member.split("/"):
            found = (
                found.get(part)
                if isinstance(found, Mapping)
                else getattr(found, part, None)
            )
        if found is None:
            layers = ["X", *(f"layers/{name}" for name in data.layers)]
            raise ArgumentError(
                f"matrix={member!r} is not in the AnnData; pass one of {layers}"
            )
        return found, data.obs, f"{member} of the AnnData"
    if not is_group(data):
        return data, None, f"the {type(data).__name__}"
    # of h5py, or of zarr
    place = data.file.filename if hasattr(data, "file") else data.store_path.store
    if "indptr" in data:
        return data, None, f"{data.name} of {place}"
    if member not in data:
        known = some(map(repr, data), 10)
        raise ArgumentError(
            f"matrix={member!r} is not in {place}; its members are {known}"
        )
    return data[member], data.get("obs"), f"{member} of {place}"


def _open_path(given: str) -> Any:
    """The matrix of a `.npz` file, or the group of another file or a folder."""
    location = local_path(given)
    if location is None:
        raise ArgumentError(
            f"data={given!r} is a URL; copy the file to a local path, or open a store of "
            "it: loadax.from_sparse(zarr.open_group(store, mode='r'))"
        )
    package = "zarr" if location.is_dir() else "h5py"
    try:
        if location.suffix == ".npz":
            return import_module("scipy.sparse").load_npz(location)
        require(f"opening {given}", {package: package})
        library = import_module(package)
        if package == "zarr":
            return library.open_group(location, mode="r")
        return library.File(location, "r")
    except (OSError, ValueError, KeyError, EOFError) as error:
        raise SourceError(
            f"{given} can't be opened as a .npz file, an HDF5 file (.h5ad) or a zarr "
            f"folder ({error}); correct the path, or open it with its library, and pass "
            "the CSR matrix or AnnData"
        ) from error


def _arrays_of(matrix: Any, name: str) -> Mapping[str, Any] | None:
    """The flat arrays and the shape of a matrix in CSR; None: it is dense.

    Raises:
        ArgumentError: When it is sparse in another way, or no matrix; says what to write.
        SourceError: When an array is missing.
    """
    if comes_from(matrix, "anndata.abc", "CSRDataset", "CSCDataset"):
        matrix = matrix.group
    found: Any = matrix
    if is_group(matrix):
        kind = matrix.attrs.get("encoding-type")
        if kind != "csr_matrix":
            raise ArgumentError(
                f"{name} is a group with encoding-type={kind!r}, which can't be read by "
                "rows; write a csr_matrix: data.X = data.X.tocsr(), then "
                "data.write_h5ad(path)"
            )
        found = {
            **matrix.attrs,
            **{key: matrix[key] for key in _MEMBERS if key in matrix},
        }
    elif getattr(matrix, "format", None) == "csr" and hasattr(matrix, "indptr"):
        found = {key: getattr(matrix, key) for key in (*_MEMBERS, "shape")}
    elif hasattr(matrix, "tocsr"):
        raise ArgumentError(
            f"{name} is {type_text(matrix)}, which can't be read by rows; convert it: "
            "loadax.from_sparse(data.tocsr())"
        )
    elif (is_array(matrix) or is_stored(matrix)) and len(matrix.shape) == 2:
        return None
    else:
        raise ArgumentError(
            f"{name} is {type_text(matrix)}, not a matrix; pass a scipy.sparse CSR "
            "matrix, an AnnData, a group of HDF5 or zarr, or a path"
        )
    missing = [key for key in (*_MEMBERS, "shape") if key not in found]
    if missing:
        raise SourceError(f"{name} lacks {missing}; write the matrix again")
    return found


def _check_bounds(
    bounds: Integers, rows: int, indices: int, values: int, name: str
) -> None:
    fits = bounds.shape == (rows + 1,) and bounds[0] == 0 and bounds[-1] <= indices
    if indices != values:
        columns = count_text(indices, "index", "indices")
        problem = f"{columns} and {count_text(values, 'value')}"
    elif not fits or (np.diff(bounds) < 0).any():
        problem = (
            f"an indptr of {count_text(bounds.size, 'entry', 'entries')} that does "
            f"not ascend from 0 to at most {indices} in {count_text(rows, 'row')}"
        )
    else:
        return
    raise SourceError(f"{name} has {problem}; write the matrix again")
