"""The stages of a piece of work: timed for the statistics, and marked for a profiler. Knows no JAX, so that worker processes need none."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from time import perf_counter, thread_time
from typing import Any, Final, Literal, final

from loadax.loader.stats import Timing

Stage = Literal["read", "transform", "assemble"]
Mark = Callable[[str], AbstractContextManager[Any]]
"""Marks a stretch of a thread's time with a name, as `jax.profiler.TraceAnnotation` does."""

_NOTHING: Final = nullcontext()


def unmarked(_name: str) -> AbstractContextManager[None]:
    """No mark: where no profiler looks."""
    return _NOTHING


@final
class StageClock:
    """Takes the time of one piece of work: `with clock("read"): …`, each stage as often as it comes, never one inside another."""

    def __init__(self, mark: Mark = unmarked):
        self._mark = mark
        self._began = perf_counter()
        self._seconds: dict[str, float] = {}
        self._cpu: dict[str, float] = {}

    def __call__(self, stage: Stage) -> "StageClock":
        self._stage = stage
        return self

    def __enter__(self) -> None:
        self._open = self._mark("loadax." + self._stage)
        self._open.__enter__()
        self._at, self._cpu_at = perf_counter(), thread_time()

    def __exit__(self, *error: object) -> None:
        self._cpu[self._stage] = self._cpu.get(self._stage, 0.0) + thread_time() - self._cpu_at
        self._seconds[self._stage] = self._seconds.get(self._stage, 0.0) + perf_counter() - self._at
        self._open.__exit__(None, None, None)

    def timing(self) -> Timing:
        """What was taken so far."""
        took, cpu = self._seconds.get, self._cpu.get
        return Timing(
            read=took("read", 0.0),
            transform=took("transform", 0.0),
            assemble=took("assemble", 0.0),
            read_cpu=cpu("read", 0.0),
            transform_cpu=cpu("transform", 0.0),
            began=self._began,
        )
