"""Runs of tasks on a simulated engine, whose clock, losses and answers the tests choose."""

import sys
import types
from collections import Counter
from concurrent.futures import Executor, ProcessPoolExecutor
from multiprocessing import get_context
from random import Random

import joblib  # type: ignore[import-untyped]
import pytest
from hypothesis import given, strategies as st

from loadax.errors import ArgumentError, WorkerError
from loadax.kept import kept_pass
from loadax.work import executors
from loadax.work.worker import Raised
from tests.work.world import World

MOST = 400  # steps of a simulation with faults; after these, all that is submitted ends well


@given(data=st.data(), count=st.integers(0, 14), window=st.integers(1, 6))
def test_any_losses_and_waits_finish_each_task_once(data: st.DataObject, count: int, window: int) -> None:
    steps = 0
    in_row, lost = 0, Counter[int]()

    def count_loss(number: int) -> None:
        nonlocal in_row
        in_row += 1
        lost[number] += 1

    def happens() -> None:
        nonlocal steps, in_row
        steps += 1
        pending = [(engine, index) for engine in world.engines for index in range(len(engine.pending))]
        action = data.draw(st.sampled_from(["finish", "finish", "lose", "break", "forget", "wait"]))
        if steps > MOST or not pending:
            action = "finish" if pending else "wait"
        engine, index = data.draw(st.sampled_from(pending)) if pending else (world.engines[-1], 0)
        if action == "wait":
            world.now += 1000 if steps > MOST else data.draw(st.sampled_from([1.0, 3.0, 50.0, 1000.0]))
            in_row += 1  # a silence is a loss of any task
            lost.update(world.submitted)
        elif action == "break":
            lost.update({number for _, number, _, _ in engine.pending})
            in_row += 1
            engine.destroy()
        elif action == "finish":
            in_row = in_row if engine.pending[index][1] in world.numbers.finished else 0
            engine.finish(index)
        elif action == "lose":
            count_loss(engine.pending[index][1])
            engine.lose(index, OSError("node died"))
        else:
            engine.pending.pop(index)

    with pytest.MonkeyPatch.context() as patched:
        world = World(count, happens, patched)
        try:
            world.run(window=window)
        except WorkerError:
            assert max(lost.values()) > 3 or (in_row > 3 and not world.numbers.finished)
            assert max(world.numbers.finished.values(), default=1) == 1
        else:
            assert world.numbers.finished == dict.fromkeys(range(count), 1)
        assert all(engine.is_shut for engine in world.engines)


@given(data=st.data(), count=st.integers(1, 14), window=st.integers(1, 6), remote=st.booleans())
def test_error_of_a_task_is_raised_and_of_threads_the_first(
    data: st.DataObject, count: int, window: int, remote: bool
) -> None:
    failing = data.draw(st.sets(st.integers(0, count - 1), min_size=1))

    def happens() -> None:
        (engine,) = world.engines
        engine.finish(data.draw(st.integers(0, len(engine.pending) - 1)))

    def call(number: int, _attempt: int) -> Raised | float:
        return Raised(KeyError(number)) if number in failing else 0.1

    with pytest.MonkeyPatch.context() as patched:
        world = World(count, happens, patched, remote)
        with pytest.raises(KeyError) as caught:
            world.run(window=window, call=call)
    (number,) = caught.value.args
    assert number in failing if remote else number == min(failing)


def test_straggler_gets_one_copy_and_the_first_answer_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    def happens() -> None:
        (engine,) = world.engines
        others = [index for index, (_, number, *_) in enumerate(engine.pending) if number != 5]
        if others:
            engine.finish(others[0])
        elif len(engine.pending) == 2:
            engine.finish(1)

    world = World(40, happens, monkeypatch)
    world.run(window=6, call=lambda *_: 0.5)
    assert world.submitted == [*range(40), 5]
    assert 1.5 < world.now < 40 * 0.2 + 3
    assert world.numbers.finished == dict.fromkeys(range(40), 1)


def test_tasks_that_wait_for_their_turn_are_no_stragglers(monkeypatch: pytest.MonkeyPatch) -> None:
    def happens() -> None:
        world.now += 1.8  # so that a task waits up to 80 s in the queue of the engine
        world.engines[0].finish(0)

    world = World(40, happens, monkeypatch)
    world.run(window=40, call=lambda *_: 2.0)
    assert world.submitted == [*range(40)]


def test_engine_that_finishes_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(40, lambda: world.engines[-1].destroy(), monkeypatch)  # noqa: PLW0108 - made later
    message = r"lost tasks 4 times in a row, without finishing any, task \d+ last: BrokenExecutor: a process died; look"
    with pytest.raises(WorkerError, match=message):
        world.run()
    assert len(world.engines) == 4


@pytest.mark.parametrize("tries", [1, 2, 3])
@pytest.mark.parametrize("is_instance", [True, False])
def test_losses_spread_over_tasks_leave_each_task_its_tries(
    tries: int, is_instance: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine loses the first tries of every task, one after the other."""
    lost = Counter[int]()

    def happens() -> None:
        engine = next(engine for engine in reversed(world.engines) if engine.pending)
        future, number, *_ = engine.pending[0]
        if lost[number] < tries and not future.cancelled():
            lost[number] += 1
            engine.lose(0, OSError("node died"))
        else:
            engine.finish(0)

    world = World(40, happens, monkeypatch)
    world.run(world.make() if is_instance else None, window=16)
    assert world.numbers.finished == dict.fromkeys(range(40), 1)


def test_pools_that_break_spread_over_tasks_leave_each_task_its_tries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once a task is finished, each pool breaks three times for every other one."""
    broken = Counter[int]()

    def happens() -> None:
        engine = world.engines[-1]
        number = engine.pending[0][1]
        if world.numbers.finished and broken[number] < 3:
            broken[number] += 1
            engine.destroy()
        else:
            engine.finish(0)

    world = World(6, happens, monkeypatch)
    world.run(window=4)
    assert world.numbers.finished == dict.fromkeys(range(6), 1)


def test_hopeless_executor_is_given_up_after_few_losses(monkeypatch: pytest.MonkeyPatch) -> None:
    losses = 0

    def happens() -> None:
        nonlocal losses
        (engine,) = world.engines
        index = next(index for index, (future, *_) in enumerate(engine.pending) if not future.cancelled())
        engine.lose(index, OSError("node died"))
        losses += 1

    world = World(400, happens, monkeypatch)
    with pytest.raises(WorkerError, match=r"lost tasks 7 times in a row, without finishing any, task 3 last: OSError"):
        world.run(world.make(), window=64)
    assert losses == 7


@pytest.mark.parametrize(("workers", "most"), [(1, 64), (3, 192), (8, 256), (None, 256)])
def test_executor_has_at_most_64_tasks_a_worker_and_256_in_all(
    workers: int | None, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    largest = 0

    def happens() -> None:
        nonlocal largest
        (engine,) = world.engines
        largest = max(largest, len(engine.pending))
        engine.finish(0)

    world = World(400, happens, monkeypatch)
    engine = world.make()
    if workers is not None:
        engine._max_workers = workers  # type: ignore[attr-defined]
    world.run(engine, window=kept_pass.WINDOW)
    assert largest == most


def test_task_that_kills_workers_is_named_after_all_others_of_the_window(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pool of two processes breaks soon after task 3 is one of those that run."""
    random = Random(0)

    def happens() -> None:
        engine = world.engines[-1]
        others = [index for index, (_, number, *_) in enumerate(engine.pending[:2]) if number != 3]
        if len(others) == 2 or (others and random.random() < 0.5):
            engine.finish(others[0])
        else:
            engine.destroy()

    world = World(20, happens, monkeypatch)
    with pytest.raises(WorkerError, match=r"has lost task.* 4 times.*: BrokenExecutor"):
        world.run(window=30)
    assert world.numbers.finished == dict.fromkeys({*range(20)} - {3}, 1)
    assert len(world.engines) <= 8


def test_silent_engine_is_made_again_and_late_answers_count(monkeypatch: pytest.MonkeyPatch) -> None:
    def happens() -> None:
        first = world.engines[0]
        if len(world.numbers.finished) < 2:
            first.finish(0)
        elif len(world.engines) == 2:  # the first one was only slow
            engine = first if first.pending else world.engines[1]
            engine.finish(0)

    world = World(8, happens, monkeypatch)
    world.run(window=8)
    assert (len(world.engines), len(world.submitted)) == (2, 8 + 6)
    assert not world.engines[0].pending
    assert 60 < world.now < 70


def test_silent_executor_that_can_not_be_made_again_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def happens() -> None:
        if world.now > 200:
            world.engines[0].finish(0)

    world = World(3, happens, monkeypatch)
    world.run(world.make())
    lines = [record.getMessage() for record in caplog.records]
    assert [line.partition(",")[0] for line in lines] == ["no task has ended for 60 s", "no task has ended for 120 s"]
    assert "of 3 that the executor has; if it has lost its workers, end this program and run it again" in lines[0]


@pytest.mark.parametrize("end", ["destroy", "shutdown"])
def test_unusable_executor_names_the_function_that_makes_one(end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(3, lambda: world.engines[-1].finish(0), monkeypatch)
    engine = world.make()
    getattr(engine, end)()
    message = r"the Engine can't be used any more \(.+\); pass a function that makes one, such as executor=lambda: Engi"
    with pytest.raises(WorkerError, match=message):
        world.run(engine)
    world = World(3, lambda: world.engines[-1].finish(0), monkeypatch)
    world.run(world.make)  # as it says
    assert world.numbers.is_complete()


def test_worker_without_loadax_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    error = ModuleNotFoundError("No module named 'loadax'", name="loadax")
    world = World(3, lambda: world.engines[-1].lose(0, error), monkeypatch)
    with pytest.raises(ArgumentError, match=r"executor can't import loadax \(No module named 'loadax'\); install it"):
        world.run()


def test_objects_that_run_tasks_but_are_no_executors_are_refused_with_one_that_is() -> None:
    loky = joblib.externals.loky
    with pytest.raises(ArgumentError, match=r"executor=joblib\.externals\.loky\.get_reusable_executor") as error:
        executors.checked_engine(joblib.Parallel(n_jobs=2))
    assert "Parallel(n_jobs=2) is not an executor" in str(error.value)
    assert executors.checked_engine(loky.get_reusable_executor) is loky.get_reusable_executor  # as it advises
    assert issubclass(loky.ProcessPoolExecutor, Executor)
    slurm = type("AutoExecutor", (), {"__module__": "submitit.auto.auto", "submit": len})()
    with pytest.raises(ArgumentError, match=r"executor=distributed\.Client\(SLURMCluster\(…\)\)\.get_executor\(\)"):
        executors.checked_engine(slurm)
    with pytest.raises(ArgumentError, match="a function without arguments that makes one"):
        executors.checked_engine(lambda workers: workers)


@pytest.mark.parametrize("method", ["spawn", "forkserver", "fork"])
def test_pool_whose_main_script_is_no_file_is_refused_if_it_imports_it(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    main = types.ModuleType("__main__")
    main.__file__ = "<stdin>"
    monkeypatch.setitem(sys.modules, "__main__", main)
    with ProcessPoolExecutor(1, get_context(method)) as pool:
        if method == "fork":
            assert executors.open_engine(pool) is pool
            return
        with pytest.raises(ArgumentError, match=r"remote= is a pool of spawned processes, .* <stdin>, that is no file"):
            executors.open_engine(lambda: pool, "remote")
