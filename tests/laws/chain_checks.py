"""What a chain must do: all that a dataset, its source and a loader of it say and read, beside the oracle's lists."""

import json
import shutil
import tempfile
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Literal

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec

import loadax
from loadax import Buckets, Dataloader
from loadax.composition.concatenated import ConcatenatedSource
from loadax.errors import LoadaxError, RowIndexError
from loadax.plan.find import StepPosition
from loadax.sharding import plan_mesh
from loadax.sources.base import walk
from loadax.testing import check_source
from tests.faulty import FaultySource
from tests.laws.chain_choices import EPOCHS, Choices, Tally
from tests.laws.chain_rows import (
    Row,
    Stores,
    assert_batch,
    assert_row,
    each_leaf,
    form,
    leaves,
    placeable,
    stacked,
)
from tests.laws.chain_verbs import Chain, Visit
from tests.loader.oracle import assert_placed


def check(random: Random, stores: Stores, tally: Tally, contract: float, processes: float = 0.0) -> None:
    """One chain, with all laws.

    Args:
        random: what decides.
        stores: files that sources may read.
        tally: counts what was tried.
        contract: the share of chains whose sources go through `check_source`.
        processes: the share that is loaded by worker processes.
    """
    folder = Path(tempfile.mkdtemp(dir=stores.folder))
    chain: Chain | None = None
    try:
        choices = Choices(random, stores, folder, tally)
        chain = choices.chain()
        check_bucketed(chain, random, tally)
        chain = choices.loadable(chain)
        check_dataset(chain, random, tally)
        check_loader(chain, random, tally, random.random() < processes)
        # Hypothesis draws small numbers far more often than others. Behind them, this generator is even.
        if Random(random.getrandbits(32)).random() < contract:
            tally.checks["contract"] += 1
            check_wrapped(chain)
            check_sources(chain)
    except Exception as error:
        if chain is not None:
            error.add_note(f"the chain: {chain}")
        raise
    finally:
        shutil.rmtree(folder)


def check_dataset(chain: Chain, random: Random, tally: Tally) -> None:
    """Its length, its order, and its rows: one by one, at once, at any positions of any epochs."""
    dataset, size = chain.dataset, len(chain)
    assert len(dataset) == size
    assert repr(dataset).startswith(f"Dataset({size:,} {'row' if size == 1 else 'rows'} of ")
    epochs = 0, random.choice([1, 2]), random.choice([3, 7])
    for epoch in epochs:
        wanted = chain.visits(epoch)
        visits = dataset.order.visits(np.full(size, epoch), np.arange(size))
        assert visits.rows.tolist() == [visit.row for visit in wanted]
        assert visits.epochs.tolist() == [visit.epoch for visit in wanted]
    assert dataset.order.varies == chain.varies
    for position in (size, -size - 1):
        with pytest.raises(RowIndexError, match="is out of range"):
            dataset[position]
    if not size:
        assert list(dataset) == []
        return
    pairs = [(random.choice(epochs), random.randrange(size)) for _ in range(random.randint(0, 8))]
    columns = np.array(pairs, np.int64).reshape(-1, 2).T
    visits = dataset.order.visits(*columns)
    expected = [chain.visits(epoch)[position] for epoch, position in pairs]
    assert visits.rows.tolist() == [visit.row for visit in expected]
    assert visits.epochs.tolist() == [visit.epoch for visit in expected]
    _check_rows(chain, random, epochs, tally)
    _check_split(chain)


def _check_rows(chain: Chain, random: Random, epochs: tuple[int, ...], tally: Tally) -> None:
    dataset, size = chain.dataset, len(chain)
    values = chain.values()
    if chain.one_by_one or chain.alike(0):
        for got, value in zip(dataset, values, strict=True):
            assert_row(got, value)
        assert_row(dataset[-1], values[-1])
    for epoch in epochs:
        if chain.alike(0, epoch):
            values = chain.values(epoch)
            assert_batch(dataset.read(np.arange(size), epoch), values)
            positions = [random.randrange(size) for _ in range(random.randint(1, 6))]
            assert_batch(dataset.read(positions, epoch), [values[position] for position in positions])
        elif len({form(value) for value in chain.values(epoch)}) > 1:
            tally.refused("read", partial(dataset.read, np.arange(size), epoch))
    if chain.alike(0):
        row = each_leaf(lambda leaf: leaf[0], dataset.read([0]))
        assert form(row) == form(values[0])


def _check_split(chain: Chain) -> None:
    if not chain.splittable:
        with pytest.raises(LoadaxError, match=r"split\(\)"):
            chain.dataset.split(0.5)
        return
    sides = [
        side.order.visits(np.full(len(side), 1), np.arange(len(side))).rows.tolist()
        for side in chain.dataset.split(0.5, allow_shared_rows=True)
    ]
    assert not set(sides[0]) & set(sides[1])
    assert sorted(sides[0] + sides[1]) == sorted(visit.row for visit in chain.visits(1))


def check_sources(chain: Chain) -> None:
    """The source keeps the contract, and so does every one below it, as it answers for those."""
    if chain.unlike and "map_batch" in repr(
        chain
    ):  # rows that verbs leave out are read too, and a map of batches can't take them
        return
    for source in walk(chain.dataset.source):
        differs = isinstance(source, ConcatenatedSource) and source.spec is None  # only a map makes its rows alike
        if len(source) and not differs:
            check_source(source, loader=False, pickled=False, rows=8)


def check_wrapped(chain: Chain) -> None:
    """Another source below, that says the same, changes nothing."""
    if not len(chain) or not chain.alike(0):
        return
    reader = chain.dataset.reader.over(lambda source, _: FaultySource(source, {}))
    visits = chain.dataset.order.visits(np.zeros(len(chain), np.int64), np.arange(len(chain)))
    assert_batch(reader.read_visits(visits), chain.values())


class Run:
    """The batches of a chain, by hand.

    Args:
        chain: to be loaded.
        batch_size: rows of a batch.
        num_epochs: of the run.
        remainder: "drop" or "pad".
    """

    def __init__(self, chain: Chain, batch_size: int, num_epochs: int, remainder: str):
        self._remainder, self.batch_size = remainder, batch_size
        self.steps: list[list[Visit]] = []
        for epoch in range(num_epochs):
            visits = chain.visits(epoch)
            for start in range(0, len(visits), batch_size):
                batch = sorted(visits[start : start + batch_size], key=lambda visit: visit.lane or 0)
                if len(batch) == batch_size or remainder == "pad":
                    self.steps.append(batch)

    def rows(self, step: int) -> list[int]:
        batch = self.steps[step]
        return [visit.row for visit in batch] + [-1] * (self.batch_size - len(batch))

    def batch(self, step: int) -> Any:
        """As numpy arrays of the dtypes that JAX gives them."""
        rows: list[Row] = [visit.value for visit in self.steps[step]]
        empty = each_leaf(np.zeros_like, rows[0])
        batch = stacked(rows + [empty] * (self.batch_size - len(rows)))
        batch = each_leaf(lambda leaf: leaf.astype(jax.dtypes.canonicalize_dtype(leaf.dtype)), batch)
        return {**batch, "mask": np.arange(self.batch_size) < len(rows)} if self._remainder == "pad" else batch


def mesh_of(devices: int) -> Mesh:
    return Mesh(np.array(jax.devices()[:devices], object), ("data",))


def another_cut(chain: Chain, rows: int, random: Random) -> tuple[Mesh, Any]:
    """A mesh and a partition: rows over so many devices, or nothing cut, or columns too."""
    if random.random() < 0.5:
        return mesh_of(rows), random.choice([PartitionSpec("data"), PartitionSpec()])
    mesh = Mesh(np.array(jax.devices()[: 2 * rows], object).reshape(rows, 2), ("data", "model"))

    def cut(leaf: Any) -> PartitionSpec:
        columns = np.shape(leaf)[:1]
        return PartitionSpec("data", "model") if columns and columns[0] % 2 == 0 else PartitionSpec("data")

    return mesh, each_leaf(cut, chain.first)


def check_loader(chain: Chain, random: Random, tally: Tally, processes: bool = False) -> None:
    """Batches of any size, on any mesh, from any step on; what a loader says of them."""
    size = len(chain)
    devices = random.choice([each for each in (1, 1, 2, 4) if each == 1 or each <= size])
    batch_size = devices * random.randint(1, max(1, min(10, size // devices + (random.random() < 0.1))))
    num_epochs = random.randint(1, 3)
    named = type(chain.first) is dict and "mask" not in chain.first
    remainder: Literal["drop", "pad"] = random.choice(["drop", "pad"] if named or random.random() < 0.1 else ["drop"])

    mesh = mesh_of(devices)

    def loader(mesh: Mesh = mesh, workers: int = 0, **arguments: Any) -> Dataloader:
        options = {"num_epochs": num_epochs, "remainder": remainder, "num_workers": workers, **arguments}
        return Dataloader(chain.dataset, batch_size, mesh=mesh, **options)

    refused = (
        not size
        or (remainder == "drop" and batch_size > size)
        or (remainder == "pad" and not named)
        or not placeable(chain.first)
    )
    if refused:
        tally.checks["refused by the loader"] += 1
        tally.refused("Dataloader", loader)
        return
    if chain.differs or len({form(value) for epoch in EPOCHS for value in chain.values(epoch)}) > 1:
        tally.checks["rows that differ"] += 1
        _check_unlike(loader, Run(chain, batch_size, 1, "drop"), tally)
        return
    tally.checks["loaded"] += 1
    run = Run(chain, batch_size, num_epochs, remainder)
    plain = loader()
    assert len(plain) == len(run.steps)
    for step in range(len(run.steps)):
        assert plain.rows(step).tolist() == run.rows(step)
    other, partition = another_cut(chain, random.choice([rows for rows in (1, 2, 4) if batch_size % rows == 0]), random)
    kind = "process" if processes and "chunked source" not in repr(chain) else "thread"  # that source holds a lock
    tally.checks[f"resumed by {kind}"] += 1
    first = loader(workers=random.choice([0, 1, 2]), prefetch=random.randint(0, 3))
    resumed = loader(other, workers=random.choice([1, 2]), worker_type=kind, partition=partition)
    _check_resumed((first, mesh), (resumed, other), run, random)
    step = random.randrange(len(run.steps))
    assert_placed(plain[step], run.batch(step), mesh)
    for got, wanted in zip(leaves(plain.host_batch(step)), leaves(run.batch(step)), strict=True):
        assert (got.dtype, got.tolist()) == (wanted.dtype, wanted.tolist())
    _check_told(plain, run, step, random)
    _check_hosts(chain, run, step, devices, remainder)
    _check_skips(plain, run, random)
    if random.random() < 0.5:
        tally.checks["chained loaders"] += 1
        _check_chained(chain, (plain, run), mesh, remainder, random)
    if random.random() < 0.5:
        tally.checks["leased"] += 1
        _check_leased(plain, Run(chain, batch_size, num_epochs, "pad"), random)
    lanes = any(visit.lane is not None for batch in run.steps for visit in batch)
    costs = np.array([random.randint(0, 9) for _ in range(chain.rows)])
    if lanes:
        tally.refused("balance", lambda: loader(balance=costs))
    else:
        tally.checks["balanced"] += 1
        _check_balanced(loader(balance=costs), run, mesh, random)


def _check_chained(chain: Chain, one: tuple[Dataloader, Run], mesh: Mesh, remainder: Any, random: Random) -> None:
    """Two or three loaders one after the other: all rows, and batches around a seam, from a state before it."""
    parts, devices = [one], mesh.size
    for _ in range(random.randint(1, 2)):
        size, epochs = devices * random.randint(1, max(1, min(6, len(chain) // devices))), random.randint(1, 2)
        options: dict[str, Any] = {"num_epochs": epochs, "remainder": remainder, "num_workers": random.choice([0, 1])}
        loader = Dataloader(chain.dataset, size, mesh=mesh, **options)
        parts.append((loader, Run(chain, size, epochs, remainder)))
    random.shuffle(parts)
    chained = loadax.chain([loader for loader, _ in parts])
    steps = [(run, step) for _, run in parts for step in range(len(run.steps))]
    assert [chained.rows(step).tolist() for step in range(len(chained))] == [run.rows(step) for run, step in steps]
    seam = random.choice(chained.first_steps[1:])
    begin = max(0, seam - random.randint(0, 2))
    with chained.iterate(begin) as batches:
        state = json.loads(json.dumps(batches.get_state()))
    moved = mesh_of(random.choice([1, mesh.size]))
    with chained.iterate(state) as batches:
        batches.move_to(moved)
        for (run, step), batch in zip(steps[begin : seam + 2], batches, strict=False):
            assert_placed(batch, run.batch(step), moved)
        assert batches.step >= min(seam + 2, len(steps))


def _check_leased(plain: Dataloader, run: Run, random: Random) -> None:
    """Leases that end again and again serve each row, in order, until it is acknowledged or dropped."""
    visits = [visit for batch in run.steps for visit in batch]
    left, state = list(range(len(visits))), None
    for number in range(3):
        with plain.lease(state) as lease:
            served = []
            for leased in lease:
                positions = leased.positions.tolist()
                _assert_on_host(leased.examples, [visits[position].value for position in positions])
                served += positions
                if number < 2 and random.random() < 0.3:
                    break
            assert served == left[: len(served)]
            for position in random.sample(served, random.randint(0, len(served))):
                random.choice([lease.ack, lease.drop])(position)
                left.remove(position)
            state = json.loads(json.dumps(lease.get_state()))
    with plain.lease(state) as lease:
        assert [position for leased in lease for position in leased.positions.tolist()] == left


def _assert_on_host(got: Any, rows: list[Row]) -> None:
    """That rows are these, with the dtypes that JAX gives them; "mask" is that of a padded loader."""
    if isinstance(got, dict) and "mask" not in rows[0]:
        got = {key: leaf for key, leaf in got.items() if key != "mask"}
    wanted = stacked(rows)
    for array, leaf in zip(leaves(got), map(np.asarray, leaves(wanted)), strict=True):
        assert_row(array, leaf.astype(jax.dtypes.canonicalize_dtype(leaf.dtype)))


def _check_balanced(balanced: Dataloader, run: Run, mesh: Mesh, random: Random) -> None:
    """A step has the rows that it has without balance, at places where they are found again."""
    step = random.randrange(len(run.steps))
    rows, wanted = balanced.rows(step).tolist(), run.rows(step)
    assert sorted(rows) == sorted(wanted)
    order, free = [], list(run.steps[step])
    for row in rows:
        if row >= 0:
            order.append(next(visit for visit in free if visit.row == row))
            free.remove(order[-1])
    # Padding is arranged too; the oracle has it at the end.
    padded_last = all(row >= 0 for row in rows[: len(order)])
    if padded_last and len({visit.row for visit in order}) == len(order):
        run.steps[step] = order
        assert_placed(balanced[step], run.batch(step), mesh)
    first = next(row for row in rows if row >= 0)
    assert {place.position for place in balanced.find(first) if place.step == step} == {
        index for index, row in enumerate(rows) if row == first
    }


def check_bucketed(chain: Chain, random: Random, tally: Tally) -> None:
    """Steps of rows of one bucket, padded, in the order of the chain, and bucket by bucket evenly spread."""
    name = _ragged_leaf(chain)
    if name is None:
        return
    lengths = sorted(random.sample(range(1, 9), random.randint(1, 3)))
    sizes = {length: random.randint(1, 4) for length in lengths}
    remainder: Literal["drop", "pad"] = random.choice(["drop", "pad"])
    steps = bucketed_steps(chain, name, sizes, remainder)

    def loader(workers: int = 0) -> Dataloader:
        options: dict[str, Any] = {"num_epochs": 2, "remainder": remainder, "num_workers": workers, "mesh": mesh_of(1)}
        return Dataloader(chain.dataset, Buckets(name, sizes, long="drop"), **options)

    tally.checks["bucketed"] += 1
    if not steps:
        tally.refused("Buckets", loader)
        return
    plain = loader()
    rows = [[visit.row for visit in visits] + [-1] * (sizes[length] - len(visits)) for length, visits in steps]
    assert [plain.rows(step).tolist() for step in range(len(plain))] == rows
    begin = random.randrange(len(steps))
    with plain.iterate(begin) as batches:
        state = json.loads(json.dumps(batches.get_state()))
    with loader(random.choice([0, 1])).iterate(state) as batches:
        for (length, visits), got in zip(steps[begin:], batches, strict=True):
            for index, visit in enumerate(visits):
                leaf = np.asarray(visit.value[name])
                wanted = np.zeros((length, *leaf.shape[1:]), jax.dtypes.canonicalize_dtype(leaf.dtype))
                wanted[: len(leaf)] = leaf
                assert_row(np.asarray(got[name][index]), wanted)
                assert got[f"{name}_length"][index] == len(leaf)


def _ragged_leaf(chain: Chain) -> str | None:
    """A leaf that can be padded while the others can be stacked; None where rows have none, or other ones by epoch."""
    changes = chain.mixed or chain.differs or chain.unlike or chain.dataset.reader.traits.random
    if changes or not chain.splittable or not len(chain) or type(chain.first) is not dict:
        return None
    for name, leaf in chain.first.items():
        if name == "mask" or not isinstance(leaf, np.ndarray) or not leaf.ndim or leaf.dtype.kind not in "biuf":
            continue
        others = [{key: part for key, part in value.items() if key != name} for value in chain.values()]
        inner = {np.shape(value[name])[1:] for value in chain.values()}
        alike = len(inner) == 1 and len({form(other) for other in others}) == 1 and all(map(placeable, others))
        if alike and f"{name}_length" not in chain.first:
            return name
    return None


def bucketed_steps(chain: Chain, name: str, sizes: dict[int, int], remainder: str) -> list[tuple[int, list[Visit]]]:
    """Padded length and visits of each step of two epochs."""
    known = {visit.row: len(visit.value[name]) for visit in chain.visits(0)}
    least: dict[int, int] = {}
    for length in sizes:
        least[length] = max(least, default=-1) + 1
    steps = []
    for epoch in range(2):
        for length, size in sizes.items():

            def chosen(row: int, length: int = length) -> bool:
                return least[length] <= known.get(row, -1) <= length

            own = chain.epoch(epoch, (chosen,))
            batches = [own[start : start + size] for start in range(0, len(own), size)]
            batches = [batch for batch in batches if len(batch) == size or remainder == "pad"]
            for turn, batch in enumerate(batches):
                place = epoch + Fraction(2 * turn + 1, 2 * len(batches))
                steps.append((place, length, sorted(batch, key=lambda visit: visit.lane or 0)))
    return [(length, batch) for _, length, batch in sorted(steps, key=lambda step: step[:2])]


def _check_unlike(make: Callable[[], Dataloader], run: Run, tally: Tally) -> None:
    """Rows that can't be stacked become no batches."""
    try:
        loader = make()
        for step in range(len(run.steps)):
            loader[step]
    except LoadaxError as error:
        tally.refusals["loader: " + str(error)[:30]] += 1
    else:
        forms = {form(visit.value) for batch in run.steps for visit in batch}
        assert len(forms) <= 1, "rows that differ became batches"


def _check_resumed(first: tuple[Dataloader, Mesh], second: tuple[Dataloader, Mesh], run: Run, random: Random) -> None:
    """From any step on the first loader gives a few batches, and from its state on the second one all that are left."""
    begin = random.randrange(len(run.steps))
    start = min(begin + random.randint(0, 2), len(run.steps))
    with first[0].iterate(begin) as batches:
        for step in range(begin, start):
            assert_placed(next(batches), run.batch(step), first[1])
        state = json.loads(json.dumps(batches.get_state()))
    with second[0].iterate(state) as batches:
        for step, batch in zip(range(start, len(run.steps)), batches, strict=True):
            assert_placed(batch, run.batch(step), second[1])


def _check_told(plain: Dataloader, run: Run, step: int, random: Random) -> None:
    """Where rows are found, and where records came from."""
    visit = random.choice(random.choice(run.steps))
    places = [
        StepPosition(number, position)
        for number, batch in enumerate(run.steps)
        for position, each in enumerate(batch)
        if each.row == visit.row
    ]
    assert plain.find(visit.row) == places
    trace = plain.trace(step)
    assert [record.id for record in trace] == run.rows(step)
    assert [record.epoch for record in trace][: len(run.steps[step])] == [each.epoch for each in run.steps[step]]
    plain.explain(2)


def _check_hosts(chain: Chain, run: Run, step: int, devices: int, remainder: Any) -> None:
    """Hosts that are not there read each row of the batch once, all together."""
    read: list[int] = []
    for host in range(devices):
        mesh = plan_mesh({"data": devices}, hosts=devices, process=host)
        planned = Dataloader(chain.dataset, run.batch_size, mesh=mesh, num_epochs=None, remainder=remainder)
        read += planned.local_rows(step).tolist()
    assert read == run.rows(step)


def _check_skips(plain: Dataloader, run: Run, random: Random) -> None:
    if len(run.steps) < 2:
        return
    gone = random.randrange(len(run.steps))
    shorter = plain.skip(gone)
    left = [step for step in range(len(run.steps)) if step != gone]
    assert [shorter.rows(step).tolist() for step in range(len(shorter))] == [run.rows(step) for step in left]
