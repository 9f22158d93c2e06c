"""Block shuffles decode each chunk once per window and host, and their memory is computed before the run."""

import json
import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from loadax import Dataloader, Dataset, concat, from_arrays, from_source, from_zarr, mix, write_zarr
from loadax.errors import ArgumentError, SourceError
from loadax.loader.assembly.chunk_budget import OpenChunks, cache_open_chunks, shard_columns
from loadax.sharding import plan_mesh
from loadax.sources.base import walk
from loadax.sources.wrappers.chunk_cache import ChunkCache
from tests.loader.oracle import mesh_of
from tests.sources.chunked import ChunkedSource

ROWS, CHUNK, BATCH = 4096, 64, 32
VALUES = np.arange(ROWS * 2, dtype=np.int32).reshape(ROWS, 2)
IRREGULAR = np.array([0, 1, 50, 64, 200, 201, 300, 700, 900, 1500, 2000, 2001, 3000, 4000], np.int64)
HALF_A_BATCH = 128  # bytes: nothing is read ahead that would hide how much is open
Verb = Callable[[Dataset], Dataset]

SHUFFLES: dict[str, Verb] = {
    "all open": lambda ds: ds.shuffle(0, block="chunks"),
    "few lanes": lambda ds: ds.shuffle(0, block="chunks", window=2, lanes=8),
    "one window": lambda ds: ds.shuffle(0, block="chunks", window=1, lanes=4),
    "two chunks a block": lambda ds: ds.shuffle(0, block=2 * CHUNK, window=2, lanes=4),
}


def chunked(chunks: Any = CHUNK, **options: Any) -> tuple[ChunkedSource, Dataset]:
    source = ChunkedSource(VALUES, chunks, **options)
    return source, from_source(source)


def run(dataset: Dataset, batch_size: int = BATCH, **options: Any) -> list[Any]:
    """The batches that real iteration gives."""
    with iter(Dataloader(dataset, batch_size, **options)) as batches:
        return [np.asarray(batch) for batch in batches]


def check(loader: Dataloader, values: Any = VALUES, host: int = 0, hosts: int = 1) -> int:
    """Each batch has this host's share of the rows of its step; returns the number of rows."""
    used = 0
    with iter(loader) as batches:
        for step, batch in enumerate(batches):
            rows = np.split(loader.rows(step), hosts)[host]
            np.testing.assert_array_equal(batch, values[rows])
            used += len(rows)
    return used


def ends(hosts: int) -> list[int]:
    """The first and the last host: those between them are like these."""
    return sorted({0, hosts - 1})


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Callable[[], list[tuple[int, str, float]]]:
    """What was said since the last call: chunks open, their bytes, and rows decoded for each one used."""
    caplog.set_level(logging.INFO, "loadax")

    def numbers() -> list[tuple[int, str, float]]:
        found = re.findall(r"has (\d+) chunks? open, (\S+ \w+), and decodes (\d+\.\d\d) rows", caplog.text)
        caplog.clear()
        return [(int(chunks), size, float(decoded)) for chunks, size, decoded in found]

    return numbers


class TestTheSameBatches:
    @pytest.mark.parametrize("into", [True, False])
    @pytest.mark.parametrize(
        "chunks", [CHUNK, 100, IRREGULAR, IRREGULAR.astype(np.int32)], ids=["64", "100", "int64", "int32"]
    )
    def test_with_and_without_the_cache(self, chunks: Any, into: bool) -> None:
        source, data = chunked(chunks, into=into)
        plain = from_arrays(VALUES).shuffle(3, block=CHUNK, window=3, lanes=8)
        mapped = data.shuffle(3, block=CHUNK, window=3, lanes=8).map_batch(lambda batch: batch * 2)
        for batch, doubled, expected in zip(
            run(data.shuffle(3, block=CHUNK, window=3, lanes=8)), run(mapped), run(plain), strict=True
        ):
            np.testing.assert_array_equal(batch, expected)
            np.testing.assert_array_equal(doubled, expected * 2)
        assert source.counts.max() <= 4 * 2

    @pytest.mark.parametrize("workers", [0, 4])
    def test_a_resumed_run_goes_on_in_the_middle_of_its_windows(self, workers: int) -> None:
        def loader() -> Dataloader:
            return Dataloader(SHUFFLES["few lanes"](chunked()[1]), BATCH, num_epochs=2, num_workers=workers)

        with loader().iterate(37) as batches:
            state = json.loads(json.dumps(batches.get_state()))
        again = loader()
        with again.iterate(state) as rest:
            for step, batch in enumerate(rest, 37):
                np.testing.assert_array_equal(batch, VALUES[again.rows(step)])
        assert step == len(again) - 1

    def test_of_a_store_with_columns_cut_over_the_mesh(self, tmp_path: Path) -> None:
        fields = np.arange(256 * 4 * 8, dtype=np.float32).reshape(256, 4, 8)
        write_zarr(
            {"field": fields, "label": np.arange(256)}, tmp_path / "x", chunk_rows=16, shard_rows=64, progress=False
        )
        data = from_zarr(tmp_path / "x").shuffle(1, block="chunks", window=2, lanes=4)
        mesh, partition = mesh_of({"data": 2, "model": 4}), {"field": P("data", None, "model"), "label": P("data")}
        loader = Dataloader(data, 16, mesh=mesh, partition=partition)
        with iter(loader) as batches:
            for step, batch in enumerate(batches):
                rows = loader.rows(step)
                np.testing.assert_array_equal(batch["field"], fields[rows])
                np.testing.assert_array_equal(batch["label"], rows)


class TestWhatIsDecoded:
    @pytest.mark.parametrize("ahead", [HALF_A_BATCH, 4 << 20], ids=["nothing ahead", "far ahead"])
    @pytest.mark.parametrize("hosts", [1, 4])
    @pytest.mark.parametrize("verb", SHUFFLES.values(), ids=SHUFFLES.keys())
    def test_each_chunk_once_an_epoch_on_each_host(self, verb: Verb, hosts: int, ahead: int) -> None:
        for host in ends(hosts):
            source, data = chunked()
            share: dict[str, Any] = {"shard_index": host, "shard_count": hosts}
            loader = Dataloader(verb(data), 4 * BATCH, num_epochs=2, prefetch_bytes=ahead, **share)
            used = check(loader, host=host, hosts=hosts)
            assert used == 2 * ROWS // hosts
            assert source.counts.sum() <= 1.1 * used
            assert source.reads < used / 4

    @pytest.mark.parametrize("hosts", [1, 4])
    def test_a_planned_mesh_needs_no_other_rows(self, hosts: int, said: Any) -> None:
        """Worked out without any host: the chunks that a host's rows lie in, window by window."""
        data = SHUFFLES["few lanes"](chunked()[1])
        met = []
        for host in range(hosts):
            mesh = plan_mesh({"data": 8}, owners=[device * hosts // 8 for device in range(8)], process=host)
            loader = Dataloader(data, BATCH, mesh=mesh)
            rows = np.concatenate([loader.local_rows(step) for step in range(len(loader))])
            met.append(set((rows // CHUNK).tolist()))
            assert len(rows) == ROWS // hosts
            assert said() == [(16 // hosts, f"{8 / hosts:.1f} KiB", 1.0)]
        assert sum(map(len, met)) == len(set.union(*met)) == ROWS // CHUNK

    @pytest.mark.parametrize(
        ("verb", "chunks"),
        [
            (lambda ds: ds[10:].shuffle(0, block="chunks", window=2, lanes=8), CHUNK),
            (lambda ds: ds.split(0.8)[0].shuffle(0, block="chunks", window=2, lanes=8), CHUNK),
            (lambda ds: ds.shuffle(0, block=100, window=2, lanes=8), CHUNK),
            (lambda ds: ds.shuffle(0, block=32, window=2, lanes=8), CHUNK),
            (lambda ds: ds.shuffle(0, block="chunks", window=2, lanes=12), CHUNK),
            (lambda ds: ds.shuffle(0, block="chunks", window=1, lanes=1), CHUNK),
            (lambda ds: ds.shuffle(0, block=64, window=2, lanes=8), IRREGULAR),
        ],
        ids=["slice", "split", "larger block", "smaller block", "12 lanes", "one lane", "irregular"],
    )
    @pytest.mark.parametrize("hosts", [1, 4])
    def test_no_more_than_was_said(self, verb: Verb, chunks: Any, hosts: int, said: Any) -> None:
        for host in ends(hosts):
            source, data = chunked(chunks)
            used = check(Dataloader(verb(data), 4 * BATCH, shard_index=host, shard_count=hosts), host=host, hosts=hosts)
            ((_, _, decoded),) = said()
            assert source.counts.sum() <= 1.15 * decoded * used  # what is said is the mean of all blocks

    def test_windows_over_chunks(self) -> None:
        """A window reaches into the next chunk; both are kept."""
        source, data = chunked()
        windows = data.windows(4).shuffle(0, block="chunks", window=2, lanes=8)
        assert windows.order.describe()[-1][2] == CHUNK
        # 16 x 64 windows of 4 rows
        loader = Dataloader(windows, BATCH, prefetch_bytes=HALF_A_BATCH, cache_bytes=32 << 10)
        check(loader, np.lib.stride_tricks.sliding_window_view(VALUES, 4, 0).swapaxes(1, 2))
        assert source.counts.sum() <= 2.1 * ROWS

    @pytest.mark.parametrize("hosts", [1, 4])
    def test_a_shuffle_of_a_concatenation(self, hosts: int) -> None:
        for host in ends(hosts):
            parts = [ChunkedSource(VALUES[:2048], 64), ChunkedSource(VALUES[2048:], np.arange(0, 2048, 64))]
            data = concat([from_source(part) for part in parts]).shuffle(0, block="chunks", window=2, lanes=8)
            check(Dataloader(data, 4 * BATCH, shard_index=host, shard_count=hosts), host=host, hosts=hosts)
            assert sum(part.counts.sum() for part in parts) <= 1.1 * ROWS / hosts

    def test_a_concatenation_of_shuffles(self, said: Any) -> None:
        parts = [ChunkedSource(VALUES[:2048], 64), ChunkedSource(VALUES[2048:], 32)]
        data = concat(
            [from_source(part).shuffle(seed, block="chunks", window=2, lanes=4) for seed, part in enumerate(parts)]
        )
        check(Dataloader(data, BATCH))
        assert said() == [(8, "4.0 KiB", 1.0), (8, "2.0 KiB", 1.0)]
        assert all((part.counts == 1).all() for part in parts)

    def test_columns_of_different_devices_are_read_together(self) -> None:
        values = np.arange(256 * 8, dtype=np.int32).reshape(256, 8)
        source = ChunkedSource(values, 16)
        data = from_source(source).shuffle(0, block="chunks", window=2, lanes=4)
        check(Dataloader(data, 32, mesh=mesh_of({"data": 2, "model": 4}), partition=P("data", "model")), values)
        assert (source.elements[0] == 1).all()

    def test_columns_that_no_device_holds_are_not_read(self, said: Any) -> None:
        """One half of the columns, by a mesh that another process shares: its part is read of whole chunks, once."""
        values = np.arange(256 * 8, dtype=np.int32).reshape(256, 8)
        source = ChunkedSource(values, 16)
        data = from_source(source).shuffle(0, block="chunks", window=2, lanes=4)
        mesh = plan_mesh({"data": 1, "model": 2}, owners=[[0, 1]], process=0)
        loader = Dataloader(data, 32, mesh=mesh, partition=P("data", "model"))
        assert said() == [(8, "2.0 KiB", 1.0)]  # of half the columns
        assert data.order.shuffle is not None
        assert data.order.shuffle.blocks is not None
        found = OpenChunks(data.order, data.order.shuffle.blocks, 16, 8, 1.0, 16 * 4 * 4, 4, 1, data.source)
        reader = cache_open_chunks(
            data.reader, [found], None, shard_columns(data.reader, loader.phases[0].shard()), 0, 1
        )
        assert reader.source.traits.reads_columns
        out = np.empty((4, 4), np.int32)
        for step in range(8):
            for rows in loader.rows(step).reshape(-1, 4):
                reader.source.read_into(rows, [((0, 4),)], [out])
                np.testing.assert_array_equal(out, values[rows, :4])
        assert (source.elements[0][:, :4] == 1).all()
        assert not source.elements[0][:, 4:].any()


class TestWhatIsSaid:
    def test_one_line(self, caplog: pytest.LogCaptureFixture) -> None:
        with caplog.at_level(logging.INFO, "loadax"):
            run(SHUFFLES["few lanes"](chunked()[1]))
        (line,) = [record for record in caplog.records if "block shuffle" in record.message]
        assert (line.name, line.levelno) == ("loadax", logging.INFO)
        assert line.message == (
            "block shuffle: 8 lanes x 2 blocks of 64 rows, chunks of 64; this process has 16 chunks open, 8.0 KiB, "
            "and decodes 1.00 rows for each one used (a full shuffle: up to 64)"
        )

    @pytest.mark.parametrize(
        ("verb", "options", "low", "high"),
        [
            (lambda ds: ds[10:], {"lanes": 4}, 1.9, 2.0),
            (lambda ds: ds.split(0.5)[0], {"lanes": 4}, 2, 4),
            (lambda ds: ds[::4], {"lanes": 4}, 4, 4),
            (lambda ds: ds, {"lanes": 1, "shard_index": 1, "shard_count": 4}, 4, 4),
        ],
        ids=["slice", "split", "stride", "hosts share a lane"],
    )
    def test_rows_that_share_chunks_with_others(
        self, verb: Verb, options: dict[str, Any], low: float, high: float, said: Any
    ) -> None:
        lanes = options.pop("lanes")
        run(verb(chunked()[1]).shuffle(0, block="chunks", window=2, lanes=lanes), **options)
        ((_, _, decoded),) = said()
        assert low <= decoded <= high

    @pytest.mark.parametrize(
        "data",
        [from_arrays(VALUES).shuffle(0, block=64), chunked()[1].shuffle(0), chunked()[1], chunked()[1][:0].repeat(2)],
    )
    def test_nothing_where_there_is_nothing_to_keep_open(self, data: Dataset, caplog: pytest.LogCaptureFixture) -> None:
        with caplog.at_level(logging.INFO, "loadax"):
            if len(data):
                run(data)
        assert "block shuffle" not in caplog.text


class TestWhatIsRefused:
    def test_a_window_that_does_not_fit_with_values_that_do(self) -> None:
        data = chunked()[1]
        with pytest.raises(
            ArgumentError,
            match=r"shuffle\(block=64, window=4, lanes=4\) has 16 chunks open in this process, "
            r"8\.0 KiB, but cache_bytes allows 5\.9 KiB: every chunk would be decoded many times; "
            r"pass window=2 to shuffle, or cache_bytes=8192 to the Dataloader",
        ):
            run(data.shuffle(0, block="chunks", window=4, lanes=4), cache_bytes=6000)
        assert len(run(data.shuffle(0, block="chunks", window=2, lanes=4), cache_bytes=6000)) == ROWS // BATCH
        assert len(run(data.shuffle(0, block="chunks", window=4, lanes=4), cache_bytes=8192)) == ROWS // BATCH

    @pytest.mark.parametrize("hosts", [1, 2])
    @pytest.mark.parametrize("window", [1, 7])
    @pytest.mark.parametrize("lanes", [1, 5, 8])
    @pytest.mark.parametrize("allowed", [600, 4000])
    @pytest.mark.parametrize("block", ["chunks", 96])
    def test_what_it_says_works_when_it_is_pasted(
        self, block: Any, allowed: int, lanes: int, window: int, hosts: int
    ) -> None:
        def attempt(window: int, lanes: int, cache_bytes: int) -> str:
            data = chunked()[1].shuffle(0, block=block, window=window, lanes=lanes)
            try:
                Dataloader(data, BATCH, cache_bytes=cache_bytes, shard_index=0, shard_count=hosts).phases[0].shard()
            except ArgumentError as error:
                return str(error)
            return ""

        if message := attempt(window, lanes, allowed):
            advice = r"pass (?:window=(\d+)(?: and lanes=(\d+))? to shuffle, or )?cache_bytes=(\d+) to the"
            found = re.search(advice, message)
            assert found is not None, message
            assert not attempt(window, lanes, int(found[3]))
            if found[1] is not None:
                assert not attempt(int(found[1]), int(found[2] or lanes), allowed)
            else:
                assert allowed < 1024  # one block of 96 rows lies in two chunks of 512 bytes

    def test_when_it_is_made_on_a_mesh_and_otherwise_when_it_begins(self) -> None:
        data = SHUFFLES["few lanes"](chunked()[1])
        with pytest.raises(ArgumentError, match="cache_bytes allows 100 B"):
            Dataloader(data, BATCH, mesh=mesh_of({"data": 8}), cache_bytes=100)
        loader = Dataloader(data, BATCH, cache_bytes=100)
        with pytest.raises(ArgumentError, match="cache_bytes allows 100 B"):
            iter(loader)

    @pytest.mark.parametrize(
        "data", [from_arrays(VALUES), chunked(1)[1], chunked(np.arange(ROWS))[1], chunked(np.empty(0, np.int64))[1]]
    )
    def test_chunks_of_data_that_has_none(self, data: Dataset) -> None:
        with pytest.raises(
            ArgumentError,
            match=r"block='chunks': .* has no chunks, or is a concat\(\) .*"
            r"use shuffle\(seed=7\)",
        ):
            data.shuffle(7, block="chunks")

    def test_chunks_that_lie_below_maps_that_were_joined(self) -> None:
        parts = [chunked()[1], chunked()[1]]
        joined = concat([part.map(np.negative) for part in parts])
        with pytest.raises(
            ArgumentError,
            match=r"concatenation of 2 has no chunks, or .* mapped before it: map after",
        ):
            joined.shuffle(7, block="chunks")
        behind = concat(parts).map(np.negative).shuffle(7, block="chunks")
        before = concat([part.shuffle(7, block="chunks").map(np.negative) for part in parts])
        assert len(behind) == len(before) == len(joined.shuffle(7, block=64)) == 2 * ROWS
        with pytest.raises(ArgumentError, match=r"a part has none"):
            concat([concat([parts[0], from_arrays(VALUES)])]).shuffle(7, block="chunks")

    def test_another_word(self) -> None:
        with pytest.raises(ArgumentError, match=r"block='shards': pass a number of rows, or 'chunks' for the chunk"):
            chunked()[1].shuffle(0, block="shards")

    @pytest.mark.parametrize(
        "chunks",
        [
            *(np.array([1, 5]), np.array([0, 5, 5]), np.array([0, 9, 5]), np.array([0, ROWS]), np.array([0.0, 5.0])),
            *(range(1, ROWS, 4), range(0, ROWS + 8, 8), range(ROWS - 1, 0, -1)),
        ],
    )
    def test_chunks_that_can_not_be(self, chunks: Any) -> None:
        data = chunked(chunks)[1]
        message = r"ChunkedSource\.chunks is .*; give the rows at which chunks begin: ascending ints from 0, below 4096"
        with pytest.raises(SourceError, match=message):
            data.shuffle(0, block="chunks")
        with pytest.raises(SourceError, match=message):
            run(data.shuffle(0, block=64, window=2))


class TestFullShuffles:
    @staticmethod
    def wide(chunks: Any) -> Dataset:
        return from_source(ChunkedSource(np.zeros((64, 1024), np.float32), chunks))

    @pytest.mark.parametrize("chunks", [16, np.array([0, 16, 32, 48, 60])])
    def test_of_data_in_chunks_is_warned_of_with_its_factor(self, chunks: Any) -> None:
        message = (
            r"shuffle\(seed\) of data whose chunks hold 16 rows decodes up to 16 rows for each one used; "
            r"shuffle\(seed, block='chunks'\) decodes each once an epoch, or `loadax convert` writes"
        )
        with pytest.warns(UserWarning, match=message) as caught:
            self.wide(chunks).shuffle(0)
        assert caught[0].filename == __file__

    def test_of_others_are_not(self) -> None:
        self.wide(1).shuffle(0)  # every row by itself
        self.wide(3).shuffle(0)  # not many rows
        chunked()[1].shuffle(0)  # not many bytes
        from_arrays(VALUES).shuffle(0)
        self.wide(16).shuffle(0, block="chunks")
        self.wide(16).shuffle(0, block=4)


class TestTheDefaultWindow:
    def test_is_four_blocks_or_fewer_where_chunks_are_large(self) -> None:
        assert chunked()[1].shuffle(0, block="chunks").order.describe()[-1][2:5] == [64, 4, 128]
        large = from_source(_Large())
        # 128 lanes of 2 x 4 MiB are 1 GiB
        assert large.shuffle(0, block="chunks").order.describe()[-1][2:5] == [8, 2, 128]
        assert large.shuffle(0, block="chunks", lanes=1024).order.describe()[-1][2:5] == [8, 1, 1024]
        assert large.shuffle(0, block="chunks", window=9).order.describe()[-1][2:5] == [8, 9, 128]
        assert large.shuffle(0, block=16).order.describe()[-1][2:5] == [16, 1, 128]


class _Large:
    """Rows of half a mebibyte, that nobody reads."""

    spec = np.broadcast_to(np.uint8(0), 1 << 19)
    chunks = range(0, 80, 8)

    def __len__(self) -> int:
        return 80

    def read(self, rows: Any) -> Any:
        raise AssertionError


def test_a_mixture_of_block_shuffles_keeps_the_chunks_of_all_its_parts() -> None:
    sources = [ChunkedSource(np.arange(part * 4096, part * 4096 + 4096), 64) for part in range(2)]
    parts = [from_source(source).shuffle(0, block="chunks", lanes=8, window=2) for source in sources]
    mixed = mix(parts, (1, 3))
    loader = Dataloader(mixed, batch_size=32)
    check(loader, np.arange(8192))
    met = np.concatenate([loader.rows(step) for step in range(len(loader))])
    rows = [int((met < 4096).sum()), int((met >= 4096).sum())]
    for source, used in zip(sources, rows, strict=True):
        assert source.counts.sum() <= used + 3 * 8 * 2 * 64  # windows that were begun when the run ended
    message = r"has 16 chunks open in this process, .* KiB; with the other shuffles .* KiB, but cache_bytes"
    with pytest.raises(ArgumentError, match=message):
        Dataloader(mixed, batch_size=32, cache_bytes=8 << 10, mesh=mesh_of({"data": 8}))


def test_the_parts_of_a_mixture_share_the_memory() -> None:
    """Also where no host uses up a chunk, and where a part of large chunks is not shuffled by blocks at all."""
    small = [ChunkedSource({"x": np.zeros((1024, 8), np.int64)}, 32) for _ in range(3)]
    large = ChunkedSource({"x": np.zeros((1024, 8), np.int64)}, 512)
    parts = [from_source(source).shuffle(0, block="chunks", window=2, lanes=4) for source in small]
    mixed = mix([*parts, from_source(large)], (1, 1, 1, 1))
    needed = 3 * 8 * 32 * 64
    loader = Dataloader(mixed, batch_size=32, cache_bytes=needed, shard_index=0, shard_count=2)
    found = loader.phases[0].pipeline.open_chunks(loader.phases[0].shard(), loader.phases[0].plan.segments[0])
    reader = cache_open_chunks(mixed.reader, found, needed, None, 0, 1)
    held = [cache for cache in walk(reader.source) if isinstance(cache, ChunkCache)]
    assert len(held) == 3
    assert sum(cache._slots * 32 * 64 for cache in held) <= needed
