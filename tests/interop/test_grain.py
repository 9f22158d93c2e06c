"""loadax in Grain: datasets as Grain reads them, iterators as Grain's checkpoint handler and Orbax take them."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import cloudpickle
import grain
import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest
from absl import flags
from orbax.checkpoint import v1

import loadax
from loadax.errors import ArgumentError, ClosedError, ScheduleError, StateError
from loadax.interop import grain as interop
from loadax.interop.grain import as_grain_iterator, to_map_dataset

ROWS = 600


def jitter(row: Any, rng: np.random.Generator) -> Any:
    return {**row, "noise": np.float32(rng.random())}


def dataset(rows: int = ROWS) -> loadax.Dataset:
    """Another order, and other numbers, in every epoch."""
    data = {"x": np.arange(rows), "y": np.arange(2.0 * rows).reshape(rows, 2)}
    return loadax.from_arrays(data).shuffle(seed=3).map(jitter, rng=True)


def expected(data: loadax.Dataset, indices: Any) -> list[Any]:
    """What a dataset has at `position + epoch * len`, row by row."""
    rows = [data.read([index % len(data)], index // len(data)) for index in indices]
    return [{name: leaf[0] for name, leaf in row.items()} for row in rows]


def same(found: Any, oracle: Any) -> None:
    assert len(found) == len(oracle)
    for one, other in zip(found, oracle, strict=True):
        assert one.keys() == other.keys()
        for name, value in other.items():
            assert (one[name].dtype, one[name].shape) == (value.dtype, value.shape)
            np.testing.assert_array_equal(one[name], value)


OPTIONS = [grain.ReadOptions(0, 0), grain.ReadOptions(1, 2), grain.ReadOptions(4, 64), grain.ReadOptions()]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_grain_reads_every_epoch(options: Any) -> None:
    data = dataset()
    oracle = expected(data, range(2 * ROWS))
    out = to_map_dataset(data)
    assert isinstance(out, grain.MapDataset)
    assert len(out) == ROWS
    same(list(out.repeat(2).to_iter_dataset(options)), oracle)
    batches = list(out.repeat(2).to_iter_dataset(options).batch(100))
    np.testing.assert_array_equal(np.concatenate([batch["x"] for batch in batches]), [row["x"] for row in oracle])


def test_any_order_of_requests() -> None:
    data = dataset()
    out = to_map_dataset(data)
    requests = [
        *range(40),
        *range(40),  # again, after their block has returned them
        *range(300, 200, -3),
        *np.random.default_rng(0).integers(5 * ROWS, size=300).tolist(),
        *range(ROWS - 5, ROWS + 5),
        *(0, 0, np.int64(7)),
    ]
    same([out[index] for index in requests], expected(data, requests))
    same(out.__getitems__(requests), expected(data, requests))
    assert out.__getitems__([]) == []
    same([out[-1], out[-ROWS - 2]], expected(data, [ROWS - 1, ROWS - 2]))


def test_grains_verbs() -> None:
    data = dataset()
    out = to_map_dataset(data)
    same(list(out[10:50:3].to_iter_dataset(OPTIONS[0])), expected(data, range(10, 50, 3)))
    shuffled = [row["x"] for row in out.shuffle(seed=1).to_iter_dataset(OPTIONS[0])]
    assert sorted(shuffled) == list(range(ROWS))
    mapped = out.seed(1).map(lambda row: row["x"]).filter(lambda x: x % 2 == 0)
    assert sorted(mapped) == list(range(0, ROWS, 2))
    again = loadax.from_grain(out)
    assert again.read(range(5), 1)["x"].tolist() == data.read(range(5), 1)["x"].tolist()
    loader = grain.DataLoader(
        data_source=out, sampler=grain.samplers.SequentialSampler(ROWS, grain.sharding.NoSharding()), worker_count=0
    )
    same(list(loader), expected(data, range(ROWS)))


class Counting:
    """Counts the rows of each read."""

    def __init__(self, rows: int, bad: int = -1):
        self.reads: list[int] = []
        self._rows, self._bad = rows, bad
        self.spec = {"x": np.zeros((), np.int64)}

    def __len__(self) -> int:
        return self._rows

    def read(self, rows: Any) -> Any:
        self.reads.append(len(rows))
        if self._bad in rows:
            raise OSError("a bad sector")
        return {"x": rows}


@pytest.mark.parametrize("options", [OPTIONS[0], OPTIONS[2]], ids=str)
def test_every_pass_reads_blocks(options: Any) -> None:
    source = Counting(5000)
    out = to_map_dataset(source)
    for _ in range(3):
        source.reads.clear()
        assert [row["x"] for row in out.to_iter_dataset(options)] == list(range(5000))
        assert len(source.reads) < 500  # threads may request a few rows while their block is read
    source.reads.clear()
    assert [row["x"] for row in out] == list(range(5000))
    assert len(source.reads) <= 2 * (5000 // interop.BLOCK_ROWS + 1) + 1
    assert sum(source.reads) <= 5000 + 2


def test_a_row_that_cannot_be_read_fails_alone_and_its_block_is_read_once() -> None:
    source = Counting(100, bad=30)
    out = to_map_dataset(source)
    for _ in range(2):
        assert [out[row]["x"] for row in range(30)] == list(range(30))
        with pytest.raises(OSError, match="a bad sector"):
            out[30]
        assert [out[row]["x"] for row in range(31, 100)] == list(range(31, 100))
    assert sum(size > 1 for size in source.reads) == 1


def test_rows_far_apart_are_read_alone() -> None:
    source = Counting(100_000)
    out = to_map_dataset(source)
    for row in range(0, 100_000, 100):
        assert out[row]["x"] == row
    assert max(source.reads) == 1
    assert len(out._blocks) <= interop.BLOCKS


def test_blocks_of_large_rows_are_small() -> None:
    data = loadax.from_arrays({"x": np.zeros((40, 1 << 20), np.uint8)})
    out = to_map_dataset(data)
    list(out[:6].to_iter_dataset(OPTIONS[0]))
    assert out._block_rows == interop.BLOCK_BYTES >> 20
    assert max(len(block.rows) for block in out._blocks.values()) < 4


def test_returned_rows_may_be_written_to() -> None:
    arrays = np.arange(40.0).reshape(20, 2)
    out = to_map_dataset({"x": arrays})

    def double(row: Any) -> Any:
        row["x"] *= 2
        return row

    for _ in range(2):
        rows = [row["x"].tolist() for row in out.map(double).to_iter_dataset(OPTIONS[0])]
        assert rows == (2 * np.arange(40.0).reshape(20, 2)).tolist()


def test_many_threads_at_once() -> None:
    data = dataset()
    out = to_map_dataset(data)
    oracle = [row["x"] for row in expected(data, range(ROWS))]
    with ThreadPoolExecutor(4) as pool:
        found = pool.map(lambda _: [out[row]["x"] for row in range(ROWS)], range(4))
    assert list(found) == [oracle] * 4


def test_rows_of_any_kind() -> None:
    rows = [np.arange(row % 5) for row in range(50)]
    out = to_map_dataset(loadax.from_source(rows))
    assert [row.tolist() for row in out.to_iter_dataset(OPTIONS[0])] == [row.tolist() for row in rows]
    names = to_map_dataset(loadax.from_source([{"name": f"n{row}"} for row in range(10)]))
    assert [row["name"] for row in names.to_iter_dataset(OPTIONS[0])] == [f"n{row}" for row in range(10)]


def test_pickled_copy_reads_the_same() -> None:
    data = dataset()
    out = to_map_dataset(data)
    before = [out[row] for row in range(5)]
    copied = cloudpickle.loads(cloudpickle.dumps(out))
    same(before, [copied[row] for row in range(5)])
    same([copied[ROWS + 3]], expected(data, [ROWS + 3]))


@pytest.mark.processes
def test_grain_worker_processes() -> None:
    if not flags.FLAGS.is_parsed():  # Grain's workers read them, and nothing else does in a test
        flags.FLAGS.mark_as_parsed()
    data = dataset(40)
    batches = to_map_dataset(data).to_iter_dataset(OPTIONS[0]).batch(10)
    iterator = iter(batches.mp_prefetch(grain.MultiprocessingOptions(num_workers=2)))
    found = [x for batch in iterator for x in batch["x"].tolist()]
    iterator.close()
    oracle = [int(row["x"]) for row in expected(data, range(40))]
    assert sorted(found) == sorted(oracle)


def test_unsuitable_datasets() -> None:
    with pytest.raises(ArgumentError, match="the dataset has no rows, which Grain does not support; pass"):
        to_map_dataset(loadax.from_arrays({"x": np.zeros(4)})[:0])
    weights = {0: {"a": 1, "b": 1}, 5: {"a": 1, "b": 3}}
    by_step = loadax.mix({"a": dataset(8), "b": dataset(8)}, weights=weights, by="step", stop="all")
    with pytest.raises(ScheduleError):
        to_map_dataset(by_step)


def loader(seed: int = 0, **options: Any) -> loadax.Dataloader:
    data = loadax.from_arrays({"x": np.arange(64), "y": np.arange(64.0)}).shuffle(seed)
    return loadax.Dataloader(data, 8, num_epochs=2, **options)


def xs(batches: Any) -> list[list[int]]:
    return [batch["x"].tolist() for batch in batches]


def test_iterator_is_a_grain_iterator_with_state() -> None:
    batches = as_grain_iterator(iter(loader()))
    assert isinstance(batches, grain.DatasetIterator)
    assert iter(batches) is batches
    batches.start_prefetch()
    first = next(batches)
    assert isinstance(first["x"], jax.Array)
    state = batches.get_state()
    assert json.loads(json.dumps(state)) == state == iter(loader().iterate(1)).get_state()
    rest = xs(batches)
    assert len(rest) == 15
    batches.set_state(state)
    assert xs(batches) == rest
    assert [first["x"].tolist(), *rest] == xs(loader())


def test_close_closes_the_loaders_iterator_and_garbage_collection_does_not() -> None:
    inner = iter(loader())
    as_grain_iterator(inner)  # forgotten at once
    next(inner)
    batches = as_grain_iterator(inner)
    with batches._batches:
        batches.close()
        batches.close()
        with pytest.raises(ClosedError):
            next(batches)
    assert "GrainIterator(DataIterator(step=1" in str(batches)


@pytest.mark.parametrize("given", [loader(), [1, 2], loader().epochs()])
def test_only_an_iterator_of_a_loader_is_taken(given: Any) -> None:
    message = r"^batches is an? \w+; pass the iterator of a Dataloader, iter"
    with pytest.raises(ArgumentError, match=message):
        as_grain_iterator(given)


@pytest.mark.parametrize("iterated", ["steps", "epochs"])
@pytest.mark.parametrize("take", [to_map_dataset, loadax.as_dataset, lambda given: loadax.Dataloader(given, 8)])
def test_an_iterator_of_a_loader_is_no_dataset(take: Any, iterated: str) -> None:
    batches = iter(loader()) if iterated == "steps" else next(loader().epochs())
    message = r"^data is an? \w+ of a Dataloader; pass the loader's dataset: loader\.dataset"
    with pytest.raises(ArgumentError, match=message):
        take(batches)


def test_grains_checkpoint_handler(tmp_path: Path) -> None:
    expected = xs(loader())
    with ocp.CheckpointManager(tmp_path / "run") as manager, iter(loader()) as inner:
        batches = as_grain_iterator(inner)
        assert xs(next(batches) for _ in range(5)) == expected[:5]
        manager.save(5, args=ocp.args.Composite(data=grain.checkpoint.CheckpointSave(batches)))
        next(batches)
        manager.wait_until_finished()
        restored = as_grain_iterator(iter(loader(num_workers=0)))
        manager.restore(5, args=ocp.args.Composite(data=grain.checkpoint.CheckpointRestore(restored)))
        assert xs(restored) == expected[5:]


def test_a_handler_that_restores_another_loaders_state_names_the_field(tmp_path: Path) -> None:
    handler = grain.checkpoint.CheckpointHandler()
    with iter(loader()) as inner:
        handler.save(tmp_path, as_grain_iterator(inner))
    with iter(loader(seed=1)) as other, pytest.raises(StateError, match=r"^the state's 'order' is .*shuffle\(1\)"):
        handler.restore(tmp_path, as_grain_iterator(other))
    grains = iter(grain.MapDataset.range(8).to_iter_dataset())
    handler.save(tmp_path, grains)
    with iter(loader()) as mine, pytest.raises(StateError, match=r"^the state has no 'version': \{'next_index': 0\}"):
        handler.restore(tmp_path, as_grain_iterator(mine))
    grains.close()


def test_orbax_v1_checkpointables(tmp_path: Path) -> None:
    expected = xs(loader())
    with iter(loader()) as inner:
        batches = as_grain_iterator(inner)
        assert isinstance(batches, v1.StatefulCheckpointable)
        assert xs(next(batches) for _ in range(3)) == expected[:3]
        saving = v1.save_checkpointables_async(tmp_path / "one", {"data": batches})
        next(batches)  # the state is that of the time of the call
        saving.result()
    with iter(loader()) as inner:
        restored = as_grain_iterator(inner)
        v1.load_checkpointables(tmp_path / "one", {"data": restored})
        assert xs(restored) == expected[3:]
    with iter(loader(seed=1)) as inner, pytest.raises(Exception, match="data") as caught:
        v1.load_checkpointables(tmp_path / "one", {"data": as_grain_iterator(inner)})
    assert isinstance(caught.value.__cause__, StateError)  # Orbax puts an error of its own around it
