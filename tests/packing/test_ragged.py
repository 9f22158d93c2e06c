"""`pack` of ragged leaves of any rank under budgets: graphs whose edges count on, against a slow packer."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st
from jax.sharding import PartitionSpec as P

from loadax import Dataloader, Dataset, as_dataset, from_source, from_stream
from loadax.errors import ArgumentError, LeafError
from loadax.protocols import Visits
from loadax.testing import check_source
from tests.limits import examples
from tests.packing.slow_packing import Row, slow_graphs
from tests.packing.stream_packing import host_steps

BUDGETS: Any = {"nodes": 9, ("edges", "senders", "receivers"): 12}
OFFSETS = {"senders": "nodes", "receivers": "nodes"}
OPTIONS: dict[str, Any] = {"method": "best_fit", "most_documents": 4, "offsets": OFFSETS}


def graphs(sizes: list[tuple[int, int]]) -> list[Row]:
    """Graphs whose values tell graph, leaf and place."""
    random = np.random.default_rng(len(sizes))
    return [
        {
            "nodes": (100 * number + np.arange(2 * nodes)).reshape(nodes, 2).astype(np.float32),
            "edges": (np.arange(edges) + number / 8)[:, None, None],
            "senders": random.integers(0, max(nodes, 1), edges).astype(np.int32),
            "receivers": random.integers(0, max(nodes, 1), edges).astype(np.int32),
            "label": np.full(3, number, np.float32),
            "energy": np.asarray(number / 2, np.float32),
        }
        for number, (nodes, edges) in enumerate(sizes, 1)
    ]


def slow_rows(given: list[Row], method: str, window: int, most: int, align: int = 1, value: float = 0) -> list[Row]:
    return slow_graphs(given, {"nodes": 9, "edges": 12}, method, window, most, align, value)


def assert_rows(found: Any, wanted: list[Row]) -> None:
    assert sorted(found) == sorted(wanted[0])
    for name, leaf in found.items():
        np.testing.assert_array_equal(leaf, np.stack([row[name] for row in wanted]), err_msg=name)


SIZES = st.lists(st.tuples(st.integers(1, 9), st.integers(1, 12)), min_size=1, max_size=14)


@settings(max_examples=examples(40))
@given(
    sizes=SIZES,
    method=st.sampled_from(["best_fit", "first_fit"]),
    window=st.sampled_from([1, 5, 100]),
    most=st.sampled_from([1, 3]),
    align=st.sampled_from([1, 3]),
    value=st.sampled_from([0, -1]),
    told=st.booleans(),
)
def test_rows_of_graphs_are_those_of_a_slow_packer(
    sizes: list[tuple[int, int]], method: Any, window: int, most: int, align: int, value: int, told: bool
) -> None:
    documents = graphs([(4, 7), (5, 12), *sizes])
    budgets: Any = BUDGETS if told else {"edges": 12, "nodes": 9}
    packed = from_source(documents).pack(
        budgets, method=method, window=window, most_documents=most, align=align, value=value, offsets=OFFSETS
    )
    rows = packed.read(range(len(packed)))
    assert_rows(rows, slow_rows(documents, method, window, most, align, value))
    assert (
        packed.order_facts
        == from_source(documents)
        .pack(BUDGETS, method=method, window=window, most_documents=most, align=align, value=value, offsets=OFFSETS)
        .order_facts
    )


@pytest.mark.processes
def test_packed_graphs_keep_the_contract() -> None:
    random = np.random.default_rng(0)
    documents = graphs(
        [(int(n), int(e)) for n, e in zip(random.integers(1, 9, 50), random.integers(1, 12, 50), strict=True)]
    )
    packed = from_source(documents).pack(BUDGETS, **OPTIONS)
    check_source(packed.source)
    assert packed.spec["nodes"] == ((9, 2), np.float32)
    assert packed.spec["edges"] == ((12, 1, 1), np.float64)
    assert packed.spec["label"] == ((4, 3), np.float32)
    assert packed.spec["energy"] == ((4,), np.float32)
    wanted = slow_rows(documents, "best_fit", 4096, 4)
    columns = next(Dataloader(packed, 1, shard_index=0, shard_count=1).host_batches())
    assert_rows(columns, wanted[:1])
    part = Dataloader(packed.shuffle(0), 2, partition={name: P(None) for name in packed.spec})
    assert len(part) == len(packed) // 2


def test_a_box_of_columns_and_features() -> None:
    documents = graphs([(4, 7), (5, 12), (3, 2), (2, 9)])
    packed = from_source(documents).pack(BUDGETS, **OPTIONS)
    whole = packed.read(range(len(packed)))
    names = sorted(whole)
    cuts = {
        "nodes": ((2, 8), (1, 2)),
        "senders": ((3, 11),),
        "label": ((1, 3), (0, 2)),
        "edges": ((0, 5), (0, 1), (0, 1)),
    }
    boxes = [cuts.get(name) for name in names]
    out: list[Any] = [
        None if box is None else np.full((len(packed), *(high - low for low, high in box)), 77, whole[name].dtype)
        for name, box in zip(names, boxes, strict=True)
    ]
    at = names.index("senders")
    out[at] = np.full((len(packed), 16), 77, np.int32)[:, ::2]  # memory with gaps
    packed.source.read_into(np.arange(len(packed)), boxes, out)
    for name, box, leaf in zip(names, boxes, out, strict=True):
        if box is not None:
            np.testing.assert_array_equal(leaf, whole[name][:, *(slice(*bounds) for bounds in box)], err_msg=name)


class CountedGraphs:
    """A map that counts its calls by graph."""

    def __init__(self) -> None:
        self.calls: list[float] = []

    def __call__(self, graph: Row) -> Row:
        self.calls.append(float(graph["energy"]))
        return graph


def test_each_graph_of_a_batch_is_mapped_once() -> None:
    documents = graphs([(2 + i % 5, 3 + i % 7) for i in range(30)])
    counted = CountedGraphs()
    packed = from_source(documents).map(counted).pack(BUDGETS, **OPTIONS)
    rows = len(packed)
    assert max(counted.calls.count(call) for call in counted.calls) <= 3  # the form, a sample for an index, lengths
    counted.calls.clear()
    packed.read(range(rows))
    assert sorted(counted.calls) == [graph["energy"] for graph in documents]


def test_streams_of_graphs_hold_each_once_and_resume_anywhere() -> None:
    documents = graphs([(1 + i * 7 % 9, 1 + i * 5 % 12) for i in range(40)])
    for data in (
        from_source(documents).to_stream(lanes=4),
        from_stream(lambda lane, lanes: iter(documents[lane::lanes]), lanes=4),
    ):
        packed = data.pack(BUDGETS, **OPTIONS)
        alone, states = host_steps(packed, 4, 5)
        label = np.concatenate([step["energy"][step["documents_segment_ids"] > 0] for step in alone])
        assert len(label) == len(set(label.tolist()))
        for step in alone:
            for row in range(4):
                segments = step["nodes_segment_ids"][row]
                for sender, segment in zip(step["senders"][row], step["edges_segment_ids"][row], strict=True):
                    assert not segment or segments[sender] == segment
        for hosts in (2, 4):
            assert_steps(alone[2:], host_steps(packed, 4, 3, hosts, start=states[2][0])[0])


def test_runs_of_graphs_resume_on_other_hosts() -> None:
    documents = graphs([(1 + i * 7 % 9, 1 + i * 5 % 12) for i in range(60)])
    packed = from_source(documents).pack(BUDGETS, **OPTIONS).shuffle(3)
    alone, states = host_steps(packed, 4, 5)
    for hosts in (2, 4):
        assert_steps(alone[2:], host_steps(packed, 4, 3, hosts, start=states[2][0])[0])


def assert_steps(one: list[Row], other: list[Row]) -> None:
    for left, right in zip(one, other, strict=True):
        np.testing.assert_equal(left, right)


def test_one_length_has_leaves_of_any_rank_and_scalars() -> None:
    documents = [
        {"tokens": np.arange(n), "pos": np.ones((n, 3), np.float32) * n, "label": np.int32(n)} for n in (3, 4, 0, 2, 7)
    ]
    packed = from_source(documents).pack(8, method="best_fit", most_documents=3, bos={"tokens": 9})
    rows = packed.read(range(len(packed)))
    assert rows["pos"].shape == (len(packed), 8, 3)
    assert rows["label"].tolist() == [[3, 0, 0], [4, 2, 0], [7, 0, 0]]
    assert rows["documents_segment_ids"].tolist() == [[1, 0, 0], [1, 2, 0], [1, 0, 0]]
    assert rows["pos"][1, :, 0].tolist() == [0, 4, 4, 4, 4, 0, 2, 2]
    cut = from_source(documents).pack(4, method="best_fit", long="cut", most_documents=3)
    labels = cut.read(range(len(cut)))["label"]
    assert np.bincount(labels.reshape(-1))[1:].tolist() == [0, 1, 1, 1, 0, 0, 2], "one for every part"
    split = from_source([{"pos": each["pos"]} for each in documents]).pack(4)
    np.testing.assert_array_equal(
        split.read(range(4))["pos"].reshape(-1, 3), np.concatenate([each["pos"] for each in documents])
    )


def test_vectors_of_a_table_are_read_in_part() -> None:
    positions = np.arange(30, dtype=np.float32).reshape(10, 3)
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(positions.reshape(-1)), 3)
    table = pa.table({"pos": pa.ListArray.from_arrays(pa.array([0, 4, 7, 10], pa.int32()), vectors)})
    packed = as_dataset(table).pack(5)
    np.testing.assert_array_equal(packed.read([0, 1])["pos"].reshape(10, 3), positions)
    out: list[Any] = [None, np.zeros((2, 2, 1), np.float32), None, None]
    packed.source.read_into(np.array([1, 0]), [None, ((1, 3), (2, 3)), None, None], out)
    np.testing.assert_array_equal(out[1][:, :, 0], [positions[6:8, 2], positions[1:3, 2]])


def test_padding_edges_point_at_the_last_node() -> None:
    packed = from_source(graphs([(4, 7), (3, 2)])).pack(BUDGETS, **OPTIONS, value={"senders": 8, "receivers": 8})
    row = packed[0]
    assert (row["senders"][row["edges_segment_ids"] == 0] == 8).all()
    assert not row["nodes"][row["nodes_segment_ids"] == 0].any()


def test_equal_sizes_need_the_budget_of_a_leaf() -> None:
    data = from_source(graphs([(4, 4), (3, 3)]))
    given: Any = {"nodes": 9, "edges": 12}
    with pytest.raises(
        ArgumentError,
        match=r"leaf 'receivers' is as long as each of \['nodes', 'edges'\].*"
        r"such as seq_len=\{\('nodes', 'receivers'\): 9, 'edges': 12\}",
    ):
        len(data.pack(given, **OPTIONS))
    assert len(data.pack(BUDGETS, **OPTIONS)) == 1


def test_an_interrupted_pass_over_graphs_goes_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    given, seen = graphs([(1 + row % 8, row % 12) for row in range(200)]), list[int]()

    def read(graph: Row, index: int) -> Row:
        seen.append(index)
        if index == 150 and stops:
            raise KeyError("stop")
        return graph

    data: Dataset = from_source(given).map(read, with_index=True)
    stops = True
    with pytest.raises(KeyError, match="stop") as failed:
        data.pack(BUDGETS, **OPTIONS, index=tmp_path / "i", key="v1")
    assert "goes on from there" in str(failed.value.__notes__)
    stops, before = False, len(seen)
    resumed = data.pack(BUDGETS, **OPTIONS, index=tmp_path / "i", key="v1")
    assert len(seen) - before < 200
    assert "deleted" not in caplog.text
    assert len(resumed) == len(from_source(given).pack(BUDGETS, **OPTIONS))


def test_offsets_of_nested_leaves() -> None:
    data: Dataset = from_source(graphs([(4, 7), (3, 2)]))
    names = {"nodes": "graph.nodes", "edges": "graph.edge.values", "senders": "graph.edge.senders"}
    budgets: Any = {names["nodes"]: 9, (names["edges"], names["senders"], "receivers"): 12}
    offsets = {names["senders"]: names["nodes"], "receivers": names["nodes"]}
    nested = data.rename(names).pack(budgets, **{**OPTIONS, "offsets": offsets})[0]["graph"]
    np.testing.assert_array_equal(nested["edge"]["senders"], data.pack(BUDGETS, **OPTIONS)[0]["senders"])


def test_budget_named_documents_beside_values_of_documents() -> None:
    data: Dataset = from_source(graphs([(4, 7), (3, 2)])).rename({"nodes": "documents"})
    budgets: Any = {"documents": 9, ("edges", "senders", "receivers"): 12}
    with pytest.raises(
        ArgumentError, match=r"would share 'documents_segment_ids'; .*: \.rename\({'documents': 'texts'}"
    ):
        len(data.pack(budgets, method="best_fit", most_documents=4))
    budgets["texts"] = budgets.pop("documents")
    row = data.rename({"documents": "texts"}).pack(budgets, method="best_fit", most_documents=4)[0]
    assert row["texts_segment_ids"].max() == row["documents_segment_ids"].max() == 2


GRAPH = graphs([(3, 5)])[0]


@pytest.mark.parametrize(
    ("second", "seq_len", "options", "message"),
    [
        ({}, {("nodes", "nodes"): 9, "edges": 12}, {}, r"names a leaf twice, or none; pass each leaf once"),
        ({}, {"nodes": 9, (): 12}, {}, r"names a leaf twice, or none; pass each leaf once"),
        ({}, {"nodes": 9, "edge": 12}, {}, r"names 'edge', which is not a leaf of the documents: \['edges', 'energy',"),
        ({}, BUDGETS, {"offsets": {"sender": "nodes"}}, r"offsets=.* names 'sender', which is not a leaf"),
        ({}, BUDGETS, {"offsets": {"senders": "node"}}, r"offsets\['senders'\]='node' is not a budget; pass one of \["),
        ({}, BUDGETS, {"offsets": {"nodes": "nodes"}}, r"leaf 'nodes' is float32, which can't be an index of up to 8"),
        ({}, BUDGETS, {"offsets": ["senders"]}, r"offsets=\['senders'\]: pass a dict of the budget that a leaf is an"),
        ({}, BUDGETS, {"bos": 1}, r"offsets=.* is for a length for each leaf, and without bos; pass seq_len as a dict"),
        ({}, 9, {"most_documents": None}, r"offsets=.* is for a length for each leaf, and without bos"),
        ({}, BUDGETS, {"most_documents": None}, r"leaf 'energy' has one value a document; pass the most documents"),
    ],
)
def test_refused_budgets(second: Row, seq_len: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        len(from_source([GRAPH, {**GRAPH, **second}]).pack(seq_len, **{**OPTIONS, **options}))


@pytest.mark.parametrize(
    ("leaf", "value", "message"),
    [
        (
            "senders",
            np.arange(4, dtype=np.int32),
            r"row 1 has leaves of different lengths \(.*make leaves of one budget",
        ),
        ("label", np.zeros(2, np.float32), r"row 1: leaf 'label' has the shape \[2\], and no budget fits it in this"),
        (
            "nodes",
            np.zeros((3, 1), np.float32),
            r"row 1: leaf \['nodes'\] has entries of float32\[1\], in other rows",
        ),
        ("energy", np.zeros(7), r"row 1: leaf \['energy'\] has entries of float64\[7\], in other rows entries of"),
        ("nodes", np.float32(3), r"row 1: leaf 'nodes' is one number, but seq_len=.* names it; leave it out"),
    ],
)
def test_graphs_of_another_form(leaf: str, value: Any, message: str) -> None:
    with pytest.raises(LeafError, match=message):
        len(from_source([GRAPH, {**GRAPH, leaf: value}]).pack(BUDGETS, **OPTIONS))


def test_states_of_other_budgets_differ() -> None:
    data: Dataset = from_source(graphs([(4, 7), (3, 2)]))
    described = [
        str(data.pack(BUDGETS, **{**OPTIONS, **other}).order_facts)
        for other in ({}, {"offsets": {"senders": "nodes"}}, {"offsets": None}, {"add": ()}, {"most_documents": 5})
    ]
    assert len(set(described)) == 5


@pytest.mark.parametrize("sizes", [(1, 4), (40, 90)], ids=["short documents", "long documents"])
def test_rows_read_at_once_into_strided_memory_are_those_read_one_by_one(sizes: tuple[int, int]) -> None:
    random = np.random.default_rng(0)
    documents = [
        {"tokens": random.integers(1, 99, n), "pos": random.normal(size=(n, 3))} for n in random.integers(*sizes, 300)
    ]
    packed = from_source(documents).pack(96, method="best_fit", align=4, value=7)
    one_by_one = [packed[row] for row in range(len(packed))]
    together = packed.read(range(len(packed)))
    strided = {name: np.empty((2 * len(leaf), *leaf.shape[1:]), leaf.dtype)[::2] for name, leaf in together.items()}
    names = sorted(strided)
    boxes = [tuple((0, size) for size in strided[name].shape[1:]) for name in names]
    packed.source.read_into(np.arange(len(packed)), boxes, [strided[name] for name in names])
    for name in names:
        expected = np.stack([row[name] for row in one_by_one])
        np.testing.assert_array_equal(together[name], expected)
        np.testing.assert_array_equal(strided[name], expected)


def test_packing_a_list_reads_its_arrays_without_copying_or_sharing_them() -> None:
    documents = [{"tokens": np.arange(1, 9)}, {"tokens": np.arange(9, 17)}]
    for document in documents:
        document["tokens"].setflags(write=False)
    packed = from_source(documents).pack(8, method="best_fit")
    packed.read([0, 1])["tokens"][:] = 0
    assert packed.read([0, 1])["tokens"].tolist() == [[*range(1, 9)], [*range(9, 17)]]
    visits = Visits(np.arange(2), np.zeros(2, np.int64))
    lent = from_source(documents).source.lend_examples(visits)
    assert all(one["tokens"] is other["tokens"] for one, other in zip(lent, documents, strict=True))
    mapped = from_source(documents).map(lambda row: {"tokens": row["tokens"] * 2}).pack(8, method="best_fit")
    assert mapped.read([1])["tokens"].tolist() == [[*range(18, 34, 2)]]


def test_examples_of_an_object_that_reuses_a_buffer_are_not_lent() -> None:
    class Buffered:
        buffer = np.zeros(4, np.int64)

        def __len__(self) -> int:
            return 3

        def __getitem__(self, row: int) -> Any:
            self.buffer[:] = row + 1
            return {"tokens": self.buffer}

    packed = from_source(Buffered()).pack(8, method="best_fit")
    assert packed.read([0])["tokens"].tolist() == [[1] * 4 + [2] * 4]


def neighbours(sizes: list[int], missing: int) -> list[Row]:
    """Graphs with three neighbours of each node, of which some are missing."""
    random = np.random.default_rng(len(sizes))
    found = []
    for size in sizes:
        near = random.integers(0, size, (size, 3)).astype(np.int32)
        near[random.random((size, 3)) < 0.3] = missing
        found.append({"x": np.arange(size, dtype=np.float32), "near": near})
    return found


@pytest.mark.parametrize("missing", [-1, 99])
@pytest.mark.parametrize("stream", [False, True])
def test_missing_neighbours_stay_and_others_count_on(missing: int, stream: bool) -> None:
    given = neighbours([3, 2, 4, 1, 5, 2, 3, 3], missing)
    options: dict[str, Any] = {"method": "best_fit", "offsets": {"near": "x"}, "missing": missing, "value": missing}
    data = from_source(given)
    packed = data.pack({("x", "near"): 8}, **options)
    rows = [packed[index] for index in range(len(packed))]
    if stream:
        lanes = data.to_stream(lanes=2).pack({("x", "near"): 8}, **options)
        steps = [*Dataloader(lanes, 2, remainder="pad", partition=P(), num_workers=0).host_batches()]
        both = [{name: leaf[row] for name, leaf in step.items()} for step in steps for row in range(2)]
        rows = [row for row in both if row["mask"]]
    met = 0
    for row in rows:
        for number in range(1, int(row["x_segment_ids"].max()) + 1):
            inside = row["x_segment_ids"] == number
            begin = int(np.flatnonzero(inside)[0])
            near = row["near"][inside]
            own = np.where(near == missing, missing, near - begin).tolist()
            assert any(np.array_equal(own, graph["near"]) for graph in given)
            met += 1
        assert (row["near"][row["x_segment_ids"] == 0] == missing).all()
    assert met == len(given)


@pytest.mark.parametrize("index", [-1, -7, 3, 400])
@pytest.mark.parametrize("door", ["read", "columns", "loader", "stream", "one value"])
def test_an_index_out_of_its_graph_is_refused_by_row_and_leaf(index: int, door: str) -> None:
    given = neighbours([3, 2, 3, 1, 5, 2, 3, 3], 0)
    given[2]["near"][1, 2] = index
    budgets: Any = {("x", "near"): 8}
    options: dict[str, Any] = {"method": "best_fit", "offsets": {"near": "x"}}
    if door == "one value":
        given = [{"x": graph["x"], "near": graph["near"].reshape(-1)[5 % graph["near"].size]} for graph in given]
        budgets, options["most_documents"] = {"x": 8}, 8
    data = from_source(given).shuffle(seed=3)
    packed = data.pack(budgets, **options)

    def read() -> None:
        if door == "columns":
            boxes = [((0, 8), (2, 3)) if name == "near" else None for name in sorted(packed.spec)]
            out = [np.empty((len(packed), 8, 1), np.int32) if box else None for box in boxes]
            packed.source.read_into(np.arange(len(packed)), boxes, out)
        elif door == "loader":
            list(Dataloader(packed, 1, partition=P(), num_workers=1))
        elif door == "stream":
            stream = from_source(given).to_stream(lanes=2).pack(budgets, **options)
            list(Dataloader(stream, 2, remainder="pad", partition=P(), num_workers=0).host_batches())
        else:
            packed.read(range(len(packed)))

    remedy = f"pass missing={index} if" if index < 0 else "mend it in a map"
    message = rf"row 2: leaf 'near' has the index {index}, but 'x' has 3 entries there.*; {remedy}"
    with pytest.raises(LeafError, match=message):
        read()
    kept = data.pack(budgets, **options, missing=index if index < 0 else 400)
    if index != 3:
        kept.read(range(len(kept)))  # as advised
    if index == 400:
        with pytest.raises(LeafError, match="index 400"):
            data.pack(budgets, **options, missing=-1).read(range(len(kept)))


def test_missing_is_checked_and_in_the_state() -> None:
    data = from_source(neighbours([3, 2], -1))
    options: dict[str, Any] = {"method": "best_fit", "offsets": {"near": "x"}}
    wrong: list[tuple[Any, str]] = [
        (3, "missing=3 may be an index, of up to 7; pass another value, such as -1"),
        (-(2**40), "does not fit leaf 'near', which is int32; leave it out, or cast"),
        ("no", "missing='no': pass the value of indices that stays as it is, such as -1"),
    ]
    for missing, message in wrong:
        with pytest.raises(ArgumentError, match=message):
            _ = data.pack({("x", "near"): 8}, **options, missing=missing).spec
    with pytest.raises(ArgumentError, match="missing=-1 is for leaves of indices; name them in offsets="):
        data.pack({("x", "near"): 8}, method="best_fit", missing=-1)
    kept = data.pack({("x", "near"): 8}, **options, missing=-1)
    assert kept.order_facts != data.pack({("x", "near"): 8}, **options).order_facts
