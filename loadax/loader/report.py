"""Is the loader the bottleneck? The verdict in a sentence, from what was measured."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, final

from loadax.loader.stats import Stats
from loadax.texts import size_text

_NOTHING = 0.02  # of the time: who waits less than that has nothing to win
_FEWEST_STEPS, _LEAST_SECONDS = 10, 1.0  # with fewer steps in less time, chance decides
_MOST_OF_IT = 0.5
_SATURATED = 0.9  # of the cores
_CROWDED = 1.5  # processes for each core
_WAITS = 0.5  # a stage whose processor time is below that part of its time mostly waits
_ONE, _NOT_TWO = 0.4, 1.25  # cores that are busy with threads of which one at a time can run
_USERS = {"read", "transform"}  # code that may hold the GIL
_WORK = {"read": "reading the source", "assemble": "laying rows out for the devices", "place": "placing on the devices"}


@final
@dataclass(frozen=True)
class Report:
    """Whether training waits for data, what the loader is busy with, and what to do. `str()` says it in a sentence.

    Attributes:
        verdict: the sentence.
        waited: the part of training's time that it waited, from the third step on; None when there are too few steps to tell.
        bottleneck: the stage that takes most of the loader's time, "read", "transform", "assemble" or "place"; or "memory", when
            workers had no room to read ahead. None when the loader is not the bottleneck.
        advice: what to try; None when there is nothing to win.
        shares: of the loader's work, by stage.
        step_seconds: what a step takes, waiting and training together.
        stats: what all of this follows from.
    """

    verdict: str
    waited: float | None
    bottleneck: str | None
    advice: str | None
    shares: dict[str, float]
    step_seconds: float
    stats: Stats

    def __str__(self) -> str:
        return self.verdict


def report(stats: Stats, maps: Sequence[str] = ()) -> Report:
    """The verdict on a run.

    Args:
        stats: of an iterator.
        maps: the names of the user's functions, for the sentence.

    Example:
        >>> fast = Stats(steps=102, measured=100, waited=0.004, trained=0.996)
        >>> print(report(fast))
        training waited 0.4% of the time: the loader is not the bottleneck
    """
    seconds = {stage: getattr(stats, stage) for stage in ("read", "transform", "assemble", "place")}
    shares = _shares(_running(stats, seconds) if _one_at_a_time(stats) else seconds)

    def made(verdict: str, waited: float | None, bottleneck: str | None = None, advice: str | None = None) -> Report:
        return Report(verdict, waited, bottleneck, advice, shares, stats.step_seconds, stats)

    if stats.measured < _FEWEST_STEPS and stats.waited + stats.trained < _LEAST_SECONDS:
        return made(_too_few(stats), None)
    share = stats.waited_share
    waited = f"training waited {percent_text(share)} of the time"
    if share < _NOTHING:
        return made(f"{waited}: the loader is not the bottleneck{_first(stats)}", share)
    if stats.measured >= _FEWEST_STEPS and stats.longest > _MOST_OF_IT * stats.waited:
        advice = "look at what ran then with it.timeline('run.html')"
        once = f"{percent_text(stats.longest / stats.waited)} of that once, at step {stats.longest_step} ({stats.longest:.2f} s)"
        return made(f"{waited}, {once}: a pause, not the loader's speed; {advice}", share, None, advice)
    stage = max(shares, key=lambda each: shares[each])
    if stats.no_room > _MOST_OF_IT * stats.wait:
        advice = f"pass prefetch_bytes of more than {size_text(stats.prefetch_bytes)}"
        return made(f"{waited}: workers are idle, because there is no room to read ahead; {advice}", share, "memory", advice)
    what = _what(stage, maps)
    how, advice = _advice(stats, stage, seconds[stage], what)
    verb = "take" if stage == "transform" and len(maps) > 1 else "takes"
    verdict = f"{waited}: {what} {verb} {percent_text(shares[stage])} of the work {_where(stats)}{how}; {advice}{_first(stats)}"
    return made(verdict, share, stage, advice)


def short_name(function: Callable[..., Any]) -> str:
    """A user's function as he calls it; a lambda by where it was written."""
    while isinstance(function, partial):
        function = function.func
    name = str(getattr(function, "__name__", None) or type(function).__name__)
    code = getattr(function, "__code__", None)
    return f"lambda ({Path(code.co_filename).name}:{code.co_firstlineno})" if name == "<lambda>" and code else name


def _too_few(stats: Stats) -> str:
    if stats.steps == 0:
        return "no batch was handed out yet, so there is nothing to tell"
    return f"too few steps to tell: {stats.steps} {'batch' if stats.steps == 1 else 'batches'}, the first one after {stats.first:.2f} s"


def _first(stats: Stats) -> str:
    """What to say of the first batch, when it took longer than all that was measured."""
    if stats.first < max(0.1, stats.waited + stats.trained):
        return ""
    return f" (but the first batch took {stats.first:.2f} s, longer than all other steps together)"


def _what(stage: str, maps: Sequence[str]) -> str:
    if stage != "transform":
        return _WORK[stage]
    if not maps:
        return "the maps' work"
    return f"map {maps[0]}" if len(maps) == 1 else f"the maps {', '.join(maps)}"


def _where(stats: Stats) -> str:
    if stats.workers == 0:
        return "on the training thread"
    kind = "processes" if stats.worker_type == "process" else "threads"
    return f"on {stats.workers} {kind if stats.workers > 1 else kind.removesuffix('es' if kind == 'processes' else 's')}"


def _advice(stats: Stats, stage: str, seconds: float, what: str) -> tuple[str, str]:
    """What the measurements say of a stage, to follow "takes 81% of the work", and what to try."""
    if stats.workers == 0:
        return "", "leave num_workers out, so that it is done while training goes on"
    if stage == "place":
        if stats.prefetch == 0:
            return ", when it is asked for", "leave prefetch out, so that batches are placed ahead"
        return "", "give the devices fewer bytes: rows as uint8 or uint16, made floats by the training step"
    apart = _at_work(stats) if stats.worker_type == "process" else 0.0
    busy = (stats.cpu + apart) / stats.elapsed if stats.elapsed else 0.0
    if busy > _SATURATED * stats.cores:
        cores = f"the machine's {stats.cores} cores are busy" if stats.cores > 1 else "the machine's only core is busy"
        return f"; {cores}", _less_work(stage, what)
    return _with_free_cores(stats, stage, seconds, what)


def _with_free_cores(stats: Stats, stage: str, seconds: float, what: str) -> tuple[str, str]:
    """What keeps a stage from going faster when the machine is not busy: seen from its processor time."""
    running = {"read": stats.read_cpu, "transform": stats.transform_cpu}.get(stage, seconds)
    if stage in _USERS and _one_at_a_time(stats):
        return ", of which one at a time runs, as code that holds the GIL does", "try worker_type='process'"
    if stats.at_work < stats.workers:
        return ", more than are of use", _less_work(stage, what)
    if stage == "transform" and running < _WAITS * seconds and stats.load > _CROWDED * stats.cores:
        # The load also counts who waits for a disk, so it tells nothing of reading.
        return f"; the machine's {stats.cores} cores are busy with other work too", "give the loader cores of its own"
    if running < _WAITS * seconds:
        part = percent_text(running / seconds)
        return f" and mostly waits ({part} of that is processor time)", f"try num_workers={2 * stats.workers}"
    if stats.workers < stats.cores:
        return f", and the machine has {stats.cores} cores", f"try num_workers={stats.cores}"
    return "", _less_work(stage, what)


def _less_work(stage: str, what: str) -> str:
    """What to try when the work itself is too much."""
    if stage == "transform":
        return f"make {what} faster, or keep the results in a file"
    return "write the data to a store that reads faster" if stage == "read" else "keep the data in the dtypes that batches have"


def _one_at_a_time(stats: Stats) -> bool:
    """Whether threads together keep one core busy, and never two: so it is where their code holds the GIL."""
    together = _at_work(stats) / stats.active if stats.active else 0.0
    return stats.worker_type == "thread" and stats.workers > 1 and _has_gil() and _ONE < together < _NOT_TWO


def _running(stats: Stats, seconds: dict[str, float]) -> dict[str, float]:
    """The seconds of the stages without the waiting for the GIL, which meets whatever stage a thread is in when another one has it."""
    took, ran = stats.read + stats.transform, stats.read_cpu + stats.transform_cpu
    part = min(1.0, ran / took) if took else 1.0
    others = {stage: seconds[stage] * part for stage in ("assemble", "place")}
    return {"read": stats.read_cpu, "transform": stats.transform_cpu, **others}


def _shares(seconds: dict[str, float]) -> dict[str, float]:
    work = sum(seconds.values())
    return {stage: each / work if work else 0.0 for stage, each in seconds.items()}


def _at_work(stats: Stats) -> float:
    """Processor seconds of all workers."""
    return stats.read_cpu + stats.transform_cpu + stats.assemble


def _has_gil() -> bool:
    enabled = getattr(sys, "_is_gil_enabled", None)  # there since Python 3.13
    return enabled is None or bool(enabled())


def percent_text(share: float) -> str:
    """A share as one would say it: `0.4%`, `38%`."""
    return f"{share:.1%}" if share < 0.1 else f"{share:.0%}"
