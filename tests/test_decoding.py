"""`decode_images` of any source against a loop over the same decoder, and random crops against their seeds."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import loadax
from loadax import Dataloader, Dataset, MaskErrors, RandomCrop
from loadax.errors import ArgumentError, LeafError, SourceError
from loadax.seeds import row_generator
from loadax.sources.images.decode import Rendering
from tests.sources.images.test_source import PHOTOGRAPHS, encoded, photograph, write
from tests.sources.shards.corpora import write_tar

SIZE = (16, 20)
FILES = [encoded(photograph(PHOTOGRAPHS[row % 4], 60 + 10 * row, 90), "JPEG" if row % 3 else "PNG") for row in range(8)]
EXPECTED = [Rendering(SIZE, "crop", fast=False, strict=True)(content) for content in FILES]
ROWS = [{"image": content, "label": row} for row, content in enumerate(FILES)]


def _parquet(folder: Path, image: Callable[[bytes], Any]) -> Dataset:
    import pyarrow as pa
    from pyarrow import parquet

    parquet.write_table(pa.table({"image": [*map(image, FILES)], "label": range(8)}), folder / "x.parquet")
    return loadax.from_parquet(folder / "x.parquet")


def _objects(folder: Path) -> Dataset:
    write(folder, {f"{row}.bin": content for row, content in enumerate(FILES)})
    return loadax.from_objects(folder).rename({"bytes": "image"})


def _tar(folder: Path) -> Dataset:
    write_tar(folder / "x.tar", {f"{row}.jpg": content for row, content in enumerate(FILES)})
    return loadax.from_webdataset(folder, progress=False).rename({"jpg": "image"})


def _huggingface(_: Path) -> Dataset:
    import datasets

    rows = [{"image": {"bytes": content, "path": "x"}} for content in FILES]
    return loadax.from_huggingface(datasets.Dataset.from_list(rows).cast_column("image", datasets.Image(decode=False)))


def _lane(lane: int, _: Any) -> Any:
    yield from ROWS[lane::2]


SOURCES: dict[str, Callable[[Path], Dataset]] = {
    "source": lambda _: loadax.from_source(ROWS),
    "arrays of fixed bytes": lambda _: loadax.from_arrays({"image": np.array(FILES)}),
    "arrays of objects": lambda _: loadax.from_arrays({"image": np.array(FILES, object)}),
    "uint8 of any length": lambda _: loadax.from_source([{"image": np.frombuffer(each, np.uint8)} for each in FILES]),
    "parquet": lambda folder: _parquet(folder, lambda content: content),
    "parquet of structs": lambda folder: _parquet(folder, lambda content: {"bytes": content, "path": "x"}),
    "parquet of lists": lambda folder: _parquet(folder, lambda content: np.frombuffer(content, np.uint8)),
    "objects": _objects,
    "tar": _tar,
    "Hugging Face": _huggingface,
    "bare bytes": lambda _: loadax.from_source(FILES),
}


@pytest.mark.parametrize("name", SOURCES)
def test_images_are_those_of_the_decoder(name: str, tmp_path: Path) -> None:
    data = SOURCES[name](tmp_path)
    leaf = None if name == "bare bytes" else "image"
    decoded = data.decode_images(leaf, SIZE)

    def image(tree: Any) -> Any:
        return tree if leaf is None else tree[leaf]

    np.testing.assert_array_equal(image(decoded.read([5, 0, 5, 3])), [EXPECTED[row] for row in (5, 0, 5, 3)])
    np.testing.assert_array_equal(image(decoded[2]), EXPECTED[2])
    assert image(decoded.spec).shape == (*SIZE, 3)
    if leaf:
        kept = decoded.keep(leaf).shuffle(seed=3)
        batch = Dataloader(kept, 8)[0][leaf]
        np.testing.assert_array_equal(batch, [EXPECTED[row] for row in Dataloader(kept, 8).rows(0)])


def test_leaf_of_a_subtree_is_named_by_its_path() -> None:
    rows = loadax.from_source(
        [{"pair": ({"jpg": content}, row), "x": np.zeros(row)} for row, content in enumerate(FILES)]
    )
    example = rows.decode_images("pair.0.jpg", SIZE)[4]
    np.testing.assert_array_equal(example["pair"][0]["jpg"], EXPECTED[4])
    assert (example["pair"][1], len(example["x"])) == (4, 4)


def test_maps_follow_and_precede_it() -> None:
    wrapped = loadax.from_source(FILES).map(lambda content: {"image": content, "ids": np.arange(len(content) % 7)})
    data = wrapped.decode_images("image", SIZE).pad({"ids": 8}).map_batch(lambda batch: batch)
    batch = data.read(range(8))
    np.testing.assert_array_equal(batch["image"], EXPECTED)
    assert batch["ids_length"].tolist() == [len(content) % 7 for content in FILES]
    sides = wrapped.decode_images("image").map(lambda row: {"width": row["image"].shape[1]})
    assert sides.read(range(8))["width"].tolist() == [60 + 10 * row for row in range(8)]


def test_size_tells_the_spec_without_a_row() -> None:
    data = loadax.from_arrays({"image": np.array([b"damaged", *FILES[1:]], object), "label": np.arange(8)})
    decoded = data.decode_images("image", SIZE)
    assert decoded.spec["image"].shape == (*SIZE, 3)
    assert data.decode_images("image", crop=(0, 0, 5, 6)).spec["image"].shape == (5, 6, 3)
    np.testing.assert_array_equal(decoded.read([7])["image"], EXPECTED[7:])


def test_categories_stay_known(tmp_path: Path) -> None:
    write(tmp_path, {"cat/0.jpg": FILES[1], "dog/0.jpg": FILES[2]})
    data = loadax.from_images(tmp_path, 8, crop=RandomCrop())
    assert data.reader.traits.attributes["label"]["classes"] == ["cat", "dog"]


# ---- errors


def test_damaged_row_is_named_and_masked(tmp_path: Path) -> None:
    files = {f"{row}.bin": content for row, content in enumerate(FILES)}
    write(tmp_path, {**files, "4.bin": FILES[4][:900], "6.bin": b"text"})
    data = loadax.from_objects(tmp_path).decode_images("bytes", SIZE)
    for row, reason in ((4, "Premature end of JPEG file"), (6, "it has no header of JPEG, PNG, WEBP or BMP")):
        message = (
            rf"^row {row} \(.*{row}\.bin\): leaf 'bytes' can't be decoded as an image: {reason}; leave the row out: "
        )
        with pytest.raises(SourceError, match=rf"{message}dataset\.exclude\(\[{row}\]\)"):
            data.read(range(len(data)))
        data = data.exclude([row])
    whole = [row for row in range(8) if row not in (4, 6)]
    np.testing.assert_array_equal(data.read(range(6))["bytes"], [EXPECTED[row] for row in whole])
    masking = MaskErrors(record=tmp_path / "masked.jsonl")
    loader = Dataloader(
        loadax.from_objects(str(tmp_path / "*.bin")).decode_images("bytes", SIZE).keep("bytes"),
        8,
        num_epochs=1,
        on_error=masking,
    )
    (batch,) = loader
    assert np.flatnonzero(~np.asarray(batch["mask"])).tolist() == [4, 6]
    np.testing.assert_array_equal(np.asarray(batch["bytes"])[whole], [EXPECTED[row] for row in whole])
    recorded = [json.loads(line) for line in (tmp_path / "masked.jsonl").read_text().splitlines()]
    assert [entry["id"] for entry in recorded] == [4, 6]


def test_damage_is_accepted_if_asked() -> None:
    rows = loadax.from_source([{"image": FILES[4][:900]}])
    assert rows.decode_images("image", SIZE, damaged="accept")[0]["image"].shape == (*SIZE, 3)


@pytest.mark.parametrize(
    ("leaf", "message"),
    [
        ("label", r"row 0: leaf 'label' is int64\[\], not the bytes of an image; name a leaf of bytes, or leave"),
        ("pixels", r"row 0: leaf 'pixels' is uint8\[4, 4, 3\], not the bytes of an image"),
        ("text", r"row 0: leaf 'text' is <U3\[\], not the bytes of an image"),
        ("imago", r"decode_images, row 0: there is no leaf 'imago'; did you mean 'image'\?"),
        (None, r"row 0: the example is .*, not the bytes of an image"),
    ],
)
def test_leaf_that_has_no_encoded_images(leaf: Any, message: str) -> None:
    rows = loadax.from_source([{**row, "pixels": np.zeros((4, 4, 3), np.uint8), "text": "abc"} for row in ROWS])
    with pytest.raises(LeafError, match=message):
        rows.decode_images(leaf, SIZE)[0]


def test_images_of_different_sizes_without_a_size() -> None:
    data = loadax.from_source(ROWS).decode_images("image")
    with pytest.raises(
        LeafError, match=r"row 2: leaf 'image' is 90x80 pixels .* but the first is 90x60; pass size=\(height, width\)"
    ):
        data.read([0, 2])


def test_name_of_a_leaf_is_a_text() -> None:
    with pytest.raises(ArgumentError, match="leaf=3: pass the name of a leaf of the bytes of an image"):
        loadax.from_source(ROWS).decode_images(3)  # type: ignore[arg-type]


# ---- random crops


def by_hand(seed: int, place: int, epoch: int, row: int, crop: RandomCrop) -> Any:
    """The crop of a row, drawn from its generator and decoded as a box."""
    whole = Rendering(None, "crop", fast=False, strict=True)(FILES[row % 8])
    height, width, _ = whole.shape
    box = crop.draw(height, width, row_generator(seed, place, epoch, row))
    return Rendering(SIZE, "stretch", False, True, box)(FILES[row % 8])


@pytest.mark.parametrize("seed", [None, 5])
def test_crop_depends_on_seed_epoch_and_row_alone(seed: int | None) -> None:
    crop = RandomCrop(scale=(0.2, 1.0), seed=seed)
    data = loadax.from_source(ROWS).decode_images("image", SIZE, crop=crop)
    for epoch in (0, 3):
        expected = [by_hand(seed or 0, 0, epoch, row, crop) for row in (6, 1, 6)]
        np.testing.assert_array_equal(data.read([6, 1, 6], epoch=epoch)["image"], expected)
    assert (data.read([1])["image"] != data.read([1], epoch=1)["image"]).any()


def test_it_has_a_place_among_the_random_maps() -> None:
    def drawn(row: Any, rng: np.random.Generator) -> Any:
        return {**row, "draw": rng.random()}

    plain = loadax.from_source(ROWS)
    crop = RandomCrop()
    after = plain.map(drawn, rng=True).decode_images("image", SIZE, crop=crop)
    np.testing.assert_array_equal(after.read([2])["image"][0], by_hand(0, 1, 0, 2, crop))
    before = plain.decode_images("image", SIZE, crop=crop).map(drawn, rng=True)
    np.testing.assert_array_equal(before.read([2])["image"][0], by_hand(0, 0, 0, 2, crop))
    assert before[2]["draw"] == np.float64(row_generator(0, 1, 0, 2).random())


def test_parts_of_a_dataset_draw_different_crops() -> None:
    one = loadax.from_source(ROWS[:1]).decode_images("image", SIZE, crop=RandomCrop())
    both = loadax.concat([one, one]).read([0, 1])["image"]
    assert (both[0] != both[1]).any()
    given = loadax.from_source(ROWS[:1]).decode_images("image", SIZE, crop=RandomCrop(seed=4))
    same = loadax.concat([given, given]).read([0, 1])["image"]
    np.testing.assert_array_equal(same[0], same[1])


def random_data(folder: Path) -> Dataset:
    write(folder, {f"{row:02}.jpg": FILES[row % 8] for row in range(16)})
    return loadax.from_images(folder, SIZE, crop=RandomCrop()).shuffle(seed=1)


def batches_of(loader: Dataloader, start: Any = None) -> list[Any]:
    return [jax.tree.map(np.asarray, batch) for batch in loader.iterate(start)]


@pytest.mark.processes
@pytest.mark.parametrize("options", [{"num_workers": 2, "worker_type": "process"}, {"num_workers": 2}])
def test_batches_are_the_same_in_workers_and_on_resume(options: Any, tmp_path: Path) -> None:
    """And on hosts: any of them reads its rows of the same global batch."""
    data = random_data(tmp_path)
    loader = Dataloader(data, 8, num_epochs=2)
    expected = []
    for step in range(4):
        rows = loader.rows(step).tolist()
        images = [by_hand(0, 0, step // 2, row, RandomCrop()) for row in rows]
        expected.append({"image": np.stack(images), "label": np.zeros(8, np.int32)})
    jax.tree.map(np.testing.assert_array_equal, batches_of(Dataloader(data, 8, num_epochs=2, **options)), expected)
    jax.tree.map(np.testing.assert_array_equal, [loader.host_batch(step) for step in range(4)], expected)
    iterator = iter(loader)
    next(iterator)
    state = json.loads(json.dumps(iterator.get_state()))
    iterator.close()
    jax.tree.map(np.testing.assert_array_equal, batches_of(loader, state), expected[1:])


def test_streams_draw_as_their_dataset_does() -> None:
    data = loadax.from_source(ROWS).decode_images("image", SIZE, crop=RandomCrop())
    stream = loadax.from_source(ROWS).to_stream(lanes=2).decode_images("image", SIZE, crop=RandomCrop())
    before = data.to_stream(lanes=2)
    found = next(iter(Dataloader(before, 8)))["image"]
    rows = [row for lane in range(2) for row in range(lane, 8, 2)]
    np.testing.assert_array_equal(found, data.read(rows)["image"])
    assert next(iter(Dataloader(stream, 8)))["image"].shape == (8, *SIZE, 3)
    plain = loadax.from_stream(_lane, lanes=2).decode_images("image", SIZE)
    np.testing.assert_array_equal(next(iter(Dataloader(plain, 8)))["image"], [EXPECTED[row] for row in rows])


def test_random_crops_are_not_cached(tmp_path: Path) -> None:
    data = loadax.from_source(ROWS)
    with pytest.raises(ArgumentError, match="cache"):
        data.decode_images("image", SIZE, crop=RandomCrop()).cache(tmp_path / "x.zarr")
    for size in (SIZE, (8, 8)):  # another size is another cache
        cached = data.decode_images("image", size).cache(tmp_path / f"{size[0]}.zarr", progress=False)
        assert cached.spec["image"].shape == (*size, 3)
    np.testing.assert_array_equal(
        data.decode_images("image", SIZE).cache(tmp_path / "16.zarr", progress=False).read([3])["image"], EXPECTED[3:4]
    )
