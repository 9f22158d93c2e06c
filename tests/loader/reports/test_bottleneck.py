"""Reports: a table of statistics and sentences, and loaders that are slow in each way."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest

from loadax import Dataloader, Dataset, from_arrays, from_source
from loadax.loader.metrics.stats import Stats
from loadax.loader.reports.bottleneck import LoaderInfo, report
from loadax.protocols import ArraySpec, Integers
from tests.clocks import Machine

MEASURED: dict[str, Any] = {
    "steps": 102,
    "measured": 100,
    "elapsed": 10.0,
    "active": 10.0,
    "cores": 4,
    "workers": 2,
    "at_work": 2,
}
WAITING = MEASURED | {"wait": 3.8, "waited": 3.8, "trained": 6.2, "longest": 0.1}

NOTHING, DECODE, IN_PYTHON = LoaderInfo(), LoaderInfo(("decode",)), LoaderInfo(python_source=True)

READ = "reading the source takes 100% of the work on 2 threads"
GIL = "of which one at a time runs, as code that holds the GIL does; try worker_type='process'"
ALONE = "measure the step alone: reuse one batch"
SLOWS = f"if it is Python code, it slows the step itself; try worker_type='process', or {ALONE}"
FAST = ": the loader is not the bottleneck"
GIL_BOUND = {"transform": 9.0, "transform_cpu": 8.1, "read": 10.0, "read_cpu": 1.9, "cpu": 11.0}
PROCESSES = {"worker_type": "process", "cpu": 3.0}

# Figures of runs that waited 38% of the time, the loader, and the report after "training waited 38% of the time".
WAITED: dict[str, tuple[dict[str, Any], LoaderInfo, str]] = {
    "storage": (
        {"read": 10.0, "read_cpu": 0.5, "storage": 8.1, "in_flight": 61},
        NOTHING,
        (
            f": {READ}, 81% of it waiting for requests to storage (61 in flight now); keep the data in storage that is "
            "nearer, or on a local disk; loader.explain() counts requests and bytes"
        ),
    ),
    "storage that refuses requests": (
        {"read": 10.0, "read_cpu": 0.5, "storage": 8.1, "in_flight": 6, "refused": 1203},
        NOTHING,
        (
            f": {READ}, 81% of it waiting for requests to storage (6 in flight now, 1,203 requests refused); ask who "
            "runs the storage for more requests a second, or read more bytes by each: loader.explain() counts them"
        ),
    ),
    "a pause": (
        {"longest": 3.0, "longest_step": 512, "read": 5.0},
        NOTHING,
        ", 79% of that once, at step 512 (3.00 s): a pause, not the loader's speed",
    ),
    "no room": (
        {"no_room": 2.0, "prefetch_bytes": 256 << 20, "read": 5.0},
        NOTHING,
        ": workers are idle, because there is no room to read ahead; pass prefetch_bytes of more than 256 MiB",
    ),
    "all on the training thread": (
        {"workers": 0, "transform": 8.1, "transform_cpu": 8.0, "read": 1.9},
        DECODE,
        (
            ": map decode takes 81% of the work on the training thread; leave num_workers out, so that it is done "
            "while training goes on"
        ),
    ),
    "the GIL": (GIL_BOUND, DECODE, f": map decode takes 81% of the work on 2 threads, {GIL}"),
    "the GIL, and one long wait for all threads": (
        GIL_BOUND | {"longest": 3.0},
        DECODE,
        f": map decode takes 81% of the work on 2 threads, {GIL}",
    ),
    "maps of a mixture, without names": (
        {"workers": 1, "at_work": 1, "transform": 9.0, "transform_cpu": 9.0, "cores": 1, "cpu": 1.0},
        NOTHING,
        (
            ": the maps' work takes 100% of the work on 1 thread; make the maps' work faster, "
            "or keep its results: data.map(fn).cache(path) before shuffle()"
        ),
    ),
    "a slow disk": (
        {"read": 19.0, "read_cpu": 0.38, "cpu": 2.0},
        NOTHING,
        f": {READ} and mostly waits (2.0% of that is processor time); try num_workers=4",
    ),
    "busy cores": (
        {"workers": 4, "at_work": 4, "transform": 38.0, "transform_cpu": 36.0, "read": 2.0, "cpu": 39.0},
        DECODE,
        (
            ": map decode takes 95% of the work on 4 threads; all 4 cores are busy; make map decode faster, "
            "or keep its results: data.map(fn).cache(path) before shuffle()"
        ),
    ),
    "processes with free cores": (
        PROCESSES | {"transform": 19.0, "transform_cpu": 18.5, "cores": 8},
        DECODE,
        ": map decode takes 100% of the work on 2 processes, and the machine has 8 cores; try num_workers=8",
    ),
    "processes on all cores": (
        PROCESSES | {"transform": 39.0, "transform_cpu": 35.0, "workers": 4, "at_work": 4},
        DECODE,
        (
            ": map decode takes 100% of the work on 4 processes; all 4 cores are busy; make map decode faster, "
            "or keep its results: data.map(fn).cache(path) before shuffle()"
        ),
    ),
    "a busy disk": (
        {"at_work": 1, "tried": 2, "read": 9.0, "read_cpu": 0.5, "cpu": 2.0},
        NOTHING,
        f": {READ} (1 used: 2 were less than 10% faster); write the data to a store that reads faster",
    ),
    "more that were never tried": (
        {"at_work": 1, "tried": 1, "read": 9.0, "read_cpu": 0.5, "cpu": 2.0},
        NOTHING,
        f": {READ} (1 used so far); try num_workers=2",
    ),
    "reads on a crowded machine": (
        {"read": 19.0, "read_cpu": 4.0, "cpu": 6.0, "load": 8.5},
        NOTHING,
        f": {READ}; all 4 cores are busy with other work too; give the loader its own cores",
    ),
    "reads that are the load themselves": (
        {"at_work": 8, "read": 79.0, "read_cpu": 4.0, "cpu": 6.0, "load": 8.5},
        NOTHING,
        f": {READ} and mostly waits (5.1% of that is processor time); try num_workers=4",
    ),
    "reads from memory, which don't hold the GIL": (
        {"read": 12.0, "read_cpu": 9.0, "cpu": 11.0},
        NOTHING,
        f": {READ}, and the machine has 4 cores; try num_workers=4",
    ),
    "reads in Python, which hold the GIL": (
        {"read": 12.0, "read_cpu": 9.0, "cpu": 11.0},
        IN_PYTHON,
        f": {READ}, {GIL}",
    ),
    "work done while the step was compiled": (
        {"assemble": 20.0, "read": 9.0, "read_cpu": 0.4, "cpu": 22.0, "elapsed": 30.0, "active": 30.0}
        | {"early": Stats(steps=2, assemble=20.0, read=1.0, elapsed=20.0, active=20.0, cpu=20.0)},
        NOTHING,
        f": {READ} and mostly waits (5.0% of that is processor time); try num_workers=4",
    ),
    "the GIL, one thread left at work": (
        {"at_work": 1, "transform": 9.5, "transform_cpu": 9.5, "read": 5.0, "read_cpu": 0.5, "cpu": 11.0},
        DECODE,
        f": map decode takes 95% of the work on 2 threads, {GIL}",
    ),
    "assembling": (
        {"workers": 4, "at_work": 4, "assemble": 20.0, "read": 2.0, "read_cpu": 2.0, "cpu": 22.0},
        NOTHING,
        (
            ": laying rows out for the devices takes 91% of the work on 4 threads; "
            "keep the data in the dtypes that batches have"
        ),
    ),
    "placing": (
        {"place": 9.0, "read": 1.0, "prefetch": 2},
        LoaderInfo(wide=True),
        (
            ": placing on the devices takes 90% of the work on 2 threads; give the devices fewer bytes: rows as uint8 "
            "or uint16, made floats by the training step"
        ),
    ),
    "placing of narrow dtypes, or on CPU": (
        {"place": 9.0, "read": 1.0, "prefetch": 2},
        NOTHING,
        (f": placing on the devices takes 90% of the work on 2 threads; {ALONE}"),
    ),
    "placing late": (
        {"place": 9.0, "read": 1.0, "prefetch": 0},
        NOTHING,
        (
            ": placing on the devices takes 90% of the work on 2 threads, when it is asked for; "
            "leave prefetch out, so that batches are placed ahead"
        ),
    ),
}
# Figures of runs that waited 0.1% of the time.
AHEAD: dict[str, tuple[dict[str, Any], LoaderInfo, str]] = {
    "not the bottleneck": ({}, NOTHING, FAST),
    "a late first batch": (
        {"first": 11.0},
        NOTHING,
        f"{FAST} (but the first batch took 11.00 s, longer than all other steps together)",
    ),
    "a map that slows the step": (
        {"transform": 9.0, "transform_cpu": 4.5, "read_cpu": 6.0},
        DECODE,
        f", but map decode keeps 45% of a core busy on threads: {SLOWS}",
    ),
    "maps that slow the step": (
        {"transform": 9.0, "transform_cpu": 10.5},
        LoaderInfo(("decode", "crop")),
        f", but the maps decode, crop keep 100% of a core busy on threads: {SLOWS}",
    ),
    "reads that slow the step": (
        {"read": 9.0, "read_cpu": 4.5},
        IN_PYTHON,
        f", but reading the source keeps 45% of a core busy on threads: {SLOWS}",
    ),
    "reads outside of Python": ({"read": 9.0, "read_cpu": 4.5}, NOTHING, FAST),
    "a map of little work": ({"transform": 0.9, "transform_cpu": 0.9}, DECODE, FAST),
    "a map on several cores at once": ({"transform": 19.0, "transform_cpu": 18.0}, DECODE, FAST),
    "a map in processes": ({"worker_type": "process", "transform": 9.0, "transform_cpu": 4.5}, DECODE, FAST),
}
FEW: dict[str, tuple[dict[str, Any], LoaderInfo, str]] = {
    "nothing yet": ({}, NOTHING, "too few steps to tell (0)"),
    "few": (
        {"steps": 11, "measured": 9, "waited": 0.5, "trained": 0.4, "first": 2.0},
        NOTHING,
        "too few steps to tell (11; the first batch took 2.00 s)",
    ),
}
TABLE = {
    **FEW,
    **{
        name: (WAITING | figures, loader, f"training waited 38% of the time{sentence}")
        for name, (figures, loader, sentence) in WAITED.items()
    },
    **{
        name: (
            MEASURED | {"waited": 0.01, "trained": 9.99} | figures,
            loader,
            f"training waited 0.1% of the time{text}",
        )
        for name, (figures, loader, text) in AHEAD.items()
    },
}


@pytest.mark.parametrize("case", TABLE)
def test_verdict_and_advice(case: str) -> None:
    figures, loader, sentence = TABLE[case]
    found = report(Stats(**figures), loader)
    assert found.verdict == sentence
    look = "; look at what ran then with it.timeline('run.json')" if case == "a pause" else ""
    assert repr(found) == str(found) == sentence + look
    assert found.advice is None or found.advice in sentence
    assert sum(found.shares.values()) == pytest.approx(1.0 if any(found.shares.values()) else 0.0)


def test_numbers_of_a_report() -> None:
    figures = TABLE["the GIL"][0]
    found = report(Stats(**figures), DECODE)
    assert found.waited == pytest.approx(0.38)
    assert (found.bottleneck, found.advice) == ("transform", "try worker_type='process'")
    assert found.shares == pytest.approx({"read": 0.19, "transform": 0.81, "assemble": 0.0, "place": 0.0})
    assert found.step_seconds == pytest.approx(0.1)
    assert found.stats == Stats(**figures)
    slows = f"try worker_type='process', or {ALONE}"
    for case, bottleneck, advice in (
        ("nothing yet", None, None),
        ("not the bottleneck", None, None),
        ("a pause", None, None),
        ("no room", "memory", "pass prefetch_bytes of more than 256 MiB"),
        ("a map that slows the step", "transform", slows),
    ):
        found = report(Stats(**TABLE[case][0]), DECODE)
        assert (found.bottleneck, found.advice) == (bottleneck, advice)
    assert report(Stats()).waited is None


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


class Sleepy:
    """A source that waits for each read, as a far disk does.

    Args:
        machine: on which it waits.
        seconds: of the read of these rows.
    """

    spec = ArraySpec((4,), np.dtype(np.float32))

    def __init__(self, machine: Machine, seconds: Callable[[Integers], float] = lambda _: 0.01):
        self.machine, self.seconds = machine, seconds

    def __len__(self) -> int:
        return 100_000

    def read(self, rows: Integers) -> Any:
        self.machine.sleep(self.seconds(rows))
        return np.zeros((len(rows), 4), np.float32)


def decoded(machine: Machine) -> Dataset:
    """Rows of a map in pure Python, which holds the GIL."""

    def decode(example: Any) -> Any:
        machine.work(0.0002)
        return example

    return from_arrays({"x": np.zeros((10_000, 4), np.float32)}).shuffle(seed=0).map(decode)


def train(loader: Dataloader, steps: int, machine: Machine, seconds: float) -> Any:
    with loader.iterate() as batches:
        for _ in range(steps):
            next(batches)
            machine.sleep(seconds)
        return batches.report()


ONE = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("data",))
SLOW: dict[str, tuple[Callable[[Machine], Dataloader], float, str, str]] = {
    "a source that waits": (
        lambda machine: Dataloader(from_source(Sleepy(machine)), 8, num_workers=2),
        0.001,
        "read",
        "try num_workers=4",
    ),
    "a map that holds the GIL": (
        lambda machine: Dataloader(decoded(machine), 64, num_epochs=None, num_workers=2),
        0.0,
        "transform",
        "try worker_type='process'",
    ),
    "a map that is ahead and slows the step": (
        lambda machine: Dataloader(decoded(machine), 16, num_epochs=None, num_workers=1),
        0.02,
        "transform",
        f"try worker_type='process', or {ALONE}",
    ),
    "workers without room": (  # a step of one row can't be split into pieces
        lambda machine: Dataloader(from_source(Sleepy(machine)), 1, mesh=ONE, num_workers=4, prefetch_bytes=20),
        0.001,
        "memory",
        "pass prefetch_bytes of more than 20 B",
    ),
}


@pytest.mark.parametrize("case", SLOW)
def test_bottleneck_of_a_run(case: str, machine: Machine) -> None:
    loader, seconds, bottleneck, advice = SLOW[case]
    found = train(loader(machine), 60, machine, seconds)
    assert (found.bottleneck, found.advice) == (bottleneck, advice)
    assert (found.waited < 0.02) == (seconds == 0.02)


def test_what_was_read_while_the_step_was_compiled_decides_nothing(machine: Machine) -> None:
    def slow(example: Any) -> Any:
        machine.sleep(0.0005)
        return example

    data = from_source(Sleepy(machine, lambda rows: 0.4 if rows.min() < 16 else 0.0)).map(slow)
    with Dataloader(data, 8, num_workers=1, prefetch_bytes=1).iterate() as batches:
        for _ in range(60):
            next(batches)
        found = batches.report()
    assert found.stats.read == pytest.approx(0.8)
    assert found.stats.read > found.stats.transform
    assert found.stats.early is not None
    assert (found.stats.early.steps, found.bottleneck) == (2, "transform")
    assert found.shares["transform"] == 1.0


def test_a_pause(machine: Machine) -> None:
    data = from_source(Sleepy(machine, lambda rows: 1.0 if 800 in rows else 0.0))
    found = train(Dataloader(data, 8, num_workers=1, prefetch_bytes=1), 150, machine, 0.001)
    assert 0.9 < found.stats.longest <= 1.0
    assert 95 <= found.stats.longest_step <= 100
    assert "a pause, not the loader's speed" in str(found)


def test_report_of_an_epoch_covers_the_whole_run() -> None:
    for epoch in Dataloader(np.zeros((40, 2), np.float32), 8, num_epochs=2).epochs():
        assert len(list(epoch)) == 5
        assert str(epoch.report()).startswith(f"too few steps to tell ({5 * (epoch.number + 1)}; the first batch took")
