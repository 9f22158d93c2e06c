"""Messages of errors and warnings, found in the code of the package, and those whose remedy names a call."""

import ast
import re
from functools import cache

from docs.hooks.messages import PACKAGE, text_of

_CALL = re.compile(r"\w\(")


@cache
def all_messages() -> dict[str, str]:
    """The messages by where they are raised; `…` stands for a value."""
    errors = re.findall(r"^class (\w+Error)", (PACKAGE / "errors.py").read_text("utf-8"), re.MULTILINE)
    found: dict[str, str] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call) and node.args and _name(node.func) in {*errors, "warn", "warn_user"}:
                message = " ".join(re.sub(r"…(\s*…)+", "…", text_of(node.args[0])).split())
                found[f"{path.relative_to(PACKAGE)}:{node.lineno}"] = message
    return found


def names_a_call(message: str) -> bool:
    """Whether the remedy of a message names a call: what follows a semicolon, or else a colon or a period."""
    for end in ("; ", ": ", ". "):
        _, found, remedy = message.partition(end)
        if found:
            return _CALL.search(remedy) is not None
    return False


def _name(function: ast.expr) -> str:
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""
