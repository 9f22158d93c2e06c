"""Report: whether the loader is the bottleneck, in a sentence, from what was measured."""

import sys
from dataclasses import dataclass
from typing import final

from loadax.core.formatting import size_text
from loadax.loader.metrics.stats import Stats
from loadax.loader.reports.loader_info import LoaderInfo

_NOTHING = 0.02  # of the time: who waits less than that has nothing to win
_FEWEST_STEPS, _LEAST_SECONDS = 10, 1.0  # with fewer steps in less time, chance decides
_MOST_OF_IT = 0.5
_SATURATED = 0.9  # of the cores
_CROWDED = 1.5  # processes for each core
_WAITS = 0.5  # a stage whose processor time is below that part of its time mostly waits
_SLEEPS = 0.1  # and below that, however busy the machine is, it could not use a processor
_ONE, _NOT_TWO = 0.4, 1.25  # cores that are busy with threads of which one at a time can run
_SLOWS = 0.1  # of a core: Python code that takes as much on threads is felt by the training step
_ASK = "ask loader.headroom(step)"
_WORK = {"read": "reading the source", "assemble": "laying rows out for the devices", "place": "placing on the devices"}


@final
@dataclass(frozen=True, repr=False)
class Report:
    """Whether training waits for data, what the loader is busy with, and what to do. `str()` says it in a sentence.

    Attributes:
        verdict: the sentence.
        waited: the part of training's time that it waited, from the third step on; None when there are too few steps to
            tell.
        bottleneck: the stage that takes most of the loader's time, "read", "transform", "assemble" or "place"; or
            "memory", when workers had no room to read ahead. None when the loader is not the bottleneck, as far as can
            be told.
        advice: what to try; None when there is nothing to win.
        shares: of the loader's work, by stage, from the third step on.
        step_seconds: what a step takes, waiting and training together.
        stats: what all of this follows from.
        look: where to see more, where figures don't tell; `str()` goes on with it.
    """

    verdict: str
    waited: float | None
    bottleneck: str | None
    advice: str | None
    shares: dict[str, float]
    step_seconds: float
    stats: Stats
    look: str | None = None

    def __str__(self) -> str:
        return self.verdict if self.look is None else f"{self.verdict}; {self.look}"

    __repr__ = __str__


def report(stats: Stats, setup: LoaderInfo | None = None) -> Report:
    """The verdict on a run.

    Args:
        stats: of an iterator.
        setup: how the loader is made. None: nothing is known of that.

    Examples:
        >>> fast = Stats(steps=102, measured=100, waited=0.004, trained=0.996)
        >>> print(report(fast))
        training waited 0.4% of the time: the loader is not the bottleneck
    """
    setup = setup or LoaderInfo()
    work = stats.settled()
    seconds = {stage: getattr(work, stage) for stage in ("read", "transform", "assemble", "place")}
    held = (work.transform > 0 or setup.python_source) and _one_at_a_time(work)
    shares = _shares(_running(work, seconds) if held else seconds)

    def made(
        verdict: str,
        waited: float | None,
        bottleneck: str | None = None,
        advice: str | None = None,
        look: str | None = None,
    ) -> Report:
        return Report(verdict, waited, bottleneck, advice, shares, stats.step_seconds, stats, look)

    if stats.measured < _FEWEST_STEPS and stats.waited + stats.trained < _LEAST_SECONDS:
        return made(_too_few(stats), None)
    share = stats.waited_share
    waited = f"training waited {percent_text(share)} of the time"
    if share < _NOTHING:
        slows = _slows(work, setup)
        if slows is None:
            return made(f"{waited}: the loader is not the bottleneck{_first(stats)}", share)
        stage, cores = slows
        advice = f"try worker_type='process', or {_ASK}"
        keeps = f"{_what(stage, setup)} {_verb('keep', stage, setup)} {percent_text(cores)} of a core busy on threads"
        return made(
            f"{waited}, but {keeps}: if it is Python code, it slows the step itself; {advice}{_first(stats)}",
            share,
            stage,
            advice,
        )
    # Threads that take the GIL from each other bring what they have in hand all at once: that is no pause.
    if stats.measured >= _FEWEST_STEPS and stats.longest > _MOST_OF_IT * stats.waited and not held:
        look = "look at what ran then with it.timeline('run.html')"
        once = (
            f"{percent_text(stats.longest / stats.waited)} of that once, "
            f"at step {stats.longest_step} ({stats.longest:.2f} s)"
        )
        return made(f"{waited}, {once}: a pause, not the loader's speed", share, look=look)
    stage = max(shares, key=lambda each: shares[each])
    if work.no_room > _MOST_OF_IT * work.wait:
        advice = f"pass prefetch_bytes of more than {size_text(stats.prefetch_bytes)}"
        return made(
            f"{waited}: workers are idle, because there is no room to read ahead; {advice}", share, "memory", advice
        )
    how, advice = _advice(work, stage, seconds[stage], setup)
    takes = f"{_what(stage, setup)} {_verb('take', stage, setup)} {percent_text(shares[stage])}"
    verdict = f"{waited}: {takes} of the work {_where(stats)}{how}; {advice}{_first(stats)}"
    return made(verdict, share, stage, advice)


def _too_few(stats: Stats) -> str:
    if stats.steps == 0:
        return "no batch was handed out yet, so there is nothing to tell"
    batches = f"{stats.steps} {'batch' if stats.steps == 1 else 'batches'}"
    return f"too few steps to tell: {batches}, the first one after {stats.first:.2f} s"


def _first(stats: Stats) -> str:
    """What to say of the first batch, when it took longer than all that was measured."""
    if stats.first < max(0.1, stats.waited + stats.trained):
        return ""
    return f" (but the first batch took {stats.first:.2f} s, longer than all other steps together)"


def _what(stage: str, setup: LoaderInfo) -> str:
    maps = setup.maps
    if stage != "transform":
        return _WORK[stage]
    if not maps:
        return "the maps' work"
    return f"map {maps[0]}" if len(maps) == 1 else f"the maps {', '.join(maps)}"


def _verb(verb: str, stage: str, setup: LoaderInfo) -> str:
    return verb if stage == "transform" and len(setup.maps) > 1 else f"{verb}s"


def _where(stats: Stats) -> str:
    if stats.workers == 0:
        return "on the training thread"
    kind = "processes" if stats.worker_type == "process" else "threads"
    return (
        f"on {stats.workers} {kind if stats.workers > 1 else kind.removesuffix('es' if kind == 'processes' else 's')}"
    )


def _advice(stats: Stats, stage: str, seconds: float, setup: LoaderInfo) -> tuple[str, str]:
    """What the measurements say of a stage, to follow "takes 81% of the work", and what to try."""
    if stats.workers == 0:
        return "", "leave num_workers out, so that it is done while training goes on"
    if stage == "place":
        if stats.prefetch == 0:
            return ", when it is asked for", "leave prefetch out, so that batches are placed ahead"
        if setup.wide:
            return "", "give the devices fewer bytes: rows as uint8 or uint16, made floats by the training step"
        return "", f"{_ASK} what a faster loader would gain"
    apart = _at_work(stats) if stats.worker_type == "process" else 0.0
    busy = (stats.cpu + apart) / stats.elapsed if stats.elapsed else 0.0
    if busy > _SATURATED * stats.cores:
        cores = f"the machine's {stats.cores} cores are busy" if stats.cores > 1 else "the machine's only core is busy"
        return f"; {cores}", _less_work(stage, setup)
    return _with_free_cores(stats, stage, seconds, setup)


def _with_free_cores(stats: Stats, stage: str, seconds: float, setup: LoaderInfo) -> tuple[str, str]:
    """What keeps a stage from going faster when the machine is not busy: seen from its processor time."""
    running = {"read": stats.read_cpu, "transform": stats.transform_cpu}.get(stage, seconds)
    if stage in _users(setup) and _one_at_a_time(stats):
        return ", of which one at a time runs, as code that holds the GIL does", "try worker_type='process'"
    if stats.at_work < stats.tried:
        more = "a second" if (stats.at_work, stats.tried) == (1, 2) else stats.tried
        return f" ({stats.at_work} at work: {more} brought less than a tenth more)", _less_work(stage, setup)
    # The load also counts who waits for a disk: of reading, the loader's own workers.
    load = stats.load - (stats.at_work if stage == "read" else 0)
    # Who gets hardly any processor time waits for something else than a processor.
    if _SLEEPS * seconds < running < _WAITS * seconds and load > _CROWDED * stats.cores:
        return f"; the machine's {stats.cores} cores are busy with other work too", "give the loader cores of its own"
    return _more_workers(stats, running / seconds) or ("", _less_work(stage, setup))


def _more_workers(stats: Stats, part: float) -> tuple[str, str] | None:
    """Why more workers should be of use to a stage that has a processor for a part of its time.

    None where they would not be.
    """
    if stats.at_work < stats.workers:
        return f" ({stats.at_work} at work so far)", f"try num_workers={stats.workers}"
    if part < _WAITS:
        return (
            f" and mostly waits ({percent_text(part)} of that is processor time)",
            f"try num_workers={2 * stats.workers}",
        )
    if stats.workers < stats.cores:
        return f", and the machine has {stats.cores} cores", f"try num_workers={stats.cores}"
    return None


def _less_work(stage: str, setup: LoaderInfo) -> str:
    """What to try when the work itself is too much."""
    if stage == "transform":
        return f"make {_what(stage, setup)} faster, or keep the results in a file"
    return (
        "write the data to a store that reads faster"
        if stage == "read"
        else "keep the data in the dtypes that batches have"
    )


def _users(setup: LoaderInfo) -> tuple[str, ...]:
    """The stages in which code may hold the GIL."""
    return ("read", "transform") if setup.python_source else ("transform",)


def _slows(stats: Stats, setup: LoaderInfo) -> tuple[str, float] | None:
    """The stage that may slow the training step itself, by holding the GIL, and how many cores' time it takes.

    None where there is none.

    Nobody waits for a loader that is far enough ahead; but while one of its threads runs Python code, training runs
    none.
    """
    if stats.worker_type != "thread" or stats.workers == 0 or not stats.active or not _has_gil():
        return None
    cores = {stage: getattr(stats, f"{stage}_cpu") / stats.active for stage in _users(setup)}
    stage = max(cores, key=lambda each: cores[each])
    # Code that holds the GIL keeps no more than one core busy.
    return (stage, min(1.0, cores[stage])) if cores[stage] > _SLOWS and sum(cores.values()) < _NOT_TWO else None


def _one_at_a_time(stats: Stats) -> bool:
    """Whether threads together keep one core busy, and never two: so it is where their code holds the GIL."""
    together = _at_work(stats) / stats.active if stats.active else 0.0
    return stats.worker_type == "thread" and stats.workers > 1 and _has_gil() and _ONE < together < _NOT_TWO


def _running(stats: Stats, seconds: dict[str, float]) -> dict[str, float]:
    """The seconds of the stages without the waiting for the GIL.

    A thread waits in whatever stage it is in while another thread holds the GIL.
    """
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
