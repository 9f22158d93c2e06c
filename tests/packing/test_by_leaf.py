"""`pack` with a length for each leaf: against a slow packer, in runs, with an index, and what is refused."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from loadax import Dataloader, Dataset, from_documents, from_source
from loadax.errors import ArgumentError, LeafError
from loadax.testing import check_source
from tests.limits import examples
from tests.packing.slow_packing import Row, pairs, slowly

SEQ_LENS = {"inputs": 9, "targets": 5}


def some_pairs(count: int = 60) -> list[Row]:
    random = np.random.default_rng(0)
    return pairs(list(zip(random.integers(0, 10, count).tolist(), random.integers(0, 6, count).tolist(), strict=True)))


def assert_rows(packed: Dataset, expected: list[Row]) -> None:
    assert len(packed) == len(expected)
    found = packed.read(range(len(packed)))
    assert sorted(found) == sorted(expected[0])
    for name in found:
        np.testing.assert_array_equal(found[name], np.stack([row[name] for row in expected]), err_msg=name)


@settings(max_examples=examples(40))
@given(
    sizes=st.lists(st.tuples(st.integers(0, 11), st.integers(0, 6)), min_size=1, max_size=25),
    method=st.sampled_from(["best_fit", "first_fit"]),
    window=st.sampled_from([1, 7, 100]),
    most=st.sampled_from([None, 1, 2]),
    align=st.sampled_from([1, 3]),
    bos=st.sampled_from([None, 7]),
)
def test_rows_are_those_of_a_slow_packer(
    sizes: list[tuple[int, int]], method: Any, window: int, most: int | None, align: int, bos: int | None
) -> None:
    documents, seq_lens = pairs([(4, 4), *sizes]), {"inputs": 9, "targets": 6}
    packed = from_source(documents).pack(
        seq_lens,
        method=method,
        long="drop",
        window=window,
        most_documents=most,
        value=-1,
        align=align,
        bos=bos,
    )
    assert_rows(packed, slowly(documents, seq_lens, method, window, most, align, bos))


@pytest.mark.processes
def test_a_packed_source_keeps_the_contract() -> None:
    packed = from_source(some_pairs()).pack(SEQ_LENS, method="best_fit")
    check_source(packed.source)
    assert {name: leaf.dtype for name, leaf in packed.spec.items()} == {
        "inputs": np.int64,
        "targets": np.int32,
        **{f"{name}_{added}": np.int32 for name in SEQ_LENS for added in ("segment_ids", "positions")},
    }
    assert re.match(
        r"60 documents packed by best_fit into rows of .*, full: inputs \d+\.\d%, targets \d+\.\d%", repr(packed.source)
    )


def test_documents_of_a_row_are_told() -> None:
    documents = pairs([(3, 1), (9, 5), (2, 0), (4, 4)])
    packed = from_source(documents)[::-1].pack(SEQ_LENS, method="first_fit")
    told = [packed.source.documents(row) for row in range(len(packed))]
    assert [[(each.row, each.lengths, each.columns) for each in row or []] for row in told] == [
        [
            (3, {"inputs": 4, "targets": 4}, {"inputs": 0, "targets": 0}),
            (2, {"inputs": 2, "targets": 0}, {"inputs": 4, "targets": 4}),
            (0, {"inputs": 3, "targets": 1}, {"inputs": 6, "targets": 4}),
        ],
        [(1, {"inputs": 9, "targets": 5}, {"inputs": 0, "targets": 0})],
    ]
    record = Dataloader(packed, 8, remainder="pad").trace(0)[0].to_dict()
    assert record["documents"][1] == {
        "row": 2,
        "lengths": {"inputs": 2, "targets": 0},
        "columns": {"inputs": 4, "targets": 4},
    }


def test_an_index_saves_the_reading(tmp_path: Path) -> None:
    documents, reads = some_pairs(), []

    class Told:
        def __len__(self) -> int:
            return len(documents)

        def __getitem__(self, row: int) -> Row:
            reads.append(row)
            return documents[row]

    def packed() -> Dataset:
        return from_source(Told()).pack(SEQ_LENS, method="best_fit", index=tmp_path / "index", value=-1)

    expected = slowly(documents, SEQ_LENS, "best_fit", 4096, None)
    assert_rows(packed(), expected)
    reads.clear()
    again = packed()
    assert len(set(reads)) < len(documents)  # a sample, to know the data again
    assert_rows(again, expected)
    bounds = next((tmp_path / "index").glob("*by-leaf-best_fit*bounds*.npy"))
    np.save(bounds, np.load(bounds)[::-1])
    assert_rows(packed(), expected)


def test_flat_documents_are_read_whole() -> None:
    tokens = {"inputs": np.arange(10), "targets": np.arange(10, 20)}
    packed = from_documents(tokens, [0, 4, 7, 10]).pack({"inputs": 7, "targets": 8}, method="first_fit")
    assert packed.read([0, 1])["targets"].tolist() == [[10, 11, 12, 13, 14, 15, 16, 0], [17, 18, 19, 0, 0, 0, 0, 0]]


def test_a_document_that_changes_is_an_error() -> None:
    documents = pairs([(3, 1), (4, 4)])
    packed = from_source(documents).pack(SEQ_LENS, method="first_fit")
    len(packed)
    documents[1]["targets"] = documents[1]["targets"][:2]
    with pytest.raises(LeafError, match=r"row 1 has length 4, 2, but had length 4, 4 when it was packed"):
        packed.read([0])


REFUSED: list[tuple[Any, dict[str, Any], str]] = [
    ({}, {}, r"seq_len=\{\}: pass a length for each leaf"),
    ({"inputs": 1 << 31}, {}, r"seq_len\['inputs'\]=2147483648: pass less than 2\^31"),
    (
        SEQ_LENS,
        {"method": "split"},
        r"method='split': pass 'best_fit' or 'first_fit': with a length for each leaf, doc",
    ),
    (SEQ_LENS, {"long": "cut"}, r"long='cut': pass 'error' or 'drop': with a length for each leaf, documents are"),
    (SEQ_LENS, {"align": 4}, r"align=4 must divide seq_len\['inputs'\]=9; pass a divisor"),
    (
        SEQ_LENS,
        {"bos": {"x": 1}},
        r"bos has the key 'x', which is not a leaf of the documents: \['inputs', 'targets'\]",
    ),
    (
        {"inputs": 9},
        {},
        r"leaf 'targets' has one value a document; pass the most documents of a row, .* name it in seq_len, or drop it",
    ),
    (
        {**SEQ_LENS, "x": 1},
        {},
        r"names 'x', which is not a leaf of the documents: \['inputs', 'targets'\]; leave it out",
    ),
    (SEQ_LENS, {"value": {"target": 1}}, r"value has the key 'target', which is not a leaf of the documents: \['inp"),
    (SEQ_LENS, {"value": 0.5}, r"value=0\.5 does not fit leaf 'inputs', which is int64"),
    (
        {"inputs": 9, "targets": 3},
        {},
        r"row 1 is a document whose leaf 'targets' has length 4, longer than seq_len=\{'inputs': 9, 'targets': 3\}, as",
    ),
    ({"inputs": 1, "targets": 1}, {"long": "drop"}, r"long='drop': none of 2 documents has entries and fits seq_len="),
]


@pytest.mark.parametrize(("seq_len", "options", "message"), REFUSED)
def test_arguments_that_are_refused(seq_len: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        len(from_source(pairs([(3, 1), (4, 4)])).pack(seq_len, **{"method": "best_fit", **options}))


def test_documents_that_are_refused() -> None:
    with pytest.raises(ArgumentError, match="none of 2 documents has an entry"):
        len(from_source(pairs([(0, 0), (0, 0)])).pack(SEQ_LENS, method="best_fit"))
    nested = [{"inputs": np.arange(3), "more": {"targets": np.arange(3)}}]
    assert len(from_source(nested).pack({"inputs": 4, "more.targets": 4}, method="best_fit")) == 1
    with pytest.raises(
        ArgumentError, match=r"names 'more', which is not a leaf of the documents: \['inputs', 'more.targets'\]"
    ):
        len(from_source(nested).pack({"inputs": 4, "more": 4}, method="best_fit"))
    taken = [{"inputs": np.arange(3), "inputs_positions": np.arange(3)}]
    with pytest.raises(ArgumentError, match="adds 'inputs_positions', which documents have; rename or drop"):
        len(from_source(taken).pack({"inputs": 4, "inputs_positions": 4}, method="best_fit"))
