"""How much work a call is, counted: the same on every machine, however busy it is.

What looks at every row, host or document does so in a loop of Python, which runs a line for each, or in arrays of
NumPy, which take memory.
"""

import sys
import tracemalloc
from collections.abc import Callable
from typing import Any


def lines_of(function: Callable[[], Any]) -> int:
    """How many lines of Python are run to call it, on this thread: the same however busy the machine is."""
    count = 0

    def trace(_frame: Any, event: str, _value: Any) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        function()
    finally:
        sys.settrace(before)
    return count


def peak_of(function: Callable[[], Any]) -> int:
    """How many bytes it holds at most while it is called."""
    tracemalloc.start()
    try:
        function()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
