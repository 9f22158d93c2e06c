"""Examples that are nested too deep end in an error of loadax, whatever they come from."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import loadax
from loadax import Dataloader, from_arrays, from_source
from loadax.errors import LeafError, LoadaxError


def nested(depth: int, kind: str, leaf: Any = 1) -> Any:
    for _ in range(depth):
        leaf = {"a": leaf} if kind == "dict" else [leaf] if kind == "list" else (leaf,)
    return leaf


class Bulk:
    spec = None

    def __init__(self, batch: Any):
        self.batch = batch

    def __len__(self) -> int:
        return 8

    def read(self, rows: Any) -> Any:
        return jax.tree.map(lambda leaf: leaf[rows], self.batch) if len(rows) else self.batch


def lines(folder: Path, row: Any) -> Path:
    text = str(row).replace("'", '"').replace("(", "[").replace(",)", "]")  # json.dumps calls itself for each level
    (folder / "x.jsonl").write_text(f'{{"x": {text}}}\n' * 8)
    return folder / "x.jsonl"


DOORS: dict[str, Callable[[Any, Any, Path], Any]] = {
    "rows": lambda row, _, __: [row] * 8,
    "read": lambda _, rows, __: Bulk(rows),
    "arrays": lambda _, rows, __: from_arrays(rows),
    "map": lambda row, _, __: from_arrays(np.arange(8)).map(lambda _: row),
    "two maps": lambda row, _, __: from_arrays(np.arange(8)).map(lambda _: row).map(lambda row: row),
    "map_batch": lambda _, rows, __: from_arrays(np.arange(8)).map_batch(lambda _: rows),
    "stream": lambda row, _, __: loadax.from_stream(lambda *_: iter([row] * 8), lanes=1),
    "filter": lambda row, _, __: from_source([row] * 8).filter(lambda _: True),
    "pad": lambda row, _, __: from_source([{"x": [1], "y": row}] * 8).pad({"x": 2}),
    "pack": lambda row, _, __: from_source([{"x": [1], "y": row}] * 8).pack(4),
    "jsonl": lambda row, _, folder: loadax.from_jsonl(lines(folder, row)),
}


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("kind", ["dict", "list", "tuple"])
@pytest.mark.parametrize("depth", [110, 450, 900])
def test_examples_that_are_nested_too_deep(depth: int, kind: str, door: str, tmp_path: Path) -> None:
    row, rows = nested(depth, kind), nested(depth, kind, np.arange(8))
    with pytest.raises(LoadaxError, match=r"nested more than \d+|not an array of numbers"):
        list(Dataloader(DOORS[door](row, rows, tmp_path), 8))


@pytest.mark.parametrize("kind", ["dict", "tuple"])
def test_examples_of_a_hundred_levels_are_batches(kind: str) -> None:
    (batch,) = Dataloader([nested(95, kind, np.float32(1))] * 8, 8, num_workers=0)
    assert jax.tree.leaves(batch)[0].shape == (8,)


def test_advice_for_examples_that_are_nested_too_deep() -> None:
    row = nested(900, "dict")
    data = from_arrays(np.arange(8)).map(lambda _: {"x": jax.tree.leaves(row)[0]})
    assert next(iter(Dataloader(data, 8)))["x"].tolist() == [1] * 8
    with pytest.raises(LeafError, match="nested more than 100 deep"):
        from_source([nested(2000, "dict")])[0]
    assert from_source([{"text": str(nested(150, "list"))}])[0]["text"].count("[") == 150


def test_lists_of_different_lengths_stay_lists() -> None:
    rows = from_source([{"x": [[1, 2], [3]], "y": [[1], [2]]}] * 2)
    assert rows.map(lambda row: np.array([len(row["x"][0]), *row["y"].shape])).read([0]).tolist() == [[2, 2, 1]]
