"""The messages of all errors that loadax raises, taken from its code; `…` stands for a value."""

import ast
import re
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "loadax"


def messages() -> dict[str, list[str]]:
    """Messages by the name of their error, sorted."""
    errors = set(re.findall(r"^class (\w+Error)", (PACKAGE / "errors.py").read_text("utf-8"), re.MULTILINE))
    found: dict[str, set[str]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in errors:
                message = re.sub(r"…(\s*…)+", "…", text_of(node.args[0])).strip() if node.args else ""
                if re.search(r"[a-z]{3}.* ", message):
                    found.setdefault(node.func.id, set()).add(message)
    return {name: sorted(texts, key=lambda text: text.lstrip("… ").lower()) for name, texts in sorted(found.items())}


def page() -> str:
    """Markdown of the page of all messages."""
    lines = [
        "# All error messages",
        "",
        (
            "Every message of loadax, by its error; `…` stands for a value. [Troubleshooting](../troubleshooting.md) "
            "explains those that come up most."
        ),
    ]
    for name, texts in messages().items():
        lines += ["", f"## {name}", "", *(f"- `{' '.join(text.split())}`" for text in texts if "`" not in text)]
    return "\n".join(lines) + "\n"


def text_of(node: ast.expr) -> str:
    """A message as it is written in the code; `…` stands for a value."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(text_of(part) for part in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return text_of(node.left) + text_of(node.right)
    return "…"
