"""EndAgreement: the processes of a run agree on the step before which its streams end.

Every process says how many steps it has read, or that its lanes have ended, in the key-value store of the coordination
service. A step is handed out when the end rule can be decided from what all have said. Processes read ahead, so most
steps need no request.
"""

import logging
import time
from collections.abc import Collection, Sequence
from itertools import count
from typing import final

from loadax.errors import SourceError
from loadax.loader.streams.run import EndRule, Progress
from loadax.sharding.key_value import KeyValueStore

_log = logging.getLogger("loadax")

_FIRST_WAIT, _LONGEST_WAIT = 0.0005, 0.05  # seconds between two looks
_WARN_AFTER = 60.0
_FAILED = "failed: "

_runs = count()  # all processes make the same iterators in the same order


def goes_on(rule: EndRule, step: int, known: Collection[Progress], ended_lane: str) -> bool | None:
    """Whether a step is part of the run, if earlier ones are. None: not known yet.

    Args:
        rule: When the run ends.
        step: The step.
        known: Progress of all processes.
        ended_lane: Text: which lane has ended first.

    Raises:
        SourceError: If the rule is "error", and some rows of the step are missing.
    """
    read = all(progress.read > step for progress in known)
    lacking = any(progress.lacking is not None and progress.lacking <= step for progress in known)
    filled = any(progress.filled > step for progress in known)
    if rule == "first":
        return False if lacking else True if read else None
    if rule == "all":
        return True if filled else False if read else None
    if read and lacking and filled:
        raise SourceError(
            f"remainder='error': {ended_lane}, and the batch of step {step} has only some of its rows; pass "
            "remainder='drop' or 'pad', or lanes of equal lengths that fill whole batches"
        )
    return not lacking if read else None


@final
class EndAgreement:
    """Decides with the other processes whether a step is part of the run.

    Args:
        store: Texts that all processes share.
        process: This process.
        processes: All processes that read parts of the batches.
        rule: When the run ends.
    """

    def __init__(self, store: KeyValueStore, process: int, processes: Sequence[int], rule: EndRule):
        self._store, self._process, self._rule = store, process, rule
        self._folder = f"streams/{next(_runs)}"
        self._known = dict.fromkeys(processes, Progress(0, None, 0))
        self._told = Progress(-1, None, 0)

    def goes_on(self, step: int, mine: Progress, ended_lane: str) -> bool:
        """Whether a step is part of the run. Waits for the processes that have not read it yet.

        Args:
            step: The step; all earlier ones were part of it.
            mine: Progress of this process, which has read the step.
            ended_lane: Text: which lane of this process has ended first.

        Raises:
            SourceError: If another process has failed, or as `goes_on` of this module.
        """
        self._known[self._process] = mine
        if self._told.read <= step:
            numbers = (mine.read, -1 if mine.lacking is None else mine.lacking, mine.filled)
            self._store.set(f"{self._folder}/{self._process}", " ".join(map(str, numbers)))
            self._told = mine
        began, wait, warned = time.monotonic(), _FIRST_WAIT, False
        while (verdict := goes_on(self._rule, step, self._known.values(), ended_lane)) is None:
            if self._look():
                continue
            if not warned and time.monotonic() > began + _WARN_AFTER:
                warned = True
                slow = [process for process, progress in self._known.items() if progress.read <= step]
                _log.warning("loadax: waiting for processes %s to read step %d of the stream", slow, step)
            time.sleep(wait)
            wait = min(2 * wait, _LONGEST_WAIT)
        return verdict

    def fail(self, error: BaseException) -> None:
        """Tells the other processes that this one can't go on."""
        self._store.set(f"{self._folder}/{self._process}", f"{_FAILED}{type(error).__name__}: {error}")

    def _look(self) -> bool:
        """Asks for the progress of the others; returns whether there is any."""
        before = dict(self._known)
        for process, text in self._store.list(self._folder).items():
            if text.startswith(_FAILED):
                raise SourceError(
                    f"process {process} could not read its lanes of the stream, so this one stops too: "
                    f"{text.removeprefix(_FAILED)}"
                )
            if int(process) != self._process:
                read, lacking, filled = map(int, text.split())
                self._known[int(process)] = Progress(read, None if lacking < 0 else lacking, filled)
        return self._known != before
