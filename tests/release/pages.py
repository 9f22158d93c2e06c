"""What the README says that can be run."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def example() -> str:
    """The first Python block of the README."""
    found = re.search(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text("utf-8"), re.DOTALL | re.MULTILINE)
    assert found is not None, "README.md has no Python block"
    return found[1]
