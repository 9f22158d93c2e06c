"""The bar: what it counts, what it shows, and that nothing is left of it."""

import io
import re
from itertools import chain
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tqdm import tqdm

import loadax
from loadax import Dataloader
from loadax.errors import ArgumentError
from loadax.interop.latest_values import LatestValues
from tests.clocks import Machine


class Screen(io.StringIO):
    """Records the output to a terminal."""

    def isatty(self) -> bool:
        return True

    def lines(self) -> list[str]:
        return [line.strip() for line in self.getvalue().replace("\n", "\r").split("\r") if line.strip()]


def loader(**options: Any) -> Dataloader:
    return Dataloader(np.arange(320, dtype=np.int32), 8, num_workers=1, **options)


@pytest.fixture(autouse=True)
def nothing_is_left() -> Any:
    yield
    assert not list(getattr(tqdm, "_instances", ()))


def test_batches_are_those_of_the_loader() -> None:
    seen = [np.asarray(batch).tolist() for batch in loadax.progress(loader(), file=Screen())]
    assert seen == np.arange(320).reshape(40, 8).tolist()


def test_repr_tells_where_the_run_is_and_what_it_waits_for() -> None:
    with loadax.progress(loader(), disable=True) as batches:
        next(batches)
        assert repr(batches) == f"<LoaderProgress of {batches._batches!r}: too few steps to tell (1; {took(batches)})>"
        assert "DataIterator(step=1, epoch=0, open)" in repr(batches)


def took(batches: Any) -> str:
    return f"the first batch took {batches.stats().first:.2f} s"


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    """A simulated one, whose clock is also the bar's."""
    machine = Machine(monkeypatch)
    monkeypatch.setattr("tqdm.std.time", machine.perf_counter)
    return machine


def test_bar_shows_steps_rates_and_waiting(machine: Machine) -> None:
    screen = Screen()
    for _ in loadax.progress(loader(num_epochs=2), file=screen, desc="train", ncols=120):
        machine.sleep(0.01)
    shown = screen.lines()
    assert shown[0].startswith("train:   0%|")
    assert "80/80" in shown[-1]
    middle = [line for line in shown if "rows/s" in line]
    assert middle
    rates = [int(line.split(" rows/s")[0].split()[-1].replace(",", "")) for line in middle]
    assert all(790 < rate < 901 for rate in rates), rates  # 8 rows in 10 ms; the first one after none
    assert all(", waited " in line and "%" in line for line in middle[1:])
    assert len(shown) < 20  # a few times a second, not at each step


def test_rows_per_second_match_the_step_rate(machine: Machine) -> None:
    machine.tick = 2.0**-14
    screen = Screen()
    with loadax.progress(loader(), file=screen, mininterval=0, ncols=120) as batches:
        for step, _ in enumerate(batches):
            machine.sleep(0.002 if step < 20 else 0.02)  # so that figures of a moment ago are others
    shown = [line for line in screen.lines() if "rows/s" in line]
    assert len(shown) > 38
    for line in shown:
        beside = re.search(r"([\d.]+)(step/s|s/step), ([\d,]+) rows/s", line)
        assert beside is not None, line
        rate = float(beside[1]) if beside[2] == "step/s" else 1 / float(beside[1])
        assert float(beside[3].replace(",", "")) == pytest.approx(8 * rate, rel=0.01, abs=1)


def test_waiting_is_shown_once_it_is_measured(machine: Machine) -> None:
    def slow(batch: Any) -> Any:
        machine.sleep(0.02)
        return batch

    screen = Screen()
    run = Dataloader(loadax.from_arrays(np.arange(80)).map_batch(slow), 8, num_workers=1, prefetch_bytes=1)
    with loadax.progress(run, file=screen, mininterval=0, ncols=120) as batches:
        assert len(list(batches)) == 10
    shown = screen.lines()
    assert all("waited" not in line for line in shown if re.search(r" [0-2]/10 ", line))
    shares = [float(line.split("waited ")[1].split("%")[0]) for line in shown if re.search(r" ([3-9]|10)/10 ", line)]
    assert len(shares) >= 8
    assert shares == [100.0] * len(shares)


@pytest.mark.parametrize("stage", ["maps", "reading"])
def test_bar_says_what_training_waits_for(stage: str, machine: Machine) -> None:
    def slow(batch: Any) -> Any:
        machine.sleep(0.02)
        return batch

    class Slow:
        def __len__(self) -> int:
            return 400

        def __getitem__(self, row: int) -> Any:
            machine.sleep(0.005)
            return np.int32(row)

    data = loadax.from_arrays(np.arange(400)).map_batch(slow) if stage == "maps" else loadax.from_source(Slow())
    screen = Screen()
    with loadax.progress(Dataloader(data, 8, num_workers=1), file=screen, mininterval=0, ncols=150) as batches:
        assert len(list(batches)) == 50
    assert re.search(rf", waited [\d.]+% for {stage}\]", screen.lines()[-1])


def test_bar_shows_values_beside_the_statistics(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "150")  # tqdm before 4.68 cuts the bar there
    screen = Screen()
    with loadax.progress(loader(), file=screen, mininterval=0, ncols=150, postfix={"lr": 1}) as batches:
        for step, _ in enumerate(batches):
            loss = jax.block_until_ready(jnp.float32(0.123456 + step))
            batches.show(loss=loss, accuracy=np.float64(step), phase="warm")
    assert not any("loss" in line for line in screen.lines() if " 1/40 " in line)
    assert re.search(r"2/40 .*lr=1, loss=0.1235, accuracy=0, phase=warm, [\d,]+ rows/s", "\n".join(screen.lines()))
    assert "loss=39.12, accuracy=39" in screen.lines()[-1]  # the bar is drawn once more when the loop ends
    with pytest.raises(ArgumentError, match=r"loss=an array of shape \[8\]: pass a number, such as loss\.mean\(\)"):
        batches.show(loss=jnp.zeros(8))


def test_bar_shows_any_value_that_it_takes() -> None:
    values = LatestValues()
    values.add({"tokens": 123_456, "seen": np.int64(7_000), "on": True, "loss": jnp.bfloat16(2.5), "z": np.array(1j)})
    assert str(values) == "tokens=123,456, seen=7,000, on=1, loss=2.5, z=1j"


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([1.5], r"loss=\[1.5\]: pass a number, a scalar array, or text"),
        ({"a": 1}, r"loss=\{'a': 1\}: pass a number, a scalar array, or text"),
        (jax.random.key(0), "loss=.*key.*: pass a number, a scalar array, or text"),
    ],
    ids=["list", "dict", "key"],
)
def test_show_refuses_a_value_before_the_bar_is_drawn(value: Any, message: str) -> None:
    with loadax.progress(loader(), file=Screen(), mininterval=0) as bar:
        next(bar)
        with pytest.raises(ArgumentError, match=message):
            bar.show(loss=value)
        assert len(list(bar)) == 39  # training goes on


def test_show_refuses_a_traced_value_and_leaves_out_none() -> None:
    screen = Screen()
    with loadax.progress(loader(), file=screen, mininterval=0, ncols=120) as bar:
        for _ in bar:
            bar.show(loss=1.5, best=None)
        with pytest.raises(ArgumentError, match="return it from the jitted function, and show the result"):
            jax.jit(lambda loss: bar.show(loss=loss))(1.0)
    assert "loss=1.5, " in screen.lines()[-1]
    assert "best" not in screen.getvalue()


def test_values_are_shown_once_the_devices_have_computed_them() -> None:
    product = jax.jit(lambda x, n: jax.lax.fori_loop(0, n, lambda _, y: y @ x, x).sum())
    matrix = jnp.full((256, 256), 1 / 256)
    jax.block_until_ready(product(matrix, 1))
    values = LatestValues()
    assert str(values) == ""
    values.add({"loss": 1})
    assert str(values) == "loss=1"
    slow = product(matrix / 2, 500)
    values.add({"loss": slow})
    assert str(values) == "loss=1"
    values.add({"loss": 3})
    assert str(values) == "loss=3"
    slower = product(matrix, 500)
    for _ in range(3):
        values.add({"loss": slower})
        assert str(values) == "loss=3"
    jax.block_until_ready(slow)
    assert str(values) in {"loss=3", "loss=256"}  # not the older one, unless the newest is computed too
    jax.block_until_ready(slower)
    assert str(values) == "loss=256"


def test_a_loop_that_runs_ahead_shows_values_all_the_same() -> None:
    product = jax.jit(lambda x, n: jax.lax.fori_loop(0, n, lambda _, y: y @ x, x).sum())
    matrix = jnp.full((256, 256), 1 / 256)
    first = product(matrix, 1)
    values = LatestValues()
    values.add({"loss": first, "step": 0})
    jax.block_until_ready(first)
    for step in range(1, 4):
        values.add({"loss": product(matrix, 500), "step": step})
    assert str(values) == "loss=256, step=0"


def test_a_donated_value_is_not_shown() -> None:
    values = LatestValues()
    loss = jax.block_until_ready(jnp.float32(1.5))
    values.add({"loss": loss})
    assert str(values) == "loss=1.5"
    for number in range(3):
        donated = jnp.float32(number)
        donated.delete()
        values.add({"loss": donated})
        assert str(values) == "loss=1.5"


def test_bar_has_the_methods_of_tqdm() -> None:
    screen = Screen()
    with loadax.progress(loader(), file=screen, mininterval=0, ncols=150, postfix={"lr": 1}) as batches:
        next(batches)
        batches.set_postfix(loss=0.25)
        assert re.search(r"1/40 .*loss=0.25, [\d,]+ rows/s\]", screen.lines()[-1])
        next(batches)
        next(batches)
        assert re.search(r"3/40 .*loss=0.25, [\d,]+ rows/s, waited [\d.]+%\]", screen.lines()[-1])
        batches.set_postfix_str("best so far")
        assert ", best so far, " in screen.lines()[-1]
        batches.set_description("epoch 1")
        assert screen.lines()[-1].startswith("epoch 1: ")
        batches.write("saved", file=screen)
        assert "saved" in screen.lines()
        batches.update(5)
        assert "8/40" in screen.lines()[-1]
        assert batches.step == 3
    first = next(line for line in screen.lines() if "0/40" in line)
    assert "lr=1" in first
    assert "rows/s" not in first


def test_bar_starts_at_the_given_step() -> None:
    screen = Screen()
    run = loader()
    with loadax.progress(run, start=30, file=screen, mininterval=0) as batches:
        assert batches.step == 30
        next(batches)
        assert batches.step == 31
        assert batches.get_state() == run.iterate(31).get_state()
        assert batches.report().waited is None
    assert "31/40" in screen.lines()[-1]


def test_iterators_and_epochs_have_a_bar() -> None:
    started = loader().iterate()
    next(started)
    for given in chain([started], loader(num_epochs=2).epochs()):
        screen = Screen()
        with loadax.progress(given, file=screen, mininterval=0) as batches:
            assert len(list(batches)) == (39 if given is started else 40)
        assert "40/40" in screen.lines()[-1]


def test_infinite_runs_have_no_total() -> None:
    screen = Screen()
    with loadax.progress(loader(num_epochs=None), file=screen, mininterval=0) as batches:
        for _ in range(100):
            next(batches)
    assert screen.lines()[-1].startswith("100step [")


def test_garbage_collection_closes_the_bar() -> None:
    for _ in loadax.progress(loader(), file=Screen()):
        break  # and the fixtures see that no thread and no bar is left


def test_an_error_ends_the_bar() -> None:
    def broken(row: Any) -> Any:
        if row >= 24:
            raise OSError("the disk is gone")
        return row

    screen = Screen()
    run = Dataloader(loadax.from_arrays(np.arange(80, dtype=np.int32)).map(broken), 8)
    with pytest.raises(OSError, match="the disk is gone"):
        list(loadax.progress(run, file=screen, mininterval=0))
    assert "3/10" in screen.lines()[-1]


def test_disabled_bar_writes_nothing() -> None:
    screen = Screen()
    assert len(list(loadax.progress(loader(), disable=True, file=screen))) == 40
    assert screen.getvalue() == ""


def test_unsuitable_arguments() -> None:
    with pytest.raises(ArgumentError, match=r"loader=\[1, 2\]: pass a Dataloader, or its iterator"):
        loadax.progress([1, 2])
    with (
        loader().iterate() as batches,
        pytest.raises(ArgumentError, match="start=3: this iterator has begun"),
    ):
        loadax.progress(batches, start=3)
    with loadax.progress(loader(), disable=True) as batches, pytest.raises(AttributeError, match="no attribute 'stpe'"):
        _ = batches.stpe
