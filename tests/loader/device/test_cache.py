"""A dataset cached on the devices gives the same batches as reading it: bit for bit, on every mesh."""

import threading
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import psutil
import pytest
from jax.sharding import AxisType, PartitionSpec as P

from loadax import Dataloader, Dataset, concat, from_arrays, from_source, mix
from loadax.core.tree import flatten
from loadax.errors import ArgumentError, LeafError, WorkerError
from loadax.loader.device import cache
from tests.limits import until
from tests.loader.oracle import (
    BATCH,
    ELEMENTWISE,
    MAP,
    NONE,
    ORDERS,
    ColumnSource,
    Oracle,
    ReadSource,
    arrays,
    assert_placed,
    mesh_of,
)
from tests.sources.chunked import ChunkedSource

GRID = {"data": 4, "model": 2}
TREE = arrays(70)
COLUMNS = {"image": P("data", None, "model"), "label": P(("data", "model")), "tokens": P(None, "model")}


def assert_same(loader: Dataloader, other: Dataloader) -> int:
    """That two loaders give the same batches, placed alike; how many."""
    count = 0
    for one, two in zip(loader, other, strict=True):
        leaves, structure = flatten(two)
        assert_placed(one, structure.build(np.asarray(leaf) for leaf in leaves))
        for mine, theirs in zip(flatten(one)[0], leaves, strict=True):
            assert mine.sharding == theirs.sharding
        count += 1
    return count


PARTITIONS = {"rows": P("data"), "columns": P("data", "model"), "copies": P(), "mixed": COLUMNS}


@pytest.mark.parametrize(
    ("order", "cut"),
    [*((order, "columns") for order in ORDERS), *(("shuffled", cut) for cut in PARTITIONS if cut != "columns")],
)
def test_batches_equal_the_oracle(order: str, cut: str) -> None:
    partition = PARTITIONS[cut]
    recipe = {"sequential": NONE, "shuffled": MAP, "lanes": ELEMENTWISE, "repeated slice": BATCH}[order]
    data = recipe.build(ORDERS[order](from_arrays(TREE)))
    mesh = mesh_of(GRID, AxisType.Explicit, seed=1)
    loader = Dataloader(
        data, 16, mesh=mesh, partition=partition, remainder="pad", num_epochs=2, keep_on_device=True, num_workers=1
    )
    oracle = Oracle(TREE, data.order, recipe, 16, "pad")
    for step, batch in enumerate(loader):
        assert_placed(batch, oracle.batch(step), mesh)
    assert step + 1 == len(loader)
    assert_placed(loader[step], oracle.batch(step), mesh)


GIVEN: dict[str, Any] = {"batch_size": 16, "mesh": mesh_of(GRID), "partition": P("data")}
EXTRAS: dict[str, dict[str, Any]] = {
    "keys": {"key_seed": 4, "num_epochs": 2},
    "microbatches": {"microbatches": 2, "remainder": "pad", "key_seed": 4},
    "sizes": {"batch_size": {0: 16, 3: 8, 6: 32}, "num_epochs": 4},
    "part": {"shard_index": 1, "shard_count": 2, "remainder": "pad"},
    "mapped": {"device_map": lambda example: {**example, "image": example["image"] / 2}, "remainder": "pad"},
    "on the caller's thread": {"num_workers": 0},
}


@pytest.mark.parametrize(
    "extra",
    [*EXTRAS.values(), pytest.param({"num_workers": 1, "worker_type": "process"}, marks=pytest.mark.processes)],
    ids=[*EXTRAS, "in processes"],
)
def test_options_mean_the_same(extra: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "BLOCK_BYTES", 12 * 72)  # six blocks of 12 rows, the last of which begins early
    data, given = from_arrays(TREE).shuffle(seed=2), GIVEN | extra
    plain = {key: value for key, value in given.items() if key != "worker_type"}
    assert assert_same(Dataloader(data, keep_on_device=True, **given), Dataloader(data, **plain)) >= 4


def test_lengths_that_change() -> None:
    given = GIVEN | {"seq_len": {0: 4, 2: 16, 3: 8}, "partition": P("data", "model")}
    data = from_arrays({"tokens": TREE["tokens"]}).shuffle(seed=2)
    assert assert_same(Dataloader(data, keep_on_device=True, **given), Dataloader(data, **given)) == 4


DATASETS: dict[str, Callable[[Dataset], Dataset]] = {
    "a fixed part": lambda data: data[10:40].shuffle(0),
    "a part of a shuffle": lambda data: data.shuffle(0)[:40],
    "another part each epoch": lambda data: data.shuffle(0).subset_per_epoch(range(40)),
    "a filtered one": lambda data: data.filter(lambda example: example["label"] % 3000 == 2993, progress=False),
    "a mixture": lambda data: mix([data.shuffle(1), from_arrays(arrays(30)).map(_more)], [2, 1], seed=0),
    "one after the other": lambda data: concat([data.map(_more), from_arrays(arrays(30))]).shuffle(0),
}


def _more(example: Any) -> Any:
    return {**example, "label": example["label"] + 7}


@pytest.mark.parametrize("name", DATASETS)
def test_every_kind_of_dataset(name: str) -> None:
    data = DATASETS[name](from_arrays(TREE))
    given: dict[str, Any] = {"batch_size": 8, "num_epochs": 3, "key_seed": 1}
    assert assert_same(Dataloader(data, keep_on_device=True, **given), Dataloader(data, **given)) >= 6


def test_every_row_is_read_once_for_all_runs() -> None:
    source = ReadSource(TREE)
    loader = Dataloader(from_source(source)[5:45].shuffle(0), 8, num_epochs=3, keep_on_device=True)
    source.counts[:] = 0
    list(loader)
    list(loader.iterate(4))
    list(loader.skip(2))
    np.testing.assert_array_equal(source.counts, (np.arange(70) >= 5) & (np.arange(70) < 45))


def test_columns_are_read_once_and_only_if_a_device_holds_them() -> None:
    source = ColumnSource({"tokens": TREE["tokens"], "rest": TREE["tokens"]})
    partition = {"tokens": P("data", "model"), "rest": P("data")}
    list(Dataloader(from_source(source), 8, mesh=mesh_of(GRID), partition=partition, keep_on_device=True))
    assert source.whole_reads == 0
    for counts in source.counts:
        np.testing.assert_array_equal(counts, 1)


def test_blocks_overlap_by_less_than_a_row_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "BLOCK_BYTES", 16 * 72)
    source = ReadSource(TREE)
    loader = Dataloader(from_source(source), 8, keep_on_device=True)
    source.counts[:] = 0
    next(iter(loader))
    assert source.counts.min() == 1
    assert source.counts.sum() < 70 + 5


def test_a_shuffle_by_chunks_needs_no_memory_for_open_ones() -> None:
    values = np.arange(256 * 2, dtype=np.int32).reshape(256, 2)
    source = ChunkedSource(values, 16)
    data = from_source(source).shuffle(0, block="chunks", window=4, lanes=4)
    assert_same(Dataloader(data, 16, keep_on_device=True, cache_bytes=0), Dataloader(data, 16))


def test_each_mesh_has_its_own_cache() -> None:
    source = ReadSource(TREE)
    loader = Dataloader(from_source(source), 16, partition=P("data"), keep_on_device=True)
    for count, axes in enumerate(({"data": 8}, GRID, {"data": 8}), 1):
        mesh = mesh_of(axes)
        with jax.set_mesh(mesh):
            assert_placed(next(iter(loader)), Oracle(TREE, loader.dataset.order, NONE, 16).batch(0), mesh)
        assert source.counts[69] == count


def test_runs_with_and_without_go_on_from_each_other() -> None:
    data = from_arrays(TREE).shuffle(seed=0)
    plain, kept_loader = (Dataloader(data, 16, num_epochs=2, keep_on_device=each) for each in (False, True))
    with iter(plain) as one, iter(kept_loader) as other:
        for _ in range(3):
            next(one), next(other)
        assert one.get_state() == other.get_state()
        with plain.iterate(other.get_state()) as on:
            np.testing.assert_array_equal(next(on)["label"], next(other)["label"])
    again = Dataloader(data, 16, num_epochs=2, keep_on_device=True)
    for epoch in again.epochs():
        assert [batch["label"].shape for batch in epoch] == [(16,)] * 4


def test_x64_is_that_of_the_thread_that_made_the_loader() -> None:
    wide = {"x": np.arange(64) + 2**40}
    with jax.enable_x64(True):
        loader = Dataloader(from_arrays(wide).shuffle(0), 16, keep_on_device=True)
    for step, batch in enumerate(loader):
        assert_placed(batch, {"x": wide["x"][loader.rows(step)]})


def test_errors_of_rows_have_a_note() -> None:
    loader = Dataloader({"x": np.arange(64) + 2**40}, 16, keep_on_device=True)
    with pytest.raises(LeafError, match=r"leaf \['x'\]: the int64 value .* does not fit int32") as caught:
        iter(loader)
    assert caught.value.__notes__[-1] == "loadax: while keep_on_device read the 64 rows, 64 a step"


# How much there may be


def test_the_usual_limit() -> None:
    assert cache.usual_limit([{"bytes_limit": 80 << 30}, {"bytes_limit": 40 << 30}]) == 10 << 30
    assert cache.usual_limit([{}, {}]) == 4 << 30


class Vast:
    """A source of more rows than fit on a device."""

    def __init__(self, rows: int, row_bytes: int):
        self.spec = {"x": jax.ShapeDtypeStruct((row_bytes,), np.uint8)}
        self._rows = rows

    def __len__(self) -> int:
        return self._rows

    def read(self, rows: Any) -> Any:
        raise AssertionError("nothing may be read")


def test_too_large_datasets_are_refused_before_reading() -> None:
    loader = Dataloader(from_source(Vast(1_000_000, 1 << 20)), 16, keep_on_device=True)
    message = (
        r"keep_on_device: the 1,000,000 rows take 977 GiB of each device, and the limit is 4.0 GiB; "
        r"pass keep_on_device=1048577048576 or more"
    )
    with pytest.raises(ArgumentError, match=message):
        iter(loader)
    with pytest.raises(ArgumentError, match=r"more than int32 can index; leave it out"):
        iter(Dataloader(from_source(Vast(2**31, 1)), 16, keep_on_device=True))


def test_a_limit_that_is_given() -> None:
    rows = np.zeros((64, 100), np.uint8)
    assert next(iter(Dataloader(rows, 16, keep_on_device=6500))).shape == (16, 100)
    message = "the 64 rows take 6.3 KiB of each device, and the limit is 6.3 KiB; pass keep_on_device=6500 or more"
    with pytest.raises(ArgumentError, match=message):
        iter(Dataloader(rows, 16, keep_on_device=6499))
    split = Dataloader(rows, 16, mesh=mesh_of(GRID), partition=P(None, "model"), keep_on_device=3250)
    assert next(iter(split)).shape == (16, 100)
    with pytest.raises(ArgumentError, match="keep_on_device=0: pass 1 or more"):
        Dataloader(rows, 16, keep_on_device=0)


def test_random_maps_are_refused() -> None:
    data = from_arrays(TREE).map(lambda example, rng: example, rng=True)
    for random in (data, concat([data, from_arrays(TREE)])):
        with pytest.raises(
            ArgumentError,
            match="keep_on_device: a map is random or has with_epoch=True, so rows differ between epochs;",
        ):
            Dataloader(random, 16, keep_on_device=True)


@pytest.mark.processes
def test_processes_end_where_the_data_can_not_be_sent_to_them() -> None:
    lock = threading.Lock()

    def guarded(example: Any) -> Any:
        with lock:
            return example

    loader = Dataloader(from_arrays(TREE).map(guarded), 8, keep_on_device=True, num_workers=1, worker_type="process")
    with pytest.raises(WorkerError, match=r"map .*guarded .*can't be sent to a worker process"):
        iter(loader)
    until(lambda: not any(map(is_worker, psutil.Process().children())))


def is_worker(child: psutil.Process) -> bool:
    try:
        return "loadax.loader.workers.main" in child.cmdline()
    except psutil.Error:  # it has ended in this moment
        return False
