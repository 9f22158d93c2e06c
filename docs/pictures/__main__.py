"""Draws the pictures of the site: `python -m docs.pictures`, and runs the guides that save pictures of orders.

benchmarks/tables.py draws the charts of measurements. What the examples print is recorded by
`python -m docs.pictures.record`, and the covers of notebooks are written by `python -m docs.notebooks`.
"""

from pathlib import Path

from docs.pictures import DRAWINGS
from docs.pictures.orders import draw_orders

if __name__ == "__main__":
    for name, draw in DRAWINGS.items():
        path = Path(__file__).parents[1] / "assets" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(draw())
    draw_orders()
