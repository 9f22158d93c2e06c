"""`group`: every row in one bin under budgets, as an oracle fits them, and read and mapped once."""

import logging
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import loadax
from loadax import Dataloader, Dataset
from loadax.core.distributed import Process
from loadax.errors import ArgumentError, LeafError, LeafTypeError, StreamError
from loadax.loader.trace import Record
from loadax.testing import check_source
from tests.laws.chain_verbs import Grouping, grouped_rows
from tests.limits import examples

ROWS = 200
NODES = np.random.default_rng(0).integers(1, 12, ROWS)
EDGES = np.random.default_rng(1).integers(0, 30, ROWS)
BUDGETS = {"nodes": 24, "edges": 60}
SIZES = {"nodes": NODES, "edges": EDGES}


def graph(row: int) -> dict[str, Any]:
    return {"nodes": np.full(NODES[row], row), "edges": np.full((EDGES[row], 2), row)}


def graphs() -> Dataset:
    return loadax.from_source([graph(row) for row in range(ROWS)])


def sizes_of(example: Any) -> dict[str, int]:
    return {name: len(leaf) for name, leaf in example.items()}


def batch_of_graphs(group: list[Any]) -> dict[str, Any]:
    found = {}
    for name, budget in BUDGETS.items():
        values = np.concatenate([each[name] for each in group])
        found[name] = np.concatenate([values, np.full((budget - len(values), *values.shape[1:]), -1)])
    return found


def rows_of(dataset: Dataset, epoch: int = 0) -> list[list[int]]:
    """The row that each example of each group was made of."""
    visits = dataset.order.visits(np.full(len(dataset), epoch), np.arange(len(dataset)))
    return [[int(each["nodes"][0]) for each in group] for group in dataset.reader.examples(visits)]


@settings(max_examples=examples(150), deadline=None)
@given(
    st.integers(1, 3).flatmap(
        lambda width: st.tuples(
            st.lists(st.lists(st.integers(0, 9), min_size=width, max_size=width), min_size=1, max_size=40),
            st.lists(st.integers(1, 12), min_size=width, max_size=width),
        )
    ),
    st.sampled_from(["best_fit", "first_fit"]),
    st.sampled_from([None, 1, 3, 8]),
    st.sampled_from([None, 1, 2, 5]),
)
def test_groups_are_those_of_an_oracle(made: Any, method: Any, window: Any, most: Any) -> None:
    sizes, budgets = made
    names = [f"leaf {number}" for number in range(len(budgets))]
    grouping = Grouping(dict(zip(names, budgets, strict=True)), method, "drop", window, most)
    wanted = grouped_rows(sizes, grouping)
    columns = dict(zip(names, np.array(sizes).T, strict=True))
    data = loadax.from_arrays(np.arange(len(sizes)))
    if not wanted:
        with pytest.raises(ArgumentError, match=r"larger than budgets=.*; pass larger ones$"):
            data.group(grouping.budgets, columns, method, "drop", window, most)
        return
    found = data.group(grouping.budgets, columns, method, "drop", window, most)
    assert [np.array(group).tolist() for group in found] == wanted
    if len(names) == 1:
        alone = data.group(budgets[0], columns[names[0]], method, "drop", window, most)
        assert [np.array(group).tolist() for group in alone] == wanted
    for group in wanted:
        totals = np.maximum([sizes[row] for row in group], 0).sum(axis=0)
        assert (totals <= budgets).all()


def test_sizes_by_function_and_by_arrays_group_alike() -> None:
    given_arrays, by_function = graphs().group(BUDGETS, SIZES), graphs().group(BUDGETS, sizes_of)
    assert rows_of(given_arrays) == rows_of(by_function)
    assert given_arrays.order_facts == by_function.order_facts
    assert dict(reversed(BUDGETS.items())) == BUDGETS
    assert graphs().group(dict(reversed(BUDGETS.items())), sizes_of).order_facts == by_function.order_facts
    rows = rows_of(by_function)
    assert sorted(row for group in rows for row in group) == list(range(ROWS))
    assert rows == sorted(map(sorted, rows))
    check_source(by_function.source, loader=False, pickled=False, rows=8)


def test_other_groups_have_another_description() -> None:
    others = [
        graphs().group(BUDGETS, SIZES),
        graphs().group({**BUDGETS, "nodes": 25}, SIZES),
        graphs().group(BUDGETS, SIZES, "first_fit"),
        graphs().group(BUDGETS, SIZES, long="drop"),
        graphs().group(BUDGETS, SIZES, window=7),
        graphs().group(BUDGETS, SIZES, most_rows=3),
        graphs().group(BUDGETS, {**SIZES, "edges": EDGES[::-1]}),
        graphs()[::-1].group(BUDGETS, {name: each[::-1] for name, each in SIZES.items()}),
        graphs().map(lambda row: row).group(BUDGETS, SIZES),
    ]
    described = [str(each.order.describe() + each.source.describe()) for each in others]
    assert len(set(described)) == len(others)


def test_each_row_is_read_and_mapped_once_per_group() -> None:
    mapped: list[int] = []

    def counted(example: Any) -> Any:
        mapped.append(int(example["nodes"][0]))
        return example

    grouped = graphs().map(counted).group(BUDGETS, SIZES).map(batch_of_graphs)
    _ = grouped.spec
    mapped.clear()
    loader = Dataloader(grouped, 8, num_workers=0)
    for batch in loader:
        assert batch["nodes"].shape == (8, 24)
    groups = rows_of(graphs().group(BUDGETS, SIZES))[: len(loader) * 8]
    assert mapped == [row for group in groups for row in group]


def test_random_maps_before_it_see_each_rows_own_number() -> None:
    def noisy(example: Any, row: int, rng: np.random.Generator) -> Any:
        return {"nodes": np.full(3, row), "noise": rng.random()}

    mapped = graphs().map(noisy, rng=True, with_index=True)
    grouped = mapped.group(BUDGETS, SIZES)
    for epoch in (0, 3):
        alone = mapped.read(range(ROWS), epoch)["noise"]
        visits = grouped.order.visits(np.full(len(grouped), epoch), np.arange(len(grouped)))
        for group in grouped.reader.examples(visits):
            assert [each["noise"] for each in group] == [alone[each["nodes"][0]] for each in group]
    with pytest.raises(ArgumentError, match=r"group\(\) reads rows once; call it before random maps"):
        mapped.group(BUDGETS, sizes_of)
    assert len(graphs().group(BUDGETS, sizes_of).map(lambda group, rng: rng.random(), rng=True)) == len(grouped)


def test_a_shuffle_before_it_groups_the_rows_of_epoch_0() -> None:
    shuffled = graphs().shuffle(3)
    grouped = shuffled.group(BUDGETS, sizes_of)
    order = shuffled.order.visits(np.zeros(ROWS, np.int64), np.arange(ROWS)).rows
    again = graphs().select(order).group(BUDGETS, sizes_of)
    assert rows_of(grouped) == rows_of(grouped, 1) == rows_of(again)
    with pytest.raises(ArgumentError, match=r"sizes= is by position, .*; call group\(\) first, then shuffle"):
        shuffled.group(BUDGETS, SIZES)
    assert sorted(rows_of(graphs().group(BUDGETS, SIZES).shuffle(3))) == rows_of(graphs().group(BUDGETS, SIZES))


def test_a_loader_of_groups_resumes_finds_traces_and_explains() -> None:
    grouped = graphs().group(BUDGETS, SIZES).shuffle(1).map(batch_of_graphs)
    groups = rows_of(graphs().group(BUDGETS, SIZES))
    loader = Dataloader(grouped, 8, num_workers=2)
    with loader.iterate(1) as batches:
        state = batches.get_state()
        second = next(batches)
    with Dataloader(grouped, 8, num_workers=0).iterate(state) as batches:
        np.testing.assert_array_equal(next(batches)["edges"], second["edges"])
    row = int(loader.rows(2)[1])
    assert loader.find(row) == [(2, 1)]
    record: Record = loader.trace(2)[1]
    assert [part.row for part in record.documents or ()] == groups[row]
    assert f"documents {groups[row][0]}" in repr(loader.trace(2))
    assert f"{ROWS} rows in groups of list object" in str(loader.explain())
    assert repr(graphs().group(BUDGETS, SIZES)).startswith(f"Dataset({len(grouped)} rows of {ROWS} rows in groups of")


def test_files_of_groups_are_those_of_their_rows(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(12).reshape(6, 2))
    grouped = loadax.from_npy(tmp_path / "x.npy").group(2, np.ones(6, int))
    assert {location.file for location in grouped.source.locate(1)} == {str(tmp_path / "x.npy")}
    assert len(grouped.source.locate(1)) == 2


def test_groups_are_split_filtered_and_joined() -> None:
    grouped = graphs().group(BUDGETS, SIZES)
    groups = rows_of(grouped)
    first, rest = grouped.split(0.5)
    assert sorted(rows_of(first) + rows_of(rest)) == groups
    assert rows_of(grouped.filter(lambda group: len(group) > 3)) == [group for group in groups if len(group) > 3]
    assert rows_of(loadax.concat([grouped, grouped[:2]])) == groups + groups[:2]
    zipped = loadax.zip({"group": grouped, "number": loadax.from_arrays(np.arange(len(grouped)))})
    assert [len(each["group"]) for each in zipped] == list(map(len, groups))
    assert [len(group) for group in grouped.flat_map(lambda group: [group, group[:1]], 2)][1::2] == [1] * len(groups)


def test_sizes_are_kept_in_an_index(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    calls: list[int] = []

    def sizes(example: Any) -> dict[str, int]:
        calls.append(1)
        return sizes_of(example)

    first = graphs().group(BUDGETS, sizes, index=tmp_path / "i", key="sizes")
    assert len(calls) == ROWS
    found = sorted(path.name for path in (tmp_path / "i").glob("*.json"))
    assert found == ["group-by-leaf-best_fit-60-24-error-4096-None.json", "group.json"]
    again = graphs().group(BUDGETS, sizes, index=tmp_path / "i", key="sizes")
    assert (len(calls), again.order_facts) == (ROWS, first.order_facts)
    graphs().group(BUDGETS, sizes, method="first_fit", index=tmp_path / "i", key="sizes")
    assert len(calls) == ROWS
    caplog.set_level(logging.WARNING, "loadax")
    graphs().group(BUDGETS, sizes, index=tmp_path / "i", key="other")
    assert len(calls) == 2 * ROWS
    assert "function or key differs" in caplog.text
    (tmp_path / "i" / "group.json").write_text((tmp_path / "i" / "group.json").read_text().replace("digest", "tsegid"))
    assert graphs().group(BUDGETS, sizes, index=tmp_path / "i", key="other").order_facts == first.order_facts
    assert len(calls) == 3 * ROWS


def test_an_interrupted_pass_goes_on_and_executors_share_it(tmp_path: Path) -> None:
    data = loadax.from_source(list(range(200)))

    def stops(number: int) -> int:
        if number == 150:
            raise KeyError("stop")
        return number % 5

    with pytest.raises(KeyError) as failed:
        data.group(9, stops, index=tmp_path / "i", key="v1")
    assert "goes on from there" in str(failed.value.__notes__)
    with ThreadPoolExecutor(2) as pool:
        grouped = data.group(9, lambda number: number % 5, index=tmp_path / "i", key="v1", executor=pool)
    assert grouped.order_facts == data.group(9, np.arange(200) % 5).order_facts


def test_unmapped_groups_name_the_map_that_is_missing(tmp_path: Path) -> None:
    missing = r"a row of group\(\) is a list of examples, which differ; make one shape of them: \.map\(fn\)"
    with pytest.raises(LeafError, match=missing):
        Dataloader(graphs().group(BUDGETS, SIZES), 8, num_workers=0)[0]
    mapped = graphs().group(BUDGETS, SIZES).map(batch_of_graphs)  # the advice
    assert Dataloader(mapped, 8, num_workers=0)[0]["edges"].shape == (8, 60, 2)
    assert mapped.read([])["nodes"].shape == (0, 24)
    with pytest.raises(LeafError, match=missing) as failed:
        graphs().group(BUDGETS, SIZES).cache(tmp_path, ragged=True)
    assert "ragged=True" not in str(failed.value.__notes__)


@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        ((0, len), ArgumentError, r"budgets=0: pass an int of 1 or more, or a dict of them by name"),
        (({}, len), ArgumentError, r"budgets=\{\}: pass an int of 1 or more, or a dict"),
        ((5, len, "split"), ArgumentError, r"method='split': pass 'best_fit' or 'first_fit'"),
        ((5, len, "best_fit", "cut"), ArgumentError, r"long='cut': pass 'error' or 'drop': what to do with rows"),
        ((5, 3), ArgumentError, r"sizes=3 is int64\[\]: pass int64\[200\] of values from 0 to 2\*\*40, one a position"),
        ((5, [[1], [2, 3]]), ArgumentError, r"sizes=\[\[1\], \[2, 3\]\] is float64\[\]: pass int64\[200\]"),
        (
            (5, -NODES),
            ArgumentError,
            r"sizes=an array of shape \[200\] is int64\[200\]: pass int64\[200\] of values from 0",
        ),
        ((BUDGETS, NODES), ArgumentError, r"sizes=an array .*: pass a function .*, or a dict of arrays: edges, nodes"),
        ((BUDGETS, {"nodes": NODES}), ArgumentError, r"sizes=\{'nodes': .*: pass a function of an example, or a dict"),
        ((BUDGETS, {**SIZES, "nodes": [1.5]}), ArgumentError, r"sizes\['nodes'\]=\[1.5\] is float64\[1\]: pass int64"),
        ((BUDGETS, lambda: 3), ArgumentError, r"has the arguments \(\), but is called as sizes\(example\)"),
        ((BUDGETS, len), LeafTypeError, r"group len returned 2 for row 0; return a dict of integers from 0: edges, no"),
        ((5, sizes_of), LeafTypeError, r"group sizes_of .* returned .* for row 0; return an integer from 0"),
        ((5, lambda row: -1), LeafTypeError, r"returned -1 for row 0; return an integer from 0"),
        (
            ({"nodes": 5, "edges": 60}, SIZES),
            ArgumentError,
            r"row 0 has size \d+, \d+, larger than budgets=.*'drop' to",
        ),
        (
            (1, np.full(ROWS, 2), "best_fit", "drop"),
            ArgumentError,
            r"row 0 has size 2, .*199 others of 200 rows; pass lar",
        ),
    ],
)
def test_what_cant_be_grouped(arguments: Any, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        graphs().group(*arguments)


def test_advice_about_groups_works() -> None:
    with pytest.raises(
        ArgumentError, match=r"row \d+ has size \d+, larger than budgets=8, as are \d+ others of 200 rows"
    ):
        graphs().group(8, NODES)
    assert len(graphs().group(11, NODES)) > 0
    dropped = graphs().group(8, NODES, long="drop")
    assert sorted(row for group in rows_of(dropped) for row in group) == np.flatnonzero(NODES <= 8).tolist()
    with pytest.raises(ArgumentError, match=r"index='i' is for a function, .*; leave it out"):
        graphs().group(11, NODES, index="i")
    with pytest.raises(ArgumentError, match=r"group\(\) of a dataset without rows; check its source"):
        graphs()[:0].group(11, sizes_of)
    endless = loadax.mix([graphs(), graphs()], [1, 1], stop="never")
    with pytest.raises(
        ArgumentError, match=r"group\(\) of a dataset that never ends; cut it: ds.subset_per_epoch\(range\(n\)\)"
    ):
        endless.group(BUDGETS, sizes_of)
    assert len(endless.subset_per_epoch(range(20)).group(BUDGETS, sizes_of)) > 1
    with pytest.raises(StreamError, match=r"group\(\): .*; group a dataset with random access"):
        graphs().to_stream(4).group(BUDGETS, sizes_of)


def test_runs_of_several_processes_need_an_index(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loadax.kept.kept_pass.this_process", lambda: Process(0, 2))
    with pytest.raises(ArgumentError, match=r"group\(\) without index=, in a run of 2 processes"):
        graphs().group(BUDGETS, sizes_of)
    assert len(graphs().group(BUDGETS, SIZES)) > 1
