"""EndAgreement: the processes of a run agree on the step before which its streams end.

Every process says how many steps it has read, or that its lanes have ended, in the key-value store of the coordination
service. A step is handed out when the end rule can be decided from what all have said. Processes read ahead, so most
steps need no request.
"""

import json
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from time import perf_counter
from typing import final

from loadax.core.key_value import (
    CoordinatorError,
    KeyValueStore,
    LoaderRuns,
    UnansweredError,
)
from loadax.errors import HostError
from loadax.loader.slots import EndRule, LaneProgress
from loadax.loader.streams.run import goes_on

# seconds between two looks
_FIRST_WAIT = 0.0005
_LONGEST_WAIT = 0.05
_CLOSED = "closed its iterator"

_runs = LoaderRuns("streams")  # all processes of a group make the same iterators


@final
class EndAgreement:
    """Decides with the other processes whether a step is part of the run.

    Args:
        keys: Texts that the processes share, of this run alone.
        process: This process.
        processes: All processes that read parts of the batches.
        rule: When the run ends.
    """

    def __init__(
        self,
        keys: KeyValueStore,
        process: int,
        processes: Sequence[int],
        rule: EndRule,
    ):
        self._keys = keys
        self._process = process
        self._rule = rule
        self._leads = process == min(processes)
        # Since when this process waits for others, and for which step; None: it does not wait.
        self.waiting: tuple[float, int] | None = None
        self._known = dict.fromkeys([process, *processes], LaneProgress(0, None, 0))
        self._ended: dict[int, str] = {}  # why other processes read no further
        # why this one does not; set by any thread, so apart
        self._left: str | None = None
        self._told = -1  # steps that this one has read, as it has told
        # whether the coordinator has answered the latest question
        self._answered = True

    def goes_on(
        self,
        step: int,
        mine: LaneProgress,
        ended_lane: str,
        check: Callable[[], None],
    ) -> bool:
        """Whether a step is part of the run. Waits for the processes that have not read it yet.

        Args:
            step: The step; all earlier ones were part of it.
            mine: LaneProgress of this process, which has read the step.
            ended_lane: Text: which lane of this process has ended first.
            check: Raises an error if waiting is in vain, or takes too long.

        Raises:
            HostError: If another process has failed, or closed its iterator.
            SourceError: As `goes_on` of this module.
        """
        self._known[self._process], wait = mine, _FIRST_WAIT
        try:
            if self._told <= step:
                self._told = mine.read
                # the coordinator sets it when it goes on
                with suppress(UnansweredError):
                    self.tell(mine)
            while (
                verdict := goes_on(self._rule, step, self._known.values(), ended_lane)
            ) is None:
                self.waiting = self.waiting or (perf_counter(), step)
                if not self._look():
                    self._check_others(step)
                    check()
                    time.sleep(wait)
                    wait = min(2 * wait, _LONGEST_WAIT)
        except CoordinatorError as error:
            raise HostError(
                f"process {self._process} can't agree with the others on the end of "
                "the stream, since the coordinator, process 0, does not answer: "
                f"{error}; start all processes again from the last saved state"
            ) from error
        finally:
            self.waiting = None
        return verdict

    def tell(self, mine: LaneProgress) -> None:
        """Tells the other processes how far this one has read its lanes."""
        self._known[self._process] = mine
        said = [*mine, self._left]
        self._keys.set(f"progress/{self._process}", json.dumps(said))

    def waiting_text(self, step: int) -> str:
        """Text: what a step waits for."""
        late = [
            process
            for process, progress in self._known.items()
            if progress.read <= step
        ]
        why = "all processes must iterate over the same loaders in the same order"
        if not self._answered:
            why = (
                "process 0, which runs the coordinator, does not answer: it is "
                "stopped or cut off; look there first"
            )
        return f"processes {late} have not read it from the stream; {why}"

    def fail(self, error: BaseException) -> None:
        """Tells the other processes that this one can't go on."""
        self._end(f"could not read its lanes: {type(error).__name__}: {error}")

    def close(self) -> None:
        """Tells the other processes that this one reads no further, so that none waits for it. Idempotent."""
        self._end(_CLOSED)

    def _end(self, why: str) -> None:
        if self._left is None:
            self._left = why
            # without the coordinator, the others end too
            with suppress(CoordinatorError):
                self.tell(self._known[self._process])
                if self._leads:
                    self._keys.forget()

    def _look(self) -> bool:
        """Asks for the progress of the others; returns whether there is any."""
        before = self._known.copy()
        self._answered = False
        with suppress(UnansweredError):
            for name, text in self._keys.list("progress").items():
                process = int(name)
                (*progress, ended) = json.loads(text)
                if process != self._process and process in self._known:
                    self._known[process] = LaneProgress(*progress)
                    if ended is not None:
                        self._ended[process] = ended
            self._answered = True
        return self._known != before

    def _check_others(self, step: int) -> None:
        """Raises if a process that has not read a step never will; tells of one that failed, if there is one."""
        for process, why in sorted(
            self._ended.items(), key=lambda ended: ended[1] == _CLOSED
        ):
            if self._known[process].read <= step:
                raise HostError(
                    f"process {process} {why}, before it had read step {step} of the "
                    "stream, so this one stops too: all processes must ask for the "
                    "same batches; start them again from the last saved state"
                )


def end_agreement(
    store: KeyValueStore, process: int, processes: Sequence[int], rule: EndRule
) -> EndAgreement:
    """The agreement of the next run of a group of processes; see `EndAgreement`."""
    return EndAgreement(_runs.next_keys(store, processes), process, processes, rule)
