"""`pad`: ragged leaves become leaves of one length, with their lengths beside."""

import pickle
from collections import OrderedDict, UserList
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec

import loadax
from loadax import Dataloader, Dataset
from loadax.core.tree import flatten
from loadax.errors import ArgumentError, LeafError
from loadax.sharding import data_parallel
from tests.sources.token_corpora import write_pair
from tests.worker_types import WORKER_TYPES

COUNT = 24
LENGTHS = np.random.default_rng(2).integers(0, 9, COUNT).tolist()
ROWS = [np.arange(length, dtype=np.int32) + 100 * row for row, length in enumerate(LENGTHS)]


def expected(
    most: int, value: Any = 0, trailing: tuple[int, ...] = (), dtype: Any = np.int32, side: str = "right"
) -> Any:
    out = np.full((COUNT, most, *trailing), value, dtype)
    for row, entries in enumerate(ROWS):
        if side == "left":
            for index, entry in enumerate(entries[::-1][:most]):
                out[row, most - 1 - index] = entry
        else:
            for index, entry in enumerate(entries[:most]):
                out[row, index] = entry
    return out


def dicts() -> Dataset:
    return loadax.from_source(
        [{"tokens": row, "boxes": np.stack([row, row], 1).astype(np.float32), "id": at} for at, row in enumerate(ROWS)]
    )


def records(path: Path) -> Dataset:
    from array_record.python.array_record_module import ArrayRecordWriter

    writer = ArrayRecordWriter(str(path / "x.array_record"), "group_size:1")
    for row in ROWS:
        writer.write(row.tobytes())
    writer.close()
    return loadax.from_array_record(path / "x.array_record", dtype="int32")


BARE = {
    "arrays": lambda _: loadax.from_source(ROWS),
    "lists": lambda _: (
        loadax.from_source(list(range(COUNT)))
        .map(lambda row: ROWS[row].tolist(), spec=ROWS[0])
        .map(lambda row: np.array(row, np.int32))
    ),
    "documents": lambda path: loadax.from_documents(write_pair(path / "x.bin", [[row] for row in ROWS])),
    "records": records,
}


@pytest.mark.parametrize("kind", BARE)
@pytest.mark.parametrize(("most", "value"), [(8, 0), (8, -7), (3, 1), (40, 0)])
def test_bare_arrays_become_data_and_length(kind: str, most: int, value: int, tmp_path: Path) -> None:
    data = BARE[kind](tmp_path).pad(most, value=value, truncate=True)
    batch = data.read(range(COUNT))
    np.testing.assert_array_equal(batch["data"], expected(most, value))
    assert batch["data"].dtype == data.spec["data"].dtype == np.int32
    assert batch["length"].tolist() == [min(length, most) for length in LENGTHS]
    assert batch["length"].dtype == data.spec["length"].dtype == np.int32
    for position in (0, 5, -1):
        assert data[position]["data"].tolist() == expected(most, value)[position].tolist()
    order = [3, 3, 0, 17]
    assert data.read(order)["length"].tolist() == batch["length"][order].tolist()
    assert data.read([])["data"].shape == (0, most)


@pytest.mark.parametrize("kind", BARE)
@pytest.mark.parametrize("most", [3, 8, 40])
def test_left_padding_and_bare_arrays_without_lengths(kind: str, most: int, tmp_path: Path) -> None:
    data = BARE[kind](tmp_path)
    left = data.pad(most, value=7, truncate=True, side="left")
    assert left.read(range(COUNT))["data"].tolist() == expected(most, 7, side="left").tolist()
    assert left.read(range(COUNT))["length"].tolist() == [min(length, most) for length in LENGTHS]
    for side in ("left", "right"):
        bare = data.pad(most, value=7, truncate=True, side=side, add_lengths=False)
        assert bare.read(range(COUNT)).tolist() == expected(most, 7, side=side).tolist()
        assert bare[5].tolist() == bare.map(lambda row: row)[5].tolist() == expected(most, 7, side=side)[5].tolist()
        mesh = Mesh(np.array(jax.devices()[:2]).reshape(1, 2), ("data", "model"))
        if most % 2 == 0:  # each device has some columns
            batch = Dataloader(bare, COUNT, mesh=mesh, partition=PartitionSpec("data", "model"))[0]
            assert batch.tolist() == expected(most, 7, side=side).tolist()
    bare = data.pad(most, value=7, truncate=True, add_lengths=False)
    made = [left, data.pad(most, value=7, truncate=True), left.map(lambda row: row["data"]), bare]
    assert len({str(loadax.concat([each, each]).order_facts) for each in made}) == len(made)


def test_left_padding_of_leaves_of_dicts() -> None:
    data = dicts().pad({"tokens": 4, "boxes": 8}, {"tokens": -1}, truncate=True, side="left", add_lengths=False)
    batch = data.read(range(COUNT))
    assert sorted(batch) == ["boxes", "id", "tokens"]
    assert batch["tokens"].tolist() == expected(4, -1, side="left").tolist()
    assert batch["boxes"].tolist() == expected(8, 0, (2,), np.float32, "left").tolist()
    assert repr(data).endswith(", value={'tokens': -1}, truncate=True, side='left', add_lengths=False))")
    assert dicts().pad({"tokens": 4}).maps[0].describe() == ["pad", {"tokens": 4}, 0, False]  # as in old states
    for arguments, match in (
        ({"side": "top"}, "side='top': pass 'left' or 'right'"),
        ({"add_lengths": 1}, "add_lengths=1: pass True or False"),
    ):
        with pytest.raises(ArgumentError, match=match):
            dicts().pad({"tokens": 4}, **arguments)
    taken = dicts().map(lambda row: {**row, "tokens_length": 0})
    with pytest.raises(LeafError, match=r"leaf 'tokens_length' already.*pass add_lengths=False to add none"):
        taken.pad({"tokens": 8})[0]
    assert taken.pad({"tokens": 8}, add_lengths=False).keep("tokens_length").read([0])["tokens_length"].tolist() == [0]


def test_leaves_of_dicts() -> None:
    data = dicts().pad({"tokens": 8, "boxes": 5}, value={"boxes": -0.5}, truncate=True)
    batch = data.shuffle(0).map_batch(lambda batch: batch).read(range(COUNT))
    order = batch["id"]
    assert sorted(batch) == ["boxes", "boxes_length", "id", "tokens", "tokens_length"]
    np.testing.assert_array_equal(batch["tokens"], expected(8)[order])
    np.testing.assert_array_equal(batch["boxes"], expected(5, -0.5, (2,), np.float32)[order])
    assert batch["tokens_length"].tolist() == [LENGTHS[row] for row in order]
    assert batch["boxes_length"].tolist() == [min(LENGTHS[row], 5) for row in order]


def test_records_are_padded_as_they_are_read(tmp_path: Path) -> None:
    plain = records(tmp_path)
    assert not plain.pad(8).maps
    assert plain.shuffle(1).pad(8).order_facts == plain.pad(8).shuffle(1).order_facts
    assert plain.map(lambda row: row).pad(8).read([1])["data"].tolist() == plain.pad(8).read([1])["data"].tolist()
    with pytest.raises(ArgumentError, match=r"value=0\.5 does not fit leaf 'data', which is int32; pass another"):
        plain.pad(8, value=0.5)
    with pytest.raises(
        LeafError, match=r"record \d+\) has 8 entries, more than 3, the length of padded rows; pass a la"
    ):
        plain.pad(3).read(range(COUNT))


def test_it_describes_itself_and_is_pickled() -> None:
    data = dicts().pad({"tokens": 8}, value=1, truncate=True)
    assert repr(data).endswith(".pad({'tokens': 8}, value=1, truncate=True))")
    again = pickle.loads(pickle.dumps(data.reader))
    assert again.describe() == data.reader.describe() == [["pad", {"tokens": 8}, 1, True]]
    others = [dicts().pad({"tokens": 8}), dicts().pad({"tokens": 9}, 1, True), dicts().pad({"tokens": 8}, 2, True)]
    assert len({str(each.reader.describe()) for each in (data, *others)}) == 4


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda ds: ds.pad({}), r"lengths=\{\}: pass a length for each leaf by name, such as \{'tokens': 512\}"),
        (lambda ds: ds.pad({3: 4}), r"lengths=\{3: 4\}: pass a length for each leaf"),
        (lambda ds: ds.pad("tokens"), r"lengths='tokens': pass a length for each leaf by name"),
        (lambda ds: ds.pad({"tokens": 8}, value="a"), r"value='a': pass a number"),
        (lambda ds: ds.pad({"tokens": 8}, value={"tokens": None}), r"value\['tokens'\]=None: pass a number"),
        (lambda ds: ds.pad({"tokens": 8}, value={"boxes": 1}), r"value has the key 'boxes', which is not padded"),
        (lambda ds: ds.pad({"tokens": 8}, value=0.5).spec, r"value=0\.5 does not fit leaf 'tokens', which is int32"),
        (lambda ds: ds.pad({"tokens": 8}, value=2**31).spec, r"value=2147483648 does not fit leaf 'tokens'"),
        (lambda ds: ds.pad({"tokens": 8}, value=2**70).spec, r"value=\d+ does not fit leaf 'tokens'"),
    ],
)
def test_arguments_that_cant_be_used(call: Any, match: str) -> None:
    with pytest.raises(ArgumentError, match=match):
        call(dicts())


@pytest.mark.parametrize(
    ("rows", "lengths", "match"),
    [
        ([{"x": [1, 2]}, {"x": [1] * 9}], {"x": 8}, r"row 1: leaf 'x' has 9 entries, more than 8, its padded length"),
        ([{"x": [1]}], {"y": 8}, r"pad\(\), row 0: there is no leaf 'y'; the names of leaves are \['x'\]"),
        ([{"x": [1], "x_length": 1}], {"x": 8}, r"row 0 has a leaf 'x_length' already, where pad\(\) adds"),
        (
            [{"x": [1]}, {"z": [1]}],
            {"x": 8},
            r"row 1 has the leaves \['z'\], and the first row had \['x'\]; return the",
        ),
        ([{"x": 3}], {"x": 8}, r"row 0: leaf 'x' is int64\[\], but pad\(\) pads the first dimension of numeric arrays"),
        ([{"x": [1]}, {"x": "abc"}], {"x": 8}, r"row 1: leaf 'x' is <U3\[\], but pad\(\) pads"),
        ([{"x": [1]}, {"x": [[1], [2, 3]]}], {"x": 8}, r"row 1: leaf 'x' is object\[\], but pad\(\) pads"),
        (
            [{"x": [1]}, {"x": [1.5]}],
            {"x": 8},
            r"row 1: leaf 'x' has entries of float64\[\], in other rows entries of int64\[\]; cast",
        ),
        (
            [{"x": [1]}, {"x": [[1]]}],
            {"x": 8},
            r"leaf 'x' has entries of int64\[1\], in other rows",
        ),
        ([{"x": [1]}], 8, r"row 0 is a dict of \['x'\]; pass the lengths of its leaves by name: pad\(\{'x': 8\}\)"),
        (
            [([1, 2], 0, "a")],
            8,
            r"row 0: leaf 'data' is object\[\], .*; return a dict in a map, and pad its leaves by name",
        ),
        ([[1, 2]], {"x": 8}, r"row 0 is a list; pad\(\) by name needs dicts: pass one int for bare arrays"),
        ([([1], 0)], {"x": 8}, r"row 0 is a tuple; pad\(\) by name needs dicts: return a dict in a map before pad\(\)"),
    ],
)
def test_rows_that_cant_be_padded(rows: Any, lengths: Any, match: str) -> None:
    arrays = loadax.from_source(list(range(len(rows)))).map(lambda row: rows[row])
    with pytest.raises(LeafError, match=match):
        arrays.pad(lengths).read(range(len(rows)))


def test_a_tuple_padded_as_the_error_advises() -> None:
    data = loadax.from_source([([1, 2], 0, "a"), ([1], 1, "b")])
    named = data.map(lambda row: {"tokens": row[0], "label": row[1]}).pad({"tokens": 512})
    assert named[1]["tokens"].shape == (512,)


def test_the_advice_followed() -> None:
    longer = loadax.from_source([np.arange(2), np.arange(9)])
    assert longer.pad(8, truncate=True).read([1])["length"].tolist() == [8]
    assert longer.pad(9).read([1])["length"].tolist() == [9]
    assert loadax.from_source([np.arange(2), np.empty(0)]).pad(2).read([0, 1])["data"].tolist() == [[0, 1], [0, 0]]


def two_leaves() -> Dataset:
    return loadax.from_source([{"a": np.arange(row % 3), "b": np.arange(row % 4)} for row in range(12)])


def rows_of(data: Dataset) -> list[Any]:
    return [data[position] for position in range(len(data))]


LATER: dict[str, Any] = {
    "ds[i]": lambda data: [data[row]["b"].tolist() for row in range(12)],
    "map": lambda data: data.map(lambda row: {"b": row["b"].sum()}).read(range(12))["b"].tolist(),
    "map and map": lambda data: data.map(dict).map(lambda row: {"b": row["b"].sum()}).read(range(12))["b"].tolist(),
    "filter": lambda data: [row["b"].tolist() for row in rows_of(data.filter(lambda row: len(row["b"]) > 1))],
    "pad": lambda data: data.pad({"b": 3}).read(range(12))["b"].tolist(),
    "map and pad": lambda data: data.map(dict).pad({"b": 3}).read(range(12))["b_length"].tolist(),
    "zip": lambda data: [row[0]["b"].tolist() for row in rows_of(data.zip(data))],
    "concat": lambda data: [row["b"].tolist() for row in rows_of(loadax.concat([data, data]))],
    "batches": lambda data: [
        batch["b"].tolist() for batch in Dataloader(data.pad({"b": 3}), 8, num_workers=0).host_batches()
    ],
}


@pytest.mark.parametrize("later", LATER)
def test_other_leaves_of_padded_rows_stay_ragged(later: str) -> None:
    alone = two_leaves().map(lambda row: {"b": row["b"]})
    assert LATER[later](two_leaves().pad({"a": 3})) == LATER[later](alone)
    np.testing.assert_array_equal(two_leaves().pad({"a": 3}).map(lambda row: row["a"]).read([5]), [[0, 1, 0]])


def test_other_leaves_of_padded_rows_may_be_any_objects_or_be_missing() -> None:
    rows = [{"a": np.arange(row % 3), "odd": {1: "x", "y": object()}} for row in range(6)]
    rows[4] |= {"more": 1}
    data = loadax.from_source(rows).pad({"a": 2}).map(lambda row: row["a"].sum() + row.get("more", 0))
    assert data.read(range(6)).tolist() == [0, 0, 1, 0, 1, 1]


def test_rows_that_are_stacked_after_pad_must_be_alike() -> None:
    with pytest.raises(
        LeafError, match=r"row 1: leaf \['b'\] is int64\[1\], expected int64\[0\]; rows are ragged: pad"
    ):
        two_leaves().pad({"a": 3}).read([0, 1])


class Pair(NamedTuple):
    words: Any
    tag: Any


def nested_rows() -> list[Any]:
    return [
        {"meta": OrderedDict(t=row, id=at), "pair": Pair(row[:3], np.int32(at)), "only": {"t": row[:2]}}
        for at, row in enumerate(ROWS)
    ]


@pytest.mark.parametrize("kind", ["rows", "mapped", "mapped again"])
def test_leaves_of_subtrees_are_padded_in_their_places(kind: str) -> None:
    data = loadax.from_source(nested_rows())
    if kind != "rows":
        data = loadax.from_source(list(range(COUNT))).map(lambda row: nested_rows()[row])
    data = data.pad({"meta.t": 8, "only.t": 2}, value={"meta.t": -1}).pad({"pair.words": 3}, add_lengths=False)
    if kind == "mapped again":
        data = data.map(lambda row: row)
    batch = data.read(range(COUNT))
    assert flatten(batch)[1] == flatten(data[0])[1]
    np.testing.assert_array_equal(batch["meta"]["t"], expected(8, -1))
    assert batch["meta"]["t_length"].tolist() == LENGTHS
    assert batch["only"]["t_length"].tolist() == [min(length, 2) for length in LENGTHS]
    assert batch["meta"]["id"].tolist() == batch["pair"].tag.tolist() == list(range(COUNT))
    assert type(batch["pair"]) is Pair
    for at, row in enumerate(ROWS):
        assert batch["pair"].words[at, : len(row[:3])].tolist() == row[:3].tolist()
        assert not batch["pair"].words[at, len(row[:3]) :].any()
        assert batch["only"]["t"][at, : len(row[:2])].tolist() == row[:2].tolist()
    assert data.spec["meta"].keys() == {"t", "t_length", "id"}


def test_a_key_with_a_dot_comes_before_a_leaf_of_a_subtree() -> None:
    rows = [{"meta.t": row, "meta": {"t": at}} for at, row in enumerate(ROWS)]
    batch = loadax.from_source(rows).pad({"meta.t": 8}).read(range(COUNT))
    np.testing.assert_array_equal(batch["meta.t"], expected(8))
    assert batch["meta.t_length"].tolist() == LENGTHS
    assert batch["meta"]["t"].tolist() == list(range(COUNT))


def test_advice_on_names_of_subtrees_works() -> None:
    data = loadax.from_source(nested_rows())
    with pytest.raises(LeafError, match=r"pad.., row 0: .*no leaf 'meta.tt'; did you mean 'meta.t'"):
        _ = data.pad({"meta.tt": 8}, add_lengths=False).spec
    assert data.pad({"meta.t": 8}, add_lengths=False).keep("meta").spec["meta"].keys() == {"t", "id"}
    with pytest.raises(LeafError, match=r"'pair.words' can't be added to a Pair; .*pass add_lengths=False to add none"):
        _ = data.pad({"pair.words": 3}).spec
    taken = loadax.from_source([{"meta": {"t": row, "t_length": 0}} for row in ROWS])
    with pytest.raises(LeafError, match=r"row 0 has a leaf 'meta.t_length' already.*; rename it, or pass add_lengths"):
        _ = taken.pad({"meta.t": 8}).spec
    batch = taken.rename({"meta.t_length": "old"}).pad({"meta.t": 8}).read([3])
    assert batch["meta"]["t_length"].tolist() == LENGTHS[3:4]
    assert taken.pad({"meta.t": 8}, add_lengths=False).read([3])["meta"]["t"].shape == (1, 8)


EMPTY_FIRST: dict[str, list[Any]] = {
    "integers": [[], [], [3], [4, 5]],
    "floats": [[], [1.5], [], [2.5, 3.5]],
    "boxes": [[], [[1, 2]], [[3, 4], [5, 6]], []],
    "booleans": [[], [True]],
}


@pytest.mark.parametrize("values", EMPTY_FIRST.values(), ids=EMPTY_FIRST)
@pytest.mark.parametrize("door", ["list", "object", "map", "bare", "shuffled", "zip"])
def test_dtype_of_a_list_that_is_empty_in_the_first_rows_is_that_of_the_others(values: list[Any], door: str) -> None:
    entries = np.array(next(filter(None, values)))
    want = np.zeros((len(values), 3, *entries.shape[1:]), entries.dtype)
    for row, value in enumerate(values):
        want[row, : len(value)] = np.array(value, entries.dtype).reshape(-1, *entries.shape[1:])
    rows = [{"x": value, "y": row} for row, value in enumerate(values)]
    data = {
        "list": lambda: loadax.from_source(rows).pad({"x": 3}),
        "object": lambda: loadax.from_source(UserList(rows)).pad({"x": 3}),
        "map": lambda: loadax.from_arrays(np.arange(len(rows))).map(lambda row: rows[int(row)]).pad({"x": 3}),
        "bare": lambda: loadax.from_source(values).pad(3).map(lambda row: {"x": row["data"]}),
        "shuffled": lambda: loadax.from_source(rows).shuffle(1).pad({"x": 3}),
        "zip": lambda: loadax.zip({"x": loadax.from_source(values)}).pad({"x": 3}),
    }[door]()
    got = data.read(range(len(rows)))
    places = got["y"] if door == "shuffled" else range(len(rows))
    assert got["x"].dtype == want.dtype
    np.testing.assert_array_equal(got["x"], want[places])


def test_lists_that_are_all_empty_are_padded_as_floats() -> None:
    data = loadax.from_source([{"x": []}, {"x": []}]).pad({"x": 2})
    assert data.read([0, 1])["x"].tolist() == [[0.0, 0.0], [0.0, 0.0]]


class EmptyFirst:
    """Lanes of rows {"x": a list}, of which the first ones are empty; counts the rows that are yielded."""

    def __init__(self, empty: int, stateful: bool = False):
        self.empty, self.stateful, self.yielded = empty, stateful, 0

    def lists(self, lane: int) -> list[list[int]]:
        return [[]] * self.empty + [[10 * lane + row] * (1 + row % 3) for row in range(5)]

    def __call__(self, lane: int, lanes: int) -> Any:
        rows = self._rows(lane)
        return ResumedRows(rows) if self.stateful else rows

    def _rows(self, lane: int) -> Iterator[Any]:
        for row in self.lists(lane):
            self.yielded += 1
            yield {"x": row}


class ResumedRows:
    """Rows of a lane that can be opened again."""

    def __init__(self, rows: Iterator[Any]):
        self._rows, self._count = rows, 0

    def __iter__(self) -> "ResumedRows":
        return self

    def __next__(self) -> Any:
        row = next(self._rows)
        self._count += 1
        return row

    def get_state(self) -> int:
        return self._count

    def set_state(self, state: int) -> None:
        for _ in range(state):
            next(self)


@pytest.mark.parametrize("stateful", [False, True])
@pytest.mark.parametrize("lanes", [1, 3])
@pytest.mark.parametrize("door", ["pad", "map", "mix"])
def test_dtype_of_a_list_that_is_empty_in_the_first_rows_of_a_stream(door: str, lanes: int, stateful: bool) -> None:
    opened = EmptyFirst(4, stateful)
    stream = loadax.from_stream(opened, lanes=lanes)
    data = {
        "pad": lambda: stream.pad({"x": 3}),
        "map": lambda: stream.map(lambda row: {"x": list(row["x"])}).pad({"x": 3}),
        "mix": lambda: loadax.mix([stream.pad({"x": 3})], [1]),
    }[door]()
    turns = zip(*map(opened.lists, range(lanes)), strict=True)
    want = [sorted(row + [0] * (3 - len(row)) for row in turn) for turn in turns]
    loader = Dataloader(data, lanes, num_workers=0, shard_index=0, shard_count=1)
    for _ in range(2):
        got = [batch["x"] for batch in loader.host_batches()]
        assert {leaf.dtype for leaf in got} == {np.dtype(np.int32)}
        # rows that were read ahead are served too, once
        assert [sorted(leaf.tolist()) for leaf in got] == want


def test_rows_of_a_stream_without_entries_are_padded_as_floats() -> None:
    opened = EmptyFirst(10**6)
    spec: Any = loadax.from_stream(opened, lanes=2).pad({"x": 3}).spec
    assert spec["x"].dtype == np.float64
    assert opened.yielded <= 65  # as few rows are looked at
    short = loadax.from_stream(lambda lane, lanes: [{"x": []}], lanes=2).pad({"x": 3})
    (batch,) = Dataloader(short, 2, shard_index=0, shard_count=1).host_batches()
    assert batch["x"].tolist() == [[0.0] * 3] * 2


@pytest.mark.parametrize("worker_type", WORKER_TYPES)
def test_buckets_of_lists_that_are_empty_first(worker_type: str) -> None:
    rows = [{"x": [row] * (row % 3), "y": row} for row in range(12)]
    one = data_parallel(jax.devices()[:1])
    batch_size = loadax.Buckets("x", {1: 2, 2: 4})
    loader = loadax.Dataloader(loadax.from_source(rows), batch_size, worker_type=worker_type, num_workers=1, mesh=one)
    for batch in loader:
        assert batch["x"].dtype == np.int32
        assert batch["x"][:, 0].tolist() == [row if row % 3 else 0 for row in batch["y"].tolist()]
