"""Plants 37 faults in rows of four formats, and compares a preflight with its run: `python -m tests.chaos.preflight`.

Law: the preflight finds the rows that the run masks, and no other; it costs at most a tenth more CPU than a pass that
reads and maps the rows and checks nothing; and whoever kills its driver, no row of a part that was finished is read
again.
"""

import argparse
import io
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

import numpy as np
from PIL import Image

import loadax
from loadax import Dataloader, Dataset, MaskErrors
from loadax.files.requests import Request  # noqa: F401 - no threads of its own in what is measured
from loadax.loader.preflight import preflight as module
from loadax.loader.preflight.check_rows import CheckWork
from loadax.protocols import Visits
from tests.engines import ROOT
from tests.limits import HANG, until
from tests.sources.shards.corpora import encoded, masked, write_tar, write_tfrecord

BATCH = 100
FORMATS = ("jsonl", "tar", "tfrecord", "npy")
FAULTS = {"jsonl": 10, "tar": 9, "tfrecord": 9, "npy": 9}
WIDTH = 256


@dataclass(frozen=True)
class Planted:
    """Data of four formats in a folder.

    Args:
        folder: The folder.
        rows: Rows of each format.
        faults: Rows that fail, of each format.
    """

    folder: Path
    rows: int
    faults: dict[str, list[int]]

    @property
    def failing(self) -> list[int]:
        """Row ids of the mixture that fail."""
        return [
            number * self.rows + row for number, name in enumerate(FORMATS) for row in self.faults[name]
        ]


def plant(folder: Path, rows: int, seed: int, faults: bool = True) -> Planted:
    """Writes `rows` rows of each format, some of which fail: 37 in all."""
    random = Random(seed)
    planted = {name: sorted(random.sample(range(1, rows), count if faults else 0)) for name, count in FAULTS.items()}
    values = np.random.default_rng(seed).random((rows, WIDTH), np.float32)
    lines = [json.dumps({"x": row.tolist()}) for row in values[:, :64].round(4)]
    for row in planted["jsonl"]:
        lines[row] = lines[row][:-9]  # the line ends in the middle
    (folder / "x.jsonl").write_text("\n".join(lines))
    images = {f"{row:06}.jpg": jpeg(row) for row in range(rows)}
    for row in planted["tar"]:
        images[f"{row:06}.jpg"] = b"\xff\xd8 no image" + images[f"{row:06}.jpg"][12:]
    write_tar(folder / "x.tar", images)
    records = [encoded({"x": row}) for row in values]
    path = write_tfrecord(folder / "x.tfrecord", records)
    content = bytearray(path.read_bytes())
    size = len(records[0]) + 16
    assert len(content) == size * rows
    for row in planted["tfrecord"]:
        content[row * size + size // 2] ^= 4  # one bit, which the checksum tells
    path.write_bytes(content)
    assert masked(records[0]) >= 0
    array = np.repeat(values, 16, axis=1)
    array[planted["npy"], 7] = -1  # the map refuses it
    np.save(folder / "x.npy", array)
    return Planted(folder, rows, planted)


def jpeg(row: int) -> bytes:
    out = io.BytesIO()
    pixels = np.add.outer(np.arange(96) * (row % 7), np.arange(96) * (row % 5)).astype(np.uint8)
    Image.fromarray(np.stack([pixels] * 3, axis=-1)).save(out, "JPEG")
    return out.getvalue()


def opened(folder: Path, wrap: Callable[[str, Callable[[Any], Any]], Any] = lambda _, function: function) -> Dataset:
    """The mixture of the four formats: each row becomes {"x": float32[64]}. `wrap`: what is made of each map."""
    lines = loadax.from_jsonl(folder / "x.jsonl", "x", dtypes={"x": "float32"})
    images = loadax.from_webdataset(folder / "x.tar").decode_images("jpg", size=32)
    records = loadax.from_tfrecord(folder / "x.tfrecord", features={"x": ("float32", (WIDTH,))})
    array = loadax.from_npy(folder / "x.npy")
    parts = {
        "jsonl": lines.map(wrap("jsonl", from_line)),
        "tar": images.map(wrap("tar", from_image)),
        "tfrecord": records.map(wrap("tfrecord", from_record)),
        "npy": array.map(wrap("npy", from_array)),
    }
    return loadax.concat(parts.values()).shuffle(seed=3)


def from_line(row: Any) -> Any:
    return {"x": np.asarray(row["x"], np.float32)}


def from_image(row: Any) -> Any:
    return {"x": row["jpg"].reshape(-1)[:64].astype(np.float32)}


def from_record(row: Any) -> Any:
    return {"x": row["x"].reshape(64, -1).mean(1)}


def from_array(row: Any) -> Any:
    if row.min() < 0:
        raise ValueError("a negative value")
    return {"x": row.reshape(64, -1).mean(1)}


def loader_of(data: Dataset, epochs: int = 1) -> Dataloader:
    return Dataloader(data, BATCH, num_epochs=epochs, on_error=MaskErrors(max_in_a_row=100, max_share=1))


def masked_by_run(loader: Dataloader) -> list[int]:
    """Rows that a run masks."""
    found: set[int] = set()
    for step, batch in enumerate(loader.host_batches()):
        found |= {*loader.rows(step)[~batch["mask"]].tolist()}
    return sorted(found)


class PlainPass:
    """In place of `CheckWork`: reads and maps the same rows in the same parts, checks nothing and times nothing."""

    label = "plain"
    unit = "row"

    def __init__(self, work: CheckWork):
        self._work = work
        self.sizes = work.sizes

    def compute(self, part: int, _: Any) -> dict[str, Any]:
        portion, low, high = self._work.parts[part]
        for start in range(low, high, 256):
            visits: Visits = self._work.portions[portion].visits(start, min(start + 256, high))
            self._work.portions[portion].reader.read_visits(visits)
        return {}


def cpu_of(function: Callable[[], Any]) -> float:
    """CPU seconds of this process in a call."""
    began = time.process_time()
    function()
    return time.process_time() - began


def cpu_ratio(data: Dataset, workers: int, turns: int) -> tuple[float, float, float]:
    """CPU seconds of preflights and of plain passes over the same rows, by turns: least of each, and their ratio."""
    from loadax.kept.kept_pass import PassOptions, run_pass
    from loadax.kept.parts import PartsInMemory

    loader = loader_of(data)

    def plain() -> None:
        planned = module.plan_rows(loader.phases, [(0, range(len(loader)))], [0])
        parts = tuple(module._parts(planned.portions))
        work: Any = PlainPass(CheckWork(planned.portions, ({},), parts))
        run_pass(work, PartsInMemory(len(parts), lambda _: None), PassOptions(workers, None, False))

    def checked() -> None:
        loader.preflight(workers=workers, progress=False)

    plain()  # imports, and files in the page cache
    ours, others = [], []
    for _ in range(turns):
        others.append(cpu_of(plain))
        ours.append(cpu_of(checked))
    return min(ours), min(others), min(ours) / min(others)


def noting(log: Path, rows: int) -> Callable[[str, Callable[[Any], Any]], Any]:
    """Notes each row that is read, by its id in the mixture."""

    def wrap(name: str, function: Callable[[Any], Any]) -> Any:
        first = FORMATS.index(name) * rows

        def noted(row: Any, _index: int) -> Any:
            with log.open("a") as out:
                out.write(f"{first + _index}\n")
            return function(row)

        return noted

    return wrap
