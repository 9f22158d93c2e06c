"""User code: tells modules of the user's from installed ones, and lists the names that code uses."""

import dis
import functools
import importlib.util
import re
import sys
import sysconfig
from contextlib import suppress
from pathlib import Path
from types import CodeType
from typing import NamedTuple

_INSTALLED = re.compile(r"\b(site|dist)-packages\b")
_STANDARD = tuple(
    {f"{sysconfig.get_path(name)}/" for name in ("stdlib", "platstdlib")}
)
_LOAD_GLOBAL = dis.opmap["LOAD_GLOBAL"]
_LOAD_NAME = dis.opmap["LOAD_NAME"]
_IMPORT_NAME = dis.opmap["IMPORT_NAME"]
_EXTENDED_ARG = dis.opmap["EXTENDED_ARG"]
_SEVERAL = 1 << 14  # code objects whose names are remembered


class Import(NamedTuple):
    """An import within a function.

    Args:
        level: Number of dots before the module.
        module: Name of the module, without them.
        names: Names that are imported from it.
    """

    level: int
    module: str
    names: tuple[str, ...]


class Names(NamedTuple):
    """Names in code and its nested functions, sorted.

    Args:
        globally: Globals and builtins.
        everywhere: All, including attributes.
        texts: Constants that could be names.
        imports: Imports within the code, in order.
    """

    globally: tuple[str, ...]
    everywhere: tuple[str, ...]
    texts: tuple[str, ...]
    imports: tuple[Import, ...]


@functools.lru_cache(_SEVERAL)
def names_in(code: CodeType) -> Names:
    """The names in code. They are remembered: a large function takes about 50 microseconds."""
    globally = {code.co_names[index] for index in _global_indices(code)}
    everywhere = set(code.co_names)
    texts = set[str]()
    imports = _imports(code)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            nested = names_in(constant)
            globally.update(nested.globally)
            everywhere.update(nested.everywhere)
            texts.update(nested.texts)
            imports += nested.imports
        elif isinstance(constant, str) and all(
            map(str.isidentifier, constant.split("."))
        ):
            texts.add(constant)
    return Names(
        tuple(sorted(globally)),
        tuple(sorted(everywhere)),
        tuple(sorted(texts)),
        tuple(imports),
    )


def _global_indices(code: CodeType) -> set[int]:
    """Indices of the names that code loads as globals. `dis` would take ten times as long."""
    found = set()
    high = 0
    for operation, low in zip(code.co_code[::2], code.co_code[1::2], strict=True):
        argument = high | low
        if operation == _EXTENDED_ARG:
            high = argument << 8
        else:
            high = 0
        if operation == _LOAD_GLOBAL:
            found.add(argument >> 1)  # the lowest bit says whether it is called
        elif operation == _LOAD_NAME:
            found.add(argument)
    return found


def _imports(code: CodeType) -> list[Import]:
    if _IMPORT_NAME not in code.co_code[::2]:
        return []
    steps = [
        step for step in dis.get_instructions(code) if step.opname != "EXTENDED_ARG"
    ]
    return [
        Import(level.argval, step.argval, names.argval or ())
        for level, names, step in zip(steps, steps[1:], steps[2:], strict=False)
        if step.opname == "IMPORT_NAME"
    ]


@functools.cache
def is_own(module: str | None) -> bool:
    """Whether a module is the user's: of neither Python, an installed package, nor this one."""
    name = module or "builtins"
    top = name.partition(".")[0]
    if top == "loadax" or name in sys.builtin_module_names:
        return False
    # also where a program of an installed package, such as a debugger, runs the user's
    if name == "__main__":
        return True
    file = file_of(name) or file_of(top)
    if not file:
        return top not in sys.stdlib_module_names
    return not (_INSTALLED.search(file) or file.startswith(_STANDARD))


def file_of(module: str) -> str:
    """The file of a module, or the folder of a namespace package, whether or not it is imported; empty: none."""
    known = sys.modules.get(module)
    paths = [getattr(known, "__file__", None), *getattr(known, "__path__", ())]
    if known is None and "." not in module:
        with suppress(ImportError, ValueError):
            spec = importlib.util.find_spec(module)
            if spec is None:
                paths = []
            else:
                paths = [spec.origin, *(spec.submodule_search_locations or ())]
    return next(
        (
            path
            for path in paths
            if isinstance(path, str) and Path(path).is_absolute()
        ),
        "",
    )
