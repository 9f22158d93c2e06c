"""Streams of Hugging Face: their lanes, rows, mixtures and types are those of Hugging Face."""

import datetime as dt
import logging
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import datasets
import datasets.distributed
import grain
import numpy as np
import PIL.Image
import pytest
from datasets import Array2D, ClassLabel, Features, Image, LargeList, List, Translation, Value

import loadax
from loadax import Dataloader, as_dataset, from_huggingface
from loadax.errors import ArgumentError, SourceError, StateError
from loadax.sources.stream.source import StreamSource
from loadax.sources.tables.huggingface.iterable_datasets import lanes_of


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path)


def stream(shards: int = 4, rows: int = 400, first: int = 0) -> Any:
    column = list(range(first, first + rows))
    return datasets.Dataset.from_dict({"x": column}).to_iterable_dataset(shards)


def source_of(data: loadax.Dataset) -> StreamSource:
    assert isinstance(data.source, StreamSource)
    return data.source


def batches_of(data: Any, batch_size: int = 8, start: Any = 0, **options: Any) -> list[Any]:
    loader = Dataloader(data, batch_size, shard_index=0, shard_count=1, **options)
    with loader.host_batches(start) as batches:
        return [batch["x"][batch["mask"]].tolist() if "mask" in batch else batch["x"].tolist() for batch in batches]


def rows_of(data: Any, batch_size: int = 8) -> list[int]:
    return [row for batch in batches_of(data, batch_size, remainder="pad") for row in batch]


def indexed(row: Any, index: int) -> Any:
    return {"x": index}


def joined(rows: Any) -> Any:
    return {"x": [sum(rows["x"])]}


IN_ORDER: dict[str, Callable[[], Any]] = {
    "take": lambda: stream().take(40),
    "skip": lambda: stream().skip(40),
    "take of shuffled": lambda: stream().shuffle(seed=0, buffer_size=10).take(40),
    "shuffle of skipped": lambda: stream().skip(40).shuffle(seed=0, buffer_size=10),
    "take of a part": lambda: datasets.concatenate_datasets([stream().take(10), stream().skip(390)]),
    "interleave": lambda: datasets.interleave_datasets([stream(2), stream(4, first=1000)]),
    "interleave by chance": lambda: datasets.interleave_datasets(
        [stream(8), stream(8, first=1000)], probabilities=[0.8, 0.2], seed=1, stopping_strategy="all_exhausted"
    ),
    "map with indices": lambda: stream().map(indexed, with_indices=True),
    "filter with indices": lambda: stream().filter(lambda row, index: index % 3 > 0, with_indices=True),
    "without the last": lambda: stream().map(lambda rows: rows, batched=True, batch_size=64, drop_last_batch=True),
    "all at once": lambda: stream().map(joined, batched=True, batch_size=None),
    "of a node": lambda: datasets.distributed.split_dataset_by_node(stream(), 1, 3),
}
OF_SHARDS: dict[str, Callable[[], Any]] = {
    "plain": stream,
    "of many shards": lambda: stream(40),
    "filter": lambda: stream().filter(lambda row: row["x"] % 7 == 0),
    "shuffle": lambda: stream(20).shuffle(seed=0, buffer_size=30),
    "repeat": lambda: stream().repeat(2),
    "concatenate": lambda: datasets.concatenate_datasets([stream(9), stream(9, first=1000)]),
    "batched map": lambda: stream().map(lambda rows: {"x": [x + 1 for x in rows["x"]]}, batched=True),
}


@pytest.mark.parametrize("name", IN_ORDER)
def test_what_counts_rows_is_one_lane_of_the_rows_in_order(name: str) -> None:
    assert rows_of(IN_ORDER[name]()) == [row["x"] for row in IN_ORDER[name]()]


@pytest.mark.parametrize("name", OF_SHARDS)
def test_other_streams_are_lanes_of_the_same_rows(name: str) -> None:
    data = from_huggingface(OF_SHARDS[name]())
    assert source_of(data).lanes > 1
    assert sorted(rows_of(data, 16)) == sorted(row["x"] for row in OF_SHARDS[name]())


def test_a_number_of_lanes_is_bounded_and_even() -> None:
    for shards in range(1, 3000):
        lanes = lanes_of(shards)
        if shards <= 16:
            assert lanes == shards
        else:
            assert 8 <= lanes <= 16
            assert shards % lanes == min(shards % other for other in range(8, 17))
    assert lanes_of(150) == 15
    assert lanes_of(1024) == 16


def test_few_shards_are_open_at_a_time() -> None:
    opened: set[int] = set()
    most = [0]

    def rows(shards: list[int]) -> Iterator[Any]:
        for shard in shards:
            opened.add(shard)
            most[0] = max(most[0], len(opened))
            yield from ({"x": 10 * shard + row} for row in range(10))
            opened.discard(shard)

    many = datasets.IterableDataset.from_generator(rows, gen_kwargs={"shards": list(range(160))})
    batches = batches_of(many, 32)
    assert sorted(row for batch in batches for row in batch) == list(range(1600))
    assert most[0] <= 16 + 1  # and the row that tells the spec
    # Shards are read side by side in their order.
    assert max(batches[0]) < 160
    assert min(batches[-1]) > 1400


def test_lanes_are_chosen_and_wrong_numbers_refused() -> None:
    assert source_of(from_huggingface(stream(32), lanes=2)).lanes == 2
    assert rows_of(from_huggingface(stream(32), lanes=1)) == list(range(400))
    with pytest.raises(ArgumentError, match=r"lanes=9: the stream has 4 shards, .*; pass 4 or fewer"):
        from_huggingface(stream(), lanes=9)
    assert source_of(from_huggingface(stream(), lanes=4)).lanes == 4
    with pytest.raises(ArgumentError, match="lanes=0"):
        from_huggingface(stream(), lanes=0)
    with pytest.raises(ArgumentError, match="lanes=2 is for a stream, and the data is a map-style dataset; leave"):
        from_huggingface(datasets.Dataset.from_dict({"x": [1]}), lanes=2)
    message = r"or fewer lanes: loadax.from_huggingface\(data, lanes=8\)$"
    with pytest.raises(ArgumentError, match=message):
        Dataloader(stream(64), 8, remainder="pad")
    assert sorted(rows_of(from_huggingface(stream(64), lanes=8))) == list(range(400))


def test_more_lanes_than_one_are_told_where_they_change_rows(caplog: pytest.LogCaptureFixture) -> None:
    both = datasets.interleave_datasets([stream(), stream(first=1000)])
    with caplog.at_level(logging.WARNING, "loadax"):
        from_huggingface(both)
        assert not caplog.messages
        from_huggingface(both, lanes=4)
    assert "lanes=4: each lane does interleave_datasets() by itself" in caplog.text
    assert caplog.messages[0].endswith("leave lanes= out to read these; to mix streams, pass them to loadax.mix")


def test_a_state_of_other_lanes_names_their_number() -> None:
    loader = Dataloader(from_huggingface(stream().take(200), lanes=4), 8, shard_index=0, shard_count=1)
    with loader.host_batches() as batches:
        whole = [next(batches)["x"].tolist() for _ in range(6)]
    with loader.host_batches() as batches:
        next(batches)
        state = batches.get_state()
    with pytest.raises(StateError, match="it had 4 lanes: pass lanes=4 to what opens the stream, as it was then"):
        batches_of(stream().take(200), 8, state)
    resumed = batches_of(from_huggingface(stream().take(200), lanes=4), 8, state)
    assert resumed[:5] == whole[1:]


def test_a_state_from_before_that_is_not_exact_is_not_used(caplog: pytest.LogCaptureFixture) -> None:
    def data() -> Any:
        return stream().shuffle(seed=0, buffer_size=50)

    loader = Dataloader(data(), 8, num_epochs=2, shard_index=0, shard_count=1)
    with loader.host_batches() as batches:
        for _ in range(60):
            next(batches)
        state = batches.get_state()
    # As an older loadax saved it.
    lanes = {lane: [row, epoch, first, {"any": 1}] for lane, (row, epoch, first, _) in state["lanes"][0].items()}
    whole = batches_of(data(), num_epochs=2)
    with caplog.at_level(logging.WARNING, "loadax"):
        assert batches_of(data(), 8, state | {"lanes": [lanes]}, num_epochs=2) == whole[60:]
    told = [message for message in caplog.messages if "no exact state" in message]
    what = "a resumed run reads and skips the rows of its epoch before the step"
    assert told == [f"loadax: shuffle() of Hugging Face has no exact state: {what}"]


def test_streams_without_rows() -> None:
    with pytest.raises(SourceError, match="the stream has no rows; check what it is made of, as its filters"):
        Dataloader(stream().take(0), 8)
    odd = stream().filter(lambda row: row["x"] < 300)
    with pytest.raises(SourceError, match=r"lane 3 of 4 has no rows; pass fewer lanes, .*: loadax.from_huggingface"):
        batches_of(odd)
    assert rows_of(from_huggingface(odd, lanes=1)) == list(range(300))


FEATURES = Features(
    {
        "small": Value("int8"),
        "half": Value("float16"),
        "yes": Value("bool"),
        "floats": List(Value("float64")),
        "bytes": List(Value("int8")),
        "bools": List(Value("bool")),
        "large": LargeList(Value("int8")),
        "fixed": List(Value("float32"), length=2),
        "deep": List(List(Value("int16"))),
        "square": List(List(Value("float64"), length=2)),
        "dicts": List({"a": Value("int32"), "text": Value("string")}),
        "text": Value("string"),
        "raw": Value("binary"),
        "texts": List(Value("string")),
        "tree": {"u": Value("uint16"), "v": List(Value("float64")), "image": Image()},
        "image": Image(),
        "images": List(Image()),
        "matrix": Array2D((2, 3), "float64"),
        "tall": Array2D((None, 3), "int8"),
        "label": ClassLabel(names=["a", "b"]),
        "when": Value("timestamp[us]"),
        "took": Value("duration[s]"),
        "day": Value("date32"),
        "times": List(Value("timestamp[s]")),
        "said": Translation(languages=["en", "de"]),
    }
)
PIXELS = PIL.Image.fromarray(np.arange(27, dtype=np.uint8).reshape(3, 3, 3))
ROW = {
    "small": 3,
    "half": np.float16(0.25),
    "yes": True,
    "floats": [0.1, 0.2],
    "bytes": [1, 2],
    "bools": [True, False],
    "large": [1, 2],
    "fixed": [0.5, 1.0],
    "deep": [[1], [2, 3]],
    "square": [[0.1, 0.2]],
    "dicts": [{"a": 1, "text": "x"}],
    "text": "hi",
    "raw": b"yo",
    "texts": ["p", "q"],
    "tree": {"u": 7, "v": [0.1], "image": PIXELS},
    "image": PIXELS,
    "images": [PIXELS],
    "matrix": np.arange(6.0).reshape(2, 3),
    "tall": np.ones((4, 3), np.int8),
    "label": 1,
    "when": dt.datetime(2020, 1, 1, 1),  # noqa: DTZ001
    "took": dt.timedelta(seconds=5),
    "day": dt.date(2020, 1, 2),
    "times": [dt.datetime(2020, 1, 1)],  # noqa: DTZ001
    "said": {"en": "x", "de": "y"},
}


def plain(value: Any) -> Any:
    """A value with its types, to compare."""
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, list):
        return list(map(plain, value))
    if isinstance(value, np.ndarray | np.generic):
        return type(value), value.dtype, value.shape, value.tolist()
    if isinstance(value, PIL.Image.Image):
        return "image", np.asarray(value).tolist()
    return type(value), value


def generated() -> Iterator[Any]:
    yield from [ROW] * 3


TYPED: dict[str, Callable[[], Any]] = {
    "of a table": lambda: table().to_iterable_dataset(2),
    "in a format": lambda: table().to_iterable_dataset(2).with_format("numpy"),
    "of a generator": lambda: datasets.IterableDataset.from_generator(generated, features=FEATURES),
    "of a map with features": lambda: table().to_iterable_dataset().map(lambda row: row, features=FEATURES),
}


def table() -> Any:
    return datasets.Dataset.from_list([ROW] * 4, features=FEATURES)


@pytest.mark.parametrize("name", TYPED)
def test_rows_are_those_of_the_map_style_dataset(name: str) -> None:
    expected = plain(from_huggingface(table())[2])
    row = next(iter(source_of(as_dataset(TYPED[name]())).open_lane(0, 1, 0)))
    assert plain(row) == expected


def test_rows_of_a_map_without_features_are_what_it_returned() -> None:
    made = {"int": 1, "half": np.float16(0.5), "array": np.zeros(2, np.int8), "list": [0.5], "tree": {"yes": True}}
    data = stream().map(lambda row: made, remove_columns=["x"])
    row = next(iter(source_of(as_dataset(data)).open_lane(0, 1, 0)))
    assert plain(row) == plain(
        {
            "int": np.int64(1),
            "half": np.float16(0.5),
            "array": np.zeros(2, np.int8),
            "list": np.array([0.5]),
            "tree": {"yes": np.bool_(True)},
        }
    )


def test_columns_of_streams() -> None:
    data = table().to_iterable_dataset()
    assert list(source_of(from_huggingface(data, columns=["small", "tree"])).row_spec) == ["small", "tree"]
    assert list(source_of(from_huggingface(data, columns="small")).row_spec) == ["small"]
    with pytest.raises(ArgumentError, match="there is no column 'y'; there are"):
        from_huggingface(stream(), columns=["y"])


def test_nulls_and_values_of_other_types_are_named() -> None:
    nulls = datasets.Dataset.from_dict({"x": [1, None]}).to_iterable_dataset()
    with pytest.raises(SourceError, match=r"column 'x' has a null, which an array can't hold; fill it with stream.map"):
        rows_of(nulls, 2)
    assert rows_of(nulls.filter(lambda row: row["x"] is not None), 1) == [1]
    wrong = stream().map(lambda row: {"x": "one"}, features=Features({"x": Value("int8")}))
    with pytest.raises(SourceError, match=r"column 'x' has 'one', which is not of its type int8: .*; state the type"):
        rows_of(wrong)


class Pipeline:
    """As a pipeline of webdataset, which is not installed for tests."""

    def __init__(self, *names: str):
        self.pipeline = [SimpleNamespace(f=SimpleNamespace(__name__=name)) for name in names]

    def __iter__(self) -> Iterator[Any]:
        return iter([{"x": np.int32(row)} for row in range(24)])


def pipeline(*names: str) -> Any:
    kind = type("IterableDataset", (), {"__module__": "torch.utils.data.dataset"})
    return type("WebDataset", (Pipeline, kind), {})(*names)


BATCHED: dict[str, Callable[[], Any]] = {
    "Hugging Face": lambda: stream().batch(4),
    "Hugging Face, in a format": lambda: stream().with_format("numpy").batch(4),
    "Hugging Face, then shuffle": lambda: stream().batch(4).shuffle(seed=0).take(4),
    "Grain": lambda: grain.MapDataset.range(10).to_iter_dataset().batch(2),
    "Grain, then map": lambda: grain.MapDataset.range(10).to_iter_dataset().batch(2).map(lambda x: x),
    "webdataset": lambda: pipeline("_map", "_batched"),
    "webdataset, then map": lambda: pipeline("_batched", "_map"),
}


@pytest.mark.parametrize("name", BATCHED)
def test_rows_that_are_batches_are_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("webdataset")
    module.DataPipeline = Pipeline  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "webdataset", module)
    with pytest.raises(ArgumentError, match=r"are batches, of its \.batch.*; pass the stream before it, and batch_siz"):
        as_dataset(BATCHED[name]())
    assert rows_of(pipeline("_batched", "_unbatched")) == list(range(24))
    assert len(batches_of(stream().batch(4).map(lambda row: {"x": sum(row["x"])}))) == 12


def test_a_format_that_lets_all_columns_through() -> None:
    data = datasets.Dataset.from_dict({"a": [1, 2], "text": ["x", "y"]})
    chosen = data.with_format("numpy", columns=["a"])
    everything = data.with_format("numpy", columns=["a"], output_all_columns=True)
    assert set(loadax.as_dataset(chosen)[1]) == {"a"}
    assert loadax.as_dataset(everything)[1] == {"a": 2, "text": "y"}
