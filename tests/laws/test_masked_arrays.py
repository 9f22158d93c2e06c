"""Masked entries are refused wherever rows come in, and after each map, before they become data."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import loadax
from loadax import Dataloader, Dataset, from_arrays, from_source
from loadax.errors import LeafError
from loadax.sharding import data_parallel

ROWS, WRONG = 8, 5
DATA = np.ma.masked_equal(np.arange(4.0 * ROWS, dtype=np.float32).reshape(ROWS, 4), 4.0 * WRONG + 1)
SENTENCE = r"has (1 masked entry|2 masked entries), which would become data; fill them: array\.filled\(0\)"
MESH = data_parallel(jax.devices()[:1])
INDICES = from_arrays({"i": np.arange(ROWS)})


class Items:
    """Rows one by one."""

    def __init__(self, data: Any):
        self.data = data

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, row: int) -> Any:
        return {"x": self.data[row]}


class ManyItems(Items):
    def __getitems__(self, rows: Any) -> Any:
        return [self[row] for row in rows]


class Reused(Items):
    """Returns one buffer for all rows."""

    def __getitem__(self, row: int) -> Any:
        self.buffer = getattr(self, "buffer", np.ma.zeros(4, np.float32))
        self.buffer[:] = self.data[row]
        return {"x": self.buffer}


class Bulk(Items):
    spec: Any = None

    def read(self, rows: Any) -> Any:
        return {"x": self.data[rows]}


SPEC = {"x": jax.ShapeDtypeStruct((4,), np.float32)}


class Stated(Bulk):
    spec = SPEC


class Examples(Bulk):
    def examples(self, rows: Any) -> Any:
        return [self[row] for row in rows]


def lanes(data: Any) -> Any:
    return lambda *_: ({"x": data[row]} for row in range(ROWS))


DOORS: dict[str, Callable[[Any], Any]] = {
    "arrays": lambda data: from_arrays({"x": data}),
    "arrays in a list": lambda data: from_arrays([data, {"x": data}]),
    "rows": Items,
    "many rows": ManyItems,
    "reused rows": Reused,
    "list": lambda data: [{"x": row} for row in data],
    "bare rows": lambda data: from_source(list(data)),
    "nested rows": lambda data: from_source([{"y": [1, {"x": row}]} for row in data]),
    "scalars": lambda data: from_source([{"x": row[1]} for row in data]),
    "read": Bulk,
    "read with spec": Stated,
    "examples": Examples,
    "stream": lambda data: loadax.from_stream(lanes(data), lanes=1),
    "stream with spec": lambda data: loadax.from_stream(lanes(data), lanes=1, spec=SPEC),
    "blocks": lambda data: loadax.from_stream(lambda *_: iter([{"x": data}]), lanes=1, batched=True),
    "map": lambda data: INDICES.map(lambda row: {"x": data[row["i"]]}),
    "map with spec": lambda data: INDICES.map(lambda row: {"x": data[row["i"]]}, spec=SPEC),
    "map_batch": lambda data: INDICES.map_batch(lambda rows: {"x": data[rows["i"]]}),
    "map_batch with spec": lambda data: INDICES.map_batch(lambda rows: {"x": data[rows["i"]]}, spec=SPEC),
    "elementwise": lambda data: from_arrays({"x": data.data}).map_batch(
        lambda rows: {"x": np.ma.masked_equal(rows["x"], 21)}, elementwise=True
    ),
    "concat": lambda data: loadax.concat([Bulk(data), Items(data)]),
    "zip": lambda data: loadax.zip({"a": Bulk(data), "b": Items(data)}),
    "windows": lambda data: from_source(Bulk(data)).windows(2),
}  # fmt: skip
LATER: dict[str, Callable[[Dataset], Any]] = {
    "map": lambda data: data.map(lambda row: np.float32(row["x"].sum())),
    "map_batch": lambda data: data.map_batch(lambda rows: {"x": rows["x"] + 1}),
    "filter": lambda data: data.filter(lambda row: bool(row["x"].sum() > -1)),
    "pad": lambda data: data.pad({"x": 6}),
    "pack": lambda data: data.pack(8),
    "repeat": lambda data: data.repeat(2).shuffle(0),
    "flat_map": lambda data: data.flat_map(lambda row: [row, row], fan_out=2),
}


def batches(door: str, data: Any) -> list[Any]:
    """One row a batch, so that the error may come from any row."""
    return list(Dataloader(DOORS[door](data), 1, mesh=MESH, num_workers=1).host_batches())


@pytest.mark.parametrize("door", DOORS)
def test_masked_entries_are_refused_at_each_door(door: str) -> None:
    with pytest.raises(LeafError, match=SENTENCE):
        batches(door, DATA)


@pytest.mark.parametrize("later", LATER)
@pytest.mark.parametrize("door", ["rows", "read", "examples", "map"])
def test_masked_entries_are_refused_before_each_verb(door: str, later: str) -> None:
    def read() -> None:
        data = LATER[later](loadax.as_dataset(DOORS[door](DATA)))
        data.read(range(len(data)))

    with pytest.raises(LeafError, match=SENTENCE):
        read()


@pytest.mark.parametrize("door", DOORS)
def test_advice_for_masked_entries_and_masks_without_entries(door: str) -> None:
    if door == "elementwise":
        pytest.skip("masks its entries itself")
    for data in (DATA.filled(0), np.ma.array(DATA.data)):
        batch = batches(door, data)[0]
        assert {type(leaf) for leaf in jax.tree.leaves(batch)} == {np.ndarray}


@pytest.mark.parametrize("door", ["rows", "list", "map", "stream"])
def test_error_for_masked_entries_names_the_row(door: str) -> None:
    with pytest.raises(LeafError, match=rf"row {WRONG}.*: leaf \['x'\] {SENTENCE}"):
        batches(door, DATA)
    if door != "stream":
        with pytest.raises(LeafError, match=rf"row {WRONG}: leaf \['x'\] {SENTENCE}"):
            loadax.as_dataset(DOORS[door](DATA)).map(lambda row: row["x"].sum()).read(range(8))


def test_masked_entries_are_refused_in_written_stores(tmp_path: Path) -> None:
    with pytest.raises(LeafError, match=SENTENCE):
        loadax.write_zarr(from_source(Items(DATA)), tmp_path / "store.zarr")
