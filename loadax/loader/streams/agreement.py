"""EndAgreement: the processes of a run agree on the step before which its streams end.

Every process says how many steps it has read, or that its lanes have ended, in the key-value store of the coordination
service. A step is handed out when the end rule can be decided from what all have said. Processes read ahead, so most
steps need no request.
"""

import logging
import time
from collections.abc import Sequence
from itertools import count
from typing import NamedTuple, final

from loadax.errors import SourceError
from loadax.loader.streams.run import EndRule
from loadax.sharding.key_value import KeyValueStore

_log = logging.getLogger("loadax")

_FIRST_WAIT, _LONGEST_WAIT = 0.0005, 0.05  # seconds between two looks
_WARN_AFTER = 60.0
_FAILED = "failed: "

_runs = count()  # all processes make the same iterators in the same order


class _Progress(NamedTuple):
    steps: int
    ended: bool


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
        self._known = dict.fromkeys(processes, _Progress(0, False))
        self._told = _Progress(-1, False)

    def goes_on(self, step: int, steps_read: int, end: int | None) -> bool:
        """Whether a step is part of the run. Waits for the processes that have not read it yet.

        Args:
            step: The step; all earlier ones were part of it.
            steps_read: Step after the last one that this process has read.
            end: First step that this process lacks. None: not reached yet.

        Raises:
            SourceError: If another process has failed, or with `remainder="error"` has other ends.
        """
        mine = _Progress(steps_read, False) if end is None else _Progress(end, True)
        self._known[self._process] = mine
        if self._told.steps <= step and mine != self._told:
            self._store.set(f"{self._folder}/{self._process}", f"{mine.steps} {int(mine.ended)}")
            self._told = mine
        began, wait, warned = time.monotonic(), _FIRST_WAIT, False
        while (verdict := self._verdict(step)) is None:
            self._look()
            if (verdict := self._verdict(step)) is not None:
                break
            if not warned and time.monotonic() > began + _WARN_AFTER:
                warned = True
                slow = [process for process, known in self._known.items() if known.steps <= step]
                _log.warning("loadax: waiting for processes %s to read step %d of the stream", slow, step)
            time.sleep(wait)
            wait = min(2 * wait, _LONGEST_WAIT)
        return verdict

    def fail(self, error: BaseException) -> None:
        """Tells the other processes that this one can't go on."""
        self._store.set(f"{self._folder}/{self._process}", f"{_FAILED}{type(error).__name__}: {error}")

    def _look(self) -> None:
        for process, text in self._store.list(self._folder).items():
            if text.startswith(_FAILED):
                raise SourceError(
                    f"process {process} could not read its lanes of the stream, so this one stops too: "
                    f"{text.removeprefix(_FAILED)}"
                )
            steps, ended = text.split()
            if int(process) != self._process:
                self._known[int(process)] = _Progress(int(steps), ended == "1")

    def _verdict(self, step: int) -> bool | None:
        """Whether the step is part of the run; None: not known yet."""
        reads = [known.steps > step for known in self._known.values()]
        ended = [known.ended and known.steps <= step for known in self._known.values()]
        if self._rule == "first":
            return False if any(ended) else True if all(reads) else None
        if self._rule == "all":
            return True if any(reads) else False if all(ended) else None
        if not all(one or other for one, other in zip(reads, ended, strict=True)):
            return None
        if any(ended) and not all(ended):
            longer = [process for process, known in self._known.items() if known.steps > step]
            raise SourceError(
                f"remainder='error': lanes end before step {step} on some processes, and processes {longer} have more "
                "rows; pass remainder='drop' or 'pad', or lanes of equal lengths"
            )
        return not any(ended)
