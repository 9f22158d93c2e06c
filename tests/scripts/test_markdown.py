"""Pages are plain Markdown: the website of a repository renders README and `docs/` as the site does.

No page has a mark of the site's own, every link leads to a file of the repository and to a heading as repositories name
it, and GitHub's Markdown and the site's make the same text of a page.
"""

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from docs.hooks import markup

ROOT = Path(__file__).parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), ROOT / "benchmarks/README.md", ROOT / "loadax/README.md"]
PAGES += sorted((ROOT / "docs").rglob("*.md"))

# What only Python-Markdown, its extensions or the theme know.
MARKS = {
    "admonition": r"^ *(?:!!!|\?\?\?\+?) ",
    "alert": r"^> *\[!",  # of GitHub alone
    "tab": r"^ *===[+!]? \"",
    "directive": r"^ *::: ?\w",
    "snippet": r"--8<--",
    "attribute list": r"\{ *:? *[#.][\w-][^}\n]*\}|\{: ",
    "definition list": r"^: ",
    "cross-reference": r"\]\[[\w.]*\]",
    "icon": r":(?:material|octicons|fontawesome|simple)-[\w-]+:",
    "picture of one mode": r"#(?:only|gh)-(?:light|dark)",
    "front matter": r"\A---\n",
}
_CODE = re.compile(r"^ *(`{3,}|~{3,}).*?^ *\1 *$|`[^`\n]+`", re.MULTILINE | re.DOTALL)
_EXTENSIONS = ("admonition", "attr_list", "md_in_html", "pymdownx.highlight", "pymdownx.superfences", "tables", "toc")


def marks(page: str) -> list[str]:
    """Marks of the site's own, by their names."""
    text = _CODE.sub("code", page)
    return [f"{name}: {found[0]!r}" for name, mark in MARKS.items() for found in re.finditer(mark, text, re.MULTILINE)]


def anchors(page: str) -> set[str]:
    """The anchors that a repository's website gives to the headings of a page."""
    text = re.sub(r"^ *(`{3,}|~{3,}).*?^ *\1 *$", "", page, flags=re.MULTILINE | re.DOTALL)
    names: dict[str, int] = {}
    for heading in re.findall(r"^#+ +(.*?) *$", text, re.MULTILINE):
        shown = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        name = re.sub(r"[^\w\- ]", "", shown.lower()).replace(" ", "-")
        names[name] = names.get(name, 0) + 1
    return {f"{name}-{turn}" if turn else name for name, count in names.items() for turn in range(count)}


def dead_links(path: Path) -> list[str]:
    """Links of a page to a file that the repository lacks, or to a heading that the file lacks."""
    dead = []
    text = _CODE.sub("code", path.read_text("utf-8"))
    for target, _, anchor in (link.partition("#") for link in re.findall(r"(?:\]\(|src(?:set)?=\")([^)\"\s]+)", text)):
        if re.match(r"[a-z]+:", target):
            continue
        file = path.parent / target if target else path
        if not file.exists() or (anchor and anchor not in anchors(file.read_text("utf-8"))):
            dead.append(f"{target}#{anchor}" if anchor else target)
    return dead


class Text(HTMLParser):
    """The text of a page, and which blocks, codes and emphases it is in."""

    def __init__(self) -> None:
        super().__init__()
        self.parts: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        del attrs
        if tag in {"ul", "ol", "li", "h1", "h2", "h3", "h4", "td", "th", "pre", "strong", "em", "code"}:
            self.parts.append(f"<{tag}>")
        elif tag in {"p", "br", "table", "tr"}:
            self.parts.append(" ")

    def handle_endtag(self, tag: str) -> None:
        self.parts.append(" " if tag in {"li", "td", "th", "pre", "p", "h1", "h2", "h3", "h4"} else "")

    def handle_data(self, data: str) -> None:
        self.parts.append(data)


def text_of(html: str) -> str:
    """The words of a page, and marks of its blocks."""
    parser = Text()
    parser.feed(html)
    text = " ".join("".join(parser.parts).split())
    return re.sub(r"(?<=>) | (?=<)", "", text).replace("<pre><code>", "<pre>")


def difference(page: str) -> str:
    """Where the site and a repository's website begin to render a page differently; empty if nowhere."""
    markdown = pytest.importorskip("markdown", reason="the site's Markdown comes with the extra docs")
    commonmark = pytest.importorskip("markdown_it", reason="markdown-it-py comes with the extra docs")
    site = text_of(markdown.markdown(page, extensions=_EXTENSIONS))
    elsewhere = text_of(commonmark.MarkdownIt("commonmark", {"html": True}).enable("table").render(page))
    if site == elsewhere:
        return ""
    same = next(i for i, (one, other) in enumerate(zip(f"{site}\0", f"{elsewhere}\0", strict=False)) if one != other)
    start = max(0, same - 40)
    return f"the site: {site[start : same + 60]!r}; elsewhere: {elsewhere[start : same + 60]!r}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_page_has_no_mark_of_the_site_alone(page: Path) -> None:
    assert marks(page.read_text("utf-8")) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files_and_headings_of_the_repository(page: Path) -> None:
    assert dead_links(page) == []


def test_page_renders_elsewhere_as_on_the_site() -> None:
    found = {str(page.relative_to(ROOT)): difference(page.read_text("utf-8")) for page in PAGES}
    assert {name: text for name, text in found.items() if text} == {}


@pytest.mark.parametrize(
    ("page", "name"),
    [
        ('!!! note "Title"\n\n    text', "admonition"),
        ("???+ note\n    text", "admonition"),
        ("> [!NOTE]\n> text", "alert"),
        ('=== "Tab"\n\n    text', "tab"),
        ("::: loadax.mix", "directive"),
        ('--8<-- "file.md"', "snippet"),
        ("## Title { #anchor }", "attribute list"),
        ("[link](a.md){ .md-button }", "attribute list"),
        ("[link](a.md){: .wide}", "attribute list"),
        ("term\n: text", "definition list"),
        ("[`mix`][loadax.mix]", "cross-reference"),
        ("[mix][]", "cross-reference"),
        (":material-check:", "icon"),
        ("![a](b.svg#only-dark)", "picture of one mode"),
        ("---\nhide: [toc]\n---\n# Title", "front matter"),
    ],
)
def test_each_mark_is_found(page: str, name: str) -> None:
    assert [found.partition(":")[0] for found in marks(page)] == [name]
    assert marks(f"```text\n{page}\n```\nand `{page.splitlines()[0]}`") == []


def test_dead_links_are_found(tmp_path: Path) -> None:
    (tmp_path / "other.md").write_text("# Title\n## `pack`: of rows, twice\n## Twice\n## Twice\n```\n# code\n```\n")
    page = tmp_path / "page.md"
    page.write_text(
        "[a](other.md) [b](other.md#pack-of-rows-twice) [c](other.md#twice-1) [d](https://e.f#g) `[h](i.md)`\n"
        "[j](nowhere.md) [k](other.md#code) [l](#m)"
    )
    assert dead_links(page) == ["nowhere.md", "other.md#code", "#m"]


@pytest.mark.parametrize("page", ["text\n- a\n- b\n", "1. a\n  - b\n", "| a |\n|---|\n| `b | c` |\n"])
def test_what_one_of_both_renders_otherwise_is_found(page: str) -> None:
    assert difference(page)


def test_the_site_shows_a_picture_of_its_own_mode() -> None:
    page = (ROOT / "README.md").read_text("utf-8")
    picture = page[page.index("<picture>") : page.index("</picture>") + len("</picture>")]
    assert [line.split("/")[-1] for line in markup.pictures(picture).splitlines()] == [
        "mesh-light.svg#only-light)",
        "mesh-dark.svg#only-dark)",
    ]
    with pytest.raises(ValueError, match=r"write this picture as README\.md does: <picture><img"):
        markup.pictures('<picture><img src="a.svg"></picture>')


def test_links_to_files_of_the_repository_lead_to_pages_of_the_site() -> None:
    pages = {"SECURITY.md": "development/security.md"}
    page = "[a](../../SECURITY.md#supply-chain) [b](other.md) [c](https://d.e)"
    assert markup.links(page, "guides/page.md", pages) == page.replace(
        "../../SECURITY.md", "../development/security.md"
    )
    assert markup.links("[a](../SECURITY.md)", "index.md", pages) == "[a](development/security.md)"


def test_code_that_names_an_object_links_to_it_once() -> None:
    page = (
        "# `loadax.mix`\n`loadax.mix(a)` `loadax.mix` [`loadax.zip`](b.md) `loadax.no`\n```python\n`loadax.zip`\n```\n"
    )
    expected = page.replace("`loadax.mix(a)`", "[`loadax.mix(a)`][loadax.mix]")
    assert markup.references(page, {"loadax.mix": "", "loadax.zip": ""}) == expected
