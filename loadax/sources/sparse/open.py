"""Opens sparse matrices by rows: SciPy's CSR, `.npz`, AnnData, and sparse groups of HDF5 and zarr."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from loadax.core.arguments import entries, flag, integer, path, text
from loadax.core.formatting import some, type_text
from loadax.errors import ArgumentError, SourceError
from loadax.files.paths import local_path
from loadax.sources.arrays import ArraySource
from loadax.sources.base import BaseSource
from loadax.sources.libraries.array_tree import open_tree
from loadax.sources.library import comes_from, is_stored, require
from loadax.sources.library_arrays import is_array
from loadax.sources.sparse.entries import open_entries
from loadax.sources.sparse.observations import Observations
from loadax.sources.sparse.source import DENSE, INDICES, VALUES, Csr, SparseSource

_FILES = (".h5ad", ".h5", ".hdf5")
_OWN = (INDICES, VALUES, DENSE)


class _Opened(NamedTuple):
    """A matrix, and what is told of its rows.

    Args:
        matrix: Matrix of a library, array, or group.
        observations: Table with a row for each of it; None: there is none.
        name: Name for messages.
    """

    matrix: Any
    observations: Any
    name: str


def open_sparse(
    data: Any, matrix: Any, obs: Any, dense: Any, nulls: Any
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
        nulls = integer("nulls", nulls, None)
    if not isinstance(data, str | os.PathLike):
        return _open_rows(_find(data, matrix), obs, dense, nulls)
    opened = _open_path(path("data", data))
    try:
        return _open_rows(_find(opened, matrix), obs, dense, nulls)
    except BaseException:
        # so that the file can be written again, although the error holds it
        if hasattr(opened, "close"):
            opened.close()
        raise


def _open_rows(found: _Opened, obs: Any, dense: Any, nulls: int | None) -> BaseSource:
    """Opens the rows of a matrix and of the columns beside it; see `open_sparse`."""
    observations = Observations(found.observations, found.name, nulls)
    if isinstance(obs, Mapping):
        columns = {name: np.asanyarray(column) for name, column in obs.items()}
    else:
        columns = observations.read(entries("obs", obs, "names of columns of obs"))
    for name in columns:
        if name in _OWN:
            raise ArgumentError(
                f"obs has the column {name!r}, a leaf of the matrix; rename it"
            )
    csr = _csr(found)
    if csr is None:
        if dense is False:
            raise ArgumentError(
                f"{found.name} is {type_text(found.matrix)}, which is dense; pass "
                "dense=True"
            )
        source = open_tree({DENSE: found.matrix, **columns})
        source.traits = source.traits._replace(attributes=observations.attributes)
        return source
    rows = len(csr.bounds) - 1
    for name, column in columns.items():
        if column.shape[:1] != (rows,):
            raise ArgumentError(
                f"obs[{name!r}] is {column.dtype}{list(column.shape)}, but "
                f"{found.name} has {rows} rows; pass one value a row"
            )
    beside = ArraySource(columns) if columns else None
    if dense is not None:
        dense = flag("dense", dense)
    return SparseSource(csr, beside, bool(dense), observations.attributes)


def _find(data: Any, matrix: str) -> _Opened:
    """The matrix of a path in an object."""
    if isinstance(data, _Opened):
        return data
    if comes_from(data, "anndata", "AnnData"):
        if data.is_view and data.isbacked:
            raise ArgumentError(
                "the data is a view of a backed AnnData, whose rows would be read "
                "into memory; open the file and select rows: "
                f"loadax.from_sparse({os.fspath(data.filename)!r}).select(rows)"
            )
        member: Any = data
        for part in matrix.split("/"):
            mapping = isinstance(member, Mapping)
            member = member.get(part) if mapping else getattr(member, part, None)
        if member is None:
            layers = [f"layers/{name}" for name in data.layers]
            raise ArgumentError(
                f"matrix={matrix!r} is not in the AnnData; pass one of "
                f"{['X', *layers]}"
            )
        return _Opened(member, data.obs, matrix)
    if _is_group(data):
        label = str(getattr(data, "filename", "") or getattr(data, "store_path", ""))
        if "indptr" in data:
            return _Opened(data, None, label or data.name)
        if matrix in data:
            return _Opened(data[matrix], data.get("obs"), matrix)
        raise ArgumentError(
            f"matrix={matrix!r} is not in {label or data}; its members are "
            f"{some(map(repr, data), 10)}"
        )
    return _Opened(data, None, f"the {type(data).__name__}")


def _open_path(given: str) -> Any:
    place = local_path(given)
    if place is None:
        raise ArgumentError(
            f"data={given!r} is a URL; copy the file to a local path, or open a "
            "store of it: loadax.from_sparse(zarr.open_group(store, mode='r'))"
        )
    location = Path(place).absolute()
    if not location.exists():
        raise SourceError(f"{given} does not exist; correct the path")
    if location.suffix == ".npz":
        return _open_npz(location)
    if location.is_dir():
        require(f"the zarr group {given}", {"zarr": "zarr"})
        import zarr

        try:
            return zarr.open_group(location, mode="r")
        except (OSError, ValueError, KeyError) as error:
            raise SourceError(f"{given} is not a zarr group: {error}") from error
    if location.suffix not in _FILES:
        raise ArgumentError(
            f"data={given!r} is none of .npz, {', '.join(_FILES)} or a zarr folder; "
            "open it with its library, and pass the CSR matrix or AnnData"
        )
    require(f"the HDF5 file {given}", {"h5py": "h5py"})
    import h5py

    try:
        return h5py.File(location, "r")
    except OSError as error:
        raise SourceError(f"{given} is not an HDF5 file: {error}") from error


def _open_npz(location: Path) -> _Opened:
    try:
        with np.load(location, allow_pickle=False) as members:
            arrays = dict(members)
        kind = arrays["format"].item()
        kind = kind.decode() if isinstance(kind, bytes) else str(kind)
    except (OSError, ValueError, KeyError, EOFError) as error:
        raise SourceError(
            f"{location} is not a sparse matrix of scipy.sparse.save_npz: {error}"
        ) from error
    if kind != "csr":
        raise ArgumentError(
            f"{location} is a {kind} matrix, which can't be read by rows; write it "
            "again: scipy.sparse.save_npz(path, scipy.sparse.load_npz(path).tocsr())"
        )
    return _Opened(arrays, None, str(location))


def _csr(found: _Opened) -> Csr | None:
    """The matrix in CSR; None: it is dense.

    Raises:
        ArgumentError: When it is sparse in another way, or no matrix; says what to write.
        SourceError: When its arrays don't fit together.
    """
    matrix, _, name = found
    if comes_from(matrix, "anndata.abc", "CSRDataset", "CSCDataset"):
        matrix = matrix.group
    if isinstance(matrix, dict):
        return _of_arrays(matrix, matrix["shape"], name)
    if getattr(matrix, "format", None) == "csr" and hasattr(matrix, "indptr"):
        members = {key: getattr(matrix, key) for key in ("data", "indices", "indptr")}
        return _of_arrays(members, matrix.shape, name)
    if _is_group(matrix):
        kind = matrix.attrs.get("encoding-type")
        if kind != "csr_matrix":
            raise ArgumentError(
                f"{name} is a group with encoding-type={kind!r}, which can't be read "
                "by rows; write a csr_matrix: "
                "data.X = data.X.tocsr(), then data.write_h5ad(path)"
            )
        return _of_arrays(matrix, matrix.attrs["shape"], name)
    if hasattr(matrix, "tocsr"):
        raise ArgumentError(
            f"{name} is {type_text(matrix)}, which can't be read by rows; convert "
            "it: loadax.from_sparse(data.tocsr())"
        )
    if (is_array(matrix) or is_stored(matrix)) and len(matrix.shape) == 2:
        return None
    raise ArgumentError(
        f"{name} is {type_text(matrix)}, not a matrix; pass a scipy.sparse CSR "
        "matrix, an AnnData, a group of HDF5 or zarr, or a path"
    )


def _of_arrays(members: Any, shape: Any, name: str) -> Csr:
    missing = [key for key in ("data", "indices", "indptr") if key not in members]
    if missing:
        raise SourceError(f"{name} lacks {missing}; write the matrix again")
    bounds = np.asarray(members["indptr"][...]).astype(np.int64)
    rows, columns = (int(length) for length in shape)
    if bounds.shape != (rows + 1,):
        raise SourceError(
            f"{name} has {rows} rows, but an indptr of the shape "
            f"{list(bounds.shape)}; write the matrix again"
        )
    indices, values = (
        open_entries(members[key], f"{key} of {name}") for key in ("indices", "data")
    )
    return Csr(indices, values, bounds, columns, name)


def _is_group(data: Any) -> bool:
    return comes_from(data, "h5py", "Group") or comes_from(data, "zarr", "Group")
