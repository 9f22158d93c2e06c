"""One batch on a mesh of 4 x 2 devices of two hosts; its rows are those that loadax plans."""

import numpy as np
from jax.sharding import PartitionSpec as P

import loadax
from docs.pictures.svg import Palette, arrow, box, picture, text
from loadax.sharding import plan_mesh

_ROW, _TOP = 26, 62


def mesh(palette: Palette) -> str:
    """The dataset, the batch of step 3, and who holds what of it under `P("data", "model")`."""
    data = loadax.from_arrays({"x": np.zeros((64, 8), np.float32)}).shuffle(seed=0)
    hosts = [
        loadax.Dataloader(
            data,
            batch_size=8,
            partition=P("data", "model"),
            mesh=plan_mesh({"data": 4, "model": 2}, hosts=2, process=host),
        )
        for host in range(2)
    ]
    rows = hosts[0].rows(3).tolist()
    host_of = {int(row): host for host, loader in enumerate(hosts) for row in loader.local_rows(3)}
    elements = [
        *_dataset(palette, rows),
        arrow(168, 166, 50, palette.faint),
        text(193, 153, "shuffle", palette.faint, 11),
        *_batch(palette, rows),
        arrow(404, 166, 50, palette.faint),
        text(429, 153, "partition", palette.faint, 11),
        *_devices(palette, rows, host_of),
    ]
    return picture(760, 280, "The batch of step 3: eight rows on a mesh of 4 x 2 devices", elements)


def _dataset(palette: Palette, rows: list[int]) -> list[str]:
    elements = [
        text(90, 24, "dataset", palette.text, 14, weight=600),
        text(90, 42, "64 rows", palette.faint, 12),
    ]
    for row in range(64):
        x, y = 22 + 17 * (row % 8), _TOP + _ROW * (row // 8)
        taken = row in rows
        fill, line = palette.hosts[0] if taken else (palette.fill, palette.line)
        elements.append(box(x, y, 14, 20, fill, line, 3))
    return elements


def _batch(palette: Palette, rows: list[int]) -> list[str]:
    elements = [
        text(310, 24, "loader[3]", palette.text, 14, weight=600),
        text(310, 42, "the same on any mesh", palette.faint, 12),
    ]
    for position, row in enumerate(rows):
        y = _TOP + _ROW * position
        elements += [
            box(236, y, 150, 20, palette.fill, palette.line),
            text(311, y + 14.5, f"row {row}", palette.text, 12),
        ]
    return elements


def _devices(palette: Palette, rows: list[int], host_of: dict[int, int]) -> list[str]:
    elements = [
        text(610, 24, "8 devices of 2 hosts", palette.text, 14, weight=600),
        text(610, 42, 'P("data", "model")', palette.faint, 12),
    ]
    for line in range(4):
        pair = rows[2 * line : 2 * line + 2]
        fill, stroke = palette.hosts[host_of[pair[0]]]
        for column in range(2):
            x, y = 476 + 108 * column, _TOP + 2 * _ROW * line
            elements.append(box(x, y, 102, 46, fill, stroke))
            for number, row in enumerate(pair):
                words = f"row {row}, {('left', 'right')[column]}"
                elements.append(text(x + 51, y + 19 + 17 * number, words, palette.text, 12))
    for host in range(2):
        y = _TOP + 4 * _ROW * host + 2 * _ROW
        elements.append(text(698, y, f"host {host}", palette.hosts[host][1], 12, "start", 600))
    return elements
