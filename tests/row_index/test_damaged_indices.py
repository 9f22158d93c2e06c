"""Indices of filters and packs with flipped bits: what is found is right, or an error says what is wrong.

Never other rows.
"""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import loadax
from loadax.core.digest import digest_values
from loadax.dataset import Dataset
from loadax.errors import LoadaxError
from loadax.kept.index_folder import Entry, IndexFolder

DOCUMENTS = [np.arange(1, 2 + number * 7 % 23, dtype=np.int32) for number in range(60)]


def keep(example: Any) -> bool:
    return bool(example % 3)


def filtered(index: Path) -> Dataset:
    return loadax.from_arrays(np.arange(300)).filter(keep, "key", index=index, progress=False)


def grouped(index: Path) -> Dataset:
    return loadax.from_arrays({"user": np.arange(300) % 40}).split_by("user", 0.5, index=index, progress=False)[0]


def packed(index: Path, method: Any) -> Dataset:
    return loadax.from_source(DOCUMENTS).pack(32, method=method, index=index, progress=False)


MAKERS: dict[str, Callable[[Path], Dataset]] = {
    "filter": filtered,
    "split_by": grouped,
    "best_fit": lambda index: packed(index, "best_fit"),
    "split": lambda index: packed(index, "split"),
}


def contents(dataset: Dataset) -> list[list[Any]]:
    batch = dataset.read(range(len(dataset)))
    return [leaf.tolist() for leaf in (batch.values() if isinstance(batch, dict) else [batch])]


def flip(path: Path, bit: int) -> None:
    content = bytearray(path.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)


@pytest.mark.filterwarnings("ignore:Reading `.npy`")
@pytest.mark.parametrize("kind", MAKERS)
def test_flipped_bits_never_give_other_rows(kind: str, tmp_path: Path) -> None:
    make, moment = MAKERS[kind], random.Random(0)
    expected = contents(make(tmp_path))
    whole = {each: each.read_bytes() for each in tmp_path.iterdir()}
    refused = 0
    for _ in range(50):
        for each in tmp_path.iterdir():
            each.unlink()
        for each, content in whole.items():
            each.write_bytes(content)
        path = moment.choice(sorted(whole))
        flip(path, moment.randrange(8 * len(whole[path])))
        try:
            found = make(tmp_path)
        except LoadaxError as error:
            if "is not a loadax index; pass another path, or delete it" not in str(error):
                raise
            path.unlink()  # as it says
            found, refused = make(tmp_path), refused + 1
        assert contents(found) == expected
        assert {each: each.read_bytes() for each in whole} == whole  # made anew
    assert refused < 25


@pytest.mark.parametrize("kind", MAKERS)
def test_every_bit_of_the_numbers(kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Flips in what the files hold behind their headers: nothing but a digest sees those."""
    make = MAKERS[kind]
    expected = contents(make(tmp_path))
    for path in sorted(each for each in tmp_path.iterdir() if each.suffix == ".npy"):
        for bit in random.Random(1).sample(range(8 * 40), 12):
            flip(path, 8 * (path.stat().st_size - 40) + bit)
            caplog.clear()
            assert contents(make(tmp_path)) == expected
            assert "is damaged" in caplog.text


def test_a_damaged_index_does_not_pass_for_the_run_of_the_intact_one(tmp_path: Path) -> None:
    intact = filtered(tmp_path)
    (array,) = tmp_path.glob("*.npy")
    flip(array, 8 * (array.stat().st_size - 80))
    again = filtered(tmp_path)
    assert again.order_facts == intact.order_facts
    assert contents(again) == contents(intact)


@pytest.mark.parametrize("kind", ["filter", "best_fit"])
@pytest.mark.parametrize(
    "text",
    [
        *("", "3}", '3, "check": "x"}', '3, "digest": 3}', '3, "arrays": 3}', "[" * 100_000),
        '3, "identity": {}, "arrays": {"a": "x"}, "facts": {}}',
    ],
)
def test_anything_else_in_a_description(kind: str, text: str, tmp_path: Path) -> None:
    expected = contents(MAKERS[kind](tmp_path))
    for path in tmp_path.glob("*.json"):
        path.write_text(f'{{\n "loadax index": {text}')
        assert contents(MAKERS[kind](tmp_path)) == expected


def test_a_description_that_names_other_files_deletes_none_of_them(tmp_path: Path) -> None:
    packed(tmp_path, "split")
    (tmp_path / "thesis.txt").write_text("mine")
    (tmp_path / "lengths.json").write_text('{\n "loadax index": 3, "arrays": {"lengths": "thesis.txt"}}')
    packed(tmp_path, "split")
    assert (tmp_path / "thesis.txt").read_text() == "mine"


@pytest.mark.parametrize("rows", [[1, 1, 2], [2, 1], [1, 300], [-1, 1], [1, 3]])
def test_rows_with_right_checksums_that_no_filter_gives(
    rows: list[int], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Repeated, descending, none of the dataset, and one that an earlier filter has dropped."""
    data = loadax.from_arrays(np.arange(300)).exclude([3])

    def make() -> Dataset:
        return data.filter(keep, "key", index=tmp_path, progress=False)

    expected = contents(make())
    (path,) = tmp_path.glob("*.json")
    identity = json.loads(path.read_text())["identity"]
    forged = np.array(rows)
    IndexFolder(tmp_path).put(path.stem, identity, Entry({"answers": forged}, {"digest": digest_values(forged)}))
    caplog.clear()
    assert contents(make()) == expected
    assert "can't be used" in caplog.text
