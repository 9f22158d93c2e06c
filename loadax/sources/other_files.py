"""Files and folders that other libraries open, as `opened_by_others.toml` lists them: each with the line to write."""

import re
import tomllib
from collections.abc import Iterator
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from loadax.sources.format import Format


@cache
def table() -> dict[str, Any]:
    """The tables `files` and `folders`."""
    text = resources.files("loadax.sources").joinpath("opened_by_others.toml")
    return tomllib.loads(text.read_text("utf-8"))


@cache
def other_files() -> tuple[Format, ...]:
    """Formats that are recognised by the endings of their files."""
    return tuple(
        _format(noun, line, rf"(?i)({'|'.join(map(re.escape, endings.split()))})$")
        for endings, (noun, line) in table()["files"].items()
    )


def other_folder(path: Path) -> Format | None:
    """Format of a folder that has all files of one."""
    return next(_found(path), None)


def _found(path: Path) -> Iterator[Format]:
    for names, (noun, line) in table()["folders"].items():
        if all(any(path.glob(name)) for name in names.split()):
            yield _format(noun, line)


def _format(noun: str, line: str, names: str = "(?!)") -> Format:
    function = line.removeprefix("loadax.").partition("(")[0]
    return Format(function, noun, names, line=line)
