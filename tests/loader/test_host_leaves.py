"""Leaves that stay on the host, and batches that do: `host_leaves`, `it.host`, `loader.host` and `host_batches`."""

import ast
import gc
import re
import threading
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from loadax import Dataloader, Dataset, MaskErrors, from_arrays, from_source
from loadax.core.tree import flatten
from loadax.errors import ArgumentError, LeafTypeError, MeshError, PartitionError
from loadax.sharding import data_parallel, plan_mesh
from tests.meshes import ZOO, MeshCase

ROWS = 40
NAMES = [f"document {row}" for row in range(ROWS)]
IDS = np.arange(ROWS) + 2**40
KEPT = ("name", "id")


def example(row: int) -> dict[str, Any]:
    return {"x": np.full(4, row, np.float32), "name": NAMES[row], "id": IDS[row]}


ROW_BY_ROW = from_source([example(row) for row in range(ROWS)])
COLUMNS = from_arrays(
    {"x": np.repeat(np.arange(ROWS, dtype=np.float32)[:, None], 4, 1), "name": np.array(NAMES), "id": IDS}
)
OBJECTS = from_arrays({**COLUMNS.read(range(ROWS)), "name": np.array(NAMES, object)})
MAPPED = from_arrays({"row": np.arange(ROWS)}).map(lambda rows: example(int(rows["row"])))
ELEMENTWISE = COLUMNS.map_batch(lambda rows: {**rows, "x": rows["x"] * 1}, elementwise=True)
DATASETS = {
    "row by row": ROW_BY_ROW,
    "columns": COLUMNS,
    "columns of objects": OBJECTS,
    "mapped": MAPPED,
    "elementwise": ELEMENTWISE,
}
WORKERS: tuple[dict[str, Any], ...] = ({"num_workers": 0}, {"num_workers": 2})


def check_host(rows: Any, ids: np.ndarray[Any, Any], missing: Any) -> None:
    """Compares host leaves with what the rows with these ids have; -1 is padding."""
    assert rows["name"].tolist() == [missing if row < 0 else NAMES[row] for row in ids.tolist()]
    assert rows["id"].dtype == np.int64
    assert rows["id"].tolist() == [0 if row < 0 else IDS[row] for row in ids.tolist()]


@pytest.mark.parametrize("name", DATASETS)
@pytest.mark.parametrize("workers", WORKERS)
def test_host_leaves_are_those_of_the_rows_of_the_batch(name: str, workers: dict[str, Any]) -> None:
    data, missing = DATASETS[name].shuffle(seed=3), ""
    loader = Dataloader(data, 16, host_leaves=KEPT, num_epochs=2, remainder="pad", **workers)
    assert sorted(loader.spec) == ["mask", "x"]
    with loader.iterate(1) as batches:
        for batch in batches:
            step = batches.step - 1
            check_host(batches.host, loader.rows(step), missing)
            check_host(loader.host(step), loader.rows(step), missing)
            assert batches.host.step == loader.host(step).step == step
            np.testing.assert_array_equal(batches.host.positions, range(16))
            np.testing.assert_array_equal(batch["x"][:, 0], np.maximum(loader.rows(step), 0))
            assert sorted(batch) == sorted(loader[step]) == ["mask", "x"]
    assert batches.step == 6


@pytest.mark.processes
def test_worker_processes_send_objects() -> None:
    data = ROW_BY_ROW.shuffle(seed=3)
    loader = Dataloader(data, 16, host_leaves=KEPT, remainder="pad", num_workers=1, worker_type="process")
    with loader.iterate() as batches:
        for _ in batches:
            check_host(batches.host, loader.rows(batches.step - 1), "")
    with loader.host_batches() as batches:
        for step, batch in enumerate(batches):
            check_same(batch, loader.host_batch(step))


@pytest.mark.processes
def test_an_object_that_a_worker_process_can_not_send_is_named() -> None:
    data = from_arrays({"x": np.zeros(8)}).map(_with_lock)
    with (
        Dataloader(data, 8, host_leaves="lock", num_workers=1, worker_type="process").iterate() as batches,
        pytest.raises(TypeError, match=r"cannot pickle '_thread.lock' object"),
    ):
        next(batches)
    with Dataloader(data, 8, host_leaves="lock").iterate() as batches:  # threads need not send it
        next(batches)
        assert type(batches.host["lock"][0]).__name__ == "lock"


def _with_lock(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "lock": threading.Lock()}


@pytest.mark.parametrize("case", ZOO, ids=lambda case: case.name)
def test_each_host_has_the_leaves_of_the_rows_that_it_reads(case: MeshCase) -> None:
    partition = P(case.axes[0])
    for process in range(case.processes):
        loader = Dataloader(
            COLUMNS.shuffle(seed=1), 16, mesh=case.planned(process), partition=partition, host_leaves=KEPT
        )
        check_host(loader.host(1), loader.local_rows(1), "")
        np.testing.assert_array_equal(loader.rows(1)[loader.host(1).positions], loader.local_rows(1))
        with loader.host_batches(1) as batches:  # a planned mesh is enough
            check_same(next(batches), loader.host_batch(1))
            check_host(batches.host, loader.local_rows(1), "")
            np.testing.assert_array_equal(batches.host.positions, loader.host(1).positions)


def test_a_host_leaf_may_be_a_tree_and_of_any_shape() -> None:
    words = np.array([["a", "b"], ["c", "d"]])
    data = from_arrays({"x": np.arange(2), "meta": {"words": words, "when": np.array(["2026-01-01"] * 2, "M8[D]")}})
    loader = Dataloader(data, 2, mesh=data_parallel(jax.devices()[:2]), host_leaves=["meta"])
    with iter(loader) as batches:
        next(batches)
        assert batches.host["meta"]["words"].tolist() == words.tolist()
        assert batches.host["meta"]["when"].dtype == "M8[D]"
        assert (list(batches.host), len(batches.host)) == (["meta"], 1)


def test_microbatches_have_positions_in_the_batch() -> None:
    loader = Dataloader(COLUMNS, 8, host_leaves=KEPT, mesh=data_parallel(jax.devices()[:4]), microbatches=2)
    with iter(loader) as batches:
        batch = next(batches)
        rows = batches.host
        for position, number in zip(rows.positions, rows["id"], strict=True):
            assert batch["x"][position % 2, position // 2, 0] == number - 2**40


def test_where_all_leaves_stay_on_the_host_batches_consist_of_the_mask() -> None:
    loader = Dataloader(from_source([{"name": name} for name in NAMES]), 16, host_leaves="name", remainder="pad")
    with iter(loader) as batches:
        for batch in batches:
            assert list(batch) == ["mask"]
            assert batches.host["name"].tolist() == [
                name if real else "" for name, real in zip(_padded(NAMES, batches.step), batch["mask"], strict=True)
            ]
    assert "host leaves  ['name'] object" in str(loader.explain())
    assert not loader.explain().warnings


@pytest.mark.parametrize("remainder", ["pad", "mask"])
@pytest.mark.parametrize(
    ("value", "missing"),
    [("a", ""), (np.str_("a"), ""), (b"a", b""), (b"", b""), (2**70, None), ({1}, None), (np.array(["a", "bc"]), "")],
    ids=str,
)
def test_padding_of_host_leaves_is_empty_strings_and_none_of_other_objects(
    value: Any, missing: Any, remainder: str
) -> None:
    rows = [{"x": row, "leaf": value} for row in range(12)]
    data = from_source(rows).map(lambda row: {**row, "x": 1 // (remainder == "pad" or row["x"] != 3)})
    options: dict[str, Any] = {"remainder": "pad"} if remainder == "pad" else {"on_error": MaskErrors(max_share=1)}
    loader = Dataloader(data, 8, host_leaves="leaf", **options)
    step, position = (1, 7) if remainder == "pad" else (0, 3)
    want = np.full(np.shape(value) if isinstance(value, np.ndarray) else (), missing, object).tolist()
    for batch in (loader.host(step), loader.host_batch(step), list(loader.host_batches())[step]):
        assert batch["leaf"][position : position + 1].tolist() == [want]


def _padded(names: list[str], step: int) -> list[str]:
    return (names + [""] * 16)[16 * (step - 1) : 16 * step]


def test_explain_counts_the_bytes_of_host_leaves() -> None:
    mesh = plan_mesh({"data": 4, "model": 2}, hosts=2)
    partition = {"x": P("data", "model")}
    reading = Dataloader(COLUMNS, 16, mesh=mesh, partition=partition, host_leaves=KEPT).explain().reading
    placed_alone = Dataloader(COLUMNS.map_batch(lambda rows: {"x": rows["x"]}), 16, mesh=mesh, partition=partition)
    text, number = np.array(NAMES).dtype.itemsize, 8
    assert reading.nbytes.most == 8 * (16 + text + number)
    assert placed_alone.explain().memory.step.most < 8 * (16 + text + number)


def test_kept_host_leaves_do_not_keep_the_batch() -> None:
    loader = Dataloader(COLUMNS, 16, host_leaves=KEPT)
    with iter(loader) as batches:
        next(batches)
        ids = batches.host["id"]
    assert ids.base is None or ids.base.nbytes == ids.nbytes


def check_same(batch: Any, expected: Any) -> None:
    assert list(batch) == list(expected)
    for leaf, wanted in zip(jax.tree.leaves(batch), jax.tree.leaves(expected), strict=True):
        assert type(leaf) is np.ndarray
        assert leaf.dtype == wanted.dtype
        np.testing.assert_array_equal(leaf, wanted)


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize(
    "make",
    [
        lambda **options: Dataloader(ROW_BY_ROW.shuffle(seed=2), 16, host_leaves=KEPT, **options),
        lambda **options: Dataloader(COLUMNS.shuffle(seed=2), {0: 8, 2: 16}, host_leaves=KEPT, key_seed=1, **options),
        lambda **options: Dataloader(
            from_arrays({"tokens": np.arange(1200).reshape(ROWS, 30)}).shuffle(seed=2),
            8,
            seq_len={0: 10, 3: 20},
            keep_on_device=True,
            **options,
        ),
        lambda **options: Dataloader(
            from_arrays({"x": np.arange(ROWS)}), 8, device_map=lambda row: {"x": 2 * row["x"]}, **options
        ),
    ],
)
def test_host_batches_are_host_batch_read_ahead(make: Callable[..., Dataloader], workers: dict[str, Any]) -> None:
    loader = make(num_epochs=2, remainder="pad", **workers)
    with loader.host_batches() as batches:
        states = []
        for step in range(len(loader)):
            states.append(batches.get_state())
            check_same(next(batches), loader.host_batch(step))
        with pytest.raises(StopIteration):
            next(batches)
        state = states[2]
        batches.set_state(state)
        check_same(next(batches), loader.host_batch(2))
    assert state == loader.iterate(2).get_state()
    with loader.host_batches(state) as batches, loader.iterate(state) as placed:
        check_same(next(batches), loader.host_batch(2))
        next(placed)
        assert batches.get_state() == placed.get_state()


def test_host_batches_need_no_mesh() -> None:
    data = COLUMNS.shuffle(seed=1)
    parts = [Dataloader(data, 16, shard_index=index, shard_count=2, host_leaves=KEPT) for index in range(2)]
    for step in range(2):
        ids = np.concatenate([next(iter(part.host_batches(step)))["id"] for part in parts])
        np.testing.assert_array_equal(ids - 2**40, parts[0].rows(step))


def test_host_batches_keep_the_mesh_of_their_start() -> None:
    with jax.set_mesh(data_parallel(jax.devices()[:2])):
        batches = Dataloader(COLUMNS, {0: 8, 1: 16}, host_leaves=KEPT).host_batches()
    sizes = [len(batch["x"]) for batch in batches]
    assert sizes == [8, 16, 16]


def test_memory_of_host_batches_is_reused_only_when_they_are_gone() -> None:
    loader = Dataloader(from_arrays({"x": np.arange(4000).reshape(ROWS, 100)}), 8, num_epochs=3)
    with loader.host_batches() as batches:
        kept = list(batches)
    gc.collect()
    for step, batch in enumerate(kept):
        check_same(batch, loader.host_batch(step))


def test_host_batches_are_reported_on_without_a_mesh() -> None:
    with Dataloader(COLUMNS, 8, host_leaves=KEPT).host_batches() as batches:
        next(batches)
        assert "batch" in str(batches.report())
        assert batches.stats().steps == 1
        with pytest.raises(
            MeshError, match=r"^batches of host_batches\(\) are not placed, so .* use loader.iterate\(\),"
        ):
            _ = batches.mesh


TUPLES = from_arrays((np.arange(8), np.arange(8)))
WRONG: list[tuple[Dataset, dict[str, Any], str]] = [
    (
        COLUMNS,
        {"host_leaves": "nmae"},
        r"^host_leaves='nmae': there is no leaf 'nmae'; did you mean 'name'\? the names",
    ),
    (COLUMNS, {"host_leaves": ("name", 3)}, r"^host_leaves=\('name', 3\): pass a name, or a list"),
    (COLUMNS, {"host_leaves": 3}, r"^host_leaves=3: pass a name, or a list of names$"),
    (
        TUPLES,
        {"host_leaves": "name"},
        r"^host_leaves='name': host leaves have names, .*; make examples dicts in a map$",
    ),
    (
        COLUMNS,
        {"host_leaves": "name", "keep_on_device": True},
        r"^host_leaves='name': with keep_on_device .*; leave out keep_on_device$",
    ),
    (
        COLUMNS,
        {"host_leaves": KEPT, "partition": {"x": P("data"), "name": P("data")}},
        r"^partition names \['name'\], which host_leaves=.* keeps on the host; leave",
    ),
]

NESTED = from_arrays(
    {
        "x": np.arange(ROWS, dtype=np.float32),
        "meta": {"name": np.array(NAMES, object), "day": np.arange(ROWS)},
        "only": {"id": IDS},
        "pair": (np.arange(ROWS), IDS),
    }
)


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("columns", [True, False])
def test_leaves_of_subtrees_stay_on_the_host_by_their_names(workers: dict[str, Any], columns: bool) -> None:
    data = NESTED if columns else NESTED.map(lambda row: row)
    names = ("meta.name", "only.id", "pair.1")
    loader = Dataloader(data.shuffle(seed=1), 16, host_leaves=names, remainder="pad", **workers)
    assert flatten(loader.spec)[1].names == ["mask", "meta.day", "pair.0", "x"]
    with loader.iterate() as batches, loader.host_batches() as on_host:
        for step, (batch, whole) in enumerate(zip(batches, on_host, strict=True)):
            ids = loader.rows(step)
            for rows in (batches.host, loader.host(step)):
                assert [*rows] == [*names]
                real = ids >= 0
                assert rows["meta.name"].tolist() == ["" if row < 0 else NAMES[row] for row in ids.tolist()]
                assert rows["only.id"][real].tolist() == rows["pair.1"][real].tolist() == IDS[ids[real]].tolist()
            assert np.array_equal(batch["meta"]["day"], np.where(ids < 0, 0, ids))
            assert np.array_equal(batch["pair"]["0"], batch["meta"]["day"])
            assert np.array_equal(whole["pair"][1], batches.host["pair.1"])
    whole_subtree = Dataloader(data, 16, host_leaves=("meta", "only", "pair")).host(0)
    assert whole_subtree["meta"]["day"].tolist() == list(range(16))


def test_advice_on_leaves_of_subtrees_works() -> None:
    rows = from_source([{"x": row, "meta": {"name": NAMES[row], "day": row}} for row in range(ROWS)])
    with pytest.raises(LeafTypeError, match=r"host_leaves='meta.name'\)$"):
        Dataloader(rows, 8)
    assert Dataloader(rows, 8, host_leaves="meta.name").spec["meta"].keys() == {"day"}
    for names, message in (
        (("meta.nam",), "there is no leaf 'meta.nam'; did you mean 'meta.name'"),
        (("meta", "meta.name"), "'meta.name' is a part of 'meta'; leave out one of the two"),
    ):
        with pytest.raises(ArgumentError, match=message):
            Dataloader(rows, 8, host_leaves=names)


@pytest.mark.parametrize(("data", "options", "message"), WRONG)
def test_arguments_that_do_not_fit(data: Dataset, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        Dataloader(data, 8, **options)


def test_partition_of_the_leaves_that_are_placed() -> None:
    Dataloader(COLUMNS, 8, host_leaves=KEPT, partition={"x": P("data")})
    names: dict[str, Any] = {"data": from_source([{"name": name} for name in NAMES]), "host_leaves": "name"}
    message = r"^partition=\{\} is for no leaf: .* leaf 'mask'; pass one spec, such as P\('d"
    with pytest.raises(PartitionError, match=message):
        Dataloader(**names, batch_size=8, partition={}, mesh=data_parallel())
    Dataloader(**names, batch_size=8, partition=P("data"), mesh=data_parallel())


COLUMNS_WITHOUT_JAX = {"name": np.array(["a"] * 8), "x": np.arange(8), "day": np.zeros(8, "datetime64[D]")}


@pytest.mark.parametrize(
    ("data", "which", "names"),
    [(ROW_BY_ROW, "it", ["name"]), (from_arrays(COLUMNS_WITHOUT_JAX), "all such leaves", ["day", "name"])],
)
def test_leaves_that_jax_lacks_name_the_argument_that_keeps_them(data: Dataset, which: str, names: list[str]) -> None:
    message = rf"^leaf .* has dtype .*; or keep {which} on the host: Dataloader\(…, host_leaves=(.*)\)$"
    with pytest.raises(LeafTypeError, match=message) as caught:
        Dataloader(data, 8)
    advised = ast.literal_eval(re.search(message, str(caught.value))[1])  # type: ignore[index]
    assert sorted([advised] if isinstance(advised, str) else advised) == names
    Dataloader(data, 8, host_leaves=advised)


@pytest.mark.parametrize("examples", [{"x": np.arange(16)}, np.arange(16), (np.arange(16), np.arange(16))])
def test_there_are_no_host_leaves(examples: Any) -> None:
    loader = Dataloader(from_arrays(examples), 8)
    with iter(loader) as batches:
        with pytest.raises(ArgumentError, match=r"^no batch was handed out yet; call next\(\) first, or use loader.ho"):
            _ = batches.host
        next(batches)
        message = r"^this loader places all leaves; name those to keep: Dataloader\(…, host_leaves=\["
        with pytest.raises(ArgumentError, match=message):
            _ = batches.host
        with pytest.raises(ArgumentError, match=message):
            loader.host(0)
        batches.set_state(0)
        with pytest.raises(ArgumentError, match="no batch was handed out yet"):
            _ = batches.host
    with loader.host_batches() as on_host:
        next(on_host)
        if not isinstance(examples, dict):
            with pytest.raises(ArgumentError, match=message):
                _ = on_host.host


def test_epochs_have_them_too() -> None:
    loader = Dataloader(COLUMNS, 8, host_leaves=KEPT, num_epochs=2)
    for epoch in loader.epochs():
        for _ in epoch:
            check_host(epoch.host, loader.rows(epoch.step - 1), "")


def test_strings_of_a_map_may_have_any_length() -> None:
    data = from_arrays({"x": np.arange(16)}).map_batch(_longer_and_longer)
    with Dataloader(data, 8, host_leaves="name").iterate() as batches:
        next(batches)
        assert list(map(len, batches.host["name"])) == [1, 3, 9, 27, 81, 1, 3, 9]


def _longer_and_longer(rows: dict[str, Any]) -> dict[str, Any]:
    return {**rows, "name": np.array(["a" * 3 ** (int(x) % 5) for x in rows["x"]])}
