"""Limits against hanging. No test is to pass or fail by them on a machine that is busy.

Only what never ends gets that far.
"""

import time
from collections.abc import Callable
from typing import Any

HANG = 120.0
"""Seconds that a test waits for what must come: a process's end, an event, another thread.

Only a hang takes that long.
"""

ENDLESS = 3600.0
"""Seconds of sleep of what nobody may wait for: finishing at all is the proof that nobody did."""


def until(condition: Callable[[], Any], limit: float = HANG) -> None:
    """Waits until a condition holds, by looking again and again.

    Raises:
        AssertionError: when it still does not after `limit` seconds.
    """
    deadline = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < deadline, f"still not so after {limit:g} s"
        time.sleep(0.005)


def examples(count: int) -> int:
    """How many examples a law tries.

    `count` in the profile "fresh", a quarter of them in "ci", a tenth in "dev", a hundred times as many in "soak".
    """
    from hypothesis import settings  # not where worker processes import this module

    return max(1, count * settings().max_examples // 100)
