"""A profiler trace, written by JAX and read back, shows every stage by its name."""

import gzip
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from loadax import Dataloader, from_arrays
from loadax.loader.metrics.stages import StageClock, unmarked
from loadax.loader.metrics.stats import Timing
from tests.clocks import Machine


def names(folder: Path) -> set[str]:
    (found,) = folder.rglob("*.trace.json.gz")
    return {
        event.get("name", "").partition("#")[0]
        for event in json.loads(gzip.decompress(found.read_bytes()))["traceEvents"]
    }


@pytest.mark.parametrize("workers", [0, 1])
def test_a_trace_names_the_stages(workers: int, tmp_path: Path) -> None:
    def slowly(example: Any) -> Any:
        time.sleep(0.001)
        return example

    data = from_arrays({"x": np.zeros((160, 4), np.float32)}).map(slowly)
    with jax.profiler.trace(tmp_path), Dataloader(data, 8, num_workers=workers).iterate() as batches:
        for _ in batches:
            pass
    expected = {"loadax.read", "loadax.transform", "loadax.assemble", "loadax.place"}
    assert expected | ({"loadax.wait"} if workers else set()) <= names(tmp_path)


def test_a_clock_takes_each_stage_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch)
    began = machine.perf_counter()
    clock = StageClock(unmarked)
    with clock("read"):
        machine.sleep(8.0)
    for _ in range(2):
        with clock("transform"):
            machine.sleep(1.0)
            machine.work(0.5)
        machine.work(64.0)  # between the stages
        with clock("assemble"):
            machine.work(0.25)
    assert clock.timing() == Timing(
        read=8.0, transform=3.0, assemble=0.5, transform_cpu=1.0, assemble_cpu=0.5, began=began
    )


def test_a_stage_that_fails_is_marked_to_its_end() -> None:
    seen: list[str] = []

    @contextmanager
    def mark(name: str) -> Iterator[None]:
        seen.append(name)
        yield
        seen.append("ends")

    clock = StageClock(mark)
    with pytest.raises(KeyError), clock("read"):
        raise KeyError
    assert seen == ["loadax.read", "ends"]
    assert clock.timing().read > 0
