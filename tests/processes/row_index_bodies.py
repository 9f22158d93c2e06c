"""What the real processes of `test_jax_runs.py` do."""

import os
from collections.abc import Callable
from pathlib import Path
from time import sleep
from typing import Any

import jax
import numpy as np
import pytest

from loadax import Dataloader, from_source
from loadax.core.distributed import Process, this_process
from loadax.errors import ArgumentError
from loadax.kept import shared as common
from tests.limits import until
from tests.row_index.filters import ROWS, SMALL, VALUES, Opaque, counted, data, files, rows_of, small, user


def build(folder: str) -> None:
    """Builds the indices in one process."""
    data().filter(small, "small", index=folder)
    data().split_by(user, 0.5, index=folder)


def everything(folder: str) -> None:
    """All read what was built before; nobody looks at a row, or writes."""
    me = this_process()
    assert me == Process(jax.process_index(), jax.process_count())
    before = files(Path(folder))
    calls: list[int] = []
    dataset = data().shuffle(0)
    kept = dataset.filter(counted(small, calls), "small", index=folder)
    assert (sorted(rows_of(kept)), calls) == (SMALL, [])
    train, test = dataset.split_by(user, 0.5, index=folder)
    assert sorted(rows_of(train) + rows_of(test)) == list(range(ROWS))
    loader = Dataloader(kept, 24)
    met = [loader.rows(step).tolist() for step in range(len(loader))]
    with iter(loader) as batches:
        for step, batch in enumerate(batches):
            expected = VALUES[met[step]]
            for shard in batch["x"].addressable_shards:
                np.testing.assert_array_equal(np.asarray(shard.data), expected[shard.index])
    assert files(Path(folder)) == before


def shared(folder: str) -> None:
    """The processes evaluate rows together, each once, and have the same index."""
    me = this_process()
    calls: list[int] = []
    kept = data().filter(counted(slowly(small), calls), "small", index=f"{folder}/index")
    assert sorted(rows_of(kept)) == SMALL
    train, test = data().split_by(user, 0.5, index=f"{folder}/index")
    assert sorted(rows_of(train) + rows_of(test)) == list(range(ROWS))
    (Path(folder) / f"calls-{me.index}").write_text(str(len(calls)))
    calls.clear()
    cached = data().map(counted(slowly(whole), calls)).cache(f"{folder}/cache", key="whole", shard_rows=5, chunk_rows=5)
    assert cached.read(range(ROWS))["x"].tolist() == VALUES.tolist()
    (Path(folder) / f"mapped-{me.index}").write_text(str(len(calls)))
    (Path(folder) / f"test-{me.index}").write_text(" ".join(map(str, rows_of(test))))


def shared_once(folder: str) -> None:
    """What `shared` did."""
    calls = [int(path.read_text()) for path in Path(folder).glob("calls-*")]
    assert sum(calls) == ROWS
    mapped = [int(path.read_text()) for path in Path(folder).glob("mapped-*")]
    assert sum(mapped) <= ROWS + 35 * len(mapped)  # the sample that tells which leaves are ragged
    assert max(mapped) < ROWS
    assert len({path.read_text() for path in Path(folder).glob("test-*")}) == 1
    assert len([count for count in calls if count]) > 1
    assert not list(Path(folder).rglob("*.parts"))


def endure(folder: str) -> None:
    """Packs documents whose lengths all processes measure, one of which is killed meanwhile."""
    log = Path(folder) / f"calls-{this_process().index}"

    def tokens(row: int) -> Any:
        with log.open("a") as calls:
            calls.write(f"{row}\n")
        sleep(0.01)
        return np.arange(row % 7)

    packed = from_source(range(1000)).map(tokens).pack(8, index=f"{folder}/index", key="tokens")
    assert packed.read([0])["tokens"].shape == (1, 8)
    me = this_process()
    (Path(folder) / f"done-{me.index}").touch()
    if me.index == 0:  # which runs the coordinator
        until(lambda: len([*Path(folder).glob("done-*")]) == me.count - 1)
    os._exit(0)  # the usual way out waits for the process that was killed


def whole(example: Any) -> Any:
    return example


def slowly(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def slow(example: Any) -> Any:
        sleep(0.005)
        return function(example)

    return slow


def refusals(folder: str) -> None:
    """Without an index folder in common, and with a function of which changes can't be detected."""
    advice = r"in a run of 2 processes: each would read all {} rows; pass index=, a folder that they share"
    with pytest.raises(ArgumentError, match=r"filter\(\) without index=, " + advice.format(ROWS)):
        data().filter(small)
    with pytest.raises(ArgumentError, match=r"split_by\(\) without index=, " + advice.format(ROWS)):
        data().split_by("user", 0.5)
    with pytest.raises(ArgumentError, match=r"can't be shared: changes of <.* can't be detected"):
        data().filter(Opaque(), index=folder)
    assert "filter.json" not in files(Path(folder))
    me = this_process()
    own = f"{folder}/{me.index}"
    common.VISIBLE = 1.0  # seconds
    if me.index == 0:
        assert sorted(rows_of(data().filter(small, index=own))) == SMALL
    else:
        message = rf"index='{own}' is not one folder: process 1 on .* does not see what process 0 on .* pass a folder"
        with pytest.raises(ArgumentError, match=message):
            data().filter(small, index=own)
    cached = data().cache(f"{own}-cache")  # each host may have a copy of its own
    assert cached.read(range(ROWS))["x"].tolist() == VALUES.tolist()
    assert len(data().exclude([1])) == ROWS - 1
