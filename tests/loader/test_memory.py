"""Prefetch memory is bounded, placed memory is not written while referenced, and buffers are reused."""

import gc
import subprocess
import sys
import textwrap
import weakref
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from loadax import Dataloader, from_arrays
from loadax.core.tree import flatten
from loadax.loader.execution import monitor
from loadax.loader.execution.producer import BatchProducer
from loadax.loader.metrics.stats import Timing
from tests.limits import HANG
from tests.loader.oracle import mesh_of
from tests.worker_types import WORKER_TYPES

ROOT = Path(__file__).parents[2]
LINE, GRID = {"data": 8}, {"data": 2, "model": 4}


class Runs:
    """Stands in for `PieceSizes`: runs of many steps, in one piece each."""

    def __init__(self, rows_per_step: int, *_: Any):
        self._rows = rows_per_step

    def measured(self, rows: int, timing: Timing) -> None:
        pass

    steps = 8

    def pieces(self, count: int, active: int, rows_per_step: int | None = None) -> list[tuple[int, int]]:
        return [(0, self._rows)]


def rows_of(width: int, dtype: Any) -> np.ndarray[Any, Any]:
    return (np.arange(800)[:, None] * 7 + np.arange(width)).astype(dtype)


CASES = {
    "aligned": (LINE, P("data"), rows_of(64, np.float32)),
    "unaligned": (LINE, P("data"), rows_of(13, np.uint8)),
    "one column": (LINE, P("data"), rows_of(1, np.uint16)),
    "columns cut": (GRID, P("data", "model"), rows_of(64, np.float32)),
    "columns cut, unaligned": (GRID, P("data", "model"), rows_of(20, np.uint8)),
    "rows copied": (GRID, P("data"), rows_of(16, np.float32)),
    "replicated": (LINE, P(), rows_of(16, np.float32)),
    "narrowed": (LINE, P("data"), rows_of(16, np.int64)),
}


@pytest.mark.parametrize("long_runs", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_what_somebody_sees_is_never_written_again(name: str, long_runs: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if long_runs:
        monkeypatch.setattr(monitor, "PieceSizes", Runs)
    axes, partition, array = CASES[name]
    data = from_arrays({"x": array}).shuffle(seed=0)
    loader = Dataloader(
        data, 16, mesh=mesh_of(axes), partition=partition, num_epochs=3, num_workers=2, prefetch_bytes=1 << 20
    )
    random = np.random.default_rng(0)
    kept: list[tuple[int, str, Any]] = []
    for step, batch in enumerate(loader):
        way = ["drop", "drop", "drop", "batch", "view", "shard", "later", "donate"][random.integers(8)]
        kept.append((step, way, _keep(way, batch["x"])))
        if len(kept) > 40:
            del kept[int(random.integers(len(kept)))]
    del batch
    gc.collect()
    for step, way, seen in kept:
        if way != "drop":
            expected = array[loader.rows(step)]
            _check(way, seen, expected.astype(jax.dtypes.canonicalize_dtype(expected.dtype)), step)
    assert sum(way != "drop" for _, way, _ in kept) > 10


@jax.jit
def _slow_copy(x: jax.Array) -> jax.Array:
    """Reads `x` only after a while: when the caller's own reference is long gone."""
    busy = jax.lax.fori_loop(0, 40, lambda _, y: jax.numpy.sin(y), jax.numpy.ones((64, 64)))
    return x + (busy.sum() * 0).astype(x.dtype)


_donated = jax.jit(lambda x: x + x, donate_argnums=0)


def _keep(way: str, array: jax.Array) -> Any:
    if way == "view":
        return [(shard.index, np.asarray(shard.data)) for shard in array.addressable_shards]
    if way == "shard":
        return [(shard.index, shard.data) for shard in array.addressable_shards[2:4]]
    if way == "later":
        return _slow_copy(array)
    if way == "donate":
        return _donated(array)
    return array if way == "batch" else None


def _check(way: str, seen: Any, expected: np.ndarray[Any, Any], step: int) -> None:
    if way in ("view", "shard"):
        for index, part in seen:
            np.testing.assert_array_equal(np.asarray(part), expected[index], err_msg=f"{way} of step {step}")
        return
    if way == "donate":
        expected = expected + expected
    np.testing.assert_array_equal(np.asarray(seen), expected, err_msg=f"{way} of step {step}")


@pytest.mark.parametrize("name", CASES)
def test_a_batch_never_lies_on_the_sources_memory(name: str) -> None:
    axes, partition, array = CASES[name]
    source = array.copy()
    for data in (from_arrays({"x": source}), from_arrays({"x": source}).map_batch(lambda batch: batch)):
        source[:] = array
        loader = Dataloader(data, 16, mesh=mesh_of(axes), partition=partition, num_workers=0)
        batch = loader[1]
        source[:] = 0
        np.testing.assert_array_equal(np.asarray(batch["x"]), array[16:32])


def test_a_source_that_gives_its_own_memory_away_stays_as_it_is() -> None:
    """A `read` may return a view of what it has.

    Batches are copies of that, also where no cast or cut stands between.
    """

    class Views:
        spec = jax.ShapeDtypeStruct((16,), np.float32)

        def __init__(self) -> None:
            self.array = rows_of(16, np.float32)

        def __len__(self) -> int:
            return len(self.array)

        def read(self, rows: Any) -> Any:
            assert (np.diff(rows) == 1).all()
            return self.array[rows[0] : rows[-1] + 1]

    source = Views()
    batch = Dataloader(source, 16)[0]
    source.array[:] = 0
    np.testing.assert_array_equal(np.asarray(batch), rows_of(16, np.float32)[:16])


def test_buffers_are_used_again() -> None:
    """With the defaults an epoch takes no new memory a step, once it is under way."""
    data = from_arrays({"x": rows_of(64, np.float32)})
    addresses = []
    for batch in Dataloader(data, 16, num_epochs=80, num_workers=1):
        jax.block_until_ready(batch)
        addresses.append(batch["x"].addressable_shards[0].data.unsafe_buffer_pointer())
        del batch
    assert len(addresses) == 4000
    assert len(set(addresses)) < 2000  # those of the stock that it begins with, and a few


def test_every_shard_lies_aligned_and_uncopied() -> None:
    for axes, partition, array in CASES.values():
        loader = Dataloader(from_arrays({"x": array}), 16, mesh=mesh_of(axes), partition=partition, num_workers=0)
        for leaf in flatten(loader[3])[0]:
            assert all(shard.data.unsafe_buffer_pointer() % 64 == 0 for shard in leaf.addressable_shards)


PROGRAM = """
    import sys
    import jax, numpy as np, psutil
    from jax.sharding import PartitionSpec as P
    import loadax

    path, mapped, shuffled = sys.argv[1], sys.argv[2] == "mapped", sys.argv[3] == "shuffled"

    def own():
        for line in open("/proc/self/status"):
            if line.startswith("RssAnon"):
                return int(line.split()[1]) << 10

    data = loadax.from_npy(path)
    data = data.shuffle(seed=0) if shuffled else data
    data = data.map_batch(lambda batch: batch + 1) if mapped else data
    loader = loadax.Dataloader(data, 256, prefetch_bytes=BUDGET, num_workers=2, num_epochs=2)
    before, peak, total = None, 0, 0
    for step, batch in enumerate(loader):
        total += int(np.asarray(batch.addressable_shards[0].data)[0, 0])
        if step == 20:
            before = own()
        if step % 20 == 0:
            peak = max(peak, own())
    print(step + 1, before, peak)
"""


@pytest.mark.processes
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("kind", [("plain", "shuffled"), ("plain", "sequential"), ("mapped", "shuffled")])
def test_an_epoch_over_ten_times_the_budget_keeps_the_process_flat(kind: tuple[str, str], tmp_path: Path) -> None:
    budget, rows, width = 8 << 20, 40 * 1024, 2048  # 80 MiB of uint8
    path = tmp_path / "big.npy"
    array = np.lib.format.open_memmap(path, mode="w+", dtype=np.uint8, shape=(rows, width))
    for start in range(0, rows, 4096):
        array[start : start + 4096] = np.arange(width, dtype=np.uint8)
    array.flush()
    del array
    assert path.stat().st_size >= 10 * budget
    program = textwrap.dedent(PROGRAM).replace("BUDGET", str(budget))
    command = [sys.executable, "-W", "error", "-c", program, str(path), *kind]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=HANG, check=False)
    assert done.returncode == 0, done.stderr
    steps, before, peak = map(int, done.stdout.split())
    assert steps == 2 * rows // 256
    # At the first look the budget is not used up yet, nor are the idle buffers, which may be as many; a few batches are
    # placed.
    assert peak - before < 2 * budget + (12 << 20), f"{before >> 20} MiB became {peak >> 20}"


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data,
        lambda data: data.map(lambda example: example),
        lambda data: data.map(lambda example, rng: example, rng=True),
        lambda data: data.map_batch(lambda batch: batch),
    ],
    ids=["plain", "map", "random map", "map_batch"],
)
def test_no_step_leaves_its_memory_to_the_garbage_collector(change: Any) -> None:
    """A reference cycle, say of an inner function that calls itself, keeps arrays until garbage is collected."""
    with iter(Dataloader(change(from_arrays({"x": np.zeros((800, 8), np.float32)})), 64, num_epochs=None)) as batches:
        next(batches)
        gc.collect()
        gc.disable()
        try:
            for _ in range(50):
                next(batches)
            assert gc.collect() == 0
        finally:
            gc.enable()


def feeds() -> list[BatchProducer]:
    """All that there are in this process."""
    return [each for each in gc.get_objects() if type(each) is BatchProducer]


@pytest.mark.parametrize("kind", WORKER_TYPES)
def test_a_closed_iterator_has_no_memory(kind: str) -> None:
    """Someone may keep it, for what it says of the run.

    Not so what it read with, which has buffers and, for processes, a copy of the data.
    """
    others = feeds()
    with iter(Dataloader({"x": np.zeros((800, 64), np.float32)}, 64, num_workers=1, worker_type=kind)) as batches:
        next(batches)
        (feed,) = (weakref.ref(each) for each in feeds() if each not in others)
    assert feed() is None
    assert batches.stats().steps == 1
