"""Refuses objects without random access, each with the line that makes a dataset of it."""

import os
from collections.abc import Mapping
from typing import Any

from loadax.core.formatting import some, type_text
from loadax.errors import ArgumentError
from loadax.sources.frame_columns import is_column, is_frame
from loadax.sources.libraries.grain_map import is_grain, refuse_grain
from loadax.sources.libraries.sparse_matrices import is_sparse
from loadax.sources.libraries.streams import recognise_stream
from loadax.sources.library import comes_from, is_stored

_ATOMS = (
    "loadax.from_source([{'numbers': atoms.numbers, 'positions': atoms.positions} for "
    "atoms in "
)
_EPISODES = (
    "[{'observations': episode.observations, 'actions': episode.actions} for "
    "episode in data.iterate_episodes()]"
)
_SPARSE = "loadax.from_sparse(data.tocsr())"
_BATCHES = "*(data[i] for i in range(len(data)))"
# Packages of Keras, and names of the class there.
_KERAS = {
    "keras": ("PyDataset",),
    "tf_keras": ("Sequence",),
    "tensorflow": ("PyDataset", "Sequence"),
}

_BY_CLASS = (
    ("polars", "LazyFrame", "loadax.as_dataset(data.collect())"),
    ("pyarrow.dataset", "Dataset", "loadax.from_arrow(data.to_table())"),
    ("pyarrow.parquet", "ParquetFile", "loadax.from_arrow(data.read())"),
    ("scipy.sparse", "spmatrix", _SPARSE),
    ("scipy.sparse", "sparray", _SPARSE),
    ("anndata.abc", "CSCDataset", "loadax.from_sparse(data.to_memory().tocsr())"),
    ("xbatcher", "BatchGenerator", "loadax.as_dataset(data.ds)"),
    ("netCDF4", "Dataset", "loadax.as_dataset(xarray.open_dataset(data.filepath()))"),
    ("deltalake", "DeltaTable", "loadax.from_parquet(data.file_uris())"),
    (
        "uproot.behaviors.TTree",
        "TTree",
        "loadax.from_arrays(data.arrays(library='np'))",
    ),
    (
        "uproot.behaviors.RNTuple",
        "RNTuple",
        "loadax.from_arrays(data.arrays(library='np'))",
    ),
    (
        "uproot.behaviors.RNTuple",
        "HasFields",
        "loadax.from_arrays(data.array(library='np'))",
    ),
    (
        "uproot.behaviors.TBranch",
        "TBranch",
        "loadax.from_arrays(data.array(library='np'))",
    ),
    ("mne.io", "BaseRaw", "loadax.from_arrays(data.get_data().T)"),
    ("mne", "BaseEpochs", "loadax.from_arrays(data.get_data())"),
    ("jraph", "GraphsTuple", "loadax.from_source(jraph.unbatch(data))"),
    ("minari", "MinariDataset", f"loadax.from_source({_EPISODES})"),
    ("ase", "Atoms", f"{_ATOMS}[data]])"),
)


def refuse_known(data: Any) -> None:
    """Refuses paths, and objects of libraries whose rows are not what `[row]` gives.

    Raises:
        ArgumentError: says what to write.
    """
    if isinstance(data, str | os.PathLike):
        from loadax.sources.formats import FORMATS, find_format

        path = os.fspath(data)
        found = find_format(path)
        line = None
        if found is not None:
            line = found.call(path)
        elif path.endswith((".h5ad", ".npz")):
            line = f"loadax.from_sparse({path!r})"
        others = (
            f"loadax.{', '.join(FORMATS)}, or what another library makes of it: "
            "loadax.as_dataset(…)"
        )
        raise ArgumentError(
            f"data={data!r} is a path; open it: {others if line is None else line}"
        )
    refuse_grain(data)
    if any(
        base.__name__ in _KERAS.get(str(base.__module__).partition(".")[0], ())
        for base in type(data).__mro__
    ):
        raise ArgumentError(
            f"the data is {type_text(data)} of Keras, each entry of which is a "
            "batch, not a row; hand over what it makes batches of, or take them "
            "apart in memory: loadax.from_arrays(jax.tree.map(lambda *leaves: "
            f"np.concatenate(leaves), {_BATCHES}))"
        )
    for module, name, line in _BY_CLASS:
        if comes_from(data, module, name) and not is_sparse(data):
            raise ArgumentError(
                f"the data is {type_text(data)}, which can't be read by rows; make "
                f"arrays of it: {line}"
            )
    if isinstance(data, list) and data and comes_from(data[0], "ase", "Atoms"):
        raise ArgumentError(
            "the data is a list of Atoms, which are no arrays; make arrays of each: "
            f"{_ATOMS}data])"
        )
    if isinstance(data, Mapping) and data and all(map(_is_dataset, data.values())):
        raise ArgumentError(
            f"the data is {type_text(data)} of {some(map(repr, data), 5)}, each a "
            "dataset of its own; hand over one of them: "
            f"loadax.as_dataset(data[{next(iter(data))!r}])"
        )


def refuse_unreadable(data: Any) -> None:
    """Refuses what has no rows: streams, and frames of libraries that are not known.

    Raises:
        ArgumentError: says what to write.
    """
    if hasattr(data, "__arrow_c_stream__"):
        raise ArgumentError(
            f"the data is {type_text(data)} of columns; open it as a table: "
            "loadax.from_arrow(data)"
        )
    readable = hasattr(data, "__len__") and hasattr(data, "__getitem__")
    # Those of torch have a __getitem__ that raises, and may have a length.
    if readable and all(
        each.__name__ != "IterableDataset" for each in type(data).__mro__
    ):
        return
    if hasattr(data, "as_numpy_iterator"):
        line = "loadax.from_source(list(data.as_numpy_iterator()))"
    elif all(
        hasattr(getattr(data, "dataset", None), each)
        for each in ("__len__", "__getitem__")
    ):
        line = (
            "loadax.from_source(data.dataset), which the Dataloader shuffles and "
            "batches"
        )
    elif recognise_stream(getattr(data, "dataset", None)) is not None:
        line = (
            "loadax.as_dataset(data.dataset), a stream, which the Dataloader batches"
        )
    elif hasattr(data, "__iter__"):
        line = (
            "loadax.from_source(list(data)), which holds all of it in memory, a "
            "function that yields the rows, which is read as a stream (see "
            "loadax.from_stream)"
        )
    else:
        return
    raise ArgumentError(
        f"the data is {type_text(data)}, which can only be iterated over, so it "
        f"can't be read at any row; hand over what can be: {line}, or an object with "
        "__len__ and __getitem__"
    )


def refuse_mapping(data: Any) -> None:
    """Refuses a mapping as rows: its entries are columns.

    Raises:
        ArgumentError: says what to write.
    """
    if isinstance(data, Mapping) and set(data) != set(range(len(data))):
        raise ArgumentError(
            f"the data is {type_text(data)} with the keys "
            f"{some(map(repr, data), 5)}, so its entries are no rows; of arrays, one "
            "row an entry of each: loadax.from_arrays(data)"
        )


def _is_dataset(value: Any) -> bool:
    """Whether a value of a mapping has rows and is no column."""
    if is_frame(value) or is_grain(value):
        return True
    if (
        is_stored(value)
        or is_column(value)
        or isinstance(value, list | tuple | str | bytes | Mapping)
    ):
        return False
    if (
        hasattr(value, "__array__")
        or hasattr(value, "dtype")
        or comes_from(value, "zarr", "Group")
    ):
        return False
    streams = any(each.__name__ == "IterableDataset" for each in type(value).__mro__)
    return streams or (
        hasattr(value, "__len__")
        and hasattr(value, "__getitem__")
        and not comes_from(value, "datasets", "Column")
    )
