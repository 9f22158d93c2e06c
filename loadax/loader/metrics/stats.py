"""Stats: times and counters of an iterator, updated per piece, never per row."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, final

STAGES = ("read", "transform", "assemble", "place")
# Number of first steps that are not measured, since the training step is compiled then.
UNMEASURED = 2


def usable_cores() -> int:
    """Number of cores that this process may use, which a job scheduler may limit."""
    affinity = getattr(os, "sched_getaffinity", None)
    if affinity is not None:
        return len(affinity(0))
    return os.cpu_count() or 1


class Failure(NamedTuple):
    """A row that could not be read, by its index in a piece, and the error as text."""

    row: int
    error: str


class Timing(NamedTuple):
    """Times and amounts of one read or placed piece, as plain numbers that can be sent between processes.

    Attributes:
        read, transform, assemble, place: Wall time of each stage, in seconds.
        rows, bytes: Amount of data.
        read_cpu, transform_cpu, assemble_cpu: CPU time of the thread in each stage, in seconds. Low if the stage waits.
        began: Start by `time.perf_counter()`, which all processes of a machine share. 0: unknown.
        worker: Id of the worker process. 0: this process.
        failures: Rows that could not be read and are masked, ascending.
        given_again: Times that the workers of `remote=` got the piece again, because it was late or lost.
        read_here: Rows that this process read for the same reason.
        cached: Rows that a worker had filled for another job.
        under_way: Seconds of `read` in which the thread did not run, if bytes are requested before their steps.
        storage: Seconds of `read` in which the thread waited for answers of remote storage.
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
    failures: tuple[Failure, ...] = ()
    given_again: int = 0
    read_here: int = 0
    cached: int = 0
    under_way: float = 0.0
    storage: float = 0.0

    @property
    def seconds(self) -> float:
        """Wall time of all stages but placing, in seconds."""
        return self.read + self.transform + self.assemble

    @property
    def processor_seconds(self) -> float:
        """CPU time of all stages but placing, in seconds."""
        return self.read_cpu + self.transform_cpu + self.assemble_cpu


def total(timings: Sequence[Timing]) -> Timing:
    """The timing of parts that one thread has read, one after the other; without what failed."""
    names = (
        "read",
        "transform",
        "assemble",
        "rows",
        "read_cpu",
        "transform_cpu",
        "assemble_cpu",
        "storage",
    )
    return timings[0]._replace(
        **{name: sum(getattr(timing, name) for timing in timings) for name in names}
    )


@final
@dataclass(repr=False)
class Stats:
    """Statistics of an iterator. Times are in seconds; `read` to `place` are summed over all workers.

    Attributes:
        steps: Batches handed out.
        wait: Time in `next()`, which training waited for data.
        read: Time reading the source.
        storage: Part of `read` in which requests to remote storage were waited for.
        transform: Time in the user's maps.
        assemble: Time copying rows into the layout of the devices, if reading does not do so directly.
        place: Time creating `jax.Array`s.
        rows: Rows that this process read, for batches handed out or not.
        batch_rows: Rows of the batches handed out: of the global batches, which all hosts share, without padding. No
            plan knows where a stream ends: its batches count whole, and so does the step that finds the end.
        masked: Rows that could not be read, in the same batches, and are masked.
        given_again: Read tasks that the workers of `remote=` got again, because they were late or lost.
        read_here: Rows that this process read itself for the same reason.
        bytes: Bytes of these rows, in the dtypes of the devices.
        refused: Requests that servers refused, since there were too many; of this process alone.
        in_flight: Requests to storage that this process has in flight now. Those of Zarr arrays are not counted.
        ready: Placed batches that are ready now.
        probed: Rows read when the loader was made, to find the spec; not counted in `rows`.
        elapsed: Time since the iterator was started, until it was closed.
        first: Part of `wait` for the first batch, before which nothing could be read ahead.
        measured: Number of measured steps: all from the third on, since the training step is compiled before.
        waited: Part of `wait` in the measured steps.
        trained: Time between calls of `next()` in the measured steps.
        longest: Longest wait of a measured step.
        longest_step: Step with the longest wait.
        no_room: Part of `wait` while a worker was idle because `prefetch_bytes` were used up.
        active: Time from the start of the iterator to the last batch handed out.
        read_cpu: CPU time of reading, without a source's own threads.
        transform_cpu: CPU time in the user's maps.
        cpu: CPU time of this process since the iterator was started, including training.
        workers: Largest number of workers.
        at_work: Number of active workers; lower if more would not be faster.
        tried: Largest number of workers that were active.
        worker_type: Kind of the workers, "thread", "process" or "remote".
        prefetch: Number of placed batches to keep ahead.
        prefetch_bytes: Host memory for reading ahead, in bytes.
        cores: Number of cores that this process may use.
        load: 1-minute load average.
        early: Statistics before the measured steps; None if no step was measured yet.
    """

    steps: int = 0
    wait: float = 0.0
    read: float = 0.0
    storage: float = 0.0
    transform: float = 0.0
    assemble: float = 0.0
    place: float = 0.0
    rows: int = 0
    batch_rows: int = 0
    masked: int = 0
    given_again: int = 0
    read_here: int = 0
    bytes: int = 0
    refused: int = 0
    in_flight: int = 0
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
        """Rows of the global batches handed out, `batch_rows`, per second of `active`."""
        return self.batch_rows / (self.active or 1.0)

    @property
    def step_seconds(self) -> float:
        """Mean time of a measured step, waiting and training, in seconds; 0 if there is none yet."""
        return (self.waited + self.trained) / max(1, self.measured)

    @property
    def waited_share(self) -> float:
        """Share of the measured steps' time that training waited for data."""
        return self.waited / (self.waited + self.trained or 1.0)

    @property
    def storage_share(self) -> float:
        """Share of `read` in which requests to remote storage were waited for."""
        return self.storage / (self.read or 1.0)

    @property
    def remote_text(self) -> str | None:
        """Remark on what the workers of `remote=` did; None if there are none."""
        if self.worker_type != "remote":
            return None
        if not self.given_again and not self.read_here:
            return f"the workers of remote= read all rows ({self.rows:,})"
        return (
            f"tasks that the workers of remote= got again: {self.given_again:,}; rows "
            f"that this process read itself: {self.read_here:,} of {self.rows:,}"
        )

    def __str__(self) -> str:
        """One line for the end of a training run."""
        share = self.wait / (self.elapsed or 1.0)
        text = (
            f"waited {self.wait:.3f} s of {self.elapsed:.1f} s for data ({share:.1%})"
        )
        if self.remote_text is None:
            return text
        return f"{text}; {self.remote_text}"

    def __repr__(self) -> str:
        return f"Stats: {self}"

    def plus(self, later: "Stats") -> "Stats":
        """These and later statistics, combined."""
        together = {
            name: value + getattr(later, name)
            for name, value in self._summed().items()
        }
        longest = max(self, later, key=lambda stats: stats.longest)
        together.update((name, getattr(later, name)) for name in _OF_NOW)
        first = (self if self.steps else later).first
        # Without a measured step, all statistics are early.
        if self.early is None and later.early is None:
            early = None
        else:
            early = (self.early or self).plus(later.early or later)
        return Stats(
            **together,
            first=first,
            longest=longest.longest,
            longest_step=longest.longest_step,
            early=early,
        )

    def settled(self) -> "Stats":
        """The statistics of the measured steps; all statistics if no work was done since."""
        if self.early is None:
            return self
        since = {
            name: value - getattr(self.early, name)
            for name, value in self._summed().items()
        }
        if not any(since[stage] for stage in STAGES):
            return self
        return replace(self, **since, early=None)

    def _summed(self) -> dict[str, Any]:
        return {
            name: value
            for name, value in vars(self).items()
            if name not in _NOT_SUMMED
        }

    def add(self, timing: Timing) -> None:
        """Counts one piece."""
        for name in (
            *STAGES,
            "rows",
            "given_again",
            "read_here",
            "bytes",
            "read_cpu",
            "transform_cpu",
            "storage",
        ):
            setattr(self, name, getattr(self, name) + getattr(timing, name))
        self.masked += len(timing.failures)

    def took(self, step: int, waited: float, away: float, rows: int) -> None:
        """Counts a batch of `rows` handed out, with the consumer's wait and its time away before, in seconds."""
        self.steps += 1
        self.batch_rows += rows
        self.wait += waited
        if self.steps == 1:
            self.first = waited
        elif self.steps > UNMEASURED:
            self.measured += 1
            self.waited += waited
            self.trained += away
            if waited > self.longest:
                self.longest = waited
                self.longest_step = step


_OF_NOW = {
    "in_flight",
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
}
_NOT_SUMMED = {*_OF_NOW, "first", "longest", "longest_step", "early"}
