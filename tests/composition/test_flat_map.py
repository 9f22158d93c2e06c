"""`flat_map`: several examples of each row, each at its own position."""

from typing import Any

import numpy as np
import pytest

import loadax
from loadax import Dataloader, Dataset
from loadax.core.formatting import name_of
from loadax.errors import ArgumentError, LeafError, SourceError
from loadax.testing import check_source
from tests.faulty import FaultySource
from tests.sources.chunked import ChunkedSource

ROWS = 20
VALUES = np.arange(ROWS * 4).reshape(ROWS, 4)


def halves(row: Any) -> Any:
    return [{"part": row["x"][:2]}, {"part": row["x"][2:]}, {"part": row["x"][1:3]}]


EXPECTED = [part["part"].tolist() for row in VALUES for part in halves({"x": row})]


def data() -> Dataset:
    return loadax.from_arrays({"x": VALUES})


def values(dataset: Dataset, epoch: int = 0) -> list[Any]:
    read: list[Any] = dataset.read(range(len(dataset)), epoch)["part"].tolist()
    return read


def test_every_row_becomes_several_examples() -> None:
    flat = data().flat_map(halves, 3)
    assert len(flat) == 3 * ROWS
    assert values(flat) == EXPECTED
    assert [example["part"].tolist() for example in flat] == EXPECTED
    assert flat.read([7, 0, 7, 8])["part"].tolist() == [EXPECTED[at] for at in (7, 0, 7, 8)]
    assert flat.spec["part"].shape == (2,)
    assert flat.read([])["part"].shape == (0, 2)
    check_source(flat.source, loader=False, pickled=False, rows=8)


def test_examples_share_no_memory() -> None:
    def add(example: Any) -> Any:
        example["part"] += 1000
        return example

    flat = data().flat_map(halves, 3).map(add)
    assert flat.read([1, 2, 1, 1])["part"].tolist() == (np.array([EXPECTED[at] for at in (1, 2, 1, 1)]) + 1000).tolist()
    assert (data().read(range(ROWS))["x"] == VALUES).all()


def test_examples_of_several_shapes_are_alike_where_they_are_stacked() -> None:
    ragged = loadax.from_source([np.arange(3), np.arange(2), np.arange(2)]).flat_map(lambda row: [row, row[:1]], 2)
    assert ragged[2::2].read([0, 1]).shape == (2, 2)
    assert ragged.sample([0, 0, 1, 0, 1, 0]).read(range(4)).shape == (4, 2)
    assert ragged[1::2].read(range(3)).tolist() == [[0]] * 3
    with pytest.raises(LeafError, match="rows are ragged: pad them with"):
        ragged.read([0, 2])
    assert ragged.pad(3).read([0, 2])["length"].tolist() == [3, 2]


def test_shuffles_before_it_keep_a_rows_examples_together() -> None:
    before, behind = data().shuffle(3).flat_map(halves, 3), data().flat_map(halves, 3).shuffle(3)
    for epoch in (0, 2):
        order = data().shuffle(3).order.visits(np.full(ROWS, epoch), np.arange(ROWS)).rows
        assert values(before, epoch) == [EXPECTED[3 * row + part] for row in order.tolist() for part in range(3)]
        assert sorted(values(behind, epoch)) == sorted(EXPECTED)
    assert values(behind) != values(before)


def test_a_row_is_read_and_mapped_once_for_consecutive_examples() -> None:
    calls: list[int] = []

    def counted(row: Any) -> Any:
        calls.append(int(row["x"][0]) // 4)
        return halves(row)

    source = FaultySource({"x": VALUES}, {})
    flat = loadax.from_source(source).flat_map(counted, 3)
    _ = flat.spec
    calls.clear()
    flat.read(range(6, 18))
    assert calls == [2, 3, 4, 5]
    Dataloader(flat, 8, num_workers=0, shard_index=1, shard_count=2).host_batch(3)  # positions 28 to 31
    assert calls[4:] == [9, 10]


def test_random_examples_are_a_rows_own() -> None:
    def crops(row: Any, index: int, rng: np.random.Generator) -> Any:
        return [{"part": np.float64(index) + rng.random()} for _ in range(3)]

    flat = data().flat_map(crops, 3, rng=True, seed=5, with_index=True)
    first = np.array(values(flat))
    assert (first == values(flat)).all()
    assert len(set(first.tolist()) | set(values(flat, 1))) == 6 * ROWS
    assert first.astype(int).tolist() == [row for row in range(ROWS) for _ in range(3)]
    assert sorted(values(flat.shuffle(0), 0)) == sorted(first.tolist())
    noisy = flat.map(lambda example, rng: {"part": rng.random()}, rng=True, seed=5)
    assert len(set(values(noisy)) | set((first % 1).tolist())) == 6 * ROWS


def test_a_loader_resumes_finds_and_traces_examples() -> None:
    loader = Dataloader(data().shuffle(1).flat_map(halves, 2 + 1), 8, num_workers=0)
    for step, batch in enumerate(loader):
        assert np.asarray(batch["part"]).tolist() == [EXPECTED[row] for row in loader.rows(step)]
    row = int(loader.rows(4)[3])
    assert loader.find(row) == [(4, 3)]
    with loader.iterate(2) as batches:
        state = batches.get_state()
    larger = Dataloader(data().shuffle(1).flat_map(halves, 3), 16, num_workers=0)
    with larger.iterate(state) as batches:
        assert np.asarray(next(batches)["part"]).tolist() == [EXPECTED[row] for row in larger.rows(1)]


def test_rows_are_chosen_by_their_new_numbers() -> None:
    flat = data().flat_map(halves, 3)
    first, rest = flat.split([20, 40], allow_shared_rows=True)
    assert sorted(values(first) + values(rest)) == sorted(EXPECTED)
    assert values(flat.exclude([0, 2])) == [EXPECTED[1], *EXPECTED[3:]]
    assert values(flat.filter(lambda example: example["part"][0] % 4 == 0)) == EXPECTED[::3]
    assert values(loadax.concat([flat, flat[3:]])) == EXPECTED + EXPECTED[3:]
    shuffled = data().shuffle(0).flat_map(halves, 3)
    with pytest.raises(ArgumentError, match=r"split\(\) after flat_map\(.*\) of a shuffle .*; call it before"):
        shuffled.split(0.5)
    assert len(data().split([5, 15])[0].shuffle(0).flat_map(halves, 3)) == 15  # the advice


def test_chunks_are_those_of_the_rows() -> None:
    chunked = loadax.from_source(ChunkedSource({"x": VALUES}, 4)).flat_map(halves, 3)
    assert chunked.source.chunks == range(0, 60, 12)
    assert sorted(values(chunked.shuffle(0, block="chunks"))) == sorted(EXPECTED)
    uneven = loadax.concat([ChunkedSource({"x": VALUES}, 4), ChunkedSource({"x": VALUES}, 5)]).flat_map(halves, 3)
    assert np.asarray(uneven.source.chunks).tolist() == [0, 12, 24, 36, 48, 60, 75, 90, 105]
    assert data().flat_map(halves, 3).source.chunks is None


def test_it_describes_itself() -> None:
    flat = data().flat_map(halves, 3)
    assert repr(flat).count(".flat_map(halves (") == repr(flat).count(".flat_map(") == 1
    assert flat.order_facts != data().flat_map(lambda row: halves(row) * 2, 6).order_facts
    assert flat.order.text() == ["20 rows", f"flat_map({name_of(halves)}, fan_out=3)"]


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (
            lambda ds: ds.flat_map(halves, 0),
            ArgumentError,
            r"fan_out=0: pass the number of examples that fn makes of a",
        ),
        (lambda ds: ds.flat_map(halves, "3"), ArgumentError, r"fan_out='3': pass the number of examples"),
        (lambda ds: ds.flat_map(halves, 2**60), ArgumentError, r"fan_out=\d+: 20 rows would become more than 2\*\*62"),
        (lambda ds: ds.flat_map(3, 3), ArgumentError, r"fn=3 can't be called"),
        (
            lambda ds: ds.flat_map(halves, 4).read([0]),
            LeafError,
            r"flat_map halves \(.*\) returned 3 examples for row 0, and fan_out=4; pass counts=, the number of",
        ),
        (
            lambda ds: ds.flat_map(lambda row: row, 3)[5],
            LeafError,
            r"returned a dict for row \d; return a list of 3 exam",
        ),
        (lambda ds: ds.flat_map(lambda row: iter([row]), 1)[0], LeafError, r"returned a list_iterator for row 0"),
        (
            lambda ds: ds[:0].flat_map(halves, 3).spec,
            SourceError,
            r"no rows, and no spec can be inferred; leave it out",
        ),
    ],
)
def test_what_cant_be_flat_mapped(call: Any, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        call(data())


def test_the_advice_of_lists_of_many_lengths() -> None:
    def words(row: Any) -> Any:
        return [{"word": int(entry)} for entry in row["x"] if entry % 3]

    flat = data().flat_map(words, counts=lambda row: len(words(row)))
    assert flat.read(range(len(flat)))["word"].tolist() == [entry for entry in VALUES.ravel().tolist() if entry % 3]
