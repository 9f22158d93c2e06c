"""Sparse matrices in every form that is opened, each with the dense matrix that SciPy makes of it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pandas as pd
import scipy.sparse
import zarr

ROWS, COLUMNS = 60, 23


def matrix(
    seed: int = 0, rows: int = ROWS, columns: int = COLUMNS, dtype: Any = np.float32, density: float = 0.2
) -> Any:
    """A CSR matrix with rows of very different lengths, some of them empty."""
    rng = np.random.default_rng(seed)
    keep = rng.random((rows, columns)) < density * rng.choice([0, 0.3, 1, 2], (rows, 1))
    return scipy.sparse.csr_array((keep * rng.integers(1, 100, (rows, columns))).astype(dtype))


def obs(rows: int = ROWS) -> pd.DataFrame:
    """A table of categories, numbers and texts."""
    kinds = pd.Categorical.from_codes(np.arange(rows) % 3, categories=["b cell", "t cell", "other"])
    names = [f"cell {row}" for row in range(rows)]
    table = {"kind": kinds, "age": np.arange(rows) / 2, "donor": np.arange(rows) % 5, "name": names}
    return pd.DataFrame(table, index=names)


def write_group(group: Any, given: Any, chunk: int = 64, index_dtype: Any = np.int32) -> None:
    """Writes a matrix to a group of h5py or zarr as AnnData does."""
    group.attrs["encoding-type"] = "csr_matrix"
    group.attrs["shape"] = [*given.shape]
    make = group.create_dataset if isinstance(group, h5py.Group) else group.create_array
    for name, array in (("data", given.data), ("indices", given.indices.astype(index_dtype))):
        make(name, data=array, chunks=(chunk,))
    make("indptr", data=given.indptr.astype(np.int64))


def anndata_of(given: Any) -> Any:
    import anndata

    return anndata.AnnData(scipy.sparse.csr_matrix(given), obs=obs(given.shape[0]), layers={"twice": given * 2})


def _hdf5(given: Any, folder: Path) -> Any:
    path = folder / "x.h5"
    with h5py.File(path, "w") as file:
        write_group(file.create_group("X"), given)
    return h5py.File(path)["X"]


def _zarr(given: Any, folder: Path) -> Any:
    group = zarr.create_group(folder / "x.zarr")
    write_group(group, given)
    return zarr.open_group(folder / "x.zarr", mode="r")


def _npz(given: Any, folder: Path) -> Any:
    scipy.sparse.save_npz(folder / "x.npz", given)
    return folder / "x.npz"


def _mapped(given: Any, folder: Path) -> Any:
    members = []
    for name in ("data", "indices", "indptr"):
        np.save(folder / name, getattr(given, name))
        members.append(np.load(folder / f"{name}.npy", mmap_mode="r"))
    return scipy.sparse.csr_array(tuple(members), shape=given.shape)


def _h5ad(given: Any, folder: Path) -> Any:
    anndata_of(given).write_h5ad(folder / "x.h5ad")
    return folder / "x.h5ad"


def _zarr_of_anndata(given: Any, folder: Path) -> Any:
    anndata_of(given).write_zarr(folder / "a.zarr")
    return folder / "a.zarr"


def _backed(given: Any, folder: Path) -> Any:
    import anndata

    return anndata.read_h5ad(_h5ad(given, folder), backed="r")


Form = Callable[[Any, Path], Any]
FORMS: dict[str, Form] = {
    "csr_matrix": lambda given, folder: scipy.sparse.csr_matrix(given),
    "csr_array": lambda given, folder: given,
    "int64 indptr": lambda given, folder: scipy.sparse.csr_array(
        (given.data, given.indices.astype(np.int64), given.indptr.astype(np.int64)), shape=given.shape
    ),
    "memory-mapped": _mapped,
    ".npz": _npz,
    "HDF5 group": _hdf5,
    "zarr group": _zarr,
}
# Forms of AnnData: their rows have a table beside them.
ANNDATA: dict[str, Form] = {
    "AnnData": lambda given, folder: anndata_of(given),
    "backed": _backed,
    "CSRDataset": lambda given, folder: _backed(given, folder).X,
    ".h5ad": _h5ad,
    ".zarr of AnnData": _zarr_of_anndata,
}
