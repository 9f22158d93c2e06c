"""Rows of every kind for random chains.

Where they come from, what maps make of them, and what it means that two are the same.

A row is a tree of dicts, tuples and lists whose leaves are numbers, arrays, texts or objects. All of it is plain
Python, one row at a time.
"""

import math
import zlib
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

import loadax
from loadax import Dataset
from loadax.errors import LeafError
from loadax.protocols import Integers
from tests.faulty import FaultySource
from tests.laws.media_files import MediaFiles, sound_rows, video_rows
from tests.sources.chunked import ChunkedSource
from tests.sources.token_corpora import write_pair

Row = Any
Function = Callable[..., Any]


class Opaque:
    """What NumPy knows nothing of."""

    def __init__(self, number: int):
        self.number = number

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Opaque) and self.number == other.number

    def __hash__(self) -> int:
        return self.number


def each_leaf(function: Function, row: Row) -> Row:
    """A row with every leaf replaced, by ascending keys."""
    if isinstance(row, dict):
        return {key: each_leaf(function, row[key]) for key in sorted(row)}
    if isinstance(row, list | tuple):
        return type(row)(each_leaf(function, value) for value in row)
    return function(row)


def leaves(row: Row) -> list[Any]:
    """The leaves of a row, by ascending keys."""
    if isinstance(row, dict):
        return [leaf for key in sorted(row) for leaf in leaves(row[key])]
    if isinstance(row, list | tuple):
        return [leaf for value in row for leaf in leaves(value)]
    return [row]


def numeric(leaf: Any) -> bool:
    return not isinstance(leaf, str | bytes | Opaque) and np.asarray(leaf).dtype != object


def form(row: Row) -> Any:
    """What rows must have in common to be stacked."""
    if isinstance(row, dict):
        return "dict", tuple((key, form(row[key])) for key in sorted(row))
    if isinstance(row, list | tuple):
        return type(row).__name__, tuple(map(form, row))
    return (np.shape(row), np.asarray(row).dtype.str) if numeric(row) else (shape_of(row), "object")


def shape_of(leaf: Any) -> tuple[int, ...]:
    """Of an array; a text or an object has none."""
    return leaf.shape if isinstance(leaf, np.ndarray) else ()


def placeable(row: Row) -> bool:
    """Whether JAX has arrays for all of its leaves."""
    return all(map(numeric, leaves(row)))


def number_of(row: Row) -> int:
    """A number that follows from all that a row holds."""
    found = 0
    for leaf in leaves(row):
        if numeric(leaf):
            data = np.ascontiguousarray(leaf).tobytes()
        else:
            data = "".join(map(text_of, np.ravel(leaf).tolist() if isinstance(leaf, np.ndarray) else [leaf])).encode()
        found = zlib.crc32(data, found)
    return found


def text_of(value: Any) -> str:
    return str(value.number) if isinstance(value, Opaque) else str(value)


def assert_row(got: Row, wanted: Row) -> None:
    """That both are the same, dtypes and all."""
    if isinstance(wanted, dict):
        assert type(got) is dict
        assert sorted(got) == sorted(wanted)
        for key, value in wanted.items():
            assert_row(got[key], value)
    elif isinstance(wanted, list | tuple):
        assert type(got) is type(wanted)
        assert len(got) == len(wanted)
        for one, other in zip(got, wanted, strict=True):
            assert_row(one, other)
    elif numeric(wanted):
        array, expected = np.asarray(got), np.asarray(wanted)
        assert (array.dtype, array.shape) == (expected.dtype, expected.shape)
        assert array.tobytes() == expected.tobytes(), f"{array} is not {expected}"
    elif isinstance(wanted, np.ndarray):
        assert (got.dtype, got.tolist()) == (wanted.dtype, wanted.tolist())
    else:
        assert got == wanted
        assert isinstance(got, type(wanted))


def stacked(rows: Sequence[Row]) -> Any:
    """Rows that are alike, as a tree of arrays."""
    first = rows[0]
    if isinstance(first, dict):
        return {key: stacked([row[key] for row in rows]) for key in first}
    if isinstance(first, list | tuple):
        return type(first)(stacked(list(column)) for column in zip(*rows, strict=True))
    if numeric(first) or isinstance(first, np.ndarray):
        return np.stack([np.asarray(row) for row in rows])
    column = np.empty(len(rows), object)
    column[:] = rows
    return column


def assert_batch(got: Any, rows: Sequence[Row]) -> None:
    """That a tree of arrays holds these rows."""
    wanted = leaves(stacked(rows))
    found = leaves(got)
    assert form(each_leaf(lambda leaf: 0, got)) == form(each_leaf(lambda leaf: 0, rows[0]))
    for array, expected in zip(found, wanted, strict=True):
        assert (array.dtype, array.shape) == (expected.dtype, expected.shape)
        assert array.tolist() == expected.tolist(), f"{array} is not {expected}"


# Functions of rows. Each is also right for a whole batch where it is `elementwise`.


def scaled(number: int) -> Function:
    """Elementwise."""

    def leaf(value: Any) -> Any:
        if not numeric(value):
            return value
        value = np.asarray(value)
        if value.dtype == bool:
            return ~value
        return (value * np.array(3, value.dtype) + np.array(number, value.dtype)).astype(value.dtype)

    return lambda row: each_leaf(leaf, row)


def raised(number: int) -> Function:
    """Writes to the memory that it is given."""

    def leaf(value: Any) -> Any:
        if not numeric(value):
            return value
        if isinstance(value, np.ndarray) and value.ndim and value.dtype != bool:
            value += np.array(number, value.dtype)
        return value

    return lambda row: each_leaf(leaf, row)


def reversed_rows(row: Row) -> Row:
    return each_leaf(lambda leaf: leaf[::-1] if isinstance(leaf, np.ndarray) and leaf.ndim else leaf, row)


def reversed_batch(batch: Any) -> Any:
    return each_leaf(lambda leaf: leaf[:, ::-1] if leaf.ndim > 1 else leaf, batch)


def noisy(row: Row, rng: np.random.Generator) -> Row:
    def leaf(value: Any) -> Any:
        if not numeric(value):
            return value
        value = np.asarray(value)
        return (value + rng.integers(0, 100, value.shape).astype(value.dtype)).astype(value.dtype)

    return each_leaf(leaf, row)


def noisy_batch(batch: Any, rngs: Any) -> Any:
    rows = [noisy(each_leaf(lambda leaf, at=at: leaf[at], batch), rng) for at, rng in enumerate(rngs)]
    return stacked(rows) if rows else batch


def padded(length: int) -> Function:
    def leaf(value: Any) -> Any:
        if not numeric(value) or np.ndim(value) != 1:
            return value
        return np.pad(value[:length], (0, max(0, length - len(value))))

    return lambda row: each_leaf(leaf, row)


def named(row: Row) -> Row:
    return {"x": row, "n": np.int32(number_of(row) % 100)}


def paired(row: Row) -> Row:
    return row, np.float64(0.5)


def unnamed(row: Row) -> Row:
    return leaves(row)[0]


def floated(row: Row) -> Row:
    return each_leaf(lambda leaf: np.asarray(leaf).astype(np.float32) if numeric(leaf) else leaf, row)


def measured(row: Row) -> Row:
    number = number_of(row)
    return {"n": number % 1000, "v": np.arange(3, dtype=np.int16) + number % 50}


def to_text(row: Row) -> Row:
    return "ab" * (number_of(row) % 3) + str(number_of(row) % 10)


def to_document(row: Row) -> Row:
    number = number_of(row)
    return {"tokens": np.arange(number % 6, dtype=np.int32) + number % 90}


def to_graph(row: Row) -> Row:
    number = number_of(row)
    nodes, edges = 1 + number % 5, number // 5 % 7
    return {
        "nodes": (np.arange(2 * nodes, dtype=np.float32) + number % 90).reshape(nodes, 2),
        "edges": np.arange(edges, dtype=np.int16) - number % 9,
        "senders": np.arange(edges, dtype=np.int32) % nodes,
        "label": np.asarray(number % 100, np.float64),
    }


def tokenized(text: str) -> Row:
    return np.array([ord(letter) for letter in text], np.uint16)


# Where rows come from.


class Items:
    """An object with `__len__` and `__getitem__`."""

    def __init__(self, rows: Sequence[Row]):
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, row: int) -> Row:
        if not 0 <= row < len(self.rows):
            raise IndexError(row)
        return deepcopy(self.rows[row])


class ManyItems(Items):
    def __getitems__(self, rows: list[int]) -> list[Row]:
        return [self[row] for row in rows]


class Documents(Items):
    """A user's source whose rows come one by one, and that knows their lengths."""

    spec = None

    def read(self, rows: Integers) -> Any:
        found = self.examples(rows)
        if len({len(row) for row in found}) > 1:
            raise LeafError("these documents differ in length, so they can't be stacked; map or pack them")
        return stacked(found or self.examples(np.zeros(1, np.int64)))[: len(rows)]

    def examples(self, rows: Integers) -> list[Row]:
        return [self[row] for row in rows.tolist()]

    def lengths(self, rows: Integers) -> Integers:
        return np.array([len(self.rows[row]) for row in rows.tolist()], np.int64)


def numbers(random: Random, count: int) -> Any:
    """A tree of arrays of some dtypes and shapes, one entry a row."""

    def array(at: int) -> Any:
        shape = random.choice([(), (), (3,), (4,), (2, 3)])
        dtype = random.choice(["int64", "int32", "float32", "float64", "uint8", "uint16", ">i4", "bool"])
        size = math.prod(shape)
        return ((np.arange(count * size).reshape(count, *shape) * 7 + at) % 120).astype(dtype)

    kind = random.choice(["bare", "bare", "dict", "tuple", "nested"])
    if kind == "bare":
        return array(0)
    if kind == "tuple":
        return array(1), array(2)
    return {"a": array(1), "b": array(2) if kind == "dict" else {"c": array(3), "d": (array(4),)}}


def rows_of(tree: Any, count: int) -> list[Row]:
    return [each_leaf(lambda leaf, at=at: leaf[at].astype(leaf.dtype.newbyteorder("=")), tree) for at in range(count)]


def ragged(random: Random, count: int, dtype: Any = np.int64, least: int = 0) -> list[Any]:
    return [np.arange(random.randint(least, 7)).astype(dtype) + at % 100 for at in range(count)]


@dataclass(frozen=True)
class Given:
    """A dataset as it is opened, and its rows."""

    kind: str
    dataset: Dataset
    rows: list[Row]
    one_by_one: bool = False
    """Whether rows come one by one, so that they need not be alike."""
    runs: tuple[int, ...] = ()
    """The group of each row, which no window leaves; empty: all are of one."""


class Stores:
    """Files that many chains read, each written when it is first asked for.

    Args:
        folder: for them.
    """

    count = 22

    def __init__(self, folder: Path):
        self.folder = folder
        self.tree: dict[str, Any] = {
            "a": np.arange(self.count * 3, dtype=np.int32).reshape(-1, 3),
            "b": np.arange(self.count, dtype=np.float64) / 4,
        }

    @cached_property
    def npy(self) -> Path:
        np.save(self.folder / "rows.npy", self.tree["a"])
        return self.folder / "rows.npy"

    @cached_property
    def array(self) -> Path:
        loadax.write_zarr(self.tree["a"], self.folder / "array.zarr", chunk_rows=4, shard_rows=8, progress=False)
        return self.folder / "array.zarr"

    @cached_property
    def group(self) -> Path:
        loadax.write_zarr(self.tree, self.folder / "group.zarr", chunk_rows=5, progress=False)
        return self.folder / "group.zarr"

    @cached_property
    def texts(self) -> list[Any]:
        return ragged(Random(1), self.count, np.uint16)

    @cached_property
    def pair(self) -> Path:
        return write_pair(self.folder / "pair.bin", [[each] for each in self.texts])

    @cached_property
    def media(self) -> MediaFiles:
        return MediaFiles(self.folder)

    @cached_property
    def records(self) -> Path:
        from array_record.python.array_record_module import ArrayRecordWriter

        writer = ArrayRecordWriter(str(self.folder / "rows.array_record"), "group_size:3")
        for each in self.texts:
            writer.write(each.tobytes())
        writer.close()
        return self.folder / "rows.array_record"


def arrays(random: Random, _: Stores, count: int) -> Given:
    tree = numbers(random, count)
    return Given("arrays", loadax.from_arrays(tree), rows_of(tree, count))


def user_source(random: Random, _: Stores, count: int) -> Given:
    tree = numbers(random, count)
    chunks: Any = random.randint(1, 6)
    if random.random() < 0.5:
        chunks = np.array([0, *sorted(random.sample(range(1, count), min(3, count - 1)))])
    source = ChunkedSource(tree, chunks, into=random.random() < 0.5)
    return Given("chunked source", loadax.from_source(source), rows_of(tree, count))


def faulty(random: Random, stores: Stores, count: int) -> Given:
    inner = random.choice([arrays, items, documents, zarr_array, media])(random, stores, count)
    dataset = loadax.from_source(FaultySource(inner.dataset, {}))
    return replace(inner, kind="wrapped " + inner.kind, dataset=dataset)


def items(random: Random, _: Stores, count: int) -> Given:
    """Rows of one kind, or of many."""
    kind = random.choice(["alike", "ragged", "documents", "texts", "bytes", "objects", "words", "mixed", "sizes"])
    made: dict[str, Callable[[], list[Row]]] = {
        "alike": lambda: rows_of(numbers(random, count), count),
        "ragged": lambda: ragged(random, count),
        "documents": lambda: [
            {"tokens": each, "weights": each / np.float64(2)} for each in ragged(random, count, least=1)
        ],
        "texts": lambda: ["ab" * (at % 4) + str(at) for at in range(count)],
        "bytes": lambda: [bytes(range(at % 5 + 1)) for at in range(count)],
        "objects": lambda: [{"object": Opaque(at), "n": np.int32(at)} for at in range(count)],
        "words": lambda: [{"words": ["ab", "c"] * (at % 3 + 1)} for at in range(count)],
        "mixed": lambda: [random.choice([np.int64(at), np.float64(at + 0.5), np.bool_(at % 2)]) for at in range(count)],
        "sizes": lambda: [{"image": np.full((2 + at % 3, 5 - at % 2), at, np.uint8)} for at in range(count)],
    }
    rows = made[kind]()
    holder = random.choice([list, Items, ManyItems])
    given: Any = rows if holder is list else holder(rows)
    return Given(f"{holder.__name__} of {kind}", loadax.from_source(given), rows, one_by_one=True)


def told_documents(random: Random, _: Stores, count: int) -> Given:
    rows = ragged(random, count)
    return Given("documents of a user", loadax.from_source(Documents(rows)), rows, one_by_one=True)


def documents(random: Random, stores: Stores, count: int) -> Given:
    if random.random() < 0.4:
        return Given("documents in files", loadax.from_documents(stores.pair), stores.texts, one_by_one=True)
    lengths = [random.randint(0, 7) for _ in range(count)]
    ends = np.cumsum([0, *lengths])
    flat = np.arange(ends[-1]) % 100
    if random.random() < 0.5:
        rows: list[Row] = [flat[low:high] for low, high in pairwise(ends)]
        return Given("documents in memory", loadax.from_documents(flat, ends), rows, one_by_one=True)
    tree: dict[str, Any] = {"tokens": flat.astype(np.uint16), "weights": flat / 2}
    rows = [{name: leaf[low:high] for name, leaf in tree.items()} for low, high in pairwise(ends)]
    return Given("documents in memory", loadax.from_documents(tree, ends), rows, one_by_one=True)


def token_windows(random: Random, stores: Stores, count: int) -> Given:
    stream = np.concatenate(stores.texts)
    seq_len, stride, targets = random.randint(1, 6), random.randint(1, 7), random.random() < 0.5
    dataset = loadax.from_tokens(stores.pair, seq_len, stride=stride, targets=targets)
    cut = [stream[start : start + seq_len + 1] for start in range(0, len(stream) - seq_len, stride)]
    rows = [{"inputs": each[:-1], "targets": each[1:]} if targets else {"tokens": each} for each in cut]
    return Given("tokens", dataset, rows)


def mapped_file(random: Random, stores: Stores, _: int) -> Given:
    if random.random() < 0.5:
        return Given("npy", loadax.from_npy(stores.npy), list(stores.tree["a"]))
    return Given("memmap", loadax.from_arrays(np.load(stores.npy, mmap_mode="r")), list(stores.tree["a"]))


def zarr_array(random: Random, stores: Stores, _: int) -> Given:
    if random.random() < 0.5:
        return Given("zarr", loadax.from_zarr(stores.array), list(stores.tree["a"]))
    return Given("zarr", loadax.from_zarr(stores.group), rows_of(stores.tree, stores.count))


def records(random: Random, stores: Stores, _: int) -> Given:
    kind = random.choice(["bytes", "ragged", "padded"])
    if kind == "bytes":
        rows: list[Row] = [each.tobytes() for each in stores.texts]
        return Given("records of bytes", loadax.from_array_record(stores.records), rows, one_by_one=True)
    if kind == "ragged":
        return Given("records", loadax.from_array_record(stores.records, dtype="uint16"), stores.texts, one_by_one=True)
    pad = padded(8)
    rows = [{"data": pad(each), "length": np.int32(len(each))} for each in stores.texts]
    return Given("records padded", loadax.from_array_record(stores.records, dtype="uint16").pad(8), rows)


def columns(random: Random, _: Stores, count: int) -> Given:
    tree = {"a": np.arange(count) * 3, "b": np.arange(count, dtype=np.float32) / 2}
    kind = random.choice(["pandas", "polars", "pyarrow"])
    if kind == "pandas":
        import pandas as pd

        frame: Any = pd.DataFrame(tree)
    elif kind == "polars":
        import polars as pl

        frame = pl.DataFrame(tree)
    else:
        import pyarrow as pa

        frame = pa.table(tree)
    return Given(f"columns of {kind}", loadax.as_dataset(frame), rows_of(tree, count))


def media(random: Random, stores: Stores, _: int) -> Given:
    """Frames of videos, or clips of audio files."""
    if random.random() < 0.5:
        return Given("video", *video_rows(random, stores.media.videos))
    return Given("audio", *sound_rows(random, stores.media.sounds))


def encoded(random: Random, stores: Stores, count: int) -> Given:
    """Rows with bytes of media files."""
    videos, sounds = stores.media.contents
    kind = random.choice(["video", "audio", "both", "bare"])
    rows: list[Row] = []
    for at in range(min(count, 12)):
        row = {"video": random.choice([*videos]), "audio": random.choice([*sounds]), "n": np.int32(at)}
        if kind in ("video", "audio"):
            row = {kind: row[kind], "n": row["n"]}
        rows.append(row["video"] if kind == "bare" else row)
    return Given(f"bytes of {kind} files", loadax.from_source(rows), rows, one_by_one=True)


QUICK = (arrays, arrays, arrays, user_source, items, items, items, told_documents, documents, mapped_file)
SLOW = (faulty, token_windows, zarr_array, records, columns, media, encoded)


def some_rows(random: Random, stores: Stores) -> Given:
    """A source of some kind."""
    return random.choice(QUICK + SLOW)(random, stores, random.randint(1, 24))
