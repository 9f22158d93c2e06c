"""`rename`, `keep` and `drop`: the leaves of examples, and what is read for them."""

import dataclasses
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from jax.sharding import Mesh, PartitionSpec

import loadax
from loadax import Dataloader, Dataset, from_arrays, from_documents, from_parquet, from_source, from_zarr, write_zarr
from loadax.errors import ArgumentError, LeafError
from loadax.sources.memory_array import MemoryArray
from loadax.sources.tables.parquet.parquet_files import ParquetFiles
from loadax.testing import check_source
from tests.laws.chain_rows import assert_row
from tests.sources.chunked import ChunkedSource

ROWS = 40
NESTED: dict[str, Any] = {
    "tokens": np.arange(ROWS * 4).reshape(ROWS, 4),
    "meta": {"user": np.arange(ROWS), "day": np.arange(ROWS) % 7},
}
NESTED_DATA = from_arrays(NESTED)
META = {"meta.user": "meta.user", "meta.day": "meta.day"}


class Pair(NamedTuple):
    image: Any
    label: Any


@dataclasses.dataclass
class Example:
    image: Any
    label: Any


@pytest.mark.parametrize(
    ("selected", "names"),
    [
        (lambda ds: ds.rename({"tokens": "inputs"}), {"inputs": "tokens", **META}),
        (
            lambda ds: ds.rename({"meta": "info"}),
            {"tokens": "tokens", "info.user": "meta.user", "info.day": "meta.day"},
        ),
        (lambda ds: ds.rename({"tokens": "meta.t"}), {"meta.t": "tokens", **META}),
        (
            lambda ds: ds.rename({"meta.user": "meta.day", "meta.day": "meta.user"}),
            {"tokens": "tokens", "meta.user": "meta.day", "meta.day": "meta.user"},
        ),
        (lambda ds: ds.keep("meta.user"), {"meta.user": "meta.user"}),
        (lambda ds: ds.keep("meta", "meta.user"), {"meta.user": "meta.user", "meta.day": "meta.day"}),
        (lambda ds: ds.keep(["tokens"]), {"tokens": "tokens"}),
        (lambda ds: ds.drop("meta.day").rename({"meta.user": "u"}), {"tokens": "tokens", "u": "meta.user"}),
        (lambda ds: ds.drop("meta"), {"tokens": "tokens"}),
    ],
)
def test_leaves_are_those_that_were_named(selected: Callable[[Dataset], Dataset], names: dict[str, str]) -> None:
    flat = {"tokens": NESTED["tokens"], **{f"meta.{key}": leaf for key, leaf in NESTED["meta"].items()}}
    sources = [
        NESTED_DATA,
        NESTED_DATA.map(lambda row: row),
        NESTED_DATA.map_batch(lambda batch: batch),
        from_source(list(NESTED_DATA)),
    ]
    for data in sources:
        made = selected(data.shuffle(seed=1))
        for position, row in enumerate(data.shuffle(seed=1).read(range(5))["meta"]["user"]):
            want: dict[str, Any] = {}
            for new, old in names.items():
                *above, last = new.split(".")
                place = want.setdefault(above[0], {}) if above else want
                place[last] = flat[old][row]
            assert_row(made[position], want)


@pytest.mark.parametrize("kind", [Pair, Example, lambda image, label: (image, label)])
def test_examples_of_other_containers_become_dicts(kind: Any) -> None:
    rows = [kind(np.full(2, row), np.int64(row)) for row in range(5)]
    names = ("0", "1") if type(rows[0]) is tuple else ("image", "label")
    columns = from_arrays(kind(np.full((5, 2), 1), np.arange(5)))
    for data in (from_source(rows), from_source(rows).map(lambda row: row), columns):
        assert sorted(data.rename({names[0]: "x", names[1]: "y"})[3]) == ["x", "y"]
        assert data.keep(names[1])[3] == {names[1]: 3}
    nested = from_source([{"pair": row, "z": 1} for row in rows])
    assert isinstance(nested.drop("z")[0]["pair"], type(rows[0]))  # as it was
    assert nested.drop(f"pair.{names[0]}")[2] == {"pair": {names[1]: 2}, "z": 1}


def test_rows_of_other_keys_and_objects_are_selected_by_name() -> None:
    rows = [{"n": np.int64(row), "text": "ab" * row, **({"more": object()} if row % 2 else {1: 2})} for row in range(6)]
    for data in (from_source(rows), from_source(rows).map(lambda row: row)):
        assert data.keep("n").read(range(6))["n"].tolist() == list(range(6))
        assert data.keep("text", "n")[4] == {"text": "ab" * 4, "n": 4}


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (
            lambda ds: ds.keep("token"),
            r"^keep\('token'\): there is no leaf 'token'; did you mean 'tokens'\? .* \['meta.day', 'meta.user', 'to",
        ),
        (lambda ds: ds.drop("x"), r"^drop\('x'\): there is no leaf 'x'; the names of leaves are"),
        (lambda ds: ds.rename({"meta.x": "y"}), r"^rename\(\{'meta.x': 'y'\}\): there is no leaf 'meta.x'"),
        (lambda ds: ds.rename({"tokens": "meta"}), "two leaves would be called 'meta'; rename or drop one"),
        (lambda ds: ds.rename({"meta.day": "meta.user"}), "two leaves would be called 'meta.user'"),
        (lambda ds: ds.rename({"meta.day": "tokens.day"}), "two leaves would be called 'tokens'"),
        (lambda ds: ds.drop("meta", "tokens"), r"^drop\('meta', 'tokens'\) leaves nothing of .*; keep at least one"),
    ],
)
def test_names_that_cant_be_used(call: Callable[[Dataset], Dataset], match: str) -> None:
    with pytest.raises(ArgumentError, match=match):
        call(NESTED_DATA)
    for data in (from_source(list(NESTED_DATA)), NESTED_DATA.map(lambda row: row)):
        with pytest.raises(LeafError, match="^row 2: .*" + match.strip("^$")):
            call(data[2:])[0]


def test_advice_of_names_that_cant_be_used_works() -> None:
    assert NESTED_DATA.drop("meta").rename({"tokens": "meta"})[1]["meta"].tolist() == [4, 5, 6, 7]
    bare = from_arrays(np.arange(4))
    with pytest.raises(
        ArgumentError, match=r"an example is a single leaf without a name; .*: \.map\(lambda x: \{'x': x\}\)"
    ):
        bare.keep("x")
    assert bare.map(lambda x: {"x": x}).keep("x")[2] == {"x": 2}


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda ds: ds.keep(), r"names=\(\): pass names of leaves, such as 'tokens', 'label'"),
        (lambda ds: ds.drop("a", 3), r"names=\('a', 3\): pass names of leaves, such as 'tokens', 'label'"),
        (lambda ds: ds.keep(3), r"names=3: pass a list of names"),
        (lambda ds: ds.rename("a"), r"names='a': pass new names by old ones: \{'tokens': 'inputs'\}"),
        (lambda ds: ds.rename({"a": 3}), r"names=\{'a': 3\}: pass new names by old ones"),
    ],
)
def test_arguments_that_are_no_names(call: Callable[[Dataset], Dataset], match: str) -> None:
    with pytest.raises(ArgumentError, match=match):
        call(NESTED_DATA)


# What is read.


def test_dropped_columns_of_parquet_are_not_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = {"n": np.arange(ROWS), "tokens": [list(range(row % 5)) for row in range(ROWS)], "text": ["x"] * ROWS}
    pyarrow.parquet.write_table(pa.table(table), tmp_path / "t.parquet", row_group_size=10)
    decoded, read = set(), ParquetFiles.read

    def watched(self: Any, groups: Any, columns: Any) -> Any:
        decoded.update(columns)
        return read(self, groups, columns)

    monkeypatch.setattr(ParquetFiles, "read", watched)
    data = from_parquet(tmp_path / "t.parquet")
    assert data.rename({"n": "m"}).keep("m").read([3, 30])["m"].tolist() == [3, 30]
    assert decoded == {("n",)}
    documents = data.drop("n", "text").rename({"tokens": "inputs"})
    in_memory = loadax.from_arrow(pa.table(table)).drop("n", "text").rename({"tokens": "inputs"})
    assert in_memory.source.lengths(np.arange(5)).tolist() == list(range(5))  # type: ignore[union-attr]
    assert documents.pack(8)[0]["inputs"].tolist() == [0, 0, 1, 0, 1, 2, 0, 1]
    assert decoded == {("n",), ("tokens",)}
    assert pickle.loads(pickle.dumps(documents))[3]["inputs"].tolist() == [0, 1, 2]


@pytest.mark.parametrize("joined", ["alone", "concat", "zip", "windows"])
def test_dropped_arrays_of_a_zarr_group_are_not_read(joined: str, tmp_path: Path) -> None:
    write_zarr({"a": np.arange(ROWS), "b": NESTED["tokens"]}, tmp_path / "z", shard_rows=20, chunk_rows=5)
    data = from_zarr(tmp_path / "z")
    shutil.rmtree(tmp_path / "z/b/c")
    made = {
        "alone": lambda: data.drop("b").rename({"a": "x"}),
        "concat": lambda: loadax.concat([data, data]).keep("a").rename({"a": "x"}),
        "zip": lambda: data.zip(data).keep("0.a").rename({"0.a": "x"}),
        "windows": lambda: data.windows(1).keep("a").rename({"a": "x"}),
    }[joined]()
    if joined == "alone":
        assert made.read([3, 30])["x"].tolist() == [3, 30]
        assert made.shuffle(seed=0, block="chunks").order.size == ROWS
        assert made.windows(2)[3]["x"].tolist() == [3, 4]
    loader = Dataloader(made, 8, num_workers=1)
    assert loader[0]["x"].reshape(-1).tolist() == list(range(8))


def test_dropped_memory_maps_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in "ab":
        np.save(tmp_path / f"{name}.npy", np.arange(ROWS) + (name == "b"))
    maps = {name: np.load(tmp_path / f"{name}.npy", mmap_mode="r") for name in "ab"}
    read: list[Any] = []
    into = MemoryArray.read_into

    def watched(self: MemoryArray, *given: Any) -> None:
        read.extend(self.addresses)
        into(self, *given)

    monkeypatch.setattr(MemoryArray, "read_into", watched)
    assert Dataloader(from_arrays(maps).keep("b"), 8)[0]["b"].tolist() == list(range(1, 9))
    assert {Path(address).name for address in read} == {"b.npy"}


@pytest.mark.parametrize("maps", ["none", "elementwise", "elementwise before", "elementwise twice"])
def test_partitions_over_columns_read_only_their_boxes(maps: str) -> None:
    tree = {"a": np.arange(ROWS * 6).reshape(ROWS, 6), "b": np.arange(ROWS), "c": np.arange(ROWS * 2).reshape(ROWS, 2)}
    source = ChunkedSource(tree, 10)
    data = from_source(source)

    def add(batch: Any) -> Any:
        return {name: leaf + 1 for name, leaf in batch.items()}

    more = {"none": 0, "elementwise": 1, "elementwise before": 1, "elementwise twice": 2}[maps]
    if maps in ("elementwise before", "elementwise twice"):
        data = data.map_batch(add, elementwise=True)
    data = data.rename({"a": "z"}).drop("b")
    if maps in ("elementwise", "elementwise twice"):
        data = data.map_batch(add, elementwise=True)
    data = data.rename({"c": "y"})
    assert data.reader.maps_columns
    mesh = Mesh(np.array(jax.devices()[:2]).reshape(1, 2), ("data", "model"))
    partition = {"z": PartitionSpec("data", "model"), "y": PartitionSpec("data")}
    loader = Dataloader(data, 10, mesh=mesh, partition=partition)
    batch = loader[1]
    assert batch["z"].tolist() == (tree["a"][10:20] + more).tolist()
    assert batch["y"].tolist() == (tree["c"][10:20] + more).tolist()
    assert [int(elements[10:20].max()) for elements in source.elements] == [1, 0, 1]  # b is not read
    planned = loadax.sharding.plan_mesh({"data": 1, "model": 2}, hosts=2, process=0)
    reading = Dataloader(data, 10, mesh=planned, partition=partition).explain().reading
    assert reading.nbytes.most == 10 * 8 * (3 + 2)


def test_what_a_rename_keeps_of_its_source() -> None:
    check_source(NESTED_DATA.drop("meta.day").rename({"tokens": "x"}).source, loader=False, rows=4)
    tokens, loss = np.arange(12), np.ones(12, bool)
    documents = from_documents({"tokens": tokens, "loss_mask": loss, "other": tokens}, [0, 3, 12])
    renamed = documents.rename({"tokens": "ids"}).drop("other")
    assert renamed.source.lengths(np.arange(2)).tolist() == [3, 9]  # type: ignore[union-attr]
    assert renamed.source.traits.reads_parts
    packed = renamed.pack(6)
    assert packed[1]["ids"].tolist() == list(range(6, 12))
    assert from_source(ChunkedSource(NESTED, 8)).rename({"tokens": "x"}).source.chunks == range(0, ROWS, 8)
    table = pa.table({"label": pa.array(["a", "b", "a"]).dictionary_encode(), "x": [1, 2, 3]})
    named = loadax.from_arrow(table).rename({"label": "target"}).drop("x")
    assert named.source.classes == {"target": ["a", "b"]}
    assert named.rename({"target": "t"}).source.classes == {"t": ["a", "b"]}
    array = np.arange(5)
    assert np.shares_memory(next(iter(from_arrays({"a": array}).rename({"a": "b"}).source.held(100))), array)


def test_random_maps_after_a_selection_get_the_same_numbers() -> None:
    def draw(row: Any, rng: np.random.Generator) -> Any:
        return rng.random()

    mapped = NESTED_DATA.map(lambda row: row)
    for data in (NESTED_DATA, mapped):
        want = data.map(draw, rng=True, seed=3).read(range(9))
        assert (data.drop("meta").rename({"tokens": "x"}).map(draw, rng=True, seed=3).read(range(9)) == want).all()


def test_other_selections_have_other_states() -> None:
    swapped = {"meta.user": "meta.day", "meta.day": "meta.user"}
    for data in (NESTED_DATA, NESTED_DATA.map(lambda row: row)):
        made = [
            data,
            data.rename(swapped),
            data.rename(swapped).rename(swapped),
            data.keep("meta"),
            data.drop("tokens"),
        ]
        states = [str(loadax.concat([each, each]).order_facts) for each in made]
        assert len({*states}) == len(made)
        assert data.keep("meta", "tokens").order_facts == data.keep("tokens", "meta").order_facts
    assert repr(NESTED_DATA.map(abs).keep("x")).endswith(".keep('x'))")


def test_ragged_rows_are_selected_between_maps() -> None:
    rows = [{"tokens": np.arange(row % 5), "text": "ab" * row, "objects": {1: 2, "a": row}} for row in range(12)]
    data = from_source(rows).map(lambda row: row)
    kept = data.drop("objects").keep("tokens")
    assert kept.pad({"tokens": 4}).drop("tokens_length").read(range(12))["tokens"].shape == (12, 4)
    assert data.pad({"tokens": 4}).drop("text", "objects").read(range(12))["tokens_length"][3] == 3
    assert kept.pack(8)[0]["tokens"].tolist() == [0, 0, 1, 0, 1, 2, 0, 1]
    assert kept.rename({"tokens": "x"}).map(lambda row: len(row["x"])).read([4, 8]).tolist() == [4, 3]
    stated = NESTED_DATA.map(lambda row: row, spec=NESTED_DATA.spec).keep("meta")
    assert stated.reader.probed == 0
    with pytest.raises(LeafError, match="pad them with"):
        kept.read(range(12))


def test_streams_are_selected() -> None:
    rows = [{"tokens": np.arange(1 + row % 5), "text": "a"} for row in range(80)]
    stream = from_source(rows).to_stream(lanes=8)
    renamed = stream.drop("text").rename({"tokens": "ids"})
    assert next(iter(Dataloader(renamed.pack(8), 8)))["ids"].shape == (8, 8)
    padded = next(iter(Dataloader(renamed.pad({"ids": 3}, truncate=True, side="left", add_lengths=False), 8)))
    assert [*padded] == ["ids"]
    assert sorted(padded["ids"].tolist()) == sorted([[0, 0, 0], [0, 0, 1], [0, 1, 2]] * 2 + [[1, 2, 3], [2, 3, 4]])
    assert stream.keep("tokens").order_facts != stream.keep("tokens").rename({"tokens": "ids"}).order_facts


def test_indices_and_caches_of_selected_leaves(tmp_path: Path) -> None:
    write_zarr(NESTED["tokens"], tmp_path / "z")
    write_zarr({"a": NESTED["tokens"], "b": np.arange(ROWS)}, tmp_path / "g")
    data = from_zarr(tmp_path / "g")
    for made in (data.keep("b"), data.rename({"b": "c"}).rename({"c": "b"})):
        for _ in range(2):
            assert len(made.filter(lambda row: row["b"] < 5, index=tmp_path / "index")) == 5
    stored = data.drop("a").rename({"b": "x"}).cache(tmp_path / "cache")
    assert stored.read(range(ROWS))["x"].tolist() == list(range(ROWS))
    ragged = from_source([{"t": np.arange(row % 3), "n": row} for row in range(9)]).cache(tmp_path / "ragged")
    shutil.rmtree(tmp_path / "ragged/n/c")
    assert ragged.keep("t")[2]["t"].tolist() == [0, 1]


@pytest.mark.processes
def test_worker_processes_select_leaves() -> None:
    for data in (NESTED_DATA.keep("meta.user"), NESTED_DATA.map_batch(dict).keep("meta.user")):
        with Dataloader(data, 8, num_workers=1, worker_type="process").iterate() as batches:
            assert next(batches)["meta"]["user"].tolist() == list(range(8))
