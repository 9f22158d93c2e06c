"""The cache of open chunks: it never shows in what is read, only in how often."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import ml_dtypes
import numpy as np
import psutil
import pytest
from hypothesis import given, settings, strategies as st

from loadax import Dataloader, from_source
from loadax.protocols import Integers
from loadax.sources.adapt import as_source
from loadax.sources.wrappers.chunk_cache import ChunkCache, with_chunks
from tests.limits import HANG, examples, until
from tests.sources.chunked import ChunkedSource

DTYPES = ("bool", "uint8", "int16", "float32", "float64", "complex64", ml_dtypes.bfloat16, ">i4")
WHOLE = ((0, 3), (0, 4))


def numbered(rows: int, shape: tuple[int, ...] = (3, 4), dtype: Any = "int32") -> Any:
    """Every element another one, as far as the dtype goes."""
    return np.arange(rows * int(np.prod(shape))).reshape(rows, *shape).astype(dtype)


def cached(source: ChunkedSource, slots: int = 100, **options: Any) -> ChunkCache:
    return ChunkCache(as_source(source), source.spec, slots, **options)


@st.composite
def chunkings(draw: st.DrawFn, rows: int) -> Any:
    """Ways to cut rows in chunks: equal ones with a shorter one at the end, or any."""
    if draw(st.booleans()):
        return range(0, rows, draw(st.integers(1, rows + 2)))
    inner = draw(st.sets(st.integers(1, rows - 1), max_size=8)) if rows > 1 else set()
    return np.array(sorted({0, *inner}), draw(st.sampled_from([np.int64, np.int32])))


@st.composite
def boxes_of(draw: st.DrawFn, shape: tuple[int, ...]) -> Any:
    """None, or a column box that may be empty."""
    if draw(st.integers(0, 4)) == 0:
        return None
    return tuple(tuple(sorted((draw(st.integers(0, each)), draw(st.integers(0, each))))) for each in shape)


@settings(max_examples=examples(200), deadline=None)
@given(st.data())
def test_what_is_read_is_what_the_source_has(data: st.DataObject) -> None:
    """For any chunks, slots, dtypes, columns, rows and their repeats, and with columns announced or not."""
    rows = data.draw(st.integers(2, 40))
    tree = {
        name: numbered(rows, tuple(shape), data.draw(st.sampled_from(DTYPES)))
        for name, shape in {
            "a": (),
            "b": (5,),
            "c": data.draw(st.lists(st.integers(0, 4), min_size=2, max_size=2)),
        }.items()
    }
    leaves = [tree[name] for name in "abc"]
    starts = data.draw(chunkings(rows))
    if len(starts) in (0, rows):
        starts = range(0, rows, 2)
    source = ChunkedSource(tree, starts, into=data.draw(st.booleans()))
    shapes = [leaf.shape[1:] for leaf in leaves]
    known = [data.draw(boxes_of(shape)) for shape in shapes] if data.draw(st.booleans()) else None
    cache = cached(
        source,
        data.draw(st.integers(0, 12)),
        times=data.draw(st.sampled_from([0.5, 1.0, 3.0])),
        boxes=known,
        spare=data.draw(st.integers(0, 3)),
        together=data.draw(st.booleans()),
    )
    assert len(cache) == rows
    for _ in range(data.draw(st.integers(1, 6))):
        where = np.array(data.draw(st.lists(st.integers(0, rows - 1), max_size=20)), np.int64)
        if data.draw(st.integers(0, 3)) == 0:
            for name, values in cache.read(where).items():
                assert values.dtype == tree[name].dtype.newbyteorder("=")
                np.testing.assert_array_equal(values, tree[name][where])
            continue
        boxes = [data.draw(boxes_of(shape)) for shape in shapes]
        padded = [
            None if box is None else _surrounded(len(where), box, leaf) for box, leaf in zip(boxes, leaves, strict=True)
        ]
        inner = [
            None if each is None else each[(slice(1, -1), *(slice(1, None) for _ in each.shape[1:]))] for each in padded
        ]
        out = (
            [None if each is None else np.ascontiguousarray(each) for each in inner]
            if data.draw(st.booleans())
            else inner
        )
        cache.read_into(where, boxes, list(out))
        for box, values, around, leaf in zip(boxes, out, padded, leaves, strict=True):
            if box is not None and values is not None and around is not None:
                np.testing.assert_array_equal(values, leaf[(where, *(slice(*each) for each in box))])
                assert (around[[0, -1]] == 1).all()


def _surrounded(rows: int, box: Any, leaf: Any) -> Any:
    """A destination with something around it that must stay 1."""
    return np.ones((rows + 2, *(1 + stop - start for start, stop in box)), leaf.dtype.newbyteorder("="))


@pytest.mark.parametrize("together", [True, False])
def test_spare_chunks_stay_after_all_of_their_rows_were_served(together: bool) -> None:
    cache = cached(ChunkedSource(numbered(40), range(0, 40, 4)), spare=2, together=together)
    fetched = []
    for chunk in (0, 1, 0, 2, 0, 1, 3, 4, 0):
        rows = np.arange(4 * chunk, 4 * chunk + 4)
        np.testing.assert_array_equal(cache.read(rows), numbered(40)[rows])
        fetched.append(cache.rows_fetched // 4)
    # of three, the one that was served longest ago is dropped
    assert fetched == [1, 2, 2, 3, 3, 4, 5, 6, 7]


@pytest.mark.parametrize("starts", [range(0, 100, 8), np.array([0, 1, 9, 40, 41, 90])], ids=["equal", "irregular"])
@pytest.mark.parametrize("into", [True, False])
def test_a_shuffled_epoch_fetches_each_chunk_once(starts: Any, into: bool) -> None:
    values = numbered(100)
    source = ChunkedSource(values, starts, into)
    cache = cached(source)
    for epoch in range(2):
        order = np.random.default_rng(epoch).permutation(100)
        for step in range(0, 100, 10):
            np.testing.assert_array_equal(cache.read(order[step : step + 10]), values[order[step : step + 10]])
        # All rows of all chunks were served, so nothing of them is left for the next epoch.
        assert (source.counts == epoch + 1).all()
        assert cache.rows_fetched == 100 * (epoch + 1)


def test_a_chunk_stays_until_its_rows_were_served_as_often_as_they_are_asked_for() -> None:
    source = ChunkedSource(numbered(8), 4)
    cache = cached(source, times=3.0)
    for _ in range(3):
        cache.read(np.arange(4))
    assert source.counts.tolist() == [1] * 4 + [0] * 4
    cache.read(np.arange(4))
    assert source.counts.tolist() == [2] * 4 + [0] * 4


def test_columns_that_are_served_one_after_the_other_count_together() -> None:
    """A step may read the halves of a row for different devices."""
    values = numbered(8)
    source = ChunkedSource(values, 4)
    cache = cached(source, boxes=[WHOLE])
    for half in ((0, 2), (2, 4)):
        for rows in ([0, 1], [2, 3]):
            out = np.empty((2, 3, 2), np.int32)
            cache.read_into(np.array(rows), [((0, 3), half)], [out])
            np.testing.assert_array_equal(out, values[rows][:, :, slice(*half)])
    assert source.counts.tolist() == [1] * 4 + [0] * 4
    cache.read(np.array([0]))
    assert source.counts.tolist() == [2] * 4 + [0] * 4


@pytest.mark.parametrize("slots", [0, 1, 3])
def test_too_few_slots_cost_reads_and_nothing_else(slots: int) -> None:
    """The chunk that was asked for longest ago gives way.

    A read of more chunks than there is room for goes past the cache.
    """
    values = numbered(64)
    source = ChunkedSource(values, 8)
    cache = cached(source, slots)
    order = np.random.default_rng(0).permutation(64)
    for step in range(0, 64, 16):
        np.testing.assert_array_equal(cache.read(order[step : step + 16]), values[order[step : step + 16]])
    assert source.counts.sum() == cache.rows_fetched >= 64
    assert source.counts.min() == 1


def test_the_chunk_asked_for_longest_ago_gives_way() -> None:
    source = ChunkedSource(numbered(12), 4)
    cache = cached(source, 2)
    for row in (0, 4, 1, 8, 2):  # 8 takes the place of the chunk of 4, since that of 0 was asked for after it
        cache.read(np.array([row]))
    assert source.counts.tolist() == [1] * 12
    cache.read(np.array([5]))
    assert source.counts.tolist() == [1] * 4 + [2] * 4 + [1] * 4


@pytest.mark.parametrize("slots", [100, 8])
def test_eight_threads_read_what_one_reads_and_fetch_each_chunk_once(slots: int) -> None:
    """Also while chunks come and go, here with as many slots as chunks are open."""
    values = numbered(512)
    source = ChunkedSource(values, 16, before=lambda rows: time.sleep(0.001))
    cache = cached(source, slots)
    rng = np.random.default_rng(0)
    # Windows of four chunks whose rows are shuffled together: the next one begins when the one before it is over.
    order = np.concatenate([low + rng.permutation(64) for low in range(0, 512, 64)])
    steps = order.reshape(-1, 8)
    barrier = threading.Barrier(8)

    def read(thread: int) -> list[Any]:
        found = []
        for window in range(8):
            barrier.wait(HANG)
            found.append(cache.read(steps[window * 8 + thread]))
        return found

    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(read, range(8)))
    for thread, found in enumerate(results):
        np.testing.assert_array_equal(np.concatenate(found), values[steps[thread::8].reshape(-1)])
    assert (source.counts == 1).all()
    assert cache.rows_fetched == 512


def test_threads_that_take_each_others_slots_still_read_what_is_right() -> None:
    values = numbered(256)
    source = ChunkedSource(values, 8)
    cache = cached(source, 3)

    def read(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(60):
            rows = rng.integers(0, 256, rng.integers(1, 12))
            np.testing.assert_array_equal(cache.read(rows), values[rows])

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(read, range(8)))


class FailsOnce:
    """Raises at the first read of some rows."""

    def __init__(self, row: int, first: threading.Event | None = None):
        self.row = row
        self.failed = False
        self.reached = threading.Event()
        self.may_fail = first

    def __call__(self, rows: Integers) -> None:
        if self.row in rows and not self.failed:
            self.failed = True
            self.reached.set()
            if self.may_fail is not None:
                assert self.may_fail.wait(HANG)
            raise OSError("the disk stumbled")


@pytest.mark.parametrize("into", [True, False])
def test_an_error_reaches_its_reader_and_a_later_read_succeeds(into: bool) -> None:
    values = numbered(32)
    source = ChunkedSource(values, 8, into, FailsOnce(13))
    cache = cached(source)
    np.testing.assert_array_equal(cache.read(np.array([0, 31])), values[[0, 31]])
    with pytest.raises(OSError, match="the disk stumbled"):
        cache.read(np.array([1, 9]))
    for rows in ([1, 30], [9, 10], list(range(32))):
        np.testing.assert_array_equal(cache.read(np.array(rows)), values[rows])
    assert source.counts[8:16].tolist() == [2] * 8
    assert (source.counts[[*range(8), *range(24, 32)]] == 1).all()


def test_those_that_waited_for_a_read_that_failed_read_by_themselves() -> None:
    values = numbered(32)
    may_fail = threading.Event()
    fails = FailsOnce(13, may_fail)
    source = ChunkedSource(values, 8, before=fails)
    cache = cached(source)
    cache.read(np.array([16]))  # until the first read of a user's object is over, others wait
    with ThreadPoolExecutor(8) as pool:
        failing = pool.submit(cache.read, np.array([8, 0]))
        assert fails.reached.wait(HANG)
        waiting = [pool.submit(cache.read, np.array([8 + number, 24 + number])) for number in range(7)]
        # All of them wait for the chunk that is being read; one of them has read the other one by then.
        until(lambda: not (source.counts[24:] != 1).any())
        assert not any(each.done() for each in waiting)
        may_fail.set()
        with pytest.raises(OSError, match="the disk stumbled"):
            failing.result(HANG)
        for number, each in enumerate(waiting):
            np.testing.assert_array_equal(each.result(HANG), values[[8 + number, 24 + number]])
    np.testing.assert_array_equal(cache.read(np.arange(32)), values)


def test_a_chunk_that_can_never_be_read_takes_no_slot() -> None:
    def broken(rows: Integers) -> None:
        if (rows < 8).any():
            raise OSError("gone")

    values = numbered(32)
    cache = cached(ChunkedSource(values, 8, before=broken), 2)
    for _ in range(5):
        with pytest.raises(OSError, match="gone"):
            cache.read(np.array([0, 20]))
    source = ChunkedSource(values, 8)
    cache._open._source = as_source(source)
    np.testing.assert_array_equal(cache.read(np.array([17, 25])), values[[17, 25]])
    np.testing.assert_array_equal(cache.read(np.array([18, 26])), values[[18, 26]])
    assert source.counts.sum() == 16  # two chunks, each once: both slots are there


def test_columns_asked_for_later_are_fetched_and_only_those_that_are_wanted() -> None:
    tree = {"a": numbered(16), "b": numbered(16, (6,))}
    source = ChunkedSource(tree, 4)
    cache = cached(source, boxes=[((0, 3), (1, 3)), None])
    out = np.empty((1, 3, 2), np.int32)
    cache.read_into(np.array([5]), [((0, 3), (1, 3)), None], [out, None])
    np.testing.assert_array_equal(out, tree["a"][[5], :, 1:3])
    assert source.elements[0][4:8, :, 1:3].sum() == source.elements[0].sum() == 4 * 3 * 2
    assert not source.elements[1].any()
    narrow = np.empty((1, 1, 1), np.int32)
    cache.read_into(np.array([6]), [((2, 3), (2, 3)), None], [narrow, None])
    assert narrow.item() == tree["a"][6, 2, 2]
    assert source.reads == 1
    # Another column, and another leaf: the smallest box that holds all that was ever asked for.
    outs = [np.empty((1, 3, 1), np.int32), np.empty((1, 2), np.int32)]
    cache.read_into(np.array([6]), [((0, 3), (3, 4)), ((4, 6),)], list(outs))
    np.testing.assert_array_equal(outs[0], tree["a"][[6], :, 3:])
    np.testing.assert_array_equal(outs[1], tree["b"][[6], 4:])
    assert source.reads == 2
    assert (source.elements[0][4:8, :, 0] == 0).all()
    assert (source.elements[0][4:8, :, 3] == 1).all()
    assert (source.elements[1][4:8, 4:] == 1).all()
    assert not source.elements[1][:, :4].any()
    cache.read_into(np.array([5]), [((0, 3), (1, 3)), None], [out, None])
    np.testing.assert_array_equal(out, tree["a"][[5], :, 1:3])
    assert source.reads == 2
    assert cache.rows_fetched == 8


def test_chunks_that_are_read_together_are_read_in_one_call() -> None:
    values = numbered(40)
    source = ChunkedSource(values, np.array([0, 3, 10, 30]))
    cache = cached(source)
    rows = np.array([35, 0, 12, 4, 4])
    np.testing.assert_array_equal(cache.read(rows), values[rows])
    assert source.reads == 1


class Wide:
    """Rows of 256 KiB, made as they are read."""

    spec = np.zeros(1 << 18, np.uint8)
    chunks = range(0, 400, 4)

    def __len__(self) -> int:
        return 400

    def read(self, rows: Integers) -> Any:
        return np.broadcast_to(rows.astype(np.uint8)[:, None], (len(rows), 1 << 18))


def test_memory_is_that_of_the_slots_and_untouched_slots_cost_nothing() -> None:
    process = psutil.Process()
    cache = ChunkCache(as_source(Wide()), Wide.spec, 8)
    before = process.memory_info().rss
    order = np.random.default_rng(0).permutation(400)  # 100 MiB of rows, and 8 MiB of slots
    for row in order.tolist():
        assert cache.read(np.array([row]))[0, -1] == row % 256
    assert process.memory_info().rss - before < 32 << 20
    roomy = ChunkCache(as_source(Wide()), Wide.spec, 100)
    before = process.memory_info().rss
    roomy.read(np.arange(4))
    assert process.memory_info().rss - before < 16 << 20


def test_objects_are_read_past_the_cache_which_copies_bytes() -> None:
    texts = np.array([f"row {row}" for row in range(40)], object)
    source = as_source(ChunkedSource({"x": texts}, 8))
    assert with_chunks(source, 2, 1.0) is source
    data = from_source(ChunkedSource({"x": texts}, 8)).shuffle(0, block=8, lanes=2).map(lambda row: int(row["x"][4:]))
    with Dataloader(data, 8, num_workers=0, shard_index=0, shard_count=1).host_batches() as batches:
        assert sorted(np.concatenate(list(batches)).tolist()) == list(range(40))
