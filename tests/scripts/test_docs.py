"""The documentation can't lie: every Python block of every page is run.

The blocks of a page are one program: they run in order, in a process of their own, in an empty folder. A block is left
out only by a comment on the line before it, `<!-- not run: why -->`. A `text` block right behind a Python block is what
that one prints; a word that begins with `≈` stands for any word, as of a time that varies.
"""

import os
import re
import subprocess
import textwrap
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from docs.hooks.synonyms import SYNONYMS
from docs.pictures import DRAWINGS
from docs.pictures.orders import ASSETS, MODES, SAVES, pages, style
from tests import forkserver

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "skills").rglob("*.md")),
]
# A block in any other language could be Python under another name, and so escape.
LANGUAGES = {"python", "bash", "console", "text", "json", "toml", "yaml"}

FENCE = re.compile(r" *(`{3,}|~{3,})(.*)")
CODE_COLUMNS = 84  # of a box at 1366 pixels
OPT_OUT = re.compile(r" *<!-- not run: \S.* -->")


def program(page: str) -> str:
    """The Python blocks of a page as one program, each line of it on its own line number of the page."""
    return "\n".join(parse(page)[0]).rstrip() + "\n"


def parse(page: str) -> tuple[list[str], dict[int, str | None]]:
    """The lines of a page's program, and what each block must print (None: anything), by the index of its first line.

    Raises:
        ValueError: for a block in a language that is not known, or one that never ends.
    """
    lines = page.splitlines()
    kept = [""] * len(lines)
    printed: dict[int, str | None] = {}
    number, before = 0, -1  # the opening line of the Python block that nothing but white space has followed
    while number < len(lines):
        opening = FENCE.fullmatch(lines[number])
        if opening is None:
            before = before if not lines[number].strip() else -1
            number += 1
            continue
        fence, language = opening[1], opening[2].split()[0] if opening[2].split() else ""
        if language not in LANGUAGES:
            raise ValueError(
                f"line {number + 1}: a block is marked {language!r}; mark it with one of {sorted(LANGUAGES)}"
            )
        end = next((i for i in range(number + 1, len(lines)) if lines[i].strip() == fence), None)
        if end is None:
            raise ValueError(f"line {number + 1}: this block never ends")
        if language == "python" and not OPT_OUT.fullmatch(lines[number - 1] if number else ""):
            block = lines[number + 1 : end]
            kept[number + 1 : end] = textwrap.dedent("\n".join(block)).split("\n")[: len(block)]
            before, printed[number] = number, None
        elif language == "text" and before >= 0:
            printed[before] = textwrap.dedent("\n".join(lines[number + 1 : end]))
            before = -1
        else:
            before = -1
        number = end + 1
    return kept, printed


def wide_lines(page: str) -> list[str]:
    """Lines of Python, run or not, that the box of a laptop cuts."""
    lines = page.splitlines()
    wide = []
    indent = 0
    fence: re.Match[str] | None = None
    for number, line in enumerate(lines, 1):
        opening = FENCE.fullmatch(line)
        if fence is None and opening is not None:
            fence, indent = opening, len(line) - len(line.lstrip())
        elif fence is not None and line.strip() == fence[1]:
            fence = None
        elif fence is not None and fence[2].split()[:1] == ["python"] and len(line) - indent > CODE_COLUMNS:
            wide.append(f"{number}: {line}")
    return wide


def broken_headings(page: str) -> list[str]:
    """Headings that begin in the midst of a link: a line that is wrapped before `#1](url)` is one."""
    text = re.sub(r"^( *)(`{3,}|~{3,}).*?^ *\2 *$", "", page, flags=re.MULTILINE | re.DOTALL)
    return re.findall(r"^#+ *(?:\d+\]|\]|\[?\]\().*", text, re.MULTILINE)


def check_output(page: str, output: str) -> None:
    """Compares what the blocks printed, each behind its mark, with the text blocks of the page."""
    parts = re.split(r"^@(\d+)\n", output, flags=re.MULTILINE)
    actual = dict(zip(map(int, parts[1::2]), parts[2::2], strict=True))
    for number, expected in parse(page)[1].items():
        if expected is None:
            continue
        wanted = "\n".join(line.rstrip() for line in expected.strip().splitlines())
        pattern = r"\S+".join(map(re.escape, re.split(r"≈\S+", wanted)))
        found = "\n".join(line.rstrip() for line in actual[number].strip().splitlines())
        assert re.fullmatch(pattern, found, re.DOTALL), (
            f"the block at line {number + 1} prints:\n{found}\n\nthe page says:\n{expected}"
        )


def run(text: str, folder: Path, name: str = "page.md") -> subprocess.CompletedProcess[str]:
    script = folder / name
    lines, printed = parse(text)
    for number in printed:  # on the line of the opening fence, so that all others keep their numbers
        lines[number] = f"__name__ == '__main__' and print('@{number}')"  # not in processes that import the page
    script.write_text("\n".join(lines).rstrip() + "\n")
    work = folder / "work"
    work.mkdir()
    environment = {**os.environ, "MATPLOTLIBRC": str(style("light")), "PYTHONPATH": str(ROOT)}
    return forkserver.run([script], cwd=work, env=environment)


def texts(picture: Path) -> list[str]:
    """Texts of a picture of an order: its title and its numbers."""
    root = ET.parse(picture).getroot()
    return ["".join(node.itertext()) for node in root.iter("{http://www.w3.org/2000/svg}text")]


def check_pictures(page: str, folder: Path) -> None:
    """The pictures of orders that a page shows are those that its code saves, with the same numbers."""
    saved = {path.stem: path for path in folder.glob("*.svg")} if SAVES in page else {}
    shown = set(re.findall(r'="\.\./assets/orders/(\w+-\w+)\.svg"', page))
    assert shown == {f"{name}-{mode}" for name in saved for mode in MODES}
    for name, path in saved.items():
        for mode in MODES:
            kept = ASSETS / f"{name}-{mode}.svg"
            assert texts(kept) == texts(path), f"{kept.name}: run `python -m docs.pictures`"
            assert kept.stat().st_size < 60_000


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_page(page: Path, tmp_path: Path) -> None:
    text = page.read_text()
    if program(text).strip():
        result = run(text, tmp_path, page.name)
        assert result.returncode == 0, result.stdout + result.stderr
        check_output(text, result.stdout)
        check_pictures(text, tmp_path / "work")


@pytest.mark.parametrize(("says", "right"), [("4", True), ("5", False), ("≈5", True), ("…", False), ("4\n4", False)])
def test_a_text_block_is_what_the_block_before_it_prints(says: str, right: bool, tmp_path: Path) -> None:
    page = f"```python\nprint(2 + 2)\n```\n\n```text\n{says}\n```\nand\n```python\nprint('more')\n```\n"
    output = run(page, tmp_path).stdout
    if right:
        check_output(page, output)
    else:
        with pytest.raises(AssertionError, match=r"the block at line 1 prints:\s+4"):
            check_output(page, output)


def test_the_readme_has_an_example_that_runs() -> None:
    assert "loadax.Dataloader(" in program((ROOT / "README.md").read_text())


@pytest.mark.parametrize("page", sorted(ROOT.glob("*.md")), ids=lambda page: page.name)
def test_relative_links_of_root_pages_name_existing_files(page: Path) -> None:
    """The build of the site checks all other pages."""
    targets = re.findall(r"(?:\]\(|href=\"|src(?:set)?=\")(?![a-z]+:)([^)\"#\s]+)", page.read_text("utf-8"))
    assert [target for target in targets if not (ROOT / target).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_python_of_pages_fits_its_box_and_headings_are_whole(page: Path) -> None:
    text = page.read_text("utf-8")
    assert wide_lines(text) == [], f"at most {CODE_COLUMNS} columns: `ruff format --line-length {CODE_COLUMNS}`"
    assert broken_headings(text) == []


def test_wide_code_and_broken_headings_are_found() -> None:
    code = "x" * CODE_COLUMNS
    page = f"```python\n{code}y\n```\n{code}yz\n~~~ text\n{code}yz\n~~~\n  ```python\n  {code}\n  {code}z\n  ```\n"
    assert wide_lines(page) == [f"2: {code}y", f"10:   {code}z"]
    page = "# Title\n```bash\n# ](in code)\n```\n[Daft\n#7184](https://a.b) x\n## ](c)\n## [Whole](d)\n### 2 of 3\n"
    assert broken_headings(page) == ["#7184](https://a.b) x", "## ](c)"]


def test_blocks_of_a_page_share_their_names(tmp_path: Path) -> None:
    result = run(
        "```python\nx = 1\n```\ntext\n```bash\nfalse\n```\n    ```python\n    if x:\n        print(x + 1)\n    ```\n",
        tmp_path,
    )
    assert result.stdout == "@0\n@7\n2\n", result.stderr


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


def test_the_pictures_are_what_their_code_draws() -> None:
    for name, draw in DRAWINGS.items():
        assert (ROOT / "docs" / "assets" / name).read_text() == draw(), f"run `python -m docs.pictures` for {name}"


def test_pictures_of_orders_are_of_pages() -> None:
    text = "".join(page.read_text("utf-8") for page in pages())
    names = sorted(path.name for path in ASSETS.iterdir())
    assert len(names) == 12
    assert [name for name in names if f'"../assets/orders/{name}"' not in text] == []


def test_synonyms_name_pages() -> None:
    assert [page for page in SYNONYMS if not (ROOT / "docs" / page).is_file()] == []
