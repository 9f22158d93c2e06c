"""RunOpening: process 0 of a JAX run tells the other processes what it has learnt by opening data.

The processes count what they open. Where the n-th opening of a process is not that of process 0, or process 0 fails or
does not begin it soon, the process reads for itself: nobody depends on others.
"""

import base64
import hashlib
import json
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from math import inf
from time import sleep
from typing import Any, final

from loadax.core.distributed import this_process
from loadax.core.key_value import key_value_store
from loadax.core.log import log
from loadax.core.patience import NOTICE, Patience
from loadax.kept.shared import EXITS, register_exit

# Seconds to wait until process 0 begins what this process opens, and until a file that it wrote is there.
BEGINS = 10.0
VISIBLE = 10.0
_POLL = 0.05  # seconds
# Most bytes that are told, and of a message: the coordination service is in process 0, and limits messages to 4 MB.
MOST = 4 << 20
MESSAGE = 1 << 20

_numbers = count(1)


@final
class RunOpening:
    """An opening of data that all processes of a run do, as one of them sees it.

    Args:
        run: Key-value store of the coordination service.
        number: Number of this opening, from 1 on.
        key: Digest of what is opened.
    """

    def __init__(self, run: Any, number: int, key: str):
        self._run = run
        self._store = run.below(f"openings/{number}")
        self._key = key
        self.is_first = this_process().index == 0
        if self.is_first:
            register_exit()
            self._set("state/begun", key)

    def tell(self, content: bytes) -> None:
        """Tells the other processes; only the digest of a content that is too long."""
        text = base64.b64encode(content).decode()
        if len(content) > MOST:
            text = ""
        parts = [text[at : at + MESSAGE] for at in range(0, len(text), MESSAGE)]
        for number, part in enumerate(parts):
            self._set(f"parts/{number}/text", part)
        digest = hashlib.sha256(content).hexdigest()
        self._set("state/told", json.dumps({"parts": len(parts), "digest": digest}))
        with suppress(RuntimeError):
            self._store.forget()

    def fail(self) -> None:
        """Tells the other processes that this one has nothing to tell."""
        self._set("state/told", json.dumps({"parts": 0, "digest": ""}))

    def told(self, kept: Callable[[], bytes | None]) -> bytes | None:
        """Waits for what process 0 tells.

        Args:
            kept: Reads what an index folder has that the processes may share.

        Returns:
            The content; None if this process has to read for itself.
        """
        try:
            answer = self._wait()
            if answer is None:
                return None
            parts = [
                self._store.list(f"parts/{number}")["text"]
                for number in range(answer["parts"])
            ]
        except (RuntimeError, KeyError) as error:  # of JAX: the coordinator is gone
            log.info("process 0 does not tell what it has opened: %s", error)
            return None
        if parts:
            content: bytes | None = base64.b64decode("".join(parts))
            return content
        patience = Patience(inf, VISIBLE)
        while answer["digest"]:
            content = kept()
            found = hashlib.sha256(content or b"").hexdigest()
            if found == answer["digest"]:
                return content
            if patience.over:
                break
            sleep(_POLL)
        return None

    def _wait(self) -> Any:
        """What process 0 has told; None if it does something else, or has ended."""
        begins = Patience(inf, BEGINS)
        patience = Patience(NOTICE, inf)
        while True:
            exits = self._run.list(EXITS)
            state = self._store.list("state")
            if "told" in state and state.get("begun") == self._key:
                return json.loads(state["told"])
            if state.get("begun", self._key) != self._key or "0" in exits:
                return None
            if "begun" not in state and begins.over:
                return None
            if patience.due():
                log.warning(
                    "waiting for process 0 to open the data, for %.0f s",
                    patience.waited,
                )
            sleep(_POLL)

    def _set(self, key: str, value: str) -> None:
        try:
            self._store.set(key, value)
        except RuntimeError as error:  # the others read for themselves then
            log.info("the coordinator does not answer: %s", error)


def next_opening(key: str) -> RunOpening | None:
    """The next opening of all processes of a JAX run; None: there is one process.

    Args:
        key: Digest of what is opened.
    """
    store = key_value_store()
    if store is None:
        return None
    return RunOpening(store, next(_numbers), key)
