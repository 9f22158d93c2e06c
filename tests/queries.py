"""Hands queries of DuckDB to loadax, and follows the advice."""

import duckdb
import numpy as np
import pytest

import loadax
from loadax.errors import ArgumentError, SourceError
from tests.sources.advice import follow


def main() -> None:
    """A query that can be read, one with a null, and a connection."""
    with duckdb.connect() as connection:
        query = connection.sql("select range as x from range(4) order by x")
        print([int(np.asarray(row["x"])) for row in loadax.as_dataset(query)])  # noqa: T201
        nulls = connection.sql("select null::int as x, 1 as y")
        with pytest.raises(SourceError, match=r"column 'x' has a null in row 0") as caught:
            loadax.as_dataset(nulls)
        filled, left_out = follow(caught.value, data=nulls)
        assert (filled[0], left_out[0]) == ({"x": -1, "y": 1}, {"y": 1})
        with pytest.raises(ArgumentError, match=r"the data is a connection of DuckDB; pass a query"):
            loadax.from_arrow(connection)


if __name__ == "__main__":
    main()
