"""A line of the package is read once: it assigns one thing, decides little, and is not wide.

A limit that is exceeded tells that lines became denser. Split them: a statement for each value, a branch for a decision
whose sides are not short.
"""

import ast
import tokenize
from collections import Counter
from pathlib import Path

from tests.test_weight import ROOT, count_tokens

WIDEST = 100
# Most for each 1,000 lines of code.
MOST = {"tuple assignments": 4, "conditional expressions": 15, "wide lines": 2}
MOST_TOKENS = 7.5  # of a line


def lines_of_code(source: str) -> set[int]:
    """Numbers of the lines that have code: no docstring, and no comment alone."""
    lines: set[int] = set()
    docstrings: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            docstrings.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    layout = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    for token in tokenize.generate_tokens(iter(source.splitlines(keepends=True)).__next__):
        if token.type not in layout:
            lines.update(range(token.start[0], token.end[0] + 1))
    return lines - docstrings


def density(paths: list[Path]) -> tuple[Counter[str], int, int]:
    """What files have of what makes a line dense, their lines of code, and their tokens."""
    found: Counter[str] = Counter()
    lines = 0
    for path in paths:
        source = path.read_text(encoding="utf-8")
        numbers = lines_of_code(source)
        lines += len(numbers)
        texts = source.splitlines()
        found["wide lines"] += sum(len(texts[number - 1]) > WIDEST for number in numbers)
        for node in ast.walk(ast.parse(source)):
            found["conditional expressions"] += isinstance(node, ast.IfExp)
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Tuple):
                found["tuple assignments"] += isinstance(node.targets[0], ast.Tuple)
    return found, lines, sum(count_tokens(str(path)) for path in paths)


def test_lines_of_the_package_are_not_dense() -> None:
    found, lines, tokens = density(sorted((ROOT / "loadax").rglob("*.py")))
    assert lines > 10_000
    assert tokens / lines <= MOST_TOKENS
    assert {what: 1000 * count / lines for what, count in found.items() if 1000 * count / lines > MOST[what]} == {}


def test_dense_lines_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "dense.py"
    path.write_text(f'"""A module."""\n# a comment\na, b = 1, 2\nc = a if b else {"b + " * 30}1\n')
    found, lines, tokens = density([path])
    assert found == {"tuple assignments": 1, "conditional expressions": 1, "wide lines": 1}
    assert lines == 2
    assert tokens == 7 + 7 + 2 * 30
