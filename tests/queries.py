"""Hands queries of DuckDB to loadax, and follows the advice."""

import duckdb
import numpy as np
import pytest

import loadax
from loadax.errors import ArgumentError, SourceError
from tests.sources.advice import follow


def refused(data: duckdb.DuckDBPyRelation) -> ArgumentError:
    """The error for a query."""
    with pytest.raises(ArgumentError, match=r"make arrays of it: loadax\.as_dataset") as caught:
        loadax.as_dataset(data)
    return caught.value


def main() -> None:
    """One query that can be read and one with a null."""
    with duckdb.connect() as connection:
        query = connection.sql("select range as x from range(4) order by x")
        (dataset,) = follow(refused(query), data=query)
        print([int(np.asarray(row["x"])) for row in dataset])  # noqa: T201
        nulls = connection.sql("select null::int as x")
        with pytest.raises(SourceError, match=r"leaf \['x'\] has 1 masked entries"):
            follow(refused(nulls), data=nulls)


if __name__ == "__main__":
    main()
