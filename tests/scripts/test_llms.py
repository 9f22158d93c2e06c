"""`llms.txt` and `llms-full.txt`: every page once, decisions apart, and links that lead to files of the site."""

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

griffe = pytest.importorskip("griffe", reason="of the extra docs")
llms = pytest.importorskip("docs.hooks.llms")
ROOT = Path(__file__).parents[2]
CODE = re.compile(r"^ *(`{3,}|~{3,}).*?^ *\1 *$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?![a-z]+:|#)([^)\s#]+)")


def chain_of(*pages: tuple[str, str, str]) -> Any:
    """Files of mkdocs whose pages follow one another: section, path and Markdown of each."""
    following = None
    made = []
    for section, uri, markdown in reversed(pages):
        page = SimpleNamespace(
            file=SimpleNamespace(src_uri=uri),
            markdown=markdown,
            title=uri,
            ancestors=[SimpleNamespace(title=section)] if section else [],
            next_page=following,
            is_homepage=uri == "index.md",
        )
        following = page
        made.append(SimpleNamespace(page=page))
    return SimpleNamespace(documentation_pages=lambda: made)


CONFIG = {"site_name": "loadax", "site_description": "Batches"}


def test_pages_are_listed_by_section_with_their_first_sentence(tmp_path: Path) -> None:
    files = chain_of(
        ("", "index.md", "# Home\n\n![a](b.svg)\n\nAll of it. More.\n"),
        ("Development", "decisions/0001.md", "# 0001: one\n\n**Question.** Why? Because.\n"),
        ("Guides", "guides/a.md", "# A guide\n\n```python\nx = 1  # [no](link.md)\n```\n\nOf [two](b.md)\nlines.\n"),
        ("Guides", "guides/b.md", "# Table\n\n| a |\n|---|\n"),
    )
    llms.on_env(None, SimpleNamespace(site_dir=tmp_path, **CONFIG), files)
    assert (tmp_path / "llms.txt").read_text().split("\n\n", 3)[3] == (
        "## Overview\n\n- [Home](index.md): All of it.\n\n"
        "## Guides\n\n- [A guide](guides/a.md): Of two lines.\n- [Table](guides/b.md)\n\n"
        "## Optional\n\n- [0001: one](decisions/0001.md): **Question.** Why?\n"
    )
    full = (tmp_path / "llms-full.txt").read_text()
    assert "decisions/0001.md" not in full
    assert "Of [two](guides/b.md)\n" in full
    assert full.index("# Home") < full.index("# A guide") < full.index("# Table")
    assert "Of [two](b.md)\n" in (tmp_path / "guides/a.md").read_text()


@pytest.fixture(scope="module", autouse=True)
def package() -> Iterator[Any]:
    """The package, parsed once, however often the hooks load it."""
    parsed = griffe.load("loadax", search_paths=[ROOT])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(griffe, "load", lambda *_, **__: parsed)
        yield parsed


def test_pages_of_the_api_have_signatures_and_docstrings(package: Any) -> None:
    text = llms.plain("::: loadax.Dataset\n    options:\n      heading_level: 1\n", "Dataset", package)
    assert text.startswith("# Dataset\n\n```python\nDataset(source: ")
    assert "\n## shuffle\n\n```python\nshuffle(seed: int" in text
    assert "heading_level" not in text
    assert "## _make" not in text


def test_references_that_the_site_resolves_become_text() -> None:
    text = llms.plain("# A\n\n[`loadax.zip([a, b])`][loadax.zip], [mixes][loadax.mix] and [b](b.md)\n", "A", None)
    assert text == "# A\n\n`loadax.zip([a, b])`, mixes and [b](b.md)\n"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """What the hook writes of the real pages, which are read but not rendered, and the paths of these."""
    config_of = pytest.importorskip("mkdocs.config.base", reason="mkdocs comes with the extra docs")
    structure = pytest.importorskip("mkdocs.structure.files")
    navigation = pytest.importorskip("mkdocs.structure.nav")
    folder = tmp_path_factory.mktemp("site")
    config = config_of.load_config(str(ROOT / "mkdocs.yml"), site_dir=str(folder))
    config = config.plugins.on_config(config)
    files = config.plugins.on_files(structure.get_files(config), config=config)
    navigation.get_navigation(files, config)
    pages = [file.page for file in files.documentation_pages()]
    for page in pages:
        page.read_source(config)
        page.markdown = config.plugins.on_page_markdown(page.markdown, page=page, config=config, files=files)
    llms.on_env(None, config, files)
    files.copy_static_files()
    return folder, [page.file.src_uri for page in pages]


def test_each_page_is_listed_once_and_decisions_are_optional(site: tuple[Path, list[str]]) -> None:
    folder, pages = site
    text = (folder / "llms.txt").read_text("utf-8")
    entries = re.findall(r"^- \[[^\]]+\]\(([^)]+)\)", text, re.MULTILINE)
    assert sorted(entries) == sorted(pages)
    assert len(pages) > 200
    needed, optional = text.split("\n## Optional\n")
    assert "](decisions/" in optional
    assert "](decisions/" not in needed
    assert "](development/" not in needed
    assert re.findall("^## (.*)", needed, re.MULTILINE)[:3] == ["Overview", "Start", "Guides"]
    described = re.findall(r"^- \[[^\]]+\]\([^)]+\): \S.*", text, re.MULTILINE)
    assert len(described) > 0.95 * len(pages)


def test_full_text_has_all_pages_but_optional_ones(site: tuple[Path, list[str]]) -> None:
    folder, pages = site
    text = (folder / "llms-full.txt").read_text("utf-8")
    needed = [page for page in pages if not page.startswith(("decisions/", "development/"))]
    assert sorted(re.findall(r"^<!-- (\S+\.md) -->$", text, re.MULTILINE)) == sorted(needed)
    assert "::: loadax" not in text
    assert "][loadax" not in text
    assert "Raises:" in text


def test_links_lead_to_files_of_the_site(site: tuple[Path, list[str]]) -> None:
    folder, pages = site
    links = [
        (uri, target)
        for uri in ["llms.txt", "llms-full.txt", *pages]
        for target in LINK.findall(re.sub(r"`[^`\n]+`", "code", CODE.sub("", (folder / uri).read_text("utf-8"))))
    ]
    assert len(links) > 1000
    assert [link for link in links if not (folder / posixpath.dirname(link[0]) / link[1]).exists()] == []
