"""The data of a soak: five formats, written once and opened again in every turn."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import cv2
import numpy as np
import pyarrow as pa
from PIL import Image
from pyarrow import parquet

import loadax


@final
@dataclass(frozen=True)
class Workload:
    """A format, how its files are written, and how a run opens them.

    Args:
        write: Writes the files into a folder.
        open: Opens them.
        batch_size: Rows of a global batch, a multiple of 8.
        steps: Steps of a turn.
        pickled: Whether worker processes can read it.
    """

    write: Callable[[Path], None]
    open: Callable[[Path], loadax.Dataset]
    batch_size: int
    steps: int
    pickled: bool = True


def _write_tokens(folder: Path) -> None:
    np.random.default_rng(0).integers(0, 50_000, 8 << 20, np.uint16).tofile(folder / "tokens.bin")


def _open_tokens(folder: Path) -> loadax.Dataset:
    return loadax.from_tokens(folder / "tokens.bin", seq_len=512, dtype="<u2").shuffle(seed=0)


def _write_zarr(folder: Path) -> None:
    rows = np.random.default_rng(1).normal(size=(2048, 64, 32)).astype(np.float32)
    loadax.write_zarr({"x": rows, "y": np.arange(2048)}, folder / "fields.zarr", chunk_rows=16, progress=False)


def _scaled(batch: Any) -> Any:
    return {"x": batch["x"] * np.float32(0.5), "y": batch["y"].astype(np.int32)}


def _open_zarr(folder: Path) -> loadax.Dataset:
    return loadax.from_zarr(folder / "fields.zarr").shuffle(seed=1, block="chunks").map_batch(_scaled)


def _write_parquet(folder: Path) -> None:
    random = np.random.default_rng(2)
    for number in range(4):
        table = pa.table(
            {
                "id": np.arange(4096) + number * 4096,
                "x": random.normal(size=4096).astype(np.float32),
                "kind": random.integers(0, 9, 4096),
            }
        )
        parquet.write_table(table, folder / f"{number}.parquet", row_group_size=512)


def _narrow(row: Any) -> Any:
    return {"id": row["id"].astype(np.int32), "x": row["x"], "kind": row["kind"].astype(np.int32)}


def _open_parquet(folder: Path) -> loadax.Dataset:
    return loadax.from_parquet(folder, memory_bytes=1 << 20).shuffle(seed=2, block=512).map(_narrow)


def _write_images(folder: Path) -> None:
    random = np.random.default_rng(3)
    for number in range(192):
        height, width = random.integers(96, 400, 2)
        coarse = Image.fromarray(random.integers(0, 255, (12, 12, 3), np.uint8))
        path = folder / str(number % 4) / f"{number}.jpg"
        path.parent.mkdir(exist_ok=True)
        coarse.resize((int(width), int(height))).save(path, quality=90)


def _open_images(folder: Path) -> loadax.Dataset:
    # Else OpenCV never frees 870 bytes for each thread that has resized an image.
    cv2.setNumThreads(1)
    return loadax.from_images(folder, size=(96, 96)).shuffle(seed=3)


@final
class _Lane:
    """An endless iterator with a state, such as the offset in a log."""

    def __init__(self, lane: int):
        self._lane = lane
        self._row = 0

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        self._row += 1
        return {"x": np.full(256, self._lane * 10_000 + self._row % 10_000, np.int32)}

    def get_state(self) -> dict[str, int]:
        return {"row": self._row}

    def set_state(self, state: dict[str, int]) -> None:
        self._row = state["row"]


def _open_stream(_folder: Path) -> loadax.Dataset:
    return loadax.from_stream(lambda lane, _lanes: _Lane(lane), lanes=16).shuffle(seed=4, buffer_size=64)


WORKLOADS = {
    "tokens": Workload(_write_tokens, _open_tokens, 128, 200),
    "zarr": Workload(_write_zarr, _open_zarr, 64, 60),
    "parquet": Workload(_write_parquet, _open_parquet, 256, 60),
    "jpeg": Workload(_write_images, _open_images, 32, 16),
    "stream": Workload(lambda folder: None, _open_stream, 64, 60, pickled=False),
}
