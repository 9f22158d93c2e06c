"""What a profiler's trace shows: every stage by its name. The trace is written by JAX, and read back."""

import gzip
import json
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from loadax import Dataloader, from_arrays
from loadax.loader.stages import StageClock, unmarked


def names(folder: Path) -> set[str]:
    (found,) = folder.rglob("*.trace.json.gz")
    return {event.get("name", "").partition("#")[0] for event in json.loads(gzip.decompress(found.read_bytes()))["traceEvents"]}


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


def test_a_clock_takes_each_stage_by_itself() -> None:
    clock = StageClock(unmarked)
    with clock("read"):
        time.sleep(0.02)
    for _ in range(2):
        with clock("transform"):
            sum(range(300_000))
        with clock("assemble"):
            pass
    found = clock.timing()
    assert found.read >= 0.02
    assert found.read_cpu < 0.01  # it slept
    assert 0.0 < found.transform_cpu <= found.transform + 0.005
    assert 0.0 < found.assemble < 0.01
    assert found.place == 0.0
    assert 0.0 < found.began <= time.perf_counter() - found.read - found.transform


def test_a_stage_that_fails_is_marked_to_its_end() -> None:
    class Mark:
        def __enter__(self) -> None:
            seen.append("begins")

        def __exit__(self, *_: object) -> None:
            seen.append("ends")

    seen: list[str] = []

    def mark(name: str) -> Mark:
        seen.append(name)
        return Mark()

    clock = StageClock(mark)
    with pytest.raises(KeyError), clock("read"):
        raise KeyError
    assert seen == ["loadax.read", "begins", "ends"]
    assert clock.timing().read > 0
