"""Executes notebooks, and compares the outputs with those that are stored."""

import copy
import os
from collections.abc import Iterator
from tempfile import TemporaryDirectory

import nbclient
from nbformat import NotebookNode

from docs.notebooks import ROOT, VARIES

_LIMIT = 300  # seconds a cell


def execute(notebook: NotebookNode) -> NotebookNode:
    """Runs all cells in a new kernel and an empty folder; returns a copy with the outputs.

    Raises:
        nbclient.exceptions.CellExecutionError: If a cell raises.
    """
    executed = copy.deepcopy(notebook)
    executed.metadata = {name: value for name, value in notebook.metadata.items() if name != "processor_seconds"}
    language = executed.metadata["language_info"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "0"}
    with TemporaryDirectory() as folder:
        client = nbclient.NotebookClient(
            executed,
            timeout=_LIMIT,
            coalesce_streams=True,
            record_timing=False,
            resources={"metadata": {"path": folder}},
        )
        client.execute(env=environment)
    executed.metadata["language_info"] = language  # not the version of Python
    return executed


def differences(stored: NotebookNode, executed: NotebookNode) -> Iterator[str]:
    """Yields a text for each cell whose printed output is not what is stored. Pictures are not compared."""
    for number, (before, after) in enumerate(zip(stored.cells, executed.cells, strict=True), 1):
        if VARIES not in before.metadata.get("tags", ()) and _texts(before) != _texts(after):
            yield f"cell {number} prints\n{_texts(after)}\nand not\n{_texts(before)}"


def _texts(cell: NotebookNode) -> list[str]:
    return [text for output in cell.get("outputs", ()) if (text := _text(output)) is not None]


def _text(output: NotebookNode) -> str | None:
    if output.output_type == "stream":
        return str(output.text)
    data = output.data
    return None if "image/png" in data else str(data.get("text/html", data.get("text/plain")))
