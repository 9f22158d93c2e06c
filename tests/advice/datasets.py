"""Advice of the verbs of a dataset."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import loadax
from loadax import Dataset, from_arrays, from_source
from loadax.cli import main
from loadax.errors import ArgumentError, LeafError, RowIndexError, ScheduleError
from tests.advice.registry import Case, follows

UNTYPED: Any = loadax  # so that a type checker lets wrong arguments pass
DATA = from_arrays({"x": np.arange(64)})
ENDLESS = loadax.mix({"a": DATA, "b": DATA}, [1, 1], stop="never")
DOCUMENTS = [np.arange(1 + number % 5) for number in range(30)]


def rows_of(data: Dataset) -> list[int]:
    values: list[int] = data.read(range(len(data)))["x"].tolist()
    return values


@follows("pass a dict, tuple or list of datasets: zip((one, other))")
def zip_of_one(case: Case) -> None:
    with case.refused(ArgumentError):
        UNTYPED.zip(DATA)
    assert len(loadax.zip((DATA, DATA))) == 64


@follows("pass it last, mix() it, or pass ds.subset_per_epoch(range(n))")
def concat_of_endless_part(case: Case) -> None:
    with case.refused(ArgumentError):
        loadax.concat([ENDLESS, DATA])
    assert loadax.concat([DATA, ENDLESS]).read([3])["x"].tolist() == [3]
    assert loadax.mix([ENDLESS, DATA], [1, 1], stop="never").read([0])["x"].shape == (1,)
    assert len(loadax.concat([ENDLESS.subset_per_epoch(range(10)), DATA])) == 74


@follows("make one shape of them: .map(fn)")
def group_of_examples(case: Case) -> None:
    grouped = from_source([{"x": np.arange(1 + row % 3)} for row in range(12)]).group(
        4, [1 + row % 3 for row in range(12)]
    )
    with case.refused(LeafError):
        grouped.read(range(2))
    sums = grouped.map(lambda row: {"x": np.int64(sum(example["x"].sum() for example in row))})
    assert sums.read(range(len(sums)))["x"].sum() == sum(np.arange(1 + row % 3).sum() for row in range(12))


@follows("fill them: array.filled(0)")
def masked_array(case: Case) -> None:
    array = np.ma.masked_equal(np.arange(4), 2)
    with case.refused(LeafError):
        from_arrays({"x": array}).read([0])
    assert rows_of(from_arrays({"x": array.filled(0)})) == [0, 1, 0, 3]


@follows("return an array of numbers (from a torch tensor: tensor.detach().float().numpy())")
def leaf_with_gradient(case: Case) -> None:
    class Tensor:  # torch's, with a gradient, or of bfloat16
        def __array__(self, *_: Any, **__: Any) -> Any:
            raise RuntimeError("Can't call numpy() on Tensor that requires grad")

        def __len__(self) -> int:
            return 2

        def detach(self) -> "Tensor":
            return self

        float = detach

        def numpy(self) -> Any:
            return np.ones(2, np.float32)

    Tensor.__module__ = "torch"
    with case.refused(LeafError):
        DATA.map(lambda _: {"x": Tensor()}).read([0])
    assert DATA.map(lambda _: {"x": Tensor().detach().float().numpy()}).read([0])["x"].tolist() == [[1, 1]]


@follows("replace None in a map, or leave such rows out with filter()")
def none_in_one_row(case: Case) -> None:
    data = from_source([{"x": row, "y": None if row == 2 else row} for row in range(4)])
    with case.refused(LeafError):
        data.read(range(4))
    replaced = data.map(lambda row: {**row, "y": -1 if row["y"] is None else row["y"]})
    assert replaced.read(range(4))["y"].tolist() == [0, 1, -1, 3]
    assert rows_of(data.filter(lambda row: row["y"] is not None)) == [0, 1, 3]


@follows("if a loop calls one, call it once instead: concat() with a list of all datasets, one slice, exclude()")
def verb_in_a_loop(case: Case) -> None:
    def joined() -> Dataset:
        data = DATA
        for _ in range(200):
            data = loadax.concat([data, DATA])
        return data

    with case.refused(ArgumentError):
        joined()
    assert len(loadax.concat([DATA] * 200)) == 12_800
    assert len(DATA.exclude(list(range(60)))) == 4


@follows("call it before: mix({name: ds.shuffle(seed)}, …)")
def shuffle_of_a_mixture(case: Case) -> None:
    with case.refused(ArgumentError):
        loadax.mix({"a": DATA}, [1]).shuffle(0)
    assert sorted(rows_of(loadax.mix({"a": DATA.shuffle(0)}, [1]))) == list(range(64))


@follows("call it before: mix({name: ds.…(…)…}, …)")
def filter_of_a_mixture(case: Case) -> None:
    with case.refused(ArgumentError):
        loadax.mix({"a": DATA, "b": DATA}, [1, 1]).filter(lambda row: row["x"] < 4)
    mixed = loadax.mix({"a": DATA.filter(lambda row: row["x"] < 4), "b": DATA}, [1, 1])
    assert set(rows_of(mixed)[::2]) | set(rows_of(mixed)[1::2])


@follows("loadax.zip((ds, other)) takes other data")
def zip_verb_of_arrays(case: Case) -> None:
    data: Any = DATA
    with case.refused(ArgumentError):
        data.zip({"y": np.arange(64)})
    assert len(loadax.zip((DATA, {"y": np.arange(64)}))) == 64


@follows("leave repeat() out and pass num_epochs= to the Dataloader")
def repeat_of_endless(case: Case) -> None:
    with case.refused(ArgumentError):
        ENDLESS.repeat(2)
    assert loadax.Dataloader(ENDLESS, 8, num_epochs=None).rows(10**9).shape == (8,)
    assert len(loadax.Dataloader(DATA, 8, num_epochs=3)) == 24


@follows("map after concat(), or use shuffle(seed=…)")
def chunks_of_mapped_parts(case: Case) -> None:
    with case.refused(ArgumentError):
        loadax.concat([DATA.map(dict), DATA]).shuffle(0, block="chunks")
    assert len(loadax.concat([DATA, DATA]).map(dict).shuffle(seed=0)) == 128


@follows("from_arrays((x, y)), or from_arrays({'x': x, 'y': y})")
def several_arrays(case: Case) -> None:
    x, y = np.zeros((4, 2)), np.arange(4)
    for arguments, named in (((x, y), {}), ((), {"x": x, "y": y})):
        with case.refused(ArgumentError):
            UNTYPED.from_arrays(*arguments, **named)
    assert from_arrays((x, y))[3][1] == 3
    assert from_arrays({"x": x, "y": y})[3]["y"] == 3


@follows("call pack() first, then the random map, or one with_epoch=True")
def pack_of_random_documents(case: Case) -> None:
    documents = from_source(DOCUMENTS)
    with case.refused(ArgumentError):
        documents.map(lambda row, rng: row + rng.integers(2), rng=True).pack(8)
    packed = documents.pack(8).map(lambda row, rng: {**row, "noise": rng.random()}, rng=True)
    assert 0 <= packed[0]["noise"] < 1
    assert documents.pack(8).map(lambda row, epoch: {**row, "e": epoch}, with_epoch=True)[0]["e"] == 0


@follows("call pack() again, and apply random maps after it")
def documents_that_changed(case: Case) -> None:
    documents = [np.arange(6), np.arange(6)]

    class Rows:
        def __len__(self) -> int:
            return 2

        def __getitem__(self, row: int) -> Any:
            return documents[row]

    packed = from_source(Rows()).pack(12)
    packed.read([0])
    documents[0] = np.arange(2)
    with case.refused(LeafError):
        packed.read([0])
    again = from_source(Rows()).pack(12)
    assert again[0]["segment_ids"].max() == 2


@follows("make one in a map before: .map(tokenize).pack(…)")
def pack_of_texts(case: Case) -> None:
    texts = from_source(["to be", "or not"])
    with case.refused(LeafError):
        len(texts.pack(16))
    assert texts.map(lambda text: np.frombuffer(text.encode(), np.uint8)).pack(16)[0]["tokens"].shape == (16,)


@follows("drop or convert it in a map before pack()")
def pack_of_strings_beside_tokens(case: Case) -> None:
    rows = [{"tokens": row, "names": np.array(["a"] * len(row))} for row in DOCUMENTS]
    documents = from_source(rows)
    with case.refused(LeafError):
        len(documents.pack(8))
    assert "tokens" in documents.drop("names").pack(8)[0]


@follows("name it otherwise: .rename({'documents': 'texts'})")
def pack_of_a_reserved_name(case: Case) -> None:
    rows = from_source([{"documents": row, "label": np.int64(3)} for row in DOCUMENTS])
    with case.refused(ArgumentError):
        len(rows.pack({"documents": 8}, method="best_fit", most_documents=4))
    renamed = rows.rename({"documents": "texts"})
    assert "texts" in renamed.pack({"texts": 8}, method="best_fit", most_documents=4)[0]


@follows("pass it to a Dataloader as it is, without another verb after mix(), or schedule by example")
def length_of_a_mixture_by_step(case: Case) -> None:
    parts, weights = {"a": DATA, "b": DATA}, {0: [1, 1], 4: [3, 1]}
    by_step = loadax.mix(parts, weights, by="step", stop="never")
    with case.refused(ScheduleError):
        len(by_step)
    assert loadax.Dataloader(by_step, 8, num_epochs=None).rows(9).shape == (8,)
    assert len(loadax.mix(parts, weights, by="example")) > 0


@follows("schedule by example, or pass stop='never' to mix()")
def weights_after_the_epoch(case: Case) -> None:
    parts, weights = {"a": DATA, "b": DATA}, {0: [1, 1], 1000: [3, 1]}
    with case.refused(ArgumentError):
        loadax.Dataloader(loadax.mix(parts, weights, by="step"), 8, num_epochs=2)
    mixed = loadax.mix(parts, weights, by="step", stop="never")
    assert loadax.Dataloader(mixed, 8, num_epochs=None).rows(1001).shape == (8,)


@follows("call …() first, then sample()")
def filter_of_draws(case: Case) -> None:
    with case.refused(ArgumentError):
        DATA.sample(np.ones(64)).filter(lambda row: row["x"] > 3)
    kept = DATA.filter(lambda row: row["x"] > 3)
    assert min(rows_of(kept.sample(np.ones(len(kept))))) > 3


@follows("pass sorted(…)")
def rows_in_a_set(case: Case) -> None:
    data: Any = DATA
    rows = {5, 3}
    with case.refused(ArgumentError):
        data.select(rows)
    assert rows_of(data.select(sorted(rows))) == [3, 5]


@follows("pass a flat list, such as ….reshape(-1)")
def rows_in_two_dimensions(case: Case) -> None:
    rows = np.array([[1, 2], [3, 4]])
    with case.refused(ArgumentError):
        DATA.select(rows)
    assert rows_of(DATA.select(rows.reshape(-1))) == [1, 2, 3, 4]


@follows("pass row numbers: numpy.flatnonzero(mask)")
def rows_by_mask(case: Case) -> None:
    mask = np.arange(64) < 3
    with case.refused(ArgumentError):
        DATA.exclude(mask)
    assert rows_of(DATA.exclude(np.flatnonzero(mask)))[0] == 3


@follows("pass integers (for a mask: numpy.flatnonzero(mask))")
def positions_by_mask(case: Case) -> None:
    mask: Any = np.arange(64) < 3
    with case.refused(RowIndexError):
        DATA.read(mask)
    assert DATA.read(np.flatnonzero(mask))["x"].tolist() == [0, 1, 2]


@follows("pass an int, and strings after it, as in derive(0, …)")
def seed_of_a_string(case: Case) -> None:
    derive: Any = loadax.seeds.derive
    with case.refused(ArgumentError):
        derive("augment")
    assert isinstance(derive(0, "augment"), int)


@follows("pad() by name needs dicts: …")
def pad_by_name_of_arrays(case: Case) -> None:
    rows = from_source(DOCUMENTS)
    with case.refused(LeafError):
        rows.pad({"tokens": 8}).read([0])
    assert rows.map(lambda row: {"tokens": row}).pad({"tokens": 8})[0]["tokens"].shape == (8,)


@follows("pass add_lengths=False to add none")
def pad_twice(case: Case) -> None:
    rows = from_source([{"t": row, "t_length": np.int64(3)} for row in DOCUMENTS])
    with case.refused(LeafError):
        rows.pad({"t": 8}).read([0])
    assert rows.pad({"t": 8}, add_lengths=False)[0]["t"].shape == (8,)


@follows("pass the lengths of its leaves by name: pad({…: …})")
def pad_of_dicts_by_number(case: Case) -> None:
    rows = from_source([{"t": row} for row in DOCUMENTS])
    with case.refused(LeafError):
        rows.pad(8).read([0])
    assert rows.pad({"t": 8})[0]["t"].shape == (8,)


@follows("pass another seed, or counts: split([…, 1])")
def split_that_leaves_a_part_empty(case: Case) -> None:
    five = DATA[:5]
    with pytest.warns(UserWarning, match="leaves none") as caught:
        sizes = [[len(part) for part in five.split(0.9, seed=seed)] for seed in range(20)]
    assert "pass another seed, or counts: split([4, 1])" in str(caught[0].message)
    assert [4, 1] in sizes
    assert [len(part) for part in five.split([4, 1])] == [4, 1]


@follows("pass pack(…, targets='given'), with which it is True for all entries of documents")
def targets_that_documents_bring(case: Case) -> None:
    def rows() -> Iterator[dict[str, Any]]:
        for document in DOCUMENTS:
            tokens = np.arange(len(document) + 5)
            yield {"inputs": tokens[:-1], "targets": tokens[1:]}

    documents = from_source(list(rows()))
    with pytest.warns(UserWarning, match="shifted by one entry"):
        len(documents.pack(16))
    packed = documents.pack(16, targets="given").read([0])
    assert (packed["loss_mask"] == (packed["segment_ids"] > 0)).all()


@follows(
    "shuffle(seed, block='chunks') decodes each once an epoch, or `loadax convert` writes the data in smaller chunks"
)
def shuffle_of_large_chunks(case: Case) -> None:
    path = case.folder / "data.zarr"
    rows = np.random.default_rng(0).integers(0, 255, (4096, 1024), np.uint8)
    loadax.write_zarr({"x": rows}, path, chunk_rows=256, shard_rows=256, progress=False)
    data = loadax.from_zarr(path)
    with pytest.warns(UserWarning, match=r"shuffle\(seed, block='chunks'\)"):
        data.shuffle(0)
    assert data.shuffle(0, block="chunks").read([0])["x"].shape == (1, 1024)
    smaller = case.folder / "smaller.zarr"
    assert main(["convert", str(path), str(smaller), "--chunk-rows", "4"]) == 0
    loadax.from_zarr(smaller).shuffle(0)


STREAM = loadax.from_stream(lambda lane, lanes: ({"x": np.int32(row)} for row in range(lane, 64, lanes)), 2)


@follows(
    "shuffle() of a stream needs buffer_size=, the number of rows that each lane keeps to choose from: "
    "data.shuffle(seed=…, buffer_size=1000)"
)
def shuffle_of_a_stream(case: Case) -> None:
    data = STREAM
    with case.refused(ArgumentError):
        data.shuffle(seed=0)
    (batch,) = loadax.Dataloader(data.shuffle(seed=0, buffer_size=1000), batch_size=64)
    assert sorted(batch["x"].tolist()) == list(range(64))


@follows("is for streams; all rows of this dataset are shuffled, without a buffer: data.shuffle(seed=…)")
def buffer_of_a_dataset(case: Case) -> None:
    data = DATA
    with case.refused(ArgumentError):
        data.shuffle(seed=0, buffer_size=1000)
    assert sorted(rows_of(data.shuffle(seed=0))) == list(range(64))


@follows("call it on concat() of the parts, where each row counts once")
def statistics_of_a_mixture(case: Case) -> None:
    parts = [loadax.from_arrays({"x": np.arange(4.0)}), loadax.from_arrays({"x": np.full(4, 9.0)})]
    with case.refused(ArgumentError):
        loadax.mix(parts, [1, 1]).statistics()
    assert loadax.concat(parts).statistics()["x"].mean == 5.25


DOCUMENT_ROWS = loadax.from_documents(np.arange(24), np.arange(0, 25, 2))


@follows("mix rows of ds.pack(…), or by='example'")
def stream_in_a_mixture_by_tokens(case: Case) -> None:
    with case.refused(ArgumentError):
        loadax.mix([DOCUMENT_ROWS.to_stream(4)], [1], by="tokens")
    assert len(loadax.mix([DOCUMENT_ROWS.pack(8)], [1], by="tokens")) > 0
    assert loadax.mix([DOCUMENT_ROWS.to_stream(4)], [1], by="example").is_stream


@follows("pass its own datasets to one mix()")
def mixture_in_a_mixture_by_tokens(case: Case) -> None:
    inner = loadax.mix([DOCUMENT_ROWS, DOCUMENT_ROWS], [1, 1])
    with case.refused(ArgumentError):
        loadax.mix([inner, DOCUMENT_ROWS], [1, 1], by="tokens")
    assert len(loadax.mix([DOCUMENT_ROWS, DOCUMENT_ROWS, DOCUMENT_ROWS], [1, 1, 2], by="tokens")) > 0


@follows("slice before shuffle(), and shuffle with loadax")
def other_rows_in_every_epoch_of_a_mixture_by_tokens(case: Case) -> None:
    with case.refused(ArgumentError):
        loadax.mix([DOCUMENT_ROWS.shuffle(0).subset_per_epoch(range(4))], [1], by="tokens")
    assert len(loadax.mix([DOCUMENT_ROWS[:4].shuffle(0)], [1], by="tokens")) == 4


@follows("map after mix()")
def random_maps_in_a_mixture_by_tokens(case: Case) -> None:
    with case.refused(ArgumentError):
        loadax.mix([DOCUMENT_ROWS.map(lambda row, rng: row, rng=True)], [1], by="tokens")
    assert len(loadax.mix([DOCUMENT_ROWS], [1], by="tokens").map(lambda row, rng: row, rng=True)) == 12
