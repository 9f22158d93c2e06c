"""The executor over Ray, with a stand-in of the few calls that it makes.

`python -m tests.interop.trainers ray` runs it on the real one.
"""

import importlib
import sys
import threading
from collections.abc import Iterator
from concurrent import futures
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from loadax.errors import UnsupportedError
from tests.limits import HANG


class RayTaskError(Exception):
    def __init__(self, cause: Exception):
        super().__init__("a traceback of another process")
        self.cause = cause


class StandIn(ModuleType):
    """Ray, whose tasks end when the test says so."""

    exceptions = SimpleNamespace(RayTaskError=RayTaskError)

    def __init__(self) -> None:
        super().__init__("ray")
        self.given: dict[str, Any] = {}
        self.tasks: list[futures.Future[Any]] = []
        self.cancelled: list[Any] = []
        self.started_by: list[threading.Thread] = []

    def is_initialized(self) -> bool:
        return bool(self.started_by)

    def init(self) -> None:
        self.started_by.append(threading.current_thread())

    def remote(self, function: Any) -> Any:
        return SimpleNamespace(options=self.with_options)

    def with_options(self, **options: Any) -> Any:
        self.given = options
        return SimpleNamespace(remote=self.start)

    def start(self, fn: Any, args: Any, kwargs: Any) -> Any:
        self.tasks.append(futures.Future())
        return SimpleNamespace(future=lambda task=self.tasks[-1]: task)

    def cancel(self, reference: Any) -> None:
        self.cancelled.append(reference)


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    stand_in = StandIn()
    monkeypatch.setitem(sys.modules, "ray", stand_in)
    yield stand_in
    sys.modules.pop("loadax.interop.ray", None)


def make(**options: Any) -> Any:
    return importlib.import_module("loadax.interop.ray").executor(**options)


def test_missing_ray_names_package_and_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UnsupportedError, match=r"needs ray, .*: pip install ray, or, in a clone .*'\.\[ray\]'"):
        importlib.import_module("loadax.interop.ray")


def test_results_and_errors_of_the_function_itself(ray: StandIn) -> None:
    executor = make(num_cpus=2)
    assert ray.given == {"num_cpus": 2}
    assert isinstance(executor, futures.Executor)
    answered, failed, lost = (executor.submit(pow, 2, n) for n in range(3))
    ray.tasks[0].set_result(1)
    ray.tasks[1].set_exception(RayTaskError(ZeroDivisionError("row 7")))
    ray.tasks[2].set_exception(ConnectionError("node died"))
    assert answered.result(HANG) == 1
    with pytest.raises(ZeroDivisionError, match="row 7") as caught:
        failed.result(HANG)
    assert isinstance(caught.value.__cause__, RayTaskError)  # shows the traceback of the worker
    assert isinstance(lost.exception(HANG), ConnectionError)
    executor.shutdown()


def test_ray_is_started_once_by_the_thread_that_makes_the_first_executor(ray: StandIn) -> None:
    """What Ray starts is killed when that thread ends, so it can't be one that only runs the first task."""
    executor = make()
    thread = threading.Thread(target=executor.submit, args=(abs, 1))
    thread.start()
    thread.join(HANG)
    make()
    assert ray.started_by == [threading.current_thread()]
    executor.shutdown(wait=False, cancel_futures=True)


def test_cancelling_a_future_cancels_its_task(ray: StandIn) -> None:
    executor = make()
    one, other = executor.submit(abs, 1), executor.submit(abs, 2)
    assert one.cancel()
    assert futures.wait([one], HANG).done == {one}
    ray.tasks[0].set_result(1)  # it ended before it was told
    assert (one.cancelled(), len(ray.cancelled)) == (True, 1)
    executor.shutdown(cancel_futures=True)
    assert (other.cancelled(), len(ray.cancelled)) == (True, 2)


def test_shutdown_refuses_tasks_and_says_what_to_do(ray: StandIn) -> None:
    executor = make()
    executor.shutdown()
    with pytest.raises(RuntimeError, match=r"was shut down; make another one by loadax\.interop\.ray\.executor\(\)"):
        executor.submit(abs, 1)
    make().submit(abs, 1).cancel()
