"""Text of what a waiting consumer waits for: rows, file, map, worker and its stack."""

import sys
import threading
import traceback
from collections.abc import Mapping, Sequence
from types import FrameType
from typing import Any, NamedTuple

from loadax.core.formatting import rows_text, short_name
from loadax.loader.execution.producer import BatchProducer

# shown
_MOST = 4
_FRAMES = 8


class Activity(NamedTuple):
    """Activity of a thread.

    Args:
        what: "reads", "places" or "starts workers".
        began: When it began, in seconds.
        producer: Producer of the batches.
        first: First step that it is for.
        steps: Number of steps that are read together.
        low: First row of the piece in each of them.
        high: Row after the last one.
    """

    what: str
    began: float
    producer: BatchProducer
    first: int
    steps: int = 1
    low: int = 0
    high: int = 0


def waiting_text(step: int, activities: Mapping[int, Activity], now: float) -> str:
    """Activities for a step, a line each, with stacks.

    Args:
        step: Step that is waited for.
        activities: What each thread does, by its identifier.
        now: Present time, in seconds, on the clock of the activities.
    """
    # The batch that is waited for comes first, then whatever is busy: pieces of it may still be to be read.
    busy = sorted(
        activities.items(), key=lambda item: (item[1].first > step, item[1].began)
    )
    if not busy:
        return "no thread of the loader has anything to do"
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    frames = sys._current_frames()  # noqa: SLF001 - the documented way to other threads' stacks
    lines = []
    for thread, activity in busy[:_MOST]:
        frame = frames.get(thread)
        what = activity.what
        producer = activity.producer
        if what == "reads":
            rows = producer.rows(
                activity.first, activity.steps, activity.low, activity.high
            )
            within = _map_of(producer.maps, frame) + producer.executor.worker_text(
                thread
            )
            what = f"reads {rows_text(rows)}{_files(producer, rows)}{within}"
        if frame is None:
            stack = ""
        else:
            stack = "".join(traceback.format_stack(frame)[-_FRAMES:])
        lines.append(
            f"{names.get(thread, 'a thread')} {what} for {now - activity.began:.0f} "
            f"s\n{stack}".rstrip("\n")
        )
    if len(busy) > _MOST:
        lines.append(f"and {len(busy) - _MOST} more")
    return "\n".join(lines)


def _files(producer: BatchProducer, rows: Any) -> str:
    try:
        if len(rows):
            located = producer.source.locate(int(rows[0]))
        else:
            located = []
    except Exception:  # noqa: BLE001 - the source may be what is broken
        return ""
    if located:
        return f" of {located[0].file}"
    return ""


def _map_of(maps: Sequence[Any], frame: FrameType | None) -> str:
    """The map whose function is on the stack."""
    if frame is None:
        codes = set()
    else:
        codes = {called.f_code for called, _ in traceback.walk_stack(frame)}
    for transform in maps:
        function = getattr(transform, "function", None)
        if function is not None and getattr(function, "__code__", None) in codes:
            return f" in map {short_name(function)}"
    return ""
