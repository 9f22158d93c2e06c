"""Ragged rows are read back as they were mapped, from stores whose bytes don't depend on who wrote which part."""

import json
import pickle
import shutil
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest
import zarr
from hypothesis import given, settings, strategies as st

import loadax
from loadax import Dataset, from_source, from_zarr, write_zarr
from loadax.cli import main
from loadax.core.tree import flatten
from loadax.errors import ArgumentError, LeafError, LeafTypeError, SourceError
from loadax.testing import check_source
from loadax.writing.store_damage import verify
from tests.limits import examples
from tests.writing.rows import files

DTYPES = [np.uint8, np.int32, np.int64, np.float32, np.bool_]


def texts(count: int = 300, longest: int = 40) -> list[str]:
    lengths = np.random.default_rng(0).integers(0, longest, count)
    return ["abcdefghij"[row % 10] * int(length) for row, length in enumerate(lengths)]


def tokenize(text: str) -> Any:
    return np.frombuffer(text.encode(), np.uint8).astype(np.int32)


def assert_rows(found: Dataset, expected: list[Any]) -> None:
    assert len(found) == len(expected)
    for row, example in zip(found, expected, strict=True):
        (leaves, structure), (wanted, wanted_structure) = flatten(row), flatten(example)
        assert structure == wanted_structure
        for leaf, other in zip(leaves, wanted, strict=True):
            assert leaf.dtype == other.dtype
            np.testing.assert_array_equal(leaf, other)


@settings(max_examples=examples(40), deadline=None)
@given(data=st.data())
def test_ragged_rows_read_back_equal(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    shard_rows = data.draw(st.none() | st.integers(1, 5))
    lengths = data.draw(st.lists(st.integers(0, 9), min_size=2, max_size=12).filter(lambda found: len(set(found)) > 1))
    if data.draw(st.booleans()):
        lengths = [0] * 5 + lengths  # an empty leading part
    shapes = data.draw(st.lists(st.sampled_from([(), (2,), (0,)]), min_size=1, max_size=3))
    alike, scalar = data.draw(st.booleans()), data.draw(st.booleans())
    rng = np.random.default_rng(len(lengths))

    def leaf(number: int, length: int) -> Any:
        own = length if alike else (length * (number + 1)) % 7
        return rng.integers(0, 2, (own, *shapes[number])).astype(DTYPES[number])

    rows: list[Any] = [{f"leaf{number}": leaf(number, length) for number in range(len(shapes))} for length in lengths]
    if len(shapes) == 1 and data.draw(st.booleans()):
        rows = [row["leaf0"] for row in rows]  # bare arrays
    elif scalar:
        rows = [{**row, "label": np.int64(number)} for number, row in enumerate(rows)]
    path = tmp_path_factory.mktemp("store") / "s"
    sizes: dict[str, Any] = {"shard_rows": shard_rows, "chunk_rows": data.draw(st.none() | st.integers(1, 5))}
    cached = from_source(rows).cache(path, ragged=True, **sizes, compression=data.draw(st.sampled_from(["zstd", None])))
    assert_rows(cached, rows)
    assert_rows(from_zarr(path), rows)
    assert not verify(path).damages
    check_source(cached.source, pickled=False, loader=False)


def test_store_is_zarr_of_blocks_and_lengths(tmp_path: Path) -> None:
    rows = [{"tokens": tokenize(text), "label": np.int64(len(text))} for text in texts(30)]
    write_zarr(from_source(rows), tmp_path / "s", shard_rows=8, chunk_rows=4)
    group: Any = zarr.open_group(tmp_path / "s", mode="r")
    lengths = group["loadax.lengths"][:, 0]
    np.testing.assert_array_equal(group["label"][:], lengths)
    part = np.concatenate([row["tokens"] for row in rows[8:16]])
    np.testing.assert_array_equal(group["tokens"][1, : -(-len(part) // 4)].reshape(-1)[: len(part)], part)


def test_rows_of_one_shape_are_stored_as_before(tmp_path: Path) -> None:
    rows = [{"x": np.full(3, row)} for row in range(10)]
    from_source(rows).map(dict).cache(tmp_path / "s")
    assert json.loads((tmp_path / "s/loadax.json").read_text())["version"] == 1
    assert {path.name for path in (tmp_path / "s").iterdir()} == {"x", "zarr.json", "loadax.json"}


def test_lists_of_numbers_are_arrays(tmp_path: Path) -> None:
    cached = from_source(["ab", "abc", ""]).map(lambda text: {"tokens": list(text.encode())}).cache(tmp_path / "s")
    assert_rows(
        cached, [{"tokens": np.array([97, 98])}, {"tokens": np.array([97, 98, 99])}, {"tokens": np.empty(0, int)}]
    )


def test_each_text_is_tokenized_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    calls = [0]

    def counted(text: str) -> Any:
        calls[0] += 1
        return tokenize(text)

    for expected in (300, 0):  # of the first and the second program
        calls[0] = 0
        packed = from_source(texts()).map(counted).cache(tmp_path / "s", key="1").pack(16)
        rows = packed.read(range(len(packed)))
        assert calls == [expected]
        tokens = rows["tokens"].reshape(-1)[: sum(map(len, texts()))]
        np.testing.assert_array_equal(tokens, np.concatenate(list(map(tokenize, texts()))))
    assert not any("key=" in message for message in caplog.messages)


def test_pack_of_ragged_store_measures_no_document(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cached = from_source(texts()).map(tokenize).cache(tmp_path / "s")
    assert cached.source.traits.reads_parts
    monkeypatch.setattr("loadax.packing.documents.Documents.measure", None)
    whole = cached.pack(16, method="best_fit", long="cut")
    plain = from_source([tokenize(text) for text in texts()])
    monkeypatch.undo()
    assert_rows(whole, list(plain.pack(16, method="best_fit", long="cut")))


def test_leaves_of_different_lengths_are_packed_by_leaf(tmp_path: Path) -> None:
    pairs = from_source([{"inputs": tokenize(text), "targets": tokenize(text[::2])} for text in texts(50)])
    options: dict[str, Any] = {"seq_len": {"inputs": 64, "targets": 32}, "method": "best_fit"}
    assert_rows(pairs.cache(tmp_path / "s").pack(**options), list(pairs.pack(**options)))


def test_finished_cache_of_packs_reads_no_document(tmp_path: Path) -> None:
    calls = [0]

    def counted(text: str) -> Any:
        calls[0] += 1
        return tokenize(text)

    def packs(seq_len: int = 16, **options: Any) -> Dataset:
        calls[0] = 0
        return from_source(texts()).map(counted).pack(seq_len, **options).cache(tmp_path / "s", key="1")

    first = list(packs())
    assert calls[0] > 300
    again = packs()
    assert calls == [0]
    assert_rows(again, first)
    assert loadax.from_zarr(tmp_path / "s")[0].keys() == first[0].keys()
    for options in ({"seq_len": 8}, {"bos": 3}, {"method": "best_fit", "long": "cut"}):
        with pytest.raises(ArgumentError, match="was started with"):
            packs(**options)


def test_packs_are_planned_when_they_are_needed() -> None:
    calls = [0]

    def counted(text: str) -> Any:
        calls[0] += 1
        return tokenize(text)

    packed = from_source(texts(50)).map(counted).pack(16)
    assert calls == [0]
    sent = pickle.loads(cloudpickle.dumps(packed))
    planned = calls[0]
    assert planned > 50
    assert len(packed) == len(sent)
    assert calls == [planned]
    assert packed.order_facts == from_source([tokenize(text) for text in texts(50)]).map(np.array).pack(16).order_facts


def test_key_stands_for_all_functions(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Tokenizer:
        def __init__(self, add: int):
            self.add = add

        def __call__(self, text: str) -> Any:
            return tokenize(text) + self.add

    first = from_source(texts(50)).map(Tokenizer(1)).cache(tmp_path / "s")
    assert "pass key=, a text that you change with it" in caplog.text
    caplog.clear()
    kept = from_source(texts(50)).map(Tokenizer(1)).cache(tmp_path / "key", key="add 1")  # as it advises
    assert not caplog.messages
    np.testing.assert_array_equal(kept[3], first[3])
    again = from_source(texts(50)).map(Tokenizer(2)).cache(tmp_path / "key", key="add 1")
    np.testing.assert_array_equal(again[3], first[3])
    caplog.clear()
    from_source(texts(50)).map(Tokenizer(1)).pack(16).cache(tmp_path / "packs")
    assert "pass key=, a text that you change with it" in caplog.text
    with pytest.raises(ArgumentError, match=r"data\.functions = \[\"key\", \"add 1\"\], but now it is .*\"add 2\""):
        from_source(texts(50)).map(Tokenizer(2)).cache(tmp_path / "key", key="add 2")
    with pytest.raises(ArgumentError, match="key=3: pass a str that you change when the functions before cache"):
        from_source(texts(50)).cache(tmp_path / "s", key=3)  # type: ignore[arg-type]


def test_changed_texts_and_functions_are_refused(tmp_path: Path) -> None:
    from_source(texts(50)).map(tokenize).cache(tmp_path / "s")
    for changed in (
        from_source(texts(50)).map(lambda text: tokenize(text) + 1),
        from_source([*texts(49), "other"]).map(tokenize),
        from_source(texts(51)).map(tokenize),
    ):
        with pytest.raises(ArgumentError, match="was started with"):
            changed.cache(tmp_path / "s")
        over = changed.cache(tmp_path / "s", overwrite=True)
        assert_rows(over, list(changed))
        shutil.rmtree(tmp_path / "s")
        from_source(texts(50)).map(tokenize).cache(tmp_path / "s")


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 0, 1]])
def test_shares_write_the_bytes_of_one_writer(order: list[int], tmp_path: Path) -> None:
    data = from_source(texts()).map(tokenize)
    write_zarr(data, tmp_path / "one", shard_rows=16)
    for index in order:
        write_zarr(data, tmp_path / "shares", shard_rows=16, shard=(index, 3), workers=1 + index)
    assert files(tmp_path / "shares") == files(tmp_path / "one")


def test_stopped_cache_maps_finished_parts_once(tmp_path: Path) -> None:
    seen: list[str] = []
    switch = tmp_path / "stop"
    switch.touch()

    def counted(text: str) -> Any:
        if text == "stop" and switch.exists():
            raise RuntimeError("stopped")
        seen.append(text)
        return tokenize(text)

    given = [f"{row:03d}" + "x" * (row % 7) for row in range(300)]
    given[210] = "stop"  # not in the sample
    data = from_source(given).map(counted)
    with pytest.raises(RuntimeError, match="stopped") as caught:
        data.cache(tmp_path / "s", shard_rows=16)
    assert any("call cache() again to continue" in note for note in caught.value.__notes__)
    with pytest.raises(SourceError, match="the store is unfinished"):
        from_zarr(tmp_path / "s")
    begun = len(list((tmp_path / "s/loadax.values/c").iterdir()))
    assert begun >= 11
    switch.unlink()
    seen.clear()
    assert_rows(data.cache(tmp_path / "s", shard_rows=16), list(map(tokenize, given)))
    assert len(seen) <= 300 - begun * 16 + 32, "the parts that are missing, and the sample"
    write_zarr(data, tmp_path / "one", shard_rows=16)
    stored, one = files(tmp_path / "s"), files(tmp_path / "one")
    assert {name: stored[name] for name in one if name != "loadax.json"} == {
        name: content for name, content in one.items() if name != "loadax.json"
    }


def test_verify_finds_damaged_ragged_parts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"tokens": tokenize(text), "label": np.int64(row)} for row, text in enumerate(texts(100))]
    write_zarr(from_source(rows), tmp_path / "s", shard_rows=16)
    assert main(["verify", str(tmp_path / "s")]) == 0
    shutil.copytree(tmp_path / "s", tmp_path / "t")
    file = tmp_path / "s/tokens/c/2/0/0"
    content = bytearray(file.read_bytes())
    content[3] ^= 1
    file.write_bytes(content)
    (tmp_path / "s/tokens/c/6/0/0").unlink()
    damages = verify(tmp_path / "s").damages
    assert [(damage.array, damage.start, damage.stop) for damage in damages] == [
        ("tokens", 32, 48),
        ("tokens", 96, 100),
    ]
    with pytest.raises(SourceError, match=r"leaf 'tokens' at .*/s"):
        from_zarr(tmp_path / "s").read([33])
    lengths = next((tmp_path / "t/loadax.lengths/c").rglob("0"))
    lengths = lengths if lengths.is_file() else lengths / "0"
    lengths.write_bytes(lengths.read_bytes()[:-9])
    assert {damage.array for damage in verify(tmp_path / "t").damages} == {"loadax.lengths"}
    assert main(["verify", str(tmp_path / "t")]) == 1
    capsys.readouterr()
    assert main(["inspect", str(tmp_path / "t")]) in (0, 2)


def test_inspect_shows_ragged_leaves(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"tokens": tokenize(text), "label": np.int64(row)} for row, text in enumerate(texts(100))]
    write_zarr(from_source(rows), tmp_path / "s", shard_rows=16)
    assert main(["inspect", str(tmp_path / "s")]) == 0
    shown = capsys.readouterr().out
    assert f"ragged ({sum(map(len, texts(100))):,} entries)" in shown
    assert "3 arrays of 100 rows" in shown
    assert main(["inspect", str(tmp_path / "s"), "--columns", "tokens"]) == 0
    assert_rows(from_zarr(tmp_path / "s", ["tokens"]), [{"tokens": row["tokens"]} for row in rows])
    with pytest.raises(SourceError, match=r"has no zarr array 'x'; its arrays are \['label', 'tokens'\]"):
        from_zarr(tmp_path / "s", "x")


def test_missing_chunks_are_errors_or_zeros_as_the_error_advises(tmp_path: Path) -> None:
    rows = [{"a": np.arange(1, 2 + row % 3), "b": np.ones(2)} for row in range(30)]
    for name, read in (("a", [0, 0]), ("b", [1, 2]), ("loadax.lengths", [])):
        path = tmp_path / name
        write_zarr(from_source(rows), path)
        shutil.rmtree(path / name / "c")
        with pytest.raises(SourceError, match=r"is missing; .* or pass missing='fill'"):
            loadax.from_zarr(path)[1]
        filled = loadax.from_zarr(path, missing="fill")[1]
        assert filled["a"].tolist() == read
        assert filled["b"].tolist() == ([0, 0] if name == "b" else [1, 1])


def test_rows_of_another_form_are_named(tmp_path: Path) -> None:
    rows: list[Any] = [{"a": np.arange(row % 3), "b": np.arange(4)} for row in range(100)]
    rows[50] = {"a": np.arange(3.0), "b": np.arange(4)}
    with pytest.raises(
        LeafError, match=r"row 50: leaf \['a'\] is float64\[3\], in other rows it is int64\['any length'\]"
    ):
        from_source(rows).cache(tmp_path / "dtype")
    rows[50] = {"a": np.arange(3), "b": np.arange(5)}
    with pytest.raises(
        LeafError, match=r"row 50: leaf \['b'\] is int64\[5\], .*int64\[4\]; .* pass ragged=True if the"
    ):
        from_source(rows).cache(tmp_path / "shape")
    cached = from_source(rows).cache(tmp_path / "advised", ragged=True)  # as it advises
    assert_rows(cached, rows)
    equal = from_source([np.arange(3)] * 9)
    equal.cache(tmp_path / "equal", ragged=True)
    with pytest.raises(ArgumentError, match=r"version = 2, but now it is 1 \(1: rows of one shape, 2: ragged rows\)"):
        equal.cache(tmp_path / "equal")
    rows[50] = {"a": np.int64(3), "b": np.arange(4)}
    with pytest.raises(
        LeafError, match=r"row 50: leaf \['a'\] is int64\[\], in other rows it is int64\['any length'\]"
    ):
        from_source(rows).cache(tmp_path / "scalar")
    rows[50] = {"a": np.arange(3)}
    with pytest.raises(LeafError, match=r"row 50 has the leaves .*'a'.*, others have .*'b'"):
        from_source(rows).cache(tmp_path / "leaves")
    late = [np.arange(3 + (row == 50)) for row in range(100)]
    with pytest.raises(LeafError, match=r"rows are ragged") as caught:
        from_source(late).cache(tmp_path / "late")
    assert "pass ragged=True to store rows of any length, and overwrite=True if it was" in caught.value.__notes__[-1]
    assert_rows(from_source(late).cache(tmp_path / "late", ragged=True, overwrite=True), late)
    with pytest.raises(LeafError, match=r"\[3\], the rows before it had \[0\], \[1\], \[2\]; ") as caught:
        from_source(late).map(np.ndarray.tolist).cache(tmp_path / "lists")
    assert "pass ragged=True to store rows of any length, and overwrite=True if it was" in caught.value.__notes__[-1]
    lists = from_source(late).map(np.ndarray.tolist).cache(tmp_path / "lists", ragged=True, overwrite=True)
    assert_rows(lists, late)
    with pytest.raises(LeafTypeError, match=r"leaf \['name'\] is not numeric"):
        from_source([{"a": np.arange(row), "name": "x"} for row in range(9)]).cache(tmp_path / "text")
    with pytest.raises(ArgumentError, match="ragged='yes': pass True or False"):
        from_source(late).cache(tmp_path / "flag", ragged="yes")  # type: ignore[arg-type]


def test_older_versions_refuse_ragged_stores(tmp_path: Path) -> None:
    """They read only stores whose version is 1."""
    from_source(texts(20)).map(tokenize).cache(tmp_path / "s")
    assert json.loads((tmp_path / "s/loadax.json").read_text())["version"] == 2


def test_lengths_that_no_part_can_have_are_refused(tmp_path: Path) -> None:
    from_source(texts(20)).map(tokenize).cache(tmp_path / "s")
    group: Any = zarr.open_group(tmp_path / "s")
    group["loadax.lengths"][3, 0] = -1
    with pytest.raises(SourceError, match=r"loadax\.lengths has lengths that no part can have; write the store again"):
        from_zarr(tmp_path / "s")


def test_ragged_rows_are_padded_and_located(tmp_path: Path) -> None:
    cached = from_source(texts(20)).map(tokenize).cache(tmp_path / "s", chunk_rows=4, shard_rows=8)
    loader = loadax.Dataloader(cached.pad(64), 8)
    np.testing.assert_array_equal(loader.host_batch(1)["length"], [len(text) for text in texts(20)[8:16]])
    row = next(row for row, text in enumerate(texts(20)) if row >= 8 and text)
    assert cached.source.locate(row)[0].file == str(tmp_path / "s/loadax.values/c/1/0/0")


def test_variables_of_a_ragged_store(tmp_path: Path) -> None:
    from_source([{"a": np.arange(row % 3), "b": np.arange(row % 3)} for row in range(9)]).cache(tmp_path / "s")
    assert from_zarr(tmp_path / "s", variables="b")[2]["b"].tolist() == [0, 1]
    with pytest.raises(SourceError, match=r"s is asked for no array by variables=\[\]; its arrays are \['a', 'b'\]"):
        from_zarr(tmp_path / "s", variables=[])
    with pytest.raises(SourceError, match=r"s has no zarr array 'c'; its arrays are \['a', 'b'\]"):
        from_zarr(tmp_path / "s", variables=["c"])
