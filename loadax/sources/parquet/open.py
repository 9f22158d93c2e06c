"""Opens Parquet files: expands paths, checks schemas, and refuses nulls before the first read."""

from collections.abc import Collection, Iterator, Mapping
from itertools import chain
from typing import Any

import pyarrow as pa

from loadax.core.arguments import integer
from loadax.core.formatting import some
from loadax.errors import SourceError
from loadax.sources.arrow.call import Call, column_names, naming_file, refuse_repeated
from loadax.sources.arrow.leaves import Leaf, arrays_of, leaves_in, leaves_of, stated_classes
from loadax.sources.arrow.nulls import Found, Nulls, first_null
from loadax.sources.arrow.table import categories, category_leaves
from loadax.sources.arrow.unify import unified_schema
from loadax.sources.io.disk_cache import open_cache
from loadax.sources.io.expand import expand
from loadax.sources.io.files import Files
from loadax.sources.parquet.files import Names, ParquetFiles, encrypted_text
from loadax.sources.parquet.format import FORMAT
from loadax.sources.parquet.groups import RowGroups
from loadax.sources.parquet.partitions import partition_columns
from loadax.sources.parquet.source import ParquetSource
from loadax.sources.parquet.table_formats import refuse_tables

_NAMED = 100  # files in a message


def open_parquet(
    paths: Any, columns: Any, nulls: Any, classes: Any, memory_bytes: int, cache: Any, cache_bytes: int
) -> ParquetSource:
    """Opens Parquet files; see `loadax.from_parquet`.

    Raises:
        ArgumentError: When an argument is invalid.
        SourceError: When a file is missing, damaged or of another schema, or a column has nulls; names the file.
        LeafTypeError: When a column has a type without an array.
    """
    memory_bytes = integer("memory_bytes", memory_bytes, 0)
    blocks = open_cache(cache, cache_bytes)
    files = Files()
    try:
        locations = expand(paths, FORMAT, files)
    except SourceError:
        refuse_tables(paths, (), files)
        raise
    refuse_tables(paths, locations, files)
    parquet = ParquetFiles(locations, files, blocks, partition_columns(paths, locations))
    first, schema = next(parquet.schemas())
    names = column_names(columns, schema.names)
    table = f"pyarrow.parquet.read_table({locations!r})" if len(locations) <= _NAMED else None
    call = Call("from_parquet", "paths", table, tuple(names))
    for location, encrypted in parquet.encrypted():
        if locked := [name for name in names if name in encrypted]:
            what = f"column{'s' * (len(locked) > 1)} {some(locked)} {'are' if len(locked) > 1 else 'is'}"
            raise SourceError(encrypted_text(location, what) + call.without(*locked))
    schema = unified_schema(parquet.schemas(), names, columns is not None, "write one of them again")
    with naming_file(first):
        refuse_repeated(schema.names)
        stated = stated_classes(classes)
        tree = leaves_of(schema, call, _categories(parquet, schema, stated), stated)
        filler = Nulls(nulls, leaves_in(tree), call)
        groups = RowGroups(parquet, schema, tree, filler)
        _check_nulls(groups, filler)
        return ParquetSource(groups, memory_bytes)


def _categories(files: ParquetFiles, schema: Any, stated: Collection[str]) -> dict[str, list[str]]:
    """Names of the categories of each leaf of dictionary type, in the order in which row groups have them.

    Each row group has a dictionary of its own, so these columns are read once, unless their names are stated.
    """
    leaves = [leaf for leaf in category_leaves(schema) if leaf[1] not in stated]
    read = list(dict.fromkeys((column,) for column, _, _ in leaves if column not in files.partitions))
    of_folders = pa.table({name: values[:0] for name, values in files.partitions.items()})
    return categories(leaves, chain([of_folders], files.read(files.groups, read) if read else ()))


def _check_nulls(groups: RowGroups, filler: Nulls) -> None:
    """Refuses nulls that the footers tell of, all columns at once; others are refused when they are decoded."""
    leaves = {leaf.names: leaf for leaf in groups.leaves if not filler.accepts(leaf.path)}
    refused: dict[Names, Any] = {}
    for names, group, count in groups.files.nulls(list(leaves)):
        refused.setdefault(names, [group, 0])[1] += count
    if refused:
        raise SourceError(filler.refusal(_first_nulls(groups, leaves, refused)))


def _first_nulls(groups: RowGroups, leaves: Mapping[Names, Leaf], refused: Mapping[Names, Any]) -> Iterator[Found]:
    for names, leaf in leaves.items():
        if names in refused:
            group, count = refused[names]
            table = next(iter(groups.files.read([group], [names])))
            arrays = [next(arrays_of([leaf], batch)) for batch in table.to_batches()]
            row = group.first_row + first_null(arrays)
            yield Found(leaf.path, arrays[0].type, count, f"row {row} of {groups.files.location(group)}")
