"""Loaders with `batch_size=Buckets(…)`."""

import json
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

import loadax
from loadax import Buckets, Dataloader, MaskErrors
from loadax.errors import ArgumentError, LeafError, StateError
from loadax.plan.batches import BatchPlan

ROWS = 400
LENGTHS = np.minimum(np.random.default_rng(0).geometric(1 / 40, ROWS), 256)
SIZES = {32: 16, 64: 8, 256: 8}
STATE_OF_ONE_LEAF = 29553327


class Documents:
    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, row: Any) -> Any:
        return {"tokens": np.full(LENGTHS[row], row + 1, np.int32), "id": np.int32(row)}


def data() -> Any:
    return loadax.as_dataset(Documents()).shuffle(seed=1)


def loader(buckets: Any = None, **options: Any) -> Any:
    return Dataloader(data(), buckets or Buckets("tokens", SIZES), **{"num_epochs": 2, **options})


def expected(rows: Any, length: Any, value: Any = 0) -> Any:
    tokens = np.full((len(rows), length), value, np.int32)
    for index, row in enumerate(rows):
        if row >= 0:
            tokens[index, : min(LENGTHS[row], length)] = row + 1
    return tokens


@pytest.mark.parametrize("workers", [{"num_workers": 0}, {"num_workers": 2}])
@pytest.mark.parametrize("remainder", ["drop", "pad"])
def test_each_step_has_padded_rows_of_one_bucket(remainder: Any, workers: Any) -> None:
    run = loader(remainder=remainder, **workers)
    seen: list[list[int]] = [[], []]
    for step, batch in enumerate(run):
        tokens, rows = np.asarray(batch["tokens"]), run.rows(step)
        length = tokens.shape[1]
        assert len(tokens) == len(rows) == SIZES[length]
        valid = rows[rows >= 0]
        lower = max([0, *(bound for bound in SIZES if bound < length)])
        assert ((LENGTHS[valid] > lower) & (LENGTHS[valid] <= length)).all()
        assert np.array_equal(tokens, expected(rows, length))
        assert np.array_equal(batch["tokens_length"][: len(valid)], LENGTHS[valid])
        assert np.array_equal(np.asarray(batch["tokens"]), tokens)
        assert np.array_equal(run.host_batch(step)["id"], np.where(rows < 0, 0, rows))
        seen[step * 2 // len(run)] += valid.tolist()
    for epoch in seen:
        assert len(epoch) == len(set(epoch))
        assert remainder == "drop" or len(epoch) == ROWS
    assert seen[0] != seen[1]


def test_processes_read_the_same_batches() -> None:
    run = loader(num_workers=1, worker_type="process", num_epochs=1)
    for step, batch in enumerate(run):
        rows = run.rows(step)
        assert np.array_equal(np.asarray(batch["tokens"]), expected(rows, batch["tokens"].shape[1]))


def test_specs_have_each_shape_once() -> None:
    run = loader(remainder="pad")
    shapes = {step: spec["tokens"].shape for step, spec in run.specs.items()}
    assert sorted(shapes.values()) == sorted((size, length) for length, size in SIZES.items())
    for step, shape in shapes.items():
        assert run[step]["tokens"].shape == shape
        assert all(
            run.rows(earlier).shape != shape[:1] or run[earlier]["tokens"].shape != shape for earlier in range(step)
        )


def test_a_run_resumes_at_every_step_on_other_shares() -> None:
    run = loader(remainder="pad", num_epochs=1, num_workers=0)
    batches = iter(run)
    for step in range(len(run)):
        state = json.loads(json.dumps(batches.get_state()))
        parts = []
        for index in range(2):
            part = loader(remainder="pad", num_epochs=1, num_workers=0, shard_index=index, shard_count=2)
            with part.host_batches(state) as resumed:
                assert resumed.step == step
                parts.append(next(resumed)["tokens"])
        assert np.array_equal(np.concatenate(parts), next(batches)["tokens"])


def test_find_trace_skip_epochs_and_digests_hold() -> None:
    run = loader()
    for step in (0, 3, len(run) - 1):
        rows = run.rows(step)
        assert (step, 2) in run.find(int(rows[2]))
        assert run.trace(step)[2].row == rows[2]
    shorter = run.skip(range(1, 4))
    assert np.array_equal(shorter.rows(1), run.rows(4))
    assert np.array_equal(next(shorter.iterate(1))["tokens"], run[4]["tokens"])
    assert [sum(1 for _ in epoch) for epoch in run.epochs()] == [run.steps_per_epoch] * 2
    assert run.digest() == loader(shard_index=1, shard_count=2).digest() != shorter.digest()
    assert run.check_plan(steps=12).visits == 1


class Broken:
    """Documents whose lengths are known, and of which some can't be read."""

    bad = tuple(int(row) for row in np.flatnonzero(LENGTHS <= 64)[[3, 30, 60]])
    spec = None

    def __len__(self) -> int:
        return ROWS

    def lengths(self, rows: Any) -> Any:
        return LENGTHS[rows]

    def examples(self, rows: Any) -> Any:
        for row in rows.tolist():
            if row in self.bad:
                raise ValueError(f"row {row} is broken")
        return [Documents()[row] for row in rows.tolist()]

    def read(self, rows: Any) -> Any:
        raise NotImplementedError


def test_rows_that_fail_are_masked_and_left_out_by_quarantine(tmp_path: Path) -> None:
    rows, record = loadax.from_source(Broken()).shuffle(seed=1), tmp_path / "bad.jsonl"
    options: dict[str, Any] = {"num_epochs": 1, "num_workers": 1, "remainder": "pad"}
    masking = Dataloader(rows, Buckets("tokens", SIZES), on_error=MaskErrors(record=record, max_share=1), **options)

    def check(loaded: Any) -> None:
        for step, batch in enumerate(loaded):
            ids = masking.rows(step)
            real = (ids >= 0) & ~np.isin(ids, Broken.bad)
            assert np.array_equal(batch["mask"], real)
            assert np.array_equal(np.asarray(batch["tokens"])[real], expected(ids[real], batch["tokens"].shape[1]))

    check(masking)
    check(Dataloader(rows, Buckets("tokens", SIZES), quarantine=record, **options))
    entries = [json.loads(line) for line in record.read_text().splitlines()]
    assert {(entry["row"], int(masking.rows(entry["step"])[entry["position"]])) for entry in entries} == {
        (row, row) for row in Broken.bad
    }


def test_a_mixture_keeps_its_proportions_and_resumes() -> None:
    def mixed(**options: Any) -> Any:
        parts = {"a": data(), "b": loadax.as_dataset(Documents())[:100]}
        return Dataloader(loadax.mix(parts, [3, 1]), Buckets("tokens", SIZES), **{"num_epochs": 2, **options})

    run = mixed(num_workers=2)
    states, seen = [], []
    with run.iterate() as batches:
        for step, batch in enumerate(batches):
            rows = run.rows(step)
            assert np.array_equal(batch["tokens"], expected(rows % ROWS, batch["tokens"].shape[1]))
            states.append(json.loads(json.dumps(batches.get_state())))
            seen.append(rows)
    share = (np.concatenate(seen) >= ROWS).mean()
    assert 0.2 < share < 0.3
    for step in (0, len(run) // 2, len(run) - 2):
        with mixed(num_workers=0).iterate(states[step]) as batches:
            assert batches.step == step + 1
            assert np.array_equal(run.rows(step + 1), seen[step + 1])
            next(batches)


def test_workers_get_the_data_of_all_buckets_once() -> None:
    loaded = loader(num_workers=1, worker_type="process", num_epochs=1)
    before = Documents.__reduce_ex__
    pickled: list[int] = []

    def counted(self: Any, protocol: Any) -> Any:
        pickled.append(1)
        return before(self, protocol)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Documents, "__reduce_ex__", counted)
        assert sum(1 for _ in loaded) == len(loaded)
    assert len(pickled) <= 2  # one for the copy of an unread object


def test_no_bucket_computes_steps_beyond_its_last(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int | None]] = []
    visits_of = BatchPlan.visits_of

    def counted(plan: BatchPlan, steps: range, positions: Any) -> Any:
        asked.append((steps.stop, plan.num_steps))
        return visits_of(plan, steps, positions)

    monkeypatch.setattr(BatchPlan, "visits_of", counted)
    assert sum(1 for _ in loader()) == len(loader())
    assert asked
    assert all(last is not None and stop <= last for stop, last in asked)


def test_blocks_are_shuffled_and_kept_open_by_bucket() -> None:
    tokens = np.concatenate([np.full(length, row + 1, np.int32) for row, length in enumerate(LENGTHS)])
    rows = loadax.from_documents({"tokens": tokens}, np.concatenate([[0], np.cumsum(LENGTHS)]))
    run = Dataloader(rows.shuffle(seed=1, block=16), Buckets("tokens", SIZES), remainder="pad")
    met = []
    for step, batch in enumerate(run):
        ids = run.rows(step)
        assert np.array_equal(batch["tokens"], expected(ids, batch["tokens"].shape[1]))
        met += ids[ids >= 0].tolist()
    assert sorted(met) == list(range(ROWS))


def test_a_state_of_other_buckets_is_refused() -> None:
    with loader(num_workers=0).iterate() as batches:
        next(batches)
        state = batches.get_state()
    for sizes in ({32: 16, 64: 16, 256: 8}, {32: 16, 128: 8, 256: 8}):
        with pytest.raises(StateError, match="buckets"):
            loader(Buckets("tokens", sizes)).iterate(state)


def test_long_rows_are_an_error_or_dropped_or_cut() -> None:
    sizes = {32: 8, 64: 8}
    longer = LENGTHS > 64
    with pytest.raises(ArgumentError, match=rf"row {np.flatnonzero(longer)[0]} has length \d+, above 64"):
        loader(Buckets("tokens", sizes))
    for long, rows in (("drop", np.flatnonzero(~longer)), ("cut", np.arange(ROWS))):
        run = loader(Buckets("tokens", sizes, value=-1, long=long), num_epochs=1, remainder="pad")
        met = []
        for step in range(len(run)):
            tokens = np.asarray(run[step]["tokens"])
            whole = run.rows(step) >= 0
            assert np.array_equal(tokens[whole], expected(run.rows(step)[whole], tokens.shape[1], -1))
            met += run.rows(step)[whole].tolist()
        assert sorted(met) == rows.tolist()


def test_lengths_are_kept_in_an_index(tmp_path: Any) -> None:
    first = loader(Buckets("tokens", SIZES, index=tmp_path / "lengths", key="1"))
    again = loader(Buckets("tokens", SIZES, index=tmp_path / "lengths", key="1"))
    assert (tmp_path / "lengths").exists()
    assert np.array_equal(first.rows(3), again.rows(3))


def test_explain_tells_padding_and_steps_by_bucket() -> None:
    run = loader(remainder="pad")
    text = str(run.explain())
    for length, size in SIZES.items():
        lower = max([0, *(bound for bound in SIZES if bound < length)])
        inside = LENGTHS[(lower < LENGTHS) & (length >= LENGTHS)]
        share = 1 - inside.mean() / length
        steps = -(-len(inside) // size)
        assert f"length {length}: {steps} steps of {size} rows, {share:.1%} padding" in text


def noise(example: Any, rng: Any) -> Any:
    return {**example, "tokens": example["tokens"] * rng.integers(2, size=len(example["tokens"]), dtype=np.int32)}


def doubled(example: Any, rng: Any) -> Any:
    return {**example, "tokens": np.repeat(example["tokens"], 2 + rng.integers(1))}


def test_rows_may_change_at_random_but_not_beyond_their_bucket() -> None:
    mapped = data().map(noise, rng=True)
    run = Dataloader(mapped, Buckets("tokens", SIZES), num_epochs=2, num_workers=0)
    assert run.digest() == loader().digest()
    for step, batch in zip(range(5), run, strict=False):
        tokens = np.asarray(batch["tokens"])
        whole = expected(run.rows(step), tokens.shape[1])
        assert ((tokens == 0) | (tokens == whole)).all()
        assert (tokens != whole).any()
    with pytest.raises(LeafError, match=r"has \d+ entries, more than"):
        list(Dataloader(data().map(doubled, rng=True), Buckets("tokens", SIZES)))
    joined = loadax.concat([mapped, mapped])
    with pytest.raises(ArgumentError, match="map them at random behind it"):
        Dataloader(joined, Buckets("tokens", SIZES))
    behind = loadax.concat([data(), data()]).map(noise, rng=True)
    assert len(Dataloader(behind, Buckets("tokens", SIZES))) > len(run) // 2


def test_advice_where_no_bucket_has_steps_works() -> None:
    rows = loadax.from_source([{"tokens": np.arange(20)} for _ in range(16)])
    with pytest.raises(ArgumentError, match=r"none of 16 rows fits 8, .*add a bucket of length 20, or pass"):
        Dataloader(rows, Buckets("tokens", {8: 8}, long="drop"), remainder="pad")
    assert len(Dataloader(rows, Buckets("tokens", {8: 8, 20: 8}, long="drop"))) == 2
    assert len(Dataloader(rows, Buckets("tokens", {8: 8}, long="cut"))) == 2
    with pytest.raises(ArgumentError, match=r"no bucket fills a batch: their rows are \{8: 0, 20: 16\}; .*'pad'"):
        Dataloader(rows, Buckets("tokens", {8: 8, 20: 24}))
    assert len(Dataloader(rows, Buckets("tokens", {8: 8, 20: 16}))) == 1
    assert len(Dataloader(rows, Buckets("tokens", {8: 8, 20: 24}), remainder="pad")) == 1


class Examples:
    """Rows of tokens, labels and a mask of one length, beside vectors of a fixed length."""

    def __init__(self, nested: bool):
        self.nested = nested

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, row: Any) -> Any:
        length = LENGTHS[row]
        beside = {"labels": np.arange(length, dtype=np.int32) - row, "attention": [1] * length}
        vector = np.full(32, row, np.float32)
        return {**Documents()[row], "vector": vector, **({"with": beside} if self.nested else beside)}


def beside(batch: Any) -> Any:
    return batch.get("with", batch)


def check_examples(batch: Any, rows: Any, values: Any = (0, -100, 0)) -> None:
    """Compares a batch of `Examples` with what its rows have."""
    length = batch["tokens"].shape[1]
    labels, attention = np.full((len(rows), length), values[1]), np.full((len(rows), length), values[2])
    for index, row in enumerate(rows):
        size = min(LENGTHS[row], length)
        labels[index, :size] = np.arange(size) - row
        attention[index, :size] = 1
    whole = rows >= 0
    assert np.array_equal(np.asarray(batch["tokens"])[whole], expected(rows, length, values[0])[whole])
    assert np.array_equal(np.asarray(beside(batch)["labels"])[whole], labels[whole])
    assert np.array_equal(np.asarray(beside(batch)["attention"])[whole], attention[whole])
    assert np.array_equal(np.asarray(batch["vector"])[whole], np.repeat(rows[whole, None], 32, 1))
    assert np.array_equal(np.asarray(batch["tokens_length"])[whole], np.minimum(LENGTHS[rows[whole]], length))
    assert {"labels_length", "attention_length"}.isdisjoint(beside(batch))


NAMED = {
    "one name": (Buckets("tokens", SIZES, value=9), (9, 0, 0)),
    "a value": (Buckets("tokens", SIZES, value={"labels": -100}), (0, -100, 0)),
    "all names": (Buckets(["tokens", "labels", "attention"], SIZES, value=3), (3, 3, 3)),
    "names and values": (
        Buckets(("tokens", "attention", "labels"), SIZES, value={"labels": -100, "tokens": 5}),
        (5, -100, 0),
    ),
    "cut": (Buckets("tokens", {32: 16, 64: 8}, value={"labels": -100}, long="cut"), (0, -100, 0)),
    "dropped": (Buckets(("tokens", "labels", "attention"), {32: 16, 64: 8}, long="drop"), (0, 0, 0)),
}


@pytest.mark.parametrize("name", NAMED)
@pytest.mark.parametrize("workers", [{"num_workers": 0}, {"num_workers": 2}])
def test_leaves_of_one_length_are_padded_together(name: str, workers: Any) -> None:
    buckets, values = NAMED[name]
    data = loadax.as_dataset(Examples(nested=False)).shuffle(seed=1)
    run, met = Dataloader(data, buckets, remainder="pad", **workers), list[int]()
    for step, batch in enumerate(run):
        rows = run.rows(step)
        check_examples(batch, rows, values)
        met += rows[rows >= 0].tolist()
    kept = np.flatnonzero(LENGTHS <= 64) if name == "dropped" else np.arange(ROWS)
    assert sorted(met) == kept.tolist()
    check_examples(run[3], run.rows(3), values)
    check_examples(run.host_batch(2), run.rows(2), values)
    assert {spec["tokens"].shape for spec in run.specs.values()} == {
        spec["labels"].shape for spec in run.specs.values()
    }
    assert run.digest() == Dataloader(data.keep("tokens"), buckets_of_tokens(buckets), remainder="pad").digest()
    assert run.find(int(run.rows(3)[1])) == [(3, 1)]
    assert "padding" in str(run.explain())


def buckets_of_tokens(buckets: Buckets) -> Buckets:
    return Buckets("tokens", buckets.sizes, long=buckets.long)


def test_leaves_of_subtrees_are_padded_together_in_processes() -> None:
    data = loadax.as_dataset(Examples(nested=True)).shuffle(seed=1)
    buckets = Buckets(("tokens", "with.labels", "with.attention"), SIZES, value={"with.labels": -100})
    run = Dataloader(data, buckets, num_workers=1, worker_type="process")
    for step, batch in enumerate(run):
        check_examples(batch, run.rows(step))
    found = Dataloader(data, Buckets("tokens", SIZES, value={"with.labels": -100}))
    check_examples(found.host_batch(1), found.rows(1))
    by_labels = Dataloader(data, Buckets("with.labels", SIZES, value={"with.labels": -100}))
    assert np.array_equal(by_labels.rows(0), run.rows(0))
    assert by_labels.host_batch(0)["with"]["labels_length"].tolist() == LENGTHS[run.rows(0)].tolist()


def test_a_run_of_several_leaves_resumes_on_other_shares_and_elsewhere() -> None:
    data = loadax.as_dataset(Examples(nested=False)).shuffle(seed=1)
    buckets = Buckets("tokens", SIZES, value={"labels": -100})
    with Dataloader(data, buckets, num_workers=0).iterate() as batches:
        for _ in range(4):
            next(batches)
        state, following = json.loads(json.dumps(batches.get_state())), next(batches)
    shares = []
    for index in range(2):
        share = Dataloader(data, buckets, num_workers=0, shard_index=index, shard_count=2)
        with share.host_batches(state) as resumed:
            shares.append(next(resumed))
    for leaf in ("tokens", "labels", "attention"):
        assert np.array_equal(np.concatenate([share[leaf] for share in shares]), following[leaf])
    with ThreadPoolExecutor(2) as pool:
        remote = Dataloader(data, buckets, remote=pool)
        with remote.iterate(state) as resumed:
            check_examples(next(resumed), remote.rows(4))
    for other in (Buckets("tokens", SIZES), Buckets("tokens", SIZES, value={"labels": -1})):
        with pytest.raises(StateError, match="'order'"):
            Dataloader(data, other).iterate(state)


def test_states_of_one_leaf_are_those_of_earlier_releases() -> None:
    with loader(num_workers=0, num_epochs=1).iterate() as batches:
        next(batches)
        assert batches.get_state()["order"] == STATE_OF_ONE_LEAF


def test_a_row_of_other_lengths_is_refused_and_its_advice_works() -> None:
    def cut(row: Any) -> Any:
        return {**row, "labels": row["labels"][:-1]} if row["id"] == 17 else row

    data = loadax.as_dataset(Examples(nested=False)).map(cut)
    size = LENGTHS[17]
    message = rf"row 17: leaf 'labels' has {size - 1} entries, but 'tokens' has {size}"
    with pytest.raises(LeafError, match=message):
        list(Dataloader(data, Buckets("tokens", SIZES), remainder="pad"))
    with pytest.raises(LeafError, match=message) as caught:
        list(Dataloader(data, Buckets(("tokens", "labels", "attention"), SIZES), remainder="pad"))
    advice = re.search(r"pad\({'labels': (\d+)}\) and Buckets\((.*), …\)$", str(caught.value))
    assert advice is not None
    assert advice[2] == "('tokens', 'attention')"
    padded = data.pad({"labels": max(int(advice[1]), 256)})
    run = Dataloader(padded, Buckets(("tokens", "attention"), SIZES), remainder="pad")
    assert {batch["labels"].shape[1] for batch in run} == {256}
    with pytest.raises(LeafError, match=r"Buckets\(\('tokens', 'attention', 'labels'\), …\)"):
        list(Dataloader(loadax.as_dataset(Examples(nested=False)), Buckets(("tokens",), SIZES)))
    with pytest.raises(ArgumentError, match="value has the key 'words'"):
        Dataloader(data, Buckets(("tokens",), SIZES, value={"words": 1}))


def test_a_leaf_that_was_padded_before_is_told_apart() -> None:
    data = loadax.as_dataset(Examples(nested=False)).drop("attention").pad({"labels": 256})
    with pytest.raises(ArgumentError, match=r"leave out its pad\(\).* or Buckets\(\('tokens',\), …\) to keep 256"):
        Dataloader(data, Buckets("tokens", SIZES))
    run = Dataloader(data, Buckets(("tokens",), SIZES))
    assert {spec["labels"].shape[1] for spec in run.specs.values()} == {256}


def test_rows_in_quarantine_are_not_read_to_find_leaves(tmp_path: Path) -> None:
    longest = int(np.argmax(LENGTHS))
    read: list[int] = []

    class Lengths(Examples):
        def lengths(self, rows: Any) -> Any:
            return LENGTHS[rows]

        def read(self, rows: Any) -> Any:
            raise NotImplementedError

        def examples(self, rows: Any) -> Any:
            read.extend(rows.tolist())
            return [self[row] for row in rows.tolist()]

    rows = loadax.from_source(Lengths(nested=False))
    run = Dataloader(rows, Buckets("tokens", SIZES), quarantine=[longest], num_workers=0, remainder="pad")
    assert sum(1 for _ in run) == len(run)
    assert longest not in read
    assert run.spec["labels"].shape == run.spec["tokens"].shape


def test_bad_buckets_are_refused() -> None:
    stream = loadax.from_stream(lambda lane, lanes: iter([{"tokens": np.zeros(lane + lanes)}]), lanes=1)
    for message, make in (
        ("leaf=\\(\\): pass the name", lambda: Buckets((), SIZES)),
        ("leaf=3: pass the name", lambda: Buckets(cast("Any", 3), SIZES)),
        ("pass batch sizes by length", lambda: Buckets("tokens", {})),
        ("length", lambda: Buckets("tokens", {0: 4})),
        ("long=", lambda: Buckets("tokens", SIZES, long="pad")),
        ("seq_len=8: not with batch_size", lambda: loader(seq_len=8)),
        (
            "a stream does not tell",
            lambda: Dataloader(stream, Buckets("tokens", SIZES)),
        ),
        ("equal groups", lambda: loader().lease()),
        ("slice before shuffle", lambda: Dataloader(data().subset_per_epoch(range(50)), Buckets("tokens", SIZES))),
        ("the dataset has no rows", lambda: Dataloader(loadax.as_dataset(Documents())[:0], Buckets("tokens", SIZES))),
        (
            "sample.. draws other rows",
            lambda: Dataloader(loadax.as_dataset(Documents()).sample(np.ones(ROWS)), Buckets("tokens", SIZES)),
        ),
        (
            "mix.. draws other rows in every epoch, so none can be chosen behind it",
            lambda: Dataloader(loadax.mix([data()], [1]).subset_per_epoch(range(50)), Buckets("tokens", SIZES)),
        ),
        (
            "pass stop='first' or 'all'",
            lambda: Dataloader(loadax.mix([data()], [1], stop="never"), Buckets("tokens", SIZES)),
        ),
    ):
        with pytest.raises(ArgumentError, match=message):
            make()
    with pytest.raises(LeafError, match=r"Buckets: row \d+ has no leaf 'id' with a length"):
        loader(Buckets("id", SIZES))
    with pytest.raises(LeafError, match="there is no leaf 'words'"):
        loader(Buckets("words", SIZES))


def test_class_in_place_of_buckets_is_refused_by_its_name() -> None:
    kind: Any = Buckets
    with pytest.raises(ArgumentError, match=r"batch_size=<class 'loadax\.loader\.buckets\.Buckets'>"):
        Dataloader(data(), kind)
