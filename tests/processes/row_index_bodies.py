"""What the real processes of `test_jax_runs.py` do."""

from pathlib import Path

import jax
import numpy as np
import pytest

from loadax import Dataloader
from loadax.core.distributed import Process, this_process
from loadax.errors import ArgumentError
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


def refusals(folder: str) -> None:
    """Without an index that was built before, and with a function of which nobody knows whether it is the same."""
    advice = (
        r"in a run of 2 processes: each would read all rows; build the index before the run: "
        r"`loadax index SRC --{} MODULE:FUNCTION --out PATH` or by running this program in one process, and pass"
    )
    with pytest.raises(ArgumentError, match=r"filter\(\) without index=, " + advice.format("filter")):
        data().filter(small)
    with pytest.raises(ArgumentError, match=r"split_by\(\) without index=, " + advice.format("split-by")):
        data().split_by("user", 0.5)
    with pytest.raises(ArgumentError, match=r"without its index at .*filter\.json, " + advice.format("filter")):
        data().filter(small, index=folder)
    with pytest.raises(ArgumentError, match="2 processes read its index, and must detect a stale one"):
        data().filter(Opaque(), index=folder)
    assert len(data().exclude([1])) == ROWS - 1
    assert files(Path(folder)) == []
