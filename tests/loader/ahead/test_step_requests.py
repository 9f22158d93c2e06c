"""Requests of the steps to come: batches are those of local files, bytes come once, and all ends with the run."""

import contextlib
import gc
import io
import json
import tarfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import jax
import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

import loadax
from loadax import Dataloader, Dataset
from loadax.errors import ArgumentError
from loadax.files import ahead as requested_ahead
from loadax.files.ahead import Ahead
from loadax.files.byte_ranges import NEAR, ByteRange
from loadax.files.remote import RemoteFiles
from loadax.files.requests import Pending, Requests
from loadax.loader.ahead.step_requests import MOST_REQUESTS
from loadax.loader.execution.piece_size import PieceSizes
from loadax.loader.metrics.stats import Timing
from tests.servers.faults import Fault, FaultProxy
from tests.servers.ranges import RangeServer, parse_range

pytest_plugins = ["tests.servers.fixtures"]

ROWS = 240
KINDS: dict[str, Callable[[str], Dataset]] = {
    "npy": lambda base: loadax.from_npy({"x": f"{base}/rows.npy"}),
    "tokens": lambda base: loadax.from_tokens(f"{base}/tokens.npy", 30).map(lambda row: {"x": row["tokens"]}),
    "parquet": lambda base: loadax.from_parquet([f"{base}/{part}.parquet" for part in range(2)]).keep("x"),
    "ragged": lambda base: (
        loadax.from_parquet([f"{base}/{part}.parquet" for part in range(2)])
        .keep("text")
        .map(lambda row: {"x": np.full(2, len(row["text"]))})
    ),
    "jsonl": lambda base: loadax.from_jsonl([f"{base}/{part}.jsonl" for part in range(2)]).keep("x"),
    "tar": lambda base: loadax.from_webdataset([f"{base}/{part}.tar" for part in range(2)]).map(
        lambda row: {"x": np.frombuffer(row["bin"], np.uint8)}
    ),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("data")
    np.save(root / "rows.npy", np.arange(ROWS * 31, dtype=np.uint16).reshape(ROWS, 31))
    np.save(root / "tokens.npy", np.arange(ROWS * 31, dtype=np.uint16))
    for part in range(2):
        rows = range(part * ROWS // 2, (part + 1) * ROWS // 2)
        texts = ["é" * (row % 7) for row in rows]
        table = pa.table({"x": list(rows), "text": texts})
        parquet.write_table(table, root / f"{part}.parquet", row_group_size=37, use_dictionary=False)
        lines = [json.dumps({"x": row, "text": text}) for row, text in zip(rows, texts, strict=True)]
        (root / f"{part}.jsonl").write_text("\n".join(lines))
        with tarfile.open(root / f"{part}.tar", "w") as tar:
            for row in rows:
                member = tarfile.TarInfo(f"{row:05}.bin")
                member.size = 3
                tar.addfile(member, io.BytesIO(bytes([row % 256, row // 256, 7])))
    return root


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[RangeServer]:
    with contextlib.closing(RangeServer(folder)) as running:
        yield running


@pytest.fixture
def proxy(server: RangeServer) -> Iterator[FaultProxy]:
    with contextlib.closing(FaultProxy(server.url)) as running:
        yield running


def verbs(random: Random, parts: Sequence[Dataset]) -> Dataset:
    """A chain of verbs over datasets of equal rows; those that are refused behind others are left out."""
    others: dict[str, Callable[[Dataset], Dataset]] = {
        "shuffle": lambda data: data.shuffle(random.randint(0, 9)),
        "slice": lambda data: data[random.randint(0, 9) : -9 : random.choice([1, 2])],
        "backwards": lambda data: data[::-1],
        "concat": lambda data: loadax.concat([data, random.choice(parts)]),
        "mix": lambda data: loadax.mix([data, random.choice(parts)], [2, 1], seed=random.randint(0, 9)),
        "repeat": lambda data: data.repeat(2),
        "zip": lambda data: data.zip(data).map(lambda both: both[0]),
        "windows": lambda data: data.windows(3, random.choice([1, 3])).map(lambda row: {"x": row["x"].sum(0)}),
        "flat_map": lambda data: data.flat_map(lambda row: [row, {"x": row["x"] * 2}], fan_out=2),
    }
    data = random.choice(parts)
    for _ in range(random.randint(1, 4)):
        with contextlib.suppress(ArgumentError):
            data = random.choice([*others.values()])(data)
    return data


def chains(kind: str, seed: int, base: str) -> Dataset:
    """The same chain wherever the files lie."""
    return verbs(Random(seed), [KINDS[kind](base), KINDS[kind](base)])


def spans_of(proxy: FaultProxy) -> dict[str, list[tuple[int, int]]]:
    """The bytes that were requested of each file, sorted."""
    spans: dict[str, list[tuple[int, int]]] = {}
    for exchange in proxy.log:
        span = parse_range(exchange.range, 1 << 40)
        assert span is not None
        spans.setdefault(exchange.path, []).append(span)
    return {path: sorted(found) for path, found in spans.items()}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(3))
def test_batches_of_any_chain_are_those_of_local_files(
    kind: str, seed: int, folder: Path, server: RangeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = []
    take = Ahead.take

    def noted(self: Ahead, ranges: Sequence[ByteRange]) -> Any:
        taken.append(take(self, ranges))
        return taken[-1]

    monkeypatch.setattr(Ahead, "take", noted)
    batch = 16
    local = Dataloader(chains(kind, seed, str(folder)), batch, remainder="pad", num_epochs=2)
    remote = Dataloader(chains(kind, seed, server.url), batch, remainder="pad", num_epochs=2)
    steps = 0
    for here, there in zip(local.host_batches(), remote.host_batches(), strict=True):
        jax.tree.map(np.testing.assert_array_equal, here, there)
        steps += 1
    assert steps == len(local)
    assert any(contents for contents, _ in taken)


@pytest.mark.parametrize("kind", ["npy", "tokens", "parquet", "ragged", "jsonl", "tar"])
@pytest.mark.parametrize("shuffled", [False, True])
def test_no_byte_is_requested_twice_in_an_epoch(
    kind: str, shuffled: bool, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Late requests are sent again, and gaps that were read with their neighbours when their own rows come.
    monkeypatch.setattr(RemoteFiles, "gap", lambda *_: 0)
    monkeypatch.setattr(requested_ahead, "NEAR", 0)
    monkeypatch.setattr("loadax.files.remote_stream.NEAR", 0)
    monkeypatch.setattr(Requests, "_repeat_late", lambda *_: None)
    data = KINDS[kind](proxy.url)
    if shuffled:
        data = data.shuffle(0)
    loader = Dataloader(data, 16, remainder="pad")
    assert loader.spec is not None
    proxy.clear()
    rows = [row for step, _ in enumerate(loader.host_batches()) for row in loader.rows(step) if row >= 0]
    assert sorted(rows) == list(range(len(data)))
    for spans in spans_of(proxy).values():
        # Windows of tokens share one token each.
        shared = 2 if kind == "tokens" and shuffled else 0
        twice = [pair for pair in pairwise(spans) if pair[0][1] - shared > pair[1][0]]
        assert twice == []


@pytest.mark.parametrize("kind", ["npy", "parquet"])
def test_what_is_held_stays_within_the_budget_and_is_freed(
    kind: str, server: RangeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = []
    start = Ahead.start

    def noted(self: Ahead, *arguments: Any) -> None:
        start(self, *arguments)
        held.append((self, self.bytes_at_hand))

    monkeypatch.setattr(Ahead, "start", noted)
    monkeypatch.setattr(RemoteFiles, "gap", lambda *_: 1 << 20)
    prefetch_bytes = 40_000
    for _ in Dataloader(KINDS[kind](server.url).shuffle(1), 8, prefetch_bytes=prefetch_bytes).host_batches():
        pass
    # Between the ranges of two steps, small gaps are requested too.
    most = prefetch_bytes / 4 + 8 * NEAR
    assert 0 < max(size for _, size in held) <= most
    assert {ahead.bytes_at_hand for ahead, _ in held} == {0}


def test_the_wait_for_bytes_that_are_under_way_is_no_time_of_rows(
    proxy: FaultProxy, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    timings: list[Timing] = []
    monkeypatch.setattr(PieceSizes, "measured", lambda _, __, timing: timings.append(timing))
    proxy.add(Fault("delay", seconds=0.05))
    for base in (proxy.url, str(folder)):
        timings.clear()
        for _ in Dataloader(KINDS["npy"](base), 40).host_batches():
            pass
        is_remote = base == proxy.url
        assert all(each.under_way == is_remote * max(0.0, each.read - each.read_cpu) for each in timings)
        assert (max(each.under_way for each in timings) > 0.03) == is_remote


@pytest.mark.parametrize("how", ["close", "collect", "set_state"])
def test_nothing_is_under_way_after_the_run(how: str, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch) -> None:
    futures: list[Pending] = []
    begin = RemoteFiles.begin

    def noted(self: RemoteFiles, ranges: Sequence[ByteRange], urgent: bool) -> Any:
        futures.extend(begin(self, ranges, urgent))
        return futures[len(futures) - len(ranges) :]

    loader = Dataloader(KINDS["npy"](proxy.url).shuffle(0), 8, num_epochs=None)
    batches = iter(loader)
    monkeypatch.setattr(RemoteFiles, "gap", lambda *_: 0)
    monkeypatch.setattr(RemoteFiles, "begin", noted)
    proxy.add(Fault("delay", seconds=0.05))
    next(batches)
    if how == "close":
        batches.close()
    elif how == "collect":
        del batches
        gc.collect()
    else:
        state = batches.get_state()
        batches.set_state({**state, "step": 0, "position": 0} if "position" in state else state)
        batches.close()
    time.sleep(0.3)  # what was sent is answered
    assert futures
    assert all(future.done() for future in futures)
    assert any(isinstance(future.exception(), CancelledError) for future in futures) or len(futures) < 64
    before = len(proxy.log)
    time.sleep(0.2)
    assert len(proxy.log) == before


@pytest.mark.parametrize("kind", ["tokens", "parquet", "jsonl"])
@pytest.mark.parametrize("fault", ["status", "reset", "truncate", "delay"])
def test_batches_are_equal_where_requests_fail(kind: str, fault: Any, folder: Path, proxy: FaultProxy) -> None:
    expected = list(Dataloader(KINDS[kind](str(folder)).shuffle(0), 16, num_epochs=1))
    loader = Dataloader(KINDS[kind](proxy.url).shuffle(0), 16, num_epochs=1, prefetch_bytes=4 << 10)
    proxy.add(spoilt := Fault(fault, every=4, seconds=0.2))
    jax.tree.map(np.testing.assert_array_equal, list(loader), expected)
    assert spoilt.hits


@pytest.mark.parametrize("kind", ["tokens", "parquet"])
@pytest.mark.parametrize("workers", [0, 2])
def test_waits_for_storage_are_counted(kind: str, workers: int, server: RangeServer, folder: Path) -> None:
    """Whether bytes are requested ahead or when they are read; local files are not waited for."""
    with contextlib.closing(FaultProxy(server.url)) as proxy:
        loader = Dataloader(KINDS[kind](proxy.url), 16, num_epochs=1, num_workers=workers)
        proxy.add(Fault("delay", seconds=0.1), Fault("status", times=2, status=503))
        with loader.iterate() as batches:
            for _ in batches:
                pass
            found = batches.stats()
    assert found.refused == 2
    assert found.in_flight == 0
    assert 0.1 <= found.storage <= found.read
    assert found.storage_share == found.storage / found.read
    local = Dataloader(loadax.from_npy({"x": folder / "rows.npy"}), 16, num_epochs=1).iterate()
    assert sum(1 for _ in local) == ROWS // 16
    assert local.stats().storage == 0


def test_endless_runs_of_bytes_that_are_at_hand_look_a_bounded_way_ahead(server: RangeServer) -> None:
    """Files that are kept whole request nothing in any step; the search for the next request once went on for ever."""
    data = KINDS["parquet"](server.url).shuffle(seed=0)
    with Dataloader(data, 8, num_epochs=None, num_workers=1).iterate() as batches:
        shapes = [next(batches)["x"].shape for _ in range(40)]
        producer: Any = batches._stretch.scheduler._producer
        looked_at = producer.of(0)._ahead._next
    assert shapes == [(8,)] * 40
    assert 40 <= looked_at <= 40 + 2 * MOST_REQUESTS
