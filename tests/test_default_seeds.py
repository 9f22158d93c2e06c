"""Random maps whose seed was not given: parts of a dataset and phases of a chain draw different numbers."""

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import loadax
from loadax import Dataloader, Dataset, chain, concat, from_arrays, mix
from loadax.errors import ArgumentError, StateError

ROWS = 24
BASE = from_arrays({"x": np.arange(ROWS)})


def drawn(example: Any, rng: Any) -> Any:
    return {"u": np.float32(rng.random())}


def batch_drawn(batch: Any, rngs: Any) -> Any:
    return {"u": np.array([rng.random() for rng in rngs], np.float32)}


def one(**more: Any) -> Dataset:
    return BASE.map(drawn, rng=True, **more)


def numbers(data: Dataset, rows: int) -> Any:
    values = data.read(range(rows))
    leaves = values.values() if "u" not in values else [values]
    return np.concatenate([_flat(leaf) for leaf in leaves])


def _flat(tree: Any) -> Any:
    if isinstance(tree, dict | list | tuple):
        return np.concatenate([_flat(each) for each in (tree.values() if isinstance(tree, dict) else tree)])
    return np.asarray(tree)


BATCHED = BASE.map_batch(batch_drawn, rng=True)
LISTS = BASE.flat_map(lambda example, rng: [{"u": np.float32(rng.random())}], fan_out=1, rng=True)
PARTS: dict[str, Callable[[int], Dataset]] = {
    "mix": lambda version: mix({"a": one(), "b": one()}, [1, 1], version=version if version == 1 else 3),
    "mix of one dataset twice": lambda version: mix([BATCHED, BATCHED], [1, 1], version=version if version == 1 else 3),
    "zip": lambda version: loadax.zip({"a": one(), "b": BATCHED}, version=version),
    "zip of lists": lambda version: loadax.zip({"a": LISTS, "b": LISTS}, version=version),
    "method": lambda version: one().zip(one(), version=version),
    "concat": lambda version: concat([one(), one(), one()], version=version),
    "nested": lambda version: loadax.zip(
        {
            "a": concat([one(), one()], version=version),
            "b": concat([BATCHED, one()], version=version),
            "c": loadax.zip({"one": one().repeat(2), "two": one().repeat(2)}, version=version),
        },
        version=version,
    ),
    "windows": lambda version: loadax.zip((one().windows(1), one().windows(1)), version=version),
    "packed deeper": lambda version: mix(
        [loadax.zip({"a": one(), "b": one()}, version=version), loadax.zip({"a": one(), "b": one()}, version=version)],
        [1, 1],
        version=version if version == 1 else 3,
    ),
}


@pytest.mark.parametrize("name", PARTS)
def test_parts_draw_different_numbers(name: str) -> None:
    data, before = PARTS[name](2), PARTS[name](1)
    values, earlier = (_flat(each.read(range(len(each)))).ravel() for each in (data, before))
    assert len(np.unique(values)) == len(values)
    assert len(np.unique(earlier)) <= len(earlier) * 2 // 3
    with Dataloader(before, 8, num_workers=0).iterate(2) as batches:
        state = json.loads(json.dumps(batches.get_state()))
    with pytest.raises(StateError, match="whose defaults were others, pass version=1 to"):
        Dataloader(data, 8).iterate(state)
    with Dataloader(PARTS[name](1), 8, num_workers=0).iterate(state) as batches:  # the advice, to the letter
        assert _flat(next(batches)).ravel().tolist() == _flat(before.read(range(16, 24))).ravel().tolist()


def test_numbers_before_there_was_version_2() -> None:
    """Golden: those of a map with seed=0 alone, which a run of before drew in all parts."""
    alone = one(seed=0).read(range(ROWS))["u"].tolist()
    assert one().read(range(ROWS))["u"].tolist() == alone
    assert concat([one(), one()], version=1).read(range(2 * ROWS))["u"].tolist() == [*alone, *alone]
    assert concat([one(), BASE.map(lambda row: {"u": np.float32(row["x"])})]).read(range(ROWS))["u"].tolist() == alone
    assert concat([one()]).read(range(ROWS))["u"].tolist() == alone


def test_seeds_that_are_given_stay() -> None:
    for joined in (concat([one(seed=0), one(seed=0)]), concat([one(seed=0), one()])):
        assert joined.read(range(ROWS))["u"].tolist() == one(seed=0).read(range(ROWS))["u"].tolist()
    zipped = loadax.zip({"a": one(seed=5), "b": one(seed=5), "c": one(), "d": one()}).read(range(ROWS))
    assert zipped["a"]["u"].tolist() == zipped["b"]["u"].tolist() == one(seed=5).read(range(ROWS))["u"].tolist()
    assert not (zipped["c"]["u"] == zipped["d"]["u"]).any()


def test_states_of_unaffected_programs_are_those_of_before() -> None:
    plain = BASE.map(lambda row: {"u": np.float32(row["x"])})
    joined: list[tuple[Dataset, Dataset]] = [
        (concat([one(), plain]), concat([one(), plain], version=1)),
        (concat([one(seed=3), one(seed=3)]), concat([one(seed=3), one(seed=3)], version=1)),
        (concat([plain, plain]), concat([plain, plain], version=1)),
        (
            loadax.zip({"a": one(seed=1), "b": one(seed=2)}),
            loadax.zip({"a": one(seed=1), "b": one(seed=2)}, version=1),
        ),
    ]
    for now, before in joined:
        assert Dataloader(now, 8).phases[0].order(0, 0) == Dataloader(before, 8).phases[0].order(0, 0)


def test_no_row_is_mapped_again_for_the_spec() -> None:
    calls = []

    def counted(example: Any, rng: Any) -> Any:
        calls.append(example["x"])
        return {"u": np.float32(rng.random())}

    parts = [BASE.map(counted, rng=True) for _ in range(2)]
    _ = [part.spec for part in parts]
    once = len(calls)  # twice a part, to find randomness of its own
    _ = mix(parts, [1, 1]).spec
    assert len(calls) == once


def phases(version: int = 2) -> Any:
    loaders = [
        Dataloader(one(), 8, num_workers=0),
        Dataloader(BASE.map_batch(batch_drawn, rng=True), 8, num_workers=0, num_epochs=2).skip([1]),
        Dataloader(loadax.concat([one(), one()]), 8, num_workers=0),
    ]
    return chain(loaders, version=version)


def test_phases_of_a_chain_draw_different_numbers() -> None:
    run = phases()
    values = np.concatenate([np.asarray(batch["u"]) for batch in run])
    assert len(values) == len(np.unique(values)) == 8 * len(run) == 8 * (3 + 5 + 6)
    for step in (0, 4, 13):
        assert np.asarray(run[step]["u"]).tolist() == values[8 * step : 8 * step + 8].tolist()
    assert values[:ROWS].tolist() == one().read(range(ROWS))["u"].tolist()  # the first one has its own numbers
    again = chain([chain(run.loaders[:2]), run.loaders[2]])
    assert np.concatenate([np.asarray(batch["u"]) for batch in again]).tolist() == values.tolist()


def test_state_of_a_chain_of_before_names_its_version() -> None:
    before = phases(version=1)
    with before.iterate(5) as batches:
        state = json.loads(json.dumps(batches.get_state()))
    with pytest.raises(StateError, match=r"loaders\[1\]: .*pass version=1 to chain\(\)$"):
        phases().iterate(state)
    with phases(version=1).iterate(state) as batches:
        assert np.asarray(next(batches)["u"]).tolist() == np.asarray(before[5]["u"]).tolist()
    assert len(np.unique(np.concatenate([np.asarray(batch["u"]) for batch in before]))) < 8 * len(before)
    with before.iterate(2) as batches:  # in the first phase nothing differs
        state = batches.get_state()
    phases().iterate(state).close()


def test_phases_that_repeat_keys_or_order_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    chain([Dataloader(BASE, 8, key_seed=3), Dataloader(BASE, 8, key_seed=3)])
    assert "loaders[1] has key_seed=3, as loaders[0], so rows get equal keys in both" in caplog.text
    assert "such as key_seed=4" in caplog.text
    caplog.clear()
    shuffled = BASE.shuffle(0)
    chain([Dataloader(shuffled, 8), Dataloader(BASE, 8), Dataloader(BASE.shuffle(0), 24)])
    assert "loaders[2] reads the rows of loaders[0] in the same random order; pass another seed" in caplog.text
    caplog.clear()
    # The advice, to the letter; and other data, or data in order.
    chain([Dataloader(BASE, 8, key_seed=3), Dataloader(BASE, 8, key_seed=4)])
    chain([Dataloader(shuffled, 8), Dataloader(BASE.shuffle(seed=1), 24)])
    chain([Dataloader(shuffled, 8), Dataloader(from_arrays({"x": np.arange(ROWS)}).shuffle(0), 24)])
    chain([Dataloader(BASE, 8), Dataloader(BASE, 8)])
    assert not caplog.text


@pytest.mark.parametrize("verb", [concat, chain, lambda parts, version: loadax.zip(parts, version=version)])
def test_other_versions_are_refused(verb: Any) -> None:
    parts = [Dataloader(BASE, 8)] if verb is chain else [BASE]
    with pytest.raises(ArgumentError, match="version=3: pass 2, or 1 to go on with a run that began with it"):
        verb(parts, version=3)
