"""How `shuffle(block="chunks", lanes=2, window=2)` orders 8 chunks; the order is the one that loadax plans."""

import warnings
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

import loadax
from docs.pictures.svg import Palette, box, picture, text

_CHUNK, _CHUNKS = 4, 8
COLOURS = ("#0d9488", "#d97706", "#7c3aed", "#2563eb", "#db2777", "#65a30d", "#dc2626", "#64748b")


def lanes(palette: Palette) -> str:
    """The stored chunks, the two lanes, and the first four batches."""
    order = _order()
    elements = [text(20, 26, "stored: 8 chunks of 4 rows", palette.text, 13, "start", 600)]
    for chunk in range(_CHUNKS):
        elements += [_cell(20 + 90 * chunk + 20 * row, 40, chunk, chunk * _CHUNK + row) for row in range(_CHUNK)]
    for lane in range(2):
        y = 112 + 58 * lane
        elements.append(text(20, y, f"lane {lane}: mixes the rows of up to two chunks", palette.text, 13, "start", 600))
        elements += [_cell(20 + 24 * place, y + 12, row // _CHUNK, row) for place, row in enumerate(order[lane::2])]
    elements.append(text(20, 236, "batches of 8 take rows from all lanes in turn", palette.text, 13, "start", 600))
    for batch in range(4):
        rows = order[8 * batch : 8 * batch + 8]
        elements += [_cell(20 + 184 * batch + 21 * place, 250, row // _CHUNK, row) for place, row in enumerate(rows)]
    return picture(760, 290, "Chunks, lanes and batches of a block shuffle", elements)


def _cell(x: float, y: float, chunk: int, row: int) -> str:
    return box(x, y, 19, 22, COLOURS[chunk], "none", 3) + text(x + 9.5, y + 15.5, str(row), "#ffffff", 11)


def _order() -> list[int]:
    with TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path = str(Path(folder, "rows.zarr"))
        loadax.write_zarr({"row": np.arange(_CHUNK * _CHUNKS)}, path, chunk_rows=_CHUNK, progress=False)
        data = loadax.from_zarr(path).shuffle(seed=1, block="chunks", lanes=2, window=2)
        return [int(data[position]["row"]) for position in range(len(data))]
