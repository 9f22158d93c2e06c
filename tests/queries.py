"""Hands queries of DuckDB to loadax, and follows the advice."""

import duckdb
import numpy as np

import loadax
from loadax.errors import ArgumentError, SourceError
from tests.sources.advice import follow


def refused(data: duckdb.DuckDBPyRelation) -> ArgumentError:
    """The error for a query."""
    try:
        loadax.as_dataset(data)
    except ArgumentError as error:
        assert "make arrays of it: loadax.as_dataset" in str(error), error
        return error
    raise AssertionError("a query was taken")


if __name__ == "__main__":
    with duckdb.connect() as connection:
        query = connection.sql("select range as x from range(4) order by x")
        (dataset,) = follow(refused(query), data=query)
        print([int(np.asarray(row["x"])) for row in dataset])  # noqa: T201
        nulls = connection.sql("select null::int as x")
        try:
            follow(refused(nulls), data=nulls)
        except SourceError as error:
            assert "leaf ['x'] has 1 masked entries" in str(error), error
        else:
            raise AssertionError("a null was taken")
