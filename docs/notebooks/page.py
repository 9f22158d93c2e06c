"""A notebook as a page of the site: Markdown of its text, code and stored outputs, and the pictures."""

import base64
import json
from pathlib import Path
from typing import Any, NamedTuple

from docs.notebooks import COVER

_WIDE = "---\nhide: [toc]\n---"  # a line of code is wider than a page beside its table of contents


class Page(NamedTuple):
    """A page.

    Args:
        markdown: Its text.
        pictures: PNG files by name.
    """

    markdown: str
    pictures: dict[str, bytes]


def page(notebook: Path) -> Page:
    """Converts a notebook; its links to `../../docs/` become links of the site.

    Raises:
        ValueError: If an output is an error or a warning, or a picture has no text in the cell's metadata "alt".
    """
    parts: list[str] = []
    pictures: dict[str, bytes] = {}
    for cell in json.loads(notebook.read_text("utf-8"))["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source.replace("](../../docs/", "](../"))
            continue
        parts.append(_block("python", source))
        for output in cell["outputs"]:
            name = f"{notebook.stem}-{len(pictures) + 1}.png"
            parts.append(_output(output, cell["metadata"].get("alt"), name, f"{notebook.name}, cell {cell['id']}"))
            if "image/png" in output.get("data", {}):
                pictures[name] = base64.b64decode(output["data"]["image/png"])
    title, *rest = parts
    note = (
        f"This page is a notebook, [{notebook.name}]({notebook.name}), with the outputs of its last run. It is in "
        "`examples/notebooks` of the repository."
    )
    heading, _, text = title.partition("\n")
    return Page("\n\n".join([_WIDE, heading, note, text.strip(), *rest]) + "\n", pictures)


def cover(notebook: Path) -> bytes:
    """The picture of the cell with the tag "cover", as a PNG file."""
    cells = json.loads(notebook.read_text("utf-8"))["cells"]
    (cell,) = (cell for cell in cells if COVER in cell["metadata"].get("tags", ()))
    (picture,) = (data["image/png"] for output in cell["outputs"] if "image/png" in (data := output.get("data", {})))
    return base64.b64decode(picture)


def _output(output: dict[str, Any], alt: str | None, picture: str, where: str) -> str:
    if output["output_type"] == "error" or output.get("name") == "stderr":
        raise ValueError(f"{where} has an error or a warning among its outputs: {output}")
    if output["output_type"] == "stream":
        return _block("text", "".join(output["text"]))
    data = output["data"]
    if "image/png" in data:
        if alt is None:
            raise ValueError(f'{where} has a picture; describe it in the metadata of the cell: "alt"')
        return f"![{alt}]({picture})"
    if "text/html" in data:
        html = "".join(data["text/html"])
        return f'<div class="output">\n{html}\n</div>'
    return _block("text", "".join(data["text/plain"]))


def _block(language: str, text: str) -> str:
    return f"```{language}\n{text.rstrip()}\n```"
