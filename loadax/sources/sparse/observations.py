"""Observations: the columns of `obs` of AnnData, of which categories become codes."""

from collections.abc import Sequence
from typing import Any, final

import numpy as np

from loadax.core.formatting import some
from loadax.errors import ArgumentError, LeafTypeError, SourceError
from loadax.protocols import Array
from loadax.sources.columns import column_array
from loadax.sources.library import comes_from


@final
class Observations:
    """A table with a row for each row of a matrix: a data frame, or a group of AnnData's.

    Args:
        table: The table; None: there is none.
        name: Name of the matrix, for messages.
        nulls: Code of missing categories; None: they are an error.
    """

    def __init__(self, table: Any, name: str, nulls: int | None):
        self._table = table
        self._name = name
        self._nulls = nulls
        # Names of the categories by column, as `Traits.attributes`.
        self.attributes: dict[str, dict[str, Any]] = {}

    def read(self, names: Sequence[str]) -> dict[str, Array]:
        """The columns of these names, by name.

        Raises:
            ArgumentError: When one is not there.
            SourceError: When one has nulls.
            LeafTypeError: When one is not numeric.
        """
        if names and self._table is None:
            raise ArgumentError(
                f"obs={[*names]!r}, but {self._name} has no table obs; pass a dict of "
                "arrays of one value a row"
            )
        columns = {}
        for name in names:
            if not isinstance(name, str) or name not in self._table:
                known = some(map(repr, self._table), 10)
                raise ArgumentError(f"obs has no column {name!r}; it has {known}")
            columns[name] = self._column(name, self._table[name])
        return columns

    def _column(self, name: str, column: Any) -> Array:
        if comes_from(column, "pandas", "Series"):
            if hasattr(column, "cat"):
                return self._codes(name, column.cat.codes, column.cat.categories)
            return column_array(column, f"obs[{name!r}]")
        kind = column.attrs.get("encoding-type")
        if kind == "categorical":
            categories = column["categories"]
            if hasattr(categories, "asstr") and categories.dtype.kind == "O":
                categories = categories.asstr()
            return self._codes(name, column["codes"][...], categories[...])
        if kind in ("nullable-integer", "nullable-boolean"):
            missing = int(np.count_nonzero(column["mask"][...]))
            if missing:
                raise SourceError(
                    f"obs[{name!r}] has {missing} nulls, which an array can't hold; "
                    "fill them and write the file again"
                )
            column = column["values"]
        dtype = getattr(column, "dtype", np.dtype(object))
        if getattr(dtype, "kind", "O") not in "biuf":
            raise LeafTypeError(
                f"obs[{name!r}] is {kind or dtype}, which is not numeric; leave it "
                "out, or make it a category: "
                f"data.obs[{name!r}] = data.obs[{name!r}].astype('category')"
            )
        return np.asarray(column[...])

    def _codes(self, name: str, codes: Any, categories: Any) -> Array:
        codes = np.array(codes)
        missing = codes < 0
        if missing.any():
            if self._nulls is None:
                raise SourceError(
                    f"obs[{name!r}] has no category in {int(missing.sum())} rows; "
                    "pass nulls=-1, or another code for these"
                )
            codes = codes.astype(np.int32)
            codes[missing] = self._nulls
        self.attributes[name] = {"classes": [str(each) for each in categories]}
        return codes
