"""Rows of sparse matrices are those of `toarray()`, in every form; what is damaged is never a wrong row."""

import pickle
import warnings
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import scipy.sparse
import zarr
from hypothesis import given, strategies as st

import loadax
from loadax import from_sparse
from loadax.errors import ArgumentError, LeafTypeError, SourceError
from loadax.sources.base import BaseSource
from loadax.sources.sparse.entries import joined
from loadax.testing import check_source
from tests.sources.sparse.matrices import ANNDATA, COLUMNS, FORMS, ROWS, anndata_of, matrix, write_group


@pytest.fixture(autouse=True)
def _quiet_anndata() -> Any:
    """AnnData tells of its next format whenever it writes zarr, and of pandas."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def toarray(examples: list[Any], columns: int) -> Any:
    """Dense rows of sparse examples, entry by entry."""
    dense = np.zeros((len(examples), columns), examples[0]["values"].dtype)
    for row, example in zip(dense, examples, strict=True):
        for column, value in zip(example["indices"], example["values"], strict=True):
            row[column] += value
    return dense


@pytest.mark.parametrize("form", [*FORMS, *ANNDATA])
def test_rows_equal_toarray_in_every_form(form: str, tmp_path: Path) -> None:
    wanted = matrix()
    data = (FORMS | ANNDATA)[form](wanted, tmp_path)
    rows = np.random.default_rng(0).permutation(ROWS)
    ragged = from_sparse(data)
    assert ragged[0]["indices"].dtype == np.int32
    np.testing.assert_array_equal(toarray([ragged[row] for row in rows.tolist()], COLUMNS), wanted.toarray()[rows])
    source = from_sparse(data, dense=True)
    np.testing.assert_array_equal(source.read(rows)["x"], wanted.toarray()[rows])
    np.testing.assert_array_equal(source.read(range(20, 30))["x"], wanted.toarray()[20:30])
    copied = pickle.loads(pickle.dumps(source.source))
    np.testing.assert_array_equal(copied.read(rows)["x"], wanted.toarray()[rows])
    if not isinstance(data, Path):
        assert loadax.as_dataset(data)[5]["values"].tolist() == ragged[5]["values"].tolist()


@given(st.data())
def test_random_matrices_equal_toarray(data: Any) -> None:
    rows, columns = data.draw(st.integers(1, 12)), data.draw(st.integers(1, 9))
    dtype = data.draw(st.sampled_from(["float32", "float64", "int32", "int8", "uint16", "bool"]))
    lengths = data.draw(st.lists(st.integers(0, 6), min_size=rows, max_size=rows))
    total = sum(lengths)
    # unsorted, and with several entries of one column
    indices = data.draw(st.lists(st.integers(0, columns - 1), min_size=total, max_size=total))
    values = np.array(data.draw(st.lists(st.integers(0, 9), min_size=total, max_size=total)), dtype)
    indptr = np.cumsum([0, *lengths], dtype=data.draw(st.sampled_from(["int32", "int64"])))
    given_matrix = scipy.sparse.csr_array((values, np.array(indices, indptr.dtype), indptr), shape=(rows, columns))
    asked = data.draw(st.lists(st.integers(0, rows - 1), min_size=1, max_size=8))
    ragged = from_sparse(given_matrix)
    found = toarray([ragged[row] for row in asked], columns)
    np.testing.assert_array_equal(found, given_matrix.toarray()[asked])
    np.testing.assert_array_equal(from_sparse(given_matrix, dense=True).read(asked)["x"], given_matrix.toarray()[asked])


@pytest.mark.parametrize("form", ["csr_array", "HDF5 group", "zarr group"])
def test_dense_rows_keep_the_contract_of_sources(form: str, tmp_path: Path) -> None:
    check_source(from_sparse(FORMS[form](matrix(), tmp_path), dense=True), rows=12, pickled=False)


def test_layers_and_dense_matrices_of_anndata(tmp_path: Path) -> None:
    wanted = matrix()
    for form in ("AnnData", ".h5ad", ".zarr of AnnData"):
        (tmp_path / form).mkdir()
        data = ANNDATA[form](wanted, tmp_path / form)
        layer = from_sparse(data, "layers/twice", dense=True)
        np.testing.assert_array_equal(layer.read(range(ROWS))["x"], 2 * wanted.toarray())
        with pytest.raises(ArgumentError, match=r"matrix='layers/no' is not in"):
            from_sparse(data, "layers/no")
    dense = anndata_of(wanted)
    dense.X = wanted.toarray()
    dense.write_h5ad(tmp_path / "dense.h5ad")
    for data in (dense, tmp_path / "dense.h5ad"):
        with pytest.raises(ArgumentError, match=r" is dense; pass dense=True"):
            from_sparse(data)
        read = from_sparse(data, obs=["kind"], dense=True)
        np.testing.assert_array_equal(read.read(range(ROWS))["x"], wanted.toarray())
        assert read.source.classes == {"kind": ["b cell", "t cell", "other"]}
    np.testing.assert_array_equal(loadax.as_dataset(dense).read([3, 1])["x"], wanted.toarray()[[3, 1]])


@pytest.mark.parametrize("form", ["AnnData", "backed", ".h5ad", ".zarr of AnnData"])
def test_columns_of_obs_with_names_of_categories(form: str, tmp_path: Path) -> None:
    data = from_sparse(ANNDATA[form](matrix(), tmp_path), obs=["kind", "age", "donor"])
    assert data.source.classes == {"kind": ["b cell", "t cell", "other"]}
    row = data[7]
    assert (row["kind"], row["age"], row["donor"]) == (1, 3.5, 2)
    with pytest.raises(ArgumentError, match=r"obs has no column 'size', but "):
        from_sparse(ANNDATA["AnnData"](matrix(), tmp_path), obs=["size"])
    with pytest.raises(LeafTypeError, match=r"obs\['name'\] is .*not numeric"):
        from_sparse(ANNDATA["AnnData"](matrix(), tmp_path), obs=["name"])


def test_missing_categories_need_a_code(tmp_path: Path) -> None:
    data = anndata_of(matrix())
    data.obs.loc["cell 4", "kind"] = None
    data.write_h5ad(tmp_path / "x.h5ad")
    for given_data in (data, tmp_path / "x.h5ad"):
        with pytest.raises(SourceError, match=r"obs\['kind'\] has no category in 1 row; pass nulls=-1"):
            from_sparse(given_data, obs=["kind"])
        assert from_sparse(given_data, obs=["kind"], nulls=-1)[4]["kind"] == -1


def test_arrays_beside_a_matrix() -> None:
    data = from_sparse(matrix(), obs={"label": np.arange(ROWS), "place": np.ones((ROWS, 2))})
    assert (data[9]["label"], data[9]["place"].tolist()) == (9, [1, 1])
    with pytest.raises(ArgumentError, match=r"obs\['label'\] is int64\[3\], but the csr_array has 60 rows"):
        from_sparse(matrix(), obs={"label": np.arange(3)})
    with pytest.raises(ArgumentError, match=r"obs has the column 'values', a leaf of the matrix; rename it"):
        from_sparse(matrix(), obs={"values": np.arange(ROWS)})
    with pytest.raises(ArgumentError, match=r"obs has no column 'label', but none; or pass a dict of arrays"):
        from_sparse(matrix(), obs=["label"])


class Counted:
    """An array of h5py that counts the ranges that are read."""

    def __init__(self, stored: Any):
        self._rows = stored.rows
        self.reads: list[tuple[int, int]] = []

    def __call__(self, rows: Any) -> Any:
        self.reads.append((int(rows[0]), int(rows[-1]) + 1))
        return self._rows(rows)


def test_runs_of_rows_are_one_read_and_random_rows_are_joined(tmp_path: Path) -> None:
    given_matrix = matrix(rows=400)
    data = from_sparse(FORMS["HDF5 group"](given_matrix, tmp_path))
    flat: Any = data.source._stored[1]  # type: ignore[attr-defined]
    counted = Counted(flat._stored)
    flat._stored.rows = counted
    bounds = given_matrix.indptr
    data.source.read_examples(loadax_visits(range(100, 164)))
    assert counted.reads == [(bounds[100], bounds[164])]
    counted.reads.clear()
    # Rows 5 to 8 are within a chunk of 64 entries, in any order; row 390 is far.
    data.source.read_examples(loadax_visits([8, 390, 5, 7, 5]))
    assert counted.reads == [(bounds[5], bounds[9]), (bounds[390], bounds[391])]


def loadax_visits(rows: Any) -> Any:
    from loadax.protocols import Visits

    rows = np.array(rows)
    return Visits(rows, np.zeros_like(rows))


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(1, 9)), min_size=1, max_size=12), st.integers(0, 7))
def test_joined_ranges_hold_every_range(ranges: list[tuple[int, int]], gap: int) -> None:
    first, lengths = np.array(ranges).T
    begins, ends, places = joined(first, lengths, gap)
    read = np.concatenate([np.arange(begin, end) for begin, end in zip(begins, ends, strict=True)])
    for begin, length, place in zip(first, lengths, places, strict=True):
        assert read[place : place + length].tolist() == list(range(begin, begin + length))
    assert (begins[1:] > ends[:-1] + gap).all()
    asked = np.unique(np.concatenate([np.arange(begin, begin + length) for begin, length in ranges]))
    assert np.diff(asked).max(initial=1) - 1 <= gap or len(begins) > 1


@pytest.mark.parametrize("form", ["HDF5 group", "zarr group"])
def test_chunks_of_the_file_are_decoded_once_by_a_block_shuffle(form: str, tmp_path: Path) -> None:
    given_matrix = matrix(rows=600)
    data = from_sparse(FORMS[form](given_matrix, tmp_path), obs={"row": np.arange(600)})
    starts = data.source.chunks
    assert starts is not None
    bounds = given_matrix.indptr
    marks = range(0, int(bounds[-1]), 64)
    firsts = {next(row for row in range(601) if bounds[row] >= mark) for mark in marks}
    assert np.array(starts).tolist() == sorted(firsts - {600})
    reads = []
    flats: Any = data.source._stored  # type: ignore[attr-defined]
    for flat in flats:
        counted = Counted(flat._stored)
        flat._stored.rows = counted
        reads.append(counted)
    shuffled = data.shuffle(seed=0, block="chunks").pad({"indices": COLUMNS, "values": COLUMNS})
    seen = []
    for batch in loadax.Dataloader(shuffled, 8, num_epochs=1, num_workers=2):
        seen += np.asarray(batch["row"]).tolist()
        dense = np.zeros((8, COLUMNS), np.float32)
        np.add.at(dense, (np.arange(8)[:, None], np.asarray(batch["indices"])), np.asarray(batch["values"]))
        np.testing.assert_array_equal(dense, given_matrix.toarray()[np.asarray(batch["row"])])
    assert sorted(seen) == list(range(600))
    assert seen != sorted(seen)
    for counted in reads:
        assert len(counted.reads) <= len(starts) + 1  # and the first row, for the spec


def test_open_chunks_have_the_rows_of_the_file(tmp_path: Path) -> None:
    given_matrix = matrix(rows=300)
    source: BaseSource = from_sparse(FORMS["HDF5 group"](given_matrix, tmp_path), dense=True).source
    kept = source.cache_chunks(3)
    assert kept is not None
    for seed in range(4):
        rows = np.random.default_rng(seed).integers(0, 300, 40)
        np.testing.assert_array_equal(kept.read(rows)["x"], given_matrix.toarray()[rows])
    assert from_sparse(given_matrix).source.cache_chunks(3) is None


DAMAGE: dict[str, tuple[Any, str]] = {
    "column out of range": (lambda m: m.indices.__setitem__(m.indptr[7], 23), r"row 7 has an entry in column 23, but"),
    "negative column": (lambda m: m.indices.__setitem__(m.indptr[7], -1), r"row 7 has an entry in column -1, but"),
    "falling indptr": (
        lambda m: m.indptr.__setitem__(8, 0),
        r"has an indptr of 61 entries that does not ascend from 0",
    ),
    "indptr beyond": (
        lambda m: m.indptr.__setitem__(-1, 9999),
        r"has an indptr of 61 entries that does not ascend from 0 to at most \d+ in 60 rows; write",
    ),
    "indptr not from 0": (
        lambda m: m.indptr.__setitem__(0, 1),
        r"has an indptr of 61 entries that does not ascend from 0",
    ),
}


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("form", ["csr_array", "HDF5 group", "zarr group"])
def test_damaged_matrices_are_never_wrong_rows(form: str, damage: str, tmp_path: Path) -> None:
    spoil, message = DAMAGE[damage]
    damaged = matrix()
    assert damaged.indptr[8] > damaged.indptr[7]
    spoil(damaged)
    with pytest.raises(SourceError, match=message):
        from_sparse(FORMS[form](damaged, tmp_path))[7]


def test_damaged_groups_are_named(tmp_path: Path) -> None:
    group = zarr.create_group(tmp_path / "x.zarr")
    write_group(group, matrix())
    group.attrs["shape"] = [61, COLUMNS]
    with pytest.raises(SourceError, match=r"has an indptr of 61 entries that does not ascend .* in 61 rows"):
        from_sparse(group)
    del group.attrs["shape"]
    with pytest.raises(SourceError, match=r"lacks \['shape'\]"):
        from_sparse(group)
    group.attrs["shape"] = [60, COLUMNS]
    del group["indices"]
    with pytest.raises(SourceError, match=r"lacks \['indices'\]"):
        from_sparse(group)
    group.attrs["encoding-type"] = "csc_matrix"
    with pytest.raises(ArgumentError, match=r"encoding-type='csc_matrix', which can't be read by rows"):
        loadax.as_dataset(group)
    short = matrix()
    with h5py.File(tmp_path / "x.h5", "w") as file:
        write_group(file.create_group("X"), short)
        del file["X/data"]
        file["X/data"] = short.data[:-1]
        with pytest.raises(SourceError, match=r"has \d+ indices and \d+ values"):
            from_sparse(file)


def test_paths_that_are_not_matrices(tmp_path: Path) -> None:
    (tmp_path / "x.h5ad").write_bytes(b"not HDF5")
    (tmp_path / "x.npz").write_bytes(b"not a zip file")
    (tmp_path / "folder").mkdir()
    scipy.sparse.save_npz(tmp_path / "csc.npz", scipy.sparse.csc_array(matrix()))
    np.savez(tmp_path / "other.npz", x=np.arange(3))
    for name, kind, message in (
        ("x.h5ad", SourceError, "can't be opened as a .npz file, an HDF5"),
        ("x.npz", SourceError, "can't be opened as a .npz file, an HDF5"),
        ("other.npz", SourceError, "can't be opened as a .npz file, an HDF5"),
        (
            "csc.npz",
            ArgumentError,
            r"is a csc_array, which can.t be read by rows; convert it: loadax.from_sparse\(data.tocsr",
        ),
        ("folder", SourceError, "can't be opened as a .npz file, an HDF5"),
        ("none.h5ad", SourceError, r"can't be opened .*No such file.*; correct the path"),
    ):
        with pytest.raises(kind, match=message):
            from_sparse(tmp_path / name)
    with pytest.raises(ArgumentError, match=r"is a URL; copy the file"):
        from_sparse("s3://bucket/x.h5ad")
    (tmp_path / "x.txt").write_text("x")
    with pytest.raises(SourceError, match=r"can't be opened as a .npz file, an HDF5"):
        from_sparse(tmp_path / "x.txt")
    with pytest.raises(ArgumentError, match=r"is a path; open it: loadax.from_sparse\("):
        loadax.as_dataset(str(tmp_path / "x.h5ad"))


def test_other_forms_name_the_call(tmp_path: Path) -> None:
    wanted = matrix()
    for given_data in (wanted.tocsc(), wanted.tocoo(), scipy.sparse.csc_matrix(wanted)):
        for door in (loadax.as_dataset, from_sparse):
            with pytest.raises(ArgumentError, match=r"loadax.from_sparse\(data.tocsr\(\)\)$") as caught:
                door(given_data)
            made = eval(str(caught.value).rpartition(": ")[2], {"loadax": loadax, "data": given_data})
            assert toarray([made[row] for row in range(ROWS)], COLUMNS).tolist() == wanted.toarray().tolist()
    with pytest.raises(ArgumentError, match=r"is a dict, not a matrix|is a list, not a matrix"):
        from_sparse([1, 2])
    view = ANNDATA["backed"](wanted, tmp_path)[5:20]
    with pytest.raises(ArgumentError, match=r"a view of a backed AnnData.*\.select\(rows\)"):
        from_sparse(view)


def test_rows_of_different_lengths_are_not_stacked() -> None:
    with pytest.raises(SourceError, match=r"have different numbers of entries and can't be stacked; pack them with"):
        from_sparse(matrix()).read(range(8))
    equal = scipy.sparse.csr_array(np.eye(4, dtype=np.float32))
    assert from_sparse(equal).read([2, 1])["indices"].tolist() == [[2], [1]]


def test_entries_of_files_are_not_held_in_memory(tmp_path: Path) -> None:
    source: Any = from_sparse(FORMS["HDF5 group"](matrix(), tmp_path)).source
    assert sum(array.nbytes for array in source.held(1 << 30)) == 8 * ROWS
    assert [location.file for location in source.locate(3)] == [str(tmp_path / "x.h5")]
