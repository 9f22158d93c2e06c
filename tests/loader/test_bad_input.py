"""One test a message: what is wrong, where, and what to do.

As early as it can be known, and the user's own exceptions kept.
"""

import re
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import tensorstore as ts
from jax.sharding import AbstractMesh, NamedSharding
from jax.sharding import PartitionSpec as P

from loadax import Dataloader, Dataset, from_arrays, from_source, from_tensorstore
from loadax.errors import (
    ArgumentError,
    LeafError,
    LeafTypeError,
    LoadaxError,
    MeshError,
    PartitionError,
    RowIndexError,
    SourceError,
    StateError,
)
from loadax.protocols import ArraySpec, Integers
from loadax.sharding import plan_mesh
from tests.loader.oracle import mesh_of

GRID = {"data": 4, "model": 2}


def numbers(rows: int = 64) -> Dataset:
    return from_arrays({"x": np.arange(rows)})


def refused(error: type[Exception], match: str, data: Any = None, batch_size: Any = 8, **options: Any) -> None:
    """Refused at construction, before anything is read or placed."""
    with pytest.raises(error, match=match):
        Dataloader(numbers() if data is None else data, batch_size, **options)


# Data


def test_no_rows() -> None:
    refused(
        ArgumentError, "the dataset has no rows; check the data that it reads", from_arrays({"x": np.zeros((0, 3))})
    )
    refused(ArgumentError, "the dataset has no rows; check .* the slice", numbers()[:0])


def test_no_leaves() -> None:
    refused(SourceError, "the data has no arrays; pass at least one leaf", {})


def test_leaves_whose_lengths_differ() -> None:
    tree = {"x": np.arange(8), "y": {"z": np.arange(9)}}
    refused(
        SourceError,
        r"different numbers of rows \(\['x'\]: 8, \['y'\]\['z'\]: 9\); dim 0 of every leaf must be equal",
        tree,
    )


def test_a_leaf_that_is_no_array() -> None:
    refused(
        SourceError,
        r"leaf \['y'\] is range range\(0, 2\), not an array; pass NumPy arrays",
        {"x": np.arange(2), "y": range(2)},
    )


def test_neither_arrays_nor_items() -> None:
    refused(
        ArgumentError,
        "the data is an int without __len__ and __getitem__, so it has no random access; pass a Source",
        7,
    )


@pytest.mark.parametrize(
    ("values", "shown"),
    [
        (np.array(["a"] * 8), "<U1"),
        (np.array([b"a"] * 8), r"\|S1"),
        (np.array([None] * 8), r"object \(strings, bytes, None, or values of several kinds\)"),
        (np.zeros(8, "datetime64[s]"), r"datetime64\[s\]"),
        (np.zeros(8, [("a", "i4")]), r"\[\('a', '<i4'\)\]"),
    ],
)
def test_what_is_no_number(values: Any, shown: str) -> None:
    refused(
        LeafTypeError,
        rf"leaf \['y'\] has dtype {shown}; JAX arrays are numeric. Drop it or encode it in a map",
        {"y": values},
    )


def test_strings_among_objects() -> None:
    data = from_source([{"text": "a", "x": 1}] * 8)
    refused(
        LeafTypeError,
        r"leaf \['text'\] has dtype object \(strings, bytes, None, or values of several kinds\); JAX arrays are",
        data,
    )
    batch = next(iter(Dataloader(data.map(lambda example: {"length": len(example["text"])}), 8, num_workers=0)))
    assert batch["length"].tolist() == [1] * 8


@pytest.mark.parametrize("value", [2**31, -(2**31) - 1, 2**62])
@pytest.mark.parametrize("mapped", [False, True])
def test_an_int64_that_does_not_fit(value: int, mapped: bool) -> None:
    ids = np.arange(32, dtype=np.int64)
    ids[19] = value
    data = from_arrays({"id": ids})
    loader = Dataloader(data.map_batch(lambda batch: batch) if mapped else data, 8, num_workers=1)
    with iter(loader) as batches:
        assert [next(batches)["id"][0] for _ in range(2)] == [0, 8]
        with pytest.raises(
            LeafError, match=rf"leaf \['id'\]: the int64 value {value} does not fit int32. Set jax_enable_x64"
        ) as caught:
            next(batches)
        assert "loadax: in step 2" in notes(caught.value)
    with pytest.raises(LeafError, match=f"the int64 value {value} does not fit int32"):
        loader[2]
    with pytest.raises(LeafError, match=f"the int64 value {value} does not fit int32"):
        loader.host_batch(2)


def test_a_uint64_that_does_not_fit() -> None:
    with pytest.raises(LeafError, match=rf"the only leaf: the uint64 value {2**64 - 1} does not fit uint32"):
        Dataloader(np.full(8, 2**64 - 1, np.uint64), 8)[0]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_row_whose_shape_differs(workers: int) -> None:
    examples = [{"x": np.zeros(3, np.float32)} for _ in range(32)]
    examples[21] = {"x": np.zeros(4, np.float32)}
    with iter(Dataloader(examples, 8, num_workers=workers)) as batches:
        next(batches)
        next(batches)
        with pytest.raises(
            LeafError, match=r"row 21: leaf \['x'\] is float32\[4\], expected float32\[3\]; rows are ragged"
        ) as caught:
            next(batches)
    assert "loadax: in step 2" in notes(caught.value)


def test_a_row_whose_dtype_differs() -> None:
    with pytest.raises(LeafError, match=r"row 3: leaf of the example is float64\[\], expected int64\[\]"):
        Dataloader([1, 2, 3, 4.5, 5, 6, 7, 8], 8)[0]


def test_a_row_with_other_leaves() -> None:
    with pytest.raises(LeafError, match=r"row 2 has the leaves \['y'\], the rows before it had \['x'\]; return"):
        Dataloader([{"x": 1}, {"x": 2}, {"y": 3}, *[{"x": 1}] * 5], 8)[0]


def test_a_mapped_row_whose_shape_differs_names_row_and_map() -> None:
    def ragged(example: Any) -> Any:
        return {"x": np.zeros(2 + (example["x"] == 13), np.float32)}

    with pytest.raises(LeafError, match=r"row 13: leaf \['x'\] is float32\[3\], expected float32\[2\]") as caught:
        Dataloader(numbers().map(ragged), 8)[1]
    assert "loadax: returned by map " in notes(caught.value)
    assert "ragged" in notes(caught.value)


def test_a_map_that_breaks_its_own_spec() -> None:
    data = numbers().map(lambda example: {"x": np.float32(0)}, spec={"x": jax.ShapeDtypeStruct((2,), np.float32)})
    with pytest.raises(LeafError, match=r"row 0: leaf \['x'\] is float32\[\], expected float32\[2\]"):
        Dataloader(data, 8)[0]


def test_a_map_batch_that_loses_rows() -> None:
    data = numbers().map_batch(lambda batch: {"x": batch["x"][:5]})
    with pytest.raises(
        LeafError, match=r"map_batch .* gave leaf \['x'\] as int64\[5\] for 8 rows, expected int64\[8\]"
    ):
        Dataloader(data, 8)[0]


def test_an_elementwise_map_that_changes_a_dtype_later() -> None:
    def fickle(batch: Any) -> Any:
        return {"x": batch["x"].astype(np.float32) if len(batch["x"]) > 1 else batch["x"]}

    loader = Dataloader(numbers().map_batch(fickle, elementwise=True), 16)
    with pytest.raises(
        LeafError,
        match=r"map_batch .*fickle.* returned leaf \['x'\] as float32\[16\], expected int64\[16\]: an elementwise",
    ):
        loader[0]


def test_an_elementwise_map_that_changes_a_shape() -> None:
    data = numbers().map_batch(lambda batch: {"x": np.stack([batch["x"]] * 2, axis=1)}, elementwise=True)
    refused(ArgumentError, "is elementwise=True, but its result and its input differ in leaves or shapes", data)


class Broken:
    """A source that keeps its contract up to a row."""

    spec = ArraySpec((), np.dtype(np.int32))

    def __init__(self, answer: Callable[[Integers], Any]):
        self._answer = answer

    def __len__(self) -> int:
        return 64

    def read(self, rows: Integers) -> Any:
        return self._answer(rows)


def test_a_source_that_gives_other_shapes_than_it_said() -> None:
    loader = Dataloader(from_source(Broken(lambda rows: np.zeros((len(rows), 2), np.int32))), 8)
    with pytest.raises(
        LeafError,
        match=r"the source's read of 8 rows \(8, 9, 10, 11, 12, 13, 14, 15\) gave leaf of the batch as int32\[8, 2\]",
    ):
        loader[1]


def test_a_source_that_gives_fewer_rows() -> None:
    with pytest.raises(LeafError, match=r"as int32\[1\] for 8 rows, expected int32\[8\]"):
        Dataloader(from_source(Broken(lambda rows: rows[:1].astype(np.int32))), 8)[0]


def test_a_source_that_raises() -> None:
    def fails(rows: Integers) -> Any:
        raise OSError("the disk is gone")

    with pytest.raises(OSError, match="the disk is gone") as caught:
        next(iter(Dataloader(from_source(Broken(fails)), 8)))
    assert "loadax: in step 0" in notes(caught.value)


def test_an_item_that_raises_names_its_row() -> None:
    class Items:
        def __len__(self) -> int:
            return 32

        def __getitem__(self, row: int) -> int:
            if row == 17:
                raise KeyError("lost")
            return row

    with iter(Dataloader(Items(), 8)) as batches, pytest.raises(KeyError, match="lost") as caught:
        list(batches)
    assert "loadax: in Items[17]" in notes(caught.value)
    assert "loadax: in step 2" in notes(caught.value)


def test_a_missing_chunk(tmp_path: Path) -> None:
    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": str(tmp_path / "x")}}
    metadata = {
        "shape": [32, 4],
        "data_type": "int32",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [4, 4]}},
    }
    store = ts.open({**spec, "metadata": metadata, "create": True}).result()
    store.write(np.arange(1, 129, dtype=np.int32).reshape(32, 4)).result()
    (tmp_path / "x" / "c" / "5" / "0").unlink()
    with iter(Dataloader(from_tensorstore({"field": spec}), 8)) as batches:
        next(batches)
        next(batches)
        with pytest.raises(SourceError, match=r"leaf \['field'\] at .*: .*chunk.*; the copy is incomplete") as caught:
            next(batches)
    assert "loadax: in step 2" in notes(caught.value)


# Users' functions


class Mine(Exception):  # noqa: N818
    """A user's own."""


def fails_on_13(example: Any) -> Any:
    if example["x"] == 13:
        raise Mine("as the user wrote it")
    return example


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_a_map_that_raises(workers: int) -> None:
    loader = Dataloader(numbers().map(fails_on_13), 8, num_workers=workers)
    with iter(loader) as batches:
        next(batches)
        for _ in range(2):  # again at each further call
            with pytest.raises(Mine, match="as the user wrote it") as caught:
                next(batches)
            said = notes(caught.value)
            assert said.count("loadax: in step 1") == 1
            assert "fails_on_13" in said
            assert "row 13 in epoch 0" in said
            assert "fails_on_13" in "".join(traceback.format_tb(caught.value.__traceback__))
        assert batches.step == 1
        assert batches.get_state()["step"] == 1
    assert loader[2]["x"].tolist() == list(range(16, 24))


def test_a_map_that_raises_in_a_later_epoch_names_row_and_epoch() -> None:
    def fails(example: Any, rng: np.random.Generator) -> Any:
        calls.append(1)
        if len(calls) > 1 + 64 + 8 and example["x"] == 8:
            raise Mine
        return example

    calls: list[int] = []
    with (
        pytest.raises(Mine) as caught,
        iter(Dataloader(numbers().map(fails, rng=True), 8, num_epochs=3, num_workers=0)) as batches,
    ):
        for _ in batches:
            pass
    assert "on row 8 in epoch 1" in notes(caught.value)
    assert "loadax: in step 9" in notes(caught.value)


def test_a_map_that_raises_on_the_first_row_does_so_at_construction() -> None:
    def fails(example: Any) -> Any:
        raise Mine("at once")

    with pytest.raises(Mine, match="at once") as caught:
        Dataloader(numbers().map(fails), 8)
    assert "on row 0 in epoch 0" in notes(caught.value)


def test_a_map_batch_that_raises_names_rows_and_step() -> None:
    def fails(batch: Any) -> Any:
        if (batch["x"] == 20).any():
            raise Mine
        return batch

    with pytest.raises(Mine) as caught, iter(Dataloader(numbers().map_batch(fails), 8)) as batches:
        for _ in batches:
            pass
    assert "fails" in notes(caught.value)
    rows = re.search(r"on (?:row|\d+ rows) \(?([\d, ]+)", notes(caught.value))
    assert rows is not None
    named = [int(row) for row in rows[1].split(", ")]
    # Of a step that is read in several pieces, the rows of the piece that failed.
    assert 20 in named
    assert named == list(range(named[0], named[0] + len(named)))
    assert "loadax: in step 2" in notes(caught.value)
    assert batches.step == 2


# Meshes and partitions


def test_a_batch_that_the_mesh_cant_cut_whatever_the_remainder() -> None:
    for remainder in ("drop", "pad"):
        for partition in (P("data"), {"x": P("data")} | ({"mask": P()} if remainder == "pad" else {})):
            refused(
                PartitionError,
                r"leaf \['.*'\]: dim 0 has 12 rows, .*'data'.* splits it into 8 equal parts. "
                r"Use a batch_size that is a multiple of 8",
                batch_size=12,
                mesh=mesh_of({"data": 8}),
                partition=partition,
                remainder=remainder,
            )


def test_the_same_with_a_mesh_of_the_caller_and_without_any() -> None:
    with jax.set_mesh(mesh_of({"data": 8})):
        refused(PartitionError, "dim 0 has 12 rows", batch_size=12)
    loader = Dataloader(numbers(), 12)
    with pytest.raises(PartitionError, match="dim 0 has 12 rows"):
        iter(loader)


def test_columns_that_the_mesh_cant_cut() -> None:
    refused(
        PartitionError,
        r"leaf \['x'\]: dim 1 has 3 columns, .* splits it into 2 equal parts. Pad it to a multiple of 2 in a map",
        {"x": np.zeros((8, 3))},
        mesh=mesh_of(GRID),
        partition=P("data", "model"),
    )


def test_several_axes_and_no_partition() -> None:
    match = (
        r"the mesh has several axes, \{'data': 4, 'model': 2\}, "
        r"so name the ones to split rows over: partition=P\(\"data\"\)"
    )
    refused(PartitionError, match, mesh=mesh_of(GRID))
    with jax.set_mesh(mesh_of(GRID)):
        refused(PartitionError, match)


def test_an_unknown_axis() -> None:
    refused(
        PartitionError,
        r"leaf \['x'\]: .*'batch'.* names the axis 'batch', but the mesh has \{'data': 4, 'model': 2\}: "
        r"use one of these",
        mesh=mesh_of(GRID),
        partition=P("batch"),
    )


def test_an_axis_used_twice() -> None:
    refused(
        PartitionError,
        "uses the axis 'data' twice",
        {"x": np.zeros((8, 8))},
        mesh=mesh_of(GRID),
        partition=P("data", "data"),
    )


def test_a_spec_longer_than_its_own_leafs_rank() -> None:
    tree = {"x": np.zeros((8, 4)), "y": np.zeros(8)}
    mesh = mesh_of(GRID)
    refused(
        PartitionError,
        r"leaf \['y'\] has 1 dim, .* has 2 entries: use ",
        tree,
        mesh=mesh,
        partition={"x": P("data", "model"), "y": P("data", "model")},
    )
    refused(
        PartitionError,
        "the only leaf has 1 dim, .* has 2 entries",
        np.zeros(8),
        mesh=mesh,
        partition=P("data", "model"),
    )
    for given_for_several in (P("data", "model"), {"x": P("data", "model"), "y": P("data")}):
        Dataloader(tree, 8, mesh=mesh, partition=given_for_several)


def test_a_partition_for_other_leaves() -> None:
    refused(
        ArgumentError,
        r"the keys are \['z'\]; pass those of the data: \['x'\]",
        mesh=mesh_of(GRID),
        partition={"z": P("data")},
    )


def test_a_partition_that_is_none() -> None:
    refused(
        ArgumentError,
        r"leaf \['x'\]: its partition is 'data', a str: write P\('data'\)",
        partition="data",
        mesh=mesh_of(GRID),
    )
    refused(
        PartitionError, r"leaf \['x'\]: its partition is None: use P\(\)", partition={"x": None}, mesh=mesh_of(GRID)
    )


def test_rules_without_a_batch() -> None:
    refused(
        PartitionError,
        "has no rule for 'batch' with axes of the mesh",
        partition=(("embed", "model"),),
        mesh=mesh_of(GRID),
    )


def test_a_sharding_on_another_mesh() -> None:
    sharding = NamedSharding(mesh_of(GRID), P("data"))
    refused(
        MeshError,
        r"leaf \['x'\]: its partition is a NamedSharding on .*, but the loader's mesh is",
        partition=sharding,
        mesh=mesh_of({"data": 8}),
    )


def test_what_is_no_mesh() -> None:
    refused(ArgumentError, "mesh='data' is a str: pass a jax.sharding.Mesh", mesh="data")
    refused(MeshError, "has no devices: pass a jax.sharding.Mesh", mesh=AbstractMesh((8,), ("data",)))


def test_placing_on_a_mesh_that_is_not_there() -> None:
    loader = Dataloader(numbers(), 8, mesh=plan_mesh({"data": 8}, hosts=8))
    for use in (iter, lambda loader: loader[0]):
        with pytest.raises(
            MeshError,
            match=r"PlannedMesh\(data=8; 8 hosts, as process 0\) is for planning only: arrays can't be placed",
        ):
            use(loader)


def test_another_mesh_in_the_middle() -> None:
    loader = Dataloader(numbers(), 8)
    with jax.set_mesh(mesh_of({"data": 8})), iter(loader) as batches:
        next(batches)
        with (
            jax.set_mesh(mesh_of({"x": 8})),
            pytest.raises(MeshError, match=r"batches are for .*'data'.* this thread is .*'x'.* pass mesh="),
        ):
            next(batches)
        assert next(batches)["x"].tolist() == list(range(8, 16))


# Shares


@pytest.mark.parametrize(
    ("index", "count", "match"),
    [
        (0, None, "shard_index=0 and shard_count=None: pass both, or neither"),
        (None, 2, "shard_index=None and shard_count=2: pass both, or neither"),
        (2, 2, "shard_index=2 is out of range for shard_count=2; pass 0 to 1"),
        (-1, 2, "shard_index=-1 is out of range for shard_count=2; pass 0 to 1"),
        (0, 0, "shard_count=0: pass 1 or more"),
        (0, 3, "batch_size=8 can't be split into shard_count=3 equal parts; use a multiple of 3"),
        (0.0, 2, "shard_index=0.0: pass an int"),
        (0, "2", "shard_count='2': pass an int"),
    ],
)
def test_shares_that_are_none(index: Any, count: Any, match: str) -> None:
    refused(ArgumentError, match, shard_index=index, shard_count=count)


def test_shares_that_dont_fit_the_mesh() -> None:
    mesh = plan_mesh({"data": 8}, owners=[0, 1] * 4, process=1)
    match = (
        r"shard_index=1 of shard_count=2 is rows 8 to 15 of a batch of 16, "
        r"but on this mesh this process holds 8 rows, from 2 to 15; leave shard_index and shard_count out"
    )
    refused(PartitionError, match, batch_size=16, mesh=mesh, shard_index=1, shard_count=2)
    refused(
        PartitionError,
        "holds 4 rows, from 0 to 3",
        mesh=plan_mesh({"data": 8}, hosts=2),
        shard_index=0,
        shard_count=4,
    )


def test_a_share_that_the_mesh_cant_cut() -> None:
    refused(PartitionError, "dim 0 has 4 rows", mesh=mesh_of({"data": 8}), shard_index=1, shard_count=2)


# Remainders and masks


def test_fewer_rows_than_a_batch() -> None:
    refused(
        ArgumentError,
        r"batch_size=72 but the dataset has only 64 rows: remainder='drop' would leave no batch",
        batch_size=72,
    )


def test_a_remainder_that_is_an_error() -> None:
    refused(
        ArgumentError,
        r"remainder='error': 64 rows leave 16 over after batches of batch_size=24",
        batch_size=24,
        remainder="error",
    )


def test_a_mask_that_has_no_place() -> None:
    def says(problem: str) -> str:
        return (
            rf"a leaf 'mask' is to be added to every batch, but an example {problem}; "
            "make examples dicts without that key in a map, or leave out remainder='pad'"
        )

    refused(ArgumentError, says("already has the key 'mask'"), {"mask": np.arange(8)}, remainder="pad")
    refused(ArgumentError, says("is a tuple"), (np.arange(8), np.arange(8)), remainder="pad")
    refused(ArgumentError, says("is one bare array"), np.arange(8), remainder="pad")


def test_a_mask_key_without_padding_is_just_a_leaf() -> None:
    assert Dataloader({"mask": np.arange(8)}, 8)[0]["mask"].tolist() == list(range(8))


# Arguments


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"batch_size": 0}, ArgumentError, "batch_size=0: a batch needs at least one row"),
        ({"batch_size": -8}, ArgumentError, "batch_size=-8"),
        ({"batch_size": 8.0}, ArgumentError, "batch_size=8.0: pass an int"),
        ({"batch_size": True}, ArgumentError, "batch_size=True: pass an int"),
        ({"num_epochs": 0}, ArgumentError, "num_epochs=0: pass 1 or more, or None for endless epochs"),
        ({"num_epochs": 1.5}, ArgumentError, "num_epochs=1.5: pass an int"),
        ({"remainder": "keep"}, ArgumentError, "remainder='keep': pass 'drop', 'pad' or 'error'"),
        ({"num_workers": -1}, ArgumentError, "num_workers=-1: pass 0 or more"),
        ({"num_workers": "two"}, ArgumentError, "num_workers='two': pass an int"),
        ({"prefetch": -1}, ArgumentError, "prefetch=-1: pass 0 or more"),
        ({"prefetch_bytes": 0}, ArgumentError, "prefetch_bytes=0: pass 1 or more"),
        ({"worker_type": "green"}, ArgumentError, "worker_type='green': pass 'thread' or 'process'"),
    ],
)
def test_arguments(options: dict[str, Any], error: type[Exception], match: str) -> None:
    refused(error, match, **options)


@pytest.mark.parametrize("step", [-1, 8, 10**20])
def test_a_step_that_is_not_there(step: int) -> None:
    loader = Dataloader(numbers(), 8)
    for ask in (loader.rows, loader.local_rows, loader.host_batch, loader.__getitem__):
        with pytest.raises(RowIndexError, match=f"step {step} is out of range: steps are at least 0 and below 8"):
            ask(step)


def test_a_step_that_is_no_number() -> None:
    with pytest.raises(ArgumentError, match=r"step=1\.0: pass an int"):
        Dataloader(numbers(), 8)[1.0]  # type: ignore[index]


def test_the_length_of_what_never_ends() -> None:
    loader = Dataloader(numbers(), 8, num_epochs=None)
    with pytest.raises(TypeError, match="num_epochs=None: the loader is infinite and has no len"):
        len(loader)
    assert loader.steps_per_epoch == 8


# States


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (
            {"order": "f" * 16},
            r"the state's 'order' is 'ffffffffffffffff', this dataset's is '[0-9a-f]{16}': its length, element spec",
        ),
        ({"order": 7}, r"the state's 'order' is 7, this dataset's is \d+: its length, element spec"),
        ({"version": 2}, "the state's 'version' is 2, this loadax reads 1; restore it with the loadax that saved it"),
        ({"step": -1}, "the state's 'step' is -1; it must be an int of at least 0"),
        ({"step": True}, "the state's 'step' is True"),
        ({"position": 1.5}, r"the state's 'position' is 1\.5"),
        ({"epoch": "0"}, "the state's 'epoch' is '0'"),
        (
            {"batch_size": 16, "position": 20},
            "the state's 'position' is 20, inside a batch of batch_size=8 .*saved with 16",
        ),
        ({"step": 99, "epoch": 9}, "start is step .*, but there are 8 steps"),
    ],
)
def test_a_state_that_does_not_fit(change: dict[str, Any], match: str) -> None:
    loader = Dataloader(numbers(), 8)
    with iter(loader) as batches:
        next(batches)
        state = {**batches.get_state(), **change}
        with pytest.raises(StateError, match=match):
            batches.set_state(state)
        assert next(batches)["x"].tolist() == list(range(8, 16))  # nothing has changed
    with pytest.raises(StateError, match=match):
        loader.iterate(state)
    with pytest.raises(StateError, match=match):
        next(loader.epochs(state))


def test_what_is_no_state() -> None:
    loader = Dataloader(numbers(), 8)
    with pytest.raises(StateError, match=r"the state has no 'version': \{'a': 1\}; pass a state of get_state\(\)"):
        loader.iterate({"a": 1})
    for wrong in ("3", 1.5, True):
        with pytest.raises(StateError, match=rf"start={wrong!r}: pass a step \(an int\), or a state of get_state\(\)"):
            loader.iterate(wrong)
    with pytest.raises(StateError, match="start is step -1, but steps are counted from 0; pass 0 for the first one"):
        loader.iterate(-1)
    with pytest.raises(StateError, match="start is step -1, but steps are counted from 0"):
        Dataloader(numbers(), 8, num_epochs=None).iterate(-1)


@pytest.mark.parametrize(
    "other",
    [
        numbers(65),
        numbers().shuffle(seed=0),
        numbers()[::-1],
        from_arrays({"y": np.arange(64)}),
        from_arrays({"x": np.arange(64, dtype=np.int32)}),
        numbers().map(lambda example: example),
    ],
)
def test_a_state_of_another_dataset(other: Dataset) -> None:
    with iter(Dataloader(numbers(), 8)) as batches:
        next(batches)
        state = batches.get_state()
    with pytest.raises(StateError, match="the state's 'order' is"):
        Dataloader(other, 8).iterate(state)


# What was closed


def test_an_iterator_that_is_closed() -> None:
    batches = iter(Dataloader(numbers(), 8))
    next(batches)
    batches.close()
    with pytest.raises(
        LoadaxError, match=r"this iterator is closed; make a new one with iter\(loader\), or loader.iterate"
    ):
        next(batches)


def notes(error: BaseException) -> str:
    return "\n".join(getattr(error, "__notes__", []))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda data: data.map(lambda example: None),
            r"map .*returned None for row \d+; did you forget to return the example\?",
        ),
        (
            lambda data: data.map_batch(lambda batch: None),
            r"map_batch .*returned None; did you forget to return the batch\?",
        ),
        (lambda data: data.map(lambda example: {}), "an example has no leaves: it is {}, so batches would be empty"),
    ],
)
def test_a_map_that_returns_nothing(change: Any, message: str) -> None:
    with pytest.raises(LoadaxError, match=message):
        Dataloader(change(numbers()), 8)


def test_a_row_that_is_none() -> None:
    items = [{"x": 1.0}] * 8 + [None] * 8
    with pytest.raises(LeafError, match="row 8: list returned None instead of an example; return one for every row"):
        list(Dataloader(items, 8))


def test_a_loader_of_a_loader() -> None:
    with pytest.raises(ArgumentError, match="data is already a Dataloader; pass its dataset"):
        Dataloader(Dataloader(numbers(), 8), 8)


@pytest.mark.parametrize("rng", [42, np.random.default_rng(0), None])
def test_an_rng_that_is_no_flag(rng: Any) -> None:
    with pytest.raises(ArgumentError, match=r"rng=.*: pass True or False; pass the seed of the generators as seed="):
        numbers().map(lambda example: example, rng=rng)


def test_a_state_that_is_still_text() -> None:
    with pytest.raises(StateError, match=r"this is text, so json\.loads it first"):
        Dataloader(numbers(), 8).iterate('{"version": 1}')


@pytest.mark.parametrize("workers", [0, 2])
def test_a_stop_iteration_of_a_map_is_no_end_of_the_data(workers: int) -> None:
    def exhausted(example: Any) -> Any:
        if example["x"] == 20:
            next(iter([]))
        return example

    with pytest.raises(RuntimeError, match=r"map .*exhausted \(.*\) raised StopIteration\(\)") as caught:
        list(Dataloader(numbers().map(exhausted), 8, num_workers=workers))
    assert isinstance(caught.value.__cause__, StopIteration)
    assert "exhausted" in notes(caught.value)
    assert "on row 20 in epoch 0" in notes(caught.value)
    assert "loadax: in step 2" in notes(caught.value)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_stop_iteration_of_a_source_is_no_end_of_the_data(workers: int) -> None:
    class Numbers:
        def __len__(self) -> int:
            return 64

        def __getitem__(self, row: int) -> Any:
            return {"x": row if row != 20 else next(iter([]))}

    with pytest.raises(RuntimeError, match=r"the source raised StopIteration\(\)") as caught:
        list(Dataloader(from_source(Numbers()), 8, num_workers=workers))
    assert "loadax: in step 2" in notes(caught.value)
    assert caught.value.__cause__ is not None
    assert "loadax: in Numbers[20]" in notes(caught.value.__cause__)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", [SystemExit, GeneratorExit])
def test_what_would_end_the_program_is_an_error(kind: type[BaseException], workers: int) -> None:
    """Else a run that is half trained ends with exit code 0, without a word."""

    def leaves(example: Any) -> Any:
        if example["x"] == 20:
            raise kind(0)
        return example

    def leaves_batch(batch: Any) -> Any:
        for row in batch["x"]:
            leaves({"x": row})
        return batch

    for data, where in (
        (numbers().map(leaves), "on row 20 in epoch 0"),
        (numbers().map(lambda example, rng: leaves(example), rng=True), "on row 20 in epoch 0"),
        (numbers().map_batch(leaves_batch), "in map_batch"),
    ):
        with iter(Dataloader(data, 8, num_workers=workers)) as batches:
            assert [next(batches)["x"][0] for _ in range(2)] == [0, 8]
            with pytest.raises(RuntimeError, match=rf"raised {kind.__name__}\(0\)") as caught:
                next(batches)
        assert where in notes(caught.value)
        assert "loadax: in step 2" in notes(caught.value)
    with pytest.raises(RuntimeError, match=rf"filter .* raised {kind.__name__}\(0\)"):
        numbers().filter(lambda example: bool(leaves(example)))


def test_a_path_is_no_data() -> None:
    with pytest.raises(ArgumentError, match=r"data='rows.npy' is a path; open it: loadax.from_npy"):
        Dataloader("rows.npy", 8)
