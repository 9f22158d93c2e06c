"""loadax on Ray: a `concurrent.futures.Executor` over Ray's tasks, for passes over all rows and `remote=`."""

from collections.abc import Callable
from concurrent import futures
from contextlib import suppress
from typing import Any, final

from loadax.sources.library import require

require("loadax.interop.ray", {"ray": "ray"}, "ray")
import ray  # noqa: E402


def executor(**options: Any) -> "RayExecutor":
    """An executor that runs each call as a task of Ray.

    It is for `executor=` of `filter`, `split_by`, `pack`, …, and for `remote=` of `Dataloader`.

    Call `ray.init(…)` first to choose a cluster. Otherwise this connects to the one that `RAY_ADDRESS` names, or starts
    one on this machine, which lives as long as the calling thread. Shutting down the executor leaves Ray running.

    Args:
        options: Options of Ray's tasks: `num_cpus=`, `max_retries=`, `resources=`, `runtime_env=`, …. By default a task
            takes one CPU, and Ray runs it again up to three times if its worker dies.

    Raises:
        UnsupportedError: If Ray is not installed; on import.
        Exception: Whatever connecting to Ray raises.
        ValueError: If Ray has no such option.

    Examples:
        ```python
        import ray
        from loadax.interop.ray import executor

        ray.init("auto")
        good = data.filter(is_good, index="/shared/good", executor=executor(num_cpus=1))
        ```
    """
    return RayExecutor(options)


@final
class RayExecutor(futures.Executor):
    """A `concurrent.futures.Executor` over Ray's tasks, made by `executor`.

    Args:
        options: Options of the tasks.
    """

    def __init__(self, options: dict[str, Any]):
        self._call = ray.remote(_call).options(**options)
        # Not by the first task: on Linux, what Ray starts is killed when the thread that started it ends.
        if not ray.is_initialized():
            ray.init()
        self._open = True
        self._pending: set[futures.Future[Any]] = set()

    def submit(
        self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> futures.Future[Any]:
        """Runs `fn(*args, **kwargs)` as a task. Cancelling its future interrupts the task if it is running.

        Raises:
            RuntimeError: After `shutdown`.
        """
        if not self._open:
            raise RuntimeError(
                "this executor was shut down; make another one by "
                "loadax.interop.ray.executor()"
            )
        reference = self._call.remote(fn, args, kwargs)
        future: futures.Future[Any] = futures.Future()
        self._pending.add(future)

        def done(future: futures.Future[Any]) -> None:
            self._pending.discard(future)
            if future.cancelled():
                # for those who wait for several futures
                future.set_running_or_notify_cancel()
                ray.cancel(reference)

        future.add_done_callback(done)
        reference.future().add_done_callback(lambda answer: _settle(future, answer))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Refuses further tasks. Ray goes on running.

        Args:
            wait: Whether to wait for all tasks.
            cancel_futures: Whether to cancel them first.
        """
        self._open = False
        if cancel_futures:
            for future in tuple(self._pending):
                future.cancel()
        if wait:
            futures.wait(tuple(self._pending))


def _settle(future: futures.Future[Any], answer: futures.Future[Any]) -> None:
    """Passes a task's outcome on, with the exception of the function itself: Ray's has the remote traceback as text."""
    error = answer.exception()
    if isinstance(error, ray.exceptions.RayTaskError):
        error.cause.__cause__ = error
        error = error.cause
    with suppress(futures.InvalidStateError):  # it was cancelled meanwhile
        future.set_result(answer.result()) if error is None else future.set_exception(
            error
        )


def _call(
    fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    return fn(*args, **kwargs)
