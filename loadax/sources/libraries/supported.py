"""Adapts objects of other libraries: frames as columns, open stores by rows, Grain datasets with their own epochs."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from loadax.errors import SourceError
from loadax.protocols import Source
from loadax.sources.arrays import ArraySource
from loadax.sources.frame_columns import is_column, is_frame, plain_columns
from loadax.sources.libraries.array_tree import open_tree
from loadax.sources.libraries.objects_of_domains import open_converted
from loadax.sources.libraries.unsupported import refuse_known
from loadax.sources.library import comes_from, is_stored, require
from loadax.sources.library_arrays import is_array

_TABLES = {
    "pyarrow": ("RecordBatchReader", "StructArray"),
    "duckdb": ("DuckDBPyRelation",),
}


def open_supported(data: Any) -> Source | None:
    """The source of something whose class says what its rows are; None when it doesn't.

    Raises:
        ArgumentError: when it has no rows that can be read at any place; says what to write.
        SourceError: when it can't be read, such as for nulls; names the column or leaf, and says what to write.
    """
    converted = open_converted(data)
    if converted is not None:
        return converted
    refuse_known(data)
    if comes_from(data, "datasets", "Dataset") and data.format["type"] != "custom":
        from loadax.sources.tables.huggingface.open import open_huggingface

        return open_huggingface(data)
    if is_frame(data):
        arrays = plain_columns(data)
        return _open_arrow(data) if arrays is None else ArraySource(arrays)
    if comes_from(data, "zarr", "Group"):
        arrays = dict(sorted(data.arrays()))
        return open_tree(
            _alike(
                arrays,
                {name: array.shape[:1] for name, array in arrays.items()},
                "zarr group",
            )
        )
    if comes_from(data, "xarray", "Dataset"):
        return open_tree(
            _alike(
                dict(data),
                {name: array.dims[:1] for name, array in data.items()},
                "xarray.Dataset",
            )
        )
    if any(comes_from(data, module, *names) for module, names in _TABLES.items()):
        return _open_arrow(data)
    is_known = (
        is_stored(data)
        or is_column(data)
        or is_array(data)
        or comes_from(data, "h5py", "Group")
    )
    if is_known:
        return open_tree(data)
    return None


def _open_arrow(data: Any) -> Source:
    require(f"a {type(data).__name__}", {"pyarrow": "pyarrow"}, "parquet")
    from loadax.sources.tables.arrow.table import open_arrow

    return open_arrow(data)


def _alike(
    members: Mapping[Any, Any], firsts: Mapping[Any, tuple[Any, ...]], what: str
) -> dict[Any, Any]:
    """The members, when all have the same first dimension.

    Raises:
        SourceError: when they don't; says what to write to have most of them.
    """
    if not members:
        raise SourceError(f"the {what} has no arrays; pass one that has")
    if len(set(firsts.values())) > 1 or () in firsts.values():
        shown = ", ".join(
            f"{name}: {first[0] if first else 'a single value'}"
            for name, first in firsts.items()
        )
        common = Counter(first for first in firsts.values() if first).most_common(1)
        names = [
            name for name, first in firsts.items() if common and first == common[0][0]
        ]
        raise SourceError(
            f"the arrays of the {what} have different first dimensions ({shown}), "
            "and a row is an entry of each; hand over those that belong together: "
            f"loadax.as_dataset({{name: data[name] for name in {names!r}}})"
        )
    return dict(members)
