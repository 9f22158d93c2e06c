"""Draws the pictures of the site: `python -m docs.pictures`.

benchmarks/tables.py draws the charts of measurements.
"""

from pathlib import Path

from docs.pictures import DRAWINGS

if __name__ == "__main__":
    for name, draw in DRAWINGS.items():
        (Path(__file__).parents[1] / "assets" / name).write_text(draw())
