"""ProcessExit: tells the other hosts that this process ends with an error, and limits how long JAX waits for them then.

Without it, all wait for each other for five minutes: this process in JAX's shutdown, the others in a collective.
"""

import atexit
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import final

from loadax.core.distributed import this_process
from loadax.core.key_value import CoordinatorError, key_value_store
from loadax.core.log import log
from loadax.errors import HostError

# Seconds after which a run ends because another host has: this one may be about to raise the same error.
GRACE = 5.0
# Seconds between two looks of the other hosts.
TICK = 2.0
# seconds to the end of those that wait for a process that has ended, whatever `abort_after` is
_LONGEST = 60.0
_UNANSWERED = 2.0  # seconds to wait for a coordinator that does not answer


def exit_limit(abort_after: float | None) -> float:
    """Seconds from the exit of a process to the end of those that wait for it."""
    if abort_after is None:
        return _LONGEST
    return min(_LONGEST, max(abort_after, 2 * GRACE))


def end_process() -> None:
    """Ends this process at once: exit handlers would wait for the other hosts too."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)


def ended_text(process: int, step: int, error: BaseException) -> str:
    """The sentence about a process that ends with an error."""
    words = "; ".join(
        [f"{type(error).__name__}: {error}", *getattr(error, "__notes__", ())]
    )
    return (
        f"process {process} ended before step {step} with {words}. The others can't "
        "go on without it: start all processes again from the last saved state"
    )


@final
class ProcessExit:
    """Actions of this process when it exits with an error after it has begun runs with other hosts."""

    def __init__(self) -> None:
        self._step: Callable[[], int] = lambda: 0  # of the latest run
        self._latest_limit = _LONGEST
        # seconds that JAX's shutdown may take; None: as long as it likes
        self._limit: float | None = None
        self._failed = False
        # JAX has registered its shutdown before, so it is called after this.
        atexit.register(self._limit_shutdown)

    def begin(self, step: Callable[[], int], abort_after: float | None) -> None:
        """Begins a run. The other hosts are told of an exit before handlers that were registered earlier are called.

        Args:
            step: Function that returns the next step.
            abort_after: Limit of waiting for a batch, in seconds. None: unlimited.
        """
        self._step = step
        self._latest_limit = exit_limit(abort_after)
        atexit.unregister(self._tell)
        atexit.register(self._tell)

    def fail(self) -> None:
        """Notes that a run has failed here. The program may catch that error and go on."""
        self._failed = True

    def _tell(self) -> None:
        # Python sets it to the exception that ends the program
        error = getattr(sys, "last_value", None)
        process = this_process().index
        store = key_value_store(_UNANSWERED)
        if store is None:
            return
        if error is None:
            self._limit = None
        else:
            self._limit = self._latest_limit
        if error is None or isinstance(error, HostError):
            text = ""
        else:
            text = ended_text(process, self._step(), error)
        if not text and not self._failed:
            return
        try:
            store.set(f"exits/{process}", text)
        except CoordinatorError:
            # JAX's shutdown gets no answer either
            if error is None:
                self._limit = None
            else:
                self._limit = _UNANSWERED
        else:
            # the others hear of it from the coordinator, which ends too
            time.sleep(1.5 * TICK if process == 0 else 0)

    def _limit_shutdown(self) -> None:
        if self._limit is not None:
            timer = threading.Timer(self._limit, self._end)
            timer.daemon = True
            timer.start()

    def _end(self) -> None:
        log.critical(
            "this process has failed and ends: others have not come to JAX's "
            "shutdown for %g s",
            self._limit,
        )
        end_process()


# The exit of this process.
process_exit = ProcessExit()
