"""mkdocs hook: the docs for language models, as llmstxt.org describes it.

`llms.txt` lists each page once, with its first sentence; `llms-full.txt` has the text of those that are not optional.
The pages that they link are Markdown, beside the site's own: `guides/speed.md`.
"""

import posixpath
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import griffe

ROOT = Path(__file__).parents[2]
OPTIONAL = "Development"  # a section of the navigation, with the decisions

_DIRECTIVE = re.compile(r"^::: loadax\.([\w.]+)\n(?: +.*\n)*", re.MULTILINE)
_REFERENCE = re.compile(r"\[(`[^`\n]+`|[^\]\n]+)\]\[loadax[\w.]*\]")
_LINK = re.compile(r"\]\((?![a-z]+:|#)([^)\s]+)")
_CODE = re.compile(r"^ *(`{3,}|~{3,}).*?^ *\1 *$", re.MULTILINE | re.DOTALL)


def on_env(env: Any, config: Any, files: Any) -> Any:
    """Writes the files, now that all pages are read."""
    package = griffe.load("loadax", search_paths=[ROOT])
    texts: dict[str, str] = {}
    sections: dict[str, list[str]] = {}
    page = next(file.page for file in files.documentation_pages() if file.page.is_homepage)
    while page is not None:
        uri = page.file.src_uri
        texts[uri] = plain(page.markdown, page.title, package)
        section = page.ancestors[-1].title if page.ancestors else "Overview"
        sections.setdefault("Optional" if section == OPTIONAL else section, []).append(uri)
        page = page.next_page
    written = {**texts, "llms.txt": index(config, sections, texts), "llms-full.txt": full(sections, texts)}
    for uri, text in written.items():
        path = Path(config.site_dir, uri)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    return env


def plain(markdown: str, title: str, package: Any) -> str:
    """A page with a title, with docstrings in place of directives, and without references that the site resolves."""
    text = _DIRECTIVE.sub(lambda match: "\n".join(documented(package[match[1]], "##")), markdown)
    text = _REFERENCE.sub(r"\1", text).strip() + "\n"
    return text if re.search("^# ", _CODE.sub("", text), re.MULTILINE) else f"# {title}\n\n{text}"


def documented(found: Any, heading: str) -> Iterator[str]:
    """Signature and docstring of an object, and of its public members."""
    final = found.final_target if found.is_alias else found
    signature = final.signature() if final.is_function or final.is_class else final.name
    yield f"```python\n{signature}\n```\n\n{final.docstring.value}\n"
    for name, member in final.members.items() if final.is_class else ():
        if member.docstring and not re.match("_(?!_)", name):
            yield f"{heading} {name}\n"
            yield from documented(member, f"{heading}#")


def index(config: Any, sections: Mapping[str, list[str]], texts: Mapping[str, str]) -> str:
    """`llms.txt`: all pages by section, those that are optional last."""
    lines = [f"# {config.site_name}", "", f"> {config.site_description}", ""]
    lines += ["All of it but the section *Optional*, in one file: [llms-full.txt](llms-full.txt)"]
    for section in sorted(sections, key=lambda section: section == "Optional"):
        lines += ["", f"## {section}", ""]
        for uri in sections[section]:
            title, sentence = summary(texts[uri])
            lines.append(f"- [{title}]({uri})" + (f": {sentence}" if sentence else ""))
    return "\n".join(lines) + "\n"


def summary(text: str) -> tuple[str, str]:
    """Title and first sentence of a page; empty if it has none."""
    title, _, rest = re.sub(r"\A.*?^# ", "", text, flags=re.MULTILINE | re.DOTALL).partition("\n")
    parts = [part.strip() for part in _CODE.sub("", rest).split("\n\n")]
    prose = next((part for part in parts if re.match(r"(?!This page is a notebook)[\w`*\[]", part)), "")
    flat = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", " ".join(prose.split()))
    return title.split(" { #")[0], re.split(r"(?<=[.?!:]) (?=[A-Z`*])", flat)[0]


def full(sections: Mapping[str, list[str]], texts: Mapping[str, str]) -> str:
    """`llms-full.txt`: the pages one after the other, with links from the root of the site."""
    parts = []
    for section, uris in sections.items():
        for uri in uris if section != "Optional" else ():
            folder = posixpath.dirname(uri)
            link = lambda match, folder=folder: f"]({posixpath.normpath(posixpath.join(folder, match[1]))}"  # noqa: E731
            parts.append(f"<!-- {uri} -->\n\n{_LINK.sub(link, texts[uri])}")
    return "\n".join(parts)
