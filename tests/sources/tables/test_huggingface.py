"""Hugging Face datasets: every kind of column, through any mapping of indices, against Hugging Face itself."""

import datetime as dt
import io
import os
import pickle
import re
import subprocess
import sys
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import PIL.Image
import pyarrow as pa
import pytest
from datasets import Array2D, ClassLabel, Features, Image, Json, LargeList, List, Value

import loadax
from loadax import testing
from loadax.errors import ArgumentError, LeafError, SourceError
from loadax.protocols import ArraySpec
from tests.sources.advice import follow
from tests.sources.tables.arrow.test_table import plain

ROWS = 50
NUMBERS = Features(
    {
        "x": List(Value("float32"), length=3),
        "y": Value("int32"),
        "z": Array2D((2, 4), "int16"),
        "half": Value("float16"),
        "yes": Value("bool"),
        "bits": List(Value("bool"), length=2),
        "deep": List(List(Value("uint8"), length=2), length=3),
        "label": ClassLabel(names=["cat", "dog"]),
        "when": Value("timestamp[us]"),
        "took": Value("duration[s]"),
        "day": Value("date32"),
    }
)


def numbers_of(row: int) -> dict[str, Any]:
    rng = np.random.default_rng(row)
    return {
        "x": rng.standard_normal(3).astype(np.float32).tolist(),
        "y": row,
        "z": rng.integers(99, size=(2, 4)).tolist(),
        "half": row / 4,
        "yes": row % 3 == 0,
        "bits": [row % 2 == 0, row % 5 == 0],
        "deep": rng.integers(99, size=(3, 2)).tolist(),
        "label": row % 2,
        "when": dt.datetime(2020, 1, 1) + dt.timedelta(seconds=row),  # noqa: DTZ001
        "took": dt.timedelta(seconds=row),
        "day": dt.date(2020, 1, 1) + dt.timedelta(days=row),
    }


def numbers(rows: int = ROWS) -> Any:
    return datasets.Dataset.from_list([numbers_of(row) for row in range(rows)], features=NUMBERS)


def in_pieces(data: Any, folder: Path, size: int) -> Any:
    """The same rows in several files, mapped, each of several record batches."""
    parts = []
    for number, start in enumerate(range(0, len(data), size)):
        data.select(range(start, min(start + size, len(data)))).save_to_disk(folder / str(number))
        parts.append(datasets.load_from_disk(folder / str(number)))
    return datasets.concatenate_datasets(parts)


DTYPES: dict[str, Any] = {
    "x": np.float32,
    "y": np.int32,
    "z": np.int16,
    "half": np.float16,
    "yes": bool,
    "bits": bool,
    "deep": np.uint8,
    "label": np.int64,
    "when": "datetime64[us]",
    "took": "timedelta64[s]",
    "day": "datetime64[D]",
}


def expected(data: Any, rows: Any) -> dict[str, Any]:
    """What Hugging Face gives for rows, in Python's own objects, as arrays."""
    python = data.with_format(None)
    examples = [python[int(row)] for row in rows]
    return {
        name: np.stack([np.asarray(example[name], dtype) for example in examples]) for name, dtype in DTYPES.items()
    }


def same(read: Any, oracle: Any) -> None:
    assert read.keys() == oracle.keys()
    for name, array in oracle.items():
        assert read[name].dtype == array.dtype, name
        np.testing.assert_array_equal(read[name], array, err_msg=name)


VIEWS: dict[str, Any] = {
    "unchanged": lambda data: data,
    "shuffled": lambda data: data.shuffle(seed=1),
    "filtered": lambda data: data.filter(lambda row: row["y"] % 3 == 1),
    "twice": lambda data: data.shuffle(seed=1).select([5, 5, 0, 40]),
    "sliced": lambda data: data.select(range(7, 31)),
    "backwards": lambda data: data.select(range(len(data))[::-1]),
    "in another format": lambda data: data.shuffle(seed=2).with_format("numpy"),
    "joined with itself": lambda data: datasets.concatenate_datasets([data.shuffle(seed=3), data]),
}


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("mapped", [False, True])
def test_rows_are_those_of_hugging_face(view: str, mapped: bool, tmp_path: Path) -> None:
    data = VIEWS[view](in_pieces(numbers(), tmp_path, 16) if mapped else numbers())
    dataset = loadax.from_huggingface(data)
    assert len(dataset) == len(data)
    rng = np.random.default_rng(0)
    everything = np.arange(len(data))
    for rows in (everything, everything[::-1], rng.integers(len(data), size=40), everything[3:4], everything[:0]):
        if len(rows):
            same(dataset.source.read(rows), expected(data, rows))
        else:
            assert all(leaf.shape[0] == 0 for leaf in dataset.source.read(rows).values())
    one = expected(data, [2])
    same({name: leaf[None] for name, leaf in dataset[2].items()}, one)


def test_the_spec_is_known_without_reading() -> None:
    spec = loadax.from_huggingface(numbers()).source.spec
    assert spec == {
        name: ArraySpec({"x": (3,), "z": (2, 4), "bits": (2,), "deep": (3, 2)}.get(name, ()), np.dtype(dtype))
        for name, dtype in DTYPES.items()
    }
    assert loadax.from_huggingface(numbers(1).select([])).source.spec == spec


@pytest.mark.processes
@pytest.mark.parametrize("mapped", [False, True])
def test_the_law_of_sources(mapped: bool, tmp_path: Path) -> None:
    data = numbers().remove_columns(["when", "took", "day"])
    data = in_pieces(data, tmp_path, 16) if mapped else data
    testing.check_source(loadax.from_huggingface(data.shuffle(seed=1)), timeout=120)


def test_the_law_of_sources_with_lists_and_objects() -> None:
    rows = [{"tokens": list(range(row % 5)), "name": f"n{row}"} for row in range(20)]
    data = datasets.Dataset.from_list(rows).shuffle(seed=1)
    testing.check_source(loadax.from_huggingface(data), loader=False, timeout=120)


RAGGED = Features(
    {
        "tokens": List(Value("int32")),
        "long": LargeList(Value("int64")),
        "boxes": List(List(Value("float32"), length=4)),
        "frames": Array2D((None, 2), "uint8"),
        "masks": List(Value("bool")),
    }
)


def ragged_of(row: int) -> dict[str, Any]:
    rng = np.random.default_rng(row)
    count = row % 4
    return {
        "tokens": rng.integers(99, size=count).tolist(),
        "long": rng.integers(99, size=row % 3).tolist(),
        "boxes": rng.standard_normal((count, 4)).astype(np.float32).tolist(),
        "frames": rng.integers(99, size=(count + 1, 2)).tolist(),
        "masks": (rng.random(count) < 0.5).tolist(),
    }


@pytest.mark.parametrize("view", ["unchanged", "shuffled", "sliced", "joined with itself"])
@pytest.mark.parametrize("mapped", [False, True])
def test_lists_of_any_length_are_rows_of_their_own(view: str, mapped: bool, tmp_path: Path) -> None:
    shapes = {"tokens": (-1,), "long": (-1,), "boxes": (-1, 4), "frames": (-1, 2), "masks": (-1,)}
    dtypes: list[Any] = [np.int32, np.int64, np.float32, np.uint8, bool]
    data = datasets.Dataset.from_list([ragged_of(row) for row in range(40)], features=RAGGED)
    data = VIEWS[view](in_pieces(data, tmp_path, 16) if mapped else data)
    dataset = loadax.from_huggingface(data)
    assert dataset.source.spec is None
    rows = np.array([3, 3, 19, 0, *range(len(data))])
    for row, example in zip(rows, dataset.source.read_examples(dataset.order.visits(0 * rows, rows)), strict=True):
        python = data[int(row)]
        for (name, shape), dtype in zip(shapes.items(), dtypes, strict=True):
            array = np.asarray(python[name], dtype).reshape(shape)
            assert example[name].dtype == array.dtype
            np.testing.assert_array_equal(example[name], array)
            assert not name.startswith(("tokens", "boxes")) or example[name].flags.writeable


def test_lists_that_happen_to_be_alike_are_batches_and_others_name_their_row() -> None:
    alike = loadax.Dataloader(datasets.Dataset.from_dict({"x": [[row, row + 1] for row in range(16)]}), 8)
    assert [batch["x"].shape for batch in alike] == [(8, 2), (8, 2)]
    other = loadax.from_huggingface(datasets.Dataset.from_dict({"x": [[1], [1, 2]]}))
    with pytest.raises(
        LeafError, match=r"^row 1: leaf \['x'\] is int64\[2\], expected int64\[1\]; rows are ragged: pad them with"
    ):
        other.source.read(np.array([0, 1]))
    assert other.source.read(np.empty(0, np.int64))["x"].shape == (0, 1)


@pytest.mark.parametrize(
    ("shape", "rows", "message"),
    [
        ((2, 4), [[[1, 2, 3], [4, 5, 6]]], "dimension 1 of an array of int16[2, 4] is 3, not 4"),
        ((None, 2), [[[1, 2, 3], [4, 5, 6]]], "dimension 0 of an array of int16[2] is 3, not 2"),
        # As many numbers as arrays of the shape would have.
        ((1, 4), [[[1, 2, 3]], [[1, 2, 3, 4, 5]]], "dimension 1 of an array of int16[1, 4] is 3, not 4"),
        ((2, 2), [[[1, 2, 3, 4]], [[1], [2], [3, 4]]], "dimension 0 of an array of int16[2, 2] is 1, not 2"),
        ((None, 2), [[[1, 2, 3], [4]]], "dimension 0 of an array of int16[2] is 3, not 2"),
        ((1, 4), [[[True] * 3], [[True] * 5]], "dimension 1 of an array of bool[1, 4] is 3, not 4"),
    ],
)
def test_arrays_of_another_shape_than_their_type_says(shape: Any, rows: Any, message: str) -> None:
    dtype = "bool" if "bool" in message else "int16"
    data = datasets.Dataset.from_dict({"z": rows}, features=Features({"z": Array2D(shape, dtype)}))
    with pytest.raises(SourceError, match=rf"^{re.escape(message)}; write the dataset"):
        loadax.from_huggingface(data).read(range(len(rows)))


@pytest.mark.parametrize("columns", [["tokens"], ["tokens", "types"]])
@pytest.mark.parametrize("method", ["split", "best_fit"])
def test_lists_are_packed_without_reading_them_twice(columns: list[str], method: Any, tmp_path: Path) -> None:
    lists = [list(range(row, row + row % 7)) for row in range(60)]
    python = {"tokens": lists, "types": [[entry % 2 for entry in row] for row in lists]}
    data = in_pieces(datasets.Dataset.from_dict(python), tmp_path, 25).shuffle(seed=1)
    dataset = loadax.from_huggingface(data, columns=columns)
    numbers = np.arange(len(data))
    lengths = dataset.source.lengths(numbers)
    assert lengths is not None
    assert lengths.tolist() == [len(row) for row in data["tokens"]]
    packed = dataset.pack(8, method=method)
    plain = loadax.from_source([{name: np.array(row[name], np.int64) for name in columns} for row in data])
    oracle = plain.pack(8, method=method)
    assert len(packed) == len(oracle)
    for one, other in zip(packed, oracle, strict=True):
        same(one, other)


def test_lists_that_are_not_equally_long_are_no_documents() -> None:
    data = datasets.Dataset.from_dict({"a": [[1, 2], [3]], "b": [[1, 2], [3, 4]]})
    source: Any = loadax.from_huggingface(data).source
    assert source.lengths(np.array([0, 0])).tolist() == [2, 2]
    assert source.lengths(np.array([0, 1])) is None
    assert loadax.from_huggingface(numbers()).source.lengths(np.array([0])) is None


def test_texts_images_and_trees_come_as_hugging_face_gives_them() -> None:
    features = Features(
        {
            "text": Value("string"),
            "raw": Value("binary"),
            "money": Value("decimal128(5, 2)"),
            "image": Image(),
            "file": Image(decode=False),
            "words": List(Value("string")),
            "boxes": List({"x": Value("int32")}),
            "meta": {"id": Value("int16"), "tags": {"a": Value("string"), "b": List(Value("int8"), length=2)}},
        }
    )
    pixels = [np.full((4, 6, 3), row, np.uint8) for row in range(5)]

    def file(row: int) -> dict[str, Any]:
        buffer = io.BytesIO()
        PIL.Image.fromarray(pixels[row]).save(buffer, "PNG")
        return {"bytes": buffer.getvalue(), "path": None}

    rows = [
        {
            "text": f"text {row}",
            "raw": bytes([row]),
            "money": Decimal(row),
            "image": file(row),
            "file": file(row),
            "words": [f"w{word}" for word in range(row)],
            "boxes": [{"x": row}] * row,
            "meta": {"id": row, "tags": {"a": f"a{row}", "b": [row, 1]}},
        }
        for row in range(5)
    ]
    columns = {name: [row[name] for row in rows] for name in features}
    data = datasets.Dataset.from_dict(columns, features=features).shuffle(seed=1)
    dataset = loadax.from_huggingface(data)
    for position in range(5):
        example, python = dataset[position], data[position]
        row = python["meta"]["id"]
        for name in ("text", "raw", "money", "file", "words", "boxes"):
            assert example[name] == python[name] == rows[row][name]
        np.testing.assert_array_equal(np.asarray(example["image"]), pixels[row])
        assert plain(example["meta"]) == rows[row]["meta"]
        assert example["meta"]["id"].dtype == np.int16
    images = loadax.from_huggingface(data, columns="image").source.read(np.array([0, 1]))
    assert images["image"].shape == (2, 4, 6, 3)
    texts = loadax.from_huggingface(data, columns=["text"]).source
    assert texts.spec == {"text": ArraySpec((), np.dtype(object))}
    assert texts.read(np.array([1, 0]))["text"].tolist() == [data[1]["text"], data[0]["text"]]


def test_class_labels_have_their_names_beside_them() -> None:
    dataset: Any = loadax.from_huggingface(numbers())
    assert dataset.source.classes == {"label": ["cat", "dog"]}
    others: Any = loadax.from_huggingface(numbers(), columns=["y"]).source
    assert others.classes == {}
    assert "label: class label of cat, dog" in repr(dataset)
    many = datasets.Dataset.from_dict({"c": [0]}, features=Features({"c": ClassLabel(num_classes=9)}))
    assert "c: class label of 0, 1, 2, 3, 4, …" in repr(loadax.from_huggingface(many))


def test_columns_are_chosen() -> None:
    data = numbers()
    assert set(loadax.from_huggingface(data, columns=("y", "x"))[0]) == {"x", "y"}
    assert set(loadax.from_huggingface(data.with_format("numpy", columns=["x"]))[0]) == {"x"}
    with pytest.raises(ArgumentError, match=r"there is no column 'nope'; there are \['x', 'y', "):
        loadax.from_huggingface(data, columns=["y", "nope"])


@pytest.mark.parametrize(
    ("name", "null", "count"),
    [
        ("a", None, "3 nulls"),
        ("b", None, "3 nulls"),
        ("c", None, "3 nulls"),
        ("b", [1, None, None], "6 nulls"),
        ("c", [None, 1.0], "3 nulls"),
    ],
)
@pytest.mark.parametrize("shuffled", [False, True])
def test_nulls_are_counted_and_left_out_as_advised(name: str, null: Any, count: str, shuffled: bool) -> None:
    features = Features(
        {"a": Value("int32"), "b": List(Value("int32")), "c": List(Value("float32"), length=2), "d": Value("string")}
    )
    rows: list[dict[str, Any]] = [{"a": row, "b": [row], "c": [row, row], "d": "x"} for row in range(100)]
    for row in (5, 70, 99):
        rows[row][name] = null
    data = datasets.Dataset.from_list(rows, features=features)
    data = data.shuffle(seed=1) if shuffled else data
    with pytest.raises(
        SourceError, match=rf"^column '{name}' has {count} in 100 rows, which an array can't hold"
    ) as caught:
        loadax.as_dataset(data)
    (left_out,) = follow(caught.value, data=data)
    dropped = loadax.from_huggingface(data.filter(lambda row: row[name] is not None and row[name] != null))
    assert len(dropped) == 97
    kept = [row["a"] for row in data if row[name] != null]
    assert [row["a"] for row in dropped] == kept
    assert set(left_out[0]) == {"a", "b", "c", "d"} - {name}


def test_nulls_of_texts_and_images_are_handed_out() -> None:
    tree = {"t": Value("string"), "n": Value("int32")}
    pixels = np.zeros((2, 3, 3), np.uint8)
    features = Features(
        {"s": Value("string"), "i": Image(), "b": Value("binary"), "w": List(Value("string")), "x": tree}
    )
    rows = [
        {"s": "a", "i": PIL.Image.fromarray(pixels), "b": b"1", "w": ["x", None], "x": {"t": None, "n": 1}},
        {"s": None, "i": None, "b": None, "w": None, "x": {"t": "t", "n": 2}},
    ]
    data = datasets.Dataset.from_list(rows, features=features)
    dataset = loadax.from_huggingface(data)
    first, second = dataset[0], dataset[1]
    assert (first["s"], first["b"], first["w"], first["x"]["t"]) == ("a", b"1", ["x", None], None)
    assert np.asarray(first["i"]).tolist() == pixels.tolist()
    assert [second[name] for name in "sibw"] == [data[1][name] for name in "sibw"] == [None] * 4
    absent = dataset.map(lambda row: {"absent": row["s"] is None, "n": row["x"]["n"]})
    assert absent.read([0, 1])["absent"].tolist() == [False, True]
    assert len(dataset.filter(lambda row: row["i"] is not None)) == 1


def test_nulls_of_several_columns_are_told_at_once() -> None:
    columns = {"a": [1, None, 3, 4], "b": [[1], None, [None], [3]], "c": [0, 1, 2, 3], "d": [None] * 4}
    number = Value("int32")
    plain = datasets.Dataset.from_dict(
        columns, features=Features({"a": number, "b": List(number), "c": number, "d": number})
    )
    message = r"^column 'a' has 1 null and column 'b' has 2 nulls and column 'd' has 4 nulls in 4 rows, which"
    for data in (plain, plain.with_format("numpy")):  # which shows nulls as NaN
        with pytest.raises(SourceError, match=message) as caught:
            loadax.from_huggingface(data)
        assert set(follow(caught.value, data=data)[0][0]) == {"c"}


def test_nested_images_and_json_are_decoded() -> None:
    pixels = np.arange(18, dtype=np.uint8).reshape(2, 3, 3)
    image = PIL.Image.fromarray(pixels)
    features = {"i": List(Image()), "l": LargeList(Image()), "d": List({"im": Image()}), "j": List(Json()), "k": Json()}
    row = {"i": [image, None], "l": [image], "d": [{"im": image}], "j": [{"a": 1}], "k": {"b": [2]}}
    data = datasets.Dataset.from_list([row, {**row, "i": []}], features=Features(features))
    example = loadax.from_huggingface(data)[0]
    for decoded in (example["i"][0], example["l"][0], example["d"][0]["im"]):
        assert np.asarray(decoded).tolist() == pixels.tolist()
    assert example["i"][1] is None
    assert (example["j"], example["k"]) == ([{"a": 1}], {"b": [2]})
    assert loadax.from_huggingface(data)[1]["i"] == []


def test_an_empty_dataset_of_lists_and_objects() -> None:
    features = Features({"x": List(Value("int32")), "y": List(Value("string")), "z": Array2D((None, 2), "int8")})
    source = loadax.from_huggingface(datasets.Dataset.from_dict({"x": [], "y": [], "z": []}, features=features)).source
    empty = source.read(np.empty(0, np.int64))
    assert {name: leaf.shape for name, leaf in empty.items()} == {"x": (0, 0), "y": (0,), "z": (0, 0, 2)}


def test_texts_that_arrow_stores_as_views() -> None:
    table = pa.table(
        {"s": pa.array(["a", "b"]).cast(pa.string_view()), "b": pa.array([b"a", b"b"]).cast(pa.binary_view())}
    )
    data = loadax.from_huggingface(datasets.Dataset(table))
    assert data.read([1, 0])["s"].tolist() == ["b", "a"]
    assert data[1] == {"s": "b", "b": b"b"}


def test_nulls_in_a_tree_and_in_the_only_column() -> None:
    for column in ([{"a": 1}, {"a": None}], [[[1, None]], [[2]]]):
        data = datasets.Dataset.from_dict({"m": column})
        with pytest.raises(SourceError, match=r"^column 'm' has 1 null in 2 rows, .*; fill them with data.map, or"):
            loadax.from_huggingface(data)
    with pytest.raises(SourceError, match=r"^column 'x' has 2 nulls in 2 rows") as caught:
        loadax.from_huggingface(datasets.Dataset.from_dict({"x": [None, None]}))
    assert "columns=" not in str(caught.value)


def test_splits_streams_and_other_things_are_refused_with_a_line_that_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path)
    data = numbers()
    data.save_to_disk(tmp_path / "saved")
    data.to_parquet(tmp_path / "files" / "one.parquet")
    splits = datasets.DatasetDict(train=data, test=data.select(range(3)))
    streams = datasets.IterableDatasetDict(train=data.to_iterable_dataset())
    given: list[tuple[Any, str, Callable[[Any], Any]]] = [
        (splits, "of 'train', 'test', each a dataset of its own; hand over one of them", len),
        (streams, "hand over one of them", lambda followed: followed.is_stream and ROWS),
        (tmp_path / "saved", r"is a path or a name; open it: loadax", len),
        (str(tmp_path / "files"), r"is a path or a name; open it: loadax", len),
        ({"x": np.arange(ROWS)}, r"^the data is a dict; pass a datasets.Dataset, or use", len),
        ([1] * ROWS, r"^the data is a list; pass a datasets.Dataset, or use", len),
    ]
    for wrong, message, rows in given:
        with pytest.raises(ArgumentError, match=message) as caught:
            loadax.from_huggingface(wrong)
        assert rows(follow(caught.value, data=wrong, datasets=datasets)[0]) == ROWS
    with pytest.raises(ArgumentError, match=r"datasets\.load_dataset\('mnist', split='train'\)\)$"):
        loadax.from_huggingface("mnist")


def double(batch: Any) -> Any:
    return {"y": [2 * y for y in batch["y"]]}


def test_a_transform_of_its_own_is_refused_and_applied_by_objects() -> None:
    data = numbers().select_columns(["y"]).with_transform(double)
    with pytest.raises(ArgumentError, match=r"the dataset has a transform of its own \(set_transform") as caught:
        loadax.from_huggingface(data)
    mapped, objects = follow(caught.value, data=data, fn=lambda row: {"y": 2 * row["y"]})
    for dataset in (mapped, objects, loadax.as_dataset(data)):
        assert dataset.read([3, 4])["y"].tolist() == [6, 8]


def test_a_source_on_disk_travels_by_its_paths(tmp_path: Path) -> None:
    rows = 20_000
    datasets.Dataset.from_dict({"x": np.arange(rows)}).save_to_disk(tmp_path)
    source = loadax.from_huggingface(datasets.load_from_disk(tmp_path)).source
    source.read(np.arange(rows))
    pickled = pickle.dumps(source)
    assert len(pickled) < rows
    assert pickle.loads(pickled).read(np.array([rows - 1]))["x"].tolist() == [rows - 1]


def test_an_index_notices_other_rows(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    index = tmp_path / "index"

    def kept(data: Any) -> int:
        caplog.clear()
        return len(loadax.from_huggingface(data, columns=["y"]).filter(lambda row: row["y"] % 2 == 0, index=index))

    caplog.set_level("INFO", "loadax")
    data = numbers()
    folder = tmp_path / "disk"
    data.save_to_disk(folder)
    for first in (data, datasets.load_from_disk(folder)):
        assert [kept(first), kept(first)] == [ROWS // 2] * 2
        assert re.search("index .*: read", caplog.text)
        assert kept(first.shuffle(seed=1)) == ROWS // 2
        assert "does not match (contents of a sample" in caplog.text
    assert loadax.from_huggingface(datasets.load_from_disk(folder)).source.addresses


@pytest.mark.parametrize("view", ["with an indices file", "after a mapped block", "beside a mapped block"])
def test_an_index_notices_values_in_memory_beside_files(view: str, tmp_path: Path) -> None:
    """A sample alone would not notice one value of many."""
    rows = 5000
    datasets.Dataset.from_dict({"x": np.zeros(10, np.int64)}).save_to_disk(tmp_path / "mapped")
    datasets.Dataset.from_dict({"z": np.zeros(rows, np.int64)}).save_to_disk(tmp_path / "columns")

    def evens(changed: int) -> int:
        x = np.zeros(rows, np.int64)
        x[1234] = changed
        data = datasets.Dataset.from_dict({"x": x})
        if view == "with an indices file":
            data = data.select(np.arange(rows)[::-1], indices_cache_file_name=str(tmp_path / "indices.arrow"))
            os.utime(tmp_path / "indices.arrow", (0, 0))
        elif view == "after a mapped block":
            data = datasets.concatenate_datasets([datasets.load_from_disk(tmp_path / "mapped"), data])
        else:
            data = datasets.concatenate_datasets([datasets.load_from_disk(tmp_path / "columns"), data], axis=1)
        assert data.cache_files
        found = loadax.from_huggingface(data, columns="x").filter(lambda row: row["x"] % 2 == 0, index=tmp_path / "ix")
        return len(data) - len(found)

    assert evens(0) == 0
    assert evens(1) == 1


def test_an_index_of_ragged_lists_in_memory(tmp_path: Path) -> None:
    lists = [[[1], [2, 3]], [[4]], [[5, 6], [7]], []]
    for changed, kept in (([4], 3), ([], 2)):
        data = datasets.Dataset.from_dict({"x": [lists[0], [changed] if changed else [], *lists[2:]]})
        found = loadax.from_huggingface(data).map(sizes).filter(lambda row: row["n"] > 0, index=tmp_path / "index")
        assert len(found) == kept


def sizes(row: Any) -> Any:
    return {"n": np.int64(len(row["x"]))}


@pytest.mark.processes
def test_other_libraries_are_recognised_without_being_imported() -> None:
    program = (
        "import sys, loadax, numpy; loadax.as_dataset(numpy.arange(3)); loadax.from_source([1]); "
        "assert not {'datasets', 'grain', 'pyarrow'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_indices_in_memory_are_kept_as_one_small_array() -> None:
    rows = 100_000
    data = datasets.Dataset.from_dict({"x": np.zeros(10, np.int32)}).select(np.arange(rows) % 10)
    assert data._indices.column(0).num_chunks > 10
    source = loadax.from_huggingface(data).source
    assert len(pickle.dumps(source)) < 2 * rows
    data = numbers()
    order = np.arange(len(data))[::-1]
    for copied in (loadax.from_huggingface(data.select(order)).source, pickle.loads(pickle.dumps(source))):
        again = pickle.loads(pickle.dumps(copied))
        assert len(again) == len(copied)
        assert np.array_equal(again.read(np.arange(5))["x"], copied.read(np.arange(5))["x"])
