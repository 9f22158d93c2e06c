"""Integers of text files that float64 would round: in columns of floats, or with more digits than int64 has."""

import json
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
from pyarrow import compute

from loadax.core.arguments import shown
from loadax.errors import SourceError
from loadax.sources.tables.arrow.column_layout import is_list
from loadax.sources.tables.text.encoding import BOM

# Integers below it are exact in float64.
FIRST_ROUNDED = 2.0**53

_DIGITS = bytes.maketrans(b"123456789", b"000000000")
_LONG = b"0" * 16  # digits of `FIRST_ROUNDED`


def refuse_rounded(
    lines: Sequence[memoryview],
    table: Any,
    where: Callable[[int], str],
    is_sample: bool,
) -> None:
    """Raises an error if float64 rounds an integer of a line of JSON.

    Args:
        lines: Lines of JSON.
        table: Columns that were parsed from them, whose types the user did not state.
        where: File and number of a line, by its index.
        is_sample: Whether types are inferred from these lines, so that columns of integers alone must fit int64.
    """
    if not table.num_columns or _LONG not in b" ".join(lines).translate(_DIGITS):
        return
    columns = [
        field
        for field in table.schema
        if any(map(has_large, table.column(field.name).chunks))
    ]
    rows = [
        json.loads(bytes(line).removeprefix(BOM), parse_int=Decimal)
        for line in (lines if columns else ())
    ]
    for field in columns:
        numbers = [
            (index, *leaf)
            for index, row in enumerate(rows)
            for leaf in _floats(row, field, field.name)
        ]
        integers = [
            (index, path, number)
            for index, path, number in numbers
            if isinstance(number, Decimal)
        ]
        alone = is_sample and len(integers) == len(numbers)
        for index, path, number in sorted(integers, key=lambda each: -abs(each[-1])):
            if number == Decimal(float(number)) and not (
                alone and not -(1 << 63) <= number < 1 << 63
            ):
                continue
            remedy = (
                f"state its type: dtypes={{{path!r}: 'uint64'}} if all fit it, or "
                "'float64' to round it"
            )
            if "struct" in str(field.type):
                remedy = (
                    "write it as a text, or with a fraction (.0) if it may be rounded"
                )
            raise SourceError(
                f"{where(index)}: column {path!r} has the integer "
                f"{shown(int(number))}, which float64 may round; {remedy}"
            )


def has_large(array: Any) -> bool:
    """Whether an array has floats that may be rounded integers."""
    if pa.types.is_struct(array.type):
        return any(map(has_large, array.flatten()))
    if is_list(array.type):
        return has_large(array.flatten())
    if pa.types.is_floating(array.type):
        largest = compute.max(compute.abs(array)).as_py()
    else:
        largest = None
    return largest is not None and largest >= FIRST_ROUNDED


def _floats(
    row: dict[str, Any], field: Any, path: str
) -> Iterator[tuple[str, float | Decimal]]:
    """The numbers of a field that became floats, integers as decimals, each with the path of its leaf."""
    kind = field.type
    values = [row.get(field.name)]
    while is_list(kind):
        kind = kind.value_type
        values = [
            entry for value in values if isinstance(value, list) for entry in value
        ]
    for value in values:
        if isinstance(value, dict) and pa.types.is_struct(kind):
            for member in kind:
                yield from _floats(value, member, f"{path}.{member.name}")
        elif isinstance(value, float | Decimal) and pa.types.is_floating(kind):
            yield path, value
