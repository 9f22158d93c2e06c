"""Position, state and epochs of an iterator."""

import copy
import gc
import pickle
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any

import cloudpickle
import jax
import numpy as np
import pytest

from loadax import Dataloader, LoadaxError, chain, from_arrays, progress
from loadax.loader.execution.scheduler import PrefetchScheduler
from loadax.loader.execution.thread_pool import ThreadPool
from tests.limits import HANG, until

ROOT = Path(__file__).parents[2]
DATA = from_arrays({"x": np.arange(40)}).shuffle(seed=2)


def rows(batch: dict[str, jax.Array]) -> list[int]:
    return np.asarray(batch["x"]).tolist()


def test_set_state_goes_anywhere_also_back_and_after_the_end() -> None:
    loader = Dataloader(DATA, 8, num_epochs=2)
    with iter(loader) as batches:
        start = batches.get_state()
        for _ in batches:
            pass
        end = batches.get_state()
        batches.set_state(start)
        assert rows(next(batches)) == loader.rows(0).tolist()
        batches.set_state(7)
        assert rows(next(batches)) == loader.rows(7).tolist()
        batches.set_state(end)
        assert list(batches) == []
        batches.close()
        batches.set_state(start)
        assert rows(next(batches)) == loader.rows(0).tolist()


def test_set_state_goes_past_an_error() -> None:
    values = np.arange(40, dtype=np.int64)
    values[9] = 2**40
    with iter(Dataloader(values, 8)) as batches:
        next(batches)
        for _ in range(2):
            with pytest.raises(ValueError, match="does not fit"):
                next(batches)
        batches.set_state(batches.step + 1)
        assert np.asarray(next(batches)).tolist() == list(range(16, 24))


def test_the_first_step_after_start_is_the_last_of_all() -> None:
    loader = Dataloader(DATA, 8)
    assert [rows(batch) for batch in loader.iterate(4)] == [loader.rows(4).tolist()]
    assert list(loader.iterate(5)) == []


@pytest.mark.parametrize("epochs", [3, None])
def test_epochs_are_sized_and_numbered(epochs: int | None) -> None:
    loader = Dataloader(DATA, 8, num_epochs=epochs)
    seen = []
    for number, epoch in enumerate(islice(loader.epochs(), 3)):
        assert (epoch.number, len(epoch), repr(epoch)) == (number, 5, f"Epoch({number}, 5 batches left)")
        for inner, batch in enumerate(epoch):
            assert len(epoch) == 4 - inner
            seen.append(rows(batch))
        assert list(epoch) == []
        assert epoch.step == 5 * (number + 1)
    assert seen == [loader.rows(step).tolist() for step in range(15)]


@pytest.mark.parametrize("taken", [0, 1, 4])
def test_an_epoch_that_is_left_early_is_left_for_good(taken: int) -> None:
    loader = Dataloader(DATA, 8, num_epochs=3)
    for number, epoch in enumerate(loader.epochs()):
        for _ in range(taken):
            next(epoch)
        if taken == 0:
            assert len(epoch) == 5
        if number < 2:
            continue
        assert rows(next(epoch)) == loader.rows(10 + taken).tolist()
    assert number == 2


def test_epochs_go_on_in_the_middle_of_one() -> None:
    loader = Dataloader(DATA, 8, num_epochs=3)
    epochs = loader.epochs()
    epoch = next(epochs)
    next(epoch)
    next(epoch)
    state = epoch.get_state()
    del epoch, epochs
    assert (state["step"], state["epoch"], state["position"]) == (2, 0, 16)
    lengths, seen = [], []
    for epoch in loader.epochs(state):
        lengths.append(len(epoch))
        seen += [rows(batch) for batch in epoch]
    assert lengths == [3, 5, 5]
    assert seen == [loader.rows(step).tolist() for step in range(2, 15)]
    assert [epoch.number for epoch in loader.epochs(10)] == [2]
    assert list(loader.epochs(15)) == []


def test_an_epoch_that_was_passed_over_says_so() -> None:
    loader = Dataloader(DATA, 8, num_epochs=3)
    first, *_, last = list(loader.epochs())
    for epoch in (first, last):
        with pytest.raises(LoadaxError, match=f"epoch {epoch.number} was left before its end"):
            next(epoch)


@pytest.mark.parametrize("where", ["pause", "__init__", "start"])
def test_an_interrupt_where_batches_of_another_size_begin_loses_none(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There the reading begins anew: threads are waited for, and others started."""
    loader = Dataloader(DATA, {0: 8, 3: 16}, num_workers=1)
    original = getattr(ThreadPool, where)
    served: list[Any] = []
    left = [1]

    def interrupted(pool: ThreadPool, *arguments: Any) -> None:
        if left and len(served) == 3:
            left.pop()
            raise KeyboardInterrupt
        original(pool, *arguments)

    monkeypatch.setattr(ThreadPool, where, interrupted)
    with iter(loader) as batches:
        while batches.step < len(loader):
            try:
                served.append(rows(next(batches)))
            except KeyboardInterrupt:
                continue
    assert not left
    assert served == [loader.rows(step).tolist() for step in range(len(loader))]


def test_an_interrupt_when_threads_have_started_leaves_none_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    starts, started = ThreadPool.start, []

    def interrupted(pool: ThreadPool) -> None:
        starts(pool)
        started.extend(pool._threads)
        raise KeyboardInterrupt

    monkeypatch.setattr(ThreadPool, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        iter(Dataloader(DATA, 8, num_workers=2))
    gc.collect()
    until(lambda: not any(thread.is_alive() for thread in started))
    assert len(started) == 2


@pytest.mark.parametrize("workers", [0, 2])
def test_an_interrupt_loses_no_batch_wherever_it_comes(workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Ctrl-C may come right after the window gave a batch away, or after it said that somebody is placing."""
    loader = Dataloader(DATA, 8, num_workers=workers)
    interrupted: set[tuple[str, int]] = set()

    def interrupting(name: str) -> Any:
        original = getattr(PrefetchScheduler, name)

        def method(scheduler: PrefetchScheduler) -> Any:
            result = original(scheduler)
            on_worker = threading.current_thread() is not threading.main_thread()
            if result is not None and not on_worker and (name, batches.step) not in interrupted:
                interrupted.add((name, batches.step))
                raise KeyboardInterrupt
            return result

        return method

    monkeypatch.setattr(PrefetchScheduler, "next_batch", interrupting("next_batch"))
    monkeypatch.setattr(PrefetchScheduler, "_placement", interrupting("_placement"))
    served = []
    with iter(loader) as batches:
        while batches.step < len(loader):
            try:
                served.append(rows(next(batches)))
            except KeyboardInterrupt:
                continue
    assert served == [loader.rows(step).tolist() for step in range(5)]
    assert {name for name, _ in interrupted} >= {"next_batch"}


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("schedule", [8, {0: 8, 3: 16, 10: 8}])
def test_several_threads_on_one_iterator(schedule: Any, workers: int) -> None:
    """Each batch is handed out once, and every thread meets the end as an end."""
    loader = Dataloader(from_arrays({"x": np.arange(320)}), schedule, num_workers=workers)
    begin = threading.Barrier(4)

    def consume(batches: Any) -> list[int]:
        begin.wait()
        return [int(batch["x"][0]) for batch in batches]

    for _ in range(5):
        batches = loader.iterate()
        with ThreadPoolExecutor(4) as pool:
            consumers = [pool.submit(consume, batches) for _ in range(4)]
            found = [row for consumer in consumers for row in consumer.result(HANG)]
        assert sorted(found) == [int(loader.rows(step)[0]) for step in range(len(loader))]
        with pytest.raises(StopIteration):
            next(batches)


def test_a_thread_that_waits_when_another_one_takes_the_last_batch_and_leaves() -> None:
    """Nobody asks for more, and so nobody closes the iterator."""
    going = threading.Event()

    def slow(example: Any) -> Any:
        if example["x"] >= 8:
            going.wait(60)
        return example

    batches = Dataloader(
        from_arrays({"x": np.arange(16)}).map(slow, spec={"x": np.int64(0)}), 8, num_workers=1
    ).iterate()
    next(batches)
    with ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(next, batches, None) for _ in range(2)]
        time.sleep(0.2)  # so that both wait
        going.set()
        assert sorted(future.result(HANG) is None for future in waiting) == [False, True]
    batches.close()


@pytest.mark.processes
@pytest.mark.parametrize("workers", [0, 2])
def test_a_copy_by_fork_is_refused_at_once(workers: int) -> None:
    program = f"""
    import os, warnings
    warnings.simplefilter("ignore")
    import numpy as np, loadax
    it = loadax.Dataloader(np.arange(800), 8, num_workers={workers}).iterate()
    next(it)
    child = os.fork()
    if child == 0:
        for ask in (lambda: next(it), lambda: it.set_state(0)):
            try:
                ask()
            except loadax.errors.ClosedError as error:
                print(error, flush=True)
        os._exit(0)
    os.waitpid(child, 0)
    print(next(it)[0], flush=True)
    """
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
        cwd=ROOT,
    )
    first, second, last = result.stdout.splitlines()
    assert first == second
    assert "is its os.fork(): a fork does not have the reader threads" in first
    assert "multiprocessing.get_context('spawn')" in first
    assert last == "8"


def chained(loader: Dataloader) -> Dataloader:
    return chain([loader])


@pytest.mark.parametrize("made", [lambda loader: loader, chained], ids=["loader", "chain"])
def test_next_of_a_loader_says_what_to_write(made: Any) -> None:
    loader = made(Dataloader(DATA, 8))
    advice = r"batches = iter\(loader\), then next\(batches\).*; for a look at one, next\(loader.iterate\(\)\)"
    with pytest.raises(TypeError, match=rf"a {type(loader).__name__} has no position.*{advice}"):
        next(loader)
    look = next(loader.iterate())
    batches = iter(loader)
    assert rows(next(batches)) == rows(look) != rows(next(batches))


COPIES: dict[str, Callable[[Any], Any]] = {
    "pickle": pickle.dumps,
    "cloudpickle": lambda batches: cloudpickle.dumps([batches]),
    "copy": copy.copy,
    "deepcopy": lambda batches: copy.deepcopy({"it": batches}),
}


@pytest.mark.parametrize("way", COPIES)
def test_copies_of_iterators_say_what_to_save(way: str) -> None:
    loader = Dataloader(DATA, 8)
    with loader.iterate() as batches:
        next(batches)
        for held in (batches, next(loader.epochs(0)), progress(batches, disable=True)):
            if way != "copy" or held is batches:
                advice = r"save its get_state\(\), and continue with loader.iterate\(start=state\)"
                with pytest.raises(TypeError, match=f"can't be pickled or copied.*; {advice}"):
                    COPIES[way](held)
        state = pickle.loads(pickle.dumps(batches.get_state()))
        expected = rows(next(batches))
    with loader.iterate(start=state) as batches:
        assert rows(next(batches)) == expected


@pytest.mark.parametrize("way", COPIES)
def test_copies_of_leases_say_what_to_save(way: str) -> None:
    loader = Dataloader(DATA, 8)
    with loader.lease() as lease:
        lease.ack(next(lease).positions)
        with pytest.raises(TypeError, match=r"lease can't be pickled or copied.*; save its get_state\(\)"):
            COPIES[way](lease)
        state, expected = lease.get_state(), next(lease).positions.tolist()
    with loader.lease(state) as lease:
        assert next(lease).positions.tolist() == expected
