"""Text for people: what messages and reports are put together from."""

from functools import partial
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
