"""Reports: a table of statistics and sentences, and loaders that are slow in each way."""

import re
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

TABLE: dict[str, tuple[dict[str, Any], tuple[str, ...] | LoaderInfo, str]] = {
    "nothing yet": ({}, (), "no batch was handed out yet, so there is nothing to tell"),
    "one batch": ({"steps": 1, "first": 0.534}, (), "too few steps to tell: 1 batch, the first one after 0.53 s"),
    "few": (
        {"steps": 11, "measured": 9, "waited": 0.5, "trained": 0.4, "first": 2.0},
        (),
        "too few steps to tell: 11 batches, the first one after 2.00 s",
    ),
    "not the bottleneck": (
        MEASURED | {"waited": 0.04, "trained": 9.96},
        (),
        "training waited 0.4% of the time: the loader is not the bottleneck",
    ),
    "but a late first batch": (
        MEASURED | {"waited": 0.0, "trained": 3.0, "first": 3.5},
        (),
        (
            "training waited 0.0% of the time: the loader is not the bottleneck "
            "(but the first batch took 3.50 s, longer than all other steps together)"
        ),
    ),
    "a pause": (
        WAITING | {"longest": 3.0, "longest_step": 512, "read": 5.0},
        (),
        ("training waited 38% of the time, 79% of that once, at step 512 (3.00 s): a pause, not the loader's speed"),
    ),
    "no room": (
        WAITING | {"no_room": 2.0, "prefetch_bytes": 256 << 20, "read": 5.0},
        (),
        (
            "training waited 38% of the time: workers are idle, because there is no room to read ahead; "
            "pass prefetch_bytes of more than 256 MiB"
        ),
    ),
    "all on the training thread": (
        WAITING | {"workers": 0, "transform": 8.1, "transform_cpu": 8.0, "read": 1.9},
        ("decode",),
        (
            "training waited 38% of the time: map decode takes 81% of the work on the training thread; "
            "leave num_workers out, so that it is done while training goes on"
        ),
    ),
    "the GIL": (
        WAITING | {"transform": 9.0, "transform_cpu": 8.1, "read": 10.0, "read_cpu": 1.9, "cpu": 11.0},
        ("decode",),
        (
            "training waited 38% of the time: map decode takes 81% of the work on 2 threads, "
            "of which one at a time runs, as code that holds the GIL does; try worker_type='process'"
        ),
    ),
    "the GIL, and one long wait for what all threads had in hand": (
        WAITING | {"longest": 3.0, "transform": 9.0, "transform_cpu": 8.1, "read": 10.0, "read_cpu": 1.9, "cpu": 11.0},
        ("decode",),
        (
            "training waited 38% of the time: map decode takes 81% of the work on 2 threads, "
            "of which one at a time runs, as code that holds the GIL does; try worker_type='process'"
        ),
    ),
    "the GIL, several maps": (
        WAITING | {"transform": 9.0, "transform_cpu": 8.1, "read": 10.0, "read_cpu": 1.9, "cpu": 11.0},
        ("decode", "crop"),
        (
            "training waited 38% of the time: the maps decode, crop take 81% of the work on 2 threads, "
            "of which one at a time runs, as code that holds the GIL does; try worker_type='process'"
        ),
    ),
    "maps of a mixture, without names": (
        WAITING | {"workers": 1, "at_work": 1, "transform": 9.0, "transform_cpu": 9.0, "cores": 1, "cpu": 1.0},
        (),
        (
            "training waited 38% of the time: the maps' work takes 100% of the work on 1 thread; "
            "make the maps' work faster, or keep the results in a file"
        ),
    ),
    "a slow disk": (
        WAITING | {"read": 19.0, "read_cpu": 0.38, "place": 1.0, "cpu": 2.0},
        (),
        (
            "training waited 38% of the time: reading the source takes 95% of the work on 2 threads and mostly waits "
            "(2.0% of that is processor time); try num_workers=4"
        ),
    ),
    "one thread of many cores": (
        WAITING | {"workers": 1, "at_work": 1, "transform": 9.5, "transform_cpu": 9.4, "read": 0.5, "cpu": 12.0},
        ("decode",),
        (
            "training waited 38% of the time: map decode takes 95% of the work on 1 thread, "
            "and the machine has 4 cores; try num_workers=4"
        ),
    ),
    "busy cores": (
        WAITING | {"workers": 4, "at_work": 4, "transform": 38.0, "transform_cpu": 36.0, "read": 2.0, "cpu": 39.0},
        ("decode",),
        (
            "training waited 38% of the time: map decode takes 95% of the work on 4 threads; "
            "the machine's 4 cores are busy; make map decode faster, or keep the results in a file"
        ),
    ),
    "one core": (
        WAITING | {"transform": 19.0, "transform_cpu": 9.0, "cpu": 9.9, "cores": 1},
        ("decode",),
        (
            "training waited 38% of the time: map decode takes 100% of the work on 2 threads; "
            "the machine's only core is busy; make map decode faster, or keep the results in a file"
        ),
    ),
    "processes with free cores": (
        WAITING | {"worker_type": "process", "transform": 19.0, "transform_cpu": 18.5, "cpu": 3.0, "cores": 8},
        ("decode",),
        (
            "training waited 38% of the time: map decode takes 100% of the work on 2 processes, "
            "and the machine has 8 cores; try num_workers=8"
        ),
    ),
    "processes on all cores": (
        WAITING
        | {"worker_type": "process", "transform": 39.0, "transform_cpu": 35.0, "cpu": 3.0, "workers": 4, "at_work": 4},
        ("decode",),
        (
            "training waited 38% of the time: map decode takes 100% of the work on 4 processes; "
            "the machine's 4 cores are busy; make map decode faster, or keep the results in a file"
        ),
    ),
    "one process": (
        WAITING | {"worker_type": "process", "workers": 1, "at_work": 1, "read": 9.0, "read_cpu": 1.0, "cpu": 3.0},
        (),
        (
            "training waited 38% of the time: reading the source takes 100% of the work on 1 process and mostly waits "
            "(11% of that is processor time); try num_workers=2"
        ),
    ),
    "a busy disk": (
        WAITING | {"at_work": 1, "tried": 2, "read": 9.0, "read_cpu": 0.5, "cpu": 2.0},
        (),
        (
            "training waited 38% of the time: reading the source takes 100% of the work on 2 threads "
            "(1 at work: a second brought less than a tenth more); write the data to a store that reads faster"
        ),
    ),
    "processes of which few are of use": (
        WAITING
        | {"worker_type": "process", "workers": 8, "at_work": 2, "tried": 4, "transform": 19.0, "transform_cpu": 18.0},
        ("decode",),
        (
            "training waited 38% of the time: map decode takes 100% of the work on 8 processes "
            "(2 at work: 4 brought less than a tenth more); make map decode faster, or keep the results in a file"
        ),
    ),
    "more that were never tried": (
        WAITING | {"at_work": 1, "tried": 1, "read": 9.0, "read_cpu": 0.5, "cpu": 2.0},
        (),
        (
            "training waited 38% of the time: reading the source takes 100% of the work on 2 threads "
            "(1 at work so far); try num_workers=2"
        ),
    ),
    "reads on a crowded machine": (
        WAITING | {"read": 19.0, "read_cpu": 4.0, "cpu": 6.0, "load": 8.5},
        (),
        (
            "training waited 38% of the time: reading the source takes 100% of the work on 2 threads; "
            "the machine's 4 cores are busy with other work too; give the loader its own cores"
        ),
    ),
    "reads that are the load themselves": (
        WAITING | {"workers": 8, "at_work": 8, "read": 79.0, "read_cpu": 4.0, "cpu": 6.0, "load": 8.5},
        (),
        (
            "training waited 38% of the time: reading the source takes 100% of the work on 8 threads and mostly waits "
            "(5.1% of that is processor time); try num_workers=16"
        ),
    ),
    "reads from memory, which don't hold the GIL": (
        WAITING | {"read": 12.0, "read_cpu": 9.0, "cpu": 11.0},
        (),
        (
            "training waited 38% of the time: reading the source takes 100% of the work on 2 threads, "
            "and the machine has 4 cores; try num_workers=4"
        ),
    ),
    "reads in Python, which hold the GIL": (
        WAITING | {"read": 12.0, "read_cpu": 9.0, "cpu": 11.0},
        LoaderInfo(python_source=True),
        (
            "training waited 38% of the time: reading the source takes 100% of the work on 2 threads, "
            "of which one at a time runs, as code that holds the GIL does; try worker_type='process'"
        ),
    ),
    "a map that slows the step": (
        MEASURED | {"waited": 0.01, "trained": 9.99, "transform": 9.0, "transform_cpu": 4.5, "read_cpu": 6.0},
        ("slow",),
        (
            "training waited 0.1% of the time, but map slow keeps 45% of a core busy on threads: "
            "if it is Python code, it slows the step itself; try worker_type='process', or ask loader.headroom(step)"
        ),
    ),
    "maps that slow the step": (
        MEASURED | {"waited": 0.01, "trained": 9.99, "transform": 9.0, "transform_cpu": 10.5, "first": 11.0},
        ("slow", "slower"),
        (
            "training waited 0.1% of the time, but the maps slow, slower keep 100% of a core busy on threads: "
            "if it is Python code, it slows the step itself; try worker_type='process', or ask loader.headroom(step) "
            "(but the first batch took 11.00 s, longer than all other steps together)"
        ),
    ),
    "reads that slow the step": (
        MEASURED | {"waited": 0.01, "trained": 9.99, "read": 9.0, "read_cpu": 4.5},
        LoaderInfo(python_source=True),
        (
            "training waited 0.1% of the time, but reading the source keeps 45% of a core busy on threads: "
            "if it is Python code, it slows the step itself; try worker_type='process', or ask loader.headroom(step)"
        ),
    ),
    "reads that slow nobody": (
        MEASURED | {"waited": 0.01, "trained": 9.99, "read": 9.0, "read_cpu": 4.5},
        (),
        "training waited 0.1% of the time: the loader is not the bottleneck",
    ),
    "a map of little work": (
        MEASURED | {"waited": 0.01, "trained": 9.99, "transform": 0.9, "transform_cpu": 0.9},
        ("quick",),
        "training waited 0.1% of the time: the loader is not the bottleneck",
    ),
    "a map on several cores at once": (
        MEASURED | {"waited": 0.01, "trained": 9.99, "transform": 19.0, "transform_cpu": 18.0},
        ("numpy",),
        "training waited 0.1% of the time: the loader is not the bottleneck",
    ),
    "a map in processes": (
        MEASURED | {"worker_type": "process", "waited": 0.01, "trained": 9.99, "transform": 9.0, "transform_cpu": 4.5},
        ("slow",),
        "training waited 0.1% of the time: the loader is not the bottleneck",
    ),
    "work done while the step was compiled": (
        WAITING
        | {"assemble": 20.0, "read": 9.0, "read_cpu": 0.4, "cpu": 22.0, "elapsed": 30.0, "active": 30.0}
        | {"early": Stats(steps=2, assemble=20.0, read=1.0, elapsed=20.0, active=20.0, cpu=20.0)},
        (),
        (
            "training waited 38% of the time: reading the source takes 100% of the work on 2 threads and mostly waits "
            "(5.0% of that is processor time); try num_workers=4"
        ),
    ),
    "the GIL, one thread left at work": (
        WAITING | {"at_work": 1, "transform": 9.5, "transform_cpu": 9.5, "read": 5.0, "read_cpu": 0.5, "cpu": 11.0},
        ("decode",),
        (
            "training waited 38% of the time: map decode takes 95% of the work on 2 threads, "
            "of which one at a time runs, as code that holds the GIL does; try worker_type='process'"
        ),
    ),
    "processes on a crowded machine": (
        WAITING | {"worker_type": "process", "transform": 19.0, "transform_cpu": 4.0, "cpu": 3.0, "load": 7.0},
        ("decode",),
        (
            "training waited 38% of the time: map decode takes 100% of the work on 2 processes; "
            "the machine's 4 cores are busy with other work too; give the loader its own cores"
        ),
    ),
    "laying out": (
        WAITING | {"workers": 4, "at_work": 4, "assemble": 20.0, "read": 2.0, "read_cpu": 2.0, "cpu": 22.0},
        (),
        (
            "training waited 38% of the time: laying rows out for the devices takes 91% of the work on 4 threads; "
            "keep the data in the dtypes that batches have"
        ),
    ),
    "reading, with the source's own threads": (
        WAITING | {"read": 19.0, "read_cpu": 1.0, "cpu": 38.0},
        (),
        (
            "training waited 38% of the time: reading the source takes 100% of the work on 2 threads; "
            "the machine's 4 cores are busy; write the data to a store that reads faster"
        ),
    ),
    "placing": (
        WAITING | {"place": 9.0, "read": 1.0, "prefetch": 2},
        LoaderInfo(wide=True),
        (
            "training waited 38% of the time: placing on the devices takes 90% of the work on 2 threads; "
            "give the devices fewer bytes: rows as uint8 or uint16, made floats by the training step"
        ),
    ),
    "placing what is narrow, or near": (
        WAITING | {"place": 9.0, "read": 1.0, "prefetch": 2},
        (),
        (
            "training waited 38% of the time: placing on the devices takes 90% of the work on 2 threads; "
            "ask loader.headroom(step) what a faster loader would gain"
        ),
    ),
    "placing late": (
        WAITING | {"place": 9.0, "read": 1.0, "prefetch": 0},
        (),
        (
            "training waited 38% of the time: placing on the devices takes 90% of the work on 2 threads, "
            "when it is asked for; leave prefetch out, so that batches are placed ahead"
        ),
    ),
}


@pytest.mark.parametrize("case", TABLE)
def test_verdicts(case: str) -> None:
    figures, maps, sentence = TABLE[case]
    found = report(Stats(**figures), maps if isinstance(maps, LoaderInfo) else LoaderInfo(maps))
    assert found.verdict == sentence
    look = "; look at what ran then with it.timeline('run.html')" if case == "a pause" else ""
    assert repr(found) == str(found) == sentence + look
    assert found.advice is None or found.advice in sentence
    assert sum(found.shares.values()) == pytest.approx(1.0 if any(found.shares.values()) else 0.0)


@pytest.mark.parametrize("case", TABLE)
def test_every_argument_in_advice_is_spelled_as_asked(case: str) -> None:
    figures, maps, sentence = TABLE[case]
    info = maps if isinstance(maps, LoaderInfo) else LoaderInfo(maps)
    found = report(
        Stats(**figures), info, lambda name, value=None: f"<{name}>" if value is None else f"<{name} {value}>"
    )
    spelled = re.findall(r"<(\w+)(?: (\w+))?>", found.verdict)
    assert [name for name, _ in spelled] == re.findall(
        r"\b(num_workers|worker_type|prefetch_bytes|prefetch)\b", sentence
    )
    assert all(value in sentence for _, value in spelled)
    assert "=" not in found.verdict


def test_the_numbers_behind_it() -> None:
    figures = TABLE["the GIL"][0]
    found = report(Stats(**figures), LoaderInfo(("decode",)))
    assert found.waited == pytest.approx(0.38)
    assert (found.bottleneck, found.advice) == ("transform", "try worker_type='process'")
    assert found.shares == pytest.approx({"read": 0.19, "transform": 0.81, "assemble": 0.0, "place": 0.0})
    assert found.step_seconds == pytest.approx(0.1)
    assert found.stats == Stats(**figures)
    nothing = report(Stats())
    assert (nothing.waited, nothing.bottleneck, nothing.advice) == (None, None, None)
    assert report(Stats(**TABLE["no room"][0])).bottleneck == "memory"
    fast = report(Stats(**TABLE["not the bottleneck"][0]))
    assert fast.waited == pytest.approx(0.004)
    assert (fast.bottleneck, fast.advice) == (None, None)
    slows = report(Stats(**TABLE["a map that slows the step"][0]), LoaderInfo(("slow",)))
    assert (slows.bottleneck, slows.advice) == ("transform", "try worker_type='process', or ask loader.headroom(step)")
    assert report(Stats(**TABLE["a pause"][0])).advice is None


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

    return rows().map(decode)


def rows() -> Dataset:
    return from_arrays({"x": np.zeros((10_000, 4), np.float32)}).shuffle(seed=0)


def train(loader: Dataloader, steps: int, machine: Machine, seconds: float) -> Any:
    with loader.iterate() as batches:
        for _ in range(steps):
            next(batches)
            machine.sleep(seconds)
        return batches.report()


def test_a_loader_that_is_fast_enough(machine: Machine) -> None:
    found = train(Dataloader(rows(), 16, num_epochs=None), 60, machine, 0.02)
    assert found.waited == 0.0, found.stats
    assert str(found).endswith(": the loader is not the bottleneck")


def test_a_source_that_waits(machine: Machine) -> None:
    found = train(Dataloader(from_source(Sleepy(machine)), 8, num_workers=2), 60, machine, 0.001)
    assert (found.bottleneck, found.shares["read"]) == ("read", 1.0)
    assert found.advice == "try num_workers=4"
    assert found.waited > 0.3


def test_a_map_that_holds_the_gil(machine: Machine) -> None:
    found = train(Dataloader(decoded(machine), 64, num_epochs=None, num_workers=2), 60, machine, 0.0)
    assert (found.bottleneck, found.advice) == ("transform", "try worker_type='process'")
    assert "map decode takes" in str(found)


def test_a_map_that_is_far_enough_ahead_and_slows_the_step(machine: Machine) -> None:
    found = train(Dataloader(decoded(machine), 16, num_epochs=None, num_workers=1), 60, machine, 0.02)
    assert found.waited < 0.02
    assert found.bottleneck == "transform"
    assert "but map decode keeps" in str(found)
    assert found.advice == "try worker_type='process', or ask loader.headroom(step)"


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


def test_workers_without_room(machine: Machine) -> None:
    # A step of one row can't be cut in pieces for several workers.
    one = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("data",))
    data = from_source(Sleepy(machine))
    found = train(Dataloader(data, 1, mesh=one, num_workers=4, prefetch_bytes=20), 40, machine, 0.001)
    assert found.bottleneck == "memory"
    assert found.advice == "pass prefetch_bytes of more than 20 B"


def test_an_epoch_reports_of_the_whole_run() -> None:
    for epoch in Dataloader(np.zeros((40, 2), np.float32), 8, num_epochs=2).epochs():
        for _ in epoch:
            pass
        assert (
            str(epoch.report()) == f"too few steps to tell: {5 * (epoch.number + 1)} batches, the first one after "
            f"{epoch.stats().first:.2f} s"
        )
