"""Advice of errors about sparse rows."""

from typing import Any

import h5py
import jax
import numpy as np
import scipy.sparse
import zarr

import loadax
from loadax.errors import ArgumentError, LeafError, LeafTypeError, SourceError
from tests.advice.registry import Case, follows
from tests.sources.sparse.matrices import anndata_of, matrix, write_group

MATRIX = matrix()
DENSE = MATRIX.toarray()


def assert_rows(data: Any, wanted: Any = DENSE) -> None:
    """Checks sparse rows against dense ones."""
    for row, example in zip(wanted, data, strict=True):
        assert row[example["indices"]].tolist() == example["values"].tolist()
        assert np.count_nonzero(row) == len(example["indices"])


@follows("pack the dataset before to_stream()")
def stream_of_packs(case: Case) -> None:
    data = loadax.from_sparse(MATRIX)
    with case.refused(ArgumentError):
        loadax.pack_sparse(data.to_stream(2))
    assert loadax.pack_sparse(data)[0].to_stream(1).is_stream


@follows("open sparse rows with loadax.from_sparse(data)")
def rows_that_are_not_sparse(case: Case) -> None:
    with case.refused(LeafError):
        loadax.pack_sparse(loadax.from_arrays(DENSE), columns=DENSE.shape[1])
    assert len(loadax.pack_sparse(loadax.from_sparse(MATRIX))[0]) == 1


@follows("which rows have; rename it: .rename({…: 'own_…'})")
def names_of_packs(case: Case) -> None:
    data = loadax.from_sparse(MATRIX, obs={"lengths": np.arange(len(DENSE))})
    with case.refused(LeafError):
        _ = loadax.pack_sparse(data)[0][0]
    assert "own_lengths" in loadax.pack_sparse(data.rename({"lengths": "own_lengths"}))[0][0]


@follows("call pack_sparse() again, and apply random maps after it")
def rows_that_grow(case: Case) -> None:
    calls = []

    def growing(example: Any) -> Any:
        calls.append(1)
        return {name: np.tile(leaf, 1 if len(calls) <= len(DENSE) + 1 else 9) for name, leaf in example.items()}

    data = loadax.from_sparse(MATRIX).map(growing)
    packs, _ = loadax.pack_sparse(data)
    with case.refused(LeafError):
        packs.read([0])
    assert loadax.pack_sparse(data)[0].read([0])["lengths"].sum() == 9 * MATRIX.nnz


@follows("pass more: pack_sparse(data, columns=…)")
def more_columns(case: Case) -> None:
    data = loadax.from_sparse(MATRIX).map(lambda row: {**row, "indices": row["indices"] + 1})
    with case.refused(LeafError):
        loadax.pack_sparse(data)[0].read([0])
    assert loadax.pack_sparse(data, columns=DENSE.shape[1] + 1)[0].read([0])["indices"].max() == DENSE.shape[1]


@follows("make it a category: data.obs[…] = data.obs[…].astype('category')")
def texts_as_categories(case: Case) -> None:
    data = anndata_of(MATRIX)
    data.write_h5ad(case.folder / "x.h5ad")
    with case.refused(LeafTypeError):
        loadax.from_sparse(case.folder / "x.h5ad", obs=["name"])
    data.obs["name"] = data.obs["name"].astype("category")
    data.write_h5ad(case.folder / "x.h5ad")
    read = loadax.from_sparse(case.folder / "x.h5ad", obs=["name"])
    assert read.source.classes["name"][read[7]["name"]] == "cell 7"


@follows("open a store of it: loadax.from_sparse(zarr.open_group(store, mode='r'))")
def sparse_at_a_url(case: Case) -> None:
    with case.refused(ArgumentError):
        loadax.from_sparse("s3://bucket/x.zarr")
    store = zarr.storage.MemoryStore()
    write_group(zarr.create_group(store), MATRIX)
    assert_rows(loadax.from_sparse(zarr.open_group(store, mode="r")))


@follows("which can't be read by rows; convert it: loadax.from_sparse(data.tocsr())")
def other_forms(case: Case) -> None:
    for data in (MATRIX.tocsc(), MATRIX.tocoo()):
        with case.refused(ArgumentError):
            loadax.from_sparse(data)
        assert_rows(loadax.from_sparse(data.tocsr()))
    scipy.sparse.save_npz(case.folder / "x.npz", MATRIX.tocsc())
    with case.refused(ArgumentError):
        loadax.from_sparse(case.folder / "x.npz")
    data = scipy.sparse.load_npz(case.folder / "x.npz")
    assert_rows(loadax.from_sparse(data.tocsr()))


@follows("open the file and select rows: loadax.from_sparse(…).select(rows)")
def view_of_a_backed_file(case: Case) -> None:
    import anndata

    path = case.folder / "x.h5ad"
    anndata_of(MATRIX).write_h5ad(path)
    rows = [9, 3, 20]
    with case.refused(ArgumentError):
        loadax.from_sparse(anndata.read_h5ad(path, backed="r")[rows])
    assert_rows(loadax.from_sparse(str(path)).select(rows), DENSE[rows])


@follows("write a csr_matrix: data.X = data.X.tocsr(), then data.write_h5ad(path)")
def h5ad_of_columns(case: Case) -> None:
    data = anndata_of(MATRIX)
    data.X = scipy.sparse.csc_matrix(MATRIX)
    path = case.folder / "x.h5ad"
    data.write_h5ad(path)
    with case.refused(ArgumentError):
        loadax.from_sparse(path)
    with case.refused(ArgumentError), h5py.File(path) as file:
        loadax.as_dataset(file["X"])
    data.X = data.X.tocsr()
    data.write_h5ad(path)
    assert_rows(loadax.from_sparse(path))


@follows("pack them with loadax.pack_sparse(data), pad them with .pad(lengths), or open them with dense=True")
def rows_that_are_not_stacked(case: Case) -> None:
    data = loadax.from_sparse(MATRIX)
    with case.refused(SourceError):
        _ = loadax.Dataloader(data, 8)[0]
    assert loadax.pack_sparse(data)[0].read([0])["lengths"].sum() == MATRIX.nnz
    columns = DENSE.shape[1]
    assert loadax.Dataloader(data.pad({"indices": columns, "values": columns}), 8)[0]["values"].shape == (8, columns)
    assert loadax.Dataloader(loadax.from_sparse(MATRIX, dense=True), 8)[0]["x"].tolist() == DENSE[:8].tolist()


@follows("pack fewer: pack_sparse(data, rows=…)")
def dense_packs_that_are_too_large(case: Case) -> None:
    wide = scipy.sparse.csr_array(([1.0], [1 << 21], [0, 1, 1]), shape=(2, 1 << 22))
    mesh = jax.make_mesh((1,), ("data",), devices=jax.devices()[:1])
    packs, dense = loadax.pack_sparse(loadax.from_sparse(wide), rows=512)
    with case.refused(ArgumentError):
        _ = loadax.Dataloader(packs, 1, device_map=dense, mesh=mesh)[0]
    packs, dense = loadax.pack_sparse(loadax.from_sparse(wide), rows=2)
    assert loadax.Dataloader(packs, 1, device_map=dense, mesh=mesh)[0]["x"][0, 0, 1 << 21] == 1
