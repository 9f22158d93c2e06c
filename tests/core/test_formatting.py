"""Text for people: what messages and reports are put together from."""

import ast
import re
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loadax.core.formatting import count_text, name_of, rows_text, short_name, size_text, some, table, type_text


class Named:
    def __call__(self, example: Any) -> Any:
        return example

    def __repr__(self) -> str:
        return "a callable"

    def read(self, example: Any) -> Any:
        return example


def same(example: Any) -> Any:
    return example


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (10 << 10, "10 KiB"),
        (128 << 20, "128 MiB"),
        (3 << 60, "3072 PiB"),
    ],
)
def test_sizes(size: int, text: str) -> None:
    assert size_text(size) == text


def test_tables_line_up() -> None:
    assert table(["a", "long"], [["xyz", "1"], ["", "22"]]) == "a    long\nxyz  1\n     22\n"
    assert (count_text(1, "row"), count_text(0, "row")) == ("1 row", "0 rows")
    assert (count_text(1, "entry", "entries"), count_text(2, "entry", "entries")) == ("1 entry", "2 entries")


def test_a_few_of_many() -> None:
    assert some([]) == ""
    assert some(range(8)) == "0, 1, 2, 3, 4, 5, 6, 7"
    assert some(range(9)) == "0, 1, 2, 3, 4, 5, 6, 7, …"
    assert some("abc", 2) == "a, b, …"
    assert rows_text(np.array([3])) == "row 3"
    assert rows_text(np.array([3, 5])) == "2 rows (3, 5)"
    assert rows_text(np.arange(100)) == "100 rows (0, 1, 2, 3, 4, 5, 6, 7, …)"


def test_names_of_functions() -> None:
    assert name_of(len) == "len"
    assert name_of(Named()) == "a callable"
    assert name_of(same).startswith("same (")


def test_short_names_of_functions() -> None:
    assert short_name(same) == "same"
    assert short_name(partial(partial(same), 3)) == "same"
    assert short_name(lambda example: example).startswith("lambda (test_formatting.py:")
    assert short_name(Named().read) == "read"
    assert short_name(Named()) == "Named"


@pytest.mark.parametrize(
    ("value", "text"),
    [(1, "an int"), ([], "a list"), (object(), "an object"), (np.uint8(1), "a uint8")],
)
def test_a_type_has_the_article_of_its_name(value: object, text: str) -> None:
    assert type_text(value) == text


PACKAGE = Path(__file__).parents[2] / "loadax"
NOUNS = (
    "batches|blocks|bytes|chunks|columns|devices|documents|elements|entries|epochs|examples|files|frames|groups|hosts|"
    "keys|lanes|leaves|lines|parts|pieces|positions|processes|records|requests|rows|samples|shards|steps|tasks|threads|"
    "times|tokens|tries|values|workers"
)
# Texts that are not counts, and counts that are never 1.
NOT_COUNTS = {
    "address",  # "s3://… shards", of Zarr
    "entry.dtype",
    "_spelled(first.dtype)",
    "kind",  # "uint16 tokens"
    "path",
    "selected",  # "drop('x') leaves nothing"
    "shown(share)",  # a list
    "sorted(found)",
    "self._length_text()",
    "width",  # "480x640 frames"
    "' or '.join((f'{length:,}' for length in lengths))",
    "np.diff(groups, append=len(source))",
    "sizes.max()",  # "1 to 8 rows"
    "value.shape[-1:]",
}


def counts_beside_plurals(source: str) -> list[str]:
    """Formatted values of f-strings that stand before a plural noun, so that they read "1 rows"."""
    found = []
    for text in (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.JoinedStr)):
        texts = [part.value if isinstance(part, ast.Constant) else "" for part in text.values]
        for value, before, after in zip(text.values, ["", *texts], [*texts[1:], ""], strict=False):
            if not isinstance(value, ast.FormattedValue):
                continue
            shown = ast.unparse(value.value)
            is_constant = re.fullmatch("_?[A-Z_]+", shown)
            is_range = str(before).endswith(" to ")
            is_float = value.format_spec is not None and re.search("[fg%]", ast.unparse(value.format_spec)[2:])
            if re.match(f" ({NOUNS})\\b", str(after)) and not (is_constant or is_range or is_float):
                found.append(shown)
    return found


def test_no_text_of_the_package_can_say_1_rows() -> None:
    found = {
        f"{path.name}: {shown}"
        for path in PACKAGE.rglob("*.py")
        for shown in counts_beside_plurals(path.read_text("utf-8"))
        if shown not in NOT_COUNTS and not shown.startswith("count_text(")
    }
    assert found == set()


def test_a_count_beside_a_plural_is_found() -> None:
    assert counts_beside_plurals('f"{len(rows):,} rows"') == ["len(rows)"]
    assert counts_beside_plurals('f"{low} to {high} rows, {mean:.2f} times, {_MOST} tries, {name} is"') == []
