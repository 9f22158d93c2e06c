"""Rows of a streamed Hugging Face dataset, as those of the map-style one: of the same dtypes, by the same columns."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, final

import numpy as np
import pyarrow as pa

from loadax.core.arguments import shown
from loadax.errors import SourceError
from loadax.protocols import Tree
from loadax.sources.adapt import with_arrays
from loadax.sources.tables.arrow.column_layout import (
    count_nulls,
    layout,
    without_views,
)
from loadax.sources.tables.arrow.columns import BatchRows, column_of

_ONE_ROW = [BatchRows(0, slice(None), np.zeros(1, np.int64), slice(0, 1))]


class _StreamColumn(NamedTuple):
    """How the value of one row is made.

    Args:
        of_arrow: Of an Arrow array of one row.
        of_python: Of what Hugging Face gives for one row in Python's own objects.
    """

    of_arrow: Callable[[Any], Any]
    of_python: Callable[[Any], Any]


@final
class StreamRowReader:
    """Makes examples of what a stream yields: tables of one row, or dicts of Python's own objects.

    Args:
        features: `datasets.Features` of the stream. None: those of each table; of a dict, numbers and lists of them
            become arrays, and all else remains as it is.
        tokens: Tokens of repositories, with which files of images and sounds are opened.
    """

    def __init__(self, features: Any, tokens: Any = None):
        self._features = features
        self._tokens = tokens
        self._schema: Any = None
        self._columns: dict[str, _StreamColumn] = {}
        if features is not None:
            self._open(features.arrow_schema, features)

    def __call__(self, row: Any) -> Tree:
        if not isinstance(row, pa.Table):
            if self._features is None:
                return _plain(row)
            return {
                name: column.of_python(row.get(name))
                for name, column in self._columns.items()
            }
        if self._features is None and not (
            self._schema is not None and row.schema.equals(self._schema)
        ):
            from datasets import Features

            self._open(row.schema, Features.from_arrow_schema(row.schema))
        batch = next(batch for batch in row.to_batches() if len(batch))
        return {
            name: column.of_arrow(batch.column(name))
            for name, column in self._columns.items()
        }

    def _open(self, schema: Any, features: Any) -> None:
        self._schema = schema
        kinds = {name: schema.field(name).type for name in features}
        self._columns = {
            name: _column(name, kinds[name], features[name], self._tokens)
            for name in features
        }


def _column(name: str, kind: Any, feature: Any, tokens: Any) -> _StreamColumn:
    """How values of a column, or of a member of one, are made; `name` is for messages."""
    from datasets.features.features import decode_nested_example, require_decoding

    if isinstance(feature, dict):
        return _struct(name, kind, feature, tokens)

    def decode(value: Any) -> Any:
        return decode_nested_example(feature, value, token_per_repo_id=tokens)

    if require_decoding(feature):
        decoded = decode
    else:
        decoded = None
    has_numbers = decoded is None and (
        layout(kind)[1] is not None or kind == pa.null()
    )

    def of_arrow(array: Any) -> Any:
        if has_numbers and count_nulls(array):
            raise SourceError(
                f"column {name!r} has a null, which an array can't hold; fill it "
                "with stream.map, or drop such rows with stream.filter"
            )
        array = without_views(array)
        return column_of([array], array.type, decoded).examples(_ONE_ROW, 1)[0]

    def of_python(value: Any) -> Any:
        # Images and the like were decoded already.
        if decoded is not None:
            return value
        return of_arrow(_one_row(name, value, kind, feature))

    return _StreamColumn(of_arrow, of_python)


def _struct(
    name: str, kind: Any, features: Mapping[str, Any], tokens: Any
) -> _StreamColumn:
    """How the dict of a struct's members is made."""
    places = {member: kind.get_field_index(member) for member in features}
    members = {
        member: _column(
            f"{name}.{member}", kind.field(place).type, features[member], tokens
        )
        for member, place in places.items()
    }

    def of_arrow(array: Any) -> Any:
        flat = array.flatten()  # with the nulls of the struct itself
        return {
            member: column.of_arrow(flat[places[member]])
            for member, column in members.items()
        }

    def of_python(value: Any) -> Any:
        given = value or {}
        return {
            member: column.of_python(given.get(member))
            for member, column in members.items()
        }

    return _StreamColumn(of_arrow, of_python)


def _one_row(name: str, value: Any, kind: Any, feature: Any) -> Any:
    """An Arrow array of one value."""
    from datasets.features.features import (
        cast_to_python_objects,
        encode_nested_example,
    )

    if isinstance(kind, pa.BaseExtensionType):
        stored = kind.storage_type
    else:
        stored = kind
    try:
        encoded = cast_to_python_objects(
            encode_nested_example(feature, value), only_1d_for_numpy=True
        )
        array = pa.array([encoded], stored)
    except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
        raise SourceError(
            f"column {name!r} has {shown(value)}, which is not of its type {stored}: "
            f"{error}; state the type that it has: stream.cast_column(…), or "
            "features= of stream.map"
        ) from error
    if stored is kind:
        return array
    return pa.ExtensionArray.from_storage(kind, array)


def _plain(value: Any) -> Any:
    """A value without a type: numbers, and lists of them, as arrays."""
    if isinstance(value, Mapping):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, int | float):
        return np.asarray(value)[()]
    return with_arrays(value)
