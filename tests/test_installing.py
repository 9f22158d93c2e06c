"""Advice to install packages."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_no_text_installs_the_other_project_called_loadax() -> None:
    """On the package index, `loadax` is another project, with or without extras."""
    files = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("loadax/**/*.py"), *ROOT.glob("examples/*.py")]
    assert len(files) > 100
    # A clone is a path.
    told = {path.name: re.findall(r"install [^\n]*(?<![/\w])loadax\b[^\n]*", path.read_text("utf-8")) for path in files}
    assert not {name: lines for name, lines in told.items() if lines}
