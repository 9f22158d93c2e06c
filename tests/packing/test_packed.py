"""Packed rows and documents as sources.

Against a slow oracle, in whole rows and in columns, from memory, files and a server.
"""

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from loadax import Dataset, from_documents, from_source
from loadax.errors import ArgumentError, LeafError, SourceError
from loadax.protocols import Location, Visits
from loadax.testing import check_source
from tests.laws.chain_verbs import Packing, packed_row, packed_rows
from tests.servers.faults import FaultProxy
from tests.sources.token_corpora import write_npy, write_pair

pytest_plugins = ["tests.servers.fixtures"]

METHODS: tuple[Any, ...] = ("split", "best_fit", "first_fit")
Array = NDArray[Any]


def documents(count: int = 40, longest: int = 9, seed: int = 0, dtype: Any = np.uint16) -> list[Array]:
    """Some are empty; every token tells which one it is."""
    lengths = np.random.default_rng(seed).integers(0, longest + 1, count)
    return [(100 * number + np.arange(length) + 1).astype(dtype) for number, length in enumerate(lengths)]


def assert_equal(found: dict[str, Array], expected: dict[str, Array]) -> None:
    assert sorted(found) == sorted(expected)
    for name, leaf in expected.items():
        assert found[name].dtype == leaf.dtype, name
        np.testing.assert_array_equal(found[name], leaf, err_msg=name)


def assert_packed(packed: Dataset, given: list[Array], seq_len: int, method: Any) -> None:
    packing = Packing(seq_len, method, "error", None)
    documents = [{"tokens": each} for each in given]
    rows = [
        packed_row(documents, parts, packing, documents[0]) for parts in packed_rows(list(map(len, given)), packing)
    ]
    expected = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
    assert_equal(packed.read(range(len(packed))), expected)
    some = np.array([len(packed) - 1, 0, 0])
    assert_equal(packed.read(some), {name: leaf[some] for name, leaf in expected.items()})


def flat(given: list[Array]) -> tuple[Array, Array]:
    return np.concatenate(given), np.cumsum([0, *map(len, given)])


def in_memory(given: list[Array], folder: Path) -> Dataset:
    return from_documents(*flat(given))


def as_objects(given: list[Array], folder: Path) -> Dataset:
    return from_source(given)


def short(tokens: Any) -> Array:
    return np.array(tokens, np.uint16)


def as_lists(given: list[Array], folder: Path) -> Dataset:
    return from_source([each.tolist() for each in given]).map(short)


def as_pair(given: list[Array], folder: Path) -> Dataset:
    return from_documents(write_pair(folder / "x.bin", [[each] for each in given]))


def as_pairs(given: list[Array], folder: Path) -> Dataset:
    """In three files, each document as two sequences."""
    folder = folder / "pairs"
    folder.mkdir()
    for number, part in enumerate((given[:7], given[7:8], given[8:])):
        write_pair(folder / f"{number}.bin", [[each[:2], each[2:]] for each in part])
    return from_documents(folder)


def as_files(given: list[Array], folder: Path) -> Dataset:
    tokens, offsets = flat(given)
    tokens.astype(">u2").tofile(folder / "big.bin")
    return from_documents(folder / "big.bin", write_npy(folder / "offsets.npy", offsets), dtype=">u2")


FORMS: tuple[Callable[[list[Array], Path], Dataset], ...] = (
    in_memory,
    as_objects,
    as_lists,
    as_pair,
    as_pairs,
    as_files,
)


@pytest.mark.processes
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("form", FORMS)
def test_rows_are_those_of_the_oracle(form: Any, method: Any, tmp_path: Path) -> None:
    given = documents()
    packed = form(given, tmp_path).pack(10, method=method)
    assert_packed(packed, given, 10, method)
    check_source(packed.source)


@pytest.mark.parametrize("method", METHODS)
def test_columns_are_read_alone(method: Any, tmp_path: Path) -> None:
    packed = as_pairs(documents(), tmp_path).pack(10, method=method)
    source: Any = packed.source
    whole = source.read(np.arange(len(packed)))
    rows = np.array([3, 0, 5, 5])
    for low, high in ((0, 10), (0, 5), (5, 10), (4, 5), (9, 10)):
        boxes = [((low, high),), None, ((0, 3),), ((low, high),)]
        # Filled with what must go, and one of them a view that has gaps.
        out: list[Any] = [
            np.full((4, high - low), 1, np.bool_),
            None,
            np.full((4, 3), 9, np.int32),
            np.full((4, 20), 9, np.uint16),
        ]
        out[3] = out[3][:, : 2 * (high - low) : 2]
        source.read_into(rows, boxes, out)
        np.testing.assert_array_equal(out[0], whole["loss_mask"][rows, low:high])
        np.testing.assert_array_equal(out[2], whole["segment_ids"][rows, 0:3])
        np.testing.assert_array_equal(out[3], whole["tokens"][rows, low:high])
    only_added: list[Any] = [None, np.empty((4, 10), np.int32), None, None]
    source.read_into(rows, [None, ((0, 10),), None, None], only_added)
    np.testing.assert_array_equal(only_added[1], whole["positions"][rows])
    assert not as_objects(documents(), tmp_path).pack(10).source.traits.reads_columns


def test_documents_of_several_leaves() -> None:
    tokens, offsets = flat(documents())
    tree = {"tokens": tokens, "meta": {"weight": np.arange(len(tokens), dtype=np.float32)}}
    packed = from_documents(tree, offsets).pack(10, method="best_fit")
    rows = packed.read(range(len(packed)))
    assert sorted(rows) == ["loss_mask", "meta", "positions", "segment_ids", "tokens"]
    there = rows["segment_ids"] > 0
    np.testing.assert_array_equal(tokens[rows["meta"]["weight"][there].astype(int)], rows["tokens"][there])
    examples = [from_documents(tree, offsets)[number] for number in range(len(offsets) - 1)]
    same = from_source(examples).pack(10, method="best_fit").read(range(len(packed)))
    assert_equal(same | same.pop("meta"), rows | rows.pop("meta"))


def test_what_a_packed_row_consists_of(tmp_path: Path) -> None:
    given = [np.arange(3, dtype=np.uint16), np.arange(0, dtype=np.uint16), np.arange(6, dtype=np.uint16)]
    data = from_documents(write_pair(tmp_path / "x.bin", [[each] for each in given]))
    source: Any = data[::-1].pack(5).source
    assert [tuple(part) for part in source.documents(0)] == [(2, 0, 5, 0)]
    assert [tuple(part) for part in source.documents(1)] == [(2, 5, 1, 0), (0, 0, 3, 1)]
    assert source.locate(1) == [Location(str(tmp_path / "x.bin"), 6, 17), Location(str(tmp_path / "x.bin"), 0, 5)]
    assert (from_source(given).pack(5).source).locate(0) == []


def visits(rows: list[int]) -> Visits:
    return Visits(np.array(rows, np.int64), np.zeros(len(rows), np.int64))


def test_documents_are_looked_at_one_by_one(tmp_path: Path) -> None:
    given = documents()
    for form in (in_memory, as_pair, as_pairs, as_files):
        data = form(given, tmp_path)
        assert len(data) == len(given)
        for number, each in enumerate(given):
            assert data[number].tolist() == each.tolist()
        assert data[-1].tolist() == given[-1].tolist()
        assert data.map(lambda each: each * 2)[4].tolist() == (given[4] * 2).tolist()
        copy = pickle.loads(pickle.dumps(data.source))
        assert copy.lengths(np.array([3, 1])).tolist() == [len(given[3]), len(given[1])]
        assert copy.read_examples(visits([])) == []
        assert [each.tolist() for each in copy.read_examples(visits([3, 1]))] == [given[3].tolist(), given[1].tolist()]
    assert "documents in" in repr(from_documents(*flat(given)))
    assert from_documents(*flat(given)).source.locate(0) == []


def test_an_array_that_is_mapped_or_big_endian(tmp_path: Path) -> None:
    tokens, offsets = flat(documents())
    mapped = np.load(write_npy(tmp_path / "x.npy", tokens), mmap_mode="r")
    for each in (mapped, tokens.astype(">u2")):
        assert from_documents(each, offsets)[5].tolist() == documents()[5].tolist()
        assert_packed(from_documents(each, offsets).pack(7), documents(), 7, "split")


@pytest.mark.parametrize("cached", [False, True])
def test_remote_documents_are_the_local_ones(cached: bool, tmp_path: Path, http_proxy: FaultProxy) -> None:
    given = documents(seed=3)
    as_pairs(given, tmp_path)
    write_npy(tmp_path / "offsets.npy", flat(given)[1])
    write_npy(tmp_path / "flat.npy", flat(given)[0])
    base = f"{http_proxy.url}/pairs"
    cache = tmp_path / "cache" if cached else None
    pairs = from_documents([f"{base}/{number}.bin" for number in range(3)], cache=cache)
    arrays = from_documents(f"{http_proxy.url}/flat.npy", f"{http_proxy.url}/offsets.npy", cache=cache)
    for data in (pairs, arrays):
        assert data[11].tolist() == given[11].tolist()
        for method in METHODS:
            assert_packed(data.pack(10, method=method), given, 10, method)
    source: Any = pairs.source
    assert source.locate(0)[0][0] == f"{base}/0.bin"
    assert source.traits.concurrent_reads == 4
    assert pairs.pack(10).source.traits.concurrent_reads == 4


TOKENS = np.arange(10, dtype=np.uint16)


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        (
            lambda _: (TOKENS,),
            ArgumentError,
            "offsets=None, but ndarray data has no document boundaries; pass offsets=",
        ),
        (lambda _: ([TOKENS],), ArgumentError, "offsets=None, but list data has no document boundaries"),
        (
            lambda _: (TOKENS, [0.0, 10.0]),
            ArgumentError,
            r"offsets are float64\[2\]; pass ints: the first entry of each document",
        ),
        (lambda _: (TOKENS, [0]), ArgumentError, r"offsets are int64\[1\]"),
        (lambda _: (TOKENS, [[0, 10]]), ArgumentError, r"offsets are int64\[1, 2\]"),
        (
            lambda _: (TOKENS, [0, 5]),
            SourceError,
            "the offsets go from 0 to 5, but the data has 10 entries; pass offsets that ascend",
        ),
        (lambda _: (TOKENS, [2, 10]), SourceError, "the offsets go from 2 to 10, but the data has 10"),
        (
            lambda _: (TOKENS, [0, 7, 3, 10]),
            SourceError,
            "the offsets go from 0 to 10 with 3 after 7, but the data has 10",
        ),
        (lambda _: (TOKENS, [0, 2**63 - 1, -2, 10]), SourceError, f"with -2 after {2**63 - 1}, but the data has 10"),
        (
            lambda _: (TOKENS.reshape(2, 5), [0, 10]),
            ArgumentError,
            r"data is uint16\[2, 5\]; pass a flat array",
        ),
        (lambda _: ({"a": 3}, [0, 10]), ArgumentError, "data is an int; pass a flat array, its path, or a dict"),
        (
            lambda _: ({"a": TOKENS, "b": TOKENS[:3]}, [0, 10]),
            SourceError,
            r"the leaves have different numbers of rows \(\['a'\]: 10, \['b'\]: 3\)",
        ),
        (
            lambda folder: (write_npy(folder / "x.npy", TOKENS),),
            SourceError,
            r"x\.npy: there is no \.idx file next to it with the document offsets; .* pass offsets=",
        ),
    ],
)
def test_documents_that_can_not_be_opened(arguments: Any, kind: type[Exception], message: str, tmp_path: Path) -> None:
    with pytest.raises(kind, match=message):
        from_documents(*arguments(tmp_path))


def test_documents_are_no_rows() -> None:
    data = from_documents(*flat(documents()))
    with pytest.raises(
        SourceError,
        match=r"2 requested documents have different lengths .*; pack them .* with \.pack\(seq_len\), pad them",
    ):
        data.read([0, 1])
    assert data.spec.shape == (len(documents()[0]),)  # of one, as it is found for any data that don't say


def test_documents_that_are_equally_long_are_rows() -> None:
    data = from_documents({"tokens": np.arange(9), "weights": np.arange(9) / 2}, [0, 2, 2, 4, 7, 9])
    pairs = data.filter(lambda document: len(document["tokens"]) == 2)
    assert pairs.read([2, 0, 1])["tokens"].tolist() == [[7, 8], [0, 1], [2, 3]]
    assert pairs.read([])["weights"].shape == (0, 2)
    check_source(pairs, pickled=False)
    with pytest.raises(
        LeafError, match=r"^row 3: leaf \['tokens'\] is int64\[3\], expected int64\[2\]; rows are ragged"
    ):
        data.read([3])


ONE = np.arange(3)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            [ONE, np.zeros((4, 2))],
            r"row 1: leaf \['tokens'\] has entries of float64\[2\], in other rows entries of int64\[\]; cast it",
        ),
        ([{"a": 2, "b": 3}], r"row 0 has only numbers; a document needs an array"),
        ([{"a": ONE, "b": "text"}], r"row 0: leaf \['b'\] is str 'text', not an array of numbers"),
        ([{"a": [ONE.tolist(), ["x"]]}], r"row 0: leaf \['a'\] is list \[\[.*\], \['x'\]\], not an array of numbers"),
        (
            [{"a": ONE, "b": ONE}, {"a": ONE, "b": ONE[:2]}],
            r"row 1 has leaves of different lengths \(\['a'\]: 3, \['b'\]: 2\); make .*, or pass seq_len as a dict",
        ),
        ([{"a": ONE}, {"b": ONE}], r"row 1 is a document with the leaves \[\"\['b'\]\"\], others have \[\"\['a'\]\"\]"),
        ([ONE, ONE * 1.5], r"row 1: leaf \['tokens'\] has entries of float64\[\], in other rows entries of int64"),
        (
            ["ab", "c"],
            r"row 0 is str 'ab'; a document is .*; make one in a map before: \.map\(tokenize\)\.pack",
        ),
        (
            [(ONE, ONE)],
            r"row 0 is tuple \(array\(\[0, 1, 2\]\), array\(\[0, 1, 2\]\)\); a document is an array of entries",
        ),
        ([3, 4], r"row 0 is int64 3; a document is an array of entries, or a dict of these"),
        ([{}], "row 0 is a document without leaves; give it at least one array"),
    ],
)
def test_what_is_no_document(given: list[Any], message: str) -> None:
    with pytest.raises(LeafError, match=message):
        len(from_source(given).pack(4))


def test_leaves_that_pack_adds_by_itself() -> None:
    for name in ("segment_ids", "positions"):
        with pytest.raises(ArgumentError, match=f"adds '{name}', which documents have; rename"):
            len(from_source([{"tokens": ONE, name: ONE}]).pack(4))


@pytest.mark.parametrize("opened", ["flat", "one by one"])
@pytest.mark.parametrize("method", METHODS)
def test_the_loss_mask_of_documents_is_part_of_the_rows(method: Any, opened: str) -> None:
    given = documents()
    masks = [np.arange(len(document)) % 3 != 1 for document in given]
    tokens, bounds = flat(given)
    if opened == "flat":
        data = from_documents({"tokens": tokens, "loss_mask": np.concatenate(masks)}, bounds)
    else:
        data = from_source(
            [{"tokens": document, "loss_mask": mask} for document, mask in zip(given, masks, strict=True)]
        )
    packed = data.pack(16, method=method)
    without = from_documents(tokens, bounds).pack(16, method=method)
    rows, expected = packed.read(range(len(packed))), without.read(range(len(packed)))
    allowed = {
        token: bool(mask)
        for each, own in zip(given, masks, strict=True)
        for token, mask in zip(each.tolist(), own, strict=True)
    }
    expected["loss_mask"] &= np.vectorize(lambda token: allowed.get(token, False))(expected["tokens"])
    assert_equal(rows, expected)
    assert rows["loss_mask"].any()
    out = np.zeros((len(packed), 5), bool)
    packed.source.read_into(np.arange(len(packed)), [((3, 8),), None, None, None], [out, None, None, None])
    np.testing.assert_array_equal(out, expected["loss_mask"][:, 3:8])
    check_source(packed, pickled=False, loader=False)


def test_the_loss_mask_of_a_prompt() -> None:
    chat = [{"tokens": np.array([5, 6, 7, 8]), "loss_mask": np.array([False, False, True, True])}]
    assert from_source(chat).pack(6)[0]["loss_mask"].tolist() == [False, False, True, True, False, False]
    for wrong in (ONE, {"nested": ONE}):
        with pytest.raises(ArgumentError, match=r"leaf 'loss_mask' is not an array of bools, .*; cast it in a map, or"):
            len(from_source([{"tokens": ONE, "loss_mask": wrong}]).pack(4))
    cast = from_source([{"tokens": ONE, "loss_mask": ONE}]).map(lambda row: {**row, "loss_mask": row["loss_mask"] > 0})
    assert cast.pack(4)[0]["loss_mask"].tolist() == [False, True, True, False]


def test_the_value_of_padding() -> None:
    given = [{"tokens": ONE + 1, "labels": ONE - 1}, {"tokens": ONE + 5, "labels": ONE}]
    packed = from_source(given).pack(8, method="best_fit", value={"labels": -100})
    assert packed[0]["labels"].tolist() == [-1, 0, 1, 0, 1, 2, -100, -100]
    assert packed[0]["tokens"].tolist() == [1, 2, 3, 5, 6, 7, 0, 0]
    assert packed[0]["segment_ids"].tolist() == [1, 1, 1, 2, 2, 2, 0, 0]
    both = from_source(given).pack(8, method="best_fit", value=-1)
    assert both[0]["tokens"][-2:].tolist() == both[0]["labels"][-2:].tolist() == [-1, -1]
    same = from_source(given).pack(8, method="best_fit", value=np.int64(-1))
    assert same.order_facts == both.order_facts != packed.order_facts
    assert from_source(given).pack(8, value=0).order_facts == from_source(given).pack(8).order_facts
    for value, match in (
        (0.5, r"value=0\.5 does not fit leaf 'labels', which is int64"),
        ({"label": 1}, r"value has the key 'label', which is not a leaf of the documents: \['labels', 'tokens'\]"),
        ({"positions": 1}, r"value has the key 'positions'"),
        ("x", r"value='x': pass a number"),
    ):
        with pytest.raises(ArgumentError, match=match):
            len(from_source(given).pack(8, value=value))


def test_documents_begin_at_multiples_and_are_not_too_many() -> None:
    given = [ONE + 10 * number for number in range(1, 7)]
    aligned = from_source(given).pack(8, method="best_fit", align=4)
    assert aligned.read(range(3))["tokens"].tolist()[0] == [10, 11, 12, 0, 20, 21, 22, 0]
    assert aligned.read(range(3))["segment_ids"].tolist()[0] == [1, 1, 1, 0, 2, 2, 2, 0]
    few: Any = from_source(given).pack(16, method="first_fit", most_documents=2)
    assert (few.read(range(len(few)))["segment_ids"].max(axis=1) == 2).all()
    chosen: list[Any] = [{}, {"align": 4}, {"most_documents": 4}, {"align": 4, "most_documents": 4}]
    described = [from_source(given).pack(16, method="first_fit", **options).order_facts for options in chosen]
    assert len({str(each) for each in described}) == 4
    refused: list[tuple[Any, str]] = [
        ({"align": 3}, r"align=3 must divide seq_len=16; pass a divisor"),
        ({"method": "split", "align": 4}, r"align=4 is for best_fit and first_fit: method='split' fills every row"),
        ({"method": "split", "most_documents": 4}, r"most_documents=4 is for best_fit and first_fit"),
    ]
    for options, match in refused:
        with pytest.raises(ArgumentError, match=match):
            len(from_source(given).pack(16, **{"method": "best_fit", **options}))


def test_options_share_an_index(tmp_path: Path) -> None:
    given = documents()
    chosen: list[Any] = [{}, {"align": 4}, {"most_documents": 2}]
    for options in chosen:
        plain = from_source(given).pack(16, method="best_fit", **options)
        for _ in range(2):
            kept = from_source(given).pack(16, method="best_fit", index=tmp_path / "index", **options)
            assert_equal(kept.read(range(len(kept))), plain.read(range(len(plain))))


def test_empty_lists_have_no_dtype_to_speak_of() -> None:
    packed = from_source([[], [1, 2], [], [3]]).pack(2)
    assert packed.read(range(2))["tokens"].tolist() == [[1, 2], [3, 0]]
    assert packed.spec["tokens"].dtype == np.int64
