"""Worker processes give the same batches as the caller's own thread, whatever the data, the verbs and the mesh are."""

import os
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import tensorstore as ts
from jax.sharding import PartitionSpec as P
from numpy.typing import NDArray

from loadax import (
    Dataloader,
    Dataset,
    concat,
    from_arrays,
    from_documents,
    from_npy,
    from_source,
    from_tensorstore,
    from_tokens,
    from_zarr,
    mix,
    write_zarr,
)
from loadax.loader.workers.process_pool import ProcessPool
from tests.loader.oracle import (
    BATCH,
    CHAIN,
    ELEMENTWISE,
    RANDOM,
    ColumnSource,
    ReadSource,
    arrays,
    assert_placed,
    mesh_of,
)
from tests.loader.workers import maps
from tests.sources.token_corpora import write_bin, write_pair

ROWS = 101
Build = Callable[[Path], Dataset]


def numbers(rows: int = ROWS) -> NDArray[np.int32]:
    return np.arange(rows * 6, dtype=np.int32).reshape(rows, 2, 3)


def pair(folder: Path, lengths: NDArray[Any]) -> Path:
    tokens = np.arange(lengths.sum(), dtype=np.uint16)
    return write_pair(folder / "x.bin", [[each] for each in np.split(tokens, np.cumsum(lengths)[:-1])])


def of_memmaps(folder: Path) -> Dataset:
    """Plain views of maps, slices, strided ones and other byte orders, from one file and several."""
    big = np.arange(4000, dtype=">i4")
    big.tofile(folder / "big.bin")
    np.arange(4 * 4000, dtype=np.uint16).tofile(folder / "small.bin")
    mapped = np.memmap(folder / "big.bin", ">i4", "r", shape=(4000,))
    wide = np.memmap(folder / "small.bin", np.uint16, "r", offset=8, shape=(2000, 6))
    return from_arrays(
        {"big": mapped[5:206:2], "wide": wide[:ROWS, 1:4], "view": wide.view(np.ndarray)[100 : 100 + ROWS]}
    )


def of_npy(folder: Path) -> Dataset:
    np.save(folder / "x.npy", numbers())
    np.save(folder / "y.npy", np.arange(ROWS))
    return from_npy({"x": folder / "x.npy", "y": folder / "y.npy"})


def of_tokens(folder: Path) -> Dataset:
    return from_tokens(write_bin(folder / "x.bin", np.arange(2000, dtype=np.uint16)), 19, dtype="uint16").shuffle(3)


def of_megatron(folder: Path) -> Dataset:
    return from_tokens(pair(folder, np.array([5, 0, 895, 1100])), 19).shuffle(3)


def zarr_of(compression: str | None) -> Build:
    def build(folder: Path) -> Dataset:
        write_zarr(
            from_arrays({"x": numbers(), "y": np.arange(ROWS)}),
            folder / "x.zarr",
            chunk_rows=8,
            shard_rows=32,
            compression=compression,
        )
        return from_zarr(folder / "x.zarr")

    return build


def tensorstore_of(driver: str, metadata: dict[str, Any]) -> Build:
    def build(folder: Path) -> Dataset:
        spec = {"driver": driver, "kvstore": {"driver": "file", "path": f"{folder}/store/"}, "metadata": metadata}
        store = ts.open(spec, create=True, dtype=ts.int32, shape=(ROWS, 2, 3)).result()
        store.write(numbers()).result()
        return from_tensorstore({"x": {key: value for key, value in spec.items() if key != "metadata"}, "again": store})

    return build


def raw(folder: Path) -> Dataset:
    """One uncompressed chunk a file: these are mapped."""
    grid = {"name": "regular", "configuration": {"chunk_shape": [8, 2, 3]}}
    codecs = [{"name": "bytes", "configuration": {"endian": "little"}}]
    return tensorstore_of("zarr3", {"chunk_grid": grid, "codecs": codecs})(folder)


def of_documents(folder: Path) -> Dataset:
    lengths = np.random.default_rng(2).integers(0, 20, 90)
    return from_documents(pair(folder, lengths)).shuffle(1).pack(16, method="best_fit", long="cut")


def of_packed_ragged(_: Path) -> Dataset:
    return from_source([np.arange(row % 7, dtype=np.int32) for row in range(300)]).pack(8)


SOURCES: dict[str, Build] = {
    "arrays": lambda _: from_arrays(arrays(ROWS)).shuffle(1),
    "memmaps": of_memmaps,
    "npy": of_npy,
    "tokens": of_tokens,
    "megatron": of_megatron,
    "zarr": zarr_of("zstd"),
    "zarr, uncompressed": zarr_of(None),
    "zarr, raw": raw,
    "zarr 2": tensorstore_of("zarr", {"chunks": [4, 2, 2], "dtype": ">i4"}),
    "n5": tensorstore_of("n5", {"blockSize": [4, 2, 2], "compression": {"type": "gzip"}}),
    "block shuffle of chunks": lambda folder: zarr_of("zstd")(folder).shuffle(seed=1, block=8, window=3, lanes=2),
    "cache": lambda folder: from_arrays(arrays(ROWS)).map(maps.halved).cache(folder / "c", progress=False).shuffle(1),
    "documents": of_documents,
    "packed": of_packed_ragged,
    "windows": lambda _: from_arrays({"x": numbers()}).windows(5, stride=2, targets=1),
    "read alone": lambda _: from_source(ReadSource(arrays(ROWS))),
    "columns": lambda _: from_source(ColumnSource(arrays(ROWS))),
    "a user's source": lambda _: from_source(maps.Numbers(ROWS)),
    "a user's items": lambda _: from_source(maps.Items(ROWS)),
    "a list": lambda _: from_source([{"x": np.int32(row)} for row in range(ROWS)]),
    "concat": lambda folder: concat([of_npy(folder), from_arrays({"x": numbers(30) + 7, "y": np.arange(30)})]).shuffle(
        2
    ),
    "mix": lambda folder: mix(
        [of_npy(folder).shuffle(1), from_arrays({"x": numbers(30) + 7, "y": np.arange(30)})], [3, 1]
    ),
    "filter": lambda _: (
        from_arrays({"x": np.arange(ROWS * 2)}).filter(lambda row: row["x"] % 2 == 1, progress=False).shuffle(1)
    ),
    "exclude": lambda _: from_arrays({"x": np.arange(ROWS)}).exclude([3, 5, 70]),
    "split": lambda _: from_arrays({"x": np.arange(ROWS * 2), "g": np.arange(ROWS * 2) % 9}).split_by(
        "g", 0.5, progress=False
    )[0],
    "group": lambda _: from_arrays(arrays(99)).group(2, np.ones(99, int))[:49],
    "flat_map": lambda _: from_arrays({"x": np.arange(ROWS)}).flat_map(maps.some, counts=maps.number_of_some),
    "repeated": lambda _: from_arrays({"x": np.arange(30)}).shuffle(4)[2:].repeat(3),
}


def run(data: Any, start: Any = 0, **options: Any) -> list[Any]:
    """All batches, held until the last one is there."""
    options = {"batch_size": 16, "num_workers": 2, **options}
    with Dataloader(data, **options).iterate(start) as batches:
        return list(batches)


def assert_same(data: Any, start: Any = 0, **options: Any) -> list[Any]:
    found = run(data, start, worker_type="process", **options)
    expected = run(data, start, **{**options, "num_workers": 0})
    assert len(found) == len(expected) > 0
    for batch, wanted in zip(found, expected, strict=True):
        assert_placed(batch, jax.tree.map(np.asarray, wanted))
        assert jax.tree.map(lambda leaf: leaf.sharding, batch) == jax.tree.map(lambda leaf: leaf.sharding, wanted)
    return found


@pytest.fixture(scope="module")
def processes() -> Iterator[ProcessPool]:
    """One for many tests: to start an interpreter takes most of the time of a short run."""
    found = ProcessPool(1)
    yield found
    found.close()


@pytest.mark.parametrize("name", SOURCES)
def test_every_source_and_verb(name: str, processes: ProcessPool, tmp_path: Path) -> None:
    """In worker processes, and by a plain pickle, as programs send it by other means."""
    data = SOURCES[name](tmp_path)
    again = pickle.loads(pickle.dumps(data.source))
    rows = np.array([3, 0, 3])
    jax.tree.map(np.testing.assert_array_equal, data.source.read(rows), again.read(rows))
    loader = Dataloader(data, 16)
    producer, found = loader.phases[0].pipeline.producer(loader.phases[0].shard(), 0, processes).of(0), []
    for step in range(len(loader)):
        buffers = producer.buffers(1)
        for low in (0, 5):  # in two pieces
            producer.fill(step, buffers, low, 5 if low == 0 else 16)
        found.append(producer.place(buffers, 0)[0])
        del buffers
    assert len(found) > 2
    for step, batch in enumerate(found):
        assert_placed(batch, jax.tree.map(np.asarray, loader[step]))


OPTIONS: dict[str, dict[str, Any]] = {
    "padded": {"remainder": "pad", "num_epochs": 2},
    "keys": {"key_seed": 5, "num_epochs": 2},
    "microbatches": {"microbatches": 2},
    "sizes": {"batch_size": {0: 8, 3: 16, 5: 40}, "num_epochs": 2},
    "shard": {"shard_index": 1, "shard_count": 2, "batch_size": 32},
    "many at once": {"batch_size": 8, "num_epochs": 6, "num_workers": 3},
    "one ahead": {"prefetch": 0, "prefetch_bytes": 1},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_every_option(name: str) -> None:
    assert_same(from_arrays(arrays(ROWS)).shuffle(3).map(maps.halved), **OPTIONS[name])


@pytest.mark.parametrize("recipe", [RANDOM, BATCH, ELEMENTWISE, CHAIN], ids=lambda each: each.name)
def test_every_kind_of_map_on_columns(recipe: Any) -> None:
    data = recipe.build(from_arrays(arrays(ROWS)).shuffle(seed=5, block=3, window=2, lanes=4))
    partition: Any = {"image": P("data", None, "model"), "label": P("data"), "tokens": P(None, "model")}
    if recipe is BATCH:
        partition = {"image": P("data", "model"), "pair": (P("data"), P("model"))}
    assert_same(data, mesh=mesh_of({"data": 2, "model": 4}, seed=1), partition=partition, num_epochs=2)


def test_sequence_lengths_by_schedule() -> None:
    data = from_arrays(
        {"tokens": np.arange(ROWS * 32, dtype=np.int32).reshape(ROWS, 32), "label": np.arange(ROWS)}
    ).shuffle(1)
    shapes = [batch["tokens"].shape[1] for batch in assert_same(data, seq_len={0: 8, 2: 20, 4: 32})]
    assert sorted(set(shapes)) == [8, 20, 32]


def test_a_run_that_is_gone_on_with() -> None:
    data = from_arrays(arrays(ROWS)).shuffle(2).map(maps.halved)
    loader = Dataloader(data, 8, num_epochs=3, num_workers=2, worker_type="process", key_seed=1)
    with iter(loader) as batches:
        for _ in range(17):
            next(batches)
        state = batches.get_state()
        rest = list(batches)
    found = assert_same(data, state, batch_size=8, num_epochs=3, key_seed=1)
    for batch, wanted in zip(found, rest, strict=True):
        assert_placed(batch, jax.tree.map(np.asarray, wanted))


def test_set_state_forth_and_back_and_after_the_end() -> None:
    loader = Dataloader(from_arrays({"x": np.arange(400)}).map(maps.who), 8, num_workers=2, worker_type="process")
    with iter(loader) as batches:
        pids = {int(pid) for pid in next(batches)["pid"]}
        for step in (40, 3, 49, 0):
            batches.set_state(step)
            batch = next(batches)
            assert batch["x"].tolist() == list(range(8 * step, 8 * step + 8))
            pids |= set(batch["pid"].tolist())
        assert len(pids) <= 2
        batches.set_state(49)
        assert len(list(batches)) == 1
        batches.set_state(48)  # all has ended by then, and begins anew
        assert [batch["x"].tolist()[0] for batch in batches] == [384, 392]


def test_the_same_processes_over_the_seams_of_schedules() -> None:
    data = from_arrays({"x": np.arange(3000)}).map(maps.slow_who)
    with iter(Dataloader(data, {0: 8, 5: 16, 10: 24}, num_workers=2, worker_type="process")) as batches:
        pids = [set(next(batches)["pid"].tolist()) for _ in range(15)]
        batches.set_state(2)
        pids += [set(next(batches)["pid"].tolist()) for _ in range(10)]
    assert len(set().union(*pids)) <= 2
    assert os.getpid() not in set().union(*pids)


def test_held_batches_are_never_written_to_again_and_take_no_descriptors() -> None:
    """Also not after the end of the iterator, of the loader and of the workers."""
    before = len(list(Path("/proc/self/fd").iterdir()))
    data = from_arrays(
        {"x": np.arange(16 * 2000, dtype=np.int32), "y": np.arange(16 * 2000 * 64, dtype=np.uint8).reshape(-1, 64)}
    )
    most, held = 0, []
    with iter(Dataloader(data.shuffle(1), 16, num_workers=2, worker_type="process", prefetch_bytes=1 << 20)) as batches:
        for batch in batches:
            held.append(batch)
            most = max(most, len(list(Path("/proc/self/fd").iterdir()))) if len(held) % 100 == 0 else most
    del batches
    assert most - before < 60
    rows = np.concatenate([np.asarray(batch["x"]) for batch in held])
    assert sorted(rows.tolist()) == list(range(len(rows))) == list(range(16 * 2000))
    wanted = np.arange(16 * 2000 * 64, dtype=np.uint8).reshape(-1, 64)
    assert all((np.asarray(batch["y"]) == wanted[np.asarray(batch["x"])]).all() for batch in held)


def test_none_of_them_with_no_workers() -> None:
    """Then the caller's thread does it all."""
    (batch,) = run(from_arrays({"x": np.arange(8)}).map(maps.who), batch_size=8, num_workers=0, worker_type="process")
    assert set(batch["pid"].tolist()) == {os.getpid()}
