"""Names that users of torch, Grain, tf.data and Hugging Face expect, each with what to write instead."""

import tomllib
from collections.abc import Callable
from functools import cache, wraps
from importlib import resources
from inspect import signature
from typing import Any, ParamSpec, TypeVar

from loadax.core.arguments import shown
from loadax.errors import ArgumentError

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


@cache
def replacements(owner: str) -> dict[str, str]:
    """Replacements of each name, of the tables of `replacements.toml` whose title names the owner.

    Args:
        owner: A class, for its attributes; `"Dataloader()"` or `"Dataset.verb()"`, for arguments.
    """
    tables = tomllib.loads(
        resources.files("loadax.core")
        .joinpath("replacements.toml")
        .read_text("utf-8")
    )
    hints = [
        entry
        for title, table in tables.items()
        if owner in title.split()
        for entry in table.items()
    ]
    return {name: hint for names, hint in hints for name in names.split()}


def explain_arguments(
    verb: Callable[_Arguments, _Result],
) -> Callable[_Arguments, _Result]:
    """Decorates a verb that users of other loaders expect to have other arguments.

    Raises:
        ArgumentError: For such an argument; says what to write instead.
    """
    own = signature(verb).parameters.keys()

    @wraps(verb)
    def explained(*given: _Arguments.args, **named: _Arguments.kwargs) -> _Result:
        for name in named.keys() - own:
            if hint := replacements("Dataset.verb()").get(name):
                value = shown(named[name])
                raise ArgumentError(
                    f"{name}={value}: {verb.__name__}() has no such argument; {hint}"
                )
        return verb(*given, **named)

    return explained


def missing_attribute(owner: Any, name: str) -> Any:
    """The `__getattr__` of classes that users of other loaders expect to have other names, and of the package.

    Raises:
        AttributeError: For a name that the owner does not have; says what to write instead.
    """
    # a property, in which a user's function raised an AttributeError
    if hasattr(type(owner), name):
        return object.__getattribute__(owner, name)
    kind = type(owner).__name__
    hint = replacements(kind).get(name)
    if kind == "module":
        subject = f"module {owner.__name__!r}"
    else:
        subject = f"{kind!r} object"
    text = f"{subject} has no attribute {name!r}" + (f": {hint}" if hint else "")
    raise AttributeError(text, name=name, obj=owner)
