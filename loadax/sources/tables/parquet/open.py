"""Opens Parquet files: expands paths, checks schemas, and refuses nulls before the first read.

Hive partitions are columns in the names of folders, such as `year=2026/month=1/part-0.parquet`.
"""

import os
import re
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import takewhile
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pyarrow as pa

from loadax.core.arguments import entries, integer
from loadax.errors import SourceError
from loadax.files.files import files_with_cache
from loadax.files.paths import is_remote, local_path
from loadax.sources.expand import expand
from loadax.sources.tables.arrow.call import (
    Call,
    column_names,
    naming_file,
    refuse_repeated,
)
from loadax.sources.tables.arrow.nulls import Found, first_null
from loadax.sources.tables.arrow.table_leaves import TableLeaves, arrays_of
from loadax.sources.tables.arrow.unify import unified_schema
from loadax.sources.tables.parquet.format import FORMAT
from loadax.sources.tables.parquet.parquet_files import Names, ParquetFiles
from loadax.sources.tables.parquet.row_groups import RowGroups
from loadax.sources.tables.parquet.source import ParquetSource
from loadax.sources.tables.parquet.table_formats import refuse_tables

if TYPE_CHECKING:
    from loadax.files.metadata import Metadata

_NAMED = 100  # files in a message
_NULL = "__HIVE_DEFAULT_PARTITION__"  # in the name of a folder


def open_parquet(
    paths: Any,
    columns: Any,
    nulls: Any,
    classes: Any,
    memory_bytes: int,
    cache: Any,
    cache_bytes: int,
    metadata: "Metadata | None" = None,
) -> ParquetSource:
    """Opens Parquet files; see `loadax.from_parquet`.

    Raises:
        ArgumentError: When an argument is invalid.
        SourceError: When a file is missing, damaged or of another schema, or a column has nulls; names the file.
        LeafTypeError: When a column has a type without an array.
    """
    memory_bytes = integer("memory_bytes", memory_bytes, 0)
    files = files_with_cache(cache, cache_bytes, metadata)
    try:
        locations = expand(paths, FORMAT, files)
    except SourceError:
        refuse_tables(paths, (), files)
        raise
    refuse_tables(paths, locations, files)
    listed = (
        columns
        if columns is None or isinstance(columns, str)
        else entries("columns", columns, "names of columns")
    )
    # The names are checked once those of the files are known.
    if listed is None:
        wanted = None
    else:
        wanted = {*map(str, [listed] if isinstance(listed, str) else listed)}
    parquet = ParquetFiles(
        locations, files, partition_columns(paths, locations), wanted
    )
    first, schema = next(parquet.schemas())
    names = column_names(listed, schema.names)
    if len(locations) <= _NAMED:
        table = f"pyarrow.parquet.read_table({locations!r})"
    else:
        table = None
    call = Call("from_parquet", "paths", table, tuple(names))
    schema = unified_schema(
        parquet.schemas(), names, columns is not None, "write one of them again"
    )
    with naming_file(first):
        refuse_repeated(schema.names)
        leaves = TableLeaves(schema, call, nulls, classes, partial(_tables, parquet))
        groups = RowGroups(parquet, leaves)
        _check_nulls(groups, leaves)
        return ParquetSource(groups, memory_bytes)


def _tables(files: ParquetFiles, columns: Sequence[str]) -> Iterator[Any]:
    """Yields columns of all row groups, and of the partitions without rows: each has dictionaries of its own."""
    yield pa.table({name: values[:0] for name, values in files.partitions.items()})
    read = [(name,) for name in columns if name not in files.partitions]
    tables = (
        files.read(list(map(files.group, range(len(files.groups)))), read)
        if read
        else ()
    )
    yield from (table for _, table in tables)


def _check_nulls(groups: RowGroups, table: TableLeaves) -> None:
    """Refuses nulls that the footers tell of, all columns at once; others are refused when they are decoded."""
    leaves = {
        leaf.names: leaf
        for leaf in table.leaves
        if not table.nulls.accepts(leaf.path)
    }
    refused: dict[Names, Any] = {}
    for names, group, count in groups.files.nulls(list(leaves)):
        refused.setdefault(names, [group, 0])[1] += count
    found = []
    for names, leaf in leaves.items():
        if names in refused:
            group, count = refused[names]
            _, read = next(iter(groups.files.read([group], [names])))
            arrays = [next(arrays_of([leaf], batch)) for batch in read.to_batches()]
            row = (
                f"row {group.first_row + first_null(arrays)} of "
                f"{groups.files.location(group)}"
            )
            found.append(Found(leaf.path, arrays[0].type, count, row))
    if found:
        raise SourceError(table.nulls.refusal(found))


def partition_columns(given: Any, locations: Sequence[str]) -> dict[str, Any]:
    """The columns in the names of folders below what is given: of each an Arrow array with the value of each file.

    Ints are int32, or int64 where that is too short; other values are categories, in the order of the files.

    Args:
        given: Path of a file or folder, pattern, URL, or list of these.
        locations: Paths and URLs of the files that these are.
    """
    if isinstance(given, Sequence) and not isinstance(given, str):
        paths = given
    else:
        paths = [given]
    files = set(locations)
    # The number of folders above decides, since a URL may be quoted in one of them and not in the other.
    folders = zip(
        *(_folder(os.fspath(path), files).split("/") for path in paths), strict=False
    )
    above = sum(1 for _ in takewhile(lambda names: len(set(names)) == 1, folders))
    found = [_pairs(location, above) for location in locations]
    names = dict.fromkeys(name for pairs in found for name in pairs)
    return {name: _typed([pairs.get(name) for pairs in found]) for name in names}


def _folder(path: str, files: set[str]) -> str:
    """The folder that a path, pattern or URL is certain to be, or to be in."""
    local = local_path(path)
    if local is None:
        path = path.rstrip("/")
    else:
        path = str(local)
    if path in files:
        return path.rpartition("/")[0]
    if local is not None and local.exists():
        certain = path
    else:
        certain = re.split(r"[*?\[{]", path, maxsplit=1)[0]
    if certain == path:
        return path
    return certain.rpartition("/")[0]


def _pairs(location: str, above: int) -> dict[str, str | None]:
    folders = location.split("/")[above:-1]
    if is_remote(location):
        folders = list(map(unquote, folders))
    pairs = (folder.partition("=") for folder in folders if "=" in folder)
    return {
        unquote(name): None if value == _NULL else unquote(value)
        for name, _, value in pairs
    }


def _typed(values: Sequence[str | None]) -> Any:
    texts = pa.array(values, pa.string())
    for kind in (pa.int32(), pa.int64()):
        try:
            return texts.cast(kind)
        except pa.ArrowInvalid:
            continue
    return texts.dictionary_encode()
