"""The notebooks of `examples/notebooks`: `python -m docs.notebooks` runs them, and the site shows them as pages."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
COVERS = ROOT / "docs" / "assets" / "examples"
NOTEBOOKS = sorted((ROOT / "examples" / "notebooks").glob("*.ipynb"))
VARIES = "varies"
"""Tag of a cell whose output depends on the time, the machine or the version of Python."""
COVER = "cover"
"""Tag of the cell whose picture shows the notebook in the gallery."""
