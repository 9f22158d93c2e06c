"""Clocks that tests set: a simulated machine, on which only what a test says takes time.

    def test_something(machine: Machine) -> None:
        def slow(example): machine.sleep(0.01); return example

The loader's threads are real, and so is all that they do; their clocks, waits and sleeps are simulated.
"""

import heapq
import itertools
import sys
import threading
from collections import defaultdict, deque
from types import SimpleNamespace
from typing import Any

import pytest

from loadax.core import patience
from loadax.loader.execution import monitor, pacing, producer, scheduler, thread_pool
from loadax.loader.metrics import stages, stats, timeline
from tests.limits import HANG


class _Sleeper:
    """One wait of one thread."""

    def __init__(self) -> None:
        self.over = False
        self.event = threading.Event()


class Machine:
    """A simulated machine.

    Its clock stops while any thread runs. When all wait, it jumps to the next moment at which one wakes. So what a run
    measures follows from the sleeps and the work that the test asks for, however fast or busy the real machine is.

    Args:
        patch: sets the loader's clocks and conditions, and sets them back at the test's end.
        cores: that the loader finds here.
    """

    def __init__(self, patch: pytest.MonkeyPatch, cores: int = 4):
        self.now = 1000.0
        self.tick = 0.0
        """Seconds by which a thread's clock goes on whenever that thread looks at it."""
        self._lock = threading.Lock()
        self._running = 1  # threads that neither sleep nor wait; the test's own is the first
        self._asleep: list[tuple[float, int, _Sleeper]] = []
        self._numbers = itertools.count()
        self._processor: defaultdict[int, float] = defaultdict(float)
        self._looked: defaultdict[int, float] = defaultdict(float)
        self._interpreter_taken = False
        self._interpreter_wanted: deque[_Sleeper] = deque()
        for module in (stages, scheduler, monitor, pacing, producer, timeline, patience):
            patch.setattr(module, "perf_counter", self.perf_counter)
        patch.setattr(thread_pool, "monotonic", self.perf_counter)
        patch.setattr(stages, "thread_time", self.thread_time)
        patch.setattr(monitor, "process_time", self.process_time)
        patch.setattr(scheduler, "threading", SimpleNamespace(Condition=self._condition))
        patch.setattr(
            thread_pool, "threading", SimpleNamespace(Thread=self._thread, current_thread=threading.current_thread)
        )
        patch.setattr(monitor, "os", SimpleNamespace(getloadavg=lambda: (0.0, 0.0, 0.0)))
        patch.setattr(stats, "os", SimpleNamespace(sched_getaffinity=lambda _: range(cores)))

    def perf_counter(self) -> float:
        """Seconds on the clock on the wall."""
        self._looked[threading.get_ident()] += self.tick
        return self.now + self._looked[threading.get_ident()]

    def thread_time(self) -> float:
        """Processor seconds of this thread."""
        return self._processor[threading.get_ident()]

    def process_time(self) -> float:
        """Processor seconds of all threads."""
        return sum(list(self._processor.values()))

    def sleep(self, seconds: float) -> None:
        """Lets time pass, without a processor."""
        self._wait(_Sleeper(), seconds)

    def work(self, seconds: float) -> None:
        """Keeps a processor busy as Python code does: one thread at a time."""
        with self._lock:
            wait = _Sleeper() if self._interpreter_taken else None
            self._interpreter_taken = True
            if wait is not None:
                self._interpreter_wanted.append(wait)
        if wait is not None:
            self._wait(wait)
        self._processor[threading.get_ident()] += seconds
        self.sleep(seconds)
        with self._lock:
            if self._interpreter_wanted:
                self._wake(self._interpreter_wanted.popleft())
            else:
                self._interpreter_taken = False

    def share(self, seconds: float, among: int) -> None:
        """Keeps a processor busy that so many programs want, as code without the GIL or in another process does."""
        self._processor[threading.get_ident()] += seconds
        self.sleep(seconds * among)

    def _wait(self, sleeper: _Sleeper, seconds: float | None = None) -> None:
        self._lie_down(sleeper, seconds)
        assert sleeper.event.wait(HANG), "all threads wait, and nobody for the clock"

    def _lie_down(self, sleeper: _Sleeper, seconds: float | None) -> None:
        with self._lock:
            if seconds is not None:
                heapq.heappush(self._asleep, (self.now + seconds, next(self._numbers), sleeper))
            self._running -= 1
            self._go_on()

    def _go_on(self) -> None:
        while self._running == 0 and self._asleep:
            at, _, sleeper = heapq.heappop(self._asleep)
            if not sleeper.over:
                self.now = max(self.now, at)
                self._wake(sleeper)

    def _wake(self, sleeper: _Sleeper) -> None:
        if not sleeper.over:
            sleeper.over = True
            self._running += 1
            sleeper.event.set()

    def _condition(self, lock: Any) -> "_Condition":
        return _Condition(self, lock)

    def _thread(self, **options: Any) -> "_Thread":
        return _Thread(self, **options)


class _Condition(threading.Condition):
    """A condition whose waits are the machine's."""

    def __init__(self, machine: Machine, lock: Any):
        super().__init__(lock)
        self._machine = machine
        self._sleepers: deque[_Sleeper] = deque()
        self._inner: Any = lock

    def wait(self, timeout: float | None = None) -> bool:
        sleeper = _Sleeper()
        self._sleepers.append(sleeper)
        self._machine._lie_down(sleeper, timeout)
        held = self._inner._release_save()
        try:
            assert sleeper.event.wait(HANG), "all threads wait, and nobody for the clock"
        finally:
            self._inner._acquire_restore(held)
            told = sleeper not in self._sleepers
            if not told:
                self._sleepers.remove(sleeper)
        return told

    def notify(self, n: int = 1) -> None:
        with self._machine._lock:
            while n and self._sleepers:
                sleeper = self._sleepers.popleft()
                n -= not sleeper.over
                self._machine._wake(sleeper)

    def notify_all(self) -> None:
        self.notify(sys.maxsize)


class _Thread(threading.Thread):
    """A thread of the machine."""

    def __init__(self, machine: Machine, **options: Any):
        super().__init__(**options)
        self._machine = machine
        self._over = False
        self._joining: list[_Sleeper] = []

    def start(self) -> None:
        with self._machine._lock:
            self._machine._running += 1
        super().start()

    def run(self) -> None:
        try:
            super().run()
        finally:
            with self._machine._lock:
                self._over = True
                for sleeper in self._joining:
                    self._machine._wake(sleeper)
                self._machine._running -= 1
                self._machine._go_on()

    def join(self, timeout: float | None = None) -> None:
        sleeper = _Sleeper()
        with self._machine._lock:
            if not self._over:
                self._joining.append(sleeper)
        if sleeper in self._joining:
            self._machine._wait(sleeper, timeout)
        if self._over:
            super().join(HANG)
