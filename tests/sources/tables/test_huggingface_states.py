"""Streams of Hugging Face go on exactly where they were, through every verb, whatever its state is worth."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import datasets
import datasets.distributed
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import loadax
from loadax.sources.tables.huggingface.iterable_verbs import verb_without_state

BATCH = 6
interleave, concatenate = datasets.interleave_datasets, datasets.concatenate_datasets


def table(shards: int = 4, rows: int = 37, first: int = 0) -> Any:
    return datasets.Dataset.from_dict({"x": list(range(first, first + rows))}).to_iterable_dataset(shards)


def numbers(shards: list[int]) -> Iterator[Any]:
    for shard in shards:
        yield from ({"x": 100 * shard + row} for row in range(31))


def generated() -> Any:
    kwargs = {"shards": [0, 1, 2]}
    return datasets.IterableDataset.from_generator(numbers, gen_kwargs=kwargs)


def parquet(folder: Path) -> Any:
    for shard in range(3):
        column = np.arange(100 * shard, 100 * shard + 23)
        pq.write_table(pa.table({"x": column}), folder / f"{shard}.parquet", row_group_size=7)
    files = sorted(map(str, folder.glob("*.parquet")))
    return datasets.load_dataset("parquet", data_files=files, streaming=True, split="train")


def plus_one(row: Any) -> Any:
    return {"x": row["x"] + 1}


def each_plus_one(rows: Any) -> Any:
    return {"x": [x + 1 for x in rows["x"]]}


def pairs(rows: Any) -> Any:
    xs = rows["x"]
    return {"pair": [[x, x] for x in xs[::2]], "x": xs[::2]}


def table_plus_one(rows: Any) -> Any:
    return rows.set_column(0, "x", pa.array([x + 1 for x in rows["x"].to_pylist()]))


EXACT: dict[str, Callable[[Any], Any]] = {
    "nothing": lambda data: data,
    "map": lambda data: data.map(plus_one),
    "map with indices": lambda data: data.map(lambda row, index: {"at": index}, with_indices=True),
    "map with features": lambda data: data.map(plus_one, features=table().features),
    "batched map": lambda data: data.map(each_plus_one, batched=True, batch_size=5),
    "batched map, without the last": lambda data: data.map(
        each_plus_one, batched=True, batch_size=5, drop_last_batch=True
    ),
    "fewer rows": lambda data: data.map(pairs, batched=True, batch_size=8),
    "two batched maps": lambda data: data.map(each_plus_one, batched=True, batch_size=5).map(
        pairs, batched=True, batch_size=8
    ),
    "filter": lambda data: data.filter(lambda row: row["x"] % 3 > 0),
    "batched filter": lambda data: data.filter(lambda rows: [x % 3 > 0 for x in rows["x"]], batched=True, batch_size=4),
    "filter, then batched map": lambda data: data.filter(lambda row: row["x"] % 3 > 0).map(
        each_plus_one, batched=True, batch_size=5
    ),
    "take": lambda data: data.take(25),
    "skip, then take": lambda data: data.skip(3).take(20),
    "repeat": lambda data: data.repeat(2),
    "batched map, repeated": lambda data: data.map(each_plus_one, batched=True, batch_size=5).repeat(2),
    "concatenate": lambda data: concatenate([data, table(first=1000)]),
    "concatenate columns": lambda data: concatenate([data, data.rename_column("x", "y")], axis=1),
    "interleave": lambda data: interleave([data, table(first=1000)]),
    "interleave to the end of all": lambda data: interleave(
        [data, table(2, 11, 1000)], probabilities=[0.7, 0.3], seed=1, stopping_strategy="all_exhausted"
    ),
    "interleave all once": lambda data: interleave(
        [data, table(2, 11, 1000)], stopping_strategy="all_exhausted_without_replacement"
    ),
    "interleave of interleave": lambda data: interleave([interleave([data, table(first=1000)]), data]),
    "numpy, then map": lambda data: data.with_format("numpy").map(plus_one),
    "select_columns": lambda data: data.map(lambda row: {"y": row["x"]}).select_columns(["x"]),
    "rename_column": lambda data: data.rename_column("x", "y").map(lambda row: {"x": row["y"]}),
    "shard": lambda data: data.shard(2, 1),
    "split_by_node": lambda data: datasets.distributed.split_dataset_by_node(data, 1, 3),
}
INEXACT: dict[str, Callable[[Any], Any]] = {
    "shuffle": lambda data: data.shuffle(seed=3, buffer_size=7),
    "shuffle, of shards alone": lambda data: data.shuffle(seed=3, buffer_size=1),
    "shuffle, then map": lambda data: data.shuffle(seed=3, buffer_size=7).map(plus_one),
    "shuffle, then take": lambda data: data.shuffle(seed=3, buffer_size=7).take(25),
    "interleave of shuffled": lambda data: interleave([data.shuffle(seed=3, buffer_size=7), table()]),
    "map of tables": lambda data: data.with_format("arrow").map(table_plus_one, batched=True, batch_size=5),
}
SOURCES: dict[str, Callable[[Path], Any]] = {
    "table": lambda folder: table(),
    "generator": lambda folder: generated(),
    "parquet": parquet,
}


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(datasets.config, "SLEEP_TIME_ON_THREADS_SHUTDOWN", 0)


def batches_of(data: Any, start: Any = 0, most: int | None = None, **options: Any) -> tuple[list[Any], Any]:
    """Batches from a state on, and the state after the last of them."""
    options = {"num_epochs": 2, "num_workers": 2, "shard_index": 0, "shard_count": 1, **options}
    batches = []
    with loadax.Dataloader(data, BATCH, **options).host_batches(start) as iterator:
        for batch in iterator:
            batches.append(batch["x"].tolist())
            if len(batches) == most:
                break
        return batches, iterator.get_state()


def check_resumes(make: Callable[[], Any], **options: Any) -> Any:
    """Checks that a run of two epochs, interrupted five times, gives what an uninterrupted one does."""
    whole, _ = batches_of(make(), **options)
    assert len(whole) > 2
    each = max(1, len(whole) // 6)
    batches, state = batches_of(make(), most=each, **options)
    first = state
    for _ in range(4):
        more, state = batches_of(make(), state, most=each, **options)
        batches += more
    more, _ = batches_of(make(), state, **options)
    assert batches + more == whole
    return first


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("name", EXACT)
def test_exact_states_are_used(name: str, source: str, tmp_path: Path) -> None:
    data = SOURCES[source](tmp_path)
    assert not verb_without_state(EXACT[name](data))
    state = check_resumes(lambda: EXACT[name](data))
    assert any(values[3] is not None for values in state["lanes"][0].values())


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("name", INEXACT)
def test_rows_are_skipped_where_a_state_is_not_exact(name: str, source: str, tmp_path: Path) -> None:
    data = SOURCES[source](tmp_path)
    state = check_resumes(lambda: INEXACT[name](data))
    assert all(values[3] is None for values in state["lanes"][0].values())


@pytest.mark.parametrize("version", ["4.8.5", "5.0.1", "5.1.0", "6.0.0.dev0"])
def test_states_of_datasets_that_restores_other_rows_are_not_used(
    version: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Installed without the extra, which asks for a version whose states are right."""
    monkeypatch.setattr(datasets, "__version__", version)
    older = version < "5.1"
    with caplog.at_level("WARNING", "loadax"):
        state = check_resumes(table)
    assert all((values[3] is None) == older for values in state["lanes"][0].values())
    told = f"loadax: datasets {version} does not go on where a state was taken, which datasets>=5.1 does: "
    assert any(message.startswith(told) for message in caplog.messages) == older
