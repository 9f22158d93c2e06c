"""`pack(targets="shift")` and `pack(add=)`: every pair of a token and the next one of its document is trained once."""

from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from jax.sharding import PartitionSpec as P

from loadax import Dataloader, Dataset, from_documents, from_source, from_stream
from loadax.errors import ArgumentError
from tests.laws.chain_verbs import Packing, packed_rows
from tests.limits import examples
from tests.packing.stream_packing import documents_of, lane_parts

Row = dict[str, Any]
ADDED = ("segment_ids", "positions", "loss_mask")


def pairs_of(document: Any, bos: int | None) -> list[tuple[int, int]]:
    whole = [*([bos] if bos is not None and len(document) else []), *np.asarray(document).tolist()]
    return list(pairwise(whole))


def slow_row(documents: list[Any], parts: list[Any], packing: Packing, bos: int | None) -> Row:
    """One row, pair by pair."""
    names = ("inputs", "targets", "segment_ids", "positions", "loss_mask")
    columns: dict[str, list[Any]] = {name: [] for name in names}
    for number, (document, start, count) in enumerate(parts, 1):
        for entry, pair in enumerate(pairs_of(documents[document], bos)[start : start + count]):
            for name, value in zip(names, (*pair, number, entry, True), strict=True):
                columns[name].append(value)
        for _ in range(-count % packing.align):
            for name, value in zip(names, (packing.value, packing.value, 0, 0, False), strict=True):
                columns[name].append(value)
    blank = {"inputs": packing.value, "targets": packing.value}
    return {
        name: np.array([*values, *[blank.get(name, 0)] * (packing.seq_len - len(values))])
        for name, values in columns.items()
    }


def assert_rows(found: Any, wanted: list[Row]) -> None:
    assert sorted(found) == sorted(wanted[0])
    for name, leaf in found.items():
        np.testing.assert_array_equal(leaf, np.stack([row[name] for row in wanted]), err_msg=name)


def opened(documents: list[Any], form: str) -> Dataset:
    if form == "flat":
        return from_documents(np.concatenate(documents), np.cumsum([0, *map(len, documents)]))
    return from_source(documents)


PACKINGS = st.builds(
    Packing,
    st.sampled_from([1, 4, 6]),
    st.sampled_from(["split", "best_fit", "first_fit"]),
    st.just("cut"),
    st.sampled_from([None, 3]),
    st.sampled_from([1, 2]),
    st.sampled_from([None, 2]),
    st.sampled_from([0, -1]),
    st.just("shift"),
    st.just(ADDED),
).map(
    lambda packing: (
        packing._replace(align=1 if packing.seq_len == 1 else packing.align)
        if packing.method != "split"
        else packing._replace(long="error", window=None, align=1, most_documents=None)
    )
)


@settings(max_examples=examples(60))
@given(
    lengths=st.lists(st.integers(0, 9), min_size=1, max_size=12).filter(lambda lengths: max(lengths) > 1),
    packing=PACKINGS,
    bos=st.sampled_from([None, 7]),
    form=st.sampled_from(["flat", "listed"]),
)
def test_every_document_trains_all_targets_but_the_first(
    lengths: list[int], packing: Packing, bos: int | None, form: str
) -> None:
    documents = documents_of(lengths)
    packed = opened(documents, form).pack(**packing._asdict(), bos=bos)
    pairs = [pairs_of(document, bos) for document in documents]
    parts = packed_rows(list(map(len, pairs)), packing)
    found = packed.read(range(len(packed)))
    assert_rows(found, [slow_row(documents, row, packing, bos) for row in parts])
    mask = found["loss_mask"]
    trained = Counter(zip(found["inputs"][mask].tolist(), found["targets"][mask].tolist(), strict=True))
    assert trained == Counter(pair for document in pairs for pair in document)
    half = packing.seq_len // 2
    if half and form == "flat":
        boxes = [((half, packing.seq_len),)] * len(found)
        out = [np.full((len(packed), packing.seq_len - half), 9, leaf.dtype) for _, leaf in sorted(found.items())]
        packed.source.read_into(np.arange(len(packed)), boxes, out)
        for name, leaf in zip(sorted(found), out, strict=True):
            np.testing.assert_array_equal(leaf, found[name][:, half:], err_msg=name)


@settings(max_examples=examples(30))
@given(
    lengths=st.lists(st.integers(0, 9), min_size=1, max_size=12).filter(lambda lengths: max(lengths) > 1),
    packing=PACKINGS,
    bos=st.sampled_from([None, 7]),
    verb=st.sampled_from(["from_stream", "to_stream"]),
)
def test_streams_train_the_same_targets(lengths: list[int], packing: Packing, bos: int | None, verb: str) -> None:
    documents = documents_of(lengths)
    packing = packing._replace(align=1, most_documents=None)
    stream = (
        from_source(documents).to_stream(lanes=1)
        if verb == "to_stream"
        else from_stream(lambda lane, lanes: iter(documents), lanes=1)
    )
    packed = stream.pack(**packing._asdict(), bos=bos)
    wanted = [
        slow_row(documents, row, packing, bos)
        for row in lane_parts([len(pairs_of(document, bos)) for document in documents], packing)
    ]
    with Dataloader(packed, 1, num_workers=0, shard_index=0, shard_count=1).host_batches() as batches:
        found = list(batches)
    assert_rows({name: np.concatenate([row[name] for row in found]) for name in found[0]}, wanted)


def test_shifted_stream_resumes_in_a_document() -> None:
    documents = documents_of([5, 1, 9, 0, 7, 3])
    packed = from_source(documents).to_stream(lanes=1).pack(4, targets="shift", bos=1)
    loader = Dataloader(packed, 1, num_workers=0, shard_index=0, shard_count=1)
    with loader.host_batches() as batches:
        states, wanted = [batches.get_state()], []
        for batch in batches:
            wanted.append(batch)
            states.append(batches.get_state())
    for step, state in enumerate(states):
        with loader.host_batches(state) as batches:
            np.testing.assert_equal(list(batches), wanted[step:])


def test_other_leaves_stay_with_inputs_and_a_loss_mask_with_targets() -> None:
    chat = {
        "tokens": np.array([5, 6, 7, 8]),
        "role": np.array([1, 1, 2, 2]),
        "loss_mask": np.array([False, False, True, True]),
    }
    for bos in (None, {"inputs": 1}):
        packed = from_source([chat, chat]).pack(5, targets="shift", method="best_fit", bos=bos, value={"targets": -100})
        begun = bos is not None
        row = packed[0]
        assert row["inputs"].tolist() == [1] * begun + [5, 6, 7] + [0] * (2 - begun)
        assert row["targets"].tolist() == [5] * begun + [6, 7, 8] + [-100] * (2 - begun)
        assert row["role"].tolist() == [0] * begun + [1, 1, 2] + [0] * (2 - begun)
        assert row["loss_mask"].tolist() == [False] * begun + [False, True, True] + [False] * (2 - begun)
        parts = packed.source.documents(0) or []
        assert [tuple(part) for part in parts] == [(0, 0, 3, begun)]


def test_a_mesh_cuts_shifted_rows_and_a_label_is_one_a_document() -> None:
    documents = [{"ids": np.arange(10 * n, 11 * n), "label": np.float32(n)} for n in range(1, 7)]
    packed = from_source(documents).pack(8, targets="shift", method="best_fit", most_documents=3, bos=99)
    row = packed.read(range(len(packed)))
    assert row["label"].shape == (len(packed), 3)
    assert row["documents_segment_ids"].max(axis=1).tolist() == row["segment_ids"].max(axis=1).tolist()
    batch = next(Dataloader(packed, 1, partition=P(None)).host_batches())
    for name, leaf in batch.items():
        np.testing.assert_array_equal(leaf, row[name][:1], err_msg=name)


def test_summary_and_state_of_shifted_rows(tmp_path: Path) -> None:
    documents = [np.arange(3), np.arange(1), np.arange(5), np.arange(0)]
    data = from_source(documents)
    packed = data.pack(4, targets="shift")
    assert "2 documents too short for a target and left out" in repr(packed)
    assert len({str(each.order_facts) for each in (data.pack(4), packed, data.pack(4, targets="given"))}) == 3
    for _ in range(2):
        for kept in (data.pack(4, index=tmp_path), data.pack(4, index=tmp_path, targets="shift")):
            assert len(kept) == (3 if "tokens" in kept.spec else 2)
            np.testing.assert_equal(
                kept.read([0]), data.pack(4, targets=None if "tokens" in kept.spec else "shift").read([0])
            )
    assert any("shift" in file.name for file in tmp_path.rglob("*.npy"))


@pytest.mark.parametrize("add", [(), ("segment_ids",), ["loss_mask", "positions"], ADDED])
def test_only_named_leaves_are_added(add: Any) -> None:
    documents = documents_of([3, 0, 4, 2])
    data = from_source(documents)
    whole, some = data.pack(4, method="best_fit"), data.pack(4, method="best_fit", add=add)
    wanted = {name: leaf for name, leaf in whole.read([0, 1]).items() if name in ("tokens", *add)}
    np.testing.assert_equal(some.read([0, 1]), wanted)
    assert (some.order_facts == whole.order_facts) == (add == ADDED)
    stream = data.to_stream(lanes=1).pack(4, method="best_fit", add=add)
    assert sorted(stream.spec) == sorted(wanted)
    by_leaf = from_source([{"x": each} for each in documents]).pack({"x": 4}, method="best_fit", add=add)
    assert sorted(by_leaf.spec) == ["x", *(f"x_{name}" for name in sorted(add) if name != "loss_mask")]


def test_a_leaf_that_is_not_added_may_be_of_the_documents() -> None:
    document = {"tokens": np.arange(3), "positions": np.arange(3) + 5, "loss_mask": np.ones(3, np.float32) / 2}
    row = from_source([document]).pack(4, add=("segment_ids",))[0]
    assert row["positions"].tolist() == [5, 6, 7, 0]
    assert row["loss_mask"].tolist() == [0.5, 0.5, 0.5, 0]


ONE = np.arange(4)
TWO = {"inputs": ONE, "labels": ONE}


@pytest.mark.parametrize(
    ("document", "options", "message"),
    [
        (
            TWO,
            {"targets": "shift"},
            r"is for one leaf of tokens, but documents have \['inputs', 'labels'\]; name it 'tokens': \.rename",
        ),
        ({"tokens": {"a": ONE}}, {"targets": "shift"}, "is for one leaf of"),
        ({"tokens": ONE, "targets": ONE}, {"targets": "shift"}, "adds 'targets', which documents have; rename or drop"),
        (
            {"tokens": ONE},
            {"targets": "shift", "seq_len": {"tokens": 4}, "method": "best_fit"},
            "for rows of one length",
        ),
        ({"tokens": ONE}, {"add": "positions"}, r"add='positions': pass a tuple of some of .*, such as \('segment_ids"),
        ({"tokens": ONE}, {"add": [["positions"]]}, r"add=\[\['positions'\]\]: pass a tuple of some of"),
        ({"tokens": ONE}, {"add": ("mask",)}, r"add=\('mask',\): pass a tuple of some of"),
        (
            {"tokens": ONE[:1]},
            {"targets": "shift"},
            "none of 1 document has a target, which is the entry after an",
        ),
        ({"tokens": ONE}, {"targets": "shift", "seq_len": 2, "method": "best_fit"}, "document in inputs of 3, longer"),
    ],
)
def test_refused_shifts_and_added_leaves(document: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        len(from_source([document]).pack(**{"seq_len": 8, **options}))


def test_advice_for_a_leaf_of_tokens() -> None:
    renamed = from_source([TWO]).map(lambda row: {"tokens": row["inputs"], "labels": row["labels"]})
    assert sorted(renamed.pack(4, targets="shift", add=()).spec) == ["inputs", "labels", "targets"]


def test_unshifted_labels_become_a_mask_as_the_error_says() -> None:
    rows = from_source([{"input_ids": np.arange(5), "labels": np.array([-100, -100, 2, 3, 4])}])
    with pytest.raises(ArgumentError, match=r"\.rename\(\{'input_ids': 'tokens'\}\), and mask"):
        len(rows.pack(8, targets="shift"))
    masked = rows.map(lambda row: {**row, "loss_mask": row["labels"] != -100}).drop("labels")
    row = masked.rename({"input_ids": "tokens"}).pack(8, targets="shift")[0]
    assert row["targets"][row["loss_mask"]].tolist() == [2, 3, 4]
