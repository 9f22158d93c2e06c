"""Advice about objects of other libraries."""

from typing import Any

import datasets
import grain
import numpy as np
import pyarrow as pa

import loadax
from loadax.errors import ArgumentError, LeafError, LeafTypeError, SourceError
from tests.advice.registry import Case, follows

GRAIN = grain.MapDataset.range(8).map(lambda x: {"x": x})


def hugging() -> Any:
    return datasets.Dataset.from_dict({"x": list(range(8))})


@follows("loadax.from_grain(base.filter(fn)).shuffle(seed).map(fn, rng=True)")
def grain_filter_of_shuffled_rows(case: Case) -> None:
    with case.refused(ArgumentError):
        loadax.from_grain(GRAIN.shuffle(seed=0).filter(lambda row: row["x"] % 2 == 0))
    even = loadax.from_grain(GRAIN.filter(lambda row: row["x"] % 2 == 0))
    mapped = even.shuffle(0).map(lambda row, rng: {**row, "u": rng.random()}, rng=True)
    assert sorted(mapped.read(range(4))["x"]) == [0, 2, 4, 6]


@follows("pass the dataset before .batch(), and batch_size= to the Dataloader")
def grain_batches(case: Case) -> None:
    with case.refused(ArgumentError):
        loadax.from_grain(GRAIN.batch(2))
    assert loadax.Dataloader(GRAIN, batch_size=8)[0]["x"].shape == (8,)


@follows("pass num_epochs=1, or slice it before .repeat()")
def grain_slice_of_an_endless_dataset(case: Case) -> None:
    mixed = grain.MapDataset.mix([GRAIN.repeat(), GRAIN.shuffle(seed=1).repeat()], weights=[1, 3])
    with case.refused(SourceError):
        loadax.from_grain(mixed[:8]).read([0], epoch=1)
    assert len(loadax.Dataloader(mixed[:8], 8, num_epochs=1)) == 1
    assert loadax.from_grain(GRAIN[:6].repeat(2)).read([0], epoch=1)["x"].shape == (1,)


@follows("leave them out: loadax.from_grain(data.filter(lambda example: True))")
def grain_rows_of_none(case: Case) -> None:
    data = grain.MapDataset.range(8).map(lambda x: None if x == 3 else {"x": x})
    with case.refused(LeafError):
        loadax.from_grain(data).read(range(8))
    kept = loadax.from_grain(data.filter(lambda example: True))
    assert kept.read(range(7))["x"].tolist() == [0, 1, 2, 4, 5, 6, 7]


@follows("pass num_epochs=None to the Dataloader, or cut it to one epoch: loadax.from_grain(data[:rows])")
def grain_of_unknown_epochs(case: Case) -> None:
    mixed = grain.MapDataset.mix([GRAIN.repeat(), GRAIN.repeat()], weights=[1, 3])
    with case.refused(ArgumentError):
        loadax.from_grain(mixed)
    unrepeated = grain.MapDataset.mix([GRAIN, GRAIN], weights=[1, 3])
    assert loadax.Dataloader(unrepeated, 2, num_epochs=None, partition=None).rows(50).shape == (2,)
    assert len(loadax.from_grain(mixed[:8])) == 8


@follows("hand over those that belong together: loadax.as_dataset({name: data[name] for name in …})")
def arrays_of_several_lengths(case: Case) -> None:
    import xarray as xr

    data = xr.Dataset({"x": ("a", np.arange(4)), "y": ("a", np.arange(4)), "z": ("b", np.arange(3))})
    with case.refused(SourceError):
        loadax.as_dataset(data)
    names = ["x", "y"]
    assert len(loadax.as_dataset({name: data[name] for name in names})) == 4


@follows("hand over one of them: loadax.as_dataset(data[…])")
def splits_of_a_dataset(case: Case) -> None:
    data = datasets.DatasetDict(train=hugging(), test=hugging())
    with case.refused(ArgumentError):
        loadax.as_dataset(data)
    assert len(loadax.as_dataset(data["train"])) == 8


class OtherFrame:
    """A frame of a library that loadax does not know."""

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return pa.table({"x": [1, 2]}).__arrow_c_stream__(requested_schema)


@follows("open it as a table: loadax.from_arrow(data)")
def frame_of_another_library(case: Case) -> None:
    data = OtherFrame()
    with case.refused(ArgumentError):
        loadax.as_dataset(data)
    assert len(loadax.from_arrow(data)) == 2


@follows("of arrays, one row an entry of each: loadax.from_arrays(data)")
def mapping_as_rows(case: Case) -> None:
    data = {"x": np.arange(4)}
    with case.refused(ArgumentError):
        loadax.from_source(data)
    assert len(loadax.from_arrays(data)) == 4


@follows("pass a query: connection.sql('SELECT …')")
def connection_of_duckdb(case: Case) -> None:
    import duckdb

    with duckdb.connect() as connection:
        with case.refused(ArgumentError):
            loadax.from_arrow(connection)
        assert len(loadax.from_arrow(connection.sql("SELECT 1 AS x"))) == 1


@follows("cast or drop it, as in data.drop(…)")
def column_without_an_array(case: Case) -> None:
    import polars as pl

    data = pl.DataFrame({"x": [1], "odd": pl.Series([1], dtype=pl.Int128)})
    with case.refused(LeafTypeError):
        loadax.as_dataset(data)
    assert len(loadax.as_dataset(data.drop("odd"))) == 1
    assert len(loadax.as_dataset(data.cast({"odd": pl.Int64}))) == 1


@follows("name it: loadax.from_arrow(pyarrow.table({'x': data}))")
def single_column(case: Case) -> None:
    data = pa.chunked_array([[1, 2, 3]])
    with case.refused(ArgumentError):
        loadax.from_arrow(data)
    assert loadax.from_arrow(pa.table({"x": data}))[2]["x"] == 3


@follows("pass a datasets.Dataset, or use loadax.as_dataset(data)")
def list_for_hugging_face(case: Case) -> None:
    data = [1] * 8
    with case.refused(ArgumentError):
        loadax.from_huggingface(data)
    assert len(loadax.as_dataset(data)) == 8
    assert len(loadax.from_huggingface(hugging())) == 8


@follows("is a path or a name; open it: loadax.from_huggingface(datasets.…)")
def path_for_hugging_face(case: Case) -> None:
    path = str(case.folder / "saved")
    hugging().save_to_disk(path)
    with case.refused(ArgumentError):
        loadax.from_huggingface(path)
    assert len(loadax.from_huggingface(datasets.load_from_disk(path))) == 8


@follows(
    "loadax.from_huggingface(data.with_format(None)).map(fn), or have Hugging Face apply it row by row: "
    "loadax.from_source(data)"
)
def transform_of_hugging_face(case: Case) -> None:
    data = hugging().with_transform(lambda batch: {"y": [2 * x for x in batch["x"]]})
    with case.refused(ArgumentError):
        loadax.from_huggingface(data)
    mapped = loadax.from_huggingface(data.with_format(None)).map(lambda row: {"y": 2 * row["x"]})
    for followed in (mapped, loadax.from_source(data)):
        assert followed.read([3])["y"].tolist() == [6]


@follows("state the type that it has: stream.cast_column(…), or features= of stream.map")
def streamed_column_of_another_type(case: Case) -> None:
    stream = hugging().to_iterable_dataset()

    def halves(row: Any) -> Any:
        return {"x": row["x"] / 2 if row["x"] else "none"}

    with case.refused(SourceError):
        next(loadax.Dataloader(stream.map(halves, features=stream.features), 8, num_workers=0).host_batches())
    floats = datasets.Features({"x": datasets.Value("float64")})
    halved = stream.map(lambda row: {"x": row["x"] / 2}, features=floats)
    cast = stream.cast_column("x", datasets.Value("float64"))
    for followed in (halved, cast):
        (batch,) = loadax.Dataloader(followed, 8, num_workers=0).host_batches()
        assert sorted(batch["x"])[1] in (0.5, 1)


@follows("pass a generator and steps_per_epoch= to fit() instead")
def keras_epochs_of_a_stream(case: Case) -> None:
    import keras

    from loadax.interop.keras import Batches

    def rows(lane: int, lanes: int) -> Any:
        return ((np.array([row], np.float32), np.float32(row)) for row in range(lane, 10**6, lanes))

    loader = loadax.Dataloader(loadax.from_stream(rows, lanes=1), 8)
    with case.refused(ArgumentError):
        Batches(loader)
    model = keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    with loader.iterate() as batches:
        model.fit((batch for batch in batches), steps_per_epoch=2, epochs=2, verbose=0, shuffle=False)
    assert int(model.optimizer.iterations) == 4
