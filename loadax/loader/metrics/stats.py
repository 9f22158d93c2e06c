"""Stats: where the time goes, counted per piece, never per row."""

import os
from dataclasses import dataclass, field, replace
from typing import NamedTuple, final

UNMEASURED = 2
"""The first steps, before and in which the training step is compiled."""


def usable_cores() -> int:
    """How many processors this process may use: fewer than the machine has, where the job was given only some."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity is not None else os.cpu_count() or 1


class Timing(NamedTuple):
    """Seconds that one piece of work took, by stage, and what it brought.

    Plain numbers: it may come out of another process.

    Attributes:
        read, transform, assemble, place: seconds on the clock on the wall.
        rows, bytes: how much it was.
        read_cpu, transform_cpu, assemble_cpu: seconds of processor time of the thread that did it. A stage that waits
        has few of them.
        began: when the work began, by `time.perf_counter()`, which all processes of a machine share. 0: not known.
        worker: id of the process that did it. 0: this one.
    """

    read: float = 0.0
    transform: float = 0.0
    assemble: float = 0.0
    place: float = 0.0
    rows: int = 0
    bytes: int = 0
    read_cpu: float = 0.0
    transform_cpu: float = 0.0
    assemble_cpu: float = 0.0
    began: float = 0.0
    worker: int = 0

    @property
    def seconds(self) -> float:
        """Seconds of reading a piece, on the clock on the wall."""
        return self.read + self.transform + self.assemble

    @property
    def processor_seconds(self) -> float:
        """The same of processor time."""
        return self.read_cpu + self.transform_cpu + self.assemble_cpu


@final
@dataclass(repr=False)
class Stats:
    """What an iterator has done so far. Seconds of `read` to `place` are summed over all workers.

    Attributes:
        steps: batches handed out.
        wait: seconds that `next()` took: what training waited for data.
        read: seconds of reading the source.
        transform: seconds in the user's maps.
        assemble: seconds of laying rows out for the devices, where reading did not do that itself.
        place: seconds of making `jax.Array`s.
        rows: rows that this process read, for batches handed out or not.
        bytes: what they hold, as the devices want it.
        ready: placed batches that wait for the consumer now.
        probed: rows read when the loader was made, to find the spec; not in `rows`.
        elapsed: seconds since the iterator began, until it was closed.
        first: seconds of `wait` for the first batch, before which nothing could be read ahead.
        measured: steps from the third on. Before it the training step is compiled, so that only these tell how fast
            training goes.
        waited: seconds of `wait` in the measured steps.
        trained: seconds between `next()` and `next()` in the measured steps.
        longest: the longest wait of a measured step.
        longest_step: which step that was.
        no_room: seconds of `wait` while a worker was idle because `prefetch_bytes` were used up.
        active: seconds from the iterator's beginning to the batch handed out last.
        read_cpu: processor seconds of reading, on the threads that read; a source's own threads are not in it.
        transform_cpu: processor seconds in the user's maps.
        cpu: processor seconds of this process since the iterator began, training's own included.
        workers: how many there are to read ahead, at most.
        at_work: how many of them are at work now: fewer, while more would be no faster.
        tried: how many have been at work at most.
        worker_type: what they are: "thread" or "process".
        prefetch: placed batches that are kept ahead.
        prefetch_bytes: host memory for reading ahead.
        cores: processors that this process may use.
        load: processes of this machine that want a processor, in the last minute.
        early: what of this was counted before the measured steps; None when there is none yet.
    """

    steps: int = 0
    wait: float = 0.0
    read: float = 0.0
    transform: float = 0.0
    assemble: float = 0.0
    place: float = 0.0
    rows: int = 0
    bytes: int = 0
    ready: int = 0
    probed: int = 0
    elapsed: float = 0.0
    first: float = 0.0
    measured: int = 0
    waited: float = 0.0
    trained: float = 0.0
    longest: float = 0.0
    longest_step: int = 0
    no_room: float = 0.0
    active: float = 0.0
    read_cpu: float = 0.0
    transform_cpu: float = 0.0
    cpu: float = 0.0
    workers: int = 0
    at_work: int = 0
    tried: int = 0
    worker_type: str = "thread"
    prefetch: int = 0
    prefetch_bytes: int = 0
    cores: int = field(default_factory=usable_cores)
    load: float = 0.0
    early: "Stats | None" = None

    @property
    def rows_per_second(self) -> float:
        """Rows that this process read, per second since the iterator began."""
        return self.rows / self.elapsed if self.elapsed else 0.0

    @property
    def step_seconds(self) -> float:
        """Seconds that a step takes, waiting and training together: the mean of the measured ones.

        0 where there is none yet.
        """
        return (self.waited + self.trained) / self.measured if self.measured else 0.0

    @property
    def waited_share(self) -> float:
        """The part of the measured steps' time that training waited for data."""
        together = self.waited + self.trained
        return self.waited / together if together else 0.0

    def __str__(self) -> str:
        """One line, as for the end of a training run."""
        share = self.wait / self.elapsed if self.elapsed else 0.0
        return f"waited {self.wait:.3f} s of {self.elapsed:.1f} s for data ({share:.1%})"

    def __repr__(self) -> str:
        return f"Stats: {self}"

    def plus(self, later: "Stats") -> "Stats":
        """These and what came later, together."""
        together = {name: value + getattr(later, name) for name, value in vars(self).items() if name not in _NOT_SUMMED}
        longest = max(self, later, key=lambda each: each.longest)
        together.update((name, getattr(later, name)) for name in _OF_NOW)
        first = (self if self.steps else later).first
        # Steps of which none was measured are early as a whole.
        none = self.early is None and later.early is None
        early = None if none else (self.early or self).plus(later.early or later)
        return Stats(**together, first=first, longest=longest.longest, longest_step=longest.longest_step, early=early)

    def settled(self) -> "Stats":
        """These without what was counted before the measured steps: while the step was compiled, say.

        All, where no work was done since.
        """
        if self.early is None:
            return self
        since = {
            name: value - getattr(self.early, name) for name, value in vars(self).items() if name not in _NOT_SUMMED
        }
        if not any(since[stage] for stage in ("read", "transform", "assemble", "place")):
            return self
        return replace(self, **since, early=None)

    def add(self, timing: Timing) -> None:
        """Counts one piece of work."""
        self.read += timing.read
        self.transform += timing.transform
        self.assemble += timing.assemble
        self.place += timing.place
        self.rows += timing.rows
        self.bytes += timing.bytes
        self.read_cpu += timing.read_cpu
        self.transform_cpu += timing.transform_cpu

    def took(self, step: int, waited: float, away: float) -> None:
        """Counts a batch handed out: how long the consumer waited for it, and stayed away before."""
        self.steps += 1
        self.wait += waited
        if self.steps == 1:
            self.first = waited
        elif self.steps > UNMEASURED:
            self.measured += 1
            self.waited += waited
            self.trained += away
            if waited > self.longest:
                self.longest, self.longest_step = waited, step


_OF_NOW = (
    "ready",
    "probed",
    "workers",
    "at_work",
    "tried",
    "worker_type",
    "prefetch",
    "prefetch_bytes",
    "cores",
    "load",
)
_NOT_SUMMED = {*_OF_NOW, "first", "longest", "longest_step", "early"}
