"""`warmup()` reads the same batches earlier and leaves nothing behind."""

import gc
import threading
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from loadax import Dataloader, from_arrays, from_source
from loadax.errors import StateError
from tests.clocks import Machine
from tests.limits import until
from tests.loader.oracle import NONE, Oracle, ReadSource, arrays, assert_placed, mesh_of

TREE = arrays(200)


def loader_of(**given: Any) -> tuple[Dataloader, ReadSource]:
    source = ReadSource(TREE)
    return Dataloader(from_source(source).shuffle(seed=0), 16, **({"num_workers": 2, "num_epochs": 2} | given)), source


def workers() -> set[str]:
    return {thread.name for thread in threading.enumerate() if thread.name.startswith("loadax")}


def test_the_next_iterator_takes_over_what_was_read() -> None:
    loader, source = loader_of()
    loader.warmup()
    until(lambda: source.counts.sum() >= 3 * 16)
    oracle = Oracle(TREE, loader.dataset.order, NONE, 16)
    with iter(loader) as batches:
        until(lambda: batches.stats().ready == 2)
        for step, batch in enumerate(batches):
            assert_placed(batch, oracle.batch(step))
    assert step + 1 == len(loader)
    assert source.counts.sum() == len(loader) * 16  # none was read twice


@pytest.mark.parametrize("take", ["iterate", "epochs", "a state"])
def test_from_any_step(take: str) -> None:
    loader, source = loader_of()
    at = loader.iterate(5)
    state = at.get_state()
    at.close()
    source.counts[:] = 0
    loader.warmup(state if take == "iterate" else 5)
    if take == "epochs":
        batches: Any = (batch for epoch in loader.epochs(5) for batch in epoch)
    else:
        batches = loader.iterate(5 if take == "iterate" else state)
    expected = Oracle(TREE, loader.dataset.order, NONE, 16)
    for step, batch in enumerate(batches, 5):
        assert_placed(batch, expected.batch(step))
    assert source.counts.sum() == (len(loader) - 5) * 16


def test_another_start_or_mesh_begins_anew() -> None:
    loader, _ = loader_of(partition=P("data"), num_epochs=None)
    expected = Oracle(TREE, loader.dataset.order, NONE, 16)
    loader.warmup(3)
    with loader.iterate(4) as batches:
        assert len(workers()) == 2
        assert_placed(next(batches), expected.batch(4))
    loader.warmup(4)
    mesh = mesh_of({"data": 4, "model": 2})
    with jax.set_mesh(mesh), loader.iterate(4) as batches:
        assert len(workers()) == 2
        assert_placed(next(batches), expected.batch(4), mesh)


def test_only_one_iterator_takes_it() -> None:
    loader, _ = loader_of()
    loader.warmup()
    with iter(loader) as one, loader.iterate() as other:
        for _ in range(4):
            np.testing.assert_array_equal(next(one)["label"], next(other)["label"])
        assert one.step == other.step == 4


def test_statistics_begin_when_it_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch)
    loader, source = loader_of(num_epochs=None)
    loader.warmup()
    machine.sleep(60.0)
    assert source.counts.sum() >= 3 * 16
    with iter(loader) as batches:
        before = batches.stats()
        assert (before.steps, before.wait) == (0, 0)
        assert before.elapsed == 0.0
        next(batches)
        assert batches.stats().steps == 1


def test_what_nobody_takes_ends_with_the_loader_or_the_next() -> None:
    loader, _ = loader_of(num_epochs=None)
    loader.warmup()
    loader.warmup(2)
    until(lambda: len(workers()) == 2)
    shorter = loader.skip(3)
    gc.disable()  # nothing but the last reference is needed
    try:
        del loader
        until(lambda: not workers())
    finally:
        gc.enable()
    assert_placed(next(iter(shorter)), Oracle(TREE, shorter.dataset.order, NONE, 16).batch(0))


def test_it_goes_on_as_any_iterator() -> None:
    loader, _ = loader_of(num_epochs=3)
    loader.warmup()
    with iter(loader) as batches:
        next(batches)
        batches.set_state(20)
        assert_placed(next(batches), Oracle(TREE, loader.dataset.order, NONE, 16).batch(20))
        assert sum(1 for _ in batches) == len(loader) - 21
    with pytest.warns(UserWarning, match="starts at step 0 again"):
        next(iter(loader))


def test_what_fails_is_said_when_the_batch_is_asked_for() -> None:
    broken = [{"x": np.zeros(4 if row == 3 else 2)} for row in range(32)]
    loader = Dataloader(from_source(broken), 8, num_workers=1)
    loader.warmup()
    with pytest.raises(ValueError, match="row 3"), iter(loader) as batches:
        next(batches)
    with pytest.raises(StateError):
        loader.warmup(10_000)


@pytest.mark.parametrize(
    "extra",
    [
        {"num_workers": 0},
        pytest.param({"num_workers": 1, "worker_type": "process"}, marks=pytest.mark.processes),
        {"keep_on_device": True},
        {"device_map": lambda example: example["image"] + 1},
    ],
)
def test_whatever_feeds_it(extra: dict[str, Any]) -> None:
    loader = Dataloader(from_arrays(TREE).shuffle(seed=0), 16, **extra)
    loader.warmup()
    with iter(loader) as batches:
        for step, batch in enumerate(batches):
            np.testing.assert_array_equal(*(jax.tree.leaves(each)[0] for each in (batch, loader[step])))
