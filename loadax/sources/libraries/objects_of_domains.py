"""Opens objects of domains' libraries: fields of arrays, tables of astropy, arrays of awkward, datasets of Lance."""

from typing import Any

import numpy as np

from loadax.core.formatting import count_text
from loadax.errors import SourceError
from loadax.protocols import Source, Tree
from loadax.sources.arrays import ArraySource
from loadax.sources.library import comes_from, require


def open_converted(data: Any) -> Source | None:
    """The source of an object that is not what it looks like to others; None if it is not known.

    Raises:
        SourceError: When an entry is masked; names the column.
    """
    if comes_from(data, "astropy.table", "Table"):
        return ArraySource(_columns_of_astropy(data))
    if comes_from(data, "awkward", "Array"):
        return _open_awkward(data)
    if comes_from(data, "lance", "LanceDataset"):
        require("a LanceDataset", {"pyarrow": "pyarrow"}, "parquet")
        from loadax.sources.tables.arrow.taken import TakenSource

        return TakenSource(data)
    return None


def fields_of(data: Any) -> Tree:
    """An array, or the fields of one that has some, by name, as `FITS_rec` and `np.genfromtxt` have them."""
    names = data.dtype.names
    if not isinstance(data, np.ndarray) or names is None:
        return data
    # masked ones stay so: masked entries are refused where the leaf is opened
    kind = np.ma.asarray if isinstance(data, np.ma.MaskedArray) else np.asarray
    return {name: fields_of(kind(data[name])) for name in names}


def _columns_of_astropy(data: Any) -> Tree:
    for name in data.colnames:
        masked = np.sum(getattr(data[name], "mask", 0))
        if masked:
            raise SourceError(
                f"column {name!r} of the Table has "
                f"{count_text(masked, 'masked entry', 'masked entries')}; fill them: "
                "loadax.as_dataset(data.filled(0))"
            )
    return {name: np.asarray(data[name]) for name in data.colnames}


def _open_awkward(data: Any) -> Source:
    """Rows may be lists of any length, as in a table of Arrow."""
    require("an Array of awkward", {"pyarrow": "pyarrow"}, "parquet")
    import awkward
    import pyarrow as pa

    from loadax.sources.tables.arrow.table import open_arrow

    if awkward.fields(data):
        return open_arrow(awkward.to_arrow_table(data, extensionarray=False))
    values = awkward.to_arrow(data, extensionarray=False)
    return open_arrow(pa.table({"values": values}))
