"""Certificates of any hosts and step ranges add up to that of one process, and differences show."""

import json
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from jax.sharding import PartitionSpec as P

from loadax import Certificate, Dataloader, from_arrays, mix, seeds
from loadax.errors import ArgumentError, RowIndexError, SourceError
from loadax.loader.inspection.certificate import certify
from loadax.loader.state import OrderHash
from loadax.plan.batches import BatchPlan
from loadax.sharding import data_parallel, plan_mesh
from tests.limits import examples
from tests.work import lines_of

TREE = {"x": np.arange(100) * 3, "y": np.arange(200.0).reshape(100, 2)}
DATA = from_arrays(TREE).shuffle(2)
ALONE = data_parallel(jax.devices()[:1])


def loader_of(data: Any = DATA, batch_size: Any = 12, **how: Any) -> Dataloader:
    """On one device, which cuts no batch."""
    return Dataloader(data, batch_size, **{"mesh": ALONE, "num_epochs": 2, "remainder": "pad", **how})


NO_ROWS = np.empty(0, np.int64)


def test_digest_changes_with_any_row_step_or_position() -> None:
    loader = loader_of()
    whole = loader.certificate()
    assert (whole.run, whole.rows, whole.steps, whole.missing()) == ("1 process", 200, [(0, 18)], [])
    assert loader_of(DATA.map(lambda example: example)).certificate().digest == whole.digest
    assert loader_of(num_epochs=3).certificate(range(18)).digest == whole.digest
    others = [
        loader_of(from_arrays(TREE).shuffle(3)),
        loader_of(DATA[1:]),
        loader_of(batch_size=10),
        loader_of(num_epochs=3),
        loader_of().skip([3]),
    ]
    assert len({whole.digest, *(other.certificate().digest for other in others)}) == len(others) + 1


def test_digest_is_the_sum_of_the_hashes_of_all_visits() -> None:
    """Counted another way: one hash after the other, each half added by itself."""
    loader = loader_of()
    halves = [0, 0]
    for step in range(18):
        visits = loader._plan.visits(step)
        for position, (row, epoch) in enumerate(zip(visits.rows, visits.epochs, strict=True)):
            for half in (0, 1) if row >= 0 else ():
                hashed = seeds.derive(0, "visit", half, np.array([step]), np.array([position]), row[None], epoch[None])
                halves[half] = (halves[half] + int(hashed[0])) % 2**64
    assert loader.certificate().digest == f"{halves[0]:016x}{halves[1]:016x}"


def test_golden_digest() -> None:
    """The same run has the same digest in every version of loadax."""
    assert loader_of().certificate().digest == "8361121b9a66db60f04036e543b89278"


@settings(deadline=None, max_examples=examples(60))
@given(
    st.lists(st.integers(1, 17), max_size=3, unique=True),
    st.lists(st.integers(1, 11), max_size=4, unique=True),
    st.randoms(use_true_random=False),
)
def test_parts_add_up_however_a_run_is_cut(steps: list[int], positions: list[int], random: Any) -> None:
    loader = loader_of()
    expected = loader.certificate()
    parts = [
        loader.certificate(range(*some), positions=np.arange(*share))
        for some in pairwise([0, *sorted(steps), 18])
        for share in pairwise([0, *sorted(positions), 12])
    ]
    random.shuffle(parts)
    without = parts[1:]
    whole = parts[0].merge(*without)
    assert (whole.digest, whole.rows, whole.missing()) == (expected.digest, expected.rows, [])
    assert whole.merge(*random.sample(parts, len(parts))) == whole
    if without:
        few = without[0].merge(*without[1:])
        assert (few.digest == expected.digest) == (parts[0].rows == 0)  # a part may be nothing but padding
        assert few.missing() or few.steps != [(0, 18)]


def test_positions_held_by_several_processes_count_once() -> None:
    """Also if the model axis spans hosts, and if leaves are split in different ways."""
    data = from_arrays({"x": TREE["x"]}).shuffle(2)
    expected = loader_of(data, 16, num_epochs=1, remainder="drop").certificate().digest
    owners = np.array([[0, 0, 1, 1], [2, 2, 3, 3]])
    for partition in (P("data"), P("model"), P(("data", "model")), P()):
        meshes = (plan_mesh({"data": 2, "model": 4}, owners=owners, process=host) for host in range(4))
        parts = [Dataloader(data, 16, mesh=mesh, partition=partition).certificate() for mesh in meshes]
        merged = parts[0].merge(*parts[1:])
        assert (merged.missing(), merged.digest, merged.run) == ([], expected, "4 processes")


def test_step_ranges_of_schedules_add_up() -> None:
    loader = loader_of(batch_size={0: 4, 5: 8}).skip([3])
    assert [span.batch_size for span in loader.certificate().spans] == [4, 8]
    mixed = Dataloader(mix({"a": DATA, "b": DATA}, {0: [1, 1], 20: [1, 3]}), 8, mesh=ALONE)
    for run in (loader, mixed):
        parts = [run.certificate(range(*some)) for some in ((0, 2), (2, 9), (9, len(run)))]
        whole = parts[0].merge(*parts[1:])
        assert (whole.digest, whole.missing()) == (run.certificate().digest, [])


@pytest.mark.parametrize(
    ("one", "other", "message"),
    [
        (
            loader_of(shard_index=0, shard_count=2),
            loader_of(from_arrays(TREE).shuffle(3), shard_index=1, shard_count=2),
            "positions 0 to 5 of steps 0 to 17 and positions 6 to 11 of steps 0 to 17 have different orders",
        ),
        (
            loader_of(shard_index=0, shard_count=2).skip(3),
            loader_of(shard_index=1, shard_count=2).skip(4),
            "have different orders: make both with equal data, seeds, verbs and batch sizes",
        ),
        (
            loader_of(),
            loader_of(quarantine=[3]),
            "two processes certify positions 0 to 11 of steps 0 to 17 with different records",
        ),
    ],
)
def test_parts_of_different_runs_are_not_merged(one: Dataloader, other: Dataloader, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        one.certificate().merge(other.certificate())


def parts_of(*ranges: tuple[int, int, int, int]) -> list[Certificate]:
    """Certificates of ranges of steps and of positions."""
    return [loader_of().certificate(range(a, b), positions=range(c, d)) for a, b, c, d in ranges]


@pytest.mark.parametrize(
    "ranges", [((0, 18, 0, 7), (0, 18, 6, 12)), ((0, 10, 0, 12), (9, 18, 0, 12)), ((0, 10, 3, 4), (5, 6, 0, 12))]
)
def test_spans_that_overlap_in_part_are_not_merged(ranges: Any) -> None:
    one, other = parts_of(*ranges)
    message = r"overlap in part; use equal steps=, and equal or disjoint positions="
    with pytest.raises(ArgumentError, match=message):
        one.merge(other)


def test_missing_names_steps_and_positions() -> None:
    one, *others = parts_of((0, 5, 2, 6), (0, 5, 7, 12), (8, 9, 0, 12))
    missing = ["positions 0 to 1 of steps 0 to 4", "positions 6 to 6 of steps 0 to 4", "steps 5 to 7"]
    assert one.merge(*others).missing() == missing
    one, other = parts_of((0, 10, 0, 6), (5, 18, 6, 12))
    assert one.merge(other).missing() == ["positions 6 to 11 of steps 0 to 4", "positions 0 to 5 of steps 10 to 17"]


def test_saved_certificate_is_equal(tmp_path: Path) -> None:
    made = loader_of().certificate(run="first")
    made.save(tmp_path / "c.json")
    assert Certificate.load(tmp_path / "c.json") == made
    assert Certificate.from_dict(json.loads(json.dumps(made.to_dict()))) == made


NEGATIVE = {"steps": [0, 1], "positions": [0, 4], "batch_size": 4, "order": "", "rows": 4, "digest": "-1"}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, " can't be read: No such file or directory; pass a file of certificate"),
        ("{", r" can't be read: Expecting .*; pass a file of certificate\(\).save"),
        ("[1]", r": this is not a certificate of version 1 or 2, but of None; make one with loader.certificate\(\)"),
        (
            '{"version": 7}',
            ": this is not a certificate of version 1 or 2, but of 7",
        ),
        (
            '{"version": 2, "run": "a"}',
            r": this certificate is damaged \(KeyError\('spans'\)\); make a new",
        ),
        ('{"version": 1, "run": "a", "spans": [{"total": [], "each": []}]}', ": this certificate is damaged"),
        (json.dumps({"version": 2, "run": "a", "spans": [NEGATIVE]}), r": .* \(ValueError\('-1 is not a digest'\)\)"),
    ],
)
def test_file_that_is_not_a_certificate(tmp_path: Path, content: str | None, message: str) -> None:
    if content is not None:
        (tmp_path / "c.json").write_text(content)
    with pytest.raises(SourceError, match=f"c.json{message}"):
        Certificate.load(tmp_path / "c.json")


@pytest.mark.parametrize(
    ("options", "arguments", "error", "message"),
    [
        ({"num_epochs": None}, {}, ArgumentError, r"the run is infinite; pass steps=range\(start, stop\)"),
        ({}, {"steps": range(0, 8, 2)}, ArgumentError, r"steps=range\(0, 8, 2\): pass a range of consecutive steps"),
        ({}, {"steps": [1, 2]}, ArgumentError, r"steps=\[1, 2\]: pass a range of consecutive steps"),
        ({}, {"steps": range(3, 3)}, ArgumentError, r"steps=range\(3, 3\): pass a range of consecutive steps"),
        ({}, {"steps": range(5, 19)}, RowIndexError, "step 18 is out of range"),
        ({}, {"steps": range(-1, 3)}, RowIndexError, "step -1 is out of range"),
        *(
            ({}, {"positions": given}, ArgumentError, "pass a list of ascending ints of at least 0 and below 12")
            for given in ([3, 2], [12], [-1], [], [0.5])
        ),
    ],
)
def test_unsuitable_steps_and_positions(
    options: dict[str, Any], arguments: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        loader_of(**options).certificate(**arguments)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"batch_size": 12}, None),
        ({"skip": [17]}, "one has steps 0 to 17, other has steps 0 to 16"),
        ({"skip": [17], "num_epochs": 3, "steps": range(18)}, "step 17 differs"),
        ({"skip": [5], "num_epochs": 3, "steps": range(18)}, "some of steps 4 to 16 differ; certificates of shorter"),
    ],
)
def test_first_difference_of_two_runs(change: dict[str, Any], text: str | None) -> None:
    def certificate(run: str, steps: Any = None, skip: Any = (), **how: Any) -> Certificate:
        loader = loader_of(**how).skip(skip)
        steps = steps or range(len(loader))
        cuts = [cut for cut in (0, 4, 17) if cut < len(steps)]
        first, *others = (loader.certificate(range(*ends), run=run) for ends in pairwise([*cuts, len(steps)]))
        return first.merge(*others)

    found = certificate("one").first_difference(certificate("other", **change))
    assert (found or "").startswith(text or "")
    assert (found is None) == (text is None)


def test_a_million_records_are_a_few_lines_a_step_and_a_process_that_holds_nothing() -> None:
    data = from_arrays(np.broadcast_to(np.int8(0), (10**12,))).shuffle(1)
    plan = BatchPlan(data.order, 4096)
    steps = range(10**6, 10**6 + 250)
    made = certify(plan, OrderHash(data), "run", {steps: [(0, 4096)]}, NO_ROWS)
    assert made.rows == 250 * 4096
    again = partial(certify, plan, OrderHash(data), "run", {steps: [(0, 4096)]}, NO_ROWS)
    assert lines_of(again) < 250 * 300
    nothing = certify(plan, OrderHash(data), "run", {range(5): []}, NO_ROWS)
    assert nothing.spans == ()
    assert made.merge(nothing) == made


@pytest.mark.parametrize("number", [10**5000, -(10**5000), 2**63, -1, 1.5, "1", None, True], ids=range(8))
def test_certificate_with_numbers_out_of_range_is_refused(number: Any) -> None:
    made = Dataloader(from_arrays(np.arange(16)), 8).certificate().to_dict()
    span, *_ = made["spans"]
    wrong = [{"rows": number}, {"batch_size": number}, {"steps": [0, number]}, {"positions": [number, 8]}]
    for change in [*wrong, {"positions": [0, 8, number]}]:
        with pytest.raises(ArgumentError, match="this certificate is damaged"):
            Certificate.from_dict(made | {"spans": [span | change]})
    if number is not True:  # equal to 1
        with pytest.raises(ArgumentError, match="this is not a certificate of version 1 or 2, but of"):
            Certificate.from_dict(made | {"version": number})
