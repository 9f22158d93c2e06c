"""Recognises sparse matrices that are read by rows, without importing their libraries."""

from typing import Any

from loadax.sources.library import comes_from

_ENCODINGS = ("anndata", "csr_matrix", "csc_matrix")


def is_sparse(data: Any) -> bool:
    """Whether something is a CSR matrix of SciPy, an AnnData, or a group of HDF5 or zarr in AnnData's encoding."""
    if comes_from(data, "scipy.sparse", "spmatrix", "sparray"):
        return data.format == "csr"
    if is_group(data):
        return data.attrs.get("encoding-type") in _ENCODINGS
    return comes_from(data, "anndata", "AnnData") or comes_from(
        data, "anndata.abc", "CSRDataset"
    )


def is_group(data: Any) -> bool:
    """Whether something is a group of HDF5 or zarr."""
    return comes_from(data, "h5py", "Group") or comes_from(data, "zarr", "Group")
