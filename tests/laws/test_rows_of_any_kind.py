"""Rows of any kind reach the map.

They need be alike only where they are stacked, behind the last map of single rows.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import loadax
from loadax import Dataloader, Dataset
from loadax.errors import LeafError, SourceError
from tests.sources.token_corpora import write_pair
from tests.worker_types import WORKER_TYPES

COUNT = 12
LENGTHS = [int(length) for length in np.random.default_rng(5).integers(1, 9, COUNT)]


def crop(example: Any) -> Any:
    return {**example, "image": example["image"][:4, :3]}


def random_crop(example: Any, rng: np.random.Generator) -> Any:
    top, left = (int(rng.integers(side - 4)) for side in example["image"].shape[:2])
    return {"image": example["image"][top : top + 4, left : left + 4]}


def pad(tokens: Any) -> Any:
    return np.pad(tokens, (0, 10 - len(tokens)))


def tokenize(text: str) -> Any:
    return [ord(letter) for letter in text]


def padded_list(tokens: list[int]) -> Any:
    return np.array((tokens + [np.int64(0)] * 10)[:10], np.int64)


def image(number: int) -> Any:
    return np.full((5 + number, 20 - number, 3), number, np.uint8)


def tokens(number: int) -> Any:
    return np.full(LENGTHS[number], number + 1, np.int64)


def many_sizes(_: Path) -> tuple[Dataset, Any]:
    return loadax.from_source([{"image": image(number)} for number in range(COUNT)]).map(crop), [
        {"image": image(number)[:4, :3]} for number in range(COUNT)
    ]


def text_to_tokens(_: Path) -> tuple[Dataset, Any]:
    texts = ["ab" * (number % 4 + 1) for number in range(COUNT)]
    return loadax.from_source(texts).map(tokenize).map(padded_list), [
        np.pad(np.array(tokenize(text)), (0, 10 - len(text))) for text in texts
    ]


def documents(path: Path) -> tuple[Dataset, Any]:
    given = [tokens(number).astype(np.uint16) for number in range(COUNT)]
    return loadax.from_documents(write_pair(path / "x.bin", [[each] for each in given])).map(pad), [
        pad(each) for each in given
    ]


def records(path: Path) -> tuple[Dataset, Any]:
    from array_record.python.array_record_module import ArrayRecordWriter

    writer = ArrayRecordWriter(str(path / "x.array_record"), "group_size:1")
    for number in range(COUNT):
        writer.write(tokens(number).tobytes())
    writer.close()
    data = loadax.from_array_record(path / "x.array_record", dtype="int64")
    return data.map(lambda row: row[:1]), [tokens(number)[:1] for number in range(COUNT)]


def numbers_of_two_kinds(_: Path) -> tuple[Dataset, Any]:
    given = [1, 2.5, 3, True] * (COUNT // 4)
    return loadax.from_source(given).map(np.float32), [np.float32(each) for each in given]


def lists_of_strings(_: Path) -> tuple[Dataset, Any]:
    given = [{"words": ["ab", "c"] * (number % 3 + 1)} for number in range(COUNT)]
    return loadax.from_source(given).map(lambda row: {"count": np.int32(len(row["words"]))}), [
        {"count": np.int32(len(each["words"]))} for each in given
    ]


def pictures(_: Path) -> tuple[Dataset, Any]:
    given = [{"image": Image.fromarray(image(number))} for number in range(COUNT)]
    return loadax.from_source(given).map(lambda row: np.asarray(row["image"].resize((4, 4)))), [
        np.full((4, 4, 3), number, np.uint8) for number in range(COUNT)
    ]


def odd_keys(_: Path) -> tuple[Dataset, Any]:
    given = [{1: number, "a": [None] * (number % 3)} for number in range(COUNT)]
    return loadax.from_source(given).map(lambda row: np.int32(row[1])), [np.int32(number) for number in range(COUNT)]


def photographs(path: Path) -> tuple[Dataset, Any]:
    for number in range(COUNT):
        Image.fromarray(image(number)).save(path / f"{number:02}.png")
    from loadax.seeds import row_generator

    data = loadax.from_images(path).map(random_crop, rng=True, seed=3)
    return data, [random_crop({"image": image(number)}, row_generator(3, 0, 0, number)) for number in range(COUNT)]


KINDS: dict[str, Callable[[Path], tuple[Dataset, Any]]] = {
    each.__name__: each
    for each in (
        many_sizes,
        text_to_tokens,
        documents,
        records,
        numbers_of_two_kinds,
        lists_of_strings,
        pictures,
        odd_keys,
        photographs,
    )
}


def same(got: Any, expected: Any) -> None:
    if isinstance(expected, dict):
        assert set(got) == set(expected)
        for key, value in expected.items():
            same(got[key], value)
    else:
        assert np.asarray(got).tolist() == np.asarray(expected).tolist()


@pytest.mark.parametrize("kind", KINDS)
def test_they_reach_the_map(kind: str, tmp_path: Path) -> None:
    data, expected = KINDS[kind](tmp_path)
    assert len(data) == len(expected)
    for got, each in zip(data, expected, strict=True):
        same(got, each)
    same(data[-1], expected[-1])
    batch = data.read(range(len(data)))
    for row, each in enumerate(expected):
        same({key: leaf[row] for key, leaf in batch.items()} if isinstance(batch, dict) else batch[row], each)
    for _ in range(0 if kind == "photographs" else 2):  # a random map is not cached; others are written, and found
        for got, each in zip(data.cache(tmp_path / "cache", progress=False), expected, strict=True):
            same(got, each)


def test_what_numpy_makes_no_array_of_reaches_the_map(tmp_path: Path) -> None:
    class Tensor:
        """As torch's with requires_grad."""

        def __init__(self, value: int):
            self.value = value

        def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
            raise RuntimeError("can't call numpy() on a tensor that requires grad")

    data = (
        loadax.from_source([Tensor(number) for number in range(COUNT)])
        .map(lambda each: each)
        .map(lambda each: each.value)
    )
    assert data.read(range(COUNT)).tolist() == list(range(COUNT))
    assert [int(each) for each in data.cache(tmp_path / "cache", progress=False)] == list(range(COUNT))


@pytest.mark.parametrize("worker_type", WORKER_TYPES)
def test_they_reach_the_map_in_workers(worker_type: str, tmp_path: Path) -> None:
    for kind, make in KINDS.items():
        if worker_type == "process" and kind in ("records", "numbers_of_two_kinds", "documents"):
            continue  # a process takes a second, and these are read as the others are
        (tmp_path / kind).mkdir()
        data, expected = make(tmp_path / kind)
        with Dataloader(data, 4, num_workers=1, worker_type=worker_type, mesh=one_device()).iterate() as batches:
            rows = [batch for _, batch in zip(range(len(data) // 4), batches, strict=False)]
        for step, batch in enumerate(rows):
            for place in range(4):
                each = {key: leaf[place] for key, leaf in batch.items()} if isinstance(batch, dict) else batch[place]
                same(each, expected[4 * step + place])


def one_device() -> Any:
    import jax

    return jax.sharding.Mesh(np.array(jax.local_devices()[:1], object), ("data",))


def test_opaque_rows_stay_what_they_are_until_a_map_has_seen_them() -> None:
    data = loadax.from_source([{"image": Image.fromarray(image(number))} for number in range(3)])
    assert isinstance(data[1]["image"], Image.Image)
    assert [type(row["image"]).__name__ for row in data] == ["Image"] * 3
    seen: list[str] = []

    def look(row: Any) -> int:
        seen.append(type(row["image"]).__name__)
        return 0

    data.map(look).read([0, 2])
    assert set(seen) == {"Image"}


def test_numbers_come_as_a_batch_would_have_them() -> None:
    kinds: list[str] = []

    def look(row: Any) -> Any:
        kinds.append(type(row["x"]).__name__)
        return {"x": 2 * float(row["x"])}

    data = loadax.from_source([{"x": 1}, {"x": 2.5}]).map(look).map(look)
    assert data.read([0, 1])["x"].tolist() == [4.0, 10.0]
    assert set(kinds[-4:]) == {"int64", "float64"}


def test_a_map_may_write_to_what_another_one_returned() -> None:
    table = np.zeros(3)

    def add(row: Any) -> Any:
        row += 1
        return row

    data = loadax.from_source([0, 0]).map(lambda row: table).map(add)
    assert data.read([0, 1, 0]).tolist() == [[1.0] * 3] * 3
    assert table.tolist() == [0.0] * 3


def test_the_advice_of_ragged_rows_followed(tmp_path: Path) -> None:
    given = [tokens(number) for number in range(COUNT)]
    data = loadax.from_source(given)
    with pytest.raises(
        LeafError,
        match=r"pad them with \.pad\(lengths\), crop them in a map, or, unless they come from a stream, pack them with "
        r"\.pack\(seq_len\)",
    ):
        data.read(range(COUNT))
    assert data.pad(10).read(range(COUNT))["data"].shape == (COUNT, 10)
    assert data.map(lambda row: row[:1]).read(range(COUNT)).shape == (COUNT, 1)
    assert data.map(pad).read(range(COUNT)).shape == (COUNT, 10)
    assert data.pack(10).read([0])["tokens"].shape == (1, 10)
    with pytest.raises(LeafError, match=r"give all rows one shape and dtype in a map \(pad, crop or cast\)"):
        loadax.from_source([1, 2.5]).read([0, 1])
    assert loadax.from_source([1, 2.5]).map(np.float32).read([0, 1]).tolist() == [1, 2.5]


def test_the_advice_of_images_of_many_sizes_followed(tmp_path: Path) -> None:
    for number in range(3):
        Image.fromarray(image(number)).save(tmp_path / f"{number:02}.png")
    data = loadax.from_images(tmp_path)
    with pytest.raises(
        SourceError, match=r"pass size=\(height, width\) to resize all, or crop or resize them in a map"
    ):
        data.read([0, 1])
    assert loadax.from_images(tmp_path, size=(6, 7)).read([0, 1])["image"].shape == (2, 6, 7, 3)
    assert data.map(crop).read([0, 1])["image"].shape == (2, 4, 3, 3)


def test_the_advice_of_documents_followed(tmp_path: Path) -> None:
    data = loadax.from_documents(np.arange(6), [0, 2, 6])
    with pytest.raises(
        SourceError,
        match=r"pack them into rows of one length with \.pack\(seq_len\), pad them with \.pad\(lengths\), or look at",
    ):
        data.read([0, 1])
    assert data.pack(3).read([0, 1])["tokens"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert data.map(pad).read([0])[0].tolist() == [0, 1] + [0] * 8
    assert data.pad(3, truncate=True).read([0, 1])["data"].tolist() == [[0, 1, 0], [2, 3, 4]]
    assert data[1].tolist() == [2, 3, 4, 5]


def test_parts_that_differ_may_be_made_alike_behind_the_joint() -> None:
    one, other = [np.arange(3), np.arange(5)], [np.arange(4)]
    joined = loadax.concat([one, other])
    with pytest.raises(
        LeafError,
        match=r"concat: leaf of the example is int64\[4\] in part 1 and int64\[3\] in part 0; map them to one",
    ):
        joined.read([0, 2])
    assert joined.map(pad).read([0, 1, 2]).shape == (3, 10)
    assert [row.tolist() for row in joined] == [[0, 1, 2], [0, 1, 2, 3, 4], [0, 1, 2, 3]]
    with pytest.raises(LeafError, match="in part 1 and"):
        loadax.concat([np.zeros((2, 3)), np.zeros((2, 4))])


def flat(path: Path) -> Dataset:
    return loadax.from_documents(write_pair(path / "x.bin", [[tokens(number)] for number in range(COUNT)]))


@pytest.mark.parametrize("second", ["flat", "listed", "mapped"])
@pytest.mark.parametrize("join", ["concat", "mix"])
def test_joined_documents_pack(join: str, second: str, tmp_path: Path) -> None:
    first = flat(tmp_path)
    others: dict[str, Callable[[], Any]] = {
        "flat": lambda: loadax.from_documents(
            write_pair(tmp_path / "y.bin", [[tokens(number)] for number in range(4)])
        ),
        "listed": lambda: loadax.from_source([tokens(number) for number in range(4)]),
        "mapped": lambda: first[:4].map(lambda row: row),
    }
    other = others[second]()
    joined = loadax.concat([first, other]) if join == "concat" else loadax.mix({"web": first, "code": other}, [3, 1])
    packs = joined.pack(8)
    stream = np.concatenate([joined[position] for position in range(len(joined))])
    rows = packs.read(range(len(packs)))["tokens"].reshape(-1)
    assert rows[: len(stream)].tolist() == stream.tolist()
    assert not rows[len(stream) :].any()
    assert packs.source.traits.reads_columns == (second == "flat")


def test_a_trace_of_joined_packs_names_the_dataset(tmp_path: Path) -> None:
    one, other = flat(tmp_path).pack(8), loadax.from_source([tokens(number) for number in range(COUNT)]).pack(8)
    mixed = loadax.mix({"web": one, "code": other}, [1, 1])
    records = list(Dataloader(mixed, 4, mesh=one_device()).trace(0))
    assert {record.dataset for record in records} == {"web", "code"}
    for record in records:
        assert record.documents is not None
        assert (record.where is not None) == (record.dataset == "web")
