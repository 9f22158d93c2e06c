"""Every example is in the gallery, with its picture and its time, and every notebook is a page with its outputs."""

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from nbformat import v4

from docs.notebooks import COVERS, NOTEBOOKS, ROOT, VARIES
from docs.notebooks.execution import differences
from docs.notebooks.page import Page, cover, page
from docs.pictures.outputs import EXAMPLES, recorded

GALLERY = (ROOT / "docs" / "examples" / "index.md").read_text("utf-8")
PNG = base64.b64encode(b"a picture").decode()
MOST_BYTES = 100_000  # of a picture
by_name = pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_is_in_the_gallery(name: str) -> None:
    assert f"`examples/{name}.py`, {recorded(name).seconds} seconds" in GALLERY
    for mode in ("light", "dark"):
        assert f'="../assets/examples/{name}-{mode}.svg">' in GALLERY
        assert (COVERS / f"{name}-{mode}.svg").exists()


@by_name
def test_a_notebook_is_in_the_gallery(notebook: Path) -> None:
    seconds = json.loads(notebook.read_text("utf-8"))["metadata"]["processor_seconds"]
    link = f"](../../examples/notebooks/{notebook.name})"  # of the repository; the site makes pages of them
    assert f"{link}, {seconds} seconds" in GALLERY
    assert f"](../assets/examples/{notebook.stem}.png){link}" in GALLERY
    assert (COVERS / f"{notebook.stem}.png").read_bytes() == cover(notebook), "run `python -m docs.notebooks`"
    assert f"examples/{notebook.stem}.md" in (ROOT / "mkdocs.yml").read_text("utf-8")


@by_name
def test_a_notebook_is_stored_with_its_outputs(notebook: Path) -> None:
    cells = [cell for cell in json.loads(notebook.read_text("utf-8"))["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    pictures = page(notebook).pictures
    assert pictures
    assert max(map(len, pictures.values())) < MOST_BYTES


def outputs(*found: Any, **metadata: Any) -> Any:
    return v4.new_notebook(cells=[v4.new_code_cell("run()", outputs=list(found), metadata=metadata)])


def paged(folder: Path, notebook: Any) -> Page:
    path = folder / "waves.ipynb"
    notebook.cells.insert(0, v4.new_markdown_cell("# Waves\n\nSee [meshes](../../docs/guides/meshes.md)."))
    path.write_text(json.dumps(notebook))
    return page(path)


def test_a_page_has_text_code_and_outputs(tmp_path: Path) -> None:
    printed = v4.new_output("stream", text="one\ntwo\n")
    table = v4.new_output("execute_result", {"text/html": "<table></table>", "text/plain": "a table"})
    picture = v4.new_output("display_data", {"image/png": PNG, "text/plain": "a figure"})
    value = v4.new_output("execute_result", {"text/plain": "3"})
    markdown, pictures = paged(tmp_path, outputs(printed, table, picture, value, alt="A wave"))
    matter, heading, note, rest = markdown.split("\n\n", 3)
    assert (matter, heading) == ("---\nhide: [toc]\n---", "# Waves")
    assert "[waves.ipynb](waves.ipynb)" in note
    assert rest == (
        "See [meshes](../guides/meshes.md).\n\n```python\nrun()\n```\n\n```text\none\ntwo\n```\n\n"
        '<div class="output">\n<table></table>\n</div>\n\n![A wave](waves-1.png)\n\n```text\n3\n```\n'
    )
    assert pictures == {"waves-1.png": b"a picture"}


@pytest.mark.parametrize(
    "output",
    [
        v4.new_output("error", ename="ValueError", evalue="no", traceback=[]),
        v4.new_output("stream", name="stderr", text="UserWarning"),
    ],
    ids=["error", "warning"],
)
def test_a_page_shows_no_failure(output: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"waves.ipynb, cell .* has an error or a warning"):
        paged(tmp_path, outputs(output))


def test_a_picture_of_a_page_is_described(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="describe it in the metadata of the cell"):
        paged(tmp_path, outputs(v4.new_output("display_data", {"image/png": PNG})))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (v4.new_output("stream", text="1"), v4.new_output("stream", text="2")),
        (v4.new_output("execute_result", {"text/plain": "1"}), v4.new_output("execute_result", {"text/plain": "2"})),
        (v4.new_output("display_data", {"text/html": "1"}), v4.new_output("display_data", {"text/html": "2"})),
    ],
    ids=["print", "value", "table"],
)
def test_the_check_compares_what_cells_print(before: Any, after: Any) -> None:
    assert not list(differences(outputs(before), outputs(before)))
    (told,) = differences(outputs(before), outputs(after))
    assert told == "cell 1 prints\n['2']\nand not\n['1']"
    assert not list(differences(outputs(before, tags=[VARIES]), outputs(after, tags=[VARIES])))
    assert list(differences(outputs(before), outputs()))


def test_the_check_leaves_pictures_out() -> None:
    stored, executed = (v4.new_output("display_data", {"image/png": data}) for data in (PNG, PNG[:4]))
    assert not list(differences(outputs(stored), outputs(executed)))
