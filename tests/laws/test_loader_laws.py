"""The one idea: a batch is a function of (dataset, step).

Whatever mesh, partition, workers, pieces, budget and start.
"""

import json
from dataclasses import dataclass
from functools import cache, partial
from itertools import pairwise
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

from loadax import Dataloader, Dataset, from_source
from loadax.core.tree import flatten
from loadax.loader.execution import monitor
from loadax.loader.metrics.stats import Timing
from loadax.protocols import ArraySpec, Integers
from loadax.sharding import DataPartitionType, PlannedMesh, plan_mesh
from loadax.sharding.partition import resolve_partition
from tests.limits import examples
from tests.loader.oracle import (
    ELEMENTWISE,
    NONE,
    ORDERS,
    RECIPES,
    SOURCES,
    Oracle,
    Recipe,
    arrays,
    assert_placed,
    mesh_of,
)
from tests.work_counts import lines_of, peak_of

ROWS = 90


@dataclass(frozen=True)
class Cut:
    """A mesh of eight devices and a way to cut batches of multiples of 8 rows over it."""

    axes: dict[str, int]
    partition: Any
    columns: bool = False  # cuts columns by name, so only leaves of the source's own names fit


LINE, GRID, TALL = {"data": 8}, {"data": 4, "model": 2}, {"model": 4, "data": 2}
CUBE = {"data": 2, "fsdp": 2, "seq": 2}
CUTS = (
    Cut(LINE, None),
    Cut(LINE, P("data")),
    Cut(LINE, P()),
    Cut(LINE, DataPartitionType.REPLICATED),
    Cut(LINE, {"image": P("data"), "label": P(), "tokens": P(None, "data")}, columns=True),
    Cut(LINE, {"image": P(None, None, "data"), "label": P("data"), "tokens": P()}, columns=True),
    Cut(GRID, P("data")),
    Cut(GRID, P("model")),
    Cut(GRID, P(("data", "model"))),
    Cut(GRID, P(("model", "data"))),
    Cut(GRID, DataPartitionType.FULL),
    Cut(GRID, P("data", "model"), columns=True),
    Cut(TALL, P("data", "model"), columns=True),
    Cut(TALL, P("model", "data"), columns=True),
    Cut(TALL, P(None, "model"), columns=True),
    Cut(CUBE, P(("fsdp", "data"), "seq"), columns=True),
    Cut(CUBE, P(("data", "fsdp"))),
    Cut(
        CUBE,
        {
            "image": P("data", ("seq", "fsdp")),
            "label": P(("seq", "fsdp", "data")),
            "tokens": P("fsdp", ("data", "seq")),
        },
        columns=True,
    ),
    Cut(CUBE, {"image": P("seq"), "label": P("data"), "tokens": DataPartitionType.REPLICATED}, columns=True),
)


class RandomPieces:
    """Stands in for `PieceSizes`: any number of steps in a run, each cut at the same rows, anywhere."""

    seed = 0

    def __init__(self, rows_per_step: int, *_: Any):
        self._rows = rows_per_step
        self._random = np.random.default_rng(self.seed)

    def measured(self, rows: int, timing: Timing) -> None:
        pass

    @property
    def steps(self) -> int:
        return int(self._random.integers(1, 6))

    def pieces(self, count: int, active: int, rows_per_step: int | None = None) -> list[tuple[int, int]]:
        total = self._rows
        cuts = sorted({0, total, *self._random.integers(0, total, self._random.integers(0, 5)).tolist()})
        return list(pairwise(cuts))


def build(source: str, order: str, recipe: Recipe) -> tuple[Dataset, dict[str, np.ndarray[Any, Any]]]:
    tree = arrays(ROWS)
    return recipe.build(ORDERS[order](SOURCES[source](tree))), tree


@cache
def expected(recipe: Recipe, remainder: str) -> list[Any]:
    """The batches of an epoch, which are those of every mesh."""
    data, tree = build("arrays", "shuffled", recipe)
    oracle = Oracle(tree, data.order, recipe, 16, remainder)
    return [oracle.batch(step) for step in range(oracle.steps_per_epoch())]


@pytest.mark.parametrize("axis_type", [AxisType.Auto, AxisType.Explicit])
@pytest.mark.parametrize("cut", CUTS, ids=lambda cut: f"{cut.axes}{cut.partition}")
def test_every_mesh_and_partition(cut: Cut, axis_type: AxisType) -> None:
    seeds = (None, 1) if axis_type == AxisType.Auto else (1, None)
    for recipe, seed in zip((NONE, ELEMENTWISE), seeds, strict=True):
        data, _ = build("arrays", "shuffled", recipe)
        mesh = mesh_of(cut.axes, axis_type, seed)
        for remainder in ("drop", "pad"):
            loader = Dataloader(data, 16, mesh=mesh, partition=cut.partition, remainder=remainder, num_workers=1)
            specs = loader.spec
            assert len(loader) == len(expected(recipe, remainder))
            for batch, wanted in zip(loader, expected(recipe, remainder), strict=True):
                assert_placed(batch, wanted, mesh)
                jax.tree.map(_same, batch, specs)
            _check_shardings(batch, cut.partition, mesh, remainder)


def _same(array: jax.Array, spec: jax.ShapeDtypeStruct) -> None:
    assert (array.shape, array.dtype, array.sharding) == (spec.shape, spec.dtype, spec.sharding)


def _check_shardings(batch: Any, partition: Any, mesh: Any, remainder: str) -> None:
    """Every leaf has exactly the sharding that was asked for, the mask that of the first leaf's rows."""
    mask = batch.pop("mask") if remainder == "pad" else None
    leaves, structure = flatten(batch)
    specs = resolve_partition(partition, structure, [leaf.shape for leaf in leaves], mesh)
    for leaf, spec in zip(leaves, specs, strict=True):
        assert leaf.sharding == NamedSharding(mesh, spec)
    if mask is not None:
        assert mask.sharding == NamedSharding(mesh, P(*tuple(specs[0])[:1]))


@settings(max_examples=examples(80), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(picks=st.data())
def test_any_run_from_any_step(monkeypatch: pytest.MonkeyPatch, picks: st.DataObject) -> None:
    draw = picks.draw
    cut = draw(st.sampled_from(CUTS))
    recipe = draw(st.sampled_from([recipe for recipe in RECIPES if recipe.name != "map_batch" or not cut.columns]))
    if recipe.name in ("map", "chain") and cut.columns:
        recipe = ELEMENTWISE
    source, order = draw(st.sampled_from(sorted(SOURCES))), draw(st.sampled_from(sorted(ORDERS)))
    batch_size, remainder = draw(st.sampled_from([8, 16, 40])), draw(st.sampled_from(["drop", "pad"]))
    mesh = mesh_of(
        cut.axes, draw(st.sampled_from([AxisType.Auto, AxisType.Explicit])), draw(st.sampled_from([None, 1]))
    )
    if draw(st.booleans()):
        monkeypatch.setattr(RandomPieces, "seed", draw(st.integers(0, 999)))
        monkeypatch.setattr(monitor, "PieceSizes", RandomPieces)
    data, tree = build(source, order, recipe)
    loader = Dataloader(
        data,
        batch_size,
        mesh=mesh,
        partition=cut.partition,
        num_epochs=draw(st.sampled_from([2, None])),
        remainder=remainder,  # type: ignore[arg-type]
        num_workers=draw(st.sampled_from([0, 1, 3])),
        prefetch=draw(st.sampled_from([0, 1, 7])),
        prefetch_bytes=draw(st.sampled_from([1, 5000, 1 << 28])),
    )
    oracle = Oracle(tree, data.order, recipe, batch_size, remainder)
    per_epoch = oracle.steps_per_epoch()
    assert loader.steps_per_epoch == per_epoch
    start = draw(st.integers(0, 2 * per_epoch - 1))
    with loader.iterate(start) as batches:
        for step in range(start, min(start + draw(st.integers(1, 4)), 2 * per_epoch)):
            assert (batches.step, batches.epoch) == (step, step // per_epoch)
            assert_placed(next(batches), oracle.batch(step), mesh)
        state = json.loads(json.dumps(batches.get_state()))
    assert_placed(loader[step], oracle.batch(step), mesh)
    np.testing.assert_array_equal(loader.rows(step), oracle.rows(step))
    np.testing.assert_array_equal(loader.local_rows(step), oracle.rows(step))
    jax.tree.map(np.testing.assert_array_equal, loader.host_batch(step), oracle.batch(step))
    with loader.iterate(state) as batches:
        assert batches.step == step + 1
        if loader_goes_on(loader, step + 1):
            assert_placed(next(batches), oracle.batch(step + 1), mesh)
        else:
            assert list(batches) == []
    monkeypatch.undo()


def loader_goes_on(loader: Dataloader, step: int) -> bool:
    try:
        return step < len(loader)
    except TypeError:
        return True


@pytest.mark.parametrize("pieces", ["tiny", "large", "random"])
@pytest.mark.parametrize("workers", [0, 1, 3])
def test_pieces_and_workers_never_show(monkeypatch: pytest.MonkeyPatch, pieces: str, workers: int) -> None:
    if pieces == "random":
        monkeypatch.setattr(monitor, "PieceSizes", RandomPieces)
    else:
        monkeypatch.setattr("loadax.loader.execution.piece_size.TARGET", 1e-9 if pieces == "tiny" else 1e9)
    data, tree = build("arrays", "lanes", RECIPES[-1])
    mesh = mesh_of(GRID)
    loader = Dataloader(data, 8, mesh=mesh, partition=P("data"), num_epochs=3, remainder="pad", num_workers=workers)
    oracle = Oracle(tree, data.order, RECIPES[-1], 8, "pad")
    for step, batch in enumerate(loader):
        assert_placed(batch, oracle.batch(step), mesh)
    assert step + 1 == 3 * 12


class Endless:
    """10^12 rows, of which nothing is stored: row r holds r."""

    spec = ArraySpec((2,), np.dtype(np.int64))
    read_rows = 0

    def __len__(self) -> int:
        return 10**12

    def read(self, rows: Integers) -> Any:
        self.read_rows += len(rows)
        return np.stack([rows // 10**9, rows % 10**9], axis=1)


@pytest.mark.parametrize("block", [None, 1000])
def test_one_of_4096_hosts_plans_its_own_rows_alone(block: int | None) -> None:
    source = Endless()
    data = from_source(source).shuffle(seed=0, block=block)
    found = []
    for host in (0, 1234, 4095):
        mesh = plan_mesh({"data": 512, "seq": 64}, hosts=4096, process=host)
        loaders: list[Dataloader] = []

        def begin(mesh: PlannedMesh = mesh, loaders: list[Dataloader] = loaders) -> None:
            loaders.append(Dataloader(data, 65_536, mesh=mesh, partition=P(("data", "seq")), num_epochs=None))
            loaders[0].local_rows(0)

        # What grows with the hosts, the batch or the data takes far more.
        assert lines_of(begin) < 20_000
        (loader,) = loaders
        step = 10**6 + 19
        assert lines_of(partial(loader.local_rows, step)) < 5000
        # the batch's positions alone are four times that
        assert peak_of(partial(loader.local_rows, step + 1)) < 1 << 17
        rows = loader.local_rows(step)
        np.testing.assert_array_equal(rows, loader.rows(step)[host * 16 : (host + 1) * 16])
        found.append(rows)
        batch = loader.host_batch(step)
        np.testing.assert_array_equal(batch[:, 0].astype(np.int64) * 10**9 + batch[:, 1], rows)
    assert len(set(np.concatenate(found).tolist())) == 3 * 16
    assert source.read_rows == 3 * 16


def test_shares_of_4096_hosts_are_planned_without_any_mesh() -> None:
    data = from_source(Endless()).shuffle(seed=0)
    for host in (0, 77, 4095):
        loader = Dataloader(data, 65_536, shard_index=host, shard_count=4096, num_epochs=None)
        step = 24
        loader.local_rows(5)
        assert lines_of(partial(loader.local_rows, step)) < 5000
        assert peak_of(partial(loader.local_rows, step + 1)) < 1 << 17
        np.testing.assert_array_equal(loader.local_rows(step), loader.rows(step)[host * 16 : (host + 1) * 16])
