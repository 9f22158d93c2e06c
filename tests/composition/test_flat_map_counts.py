"""`flat_map(counts=)`: a number of examples for each row, at positions that follow from the counts."""

import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import loadax
from loadax import Dataloader, Dataset
from loadax.errors import ArgumentError, LeafError, LeafTypeError, StreamError
from loadax.testing import check_source
from tests.faulty import FaultySource
from tests.limits import examples
from tests.sources.chunked import ChunkedSource

ROWS = 40
VALUES = np.arange(ROWS) * 10
COUNTS = np.random.default_rng(2).integers(0, 4, ROWS)


def parts(row: Any) -> list[dict[str, Any]]:
    return [{"part": row["x"] + number} for number in range(COUNTS[int(row["x"]) // 10])]


def count_of(row: Any) -> int:
    return len(parts(row))


EXPECTED = [int(value) + number for value, count in zip(VALUES, COUNTS, strict=True) for number in range(count)]


def data() -> Dataset:
    return loadax.from_arrays({"x": VALUES})


def values(dataset: Dataset, epoch: int = 0) -> list[Any]:
    read: list[Any] = dataset.read(range(len(dataset)), epoch)["part"].tolist()
    return read


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(st.integers(0, 4), min_size=1, max_size=20), st.data())
def test_examples_are_those_of_nested_loops(counts: list[int], choose: st.DataObject) -> None:
    wanted = [(row, number) for row, count in enumerate(counts) for number in range(count)]
    flat = loadax.from_arrays(np.arange(len(counts))).flat_map(
        lambda row: [np.array([row, number]) for number in range(counts[row])], counts=np.array(counts)
    )
    assert len(flat) == len(wanted)
    assert [tuple(example.tolist()) for example in flat] == wanted
    if wanted:
        positions = choose.draw(st.lists(st.integers(0, len(wanted) - 1), min_size=1, max_size=9))
        assert [tuple(row) for row in flat.read(positions).tolist()] == [wanted[position] for position in positions]


def test_counts_by_function_and_by_array_are_the_same() -> None:
    by_array, by_function = data().flat_map(parts, counts=COUNTS), data().flat_map(parts, counts=count_of)
    assert values(by_array) == values(by_function) == EXPECTED
    assert by_array.order_facts == by_function.order_facts
    others = [by_array, data().flat_map(parts, counts=COUNTS[::-1]), data()[::-1].flat_map(parts, counts=COUNTS)]
    assert len({str(flat.source.describe()) for flat in (*others, data().flat_map(parts, 2))}) == 4
    assert repr(by_array).count(".flat_map(parts (") == 1
    check_source(by_array.source, loader=False, pickled=False, rows=8)
    assert values(pickle.loads(pickle.dumps(data().flat_map(list_of_two, counts=np.full(ROWS, 2))))) == [0, 1] * ROWS


def list_of_two(_: Any) -> Any:
    return [{"part": 0}, {"part": 1}]


def test_counts_belong_to_the_positions_before_it() -> None:
    chosen = data()[::-2].repeat(2)
    flat = chosen.flat_map(parts, counts=count_of)
    wanted = [value for row in range(ROWS - 1, -1, -2) for value in EXPECTED if value // 10 == row]
    assert values(flat) == wanted * 2
    noisy = data().map(lambda row, rng: {**row, "noise": rng.random()}, rng=True)
    alone = noisy.repeat(2).read(range(2 * ROWS), 1)["noise"]
    flat = noisy.repeat(2).flat_map(lambda row: [{"part": row["noise"]}] * 2, counts=np.full(2 * ROWS, 2))
    assert values(flat, 1) == np.repeat(alone, 2).tolist()
    with pytest.raises(ArgumentError, match=r"flat_map\(\) reads rows once; call it before random maps"):
        noisy.flat_map(parts, counts=count_of)


def test_a_row_is_read_and_mapped_once_also_over_two_reads() -> None:
    calls: list[int] = []

    def counted(row: Any) -> Any:
        calls.append(int(row["x"]) // 10)
        return parts(row)

    source = FaultySource({"x": VALUES}, {})
    flat = loadax.from_source(source).flat_map(counted, counts=COUNTS)
    _ = flat.spec
    calls.clear()
    for batch in Dataloader(flat, 8, num_workers=0, remainder="drop"):
        _ = batch
    used = [row for row in range(ROWS) if COUNTS[row]]
    assert calls == used[: len(calls)]
    assert len(calls) > len(used) - 8


def test_examples_that_are_kept_for_the_next_read_are_not_shared() -> None:
    def add(example: Any) -> Any:
        example["part"] += 1000
        return example

    flat = (
        data()
        .map(lambda row: {"x": row["x"], "y": np.zeros(3)})
        .flat_map(lambda row: [{"part": row["y"]}] * 3, counts=np.full(ROWS, 3))
    )
    for position in (0, 1, 0, 2, 3):
        assert flat.map(add).read([position, position])["part"].tolist() == [[1000.0] * 3] * 2


def test_objects_that_maps_change_are_made_again() -> None:
    def add(example: Any) -> Any:
        example["box"].append(1)
        return len(example["box"])

    class Box(list[int]):
        """No node of a tree."""

    flat = data().flat_map(lambda row: [{"box": Box()}, {"box": Box()}], counts=np.full(ROWS, 2)).map(add)
    assert [int(flat[position]) for position in (0, 0, 2, 3, 2)] == [1, 1, 1, 1, 1]


def test_a_loader_resumes_finds_traces_and_explains() -> None:
    flat = data().flat_map(parts, counts=count_of).shuffle(1)
    loader = Dataloader(flat, 8, num_workers=2)
    for step, batch in enumerate(loader.iterate()):
        assert np.asarray(batch["part"]).tolist() == [EXPECTED[row] for row in loader.rows(step)]
    row = int(loader.rows(2)[3])
    assert loader.find(row) == [(2, 3)]
    with loader.iterate(2) as batches:
        state = batches.get_state()
    with Dataloader(flat, 16, num_workers=0).iterate(state) as batches:
        assert np.asarray(next(batches)["part"])[:8].tolist() == [EXPECTED[row] for row in loader.rows(2)]
    assert ".flat_map(parts" in str(loader.explain())


def test_verbs_after_it_are_about_examples(tmp_path: Path) -> None:
    flat = data().flat_map(parts, counts=COUNTS)
    first, rest = flat.split(0.5, allow_shared_rows=True)
    assert sorted(values(first) + values(rest)) == EXPECTED
    assert values(flat.exclude([0, 2])) == [EXPECTED[1], *EXPECTED[3:]]
    assert values(flat.filter(lambda example: example["part"] % 10 == 0)) == [
        each for each in EXPECTED if each % 10 == 0
    ]
    assert values(loadax.concat([flat, flat[3:]])) == EXPECTED + EXPECTED[3:]
    assert sorted(values(flat.shuffle(5))) == EXPECTED
    assert values(flat.cache(tmp_path / "c", progress=False)) == EXPECTED
    groups = data().group(30, COUNTS + 1)
    ungrouped = groups.flat_map(lambda group: [{"part": row["x"]} for row in group], counts=len)
    assert sorted(values(ungrouped)) == VALUES.tolist()


def test_files_and_chunks_are_those_of_the_rows(tmp_path: Path) -> None:
    chunked = loadax.from_source(ChunkedSource({"x": VALUES}, 4))
    flat = chunked.flat_map(parts, counts=COUNTS)
    begins = np.cumsum([0, *COUNTS])[0:ROWS:4]
    assert np.asarray(flat.source.chunks).tolist() == sorted({*begins.tolist()})
    assert sorted(values(flat.shuffle(0, block="chunks"))) == EXPECTED
    cut = chunked[:10].flat_map(parts, counts=COUNTS[:10])
    assert sorted(values(cut.shuffle(0, block="chunks"))) == EXPECTED[: COUNTS[:10].sum()]
    assert chunked[::-1].flat_map(parts, counts=count_of).source.chunks is None
    assert data().flat_map(parts, counts=COUNTS).source.chunks is None
    np.save(tmp_path / "x.npy", VALUES)
    loader = Dataloader(loadax.from_npy(tmp_path / "x.npy").flat_map(lambda row: [row] * 2, counts=np.full(ROWS, 2)), 8)
    assert loader.trace(0)[3].where == tuple(loadax.from_npy(tmp_path / "x.npy").source.locate(1))


def test_counts_are_kept_in_an_index_and_computed_by_executors(tmp_path: Path) -> None:
    calls: list[int] = []

    def counted(row: Any) -> int:
        calls.append(1)
        return count_of(row)

    with ThreadPoolExecutor(2) as pool:
        flat = data().flat_map(parts, counts=counted, index=tmp_path, key="v1", executor=pool)
    assert (values(flat), len(list(tmp_path.glob("flat_map.json")))) == (EXPECTED, 1)
    calls.clear()
    assert values(data().flat_map(parts, counts=counted, index=tmp_path, key="v1")) == EXPECTED
    assert not calls
    assert values(data()[1:].flat_map(parts, counts=counted, index=tmp_path, key="v1")) == EXPECTED[COUNTS[0] :]
    assert len(calls) == ROWS - 1


def test_rows_without_examples_may_be_all() -> None:
    assert len(data().flat_map(lambda row: [], counts=np.zeros(ROWS, int))) == 0


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda ds: ds.flat_map(parts), ArgumentError, r"fan_out=None and counts=None: pass one of them: fan_out, how"),
        (
            lambda ds: ds.flat_map(parts, 2, counts=count_of),
            ArgumentError,
            r"fan_out=2 and counts=.*: pass one of them",
        ),
        (
            lambda ds: ds.flat_map(parts, counts=COUNTS * 1.0),
            ArgumentError,
            r"counts=.* is float64\[40\]: pass int64\[40",
        ),
        (
            lambda ds: ds.flat_map(parts, counts=COUNTS[1:]),
            ArgumentError,
            r"is int64\[39\]: pass int64\[40\] of values",
        ),
        (
            lambda ds: ds.flat_map(parts, counts=COUNTS, key="a"),
            ArgumentError,
            r"key='a' is for a func",
        ),
        (lambda ds: ds.flat_map(parts, 2, index="i"), ArgumentError, r"index='i' .* function, which fan_out= is not"),
        (lambda ds: ds.flat_map(parts, counts=count_of, key="a"), ArgumentError, r"key='a' .*index="),
        (
            lambda ds: ds.flat_map(parts, counts=lambda row: None),
            LeafTypeError,
            r"returned None for row 0; return an int",
        ),
        (
            lambda ds: ds.flat_map(parts, counts=COUNTS + 1)[0],
            LeafError,
            r"flat_map parts .* for row 0, and counts=\d; p",
        ),
        (
            lambda ds: ds.select([7, 7]).flat_map(parts, counts=[COUNTS[7], 9])[-1],
            LeafError,
            r"for row 7, and counts=9",
        ),
        (lambda ds: ds[:0].flat_map(parts, counts=[]), ArgumentError, r"flat_map\(\) of a dataset without rows; check"),
        (
            lambda ds: ds.to_stream(2).flat_map(parts, 2),
            StreamError,
            r"flat_map\(\): .*; make several examples of a row",
        ),
    ],
)
def test_what_cant_be_counted(call: Any, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        call(data())


def test_advice_about_shuffles_works() -> None:
    for counts in (COUNTS, count_of):
        with pytest.raises(ArgumentError, match=r"counts= is by position, .*; call flat_map\(\) first, then shuffle"):
            data().shuffle(0).flat_map(parts, counts=counts)
        assert sorted(values(data().flat_map(parts, counts=counts).shuffle(0))) == EXPECTED
