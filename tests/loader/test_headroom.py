"""What a perfect loader would gain.

Replayed batches are the run's own, cost nothing, and are compared over the same steps.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from loadax import Dataloader, from_source
from loadax.errors import ArgumentError, ClosedError, LeafError
from loadax.loader.headroom import Headroom, Replay, compare
from loadax.loader.metrics.stats import Stats
from loadax.protocols import ArraySpec, Integers
from tests.clocks import Machine


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


class Slow:
    """Rows that are their number; each read takes a while."""

    def __init__(self, machine: Machine | None, seconds: float):
        self.spec = {"x": ArraySpec((), np.dtype(np.int32))}
        self.machine, self.seconds = machine, seconds

    def __len__(self) -> int:
        return 10_000

    def read(self, rows: Integers) -> Any:
        if self.machine is not None:
            self.machine.sleep(self.seconds)
        return {"x": rows.astype(np.int32)}


def loader(machine: Machine | None = None, seconds: float = 0.0, **options: Any) -> Dataloader:
    return Dataloader(from_source(Slow(machine, seconds)), 8, num_workers=1, prefetch_bytes=1, **options)


def train(batches: Any, steps: int, machine: Machine) -> None:
    for _ in range(steps):
        next(batches)
        machine.sleep(0.002)


def test_it_hands_out_the_first_batches_again_and_again() -> None:
    run = Dataloader(np.arange(80, dtype=np.int32), 8)
    with run.replay(3) as replay:
        assert replay.num_steps == len(run) == 10
        assert replay.batch_size == 8
        seen = [np.asarray(batch).tolist() for batch in replay]
    assert seen == [list(range(8 * (step % 3), 8 * (step % 3) + 8)) for step in range(10)]


def test_it_begins_and_ends_where_the_run_does() -> None:
    run = Dataloader(np.arange(80, dtype=np.int32), 8)
    replay = run.replay(start=7)
    assert (replay.step, len(list(replay)), replay.step) == (7, 3, 10)
    with pytest.raises(StopIteration):
        next(replay)
    with pytest.raises(ArgumentError, match="start=10: the run ends at step 10; pass an earlier start"):
        run.replay(start=10)
    with pytest.raises(ArgumentError, match="batches=0"):
        run.replay(0)


def test_a_run_without_end_is_replayed_without_end() -> None:
    with Dataloader(np.arange(16, dtype=np.int32), 8, num_epochs=None).replay(1) as replay:
        assert replay.num_steps is None
        for _ in range(50):
            next(replay)
        assert replay.stats().steps == 50
        assert repr(replay) == "Replay(step=50, 1 batches)"


def test_a_slow_loader_has_headroom(machine: Machine) -> None:
    run = loader(machine, 0.04)
    with run.iterate() as batches, run.replay() as replay:
        train(batches, 20, machine)
        train(replay, 20, machine)
        found = replay.headroom(batches)
        assert found == replay.headroom(batches.stats())
    assert replay.stats().wait == 0.0
    assert found.perfect == pytest.approx(0.002)
    assert 0.036 < found.seconds < 0.043
    assert found.gain == pytest.approx(found.seconds / 0.002 - 1)
    assert str(found).endswith(" times as fast")


def test_in_one_call(machine: Machine) -> None:
    calls: list[Any] = []

    def step(batch: Any) -> Any:
        calls.append(int(batch["x"][0]))
        machine.sleep(0.004)
        return batch["x"] + 1

    found = loader(machine, 0.01).headroom(step, steps=20, batches=2)
    assert calls == [*range(0, 160, 8), *[0, 8] * 10]
    assert found.perfect == pytest.approx(0.004)
    assert found.gain > 0.5
    with pytest.raises(ArgumentError, match="steps=11"):
        loader(machine).headroom(step, steps=11)
    with pytest.raises(
        ArgumentError, match="the run has handed out 5 batches, too few to measure; run at least 12 steps"
    ):
        Dataloader(np.arange(40, dtype=np.int32), 8).headroom(lambda batch: batch)


@pytest.mark.parametrize(
    ("seconds", "perfect", "sentence"),
    [
        (0.014, 0.0121, "a perfect loader would take 12.1 ms a step instead of 14 ms: 16% faster"),
        (0.0005, 0.00047, "a perfect loader would take 0.47 ms a step instead of 0.5 ms: 6.4% faster"),
        (0.0199, 0.01, "a perfect loader would take 10 ms a step instead of 19.9 ms: 99% faster"),
        (0.02, 0.01, "a perfect loader would take 10 ms a step instead of 20 ms: 2 times as fast"),
        (0.025, 0.01, "a perfect loader would take 10 ms a step instead of 25 ms: 2.5 times as fast"),
        (0.0997, 0.01, "a perfect loader would take 10 ms a step instead of 99.7 ms: 10 times as fast"),
        (1.5, 0.001, "a perfect loader would take 1 ms a step instead of 1.5e+03 ms: 1500 times as fast"),
        (0.014, 0.001, "a perfect loader would take 1 ms a step instead of 14 ms: 14 times as fast"),
        (
            0.0141,
            0.014,
            "a perfect loader would take 14 ms a step, and this one takes 14.1 ms: there is nothing to gain",
        ),
        (0.013, 0.014, "a perfect loader would take 14 ms a step, and this one takes 13 ms: there is nothing to gain"),
        (0.0, 0.0, "a perfect loader would take 0 ms a step, and this one takes 0 ms: there is nothing to gain"),
    ],
)
def test_the_sentence(seconds: float, perfect: float, sentence: str) -> None:
    assert str(Headroom(seconds, perfect)) == repr(Headroom(seconds, perfect)) == sentence


def test_figures_are_means_of_the_measured_steps() -> None:
    real, perfect = Stats(measured=20, waited=1.0, trained=3.0), Stats(measured=10, waited=0.0, trained=1.5)
    assert compare(real, perfect) == Headroom(0.2, 0.15)
    with pytest.raises(ArgumentError, match="the replay has handed out 3 batches"):
        compare(real, Stats(steps=3, measured=1))


def test_a_donated_batch_is_named() -> None:
    step = jax.jit(lambda batch: jax.tree.map(lambda leaf: leaf + 1, batch), donate_argnums=0)
    with loader().replay(1) as replay:
        jax.block_until_ready(step(next(replay)))
        with pytest.raises(
            LeafError, match=r"leaf \['x'\] is deleted: the training step donates its batch.*donate_argnums"
        ):
            next(replay)
    with Dataloader(jnp.zeros((16, 2)), 8).replay(1) as replay:
        next(replay).delete()
        with pytest.raises(LeafError, match="leaf of the batch is deleted"):
            next(replay)


def test_closed() -> None:
    replay: Replay = loader().replay()
    replay.close()
    with pytest.raises(ClosedError, match=r"this replay is closed; make a new one with loader.replay\(\)"):
        next(replay)


def test_measuring_leaves_training_s_own_iterator_the_newest() -> None:
    loader = Dataloader(np.zeros((320, 4), np.float32), 8)
    loader.warmup()
    with loader.replay():
        pass
    loader.headroom(lambda batch: batch.sum(), steps=12)
    before = loader.ledger
    assert before is None
    with loader.iterate() as batches:
        found = loader.ledger
        assert found is batches.ledger
        with loader.replay():
            assert loader.ledger is found


def test_a_replay_has_the_host_leaves_of_its_batches() -> None:
    names = np.array([f"row {row}" for row in range(80)])
    run = Dataloader({"x": np.arange(80, dtype=np.int32), "name": names}, 8, host_leaves="name")
    with run.replay(3) as replay:
        with pytest.raises(ArgumentError, match=r"no batch was handed out yet; call next\(\) first"):
            _ = replay.host
        for batch in replay:
            assert replay.host["name"].tolist() == names[np.asarray(batch["x"])].tolist()
            assert replay.host.step == (replay.step - 1) % 3
    with loader().replay() as replay, pytest.raises(ArgumentError, match="this loader places all leaves; name those"):
        _ = replay.host
