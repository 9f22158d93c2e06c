"""Names that version 0.1.0 has stay, with their members and arguments, as docs/development/versions.md promises."""

import inspect
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import loadax

MODULES = ("loadax.errors", "loadax.protocols", "loadax.sharding", "loadax.testing")
NAMES = Path(__file__).parent / "public_names.txt"


def arguments(name: str, function: Any) -> Iterator[str]:
    for argument in inspect.signature(function).parameters:
        if argument != "self" and not argument.startswith("_"):
            yield f"{name}({argument})"


def names_of(name: str, thing: Any) -> Iterator[str]:
    """A name, its arguments, and those of its members that loadax defines."""
    yield name
    if inspect.isfunction(thing):
        yield from arguments(name, thing)
    if not inspect.isclass(thing):
        return
    for kind in inspect.getmro(thing):
        if not kind.__module__.startswith("loadax"):
            continue
        for member, value in vars(kind).items():
            if member == "__init__" and inspect.isfunction(value):
                yield from arguments(name, value)
            elif not member.startswith("_"):
                yield f"{name}.{member}"
                function = getattr(value, "__func__", value)
                if inspect.isfunction(function):
                    yield from arguments(f"{name}.{member}", function)


def public_names() -> set[str]:
    found = {one for name in loadax.__all__ for one in names_of(f"loadax.{name}", getattr(loadax, name))}
    for module in map(import_module, MODULES):
        own = [name for name, thing in vars(module).items() if getattr(thing, "__module__", "") == module.__name__]
        for name in getattr(module, "__all__", own):
            if not name.startswith("_"):
                found.update(names_of(f"{module.__name__}.{name}", getattr(module, name)))
    return found


def test_no_name_of_the_first_version_is_gone() -> None:
    kept = set(NAMES.read_text("utf-8").split())
    assert len(kept) > 900
    assert sorted(kept - public_names()) == []
