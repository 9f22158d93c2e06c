"""Each kind of argument has one checker.

What it takes, what it refuses, and that every refusal is a sentence with the name and the value.
"""

from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from loadax import from_jsonl
from loadax.core.arguments import (
    choice,
    dtype,
    entries,
    flag,
    function,
    integer,
    number,
    optional_flag,
    path,
    shown,
    text,
)
from loadax.errors import ArgumentError


class Broken:
    """An object whose methods fail."""

    def __repr__(self) -> str:
        raise RuntimeError

    def __index__(self) -> int:
        raise TypeError


@pytest.mark.parametrize("value", [3, np.int64(3), np.uint8(3), np.array(3), jnp.array(3), jnp.int32(3)])
def test_ints(value: Any) -> None:
    found = integer("count", value, 1)
    assert found == 3
    assert type(found) is int


@pytest.mark.parametrize(
    "value",
    [
        *(True, np.True_, np.array(True), jnp.array(True), 3.0, np.float64(3), "3", b"3", None, 1j, int, np.int64),
        *(np.arange(3), np.array([3]), jnp.arange(3), jnp.array([3]), [3], {3}, {}, Broken(), Broken),
    ],
)
def test_what_is_no_int(value: Any) -> None:
    with pytest.raises(ArgumentError, match=r"^count=.*: pass an int$"):
        integer("count", value)
    with pytest.raises(ArgumentError, match=r"^count=.*: pass an int of 1 or more$"):
        integer("count", value, 1)
    with pytest.raises(ArgumentError, match=r"^count=.*: pass so many rows$"):
        integer("count", value, 1, remedy="so many rows")


@pytest.mark.parametrize(
    ("value", "bounds", "match"),
    [
        (0, {"least": 1}, "count=0: pass 1 or more"),
        (-(2**70), {"least": 1}, f"count={-(2**70)}: pass 1 or more"),
        (2**63, {}, f"count={2**63}: pass less than 2\\*\\*63"),
        (np.uint64(2**63), {}, f"count={2**63}: pass less than 2\\*\\*63"),
        (-(2**63), {}, f"count={-(2**63)}: pass more than -2\\*\\*63"),
        (10**400, {}, "count=an int of 1329 bits: pass less than 2\\*\\*63"),
        (10**4000, {"least": 1}, "count=an int of 13288 bits: pass less than 2\\*\\*63"),
        (9, {"most": 8}, "count=9: pass 8 or less"),
    ],
)
def test_ints_outside_their_bounds(value: Any, bounds: dict[str, Any], match: str) -> None:
    with pytest.raises(ArgumentError, match=f"^{match}$"):
        integer("count", value, **bounds)


def test_ints_at_their_bounds() -> None:
    assert [integer("count", value) for value in (2**63 - 1, 1 - 2**63)] == [2**63 - 1, 1 - 2**63]
    assert integer("seed", -(10**400), most=None) == -(10**400)


@pytest.mark.parametrize("value", [1, 0.5, np.float32(0.5), np.array(0.5), jnp.array(0.5), Fraction(1, 2), np.int8(1)])
def test_numbers(value: Any) -> None:
    assert number("share", value, "a share") in (0.5, 1.0)


@pytest.mark.parametrize(
    "value", [True, np.True_, "0.5", None, np.nan, np.inf, 10**400, [0.5], np.array([0.5]), float, 1j]
)
def test_what_is_no_number(value: Any) -> None:
    with pytest.raises(ArgumentError, match=r"^share=.*: pass a share$"):
        number("share", value, "a share")


def test_bools() -> None:
    assert flag("resume", np.True_) is True
    assert flag("resume", False) is False
    assert optional_flag("progress", None) is None
    value: Any
    for value in ("no", "", 0, 1, np.nan, None, [], np.array([True])):
        with pytest.raises(ArgumentError, match=r"^resume=.*: pass True or False$"):
            flag("resume", value)
    with pytest.raises(ArgumentError, match=r"^progress='no': pass True or False, or leave it out$"):
        optional_flag("progress", "no")


def test_choices() -> None:
    assert choice("stop", "first", ("first", "all")) == "first"
    assert choice("codec", None, ("zstd", None)) is None
    value: Any
    for value in (np.array(["first", "all"]), np.arange(3), ["first"], 0, None, "none", {}):
        with pytest.raises(ArgumentError, match=r"^stop=.*: pass 'first', 'all' or 'never'$"):
            choice("stop", value, ("first", "all", "never"))
    with pytest.raises(ArgumentError, match=r"^stop=1: pass the first$"):
        choice("stop", 1, ("first",), "the first")


def test_lists() -> None:
    assert entries("datasets", (each for each in "ab"), "datasets") == ["a", "b"]
    value: Any
    for value in (3, None, "ab", b"ab", {"a": 1}, list):
        with pytest.raises(ArgumentError, match=r"^datasets=.*: pass a list of datasets$"):
            entries("datasets", value, "datasets")


def test_paths() -> None:
    assert path("folder", Path("a/b")) == "a/b"
    value: Any
    for value in (3, None, b"a", ["a"]):
        with pytest.raises(ArgumentError, match=r"^folder=.* is an? \w+: pass a folder, as a str or a pathlib.Path$"):
            path("folder", value, "a folder")
    with pytest.raises(ArgumentError, match=r"^folder='' is empty: pass a folder$"):
        path("folder", "", "a folder")
    with pytest.raises(ArgumentError, match=r"^folder='a\\x00' has a NUL character in it: pass a folder$"):
        path("folder", "a\0", "a folder")


def test_texts_functions_and_dtypes() -> None:
    assert text("key", "v1", "a text") == "v1"
    assert function("fn", len, "a function") is len
    assert dtype("dtype", ">u2") == np.dtype(">u2")
    with pytest.raises(ArgumentError, match=r"^key=3: pass a text$"):
        text("key", 3, "a text")
    with pytest.raises(ArgumentError, match=r"^fn=3 can't be called; pass a function$"):
        function("fn", 3, "a function")
    for value in ("many", {"a": 1}, "a,,", "(", 3, None, np.zeros(2)):
        with pytest.raises(ArgumentError, match=r"^dtype=.* is not a dtype; pass for example 'uint16'$"):
            dtype("dtype", value)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("a" * 500, "'" + "a" * 119 + "…"),
        (np.zeros((200, 3)), "an array of shape [200, 3]"),
        (Broken(), "a Broken"),
        ({"a": "b\n\nc"}, r"{'a': 'b\n\nc'}"),
        (np.array(3), "array(3)"),
    ],
)
def test_values_are_shown_in_one_line(value: Any, expected: str) -> None:
    assert shown(value) == expected


ONE_OF_EACH: list[Callable[[Any], Any]] = [
    lambda value: integer("x", value),
    lambda value: number("x", value, "y"),
    lambda value: flag("x", value),
    lambda value: choice("x", value, ("a", "b")),
    lambda value: entries("x", value, "y"),
    lambda value: path("x", value),
    lambda value: text("x", value, "y"),
    lambda value: function("x", value, "y"),
    lambda value: dtype("x", value),
]


@pytest.mark.parametrize("check", ONE_OF_EACH)
@pytest.mark.parametrize(
    "value", [Broken(), Broken, 10**4000, np.zeros((0, 3)), object(), jnp.zeros(2), np.array({}), ...]
)
def test_no_other_error(check: Callable[[Any], Any], value: Any) -> None:
    try:
        check(value)
    except ArgumentError as error:
        assert str(error).startswith("x=")  # noqa: PT017 - some values are right for some checkers


def test_a_tilde_is_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    assert path("paths", "~/x.csv") == f"{tmp_path}/home/x.csv"
    assert path("paths", Path("~")) == f"{tmp_path}/home"
    assert [path("paths", text) for text in ("~x/y", "a/~", "s3://~/x")] == ["~x/y", "a/~", "s3://~/x"]
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "x.jsonl").write_text('{"x": 1}')
    assert len(from_jsonl("~/x.jsonl", index="~/index")) == 1
    assert sorted(file.name for file in tmp_path.iterdir()) == ["home"]
    assert (tmp_path / "home" / "index").is_dir()
