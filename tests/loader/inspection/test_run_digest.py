"""A digest covers every row, step and position, and is the same on every mesh and host."""

from itertools import pairwise
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from loadax import Dataloader, from_arrays, mix, seeds
from loadax.errors import ArgumentError, RowIndexError
from loadax.loader.inspection.run_digest import DigestedSteps, digest_of
from loadax.plan.batches import BatchPlan
from loadax.sharding import data_parallel, plan_mesh
from tests.work_counts import lines_of

TREE = {"x": np.arange(100) * 3, "y": np.arange(200.0).reshape(100, 2)}
DATA = from_arrays(TREE).shuffle(2)
ALONE = data_parallel(jax.devices()[:1])


def loader_of(data: Any = DATA, batch_size: Any = 12, **how: Any) -> Dataloader:
    return Dataloader(data, batch_size, **{"mesh": ALONE, "num_epochs": 2, "remainder": "pad", **how})


def expected(loader: Dataloader) -> str:
    """Counted another way: one hash after the other, each half added by itself."""
    halves = [0, 0]
    for step in range(len(loader)):
        visits = loader.phases[0].plan.visits(step)
        for position, (row, epoch) in enumerate(zip(visits.rows, visits.epochs, strict=True)):
            for half in (0, 1) if row >= 0 else ():
                hashed = seeds.derive(0, "visit", half, np.array([step]), np.array([position]), row[None], epoch[None])
                halves[half] = (halves[half] + int(hashed[0])) % 2**64
    return f"{halves[0]:016x}{halves[1]:016x}"


def test_digest_changes_with_any_row_step_or_position() -> None:
    whole = loader_of().digest()
    assert loader_of(DATA.map(lambda example: example)).digest() == whole
    assert loader_of(num_epochs=3).digest(range(18)) == whole
    others = [
        loader_of(from_arrays(TREE).shuffle(3)),
        loader_of(DATA[1:]),
        loader_of(batch_size=10),
        loader_of(num_epochs=3),
        loader_of().skip([3]),
        loader_of(quarantine=[3]),
    ]
    assert len({whole, *(other.digest() for other in others)}) == len(others) + 1


def test_digest_is_the_sum_of_the_hashes_of_all_visits() -> None:
    scheduled = loader_of(batch_size={0: 4, 5: 8}).skip([3])
    mixed = Dataloader(mix({"a": DATA, "b": DATA}, {0: [1, 1], 20: [1, 3]}), 8, mesh=ALONE)
    for loader in (loader_of(), scheduled, mixed):
        assert loader.digest() == expected(loader)


def test_digests_of_step_ranges_add_up() -> None:
    loader = loader_of(batch_size={0: 4, 5: 8})
    for half in (slice(16), slice(16, 32)):
        cuts = [loader.digest(range(*ends))[half] for ends in pairwise([0, 2, 9, len(loader)])]
        assert sum(int(cut, 16) for cut in cuts) % 2**64 == int(loader.digest()[half], 16)


def test_blocks_of_steps_have_the_digest_of_all_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    at_once = loader_of().digest()
    monkeypatch.setattr("loadax.loader.inspection.run_digest.AT_ONCE", 30)
    assert loader_of().digest() == at_once


def test_golden_digest() -> None:
    """The same run has the same digest in every version of loadax."""
    assert loader_of().digest() == "8361121b9a66db60f04036e543b89278"


def test_digest_is_the_same_on_every_mesh_and_host() -> None:
    """Also if the model axis spans hosts, and if leaves are split in different ways."""
    data = from_arrays({"x": TREE["x"]}).shuffle(2)
    digests = {Dataloader(data, 16, shard_index=1, shard_count=2).digest(), Dataloader(data, 16, mesh=ALONE).digest()}
    owners = np.array([[0, 0, 1, 1], [2, 2, 3, 3]])
    for partition in (P("data"), P("model"), P(("data", "model")), P()):
        meshes = (plan_mesh({"data": 2, "model": 4}, owners=owners, process=host) for host in range(4))
        digests |= {Dataloader(data, 16, mesh=mesh, partition=partition).digest() for mesh in meshes}
    assert len(digests) == 1


@pytest.mark.parametrize(
    ("options", "steps", "error", "message"),
    [
        ({"num_epochs": None}, None, ArgumentError, r"the run is infinite; pass steps=range\(start, stop\)"),
        ({}, range(0, 8, 2), ArgumentError, r"steps=range\(0, 8, 2\): pass a range of consecutive steps"),
        ({}, [1, 2], ArgumentError, r"steps=\[1, 2\]: pass a range of consecutive steps"),
        ({}, range(3, 3), ArgumentError, r"steps=range\(3, 3\): pass a range of consecutive steps"),
        ({}, range(5, 19), RowIndexError, "step 18 is out of range"),
        ({}, range(-1, 3), RowIndexError, "step -1 is out of range"),
    ],
)
def test_unsuitable_steps(options: dict[str, Any], steps: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        loader_of(**options).digest(steps)


def test_a_million_records_are_a_few_lines_a_step() -> None:
    data = from_arrays(np.broadcast_to(np.int8(0), (10**12,))).shuffle(1)
    plan, none = BatchPlan(data.order, 4096), np.empty(0, np.int64)
    assert lines_of(lambda: digest_of([DigestedSteps(plan, range(10**6, 10**6 + 250), none)])) < 250 * 300
