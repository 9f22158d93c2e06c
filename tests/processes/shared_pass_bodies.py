"""What each process of a run does with passes that the processes begin differently."""

import atexit
import os
import sys
from collections.abc import Callable
from pathlib import Path
from time import sleep
from typing import Any
from unittest.mock import patch

import jax
import numpy as np
import pytest

import loadax
from loadax.errors import ArgumentError, HostError
from loadax.kept import shared
from tests.limits import until

ROWS = 100
LATE = 2.0  # seconds, until the others have logged that they wait
patch.object(shared, "NOTICE", LATE - 1).start()  # for as long as the process lives
patch.object(shared, "_LOOK", 0.5).start()


def data() -> loadax.Dataset:
    return loadax.from_source(range(ROWS))


def even(row: int) -> bool:
    return row % 2 == 0


def third(row: int) -> bool:
    return row % 3 == 0


def meet(folder: str, name: str) -> None:
    """Goes on when all processes are here, so that one case does not delay the next."""
    Path(folder, f"{name}-{jax.process_index()}").touch()
    until(lambda: len([*Path(folder).glob(f"{name}-*")]) == jax.process_count())


def unlike(folder: str, name: str, mine: Callable[[], Any], theirs: Callable[[], Any], message: str) -> None:
    """Process 0 finishes its pass; each other one is told of the difference, whoever comes first."""
    for late in (0, 1, None):
        meet(folder, f"{name}-{late}")
        if jax.process_index() == late:
            sleep(0.5)
        if jax.process_index() == 0:
            assert len(mine())
        else:
            with pytest.raises((HostError, ArgumentError), match=message) as caught:
                theirs()
            assert "start all processes with the same data, functions and arguments, and call the" in str(caught.value)


def all_cases(folder: str) -> None:
    """One launch costs seconds, so all of this is done in one."""
    index = iter(Path(folder, f"index-{number}") for number in range(100))

    def fresh() -> Any:
        return next(index)

    unlike(
        folder,
        "functions",
        lambda: data().filter(even, index=fresh()),
        lambda: data().filter(third, index=fresh()),
        r"function or key (of filter, pass \d+ of this run: .* on process 0; .* on process 1; start|differs)",
    )
    unlike(
        folder,
        "verbs",
        lambda: data().filter(even, index=fresh()),
        lambda: data().map(tokens).pack(8, index=fresh()),
        r"hosts differ in verb of lengths, pass \d+ of this run: \"filter\" on process 0; \"lengths\" on process 1 \(",
    )
    process_0_fails(folder, fresh())
    follow_the_advice(folder, fresh())


def tokens(row: int) -> Any:
    return np.arange(row % 7)


def process_0_fails(folder: str, index: Path) -> None:
    """Before it begins: the others don't wait for it."""
    meet(folder, "fails")
    if jax.process_index() == 0:
        source = loadax.from_source(Unsized())
        with pytest.raises(RuntimeError, match="no rows today"):
            source.filter(even, index=index)
    else:
        with pytest.raises(HostError, match=r"filter: process 0 has failed with RuntimeError: no rows today; mend its"):
            data().filter(even, index=index)


class Unsized:
    """A source whose sample can't be read, which a pass reads before it begins."""

    spec = np.int64(0)

    def __len__(self) -> int:
        return ROWS

    def read(self, rows: Any) -> Any:
        raise RuntimeError("no rows today")


def follow_the_advice(folder: str, index: Path) -> None:
    """With key=, functions that differ by the process are one; and process 0 may be late for as long as it likes."""
    meet(folder, "advice")
    rank = jax.process_index()
    if rank == 0:
        sleep(LATE)
    kept = data().filter(lambda row: row % 2 == 0 or rank == 9, index=index, key="even")
    assert kept.read(range(len(kept))).tolist() == list(range(0, ROWS, 2))


def process_0_trains(folder: str) -> None:
    """Process 0 iterates over a loader while the other one waits for it in a pass."""
    made = loadax.Dataloader(data(), 10)
    with iter(made) as batches:  # which both have begun, so it ends nobody
        next(batches)
        if jax.process_index() == 0:
            sleep(3)  # several looks of the other one
        assert len(data().filter(even, index=f"{folder}/index")) == ROWS // 2
    if jax.process_index() == 0:
        with iter(made) as batches:
            next(batches)
            until((Path(folder) / "told").exists)
    else:
        message = r"lengths: process 0 iterates over a loader of all processes, while process 1 waits for process 0 to"
        with pytest.raises(HostError, match=message):
            data().map(tokens).pack(8, index=f"{folder}/index")
        (Path(folder) / "told").touch()


def process_0_leaves(folder: str) -> None:
    """Process 0 ends without the pass; the other one is told within seconds, and not by JAX's time limit."""
    index = f"{folder}/index"
    data().filter(even, index=index)
    if jax.process_index() > 0:
        message = r"lengths: process 0 has ended with OSError: no disk while others waited for process 0 to begin it; "
        with pytest.raises(HostError, match=message):
            data().map(tokens).pack(8, index=index)
    else:
        sys.last_value = OSError("no disk")  # as Python sets it for the exception that ends a program
    atexit._run_exitfuncs()  # as Python does at the end of a program; JAX's waits for the other process
    os._exit(0)


def shares_of_a_bucket(url: str) -> None:
    """One process can't write its share: the other one, which has written its own, does not wait for it."""
    rank = jax.process_index()

    def square(row: int) -> Any:
        if rank == 0 and row > 50:
            raise RuntimeError("no more rows")
        return np.int64(row * row)

    def cache() -> Any:
        return data().map(square).cache(url, key="squares", shard_rows=10, chunk_rows=5)

    if rank == 0:
        with pytest.raises(RuntimeError, match="no more rows"):
            cache()
    else:
        with pytest.raises(HostError, match=rf"{url}: process 0 has failed with RuntimeError: no more rows; mend its"):
            cache()
