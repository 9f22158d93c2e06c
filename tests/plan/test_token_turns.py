"""Mixtures by tokens: turns are those of fractions in a heap, and every dataset has its share of the tokens."""

import pickle
from dataclasses import replace
from fractions import Fraction
from heapq import heapify, heapreplace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import loadax
from loadax import Dataloader, mix
from loadax.errors import ArgumentError, LeafError, StateError
from loadax.plan.mix import Mixed, Segment
from loadax.plan.sequential import Sequential
from loadax.plan.shuffle import Shuffled
from loadax.plan.token_turns import PartTokens
from loadax.sharding import plan_mesh


def tokens_of(lengths: Any, seed: int) -> PartTokens:
    array = np.asarray(lengths, np.int64)
    return PartTokens(str(seed), Shuffled(Sequential(len(array)), seed), array.__getitem__, "")


def mixed(lengths: list[Any], segments: dict[int, tuple[int, ...]], stop: Any = "never") -> Mixed:
    parts = tuple(tokens_of(each, seed) for seed, each in enumerate(lengths))
    orders = tuple(Shuffled(Sequential(len(each)), seed) for seed, each in enumerate(lengths))
    sizes = tuple(map(len, lengths))
    scheduled = tuple(Segment(*each) for each in segments.items())
    return Mixed(orders, sizes, tuple("abcdefgh"[: len(sizes)]), scheduled, 0, stop, version=3, tokens=parts)


def counted(order: Mixed, count: int) -> list[tuple[int, int]]:
    """Part and draw of the first positions, each of which is the earliest in a heap of exact times."""
    assert order.tokens is not None
    drawn = [0] * len(order.parts)
    taken = list[tuple[int, int]]()

    def due(part: int, before: int) -> tuple[Fraction, int, int, int]:
        length = int(order.tokens[part].lengths(np.array([drawn[part]]))[0])  # type: ignore[index]
        return Fraction(2 * before + length, weights[part]), part, before, length

    ends = [*(segment.start for segment in order.segments[1:]), count]
    for (_, weights), end in zip(order.segments, ends, strict=True):
        heap = [due(part, 0) for part in range(len(drawn)) if weights[part]]
        heapify(heap)
        while len(taken) < end:
            _, part, before, length = heap[0]
            taken.append((part, drawn[part]))
            drawn[part] += 1
            heapreplace(heap, due(part, before + length))
    return taken


@pytest.mark.parametrize("seed", range(8))
def test_turns_are_those_of_exact_times(seed: int) -> None:
    random = np.random.default_rng(seed)
    lengths = []
    for _ in range(int(random.integers(1, 5))):
        found = random.integers(0, random.choice([2, 5, 300]), int(random.integers(1, 200)))
        found[random.integers(len(found))] = 1 + random.integers(9)
        lengths.append(found)
    weights = [tuple(map(int, [*random.integers(0, 9, len(lengths) - 1), 1 + step])) for step in range(3)]
    order = mixed(lengths, dict(zip((0, 350, 351), weights, strict=True)))
    expected = counted(order, 900)
    positions = random.permutation(900)[:150]
    part, draws = order.draws(positions)
    assert list(zip(part.tolist(), draws.tolist(), strict=True)) == [expected[position] for position in positions]
    assert order.positions_of_draws(part, draws).tolist() == positions.tolist()
    for position in (0, 1, *positions[:8].tolist()):
        parts = [part for part, _ in expected[:position]]
        assert order.counts(position).tolist() == [parts.count(part) for part in range(len(lengths))]
    far = np.arange(1 << 50, (1 << 50) + 5)
    part, draws = order.draws(far)
    assert order.positions_of_draws(part, draws).tolist() == far.tolist()
    copy = pickle.loads(pickle.dumps(order.tokens))
    again = replace(order, tokens=copy)
    assert again.draws(positions)[1].tolist() == order.draws(positions)[1].tolist()


def test_row_of_a_part_that_is_never_drawn_has_no_position() -> None:
    order = mixed([[1, 2], [3]], {0: (1, 0)})
    assert order.positions_of_draws(np.array([1, 0]), np.array([0, 1])).tolist() == [-1, 1]
    first = mixed([[1, 2], [3], [1] * 50], {0: (1, 1, 0), 4: (0, 1, 1)}, "first")
    assert first.size == len([each for each in counted(first, 40) if each in ((0, 0), (0, 1), (1, 0))])


def documents(rows: int, seed: int) -> tuple[dict[str, Any], list[Any]]:
    """Shuffled documents of five sources, and their lengths, which are log-normal."""
    random = np.random.default_rng(seed)
    data: dict[str, Any] = {}
    lengths: list[Any] = []
    shapes = {"web": (4, 1.5, 0.4), "code": (5, 1, 0.1), "books": (6, 0.8, 0.2), "math": (6.5, 1.2, 0.05)}
    for name, (mean, sigma, share) in {**shapes, "wiki": (7, 0.5, 0.25)}.items():
        found = np.maximum(1, random.lognormal(mean, sigma, int(rows * share))).astype(np.int64)
        offsets = np.cumsum([0, *found])
        data[name] = loadax.from_documents({"tokens": np.zeros(offsets[-1], np.uint8)}, offsets).shuffle(len(lengths))
        lengths.append(found)
    return data, lengths


def test_shares_of_tokens_are_within_a_document_at_every_step_on_any_number_of_hosts() -> None:
    data, lengths = documents(6000, 0)
    weights = np.array([0.3, 0.05, 0.25, 0.1, 0.3])
    mixture = mix(data, weights, by="tokens", stop="never").map(len_of)
    loader = Dataloader(mixture, 256)
    steps, known = 24, np.concatenate(lengths)
    owner = np.repeat(np.arange(5), list(map(len, lengths)))
    rows = np.concatenate([loader.rows(step) for step in range(steps)])
    taken = np.zeros((len(rows), 5))
    taken[np.arange(len(rows)), owner[rows]] = known[rows]
    taken = np.cumsum(taken, axis=0)
    off = np.abs(taken - taken.sum(axis=1, keepdims=True) * weights)
    assert off.max() <= known.max(), "after every row, and so after every step"
    by_rows = Dataloader(mix(data, weights, stop="never").map(len_of), 256)
    others = np.concatenate([by_rows.rows(step) for step in range(steps)])
    shares = np.bincount(owner[others], known[others]) / known[others].sum()
    assert np.abs(shares - weights).max() > 0.1, "which by='example' does not give"
    for count in (8, 64):
        hosts = [Dataloader(loader.dataset, 256, shard_index=host, shard_count=count) for host in range(count)]
        step = count % steps
        assert [row for host in hosts for row in host.local_rows(step)] == loader.rows(step).tolist()
    # at random, and in a run that begins there
    again = Dataloader(mix(data, weights, by="tokens", stop="never").map(len_of), 256)
    assert loader.rows(10**6).tolist() == again.rows(10**6).tolist()
    row = int(rows[700])
    assert (700 // 256, 700 % 256) in [each[:2] for each in loader.find(row, steps=range(steps))]


def test_explanation_has_the_shares_of_rows_and_tokens() -> None:
    data, _ = documents(600, 1)
    mesh = plan_mesh({"data": 64}, hosts=64)
    loader = Dataloader(mix(data, [6, 1, 5, 2, 6], by="tokens").map(len_of), 64, mesh=mesh)
    told = loader.explain(steps=1)
    shares = {name: (rows, tokens) for name, rows, tokens in told.shares}
    for (_, share), weight in zip(shares.values(), [6, 1, 5, 2, 6], strict=True):
        assert abs(share - weight / 20) < 0.03
    assert abs(sum(rows for rows, _ in shares.values()) - 1) < 1e-9
    rows, tokens = shares["wiki"]
    assert f"wiki: {rows:.1%} of rows, {tokens:.1%} of tokens" in str(told)
    assert Dataloader(mix(data, [6, 1, 5, 2, 6]).map(len_of), 64, mesh=mesh).explain(steps=1).shares == ()


def len_of(row: Any) -> Any:
    return {"n": np.int64(len(row["tokens"]))}


def grown(row: Any) -> Any:
    return {"tokens": np.ones(1 + int(row["n"]) % 7)}


def test_lengths_that_no_source_knows_are_read_once_and_kept(tmp_path: Path) -> None:
    rows = loadax.from_arrays({"n": np.arange(40)})
    parts = {"a": rows[:20].map(grown), "b": rows[20:].map(grown)}
    made = mix(parts, [1, 1], by="tokens", index=tmp_path)
    kept = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.npy")}
    assert len(kept) == 2
    again = mix(parts, [1, 1], by="tokens", index=tmp_path)
    assert kept == {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.npy")}
    lengths = [len(made[position]["tokens"]) for position in range(20)]
    assert lengths == [len(again[position]["tokens"]) for position in range(20)]
    assert mix(parts, [1, 1], by="tokens").order.describe() == made.order.describe()
    with pytest.raises(LeafError, match=r"mix\(by='tokens'\): row 0 has no leaf 'text' with a length"):
        mix(parts, [1, 1], by="tokens", leaf="text")


def test_states_belong_to_the_lengths() -> None:
    data, _ = documents(300, 2)
    other, _ = documents(300, 3)
    loader = Dataloader(mix(data, [1] * 5, by="tokens", stop="never").map(len_of), 8)
    with loader.iterate(5) as batches:
        batches.set_weights([2, 1, 1, 1, 1])
        state = batches.get_state()
    with loader.iterate(state) as batches:
        assert batches.step == 5
    by_step = {0: [1] * 5, 40: [2, 1, 1, 1, 1]}
    scheduled = Dataloader(mix(data, by_step, by="tokens", stop="never").map(len_of), 8)
    assert loader.with_weights(state).rows(9).tolist() == scheduled.rows(9).tolist()
    with pytest.raises(StateError, match="the part `mix"):
        Dataloader(mix(other, [1] * 5, by="tokens", stop="never").map(len_of), 8).iterate(state)


def test_datasets_whose_lengths_are_not_known_ahead_are_refused() -> None:
    data, _ = documents(100, 4)
    web = data["web"]
    for part, message in (
        (web.to_stream(4), "the lengths of stream 'a' are not known"),
        (loadax.from_arrays(np.arange(4)).sample(np.ones(4)), "dataset 'a' draws other rows in every epoch"),
        (web.subset_per_epoch(range(4)), "dataset 'a' may have other rows in every epoch; slice before"),
        (web.map(lambda row, rng: row, rng=True), "maps that change rows in every epoch"),
        (loadax.from_documents(np.zeros(0), np.zeros(5, np.int64)), "the rows of dataset 'a' have no tokens"),
    ):
        with pytest.raises(ArgumentError, match=message):
            mix({"a": part}, [1], by="tokens")
    with pytest.raises(ArgumentError, match="version=2: by='tokens' has no earlier versions"):
        mix(data, [1] * 5, by="tokens", version=2)
