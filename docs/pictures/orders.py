"""Pictures of orders: the code of a guide saves them, and is run once for light pages and once for dark ones."""

import os
import re
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

DOCS = Path(__file__).parents[1]
ASSETS = DOCS / "assets" / "orders"
MODES = ("light", "dark")
SAVES = ".savefig("


def pages() -> list[Path]:
    """Guides whose code saves pictures."""
    return [page for page in sorted(DOCS.glob("guides/*.md")) if SAVES in page.read_text("utf-8")]


def style(mode: str) -> Path:
    """Style of matplotlib for pages of a mode."""
    return Path(__file__).parent / f"{mode}.matplotlibrc"


def saved_by(page: Path, mode: str) -> dict[str, str]:
    """Runs a page up to the last picture that it saves, and returns the pictures by their names.

    Raises:
        subprocess.CalledProcessError: If the code fails.
    """
    blocks = re.findall(r"^```python\n(.*?)^```$", page.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    last = max(number for number, block in enumerate(blocks) if SAVES in block)
    environment = {
        **os.environ,
        "JAX_NUM_CPU_DEVICES": "8",
        "JAX_PLATFORMS": "cpu",
        "MATPLOTLIBRC": str(style(mode)),
        "PYTHONPATH": str(DOCS.parent),
        "SOURCE_DATE_EPOCH": "0",
    }
    with TemporaryDirectory() as folder:
        program = Path(folder, "page.py")
        program.write_text("\n".join(blocks[: last + 1]), "utf-8")
        subprocess.run([sys.executable, program], cwd=folder, env=environment, check=True, stdout=subprocess.DEVNULL)  # noqa: S603
        return {path.stem: path.read_text("utf-8") for path in Path(folder).glob("*.svg")}


def draw_orders() -> None:
    """Writes the pictures of all guides."""
    ASSETS.mkdir(exist_ok=True)
    for page in pages():
        for mode in MODES:
            for name, text in saved_by(page, mode).items():
                lines = [line.rstrip() for line in text.splitlines()]
                (ASSETS / f"{name}-{mode}.svg").write_text("\n".join(lines) + "\n", "utf-8")
