"""Streams that are packed as they are read, against a slow oracle: rows, resuming, hosts, and what is refused."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, strategies as st
from pyarrow import parquet

from loadax import Dataloader, Dataset, concat, from_arrays, from_parquet, from_source, from_stream, mix
from loadax.errors import ArgumentError, LeafError, SourceError, StateError, StreamError
from loadax.plan.lanes import lane_places
from loadax.sources.stream import lane
from tests.laws.chain_verbs import Packing
from tests.packing.stream_packing import (
    CountedTokenizer,
    DocumentIterator,
    documents_of,
    host_steps,
    lane_rows,
    reusing,
)
from tests.sources.chunked import ChunkedSource

FIRST = st.lists(st.integers(1, 4), min_size=3, max_size=3)  # every lane has a document
LENGTHS = st.tuples(FIRST, st.lists(st.integers(0, 12), max_size=40)).map(lambda parts: parts[0] + parts[1])
SPLITS = st.tuples(st.integers(1, 9), st.just("split"), st.just("error"), st.none())
FITS = st.tuples(
    st.sampled_from([4, 8, 16]),
    st.sampled_from(["best_fit", "first_fit"]),
    st.sampled_from(["cut", "drop"]),
    st.sampled_from([None, 1, 5]),
    st.sampled_from([1, 2]),
    st.sampled_from([None, 2]),
    st.sampled_from([0, -1]),
)
PACKINGS = st.one_of(SPLITS, FITS).map(lambda arguments: Packing(*arguments))
SOME = [7, 3, 12, 1, 5, 5, 9, 2, 8, 4, 6, 11, 3, 10, 2, 7, 1, 9, 4, 8, 6, 5, 12, 3, 2, 10, 7, 1, 4, 9]
VARIED: Any = {"split": {}, "best_fit": {"long": "cut"}, "first_fit": {"long": "cut", "window": 4, "bos": -1}}

KEPT = json.loads((Path(__file__).parents[1] / "kept" / "packed_streams.json").read_text())


@pytest.fixture(autouse=True)
def states_of_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lane, "STATE_SHARE", 1e9)  # or they would be skipped if they take longer than rows


def assert_same(steps: list[Any], expected: list[Any]) -> None:
    assert len(steps) == len(expected)
    for step, other in zip(steps, expected, strict=True):
        np.testing.assert_equal(step, other)


@given(LENGTHS, PACKINGS, st.integers(1, 3))
def test_rows_of_every_lane_are_those_of_the_oracle(lengths: list[int], packing: Packing, lanes: int) -> None:
    """So every token is packed once an epoch, in the order of its document, but those of documents that are dropped."""
    documents = documents_of(lengths)
    data = from_source(documents).to_stream(lanes).pack(**packing._asdict())
    loader = Dataloader(data, lanes, remainder="pad", num_workers=0, shard_index=0, shard_count=1)
    expected = [lane_rows(documents[number::lanes], packing) for number in range(lanes)]
    rows: list[list[Any]] = [[] for _ in range(lanes)]
    with loader.host_batches() as batches:
        for batch in batches:
            mask = batch.pop("mask", np.ones(lanes, bool))
            for number, place in enumerate(lane_places(lanes).tolist()):
                if mask[place]:
                    rows[number].append({name: leaf[place] for name, leaf in batch.items()})
    for found, wanted in zip(rows, expected, strict=True):
        assert_same(found, wanted)


@pytest.mark.parametrize("method", VARIED)
@pytest.mark.parametrize("form", ["dataset", "iterators with states", "generators", "one buffer"])
def test_runs_resume_at_every_step_on_other_hosts_and_workers(form: str, method: Any) -> None:
    """All forms of lanes give the same rows, over several epochs, whatever reads them."""
    documents = documents_of(SOME)
    opened: Any = {
        "iterators with states": lambda lane, lanes: DocumentIterator(documents[lane::lanes]),
        "generators": lambda lane, lanes: iter(documents[lane::lanes]),
        "one buffer": lambda lane, lanes: reusing(documents[lane::lanes]),
    }
    stored = from_source(documents).to_stream(4)
    stream = stored if form == "dataset" else from_stream(opened[form], lanes=4)
    data = stream.pack(12, method=method, **VARIED[method])
    assert data.spec == {name: data.spec[name] for name in ("tokens", "segment_ids", "positions", "loss_mask")}
    expected, states = host_steps(data, 4, 16)
    assert_same(host_steps(stored.pack(12, method=method, **VARIED[method]), 4, 16)[0], expected)
    _, halves = host_steps(data, 4, 16, hosts=2, num_workers=2)
    for step in range(16) if form == "dataset" else (3, 7, 11):
        hosts = (1, 2, 4)[step % 3]
        start = json.loads(json.dumps(states[step] if step % 2 else halves[step]))
        resumed, _ = host_steps(data, 4, min(3, 16 - step), hosts, start, num_workers=step % 2)
        assert_same(resumed, expected[step : step + 3])


def test_epochs_are_packed_in_their_own_order() -> None:
    lengths = SOME * 2
    data = from_source(documents_of(lengths)).shuffle(0).to_stream(1)
    for method in ("split", "best_fit"):
        steps, _ = host_steps(data.pack(12, method=method), 1, 80)
        tokens = [token for step in steps for token in step["tokens"][step["segment_ids"] > 0].tolist()]
        epochs = [tokens[begin : begin + sum(lengths)] for begin in (0, sum(lengths))]
        assert sorted(epochs[0]) == sorted(epochs[1]) == sorted(np.concatenate(documents_of(lengths)).tolist())
        assert epochs[0] != epochs[1]


def test_first_batch_reads_few_documents_and_a_resumed_one_too() -> None:
    tokenize = CountedTokenizer()
    documents = from_source(documents_of([10] * 1000)).map(tokenize)
    for options, most in (({}, 8), ({"method": "best_fit"}, 16), ({"method": "best_fit", "window": 5}, 20)):
        data = documents.to_stream(4).pack(10, **options)
        tokenize.calls = 0
        with Dataloader(data, 8, num_workers=0, num_epochs=None).host_batches() as batches:
            next(batches)
            assert 8 <= tokenize.calls <= 8 + most
            for _ in range(50):
                next(batches)
            state = batches.get_state()
        tokenize.calls = 0
        with Dataloader(data, 8, num_workers=0, num_epochs=None).host_batches(state) as batches:
            next(batches)
        assert tokenize.calls <= 8 + 2 * most + 4


@pytest.mark.parametrize("case", KEPT)
def test_states_of_version_0_1_0_resume(case: str) -> None:
    """Its lanes packed one document after another; states of both kinds of lanes, and behind a buffer."""
    method: Any
    method, form, buffer = case.split("-")
    documents = documents_of(SOME)
    if form == "dataset":
        stream = from_source(documents).to_stream(4)
    else:
        stream = from_stream(lambda lane, lanes: DocumentIterator(documents[lane::lanes]), lanes=4)
    data = stream.pack(12, method=method, **VARIED[method])
    if buffer == "1":
        data = data.shuffle(0, buffer_size=3)
    for state, tokens in KEPT[case]:
        steps, _ = host_steps(data, 4, 2, start=state)
        assert [step["tokens"].tolist() for step in steps] == tokens


@pytest.mark.parametrize("method", VARIED)
@pytest.mark.parametrize("fails", ["lane", "map", "document"])
def test_rows_before_a_document_that_fails_come_first(method: Any, fails: str) -> None:
    """Documents are read some at a time, but each error comes at the turn of its document, again and again."""
    documents: list[Any] = documents_of([3] * 400)

    def opened(lane: int, lanes: int) -> Any:
        for number, document in enumerate(documents):
            if number == 301 and fails == "lane":
                raise OSError("no more")
            yield "text" if number == 301 and fails == "document" else document

    def mapped(document: Any) -> Any:
        if fails == "map" and document[0] == 302_000:
            raise OSError("no more")
        return document

    data = from_stream(opened, lanes=1).map(mapped).pack(6, method=method)
    with Dataloader(data, 1, num_workers=0, shard_index=0, shard_count=1).host_batches() as batches:
        rows: list[Any] = []
        with pytest.raises((OSError, LeafError), match=r"no more|row 301 is str"):
            rows.extend(batches)
    assert len(rows) >= 150 - 8
    if method == "split":
        assert len(rows) == 150


def test_states_of_packed_lanes_of_a_dataset_are_a_few_integers() -> None:
    data = from_source(documents_of(SOME * 100)).shuffle(0).to_stream(2).pack(12, method="best_fit")
    _, states = host_steps(data, 4, 100)
    assert len(json.dumps(states[-1][0]["lanes"])) < 400


def test_documents_with_a_leaf_that_is_empty_first() -> None:
    documents = [{"tokens": tokens, "weights": [0.5] * len(tokens)} for tokens in ([], [], [1, 2, 3], [4, 5])]
    data = from_stream(lambda lane, lanes: iter(documents), lanes=1).pack(4)
    steps, _ = host_steps(data, 1, 2)
    assert [step["tokens"][0].tolist() for step in steps] == [[1, 2, 3, 4], [5, 0, 0, 0]]
    assert steps[0]["weights"].tolist() == [[0.5] * 4]


def test_live_generator_loses_no_document() -> None:
    live = iter(documents_of([4] * 20))
    data = from_stream(lambda lane, lanes: live, lanes=1).map(lambda document: document + 1).pack(8)
    with Dataloader(data, 2, num_workers=0, shard_index=0, shard_count=1).host_batches() as batches:
        rows = [batch["tokens"] for batch in batches]
    np.testing.assert_array_equal(np.concatenate(rows).ravel(), np.concatenate(documents_of([4] * 20)) + 1)


def test_leaves_with_lengths_of_their_own() -> None:
    pairs = [{"inputs": np.full(n, n), "targets": np.full(10 - n, n)} for n in range(1, 10)]
    data = from_source(pairs).to_stream(1).pack({"targets": 16, "inputs": 12}, method="best_fit", most_documents=2)
    steps, states = host_steps(data, 1, 12)
    assert_same(host_steps(data, 1, 5, start=states[7])[0], steps[7:])
    assert steps[0]["inputs"].shape == (1, 12)
    found = [
        tuple(step[name][step[f"{name}_segment_ids"] == number].tolist() for name in ("inputs", "targets"))
        for step in steps[:5]
        for number in range(1, step["inputs_segment_ids"].max() + 1)
    ]
    assert sorted(found)[:9] == [([n] * n, [n] * (10 - n)) for n in range(1, 10)]


def test_bos_is_packed_as_if_a_map_had_put_it_there() -> None:
    data = from_source(documents_of(SOME))
    before = data.map(lambda document: np.append([7], document)).to_stream(2)
    for method in VARIED:
        options: Any = {"method": method} | ({} if method == "split" else {"long": "cut"})
        assert_same(
            host_steps(data.to_stream(2).pack(9, bos=7, **options), 2, 20)[0],
            host_steps(before.pack(9, **options), 2, 20)[0],
        )


def test_shifted_targets() -> None:
    data = from_source([{"x": np.arange(n), "y": np.arange(1, n + 1)} for n in (4, 5, 6)]).to_stream(1)
    with pytest.warns(UserWarning, match=r"leaf \['y'\] of the documents is \['x'\] shifted by one entry"):
        data.pack(5)
    steps, _ = host_steps(data.pack(5, targets="given", value={"y": -100}), 1, 3)
    assert all(step["loss_mask"].all() for step in steps)


@pytest.mark.parametrize("order", ["rows", "shuffled", "blocks", "repeat", "mix"])
def test_lanes_serve_the_order_of_the_dataset_with_its_random_numbers(order: str) -> None:
    numbers = from_arrays(np.arange(48))
    data: Dataset = {
        "rows": numbers,
        "shuffled": numbers.shuffle(3),
        "blocks": numbers.shuffle(3, block=3, window=2, lanes=4),
        "repeat": numbers[:12].shuffle(1).repeat(4),
        "mix": mix([numbers[:24], numbers[24:].shuffle(2)], [1, 1]),
    }[order]
    mapped = data.map(lambda number, rng: {"x": number * 1000 + rng.integers(1000)}, rng=True, seed=5)
    stream = mapped.to_stream(4)
    assert stream.reader.traits.num_maps == 1
    steps, _ = host_steps(stream, 8, 12, num_workers=2)
    for epoch in (0, 1):
        rows = [sorted(step["x"].tolist()) for step in steps[6 * epoch : 6 * epoch + 6]]
        read = mapped.read(range(48), epoch)["x"].reshape(6, 8)
        assert rows == [sorted(row) for row in read.tolist()]
    if order == "blocks":
        with Dataloader(mapped, 8, shard_index=0, shard_count=1, num_workers=0).host_batches() as batches:
            assert_same(steps[:6], list(batches))


def test_lanes_of_a_block_shuffle_decode_each_chunk_once_an_epoch() -> None:
    source = ChunkedSource({"x": np.arange(640)}, 8)
    data = from_source(source).shuffle(0, block="chunks", window=2, lanes=4).to_stream(4)
    source.counts[:] = 0
    with Dataloader(data, 8, num_workers=2, shard_index=0, shard_count=1).host_batches() as batches:
        rows = np.concatenate([batch["x"] for batch in batches])
    assert sorted(rows.tolist()) == list(range(640))
    assert source.counts.sum() <= 640 + 9  # a chunk more, and the first row, for the spec


def test_lanes_keep_chunks_of_strings_in_the_parts_of_a_concatenation(tmp_path: Path) -> None:
    names = [str(number) for number in range(60)]
    parquet.write_table(pa.table({"text": names}), tmp_path / "x.parquet", row_group_size=6)
    part = from_parquet(tmp_path / "x.parquet")
    data = concat([part, part]).shuffle(0, block="chunks", lanes=2).map(lambda row: {"x": int(row["text"])})
    steps, _ = host_steps(data.to_stream(2), 4, 30)
    assert sorted(np.concatenate([step["x"] for step in steps]).tolist()) == sorted([*range(60)] * 2)


def test_maps_before_pack_get_rows_and_epochs() -> None:
    """Lane 1 of 2 has the rows 1, 3, …, and random numbers differ between epochs."""
    documents = from_source([np.zeros(4, np.int64)] * 6).to_stream(2)
    rows = documents.map(lambda document, row: document + row, with_index=True).pack(4)
    assert [step["tokens"][:, 0].tolist() for step in host_steps(rows, 2, 4)[0]] == [[0, 1], [2, 3], [4, 5], [0, 1]]
    noise = documents.map(lambda document, rng: document + rng.integers(1 << 30), rng=True).pack(4)
    steps, states = host_steps(noise, 2, 9)
    assert len({value for step in steps for value in step["tokens"][:, 0].tolist()}) == 18
    assert_same(host_steps(noise, 2, 4, start=states[5])[0], steps[5:])


def test_packed_streams_are_mapped_and_mixed() -> None:
    packed = from_source(documents_of(SOME)).to_stream(2).pack(8)
    other = from_arrays({"tokens": np.full((50, 8), -1)}).shuffle(0)
    data = mix([packed.map(lambda row: {"tokens": row["tokens"]}), other], [1, 1])
    steps, _ = host_steps(data, 4, 5, hosts=2)
    assert [int((step["tokens"] == -1).all(axis=1).sum()) for step in steps] == [2] * 5
    with pytest.raises(ArgumentError, match=r"pack\(\) after mix\(\) of streams .*; pack each part, then mix them"):
        mix([from_source(documents_of(SOME)).to_stream(2)] * 2, [1, 1]).pack(8)


def test_text_and_states_name_what_differs() -> None:
    def data(seed: int = 0, lanes: int = 2, **options: Any) -> Dataset:
        given: Any = {"seq_len": 8, "method": "best_fit", "long": "cut"} | options
        return from_source(documents_of(SOME)).shuffle(seed).map(CountedTokenizer()).to_stream(lanes).pack(**given)

    assert repr(data()).endswith(".to_stream(lanes=2).pack(8, method='best_fit', long='cut'))")
    assert ".shuffle(0).map(" in repr(data())
    state = host_steps(data(), 2, 3)[1][-1]
    for other, part in (
        (data(seed=1), r"shuffle\(1\)"),
        (data(lanes=1), r"to_stream\(lanes=1\)"),
        (data(seq_len=16), r"pack\(16, method='best_fit', long='cut'\)"),
        (data(method="first_fit"), r"pack\(8, method='first_fit', long='cut'\)"),
        (data(window=9), r"pack\(8, method='best_fit', long='cut', window=9\)"),
        (data(bos=0), r"pack\(8, method='best_fit', long='cut', bos=0\)"),
        (data(value=1), r"pack\(8, method='best_fit', long='cut', value=1\)"),
    ):
        with pytest.raises(StateError, match=f"the parts? `{part}`.* from the saved run"):
            host_steps(other, 2, 1, start=state)


def test_a_state_of_other_documents_is_refused() -> None:
    state = host_steps(from_source(documents_of([9, 9, 9])).to_stream(1).pack(6), 1, 2)[1][-1]
    changed = from_source(documents_of([9, 2, 9])).to_stream(1).pack(6)
    match = "the state is at entry 3 of document 1 of the lane, which lacks it now: documents differ from"
    with pytest.raises(StateError, match=match):
        host_steps(changed, 1, 1, start=state)


@pytest.mark.parametrize(
    "use",
    [
        len,
        lambda ds: ds[0],
        lambda ds: ds.cache("/tmp/nowhere"),
        lambda ds: ds.split(0.5),
        lambda ds: Dataloader(ds, 4)[0],
        lambda ds: Dataloader(ds, 4).rows(0),
        lambda ds: Dataloader(ds, 4).find(0),
    ],
)
def test_what_needs_random_access_is_a_stream_error(use: Any) -> None:
    stream = from_source(documents_of(SOME)).to_stream(2)
    for data in (stream, stream.pack(8)):
        with pytest.raises(StreamError, match="a stream has no length and no random access"):
            use(data)


def test_refused_arguments_and_documents() -> None:
    documents = from_source(documents_of(SOME))
    stream = documents.to_stream(2)
    with pytest.raises(StreamError, match=r"to_stream\(\): .*; leave it out, since this is a stream already"):
        stream.to_stream()
    with pytest.raises(ArgumentError, match="lanes=128: some would have none of the 30 rows; pass lanes=30 or fewer"):
        documents.to_stream()
    with pytest.raises(ArgumentError, match="none of the 0 rows; check its source or slice"):
        documents[:0].to_stream()
    documents.to_stream(lanes=30)
    with pytest.raises(ArgumentError, match="lanes=0"):
        documents.to_stream(0)
    with pytest.raises(ArgumentError, match=r"index='x' is for lengths that are kept, .*; leave it out"):
        stream.pack(8, index="x")
    with pytest.raises(ArgumentError, match=r"key='x' is for lengths that are kept, .*; leave it out"):
        stream.pack(8, key="x")
    with pytest.raises(ArgumentError, match=r"row 4 is a document of 5, longer than seq_len=4; pass long='cut'.*split"):
        host_steps(from_source(documents_of([3, 4, 4, 4, 5])).to_stream(2).pack(4, method="best_fit"), 2, 5)
    with pytest.raises(ArgumentError, match=r"map_batch .* needs rows of equal shape, but documents differ in length"):
        stream.map_batch(lambda batch: batch).pack(8)
    with pytest.raises(LeafError, match=r"row 0 is str .*; a document is an array of entries"):
        from_stream(lambda lane, lanes: ["text"], lanes=1).pack(8)
    with pytest.raises(SourceError, match="lane 0 of the stream has none; check what opens its lanes"):
        from_stream(lambda lane, lanes: [], lanes=1).pack(8)
    with pytest.raises(SourceError, match="none of the 3 documents of lane 0 of 1 has entries; check"):
        host_steps(from_stream(lambda lane, lanes: [np.zeros(0)] * 3, lanes=1).pack(8), 1, 1)
    with pytest.raises(ArgumentError, match=r"long='cut' is for best_fit and first_fit"):
        stream.pack(8, long="cut")


def long_documents(of_lane: int | None, count: int = 64) -> Any:
    """Documents of 4 entries, and of 20 in one of 8 lanes; None: in all."""
    lengths = [20 if of_lane is None or row % 8 == of_lane else 4 for row in range(count)]
    return from_source([np.arange(length) for length in lengths])


@pytest.mark.parametrize(("of_lane", "lanes"), [(None, 1), (None, 8), (3, 8)])
@pytest.mark.parametrize("workers", [0, 2])
def test_lanes_whose_documents_are_all_too_long_say_so(of_lane: int | None, lanes: int, workers: int) -> None:
    def steps(seq_len: int = 8, long: Any = "drop", lanes: int = lanes) -> int:
        packed = long_documents(of_lane).to_stream(lanes=lanes).pack(seq_len, method="best_fit", long=long)
        loader = Dataloader(packed, 8, num_workers=workers, remainder="drop")
        return sum(1 for _ in loader.host_batches())

    documents, lane = 64 // lanes, of_lane or 0
    which = rf"none of the {documents} documents of lane {lane} of {lanes} fits a row: .*longer than seq_len=8"
    fewer = " or fewer lanes" if lanes > 1 else ""
    with pytest.raises(SourceError, match=rf"{which}.*; pass a larger seq_len, or long='cut',{fewer}"):
        steps()
    assert steps(seq_len=20)
    assert steps(long="cut")
    if of_lane is not None:
        assert steps(lanes=1)


def test_one_lane_without_rows_is_not_told_to_be_fewer() -> None:
    with pytest.raises(SourceError, match=r"the stream has no rows; check what it is made of"):
        host_steps(from_stream(lambda lane, lanes: [], lanes=1, spec=np.zeros(2)), 1, 1)
