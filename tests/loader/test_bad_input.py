"""Messages of a loader: what is wrong, where, and what to do, as early as it can be known, with users' own exceptions.

See `sharding/test_partition.py` for partitions alone, and `test_bad_arguments.py` for values of the wrong kind.
"""

import re
import traceback
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest
import tensorstore as ts
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec as P

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

GRID = mesh_of({"data": 4, "model": 2})
ROW = mesh_of({"data": 8})
OWNERS = plan_mesh({"data": 8}, owners=[0, 1] * 4, process=1)
SEVERAL_AXES = r"the mesh has several axes, .* so name the ones to split rows over: partition=P\(\"data\"\)"
UNCUT = r"leaf \['.*'\]: dim 0 has 12 rows, .* splits it into 8 equal parts. Use a batch_size that is a multiple of 8"


def numbers(rows: int = 64) -> Dataset:
    return from_arrays({"x": np.arange(rows)})


def notes(error: BaseException) -> str:
    return "\n".join(getattr(error, "__notes__", []))


def dtype_message(dtype: str) -> str:
    return rf"leaf \['y'\] has dtype {dtype}; JAX arrays are numeric. Drop it or encode it in a map"


def mask_message(problem: str) -> str:
    return (
        rf"a leaf 'mask' is to be added to every batch, but an example {problem}; "
        "make examples dicts without that key in a map, or leave out remainder='pad'"
    )


PAD: dict[str, Any] = {"remainder": "pad"}
OBJECTS = r"object \(strings, bytes, None, or values of several kinds\)"


# By what is wrong: the error, its message, the data, and the options.
class Refused(NamedTuple):
    error: type[Exception]
    match: str
    data: Any = numbers()
    options: Mapping[str, Any] = {}


WRONG_VALUES: list[tuple[dict[str, Any], str]] = [
    ({"batch_size": 0}, "batch_size=0: a batch needs at least one row"),
    ({"batch_size": -8}, "batch_size=-8"),
    ({"num_epochs": 0}, "num_epochs=0: pass 1 or more, or None for endless epochs"),
    ({"remainder": "keep"}, "remainder='keep': pass 'drop', 'pad' or 'error'"),
    ({"worker_type": "green"}, "worker_type='green': pass 'thread' or 'process'"),
]
REFUSED: dict[str, Refused] = {
    "no rows": Refused(ArgumentError, "the dataset has no rows; check the data", from_arrays({"x": np.zeros((0, 3))})),
    "empty slice": Refused(ArgumentError, "the dataset has no rows; check .* its slice", numbers()[:0]),
    "number": Refused(ArgumentError, "the data is an int without __len__ and __getitem__, so .* pass a Source", 7),
    "path": Refused(ArgumentError, r"data='rows.npy' is a path; open it: loadax.from_npy", "rows.npy"),
    "loader": Refused(ArgumentError, "data is already a Dataloader; pass its dataset", Dataloader(numbers(), 8)),
    "strings": Refused(LeafTypeError, dtype_message("<U1"), {"y": np.array(["a"] * 8)}),
    "texts of items": Refused(LeafTypeError, dtype_message(OBJECTS), from_source([{"y": "a", "x": 1}] * 8)),
    "elementwise": Refused(
        ArgumentError,
        "is elementwise=True, but its result and its input differ in leaves or shapes",
        numbers().map_batch(lambda batch: {"x": np.stack([batch["x"]] * 2, axis=1)}, elementwise=True),
    ),
    "map returns None": Refused(
        LoadaxError,
        r"map .*returned None for row \d+; did you forget to return the example\?",
        numbers().map(lambda example: None),
    ),
    "map_batch returns None": Refused(
        LoadaxError,
        r"map_batch .*returned None; did you forget to return the batch\?",
        numbers().map_batch(lambda batch: None),
    ),
    "no leaves": Refused(
        LoadaxError, "an example has no leaves: it is {}; check what the maps return", numbers().map(lambda example: {})
    ),
    "uncut": Refused(PartitionError, UNCUT, options={"batch_size": 12, "mesh": ROW}),
    "uncut padded": Refused(PartitionError, UNCUT, options={"batch_size": 12, "mesh": ROW, **PAD}),
    "uncut mask": Refused(
        PartitionError,
        UNCUT,
        options={"batch_size": 12, "mesh": ROW, "partition": {"x": P("data"), "mask": P()}, **PAD},
    ),
    "no partition": Refused(PartitionError, SEVERAL_AXES, options={"mesh": GRID}),
    "axis": Refused(PartitionError, "names the axis 'batch', but", options={"mesh": GRID, "partition": P("batch")}),
    "sharding on another mesh": Refused(
        MeshError,
        r"leaf \['x'\]: its NamedSharding is on .*, the loader on",
        options={"mesh": ROW, "partition": NamedSharding(GRID, P("data"))},
    ),
    "mesh": Refused(ArgumentError, "mesh='data' is a str: pass a jax.sharding.Mesh", options={"mesh": "data"}),
    "abstract mesh": Refused(
        MeshError, "has no devices: pass a jax.sharding.Mesh", options={"mesh": AbstractMesh((8,), ("data",))}
    ),
    **{
        f"shard {index} of {count}": Refused(ArgumentError, match, options={"shard_index": index, "shard_count": count})
        for index, count, match in [
            (0, None, "shard_index=0 and shard_count=None: pass both, or neither"),
            (None, 2, "shard_index=None and shard_count=2: pass both, or neither"),
            (2, 2, "shard_index=2: pass 1 or less"),
            (0, 3, "batch_size=8 can't be split into shard_count=3 equal parts; use a multiple of 3"),
        ]
    },
    "shard of a mesh": Refused(
        PartitionError,
        r"shard_index=1 .* is rows 8 to 15 of a batch of 16, but .* holds 8 rows, from 2 to 15; leave shard_index and",
        options={"batch_size": 16, "mesh": OWNERS, "shard_index": 1, "shard_count": 2},
    ),
    "shards of a mesh": Refused(
        PartitionError,
        "holds 4 rows, from 0 to 3",
        options={"mesh": plan_mesh({"data": 8}, hosts=2), "shard_index": 0, "shard_count": 4},
    ),
    "uncut shard": Refused(
        PartitionError, "dim 0 has 4 rows", options={"mesh": ROW, "shard_index": 1, "shard_count": 2}
    ),
    "few rows": Refused(
        ArgumentError,
        r"batch_size=72 but the dataset has only 64 rows: remainder='drop' would leave no batch",
        options={"batch_size": 72},
    ),
    "remainder": Refused(
        ArgumentError,
        r"remainder='error': of 64 rows, 16 are left over after batches of batch_size=24",
        options={"batch_size": 24, "remainder": "error"},
    ),
    "mask in a dict": Refused(ArgumentError, mask_message("already has the key 'mask'"), {"mask": np.arange(8)}, PAD),
    "mask in a tuple": Refused(ArgumentError, mask_message("is a tuple"), (np.arange(8), np.arange(8)), PAD),
    "mask in an array": Refused(ArgumentError, mask_message("is one bare array"), np.arange(8), PAD),
    **{match: Refused(ArgumentError, match, options=options) for options, match in WRONG_VALUES},
}


@pytest.mark.parametrize("wrong", REFUSED)
def test_refused_at_construction(wrong: str) -> None:
    case = REFUSED[wrong]
    with pytest.raises(case.error, match=case.match):
        Dataloader(case.data, **{"batch_size": 8, **case.options})


def test_current_mesh_is_checked_at_construction_or_when_iteration_starts() -> None:
    with jax.set_mesh(ROW), pytest.raises(PartitionError, match="dim 0 has 12 rows"):
        Dataloader(numbers(), 12)
    with jax.set_mesh(GRID), pytest.raises(PartitionError, match=SEVERAL_AXES):
        Dataloader(numbers(), 8)
    loader = Dataloader(numbers(), 12)
    with pytest.raises(PartitionError, match="dim 0 has 12 rows"):
        iter(loader)


def test_a_batch_size_that_fits_no_mesh_is_not_blamed_on_the_mask() -> None:
    rows = np.zeros((24, 4))
    with pytest.raises(
        PartitionError, match=r"leaf \['x'\]: dim 0 has 12 rows, .* Use a batch_size that is a multiple of 8"
    ):
        Dataloader({"x": rows}, 12, mesh=ROW, remainder="pad")
    Dataloader({"x": rows}, 16, mesh=ROW, remainder="pad")


def test_spec_for_several_leaves_may_be_longer_than_a_rank() -> None:
    tree = {"x": np.zeros((8, 4)), "y": np.zeros(8)}
    for partition in (P("data", "model"), {"x": P("data", "model"), "y": P("data")}):
        Dataloader(tree, 8, mesh=GRID, partition=partition)


def test_strings_are_encoded_in_a_map_as_the_error_says() -> None:
    data = from_source([{"text": "a", "x": 1}] * 8).map(lambda example: {"length": len(example["text"])})
    assert Dataloader(data, 8)[0]["length"].tolist() == [1] * 8


def test_mask_without_padding_is_a_leaf() -> None:
    assert Dataloader({"mask": np.arange(8)}, 8)[0]["mask"].tolist() == list(range(8))


# Rows and functions that fail while a run reads.


class Broken:
    """A source that keeps its contract up to a row."""

    spec = ArraySpec((), np.dtype(np.int32))

    def __init__(self, answer: Callable[[Integers], Any]):
        self._answer = answer

    def __len__(self) -> int:
        return 64

    def read(self, rows: Integers) -> Any:
        return self._answer(rows) if 20 in rows else rows.astype(np.int32)


class Items:
    """Items that raise at row 20."""

    def __init__(self, error: Callable[[], Any]):
        self._error = error

    def __len__(self) -> int:
        return 64

    def __getitem__(self, row: int) -> Any:
        return {"x": row if row != 20 else self._error()}


class Mine(Exception):  # noqa: N818
    """A user's own."""


def raises(error: BaseException) -> Any:
    raise copy(error)


def fails(error: Callable[[], Any]) -> Callable[..., Any]:
    """A map that raises, or returns something else, at row 20."""

    def fails_on_20(example: Any, _: Any = None) -> Any:
        return error() if example["x"] == 20 else example

    return fails_on_20


def fails_in_batch(error: Callable[[], Any]) -> Callable[..., Any]:
    def fails_on_20(batch: Any) -> Any:
        return error() if (batch["x"] == 20).any() else batch

    return fails_on_20


def with_row(value: Any, dtype: Any = np.int64) -> dict[str, Any]:
    rows = np.arange(64, dtype=dtype)
    rows[20] = value
    return {"x": rows}


def items_with(value: Any) -> list[Any]:
    return [value if row == 20 else {"x": row} for row in range(64)]


def first_values(batch: Any) -> list[Any]:
    return [row[0] for row in np.asarray(jax.tree.leaves(batch)[0]).reshape(8, -1).tolist()]


OTHER_SHAPE = {"x": np.zeros(2, np.int64)}
ON_ROW = "on row 20 in epoch 0"


# By what is wrong: the error of step 2, its message, the data, and what the notes say.
class Fails(NamedTuple):
    error: type[Exception]
    match: str
    data: Any
    notes: Sequence[str] = ()


FAILS: dict[str, Fails] = {
    **{
        f"int64 {value}{' mapped' * mapped}": Fails(
            LeafError,
            rf"leaf \['x'\]: the int64 value {value} does not fit int32. Set jax_enable_x64",
            from_arrays(with_row(value)).map_batch(lambda batch: batch) if mapped else with_row(value),
        )
        for value in (2**31, -(2**31) - 1, 2**62)
        for mapped in (False, True)
    },
    "uint64": Fails(LeafError, r"uint64 value 18446744073709551615 does not fit", with_row(2**64 - 1, np.uint64)),
    "length of an item": Fails(
        LeafError,
        r"row 20: leaf \['x'\] is int64\[4\], expected int64\[3\]; rows are ragged",
        [{"x": np.full(3 + (row == 20), row)} for row in range(64)],
    ),
    "dtype of an item": Fails(
        LeafError, r"row 20: leaf \['x'\] is float64\[\], expected int64\[\]", items_with({"x": 0.5})
    ),
    "leaves of an item": Fails(
        LeafError, r"row 20 has the leaves \['y'\], the rows before it had \['x'\]; return", items_with({"y": 3})
    ),
    "item is None": Fails(
        LeafError, "row 20: list returned None instead of an example; return one for every row", items_with(None)
    ),
    "shape of a map": Fails(
        LeafError,
        r"row 20: leaf \['x'\] is int64\[2\], expected int64\[\]",
        numbers().map(fails(lambda: OTHER_SHAPE)),
        ["loadax: returned by map ", "fails_on_20"],
    ),
    "spec of a map": Fails(
        LeafError,
        r"row 20: leaf \['x'\] is int64\[2\], expected int64\[\]",
        numbers().map(fails(lambda: OTHER_SHAPE), spec={"x": jax.ShapeDtypeStruct((), np.int64)}),
        ["loadax: returned by map "],
    ),
    "rows of a map_batch": Fails(
        LeafError,
        r"map_batch .* gave leaf \['x'\] as int64\[0\] for \d rows, expected int64\[\d\]",
        numbers().map_batch(fails_in_batch(lambda: {"x": np.zeros(0, np.int64)})),
    ),
    "dtype of an elementwise map": Fails(
        LeafError,
        r"map_batch .* returned leaf \['x'\] as float32\[\d\], expected int64\[\d\]; use elementwise=False",
        numbers().map_batch(
            lambda batch: {"x": batch["x"].astype(np.float32 if (batch["x"] == 20).any() else np.int64)},
            elementwise=True,
        ),
    ),
    "shape of a source": Fails(
        LeafError,
        r"the source's read of \d rows \(.*20.*\) gave leaf of the batch as int32\[\d, 2\]",
        from_source(Broken(lambda rows: np.zeros((len(rows), 2), np.int32))),
    ),
    "rows of a source": Fails(
        LeafError,
        r"as int32\[0\] for \d rows, expected int32\[\d\]",
        from_source(Broken(lambda rows: rows[:0].astype(np.int32))),
    ),
    "source": Fails(OSError, "the disk is gone", from_source(Broken(lambda rows: raises(OSError("the disk is gone"))))),
    "item": Fails(KeyError, "lost", Items(lambda: raises(KeyError("lost"))), ["loadax: in Items[20]"]),
    "map": Fails(Mine, "as written", numbers().map(fails(lambda: raises(Mine("as written")))), ["fails_on_20", ON_ROW]),
    "map_batch": Fails(
        Mine, "as written", numbers().map_batch(fails_in_batch(lambda: raises(Mine("as written")))), ["fails_on_20"]
    ),
    # These would end the training loop, or the program, as if all were well.
    "StopIteration of a map": Fails(
        RuntimeError,
        r"map .*fails_on_20 \(.*\) raised StopIteration\(\)",
        numbers().map(fails(lambda: next(iter([])))),
        ["fails_on_20", ON_ROW],
    ),
    "StopIteration of items": Fails(
        RuntimeError, r"the source raised StopIteration\(\)", from_source(Items(lambda: next(iter([]))))
    ),
    **{
        f"{kind.__name__} of {name}": Fails(RuntimeError, rf"raised {kind.__name__}\(0\)", data, [where])
        for kind in (SystemExit, GeneratorExit)
        for name, data, where in [
            ("map", numbers().map(fails(partial(raises, kind(0)))), ON_ROW),
            ("random map", numbers().map(fails(partial(raises, kind(0))), rng=True), ON_ROW),
            ("map_batch", numbers().map_batch(fails_in_batch(partial(raises, kind(0)))), "in map_batch"),
        ]
    },
}


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("wrong", FAILS)
def test_error_comes_at_its_step(wrong: str, workers: int) -> None:
    """After the batches before it, again at each call, from every door, and later steps can still be read."""
    error, match, data, told = FAILS[wrong]
    loader = Dataloader(data, 8, num_workers=workers)
    with iter(loader) as batches:
        assert [first_values(next(batches))[0] for _ in range(2)] == [0, 8]
        for _ in range(2):
            with pytest.raises(error, match=match) as caught:
                next(batches)
            said = notes(caught.value)
            assert said.count("loadax: in step 2") == 1
            assert all(text in said for text in told), said
        assert (batches.step, batches.get_state()["step"]) == (2, 2)
    for ask in (loader.__getitem__, loader.host_batch):
        with pytest.raises(error, match=match):
            ask(2)
    assert first_values(loader[3]) == list(range(24, 32))


def test_users_exception_keeps_cause_and_traceback() -> None:
    with pytest.raises(Mine) as caught:
        _ = Dataloader(numbers().map(fails(lambda: raises(Mine()))), 8)[2]
    assert "fails_on_20" in "".join(traceback.format_tb(caught.value.__traceback__))
    with pytest.raises(RuntimeError) as stopped:
        _ = Dataloader(from_source(Items(lambda: next(iter([])))), 8)[2]
    assert isinstance(stopped.value.__cause__, StopIteration | RuntimeError)
    assert "loadax: in Items[20]" in notes(stopped.value.__cause__)


def test_filter_that_exits_is_an_error() -> None:
    with pytest.raises(RuntimeError, match=r"filter .* raised SystemExit\(0\)"):
        numbers().filter(lambda example: bool(fails(lambda: raises(SystemExit(0)))(example)))


def test_map_that_raises_in_a_later_epoch_names_row_and_epoch() -> None:
    calls: list[int] = []

    def fails_later(example: Any, rng: np.random.Generator) -> Any:
        calls.append(1)
        if len(calls) > 1 + 64 + 8 and example["x"] == 8:
            raise Mine
        return example

    loader = Dataloader(numbers().map(fails_later, rng=True), 8, num_epochs=3, num_workers=0)
    with pytest.raises(Mine) as caught:
        list(loader)
    assert "on row 8 in epoch 1" in notes(caught.value)
    assert "loadax: in step 9" in notes(caught.value)


def test_map_that_raises_on_the_first_row_does_so_at_construction() -> None:
    with pytest.raises(Mine, match="at once") as caught:
        Dataloader(numbers().map(lambda example: raises(Mine("at once"))), 8)
    assert "on row 0 in epoch 0" in notes(caught.value)


def test_map_batch_that_raises_names_the_rows_of_its_piece() -> None:
    with pytest.raises(Mine) as caught:
        list(Dataloader(numbers().map_batch(fails_in_batch(lambda: raises(Mine()))), 8))
    rows = re.search(r"on (?:row|\d+ rows) \(?([\d, ]+)", notes(caught.value))
    assert rows is not None
    named = [int(row) for row in rows[1].split(", ")]
    assert 20 in named
    assert named == list(range(named[0], named[0] + len(named)))


def test_missing_chunk_names_leaf_and_step(tmp_path: Path) -> None:
    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": str(tmp_path / "x")}}
    chunks = {"name": "regular", "configuration": {"chunk_shape": [4, 4]}}
    metadata = {"shape": [32, 4], "data_type": "int32", "chunk_grid": chunks}
    store = ts.open({**spec, "metadata": metadata, "create": True}).result()
    store.write(np.arange(1, 129, dtype=np.int32).reshape(32, 4)).result()
    (tmp_path / "x" / "c" / "5" / "0").unlink()
    with iter(Dataloader(from_tensorstore({"field": spec}), 8)) as batches:
        next(batches)
        next(batches)
        with pytest.raises(SourceError, match=r"leaf \['field'\] at .*: .*chunk.*; the copy is incomplete") as caught:
            next(batches)
    assert "loadax: in step 2" in notes(caught.value)


# Meshes, steps and states of a loader that was made.


def test_planned_mesh_places_nothing() -> None:
    loader = Dataloader(numbers(), 8, mesh=plan_mesh({"data": 8}, hosts=8))
    message = r"PlannedMesh\(data=8; 8 hosts, as process 0\) is for planning only; pass mesh="
    for use in (iter, lambda loader: loader[0]):
        with pytest.raises(MeshError, match=message):
            use(loader)


def test_another_current_mesh_while_iterating() -> None:
    loader = Dataloader(numbers(), 8)
    with jax.set_mesh(ROW), iter(loader) as batches:
        next(batches)
        with (
            jax.set_mesh(mesh_of({"x": 8})),
            pytest.raises(MeshError, match=r"batches are for .*'data'.* this thread is .*'x'.* pass mesh="),
        ):
            next(batches)
        assert next(batches)["x"].tolist() == list(range(8, 16))


@pytest.mark.parametrize("step", [-1, 8, 10**20])
def test_step_out_of_range(step: int) -> None:
    loader = Dataloader(numbers(), 8)
    for ask in (loader.rows, loader.local_rows, loader.host_batch, loader.__getitem__):
        with pytest.raises(RowIndexError, match=f"step {step} is out of range: steps are at least 0 and below 8"):
            ask(step)


def test_infinite_loader_has_no_length() -> None:
    loader = Dataloader(numbers(), 8, num_epochs=None)
    with pytest.raises(TypeError, match="num_epochs=None: the loader is infinite and has no len"):
        len(loader)
    assert loader.steps_per_epoch == 8


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (
            {"order": "f" * 16},
            r"the state's 'order' is 'ffffffffffffffff', this dataset's is '[0-9a-f]{16}': its length, element spec",
        ),
        ({"order": 7}, r"the state's 'order' is 7, this dataset's is \d+: its length, element spec"),
        (
            {"version": 3},
            "the state's 'version' is 3, this loadax reads 1 and 2; restore it with the loadax that saved it",
        ),
        ({"step": -1}, "the state's 'step' is -1; it must be an int from 0 to"),
        ({"step": True}, "the state's 'step' is True"),
        ({"position": 1.5}, r"the state's 'position' is 1\.5"),
        ({"epoch": "0"}, "the state's 'epoch' is '0'"),
        ({"batch_size": 16, "position": 20}, "'position' is 20, inside a batch of batch_size=8 .*saved with 16"),
        ({"step": 99, "epoch": 9}, "start is step .*, but the run ends before step 8 with num"),
    ],
)
def test_state_that_does_not_fit_changes_nothing(change: dict[str, Any], match: str) -> None:
    loader = Dataloader(numbers(), 8)
    with iter(loader) as batches:
        next(batches)
        state = {**batches.get_state(), **change}
        for restore in (batches.set_state, loader.iterate, lambda state: next(loader.epochs(state))):
            with pytest.raises(StateError, match=match):
                restore(state)
        assert next(batches)["x"].tolist() == list(range(8, 16))


@pytest.mark.parametrize(
    ("start", "match"),
    [
        ({"a": 1}, r"the state has no 'version': \{'a': 1\}; pass a state of get_state\(\)"),
        ("3", r"start='3': pass a step \(an int\), or a state of get_state\(\)"),
        (1.5, r"start=1\.5: pass a step"),
        (True, "start=True: pass a step"),
        (-1, "start is step -1, but steps are counted from 0; pass 0 for the first one"),
        ('{"version": 1}', r"this is text, so json\.loads it first"),
    ],
)
@pytest.mark.parametrize("epochs", [1, None])
def test_start_that_is_no_state(epochs: int | None, start: Any, match: str) -> None:
    with pytest.raises(StateError, match=match):
        Dataloader(numbers(), 8, num_epochs=epochs).iterate(start)


def test_closed_iterator() -> None:
    batches = iter(Dataloader(numbers(), 8))
    next(batches)
    batches.close()
    with pytest.raises(LoadaxError, match=r"closed; make a new one with iter\(loader\), or loader.iterate"):
        next(batches)


@pytest.mark.parametrize("rng", [42, np.random.default_rng(0), None])
def test_generator_given_as_rng(rng: Any) -> None:
    with pytest.raises(ArgumentError, match=r"rng=.*: pass True or False; pass the seed of the generators as seed="):
        numbers().map(lambda example: example, rng=rng)
