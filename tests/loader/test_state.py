"""The state of a run: a few integers, equal on all hosts, from which any other run of the data continues."""

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from loadax import Dataloader, Dataset, chain, concat, from_arrays, from_npy, from_source, from_stream, mix
from loadax.errors import StateError
from loadax.loader.order_hash import OrderHash
from loadax.loader.state import make_state, step_of
from loadax.plan.batches import BatchPlan, Remainder
from loadax.plan.sequential import Sequential


def data(rows: int = 120) -> Dataset:
    return from_arrays({"x": np.arange(rows)}).shuffle(seed=3)


def state_at(loader: Dataloader, step: int) -> dict[str, object]:
    with loader.iterate(step) as batches:
        found: dict[str, object] = json.loads(json.dumps(batches.get_state()))
    return found


always_o = OrderHash(from_arrays(np.arange(1)))  # for plans of any data


def test_what_a_state_is() -> None:
    state = state_at(Dataloader(data(), 8, num_epochs=None), 37)
    assert {**state, "order": 0} == {
        "version": 1,
        "step": 37,
        "batch_size": 8,
        "epoch": 2,
        "position": 56,
        "order": 0,
        "verbs": state["verbs"],
    }
    # The rows, the shuffle, and what an example looks like.
    verbs: Any = state["verbs"]
    assert len(verbs) == 3
    assert all(type(number) is int and 0 <= number < 2**31 for number in (state["order"], *verbs))


@settings(deadline=None)
@given(
    st.integers(1, 60),
    st.integers(1, 30),
    st.integers(1, 30),
    st.integers(0, 200),
    st.sampled_from(["drop", "pad"]),
    st.sampled_from(["drop", "pad"]),
)
def test_the_place_is_kept_across_batch_sizes_and_remainders(
    rows: int, size: int, other: int, step: int, remainder: Remainder, another: Remainder
) -> None:
    size, other = min(size, rows), min(other, rows)
    before = BatchPlan(Sequential(rows), size, None, remainder)
    after = BatchPlan(Sequential(rows), other, None, another)
    epoch, inner = divmod(step, before.steps_per_epoch)
    state = make_state(before, always_o, step)
    if inner * size % other:
        with pytest.raises(StateError, match="inside a batch"):
            step_of(after, always_o, state)
        return
    restored = step_of(after, always_o, state)
    if another == "drop" and inner * size // other == after.steps_per_epoch:
        assert restored == (epoch + 1) * after.steps_per_epoch  # what is left of the epoch fills no batch
    else:
        assert divmod(restored, after.steps_per_epoch) == (epoch, inner * size // other)


def test_the_order_is_the_same_wherever_the_data_is(tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    np.save(path, np.arange(100, 164))
    homes = [from_arrays(np.arange(64)), from_npy(path), from_source(list(range(64)))]
    states = [state_at(Dataloader(home.shuffle(seed=1), 8), 3) for home in homes]
    assert states[1].pop("contents")  # of the file
    assert states[0] == states[1] == states[2]


def test_functions_workers_and_meshes_are_no_part_of_it() -> None:
    one = Dataloader(data().map(lambda example: example), 8, num_workers=0)
    other = Dataloader(
        data().map(lambda example: {"x": example["x"] + 1}), 8, num_workers=2, prefetch=5, prefetch_bytes=1000
    )
    assert state_at(one, 5) == state_at(other, 5)


@pytest.mark.parametrize(
    "other",
    [
        data(121),
        from_arrays({"x": np.arange(120)}).shuffle(seed=4),
        from_arrays({"x": np.arange(120)}),
        from_arrays({"x": np.arange(120)}).shuffle(seed=3, block=4),
        data()[:],
        data().repeat(2),
        data().split(0.5)[0],
        from_arrays({"x": np.arange(120.0)}).shuffle(seed=3),
        from_arrays({"x": np.arange(240).reshape(120, 2)}).shuffle(seed=3),
        data().map(lambda example, rng: example, rng=True, seed=1),
        data().map(lambda example, rng: example, rng=True, seed=2),
        data().map_batch(lambda batch: batch),
    ],
)
def test_what_decides_the_order_is_part_of_it(other: Dataset) -> None:
    assert state_at(Dataloader(other, 8), 2)["order"] != state_at(Dataloader(data(), 8), 2)["order"]


@pytest.mark.parametrize(
    ("saved", "now", "match"),
    [
        (data().shuffle(seed=3), data().shuffle(seed=4), r"shuffle\(4\)` differs from the saved run"),
        (data(), data(121), "the part `121 rows` differs from"),
        (
            data(),
            from_arrays({"x": np.arange(121.0)}).shuffle(seed=3),
            r"the parts `121 rows`, `an example, with \['x'\]: float64\[\]` differ from the saved run",
        ),
        (data(), data().repeat(2), r"repeat\(2\) was not in the saved run"),
        (data()[:99], data(), r"the saved run had one more verb after shuffle\(3\)"),
        (data().map(lambda row: row), data(), "had one more verb"),
        (data(121).map(lambda row: row), data(), "the part `120 rows` differs from the saved run"),
        (data(), data().map(lambda row: row), r"map\(\) was not in the saved run"),
        (data(), data().map(lambda row, _: row, with_index=True), r"map\(with_index=True\) was not in the saved run"),
        (data(), data().map(lambda row, _: row, with_epoch=True), r"map\(with_epoch=True\) was not in the saved run"),
        (data(), data().rename({"x": "y"}), r"the part `rename\({'x': 'y'}\)` differs from the saved run"),
        (
            data().map(lambda row, rng: row, rng=True, seed=1),
            data().map(lambda row, rng: row, rng=True, seed=2),
            r"map\(rng=True, seed=2\)` differs from the saved run",
        ),
        (
            data(),
            from_arrays({"x": np.arange(120.0)}).shuffle(seed=3),
            r"an example, with \['x'\]: float64\[\]` differs from the saved run",
        ),
        (
            concat([data(), data()]),
            concat([data(), data().shuffle(seed=1)]),
            r"concat: 0 = 120 rows, shuffle\(3\); 1 = 120 rows, shuffle\(3\), shuffle\(1\)` differs from the saved run",
        ),
    ],
)
def test_which_verb_differs(saved: Dataset, now: Dataset, match: str) -> None:
    state = state_at(Dataloader(saved, 8), 2)
    with pytest.raises(StateError, match=rf"the state's 'order' is .*{match}.*; build the dataset as it was then"):
        Dataloader(now, 8).iterate(state)


@pytest.mark.parametrize(("lanes", "text"), [(1, "1 lane: pass lanes=1 "), (3, "3 lanes: pass lanes=3 ")])
def test_a_state_of_other_lanes_says_how_many_there_were(lanes: int, text: str) -> None:
    def stream(lanes: int) -> Dataloader:
        data = from_stream(lambda lane, lanes: iter(range(lane, 240, lanes)), lanes=lanes, spec=np.int64(0))
        return Dataloader(data, 24, shard_index=0, shard_count=1)

    state = state_at(stream(lanes), 2)
    with pytest.raises(StateError, match=f"; it had {text}to what opens the stream, as it was then"):
        stream(2).iterate(state)


def test_changed_key_seed_is_refused_by_name_and_the_advice_continues() -> None:
    rows = from_arrays({"x": np.arange(120)}).shuffle(seed=3)
    state = state_at(Dataloader(rows, 8, key_seed=5), 4)
    assert state["key_seed"] == 5
    for other in (6, None):
        loader = Dataloader(rows, 8, key_seed=other)
        with pytest.raises(StateError, match=rf"'key_seed' is 5, this loader's is {other}, .*; pass key_seed=5"):
            loader.iterate(state)
        with loader.iterate() as batches, pytest.raises(StateError, match="key_seed"):
            batches.set_state(state)
        with pytest.raises(StateError, match=r"loaders\[0\]: the state's 'key_seed'"):
            chain([loader, loader]).iterate(state)
    loader = Dataloader(rows, 8, key_seed=5)
    with loader.iterate(state) as batches:
        assert np.array_equal(next(batches)["key"], loader[4]["key"])
    with loader.iterate({**state, "key_seed": np.int32(5)}) as batches:  # as checkpoint libraries restore it
        assert batches.step == 4


@pytest.mark.parametrize("key_seed", [5, None])
def test_state_without_a_key_seed_opens_as_before(key_seed: int | None) -> None:
    state = state_at(Dataloader(data(), 8), 4)
    assert "key_seed" not in state
    with Dataloader(data(), 8, key_seed=key_seed).iterate(state) as batches:
        assert batches.step == 4


def test_errors_of_other_options_of_pack_differ() -> None:
    documents = from_source([{"t": np.arange(5 + row % 7)} for row in range(200)])

    def packed(window: int) -> dict[str, Dataset]:
        return {
            "rows": documents.pack(16, method="best_fit", window=window),
            "stream": documents.to_stream(lanes=8).pack(16, method="best_fit", window=window),
        }

    for name, saved in packed(50).items():
        state = state_at(Dataloader(saved, 8, num_epochs=1), 1)
        texts = []
        for window in (60, 100):
            with pytest.raises(StateError, match=f"pack.*{window}.*from the saved run") as raised:
                Dataloader(packed(window)[name], 8).iterate(state)
            texts.append(str(raised.value).partition("this dataset's")[2])
        assert texts[0] != texts[1]


def test_a_state_of_an_older_loadax_is_restored() -> None:
    loader = Dataloader(data(), 8)
    state = state_at(loader, 5)
    del state["verbs"]
    state["order"] = loader.phases[0].order(0, 40)  # 16 hexadecimal digits, of which `order` is now the first 31 bits
    assert int(str(state["order"]), 16) >> 33 == state_at(loader, 5)["order"]
    with loader.iterate(state) as batches:
        assert batches.step == 5
    with pytest.raises(StateError, match="its length, element spec, verbs, seeds or weights differ from the saved run"):
        Dataloader(data(121), 8).iterate(state)


@pytest.mark.parametrize("as_array", [np.asarray, jnp.asarray, np.int64])
def test_a_state_whose_numbers_are_arrays(as_array: Any) -> None:
    """As checkpoint libraries give them back."""
    loader = Dataloader(data(), 8).skip(range(1, 3))
    state: Any = state_at(loader, 5)
    assert state["skipped"]
    arrays = jax.tree.map(lambda leaf: as_array(leaf) if isinstance(leaf, int) else leaf, state)
    for restored in (arrays, {**arrays, "skipped": np.array(state["skipped"])}):
        with loader.iterate(restored) as batches:
            assert batches.step == 5
            batches.set_state(restored)
            assert batches.get_state() == state
    with pytest.raises(StateError, match="the state's 'step' is True; it must be an int"):
        loader.iterate({**arrays, "step": np.array(True)})


def test_threads_get_the_hashes_of_their_own_position(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread asks for those of another position while these are kept."""
    parts = {"a": np.arange(90), "b": np.arange(90)}
    data = mix(parts, {0: [1, 1], 40: [3, 1]}, stop="never")
    expected = [OrderHash(data)(0, position) for position in (10, 60)]
    assert expected[0] != expected[1]
    order, others = OrderHash(data), [60]
    kept: list[Any] = [None, "", []]

    def keep(_: OrderHash, hashes: Any) -> None:
        kept[:] = hashes
        while others:
            order(0, others.pop())

    monkeypatch.setattr(OrderHash, "_kept", property(lambda _: tuple(kept), keep), raising=False)
    assert [order(0, position) for position in (10, 60)] == expected
