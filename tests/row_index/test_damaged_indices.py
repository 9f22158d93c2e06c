"""Indices of filters and packs with flipped bits: what is found is right, or an error says what is wrong.

Never other rows.
"""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import loadax
from loadax.dataset import Dataset
from loadax.errors import LoadaxError

DOCUMENTS = [np.arange(1, 2 + number * 7 % 23, dtype=np.int32) for number in range(60)]


def keep(example: Any) -> bool:
    return bool(example % 3)


def filtered(index: Path) -> Dataset:
    return loadax.from_arrays(np.arange(300)).filter(keep, "key", index=index / "f.idx", progress=False)


def grouped(index: Path) -> Dataset:
    return loadax.from_arrays({"user": np.arange(300) % 40}).split_by(
        "user", 0.5, index=index / "g.idx", progress=False
    )[0]


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
    for _ in range(120):
        for each in tmp_path.iterdir():
            each.unlink()
        for each, content in whole.items():
            each.write_bytes(content)
        path = moment.choice(sorted(whole))
        flip(path, moment.randrange(8 * len(whole[path])))
        try:
            found = make(tmp_path)
        except LoadaxError as error:
            if "is a file of another kind; choose another path, or delete it" not in str(error):
                raise
            path.unlink()  # as it says
            found, refused = make(tmp_path), refused + 1
        assert contents(found) == expected
        assert {each: each.read_bytes() for each in whole} == whole  # made anew
    assert refused < 60


@pytest.mark.parametrize("kind", MAKERS)
def test_every_bit_of_the_numbers(kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Flips in what the files hold behind their headers: nothing but a digest sees those."""
    make = MAKERS[kind]
    expected = contents(make(tmp_path))
    for path in sorted(each for each in tmp_path.iterdir() if each.suffix in (".idx", ".npy")):
        for bit in random.Random(1).sample(range(8 * 40), 12):
            flip(path, 8 * (path.stat().st_size - 40) + bit)
            caplog.clear()
            assert contents(make(tmp_path)) == expected
            assert "is damaged" in caplog.text
            assert "anew" in caplog.text


def test_a_damaged_index_does_not_pass_for_the_run_of_the_intact_one(tmp_path: Path) -> None:
    intact = filtered(tmp_path)
    flip(tmp_path / "f.idx", 8 * ((tmp_path / "f.idx").stat().st_size - 80))
    again = filtered(tmp_path)
    assert again.describe() == intact.describe()
    assert contents(again) == contents(intact)


@pytest.mark.parametrize("name", ["lengths.json", "best_fit-32-error-1048576.json"])
@pytest.mark.parametrize(
    "text",
    ["", "[]", "3", "null", '{"arrays": 3}', "[" * 100_000, '{"identity": {}, "arrays": {"a": "x"}, "facts": {}}'],
)
def test_anything_else_in_a_packs_description(name: str, text: str, tmp_path: Path) -> None:
    expected = contents(packed(tmp_path, "best_fit"))
    (tmp_path / name).write_text(text)
    assert contents(packed(tmp_path, "best_fit")) == expected


def test_a_description_that_names_other_files_deletes_none_of_them(tmp_path: Path) -> None:
    packed(tmp_path, "split")
    (tmp_path / "thesis.txt").write_text("mine")
    (tmp_path / "lengths.json").write_text('{"identity": {}, "arrays": {"lengths": "thesis.txt"}, "facts": {}}')
    packed(tmp_path, "split")
    assert (tmp_path / "thesis.txt").read_text() == "mine"


@pytest.mark.parametrize("line", [b"[" * 5000, b"{}", b'"check": "x"', b'"digest": 3}'])
def test_anything_else_in_a_filters_header(line: bytes, tmp_path: Path) -> None:
    expected = contents(filtered(tmp_path))
    (tmp_path / "f.idx").write_bytes(b'{"loadax index": ' + line + b"\n")
    assert contents(filtered(tmp_path)) == expected
