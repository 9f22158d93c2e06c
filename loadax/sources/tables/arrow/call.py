"""Call: the call that opens a table, for the advice of messages; and the check of its `columns`."""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from loadax.core.arguments import entries
from loadax.errors import ArgumentError, LoadaxError, SourceError


class Call(NamedTuple):
    """The call that opens a table.

    Args:
        function: Name of the function of loadax.
        argument: Name of the variable with the data, in advice.
        table: Code that makes a `pyarrow.Table` of that variable; None: there is none that is short.
        columns: Names of the columns that are read.
        has_dtypes: Whether the function has the argument `dtypes`.
    """

    function: str
    argument: str
    table: str | None
    columns: tuple[str, ...] = ()
    has_dtypes: bool = False

    def code(self, **arguments: Any) -> str:
        """The call with other arguments, as code."""
        shown = "".join(f", {name}={value!r}" for name, value in arguments.items())
        return f"loadax.{self.function}({self.argument}{shown})"

    def without(self, *columns: str) -> str:
        """Advice to leave columns out, as the end of a sentence; empty if none is left."""
        others = [name for name in self.columns if name not in columns]
        if len(columns) == 1:
            what = "the column"
        else:
            what = "the columns"
        if others:
            return f", or leave {what} out: {self.code(columns=others)}"
        return ""

    def cast(self, column: str) -> str:
        """Code that opens the table with a column cast to float64."""
        index = self.columns.index(column)
        chosen = f"{self.table}.select({list(self.columns)!r})"
        return (
            f"loadax.from_arrow({chosen}.set_column({index}, {column!r}, "
            f"{self.table}[{column!r}].cast('float64')))"
        )


def column_names(
    columns: Sequence[str] | str | None, known: Sequence[str]
) -> list[str]:
    """Names of the columns to read; None: all that are known.

    Raises:
        ArgumentError: When there is no such column, or one is named twice, or none is.
    """
    if columns is None:
        return list(known)
    if isinstance(columns, str):
        names = [columns]
    else:
        names = entries("columns", columns, "names of columns")
    existing = set(known)
    for name in names:
        if not isinstance(name, str) or name not in existing:
            raise ArgumentError(
                f"columns={columns!r}: there is no column {name!r}; there are "
                f"{list(known)}"
            )
    if len(set(names)) < len(names):
        raise ArgumentError(
            f"columns={columns!r} names a column twice; pass each name once"
        )
    if not names:
        raise ArgumentError(
            f"columns={columns!r} names none; there are {list(known)}"
        )
    return names


@contextmanager
def naming_file(location: str) -> Iterator[None]:
    """Adds a note with the first of the files to errors about columns."""
    try:
        yield
    except LoadaxError as error:
        error.add_note(f"loadax: the columns are those of {location}")
        raise


def refuse_repeated(names: Sequence[str], within: str = "") -> None:
    """Refuses columns with the same name, of the table, file or struct that is called `within`.

    Raises:
        SourceError: When two have one name; says how many.
    """
    name, count = next(iter(Counter(names).most_common(1)), ("", 0))
    if count > 1:
        if within:
            of = f" of {within!r}"
        else:
            of = ""
        raise SourceError(
            f"several columns{of} are called {name!r}; give each its own name"
        )
