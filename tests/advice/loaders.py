"""Advice of a `Dataloader` and its iterators."""

import functools
import io
import itertools
import os
import warnings
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec as P

import loadax
from loadax import Dataloader, Stats, from_arrays, from_source, sharding
from loadax.errors import (
    ArgumentError,
    ClosedError,
    ConformanceError,
    LeafTypeError,
    MeshError,
    PartitionError,
)
from loadax.interop import grain as to_grain, opentelemetry, progress, prometheus
from loadax.loader.reports.bottleneck import report
from loadax.loader.reports.run_record import read_record
from tests.advice.registry import Case, follows
from tests.interop.test_trainers import kauldron_over, tunix_over, warnings_of_tunix_hooks

UNTYPED: Any = loadax
DATA = from_arrays({"x": np.arange(64)})
NAMED = {"x": np.arange(16.0), "name": np.array(["a", "b"] * 8)}
RAGGED = [{"t": np.arange(1 + row % 4), "x": np.int32(row)} for row in range(64)]
BUCKETS = {4: 8}


def loader_of(data: Any = DATA, **options: Any) -> Dataloader:
    return Dataloader(data, **{"batch_size": 8, "num_workers": 0, **options})


def buckets() -> loadax.Buckets:
    return loadax.Buckets("t", BUCKETS)


def half() -> Mesh:
    return Mesh(np.array(jax.devices()[:4]), ("data",))


@follows("pass the iterator of a Dataloader, iter(loader)")
def grain_of_a_loader(case: Case) -> None:
    adapter: Any = to_grain.GrainIterator
    loader = loader_of()
    with case.refused(ArgumentError):
        adapter(loader)
    with iter(loader) as batches:
        assert next(adapter(batches))["x"].shape == (8,)


@follows("dataset.map(fn) changes rows, and the trainer's sharding= says where they go")
def kauldron_with_a_mesh(case: Case) -> None:
    kauldron = kauldron_over(case.patch)
    with case.refused(ArgumentError):
        iter(kauldron.Pipeline(dataset=DATA, batch_size=8, options={"mesh": None}))
    batches = iter(kauldron.Pipeline(dataset=DATA.map(dict), batch_size=8))
    with batches.batches:
        assert next(batches)["x"].shape == (8,)


@follows("pass a Dataloader, or its iterator: loader.iterate(), or an epoch")
def progress_of_a_dataset(case: Case) -> None:
    bar: Any = progress.progress
    with case.refused(ArgumentError):
        bar(DATA)
    loader = loader_of()
    assert len(list(bar(loader, disable=True))) == 8
    assert len(list(bar(loader.iterate(), disable=True))) == 8
    for epoch in loader.epochs():
        assert len(list(bar(epoch, disable=True))) == 8


@follows("pass the Dataloader, or call set_state(start)")
def progress_of_a_begun_iterator(case: Case) -> None:
    loader = loader_of()
    with loader.iterate() as batches:
        next(batches)
        with case.refused(ArgumentError):
            progress.progress(batches, start=3)
        batches.set_state(3)
        assert len(list(progress.progress(batches, disable=True))) == 5
    assert len(list(progress.progress(loader, start=3, disable=True))) == 5


@follows("pass a number, such as ….mean()")
def progress_with_a_loss_of_each_row(case: Case) -> None:
    screen = io.StringIO()
    with progress.progress(loader_of(), file=screen, mininterval=0) as bar:
        next(bar)
        loss = np.full(8, 0.5)
        with case.refused(ArgumentError):
            bar.show(loss=loss)
        bar.show(loss=loss.mean())
        next(bar)
    assert "loss=0.5" in screen.getvalue()


@follows("pass a Dataloader, or an iterator of one: loader.iterate()")
def metrics_of_a_dataset(case: Case) -> None:
    with case.refused(ArgumentError):
        prometheus.serve(DATA)
    loader = loader_of()
    with loader.iterate() as batches:
        for given in (loader, batches):
            with prometheus.serve(given) as exporter:
                assert exporter.url


@follows("pass a meter, such as MeterProvider(…).get_meter('train')")
def provider_in_place_of_a_meter(case: Case) -> None:
    metrics = pytest.importorskip("opentelemetry.sdk.metrics")
    provider = metrics.MeterProvider(shutdown_on_exit=False)
    with case.refused(ArgumentError):
        opentelemetry.observe(loader_of(), provider)
    opentelemetry.observe(loader_of(), provider.get_meter("train"))


@follows("or keep … on the host: Dataloader(…, host_leaves=…)")
def strings_in_a_batch(case: Case) -> None:
    with case.refused(LeafTypeError):
        loader_of(NAMED, mesh=sharding.data_parallel())
    loader = Dataloader(NAMED, 8, host_leaves=["name"])
    assert loader.host(0).leaves["name"].tolist() == ["a", "b"] * 4


@follows("pass one spec, such as P('data')")
def partition_of_no_leaf(case: Case) -> None:
    names, partition = {"name": NAMED["name"]}, {"name": P("data")}
    mesh = sharding.data_parallel()
    with case.refused(PartitionError):
        Dataloader(names, 8, mesh=mesh, partition={"x": P("data")}, host_leaves=["name"])
    assert partition
    loader = Dataloader(names, 8, mesh=mesh, partition=P("data"), host_leaves=["name"])
    assert loader[0]["mask"].shape == (8,)


@follows("pass stop='first' or 'all', and by='example', to mix(), and num_epochs=None for an endless run")
def buckets_of_an_endless_mixture(case: Case) -> None:
    parts = {"a": RAGGED, "b": RAGGED}
    with case.refused(ArgumentError):
        Dataloader(loadax.mix(parts, [1, 1], stop="never"), buckets())
    for stop in ("first", "all"):
        mixed = UNTYPED.mix(parts, [1, 1], stop=stop, by="example")
        assert Dataloader(mixed, buckets(), num_epochs=None)[0]["t"].shape == (8, 4)


@follows("pass a dataset without it, or a mix() with no verb but maps after it")
def buckets_behind_draws(case: Case) -> None:
    rows = from_source(RAGGED)
    with case.refused(ArgumentError):
        Dataloader(rows.sample(np.ones(64)), buckets())
    assert len(Dataloader(rows, buckets())) == 8
    mixed = loadax.mix({"a": rows, "b": rows}, [1, 1])
    assert len(Dataloader(mixed.map(dict), buckets())) > 0


@follows("pass Dataloaders, or concat() the datasets")
def chain_of_datasets(case: Case) -> None:
    with case.refused(ArgumentError):
        UNTYPED.chain([DATA, DATA])
    assert len(loadax.chain([loader_of(), loader_of()])) == 16
    assert len(loader_of(loadax.concat([DATA, DATA]))) == 16


@follows("the run is infinite; pass steps=range(start, stop)")
def digest_of_an_endless_run(case: Case) -> None:
    loader = loader_of(num_epochs=None)
    with case.refused(ArgumentError):
        loader.digest()
    assert loader.digest(steps=range(2, 6))


@follows("the run is infinite: pass steps=range(start, stop), the steps to search")
def find_in_an_endless_run(case: Case) -> None:
    loader = loader_of(num_epochs=None)
    with case.refused(ArgumentError):
        loader.find(3)
    assert loader.find(3, steps=range(8))[0].step == 0


@follows("if the function is elementwise, pass device_map=loadax.DeviceMap(fn, elementwise=True)")
def device_map_over_columns(case: Case) -> None:
    data = {"x": np.arange(128.0).reshape(16, 8)}
    mesh = jax.make_mesh((2, 4), ("data", "model"))
    options: dict[str, Any] = {"mesh": mesh, "partition": P("data", "model")}

    def double(row: Any) -> Any:
        return {"x": row["x"] * 2}

    with case.refused(PartitionError):
        Dataloader(data, 8, device_map=double, **options)
    loader = Dataloader(data, 8, device_map=loadax.DeviceMap(double, elementwise=True), **options)
    np.testing.assert_array_equal(np.asarray(loader[0]["x"]), data["x"][:8] * 2)


@follows("finish each epoch before the next, as in `for epoch in loader.epochs(): for batch in epoch: …`")
def epoch_that_was_left(case: Case) -> None:
    loader = loader_of(num_epochs=2)
    epochs = iter(loader.epochs())
    first = next(epochs)
    next(iter(first))
    next(epochs)
    with case.refused(ClosedError):
        next(iter(first))
    assert [[batch["x"].shape for batch in epoch] for epoch in loader.epochs()] == [[(8,)] * 8] * 2


@follows("make a new one with iter(loader), or loader.iterate(start=state)")
def closed_iterator(case: Case) -> None:
    loader = loader_of()
    batches = iter(loader)
    first = next(batches)
    state = batches.get_state()
    batches.close()
    with case.refused(ClosedError):
        next(batches)
    with iter(loader) as again:
        np.testing.assert_array_equal(next(again)["x"], first["x"])
    with loader.iterate(start=state) as later:
        np.testing.assert_array_equal(next(later)["x"], loader[1]["x"])


@follows("name those to keep: Dataloader(…, host_leaves=['name'])")
def host_of_a_loader_without_host_leaves(case: Case) -> None:
    with case.refused(ArgumentError):
        Dataloader({"x": NAMED["x"]}, 8).host(0)
    assert Dataloader(NAMED, 8, host_leaves=["name"]).host(0).leaves["name"].shape == (8,)


@follows("use loader.iterate(), or make a new iterator in another mesh: loader.host_batches(start=it.get_state())")
def mesh_of_host_batches(case: Case) -> None:
    loader = loader_of()
    it = loader.host_batches()
    next(it)
    with case.refused(MeshError):
        it.move_to(half())
    with loader.iterate() as batches:
        batches.move_to(half())
    with jax.set_mesh(half()):
        np.testing.assert_array_equal(next(loader.host_batches(start=it.get_state()))["x"], loader[1]["x"])
    it.close()


@follows("call next() first, or use loader.host(step)")
def host_before_the_first_batch(case: Case) -> None:
    loader = Dataloader(NAMED, 8, host_leaves=["name"])
    with iter(loader) as batches:
        with case.refused(ArgumentError):
            batches.host  # noqa: B018
        next(batches)
        assert batches.host.leaves["name"].shape == (8,)
    assert loader.host(1).leaves["name"].shape == (8,)


@follows(
    "continue there with it.move_to(mesh), make a new iterator in that mesh (loader.iterate(start=it.get_state()))"
)
def iterator_in_another_mesh(case: Case) -> None:
    loader, mesh = loader_of(), half()
    with iter(loader) as it, jax.set_mesh(mesh):
        with case.refused(MeshError):
            next(it)
        with loader.iterate(start=it.get_state()) as other:
            assert next(other)["x"].sharding.mesh == mesh
        it.move_to(mesh)
        assert next(it)["x"].sharding.mesh == mesh
    with Dataloader(DATA, 8, mesh=sharding.data_parallel()).iterate() as own, jax.set_mesh(mesh):
        assert next(own)["x"].sharding.mesh != mesh


@follows("this process, …, is its os.fork(): a fork does not have the reader threads")
def iterator_in_a_fork(case: Case) -> None:
    # tests/processes starts processes by multiprocessing.get_context('spawn') and makes loaders in them.
    loader = loader_of(num_workers=1)
    with iter(loader) as batches:
        next(batches)
        read, write = os.pipe()
        with pytest.warns((RuntimeWarning, DeprecationWarning), match="fork"):
            child = os.fork()
        if not child:
            try:
                next(batches)
            except Exception as error:  # noqa: BLE001 - the parent looks at it
                os.write(write, str(error).encode())
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        message = os.read(read, 10_000).decode()
        os.close(read)
        os.close(write)
    with case.refused(ClosedError):
        raise ClosedError(message)


@follows("visits() of the order must compute each position independently")
def order_that_remembers(case: Case) -> None:
    loader = Dataloader(DATA, 8, mesh=sharding.plan_mesh({"data": 8}, hosts=2))
    order = loader.phases[0].plan.order
    calls = []

    class Remembers:
        def __getattr__(self, name: str) -> Any:
            return getattr(order, name)

        def visits(self, epochs: Any, positions: Any) -> Any:
            calls.append(1)
            visits = order.visits(epochs, positions)
            return visits._replace(rows=(visits.rows + len(calls)) % 64)

    object.__setattr__(loader.phases[0].plan, "order", Remembers())
    with case.refused(ConformanceError):
        loader.check_plan()
    object.__setattr__(loader.phases[0].plan, "order", order)
    assert loader.check_plan()


@follows("leave out one of the two: shuffle(seed) alone, or no balance")
def balance_of_a_block_shuffle(case: Case) -> None:
    costs = np.arange(64.0)
    with case.refused(ArgumentError):
        loader_of(DATA.shuffle(0, block=8), balance=costs)
    assert sorted(loader_of(DATA.shuffle(0), balance=costs).rows(0)) == sorted(loader_of(DATA.shuffle(0)).rows(0))
    assert len(loader_of(DATA.shuffle(0, block=8))) == 8


@follows("pass costs by row, or pack()")
def attention_costs_of_rows(case: Case) -> None:
    with case.refused(ArgumentError):
        loader_of(balance="attention")
    assert len(loader_of(balance=np.arange(64.0))) == 8
    packed = from_source([np.arange(1 + row % 5) for row in range(200)]).pack(8)
    assert len(loader_of(packed, balance="attention")) > 2


@follows("pass mesh=..., or call inside 'with jax.set_mesh(mesh):'")
def placement_without_a_mesh(case: Case) -> None:
    rows = {"x": np.arange(8)}
    with case.refused(MeshError):
        sharding.host_to_global_device_array(rows)
    mesh = sharding.data_parallel()
    assert sharding.host_to_global_device_array(rows, mesh=mesh)["x"].shape == (8,)
    with jax.set_mesh(mesh):
        assert sharding.host_to_global_device_array(rows)["x"].shape == (8,)


@follows("contains …: pass a PartitionSpec; P() replicates")
def constraint_of_a_string(case: Case) -> None:
    with case.refused(ArgumentError), jax.set_mesh(sharding.data_parallel()):
        sharding.with_sharding_constraint(np.arange(8), "data")
    with jax.set_mesh(sharding.data_parallel()):
        assert sharding.with_sharding_constraint(np.arange(8), P()).shape == (8,)


@follows("Convert it in a map: x.astype(…)")
def big_endian_leaf(case: Case) -> None:
    data = from_source([{"x": np.arange(4, dtype=">f4")} for _ in range(8)])
    with case.refused(LeafTypeError):
        sharding.host_to_global_device_array(np.arange(8, dtype=">f4"), mesh=sharding.data_parallel())
    native = data.map(lambda row: {"x": row["x"].astype(np.float32)})
    assert loader_of(native)[0]["x"].shape == (8, 4)


@follows("place jax.random.key_data(it) instead")
def keys_in_a_batch(case: Case) -> None:
    keys, mesh = jax.random.split(jax.random.key(0), 8), sharding.data_parallel()
    with case.refused(LeafTypeError):
        sharding.host_to_global_device_array(keys, mesh=mesh)
    placed = sharding.host_to_global_device_array(np.asarray(jax.random.key_data(keys)), mesh=mesh)
    assert jax.random.wrap_key_data(placed).shape == (8,)


@follows("fetch jax.random.key_data(it) instead")
def keys_to_the_host(case: Case) -> None:
    keys = jax.random.split(jax.random.key(0), 8)
    with case.refused(LeafTypeError):
        sharding.global_to_host_array(keys)
    assert sharding.global_to_host_array(jax.random.key_data(keys)).shape == (8, 2)


@follows("fetch its rows with DataPartitionType.FULL, or reshard it to P() first")
def replica_of_rows(case: Case) -> None:
    mesh = sharding.data_parallel()
    rows = sharding.host_to_global_device_array(np.arange(8), mesh=mesh)
    replicated = sharding.DataPartitionType.REPLICATED
    with case.refused(PartitionError):
        sharding.global_to_host_array(rows, partition=replicated)
    full = sharding.global_to_host_array(rows, partition=sharding.DataPartitionType.FULL)
    assert full.tolist() == list(range(8))
    resharded = jax.device_put(rows, jax.sharding.NamedSharding(mesh, P()))
    assert sharding.global_to_host_array(resharded, partition=replicated).tolist() == list(range(8))


@follows("so name the ones to split rows over: partition=P(…)…")
def mesh_of_two_axes(case: Case) -> None:
    mesh = jax.make_mesh((2, 4), ("data", "model"))
    with case.refused(PartitionError):
        loader_of(mesh=mesh)
    assert loader_of(mesh=mesh, partition=P(("data", "model")))[0]["x"].shape == (8,)


@follows("its partition is None: use P() to replicate")
def partition_of_none(case: Case) -> None:
    mesh = sharding.data_parallel()
    with case.refused(PartitionError):
        loader_of(NAMED | {"name": np.arange(16)}, mesh=mesh, partition={"x": P("data"), "name": None})
    loader = loader_of({"x": np.arange(16)}, mesh=mesh, partition={"x": P()})
    assert loader[0]["x"].sharding.is_fully_replicated


@follows(
    "keep one iterator (`batches = iter(loader)` before the loop), or use loader.iterate(start=state) with a state of "
    "get_state(); …To repeat the same batches on purpose, as for evaluation, or to look at one before training, use "
    "loader.iterate()"
)
def second_pass(case: Case) -> None:
    loader = loader_of(DATA.shuffle(0))
    next(iter(loader))
    with pytest.warns(UserWarning, match="starts at step 0 again.*`for epoch in loader.epochs"):
        next(iter(loader))
    other = loader_of(DATA.shuffle(0), num_epochs=2)
    first, second = (np.concatenate([batch["x"] for batch in epoch]) for epoch in other.epochs())
    assert sorted(first) == sorted(second)
    assert first.tolist() != second.tolist()
    batches = loader.iterate()
    parts = [[batch["x"].tolist() for batch in itertools.islice(batches, 2)] for _ in range(2)]
    assert parts[0] != parts[1]
    assert next(loader.iterate(start=batches.get_state()))["x"].tolist() == next(batches)["x"].tolist()
    for _ in range(2):
        assert len(list(other.iterate())) == 16


@follows("make the loader by Dataloader(…, …partition=…)")
def tunix_places_again(case: Case) -> None:
    # tests/interop/test_trainers.py follows it for five partitions.
    mesh = jax.make_mesh((4, 2), ("fsdp", "tp"))
    assert tunix_warnings(case, mesh, P("tp"))
    assert not tunix_warnings(case, mesh, P("fsdp"))


def tunix_warnings(case: Case, mesh: Mesh, partition: Any) -> list[str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        with mesh:
            loader = loader_of(mesh=mesh, partition=partition)
            return warnings_of_tunix_hooks(tunix_over(case.patch), loader, ("fsdp",))


@follows("slice before shuffle(), and shuffle with loadax")
def buckets_of_rows_that_change(case: Case) -> None:
    rows = from_source(RAGGED)
    with case.refused(ArgumentError):
        Dataloader(rows.shuffle(0).subset_per_epoch(range(32)), buckets())
    assert len(Dataloader(rows[:32].shuffle(0), buckets())) == 4


def pairs_of_leaves(shorter: int | None = None) -> Any:
    """Rows of tokens and labels that are equally long, but for one row."""
    lengths = [1 + row % 8 for row in range(64)]
    return from_source(
        [
            {"tokens": np.arange(length), "labels": np.arange(length - (row == shorter))}
            for row, length in enumerate(lengths)
        ]
    )


@follows("leave out its pad(), and pass Buckets(…, …, value={…: …}), or Buckets((…,), …) to keep …")
def leaf_padded_before_buckets(case: Case) -> None:
    padded = pairs_of_leaves().pad({"labels": 8})
    with case.refused(ArgumentError):
        loader_of(padded, batch_size=loadax.Buckets("tokens", {4: 8, 8: 8}))
    both = loadax.Buckets(("tokens", "labels"), {4: 8, 8: 8}, value={"labels": -100})
    assert loader_of(pairs_of_leaves(), batch_size=both)[0]["labels"].shape == (8, 4)
    assert loader_of(padded, batch_size=loadax.Buckets(("tokens",), {4: 8, 8: 8}))[0]["labels"].shape == (8, 8)


@follows("or pad the leaf before, to one length: .pad({…: …}) and Buckets(…, …)")
def row_whose_leaves_differ_in_length(case: Case) -> None:
    data = pairs_of_leaves(shorter=10)
    with case.refused():
        list(loader_of(data, batch_size=loadax.Buckets("tokens", {4: 8, 8: 8})))
    alone = loadax.Buckets(("tokens",), {4: 8, 8: 8})
    assert len(list(loader_of(data.pad({"labels": 8}), batch_size=alone))) == 8


@follows("a leaf as long as … is padded with it if it is named: Buckets(…, …)")
def ragged_leaf_beside_that_of_buckets(case: Case) -> None:
    with case.refused():
        list(loader_of(pairs_of_leaves(), batch_size=loadax.Buckets(("tokens",), {4: 8, 8: 8})))
    both = loadax.Buckets(("tokens", "labels"), {4: 8, 8: 8})
    assert len(list(loader_of(pairs_of_leaves(), batch_size=both))) == 8


@follows("it is a stream: from_stream(lambda lane, lanes: FUNCTION(), lanes=1)")
def function_of_rows(case: Case) -> None:
    def numbers(count: int = 16) -> Any:
        yield from ({"x": np.int64(number)} for number in range(count))

    def opened(count: int = 16) -> Any:
        return iter(numbers(count))

    for function in (opened, functools.partial(opened, 16)):
        with case.refused(ArgumentError):
            loader_of(function)
        stream = loadax.from_stream(lambda lane, lanes: function(), lanes=1)  # noqa: B023
        assert len(list(loader_of(stream).host_batches())) == 2


@follows("phases, each with row ids of its own; pass phase=, an int from 0 to")
def find_in_a_chain(case: Case) -> None:
    run = loadax.chain([loader_of(), loader_of()])
    with case.refused(ArgumentError):
        run.find(3)
    assert run.find(3, phase=0) + run.find(3, phase=1) == [(0, 3), (8, 3)]


@follows("keep at least one of each loader, or chain() the others without it")
def skip_of_all_steps_of_a_loader(case: Case) -> None:
    run = loadax.chain([loader_of(), loader_of()])
    with case.refused(ArgumentError):
        run.skip(range(8))
    assert len(run.skip(range(7))) == 9
    assert len(loadax.chain([loader_of()])) == 8


@follows("pass the path of a file that batches.report().save('run.json') wrote")
def report_of_another_file(case: Case) -> None:
    path = case.folder / "other.json"
    path.write_text("{}")
    with case.refused(ArgumentError):
        read_record(path)
    with loader_of().iterate() as batches:
        next(batches)
        batches.report().save(path)
    assert len(read_record(path).bins) == 1


@follows("save the report of an iterator: batches.report().save('run.html')")
def report_of_statistics(case: Case) -> None:
    with case.refused(ArgumentError):
        report(Stats()).save(case.folder / "run.html")
    with loader_of().iterate() as batches:
        next(batches)
        batches.report().save(case.folder / "run.html")
    assert (case.folder / "run.html").exists()


@follows("the mixture never ends, as of stop='never'; pass steps=range(start, stop)")
def digest_of_an_endless_mixture(case: Case) -> None:
    endless = loadax.mix({"a": DATA, "b": DATA}, [1, 1], stop="never")
    loader = Dataloader(endless, 8)
    with case.refused(ArgumentError):
        loader.digest()
    assert len(loader.digest(steps=range(3))) == 32
