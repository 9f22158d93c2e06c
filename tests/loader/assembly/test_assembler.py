"""The assembler writes every box of every host of planned meshes like the oracle, and reads each element once."""

from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from time import thread_time
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from loadax import Dataloader, Dataset, from_source
from loadax.core.buffers import aligned_bytes
from loadax.core.tree import flatten
from loadax.loader.assembly import assembler
from loadax.loader.assembly.assembler import Assembler, FillOptions, Piece
from loadax.loader.assembly.buffer_layout import BatchBuffers
from loadax.loader.assembly.host_shard import HostShard, buffer_layout
from loadax.plan.batches import BatchPlan
from tests.loader.oracle import BATCH, ELEMENTWISE, MAP, NONE, ColumnSource, Oracle, ReadSource, Recipe, arrays
from tests.meshes import ZOO, MeshCase

ROWS, SIZE, STEPS = 60, 16, 4
TREE = arrays(ROWS)


def partitions(case: MeshCase) -> Iterator[Any]:
    first, *rest = case.axes
    yield from (P(first), P(), {"image": P(None, None, first), "label": P(first), "tokens": P(None, first)})
    for second in rest:
        yield from (P((second, first)), P(first, second), P(None, second))
        yield {"image": P(None, second, first), "label": P(), "tokens": P((first, second))}


@cache
def expectation(recipe: Recipe, remainder: str) -> tuple[list[list[Any]], list[Any]]:
    """The leaves and the rows of each step, which no mesh changes."""
    oracle = Oracle(TREE, from_source(ReadSource(TREE)).shuffle(seed=7).order, recipe, SIZE, remainder)
    return [flatten(oracle.batch(step))[0] for step in range(STEPS)], [
        np.array(oracle.rows(step)) for step in range(STEPS)
    ]


def fill(shard: HostShard, data: Dataset, plan: BatchPlan, seed: int) -> BatchBuffers:
    """The buffers of all steps, filled in pieces that are cut anywhere and come in any order.

    What nobody writes is 0xEE.
    """
    layout = buffer_layout(shard)
    memory = aligned_bytes(STEPS * layout.bytes_per_step)
    memory[:] = 0xEE
    buffers = BatchBuffers(layout, memory, STEPS)
    assembler = Assembler(data.reader, FillOptions(layout))
    visits = plan.visits_of(range(STEPS), shard.positions)
    random = np.random.default_rng(seed)
    total = len(shard.positions)
    cuts = sorted({0, total, *random.integers(0, total, random.integers(4)).tolist()}) if total else []
    pieces = list(pairwise(cuts))
    for low, high in random.permutation(pieces).tolist() if pieces else []:
        part = type(visits)(*(numbers.reshape(STEPS, total)[:, low:high].ravel() for numbers in visits))
        timing = assembler.fill(Piece(part, low, buffers))
        assert timing.rows == (part.rows >= 0).sum()
    return buffers


@pytest.mark.parametrize("case", ZOO, ids=lambda case: case.name)
@pytest.mark.parametrize(
    ("recipe", "remainder"),
    [(NONE, "pad"), (ELEMENTWISE, "drop"), (MAP, "pad"), (BATCH, "pad")],
    ids=lambda value: getattr(value, "name", value),
)
def test_every_host_holds_its_boxes_and_reads_each_element_once(case: MeshCase, recipe: Recipe, remainder: Any) -> None:
    columns = recipe in (NONE, ELEMENTWISE)
    expected, rows_of = expectation(recipe, remainder)
    for number, partition in enumerate(partitions(case) if columns else [P(case.axes[-1])]):
        covered = [np.zeros(leaf.shape, bool) for leaf in expected[0]]
        for process in range(case.processes):
            source = ColumnSource(TREE) if columns else ReadSource(TREE)
            data = recipe.build(from_source(source).shuffle(seed=7))
            loader = Dataloader(
                data, SIZE, mesh=case.planned(process), partition=partition, num_epochs=2, remainder=remainder
            )
            counts = source.counts if isinstance(source, ColumnSource) else [source.counts]
            for count in counts:
                count[:] = 0
            shard = loader.phases[0].shard()
            buffers = fill(shard, data, loader.phases[0].plan.of(0), 100 * number + process)
            planned = [np.zeros_like(count) for count in counts]
            for step in range(STEPS):
                rows = rows_of[step]
                for leaf, layout in enumerate(shard.layouts):
                    held = np.zeros(expected[step][leaf].shape, np.int64)
                    for box, buffer in zip(layout.boxes, buffers.boxes(leaf, step), strict=True):
                        where = tuple(slice(*side) for side in box)
                        assert buffer.tobytes() == expected[step][leaf][where].tobytes()
                        assert buffer.ctypes.data % 64 == 0
                        held[where] = 1
                        covered[leaf][where] = True
                    source_leaf = shard.batch.leaves[leaf].source
                    if columns and source_leaf is not None:
                        np.add.at(planned[source_leaf], rows[rows >= 0], held[rows >= 0])
                np.testing.assert_array_equal(loader.local_rows(step), rows[shard.positions])
                if not columns:
                    mine = rows[shard.positions]
                    np.add.at(planned[0], mine[mine >= 0], 1)
            for count, plan in zip(counts, planned, strict=True):
                np.testing.assert_array_equal(count, plan)
        assert all(mask.all() for mask in covered)


def test_a_leaf_whose_rows_nobody_here_holds_is_not_read() -> None:
    """Different leaves may want different rows: columns of the one, rows of the other."""
    case = next(case for case in ZOO if case.name == "host by device")
    source = ColumnSource(TREE)
    partition = {"image": P(), "label": P("host"), "tokens": P("host", "device")}
    loader = Dataloader(from_source(source), SIZE, mesh=case.planned(1), partition=partition)
    fill(loader.phases[0].shard(), loader.dataset, BatchPlan(loader.dataset.order, SIZE, 2), 0)
    image, label, tokens = source.counts
    assert image[16:48].min() == image[16:48].max() == 1
    assert label[16:32].tolist() == [0] * 8 + [1] * 8
    assert tokens[16:32].sum(axis=1).tolist() == [0] * 8 + [16] * 8
    assert source.whole_reads == 0


def test_rounds_of_many_leaves_take_linear_work() -> None:
    def seconds(leaves: int) -> float:
        tiles: Any = [
            (index, SimpleNamespace(select=None, leaf=SimpleNamespace(source=index % leaves)))
            for index in range(2 * leaves)
        ]
        begun = thread_time()
        rounds = list(assembler._rounds(tiles))
        spent = thread_time() - begun
        assert [[index for index, _ in part] for part in rounds] == [[*range(leaves)], [*range(leaves, 2 * leaves)]]
        return spent

    assert min(seconds(4096) for _ in range(3)) < 4 * 16 * min(seconds(256) for _ in range(3))  # quadratic: 256 times
