"""TableLeaves: makes columns of the tables of one schema."""

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, final

import numpy as np
import pyarrow as pa

from loadax.core.arguments import entries, shown
from loadax.core.tree import flatten
from loadax.errors import ArgumentError, SourceError
from loadax.protocols import Array, Tree
from loadax.sources.base import Attributes
from loadax.sources.tables.arrow.call import Call
from loadax.sources.tables.arrow.column_tree import ColumnTree
from loadax.sources.tables.arrow.leaves import TableLeaf, is_category, members_of
from loadax.sources.tables.arrow.nulls import Nulls


@final
class TableLeaves:
    """The leaves of a table, with what its nulls and texts become. Its text is `label: class label of cat, dog`.

    Args:
        schema: Arrow schema of the columns to read.
        call: The call that opens the table, for messages.
        nulls: What nulls become; see `Nulls`.
        classes: Names of categories by column that the user states; see `stated_classes`.
        tables: Function of names of columns: tables with some of them, whose dictionaries name the other categories.

    Raises:
        ArgumentError: When categories are stated for something else, or `nulls` names another column.
        SourceError: When there is no column, or two leaves have one name.
        LeafTypeError: When a type has no array; names the column, and says what to write.
    """

    def __init__(
        self,
        schema: Any,
        call: Call,
        nulls: Any,
        classes: Any,
        tables: Callable[[Sequence[str]], Iterable[Any]],
    ):
        if not len(schema):
            raise SourceError(
                "the table has no columns; pass one with at least one column"
            )
        stated = stated_classes(classes)
        self._schema = schema
        self.leaves = list[TableLeaf]()
        tree = members_of(list(schema), (), call, stated)
        self.leaves, self._structure = flatten(
            tree, is_leaf=lambda node: isinstance(node, TableLeaf)
        )
        columns: dict[str, str] = {}
        for leaf in self.leaves:
            # Nulls and categories are found by path.
            if leaf.path in columns:
                both = " and ".join(
                    map(repr, dict.fromkeys((columns[leaf.path], leaf.names[0])))
                )
                advice = f"give each its own name{call.without(leaf.names[0])}"
                raise SourceError(
                    f"two leaves of {both} are called {leaf.path!r}; {advice}"
                )
            columns[leaf.path] = leaf.names[0]
        for path in stated:
            if path not in columns:
                known = list(columns)
                raise ArgumentError(
                    f"classes: there is no column {path!r}; there are {known}",
                    argument="classes",
                )
        self.nulls = Nulls(nulls, columns, call)
        self._find_categories(tables)

    def __str__(self) -> str:
        return ", ".join(f"{leaf.path}: {_text(leaf)}" for leaf in self.leaves)

    def keep(self, chosen: Tree) -> "TableLeaves":
        """Some of the leaves, in place of their indices in a tree."""
        other = copy.copy(self)
        (indices, structure) = flatten(chosen)
        vars(other).pop("empty", None)
        vars(other).update(
            leaves=[self.leaves[index] for index in indices], _structure=structure
        )
        return other

    @cached_property
    def empty(self) -> ColumnTree:
        """The columns without rows, which tell the spec."""
        # `empty_table` imports pandas
        return self.columns(pa.Table.from_batches([], self._schema))

    @property
    def attributes(self) -> Attributes:
        """The names of the categories of leaves, and the Arrow types of times, whose ints count its unit."""
        classes = {
            leaf.path: {"classes": list(leaf.classes)}
            for leaf in self.leaves
            if leaf.classes is not None
        }
        return {
            **classes,
            **{
                leaf.path: {"units": str(leaf.stored)}
                for leaf in self.leaves
                if leaf.is_temporal
            },
        }

    @property
    def stated_names(self) -> list[Array]:
        """Names of categories that the user states, which decide the numbers of rows as the files do."""
        return [np.array(leaf.classes) for leaf in self.leaves if leaf.stated]

    def columns(
        self,
        table: Any,
        where: Callable[[int], str] | None = None,
        leaves: Sequence[TableLeaf] | None = None,
    ) -> ColumnTree:
        """The columns of a table.

        Args:
            table: A table with the columns.
            where: The name of a row for messages; None: its number.
            leaves: Leaves to make alone, in a list; None: all, in their tree.

        Raises:
            SourceError: When there are nulls, and no value for them; names every such column and its first row.
        """
        batches = [batch for batch in table.to_batches() if len(batch)]
        first = 0
        chosen = self.leaves if leaves is None else leaves
        arrays: dict[str, list[Any]] = {leaf.path: [] for leaf in chosen}
        for batch in batches:
            for leaf, array in zip(
                chosen,
                arrays_of(chosen, batch, where or "row {}".format, first),
                strict=True,
            ):
                arrays[leaf.path].append(array)
            first += len(batch)
        filled = self.nulls.fill(arrays, where)
        columns = [leaf.column(filled[leaf.path]) for leaf in chosen]
        return ColumnTree(
            self._structure.build(columns) if leaves is None else columns,
            list(map(len, batches)),
        )

    def _find_categories(
        self, tables: Callable[[Sequence[str]], Iterable[Any]]
    ) -> None:
        """Finds the names of categories that are not stated, in the order in which record batches have them."""
        unnamed = [
            leaf
            for leaf in self.leaves
            if is_category(leaf.stored) and not leaf.stated
        ]
        names: dict[str, dict[str, None]] = {leaf.path: {} for leaf in unnamed}
        for table in (
            tables(list(dict.fromkeys(leaf.names[0] for leaf in unnamed)))
            if unnamed
            else ()
        ):
            for leaf in unnamed:
                for chunk in (
                    leaf.array(table).chunks
                    if leaf.names[0] in table.column_names
                    else ()
                ):
                    if is_category(chunk.type):  # and not of nothing but nulls
                        names[leaf.path].update(
                            dict.fromkeys(chunk.dictionary.drop_null().to_pylist())
                        )
        self.leaves = [
            replace(leaf, classes=tuple(names[leaf.path]))
            if leaf.path in names
            else leaf
            for leaf in self.leaves
        ]


def stated_classes(given: Any) -> dict[str, tuple[str, ...]]:
    """The names of categories by column that the user states: `classes=`.

    Raises:
        ArgumentError: When they are no dict of lists of different texts.
    """
    if given is None:
        return {}
    example = (
        "pass a dict of the names by column, such as classes={'label': ['cat', "
        "'dog']}"
    )
    if not isinstance(given, Mapping):
        raise ArgumentError(f"classes={shown(given)}: {example}")
    classes = {}
    for path, names in given.items():
        listed = classes[path] = tuple(
            entries(f"classes[{path!r}]", names, "names of categories")
        )
        if (
            not listed
            or len(set(listed)) < len(listed)
            or not all(isinstance(name, str) for name in listed)
        ):
            raise ArgumentError(
                f"classes[{path!r}]={shown(names)} are no different texts; {example}"
            )
    return classes


def arrays_of(
    leaves: Sequence[TableLeaf],
    batch: Any,
    where: Callable[[int], str] = "row {}".format,
    first: int = 0,
) -> Iterator[Any]:
    """Yields the array of each leaf of a record batch, as its `type`, with its nulls and those of structs above it.

    Args:
        leaves: The leaves.
        batch: A record batch.
        where: The name of a row for messages.
        first: The batch's first row.

    Raises:
        SourceError: When there is a category that the user has not stated; names it and its row.
    """
    for leaf in leaves:
        array = leaf.array(batch)
        plain = leaf.plain(array)
        if leaf.stated and plain.null_count > array.null_count:
            for row in np.flatnonzero(
                plain.is_null().to_numpy(zero_copy_only=False)
            ).tolist():
                if (name := array[row].as_py()) is not None:
                    raise SourceError(
                        f"{where(first + row)}: column {leaf.path!r} has the "
                        f"category {name!r}, which is not in classes[{leaf.path!r}]; "
                        "add it there, or correct that row"
                    )
        yield plain


def _text(leaf: TableLeaf) -> str:
    if leaf.classes is not None:
        return (
            "class label of "
            f"{', '.join(leaf.classes[:5])}{', …' if len(leaf.classes) > 5 else ''}"
        )
    if leaf.is_temporal:
        return f"{leaf.stored} as {leaf.type}"
    return str(leaf.stored)
