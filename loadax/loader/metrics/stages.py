"""StageClock: times the stages of a read task and marks them for a profiler. Without JAX, for worker processes."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from time import perf_counter, thread_time
from typing import Any, Literal, final

from loadax.files.waits import storage_seconds
from loadax.loader.metrics.stats import Timing

Stage = Literal["read", "transform", "assemble"]
# Context manager that marks a span of a thread's time by name, such as `jax.profiler.TraceAnnotation`.
Mark = Callable[[str], AbstractContextManager[Any]]


def unmarked(_name: str) -> AbstractContextManager[None]:
    """Marks nothing."""
    return nullcontext()


@final
class StageClock:
    """Measures the stages of one piece: `with clock("read"): …`. Stages may repeat but not nest."""

    def __init__(self, mark: Mark = unmarked):
        self._mark = mark
        self._began = perf_counter()
        self._seconds: dict[str, Any] = {
            "read": 0.0,
            "transform": 0.0,
            "assemble": 0.0,
        }
        self._cpu = self._seconds.copy()
        self._storage = 0.0

    def __call__(self, stage: Stage) -> "StageClock":
        self._stage = stage
        return self

    def __enter__(self) -> None:
        self._open = self._mark(f"loadax.{self._stage}")
        self._open.__enter__()
        self._at = perf_counter()
        self._cpu_at = thread_time()
        self._storage_at = storage_seconds()

    def __exit__(self, *error: object) -> None:
        self._cpu[self._stage] += thread_time() - self._cpu_at
        self._seconds[self._stage] += perf_counter() - self._at
        if self._stage == "read":
            self._storage += storage_seconds() - self._storage_at
        self._open.__exit__(None, None, None)

    def timing(self) -> Timing:
        """Times measured so far."""
        read, transform, assemble = self._seconds.values()
        cpu = {f"{stage}_cpu": seconds for stage, seconds in self._cpu.items()}
        return Timing(
            read, transform, assemble, began=self._began, storage=self._storage, **cpu
        )
