"""Pieces of a loader on the simulated executor that judges passes too: none is waited for without end."""

import threading
from concurrent.futures import BrokenExecutor, Executor, Future
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, strategies as st

from loadax.loader.remote import engine
from loadax.loader.remote.engine import POLICY, TaskEngine
from loadax.work.worker import PayloadSource
from tests.work.world import World

SOURCE = PayloadSource("", "remote", {}, None)
TRIES = 2


class Workers(Executor):
    """An executor of a simulated world, whose tasks answer with the number of their piece."""

    def __init__(self, world: World):
        self.world, self.is_broken = world, False
        self.pending: list[tuple[Future[Any], int]] = []

    def submit(self, fn: Any, text: str, names: Any) -> Any:  # type: ignore[override]
        if self.is_broken:
            raise BrokenExecutor("broken before")
        future: Future[Any] = Future()
        self.pending.append((future, names["arguments"][1]))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        assert not wait


class NoThread:
    """Looks once which workers there are; whoever looks for lost ones is a test."""

    def __init__(self, target: Any, args: Any = (), *, name: str, daemon: bool):
        self.target, self.args, self.name = target, args, name

    def start(self) -> None:
        if self.name == "loadax-workers":
            self.target(*self.args)


@given(data=st.data(), pieces=st.integers(1, 12))
def test_pieces_are_answered_or_read_here_in_bounded_time(data: st.DataObject, pieces: int) -> None:
    """Losses, waits and breaks in any order, then workers that answer again."""
    made: list[Workers] = []

    def make() -> Executor:
        made.append(Workers(world))
        return made[-1]

    def happens() -> None:
        workers = made[-1]
        action = data.draw(st.sampled_from(["answer", "answer", "lose", "break", "wait"]))
        if action == "wait" or not workers.pending:
            return
        if action == "break":
            workers.is_broken = True
            for future, _ in workers.pending:
                if future.set_running_or_notify_cancel():
                    future.set_exception(BrokenExecutor("a process died"))
            workers.pending.clear()
            return
        future, number = workers.pending.pop(data.draw(st.integers(0, len(workers.pending) - 1)))
        if future.set_running_or_notify_cancel():
            if action == "answer":
                future.set_result(number)
            else:
                future.set_exception(OSError("node died"))

    def ask(tasks: TaskEngine, piece: int) -> bool:
        """Whether workers have answered; else the piece is read here."""
        given_out, tries = tasks.submit(world, (SOURCE, piece)), 1  # type: ignore[arg-type]
        while given_out is not None:
            answered = tasks.next(world, given_out, tries)  # type: ignore[arg-type]
            if answered is not None and not answered.future.cancelled() and answered.future.exception() is None:
                if answered.future.result() == piece:
                    tasks.filled(answered)
                    return True
                continue  # late, for an earlier piece
            tries += 1
            given_out = tasks.submit(world, (SOURCE, piece)) if tries <= TRIES else None  # type: ignore[arg-type]
        return False

    with pytest.MonkeyPatch.context() as patched:
        world = World(0, happens, patched)
        threads = SimpleNamespace(**{**vars(threading), "Thread": NoThread})
        patched.setattr(engine, "threading", threads)
        patched.setattr(engine, "perf_counter", lambda: world.now)
        tasks = TaskEngine(make, 4)
        for piece in range(pieces):
            began, was_lost = world.now, tasks.is_lost
            answered = ask(tasks, piece)
            assert not (was_lost and answered)  # nothing is given out until a probe is answered
            assert world.now - began <= 2 * TRIES * (POLICY.least + POLICY.later) * (piece + 2)
            assert not (answered and tasks.is_lost)
        if tasks.is_lost:  # as the thread that looks for workers does
            tasks.open()
            probe = tasks._submit(world, (SOURCE, -1))  # type: ignore[arg-type]
            assert probe is not None
            probe.future.set_result(None)
            assert not tasks.is_lost
        tasks.close()
