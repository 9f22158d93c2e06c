"""The documentation can't lie: every Python block of every page is run, and every doctest of the package.

The blocks of a page are one program: they run in order, in a fresh interpreter of their own, in an empty folder. A block is left
out only by a comment on the line before it, `<!-- not run: why -->`.
"""

import doctest
import importlib
import os
import re
import subprocess
import sys
import textwrap
import warnings
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
MODULES = sorted(path.relative_to(ROOT) for path in (ROOT / "loadax").rglob("*.py"))
PAGE_LIMIT = 50  # seconds
# A block in any other language could be Python under another name, and so escape.
LANGUAGES = {"python", "bash", "console", "text", "json", "toml", "yaml"}

FENCE = re.compile(r" *(`{3,}|~{3,})(.*)")
OPT_OUT = re.compile(r" *<!-- not run: \S.* -->")


def program(page: str) -> str:
    """The Python blocks of a page as one program, each line of it on its own line number of the page.

    Raises:
        ValueError: for a block in a language that is not known, or one that never ends.
    """
    lines = page.splitlines()
    kept = [""] * len(lines)
    number = 0
    while number < len(lines):
        opening = FENCE.fullmatch(lines[number])
        if opening is None:
            number += 1
            continue
        fence, language = opening[1], opening[2].split()[0] if opening[2].split() else ""
        if language not in LANGUAGES:
            raise ValueError(f"line {number + 1}: a block is marked {language!r}; mark it with one of {sorted(LANGUAGES)}")
        end = next((i for i in range(number + 1, len(lines)) if lines[i].strip() == fence), None)
        if end is None:
            raise ValueError(f"line {number + 1}: this block never ends")
        if language == "python" and not OPT_OUT.fullmatch(lines[number - 1] if number else ""):
            block = lines[number + 1 : end]
            kept[number + 1 : end] = textwrap.dedent("\n".join(block)).split("\n")[: len(block)]
        number = end + 1
    return "\n".join(kept).rstrip() + "\n"


def run(text: str, folder: Path, name: str = "page.md") -> subprocess.CompletedProcess[str]:
    script = folder / name
    script.write_text(program(text))
    work = folder / "work"
    work.mkdir()
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-W", "error", str(script)]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=work, env=environment, timeout=PAGE_LIMIT)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_page(page: Path, tmp_path: Path) -> None:
    text = page.read_text()
    if program(text).strip():
        result = run(text, tmp_path, page.name)
        assert result.returncode == 0, result.stdout + result.stderr


def test_the_readme_has_an_example_that_runs() -> None:
    assert "loadax.Dataloader(" in program((ROOT / "README.md").read_text())


@pytest.mark.parametrize("path", MODULES, ids=str)
def test_doctests(path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    name = ".".join(path.with_suffix("").parts).removesuffix(".__init__")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        failed, _ = doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS)
    assert failed == 0


def test_blocks_of_a_page_share_their_names(tmp_path: Path) -> None:
    result = run(
        "```python\nx = 1\n```\ntext\n```bash\nfalse\n```\n    ```python\n    if x:\n        print(x + 1)\n    ```\n", tmp_path
    )
    assert result.stdout == "2\n", result.stderr


def test_a_failing_block_is_reported_with_its_line_on_the_page(tmp_path: Path) -> None:
    result = run("# Title\n\n```python\n1 / 0\n```\n", tmp_path)
    assert result.returncode == 1
    assert 'page.md", line 4' in result.stderr


def test_a_warning_is_a_failure(tmp_path: Path) -> None:
    assert run("```python\nimport warnings\nwarnings.warn('old')\n```\n", tmp_path).returncode == 1


def test_a_block_is_left_out_only_with_a_reason() -> None:
    block = "```python\n1 / 0\n```\n"
    assert program(f"<!-- not run: needs 512 hosts -->\n{block}").strip() == ""
    assert program(f"<!-- not run: -->\n{block}").strip() == "1 / 0"
    assert program(f"<!-- not run: needs 512 hosts -->\n\n{block}").strip() == "1 / 0"


@pytest.mark.parametrize("language", ["py", "", "Python", "pycon"])
def test_no_block_escapes_under_another_name(language: str) -> None:
    with pytest.raises(ValueError, match="line 1: a block is marked"):
        program(f"```{language}\n1 / 0\n```\n")


def test_a_block_that_never_ends_is_an_error() -> None:
    with pytest.raises(ValueError, match="line 2: this block never ends"):
        program("\n```python\n1 / 0\n")
