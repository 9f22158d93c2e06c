"""What the real processes of `test_keeping_processes.py` do."""

import json
import logging
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jax.experimental import multihost_utils

from loadax import Dataloader
from loadax.core.distributed import Process, this_process
from loadax.errors import ArgumentError, SourceError
from loadax.row_index import multiprocess
from tests.limits import until
from tests.row_index.filters import ROWS, SMALL, VALUES, Opaque, counted, data, files, rows_of, small, user


def everything(folder: str) -> None:
    """Each looks at its share, once; all have the whole; nothing but the index is left."""
    me = this_process()
    assert me == Process(jax.process_index(), jax.process_count())
    calls: list[int] = []
    dataset = data().shuffle(0)
    kept = dataset.filter(counted(small, calls), "small", index=f"{folder}/filter")
    Path(folder, f"calls-{me.index}.json").write_text(json.dumps(len(calls)))
    assert sorted(rows_of(kept)) == SMALL
    calls.clear()
    again = data().filter(counted(small, calls), "small", index=f"{folder}/filter")
    assert (rows_of(again), calls) == (SMALL, [])
    train, test = dataset.split_by("user", 0.5, index=f"{folder}/leaf")
    assert not set(rows_of(train)) & set(rows_of(test))
    assert len(data().split_by(user, 0.5, index=f"{folder}/function")[0]) < ROWS
    # The file answers another question.
    other = data().filter(lambda example: example["x"] > 90, index=f"{folder}/filter")
    assert rows_of(other) == np.flatnonzero(VALUES > 90).tolist()
    few = data()[:1].filter(lambda example: True, index=f"{folder}/few")  # fewer rows than processes
    assert rows_of(few) == [0]
    loader = Dataloader(kept, 24)
    met = [loader.rows(step).tolist() for step in range(len(loader))]
    with iter(loader) as batches:
        for step, batch in enumerate(batches):
            expected = VALUES[met[step]]
            for shard in batch["x"].addressable_shards:
                np.testing.assert_array_equal(np.asarray(shard.data), expected[shard.index])
    multihost_utils.sync_global_devices("all have looked")
    looked = [json.loads(Path(folder, f"calls-{number}.json").read_text()) for number in range(me.count)]
    assert sum(looked) == ROWS
    assert min(looked) > 0
    assert [name for name in files(Path(folder)) if not name.startswith("calls")] == [
        "few",
        "filter",
        "function",
        "leaf",
    ]


def refusals(folder: str) -> None:
    """Without a shared index, and with a function of which nobody knows whether it is the same."""
    message = (
        r"filter\(\) without index=, in a run of 2 processes: .*`loadax index SRC --filter MODULE:FUNCTION --out PATH`"
    )
    with pytest.raises(ArgumentError, match=message):
        data().filter(small)
    with pytest.raises(
        ArgumentError, match=r"split_by\(\) without index=.*`loadax index SRC --split-by MODULE:FUNCTION --out"
    ):
        data().split_by("user", 0.5)
    with pytest.raises(ArgumentError, match="2 processes share an index, and must know that it is this one"):
        data().filter(Opaque(), index=f"{folder}/i")
    assert len(data().exclude([1])) == ROWS - 1
    assert files(Path(folder)) == []


def late(folder: str) -> None:
    """One comes late and is slow: the others wait, and say so."""
    log = Log()
    multiprocess._BEAT = 0.0
    multiprocess.PATIENCE = 50.0  # less than the slow one takes in all, by the clock of those who wait
    me = jax.process_index()
    share = [Path(folder, f"i.part-{number}-of-3") for number in range(3)]
    watched = {0: [share[1], Path(f"{share[1]}.at")], 2: [Path(f"{share[0]}.at"), Path(folder, "i")]}
    now: list[float] = [0.0]
    seen: list[Any] = [None]

    def next_sign(_: float) -> None:
        """The clock of those who wait: twelve seconds from one sign of life to the next."""
        until(lambda: multiprocess._signs(watched[me]) != seen[0])
        seen[0] = multiprocess._signs(watched[me])
        now[0] += 12.0

    def slow(example: Any) -> bool:
        if me == 1:
            time.sleep(0.03)
        return small(example)

    if me == 1:
        until(lambda: share[0].exists() and share[2].exists())
    else:
        vars(multiprocess).update(monotonic=lambda: now[0], sleep=next_sign)
    assert rows_of(data().filter(slow, "slow", index=f"{folder}/i", workers=1)) == SMALL
    if me == 0:
        assert now[0] > multiprocess.PATIENCE
        assert any("waiting for the shares of 1 of 3 processes: 1" in each for each in log.messages), log.messages
    if me == 2:
        assert any("waiting for process 0, which puts the index together" in each for each in log.messages), (
            log.messages
        )
    multihost_utils.sync_global_devices("all have it")
    assert files(Path(folder)) == ["i"]


def missing(folder: str) -> None:
    """One never comes. What the other did is not done again."""
    multiprocess.PATIENCE = 0.5
    if jax.process_index() == 0:
        with pytest.raises(
            SourceError, match=r"no sign of the shares of 1 of 2 processes: 1 for 0.5 s; has a process ended, do all"
        ):
            data().filter(small, "small", index=f"{folder}/i")
        assert files(Path(folder)) == ["i.part-0-of-2"]
    multihost_utils.sync_global_devices("given up")
    if jax.process_index() == 1:
        with pytest.raises(SourceError, match=r"no sign of process 0, which puts the index together for 0.5 s"):
            data().filter(small, "small", index=f"{folder}/i")
    multihost_utils.sync_global_devices("both have given up")
    multiprocess.PATIENCE = 30.0
    calls: list[int] = []
    assert rows_of(data().filter(counted(small, calls), "small", index=f"{folder}/i")) == SMALL
    assert calls == []
    multihost_utils.sync_global_devices("both have it")
    assert files(Path(folder)) == ["i"]


class Log(logging.Handler):
    """Remembers what loadax logs."""

    def __init__(self) -> None:
        super().__init__()
        self.messages: list[str] = []
        logging.getLogger("loadax").addHandler(self)
        logging.getLogger("loadax").setLevel(logging.INFO)

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())
