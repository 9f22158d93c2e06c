"""Windows within groups of rows: beside a loop over the rows of each group, padded at its ends or not."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from jax.sharding import Mesh, PartitionSpec as P

import loadax
from loadax import Dataloader, Dataset, concat, from_arrays, from_source
from loadax.errors import ArgumentError, SourceError
from loadax.sharding import plan_mesh
from tests.limits import examples
from tests.loader.oracle import assert_placed
from tests.sources.chunked import ChunkedSource

LENGTHS = [3, 0, 1, 5, 2, 0, 7]
OFFSETS = np.append(0, np.cumsum(LENGTHS))
ROWS = int(OFFSETS[-1])
EPISODE = np.repeat(np.arange(len(LENGTHS), dtype=np.int32), LENGTHS) + 20
FIELD = np.arange(ROWS * 2, dtype=np.float32).reshape(ROWS, 2) + 1
TREE = {"episode": EPISODE, "field": FIELD}


def window(rows: list[int], positions: list[int], pad: str | None) -> tuple[list[float], list[bool]]:
    """Values of FIELD's first column at positions of one group, and which of them are in it."""
    real = [0 <= position < len(rows) for position in positions]
    near = [rows[min(max(position, 0), len(rows) - 1)] for position in positions]
    values = FIELD[near, 0]
    if pad == "zeros":
        values = np.where(real, values, 0)
    return values.tolist(), real


def oracle(
    groups: list[list[int]], length: int, stride: int, lead: int | None, targets: int, every: int, pad: str | None
) -> list[list[tuple[list[float], list[bool]]]]:
    """Parts of the windows of each group: values and masks."""
    found = []
    for rows in groups:
        for first in range(0, len(rows), stride):
            begin = first - (length - 1) * every if pad and lead is not None else first
            parts = [[begin + turn * every for turn in range(length)]]
            if lead is not None:
                parts.append([parts[0][-1] + lead + turn * every for turn in range(targets)])
            parts_read = [window(rows, part, pad) for part in parts]
            if pad or all(all(real) for _, real in parts_read):
                found.append(parts_read)
    return found


def rows_of_groups(offsets: Any = OFFSETS) -> list[list[int]]:
    return [list(range(low, high)) for low, high in pairwise(offsets)]


def devices(count: int) -> Mesh:
    return Mesh(np.array(jax.devices()[:count]), ("data",))


def parts_of(example: Any, pad: str | None) -> list[tuple[Any, Any]]:
    if "targets" in example:
        names = ["inputs", "targets"]
        return [(example[name]["field"], example.get(f"{name}_mask")) for name in names]
    return [(example["field"], example.get("window_mask"))]


def assert_windows(data: Dataset, wanted: list[list[tuple[list[float], list[bool]]]], pad: str | None) -> None:
    assert len(data) == len(wanted)
    batch = data.read(range(len(wanted)))
    for part, (values, masks) in enumerate(parts_of(batch, pad)):
        assert values[..., 0].tolist() == [window[part][0] for window in wanted]
        if pad:
            assert masks.tolist() == [window[part][1] for window in wanted]
        else:
            assert masks is None


KINDS = {
    "arrays": lambda: from_arrays(TREE),
    "columns": lambda: from_source(ChunkedSource(TREE, None, True)),
    "chunks": lambda: from_source(ChunkedSource(TREE, 4, True)),
    "rows": lambda: from_source(ChunkedSource(TREE, None, False)),
    "examples": lambda: from_source(
        [{"episode": each, "field": row} for each, row in zip(EPISODE, FIELD, strict=True)]
    ),
    "concat": lambda: concat([from_arrays(TREE)[:9], from_arrays(TREE)[9:]]),
    "mapped": lambda: from_arrays(TREE).map(lambda row: row),
    "listed": lambda: from_arrays(TREE).select(list(range(ROWS))),
    "kept": lambda: from_arrays(TREE).filter(lambda row: True, workers=1),
}


@settings(max_examples=examples(300), deadline=None)
@given(st.data())
def test_windows_within_groups_are_what_a_loop_over_each_group_gives(data: st.DataObject) -> None:
    pad: Any = data.draw(st.sampled_from([None, "edge", "zeros"]))
    length, stride, every = (data.draw(st.integers(1, most)) for most in (4, 5, 3))
    lead = data.draw(st.none() | st.integers((1 - length) * every, 4))
    targets = 1 if lead is None else data.draw(st.integers(1, 3))
    kind = data.draw(st.sampled_from(sorted(KINDS)))
    within = data.draw(st.sampled_from(["episode", OFFSETS, OFFSETS.tolist()]))
    wanted = oracle(rows_of_groups(), length, stride, lead, targets, every, pad)

    def make() -> Dataset:
        return KINDS[kind]().windows(
            length, stride, lead, targets, every, within=within, pad=pad, short="drop", seams="cross"
        )

    if not wanted:
        with pytest.raises(SourceError, match="in a group; pass a smaller length, or pad='edge'"):
            make()
        return
    assert_windows(make(), wanted, pad)
    read = make().shuffle(0)
    positions = np.array(data.draw(st.lists(st.integers(0, len(wanted) - 1), min_size=1, max_size=5)))
    rows = read.order.visits(np.ones_like(positions), positions).rows
    values = parts_of(read.read(positions, epoch=1), pad)[-1][0]
    assert values[..., 0].tolist() == [wanted[row][-1][0] for row in rows.tolist()]


@pytest.mark.parametrize("pad", [None, "edge", "zeros"])
def test_seams_of_concat_and_groups_are_both_kept(pad: Any) -> None:
    parts = concat([from_arrays(TREE)[:9], from_arrays(TREE)[9:]])
    groups = rows_of_groups(sorted({*OFFSETS.tolist(), 9}))
    windows = parts.windows(2, within=OFFSETS, pad=pad, short="drop")
    assert_windows(windows, oracle(groups, 2, 1, None, 1, 1, pad), pad)


@pytest.mark.parametrize("pad", ["edge", "zeros"])
def test_columns_of_padded_windows_may_be_cut(pad: Any) -> None:
    windows = from_arrays(TREE).windows(4, lead=0, targets=3, within=OFFSETS, pad=pad)
    whole = windows.read(range(ROWS))
    rows = np.array([0, 2, 17, 3])
    boxes = [((1, 3),), ((1, 4), (0, 1)), ((0, 2),), None, ((1, 2), (1, 2)), ((2, 3),)]
    wanted = [
        whole["inputs"]["episode"][rows, 1:3],
        whole["inputs"]["field"][rows, 1:4, 0:1],
        whole["inputs_mask"][rows, 0:2],
        None,
        whole["targets"]["field"][rows, 1:2, 1:2],
        whole["targets_mask"][rows, 2:3],
    ]
    out = [None if values is None else np.full_like(values, 1) for values in wanted]
    windows.source.read_into(rows, boxes, out)
    for got, values in zip(out, wanted, strict=True):
        np.testing.assert_array_equal(got, values)  # None beside None


def test_windows_longer_than_all_rows() -> None:
    few = from_arrays(FIELD[:3]).windows(7, every=2, within=[0, 3], pad="edge")
    assert few.read(range(3))["data"][..., 0].tolist() == [[1, *[5] * 6], [3, *[5] * 6], [5] * 7]


def test_windows_of_bare_arrays_become_dicts() -> None:
    windows = from_arrays(FIELD).windows(2, within=OFFSETS, pad="zeros")
    assert windows[2]["data"].tolist() == [[5, 6], [0, 0]]
    assert windows[2]["window_mask"].tolist() == [True, False]


def test_one_window_a_row_so_that_actions_lie_beside_what_is_seen() -> None:
    frames = from_arrays(TREE)
    actions = frames.keep("field").windows(3, within=frames.offsets("episode"), pad="edge")
    both = loadax.zip({"now": frames, "next": actions})
    assert len(both) == ROWS
    assert both[2]["now"]["field"].tolist() == both[2]["next"]["field"][0].tolist()
    assert both[2]["next"]["window_mask"].tolist() == [True, False, False]


def test_a_loader_of_padded_windows_gives_the_same_batches_everywhere() -> None:
    """On 1, 2 and 4 planned hosts, from any step on, with another number of devices, by threads."""
    data = from_arrays(TREE).windows(3, lead=0, targets=2, within="episode", pad="zeros").shuffle(1)
    whole = data.source.read(np.arange(ROWS))
    rows = [int(row) for row in data.order.visits(np.zeros(ROWS, np.int64), np.arange(ROWS)).rows]
    loader = Dataloader(data, 4, mesh=devices(4), num_epochs=2)
    assert len(loader) == 2 * (ROWS // 4)
    for hosts in (1, 2, 4):
        meshes = [plan_mesh({"data": 4}, hosts=hosts, process=host) for host in range(hosts)]
        shares = [Dataloader(data, 4, mesh=mesh, num_epochs=2).local_rows(1) for mesh in meshes]
        assert np.concatenate(shares).tolist() == rows[4:8] == loader.rows(1).tolist()
    assert_placed(loader[1], jax.tree.map(lambda leaf: leaf[rows[4:8]], whole), devices(4))
    with loader.iterate(2) as batches:
        next(batches)
        state = json.loads(json.dumps(batches.get_state()))
    other = devices(2)
    moved = Dataloader(data, 4, mesh=other, partition=P("data"), num_epochs=2)
    with moved.iterate(state) as batches:
        for step, batch in enumerate(batches, 3):
            assert_placed(batch, data.source.read(moved.rows(step)), other)
    (place,) = loader.find(rows[5], epochs=0)
    assert (place.step, place.position) == (1, 1)


@pytest.mark.processes
def test_worker_processes_read_padded_windows() -> None:
    data = from_arrays(TREE).windows(3, within="episode", pad="edge").shuffle(1)
    mesh = devices(2)
    with iter(Dataloader(data, 6, mesh=mesh, num_workers=0)) as batches:
        wanted = [jax.device_get(batch) for batch in batches]
    with iter(Dataloader(data, 6, mesh=mesh, num_workers=1, worker_type="process")) as batches:
        for batch, values in zip(batches, wanted, strict=True):
            assert_placed(batch, values, mesh)


def test_a_state_belongs_to_its_groups() -> None:
    data = from_arrays(TREE)
    chosen: list[Any] = [(OFFSETS, None), (OFFSETS, "edge"), (OFFSETS, "zeros"), ([0, 4, ROWS], None)]
    described = [data.windows(2, within=within, pad=pad, short="drop").order_facts for within, pad in chosen]
    assert len({json.dumps(facts) for facts in described}) == len(described)
    # one group is no group
    assert data.windows(2, within=[0, ROWS]).order_facts == data.windows(2).order_facts


class TestOffsets:
    @pytest.mark.parametrize("kind", sorted(KINDS))
    def test_of_a_leaf(self, kind: str) -> None:
        assert KINDS[kind]().offsets("episode").tolist() == sorted({*OFFSETS.tolist()})

    def test_of_a_leaf_of_texts(self) -> None:
        names = from_arrays({"name": np.array([f"e{each}" for each in EPISODE], object)})
        assert names.offsets("name").tolist() == sorted({*OFFSETS.tolist()})

    def test_of_what_is_left(self) -> None:
        data = from_arrays(TREE)
        assert data[2:10].offsets("episode").tolist() == [0, 1, 2, 7, 8]
        assert data[::-1].offsets("episode").tolist() == [0, 7, 9, 14, 15, 18]
        kept = data.filter(lambda row: row["episode"] != 23, workers=1)
        assert kept.offsets("episode").tolist() == [0, 3, 4, 6, 13]
        assert data[:0].offsets("episode").tolist() == [0]

    def test_of_the_data_itself(self) -> None:
        data = from_arrays(TREE)
        assert data.offsets().tolist() == [0, ROWS]
        assert concat([data, data[3:5]]).offsets().tolist() == [0, ROWS, ROWS + 2]
        windows = data.windows(2, within=OFFSETS, short="drop")
        assert windows.offsets().tolist() == [0, 2, 6, 7, 13]
        assert windows.windows(2, within=windows.offsets(), short="drop").offsets().tolist() == [0, 1, 4, 9]
        lists = data.flat_map(lambda row: [row] * 2, counts=[2] * ROWS)
        assert lists.offsets().tolist() == list(range(0, 2 * ROWS + 1, 2))
        assert lists[3:7].offsets().tolist() == [0, 1, 3, 4]
        assert concat([lists, data]).offsets().tolist() == [*range(0, 2 * ROWS + 1, 2), 3 * ROWS]
        assert lists.filter(lambda row: row["episode"] > 20, workers=1).offsets().tolist()[:3] == [0, 2, 4]

    def test_of_files(self, tmp_path: Path) -> None:
        import pyarrow as pa
        from array_record.python.array_record_module import ArrayRecordWriter
        from pyarrow import parquet

        for number, length in enumerate(LENGTHS):
            rows = np.arange(length, dtype=np.int32)
            parquet.write_table(pa.table({"x": rows}), tmp_path / f"{number}.parquet", row_group_size=2)
            writer = ArrayRecordWriter(str(tmp_path / f"{number}.array_record"), "group_size:1")
            for row in rows:
                writer.write(row.tobytes())
            writer.close()
        wanted = sorted({*OFFSETS.tolist()})
        table = loadax.from_parquet(str(tmp_path / "*.parquet"))
        assert table.offsets().tolist() == wanted
        assert table.windows(2, within=table.offsets(), pad="edge").read([2])["x"].tolist() == [[2, 2]]
        records = [str(tmp_path / f"{number}.array_record") for number, length in enumerate(LENGTHS) if length]
        assert loadax.from_array_record(records, dtype="int32").offsets().tolist() == wanted

    def test_of_groups_of_an_hdf5_file(self, tmp_path: Path) -> None:
        h5py = pytest.importorskip("h5py")
        with h5py.File(tmp_path / "demos.hdf5", "w") as file:
            for number, length in enumerate([5, 3, 7]):
                file[f"data/demo_{number}/actions"] = np.arange(length) + 10 * number
        with h5py.File(tmp_path / "demos.hdf5") as file:
            demos = concat([loadax.as_dataset(file["data"][name]) for name in sorted(file["data"])])
            assert demos.offsets().tolist() == [0, 5, 8, 15]
            windows = demos.windows(3, within=demos.offsets(), pad="edge")
            assert windows.read([4, 5])["actions"].tolist() == [[4, 4, 4], [10, 11, 12]]

    def test_an_index_keeps_groups_alone(self, tmp_path: Path) -> None:
        source = ChunkedSource({"episode": np.arange(2000) // 10, "image": np.zeros((2000, 3))}, None, True)
        data = from_source(source)
        first = data.offsets("episode", index=tmp_path / "index")
        assert first.tolist() == list(range(0, 2001, 10))
        assert source.elements[0].sum() >= 2000
        assert source.elements[1].sum() == 0
        source.forget()
        assert data.offsets("episode", index=tmp_path / "index").tolist() == first.tolist()
        assert source.elements[0].sum() < 200  # a sample that tells the data


def test_sorted_rows_are_taken_as_they_are_listed() -> None:
    mixed = from_arrays({"episode": np.array([0, 1, 0, 1, 1]), "t": np.arange(5)})
    with pytest.raises(ArgumentError, match=r"by='episode': rows 0 and 2 are of one group.* data\.select"):
        mixed.offsets("episode")
    data = mixed
    advised = data.select(np.argsort(data.keep("episode").read(range(len(data)))["episode"], kind="stable"))
    assert advised.windows(2, within="episode").read(range(3))["t"].tolist() == [[0, 2], [1, 3], [3, 4]]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda ds: ds.windows(2, within=[0, 3, 2, 18]), r"within\[2\]=2 is below within\[1\]=3; offsets ascend"),
        (lambda ds: ds.windows(2, within=[0, 17]), "within goes from 0 to 17, and the dataset has 18 rows; pass"),
        (lambda ds: ds.windows(2, within=[1, 18]), "within goes from 1 to 18"),
        (lambda ds: ds.windows(2, within=[]), r"within=\[\]: pass the name of a leaf, or offsets"),
        (lambda ds: ds.windows(2, within=[[0, 18]]), "pass the name of a leaf, or offsets"),
        (lambda ds: ds.windows(2, within=[0.0, 18.0]), "pass the name of a leaf, or offsets"),
        (lambda ds: ds.windows(2, within="none"), r"within='none' is not the name of one leaf; pass one of \['ep"),
        (lambda ds: ds.windows(2, within="field"), r"within='field' is float32\[2\], not an integer or text; pass off"),
        (
            lambda ds: ds.windows(2, within="episode"),
            "1 of 5 groups lack the 2 rows of a window .*rows 3 to 3; pass pad",
        ),
        (lambda ds: ds.windows(2, within="episode", pad="reflect"), "pad='reflect': pass None, 'edge' or 'zeros'"),
        (lambda ds: ds.windows(2, within="episode", short="pad"), "short='pad': pass 'error' or 'drop'"),
        (lambda ds: ds.windows(2, pad="edge"), "pad='edge' is for windows within groups; pass within="),
        (lambda ds: ds.windows(2, short="drop"), "short='drop' is for windows within groups; pass within="),
        (
            lambda ds: ds.shuffle(3).windows(2, within=OFFSETS),
            r"same order .* in every epoch; call it before shuffle\(3",
        ),
        (lambda ds: ds.shuffle(3).offsets("episode"), r"offsets\(\) needs the same order .* before shuffle\(3\)"),
        (lambda ds: ds.offsets(3), "by=3: pass the name of a leaf"),
        (
            lambda ds: ds.filter(lambda row: row["field"][0] != 11, workers=1).windows(2, within="episode"),
            r"windows\(\) within groups after filter\(17 rows\): in the group at position 4, row 6 follows row 4; call",
        ),
        (
            lambda ds: ds.rename({"field": "window_mask"}).windows(2, within="episode", pad="edge"),
            r"rows have a leaf 'window_mask', .* rename\(\) it before windows\(\)",
        ),
    ],
)
def test_what_is_refused(make: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        make(from_arrays(TREE))


def test_objects_have_no_zero() -> None:
    data = from_source([{"name": "a", "x": 1}, {"name": "b", "x": 2}])
    with pytest.raises(ArgumentError, match=r"leaf \['name'\] has objects, such as texts, .*drop\(\) the leaf"):
        data.windows(2, within=[0, 2], pad="zeros")
    assert data.windows(2, within=[0, 2], pad="edge")[1]["name"].tolist() == ["b", "b"]
    assert data.drop("name").windows(2, within=[0, 2], pad="zeros")[1]["x"].tolist() == [2, 0]
