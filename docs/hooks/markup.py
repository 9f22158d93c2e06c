"""What the site makes of Markdown that a repository's website renders too.

Pages are plain Markdown: they link to files of the repository, and have pictures for light and dark modes as HTML.
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path

_PICTURE = re.compile(
    r'<picture>\s*<source media="\(prefers-color-scheme: dark\)" srcset="([^"]+)">\s*'
    r'<img\s+alt="([^"]*)"\s+src="([^"]+)">\s*</picture>'
)
_LINK = re.compile(r"\]\(([^)#\s]+)")
# Code, links and headings stay as they are; of what is left, code spans may name an object.
_PARTS = re.compile(
    r"^ *(`{3,}).*?^ *\1 *$|\[[^\]`]*(?:`[^`]*`[^\]`]*)*\]\([^)]*\)|^#.*?$|`[^`]+`", re.MULTILINE | re.DOTALL
)
_NAME = re.compile(r"`(loadax(?:\.\w+)+)(?:\([^`]*\))?`")


def pictures(markdown: str) -> str:
    """Pictures follow the mode of the site, which readers switch, and not that of the browser.

    Raises:
        ValueError: For a picture in another form, whose paths mkdocs would not change to those of the site.
    """
    text = _PICTURE.sub(r"![\2](\3#only-light)\n![\2](\1#only-dark)", markdown)
    if "<picture>" in text:
        raise ValueError(f"write this picture as README.md does: {text[text.index('<picture>') :][:300]}")
    return text


def links(markdown: str, page: str, pages: Mapping[str, str]) -> str:
    """Links to files of the repository become links to the pages that the site makes of them.

    Args:
        markdown: Text of a page.
        page: Path of the page in `docs/`.
        pages: Paths in `docs/` that the site adds, by files of the repository.
    """
    folder = Path(page).parent

    def link(match: re.Match[str]) -> str:
        target = pages.get(os.path.normpath(Path("docs") / folder / match[1]))
        return match[0] if target is None else f"]({os.path.relpath(target, folder)}"

    return _LINK.sub(link, markdown)


def references(markdown: str, names: Mapping[str, object]) -> str:
    """Code such as `loadax.mix(…)` links to its API page, where a page first has it."""
    seen: set[str] = set()

    def reference(match: re.Match[str]) -> str:
        found = _NAME.fullmatch(match[0])
        if found is None or found[1] not in names or found[1] in seen:
            return match[0]
        seen.add(found[1])
        return f"[{match[0]}][{found[1]}]"

    return _PARTS.sub(reference, markdown)
