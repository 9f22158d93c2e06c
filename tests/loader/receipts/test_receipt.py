"""Receipts: their JSON, chains of loaders, states, Orbax, and what they cost."""

import json
import platform
from collections import Counter
from pathlib import Path
from time import perf_counter
from types import MappingProxyType
from typing import Any

import jax
import numpy as np
import pytest
from orbax.checkpoint import v1

import loadax
from loadax import Dataloader, chain, from_arrays, mix
from loadax.errors import ArgumentError, RowIndexError, StateError, StreamError
from loadax.plan.batches import BatchPlan
from loadax.plan.block_shuffle import BlockShuffled
from loadax.plan.mix import Mixed, Segment
from loadax.plan.reads import reads_of
from loadax.plan.sequential import Sequential
from loadax.plan.shuffle import Shuffled
from loadax.plan.tally import Counted, tally
from loadax.protocols import Order

PARTS = {"web": np.arange(100), "code": np.arange(20)}


def loader(**arguments: Any) -> Dataloader:
    return Dataloader(mix(PARTS, weights=[3, 1]).map(lambda row: {"x": row}), 8, num_epochs=None, **arguments)


def test_receipt_says_what_was_read() -> None:
    receipt = loader().receipt(12)
    assert receipt.step == 12
    assert [(one.name, one.rows, one.distinct, one.epochs) for one in receipt.sources] == [
        ("web", 71, 71, 1),
        ("code", 25, 20, 2),
    ]
    assert receipt.rows == 96
    assert receipt.tokens is None
    assert receipt.versions == {
        "loadax": "0.1.0",
        "jax": jax.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
    }
    seen = [
        step for step in range(12) for record in loader().trace(step) if (record.dataset, record.row) == ("code", 2)
    ]
    assert receipt.saw("code", 2) == seen
    assert "code    25            2       20        0" in repr(receipt)


def test_tokens_are_counted() -> None:
    documents = loadax.from_source([np.arange(length) for length in (3, 5, 2, 7, 1)])
    data = {"packed": documents.pack(8), "more": documents.shuffle(0).pack(8, method="best_fit")}
    receipt = Dataloader(mix(data, [1, 1], stop="all").keep("tokens", "segment_ids"), 1, num_epochs=1).receipt(2)
    assert receipt.tokens == sum(one.tokens or 0 for one in receipt.sources) > 8


def test_equal_runs_have_equal_receipts() -> None:
    text = loader().receipt(12).to_json()
    assert loader(shard_index=1, shard_count=2, num_workers=0).receipt(12).to_json() == text
    assert loader().receipt(13).order != loader().receipt(12).order
    assert loader(quarantine=[3]).receipt(12).order != loader().receipt(12).order
    assert loader().skip(3).receipt(12).order != loader().receipt(12).order
    assert text == json.dumps(json.loads(text), sort_keys=True, indent=1) + "\n"


def test_a_state_is_a_step() -> None:
    with loader().iterate(5) as batches:
        state = batches.get_state()
    assert loader().receipt(state).to_json() == loader().receipt(5).to_json()
    with pytest.raises(StateError, match="pass a step"):
        loader().receipt("5")
    with pytest.raises(StateError, match="start is step 3, but the run ends before step 2"):
        Dataloader(np.arange(16), 8).receipt(3)
    assert Dataloader(np.arange(16), 8).receipt(2).rows == 16
    assert Dataloader(np.arange(16), 8).receipt(0).rows == 0
    with pytest.raises(StreamError):
        Dataloader(from_arrays(np.arange(64)).to_stream(lanes=8), 8).receipt(2)


def test_a_chain_has_a_source_for_each_loader() -> None:
    chained = chain([Dataloader(np.arange(16), 8, num_epochs=2), Dataloader(np.arange(24), 4)])
    counts = {
        step: [(one.phase, one.rows, one.distinct) for one in chained.receipt(step).sources] for step in (3, 4, 6, 10)
    }
    assert counts == {3: [(0, 24, 16)], 4: [(0, 32, 16)], 6: [(0, 32, 16), (1, 8, 8)], 10: [(0, 32, 16), (1, 24, 24)]}
    assert chained.receipt(10).saw("", 3) == [0, 2, 4]
    assert chained.receipt(10).saw("", 20) == [9]
    assert chained.receipt(4).saw("", 3) == [0, 2]


def test_unknown_sources_and_rows_are_refused() -> None:
    receipt = loader().receipt(12)
    with pytest.raises(ArgumentError, match=r"saw\('books'\): the receipt has no such source; pass one of"):
        receipt.saw("books", 1)
    with pytest.raises(RowIndexError, match="row 20 of 'code' is out of range"):
        receipt.saw("code", 20)


@pytest.mark.parametrize("count", [2, 12, 60])
def test_json_is_short(tmp_path: Path, count: int) -> None:
    parts = {}
    for number in range(count):
        path = tmp_path / f"{'long' * 10}-{number}.npy"
        np.save(path, np.arange(40 + number))
        parts[f"{'name' * 20}-{number}"] = loadax.from_npy(path)
    receipt = Dataloader(mix(parts, [1] * count, stop="all"), 8).receipt(5)
    told = json.loads(receipt.to_json())
    assert len(receipt.to_json()) < 4096
    assert len(receipt.sources) == count
    assert len(told["sources"]) + told.get("others", {"sources": 0})["sources"] == count
    assert sum(one["rows"] for one in [*told["sources"], told.get("others", {"rows": 0})]) == 40


def test_files_are_listed_while_there_is_room(tmp_path: Path) -> None:
    for number in range(3):
        np.save(tmp_path / f"{number}.npy", np.arange(16))
    data = loadax.concat([loadax.from_npy(tmp_path / f"{number}.npy") for number in range(3)])
    (one, *_), told = Dataloader(data, 8).receipt(3).sources, Dataloader(data, 8).receipt(3).to_dict()
    status = (tmp_path / "0.npy").stat()
    assert one.files[0][:3] == (str(tmp_path / "0.npy"), status.st_size, str(status.st_mtime_ns))
    assert told["sources"][0]["files"] == {"0.npy": [status.st_size, str(status.st_mtime_ns)]}
    digests = Dataloader(data, 8, contents="digest").receipt(3)
    assert {one.files[0].digest for one in digests.sources} == {digests.sources[0].files[0].digest}
    assert len(digests.to_dict()["sources"][0]["files"]["0.npy"]) == 3
    assert digests.contents != told["contents"]


def test_orbax_writes_a_receipt_beside_the_state(tmp_path: Path) -> None:
    with loader().iterate(5) as batches:
        receipt = loader().receipt(batches.step)
        v1.save_checkpointables(tmp_path / "5", {"data": batches, "receipt": receipt})
    assert (tmp_path / "5" / "receipt" / "loadax.receipt.json").read_text() == receipt.to_json()
    with loader().iterate() as batches:
        v1.load_checkpointables(tmp_path / "5", {"data": batches})
        assert batches.step == 5
        v1.load_checkpointables(tmp_path / "5", {"data": batches, "receipt": receipt})
    with pytest.raises(ArgumentError, match="only Orbax calls this"):
        _ = receipt.save(str(tmp_path))  # type: ignore[arg-type]


def large() -> dict[str, tuple[Order, list[int]]]:
    rows = 10**9 + 7
    parts = (Shuffled(Sequential(rows), 1), BlockShuffled(Sequential(rows), 1, 4096, 4, 128), Sequential(rows // 9))
    sizes = (rows, rows, rows // 9)
    weights = (Segment(0, (70, 20, 10)), Segment(10**8, (1, 2, 3)))
    mixed = Mixed(parts, sizes, ("a", "b", "c"), weights, 0, "all", version=3)
    return {
        "shuffle": (parts[0], [0]),
        "blocks": (parts[1], [0]),
        "mixture": (mixed, [0, rows, 2 * rows]),
    }


@pytest.mark.parametrize("name", large())
def test_a_billion_rows_are_not_looked_at(name: str) -> None:
    order, starts = large()[name]
    plan = BatchPlan(order, 4096, num_epochs=3)
    assert plan.num_steps is not None
    begin = perf_counter()
    counts = tally(order, 3 * 10**9, reads_of(plan, plan.num_steps - 5), [Counted(one, 2048) for one in starts], GONE)
    seconds = perf_counter() - begin
    assert sum(one.rows for one in counts) > 2 * 10**9
    assert seconds < 5, seconds  # 0.1 s on an idle core; looking at the rows takes minutes


GONE = np.arange(0, 1000, 7)


@pytest.mark.parametrize("seed", range(4))
def test_receipt_of_a_state_counts_weights_that_were_set(seed: int) -> None:
    random = np.random.default_rng(seed)
    parts = {"web": np.arange(90), "code": np.arange(100, 130), "math": np.arange(200, 290)}
    loader = Dataloader(mix(parts, [1, 1, 1], stop="never"), 8)
    seen: Counter[str] = Counter()
    with loader.iterate() as batches:
        for _ in range(30):
            if random.random() < 0.2:
                batches.set_weights(random.integers(1, 6, 3).tolist())
            for value in np.asarray(next(batches)).tolist():
                seen[("web", "code", "math")[value // 100]] += 1
        receipt = loader.receipt(batches.get_state())
    assert {source.name: source.rows for source in receipt.sources} == seen


def test_receipt_of_a_state_has_weights_that_were_set() -> None:
    first = Dataloader(mix(PARTS, weights=[3, 1]), 8)
    run = chain([first, Dataloader(mix(PARTS, weights=[3, 1], stop="never"), 8)])
    for start, saved in ((1, first), (len(first) + 1, run)):
        with saved.host_batches(start) as batches:
            batches.set_weights([1, 3])
            for _ in range(3):
                next(batches)
            state = batches.get_state()
        expected = saved.with_weights(state).receipt(start + 3).to_json()
        assert saved.receipt(state).to_json() == expected
        assert saved.receipt(start + 3).to_json() != expected
    with first.host_batches(1) as batches:
        batches.set_weights([1, 3])
        state = batches.get_state()
    assert first.receipt([state]).to_json() == first.receipt(MappingProxyType(state)).to_json()
