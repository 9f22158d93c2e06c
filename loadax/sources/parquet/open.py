"""Opens Parquet files: expands paths, checks schemas, and refuses nulls before the first read."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from loadax.core.arguments import integer
from loadax.errors import SourceError
from loadax.sources.arrow.call import Call, column_names, naming_file
from loadax.sources.arrow.leaves import Leaf, leaves_in, leaves_of
from loadax.sources.arrow.nulls import Found, Nulls, first_null
from loadax.sources.arrow.table import categories
from loadax.sources.file_names import is_parquet
from loadax.sources.io.disk_cache import open_cache
from loadax.sources.io.expand import FileKind, expand
from loadax.sources.io.files import Files
from loadax.sources.parquet.files import ParquetFiles
from loadax.sources.parquet.groups import RowGroups
from loadax.sources.parquet.source import ParquetSource
from loadax.sources.parquet.table_formats import refuse_tables

_FILES = FileKind(
    "paths",
    "a Parquet file",
    is_parquet,
    (".parquet file", "the files, or a pattern such as folder/**/*.parquet"),
)


def open_parquet(
    paths: Any,
    columns: Sequence[str] | str | None = None,
    *,
    nulls: Any = None,
    memory_bytes: int = 1 << 30,
    cache: Any = None,
    cache_bytes: int = 16 << 30,
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
        locations = expand(paths, _FILES, files)
    except SourceError:
        refuse_tables(paths, (), files)
        raise
    refuse_tables(paths, locations, files)
    parquet = ParquetFiles(locations, files, blocks)
    names = column_names(columns, parquet.schema.names)
    _check_schemas(parquet, names, chosen=columns is not None)
    call = Call("from_parquet", "paths", "pyarrow.parquet.read_table(paths)", tuple(names))
    with naming_file(parquet.locations[0]):
        tree = leaves_of(_selected(parquet.schema, names), call, _categories(parquet, names))
        leaves = leaves_in(tree)
        filler = Nulls(nulls, [leaf.path for leaf in leaves], call)
        groups = RowGroups(parquet, tree, filler)
        _check_nulls(groups, filler)
        return ParquetSource(groups, memory_bytes)


def _selected(schema: Any, names: Sequence[str]) -> list[Any]:
    """Fields of columns, and again those that have the name of one."""
    return [field for field in schema if field.name in names]


def _check_schemas(files: ParquetFiles, names: Sequence[str], chosen: bool) -> None:
    first, schema = files.locations[0], files.schema
    for location, other in files.schemas():
        for name in names:
            if name not in other.names:
                raise SourceError(
                    f"{location}: there is no column {name!r}, which {first} has; pass files of one schema, or "
                    f"columns={[each for each in names if each in other.names]!r}"
                )
            if other.field(name).type != schema.field(name).type:
                raise SourceError(
                    f"{location}: column {name!r} contains {other.field(name).type}, and {schema.field(name).type} in "
                    f"{first}; pass files of one schema, or write one of them again"
                )
        extra = [name for name in other.names if name not in names]
        if extra and not chosen:
            raise SourceError(
                f"{location}: there is a column {extra[0]!r}, which {first} has not; pass files of one schema, or "
                f"columns={list(names)!r} to leave it out"
            )


def _categories(files: ParquetFiles, names: Sequence[str]) -> dict[str, list[str]]:
    """Names of the categories of each leaf of dictionary type, in the order in which row groups have them.

    Each row group has a dictionary of its own, so these columns are read once.
    """
    empty = files.schema.empty_table().select(list(dict.fromkeys(names)))
    below = {path.partition(".")[0] for path in categories([empty])}
    if not below:
        return {}
    return categories(chain([empty], files.read(files.groups, [name for name in names if name in below])))


def _check_nulls(groups: RowGroups, filler: Nulls) -> None:
    """Refuses nulls that the footers tell of, all columns at once; others are refused when they are decoded."""
    leaves = {leaf.path: leaf for leaf in groups.leaves}
    refused: dict[str, Any] = {}
    for path, group, count in groups.files.nulls(list(leaves)):
        if not filler.accepts(path):
            found = refused.setdefault(path, [group, 0])
            found[1] += count
    if refused:
        raise SourceError(filler.refusal(_first_nulls(groups, leaves, refused)))


def _first_nulls(groups: RowGroups, leaves: Mapping[str, Leaf], refused: Mapping[str, Any]) -> Iterator[Found]:
    for path in sorted(refused, key=list(leaves).index):
        group, count = refused[path]
        table = next(iter(groups.files.read([group], [path])))
        arrays = [leaves[path].array_of(batch) for batch in table.to_batches()]
        row = group.first_row + first_null(arrays)
        yield Found(path, arrays[0].type, count, f"row {row} of {groups.files.location(group)}")
