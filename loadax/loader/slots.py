"""The slots of a run: what its trunk asks of five values, and nothing else about them.

| slot | question | by default | protocol |
|---|---|---|---|
| steps | Which positions are in step t? | `BatchPlan` | `loadax.plan.steps.Steps` |
| rows | How is a piece of a step read? | random access by the job's reader | `Lanes`, `DeviceRows`, `RowFailures` |
| work | Where is it read? | `ThreadExecutor` | `PieceExecutor` |
| place | How does it get onto the devices? | `Placer` | `DeviceFunction` |
| guard | Who notices stalls and other hosts? | `StallCheck` | `OtherHosts`, `Agreement` |

Each protocol has the members that the trunk uses. What fills a slot lies in a room of its own, which is imported by
the value that the user passes, or at the one place where the slot is filled.
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias, runtime_checkable

from loadax.dataset import Dataset
from loadax.errors import HostError
from loadax.loader.assembly.assembler import FillOptions, Piece
from loadax.loader.assembly.buffer_layout import BatchBuffers
from loadax.loader.assembly.host_shard import HostShard
from loadax.loader.metrics.stats import Failure, Timing
from loadax.plan.batches import Remainder
from loadax.plan.steps import Steps
from loadax.protocols import Array, ArraySpec, Integers, Tree, Visits
from loadax.reader import Reader
from loadax.work.capacity import Capacity

# Builds a batch from its placed leaves, without waiting for them.
Finish: TypeAlias = Callable[[list[Any]], Tree]

# The first step that is not in the run: the first one that lacks a row, or has none. "error": if these differ.
EndRule: TypeAlias = Literal["first", "all", "error"]


@runtime_checkable
class StepsChoice(Protocol):
    """A value for `batch_size=` that decides which rows are in a step, such as `loadax.Buckets`."""

    def steps(
        self,
        dataset: Dataset,
        num_epochs: int | None,
        remainder: Remainder,
        quarantine: Integers,
    ) -> tuple[Steps, tuple[tuple[int, Dataset], ...]]:
        """Makes the steps of a run, and the dataset of each shape of them by its first step.

        Args:
            dataset: The dataset.
            num_epochs: Number of epochs. None: endless.
            remainder: Handling of an epoch's last, partial batches.
            quarantine: Rows that are never read, ascending.

        Raises:
            ArgumentError: If the dataset can't be cut so.
        """


class LaneProgress(NamedTuple):
    """How far a process has read its lanes.

    Args:
        read: Step after the last one that was read.
        lacking: First step that lacks a row of this process. None: not met.
        filled: Step after the last one that has a row of this process.
    """

    read: int
    lacking: int | None
    filled: int


class SkippedError(Exception):
    """Rows were not read, since those before them could not be, which is the error to tell of; or the run is closed."""


class ReadRows(NamedTuple):
    """Rows of a piece that were read.

    Args:
        visits: Their visits, with -1 for rows that there are not.
        releases: Functions that release what was read.
        timing: Time of reading, without waiting.
        in_place: Whether all rows are in the arrays that were given for them.
    """

    visits: Visits
    releases: Sequence[Callable[[], None]]
    timing: Timing
    in_place: bool


class OrderedRows(Protocol):
    """Rows that are read in the order of the steps, whichever threads read them."""

    def most_steps(self, rows_per_lane: int, threads: int) -> int:
        """Most steps to read together.

        Args:
            rows_per_lane: Rows of each lane in a step.
            threads: Number of threads that read. 0: the consumer reads, and gets no step before all are read.
        """

    def read_steps(
        self,
        step: int,
        steps: int,
        visits: Visits,
        out: Sequence[Array],
        filled: Callable[[int], object],
    ) -> Timing:
        """Reads all rows of several steps into arrays. Calls `filled` after each with the number of full steps."""

    def read(
        self, step: int, low: int, visits: Visits, out: Sequence[Array] | None
    ) -> ReadRows:
        """Reads rows of a step, from its `low`-th on this process on, once those before them are read."""

    def close(self) -> None:
        """Ends all waiting."""


class Lanes(Protocol):
    """Rows without random access, which one iterator reads in order: those of streams.

    Args:
        consumed: Steps that were handed out; no state before them is asked for.
        endless: Whether the rows never end.
        progress: How far this process has read.
        ended_lane: Text: which lane of this process was the first to end.
    """

    consumed: int
    endless: bool
    progress: LaneProgress
    ended_lane: str

    @property
    def end_rule(self) -> EndRule:
        """When the run ends."""

    def bind(self, reader: Reader) -> Reader:
        """The reader, over the rows that were read."""

    def stacked(self, reader: Reader) -> list[ArraySpec] | None:
        """The spec of rows that a bound reader would take unchanged. None: it maps them, or has several sources."""

    def rows_per_lane(self, positions: Integers, batch_size: int) -> int:
        """Rows of each lane in every step, if these positions of a batch are all rows of some lanes. 0: no."""

    def ordered(self, step: int, rows_per_step: int) -> OrderedRows:
        """The reads of one producer from a step on."""

    def goes_on(self, step: int) -> bool:
        """Whether a step that was read is part of the run, by the lanes of this process alone."""

    def state(self, step: int) -> dict[str, Any]:
        """The part of a state before a step that is about them, as JSON."""

    def close(self) -> None:
        """Ends all reading."""


class CachedRows(Protocol):
    """Rows in the memory of the devices: a program that gathers batches from them.

    Args:
        reader: Reader of indices into the cached rows.
        shard: This process's shard of a batch of indices.
    """

    reader: Reader
    shard: HostShard

    def __call__(self, leaves: list[Any], /) -> list[Any]:
        """Placed leaves of a batch from placed indices."""


class RequestsAhead(Protocol):
    """Requests of the steps that come next to remote storage."""

    def reach(self, stop: int) -> None:
        """Requests the steps before `stop`, which are read now, and following ones."""

    def done(self, first: int, count: int, rows: int) -> None:
        """Tells that `rows` rows of each of `count` steps from `first` on were read."""

    def close(self) -> None:
        """Cancels what is under way."""


class DeviceRows(Protocol):
    """A dataset in the memory of the devices."""

    def gather(self, shard: HostShard) -> CachedRows:
        """A function that gathers batches of a shard from it."""


class RowFailures(Protocol):
    """Counts rows that could not be read, and ends the run if they are too many."""

    def count(
        self,
        rows: int,
        failures: Sequence[Failure],
        place: Callable[[int], tuple[int, int]],
    ) -> None:
        """Counts a piece of `rows` rows. `place`: function of a row of it: its step, and its position in the batch.

        Raises:
            SourceError: If there are more failures than the limits allow.
        """


class LoadedJob(Protocol):
    """A job that the workers of an executor have loaded: reader and buffer layout of one kind of batch."""

    def buffers(self, count: int) -> BatchBuffers:
        """Buffers of `count` steps that workers can write to; reused when their last view is gone."""

    def run(self, piece: Piece) -> Timing:
        """Has a worker read a piece, and waits for it. Thread-safe.

        Raises:
            Exception: Whatever the source or a map raised.
        """

    def prepare(self, threads: int) -> None:
        """Starts as many workers as `threads` keep busy, and waits until they have loaded the job."""


class PieceExecutor(Protocol):
    """Reads pieces. Jobs may overlap: an old one is still in use when batches of another shape begin."""

    @property
    def capacity(self) -> Capacity:
        """Its workers."""

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""

    def load(
        self,
        reader: Reader,
        options: FillOptions,
        prefetch_bytes: int,
        family: tuple[Reader, ...] = (),
    ) -> LoadedJob:
        """Makes a job for the workers.

        Args:
            reader: Reader of the rows.
            options: How to fill the buffers of a step.
            prefetch_bytes: Bytes of idle buffers to keep for reuse.
            family: Readers of one source, this one among them, of jobs whose pieces alternate.
        """

    def places(self) -> int:
        """Number of workers that pieces are placed on, each with the same rows of all steps; 0: it has no choice."""

    def worker_text(self, thread: int) -> str:
        """The worker that reads for a thread, its state and its stack, to follow "reads row 3"; empty: the thread."""

    def close(self) -> None:
        """Stops all workers, including busy ones. Idempotent and thread-safe."""


class CompiledMap(Protocol):
    """A function that the devices apply to the batches of one shard."""

    @property
    def shape_dtypes(self) -> Tree:
        """Its results as `jax.ShapeDtypeStruct`s, with shardings."""

    @property
    def described(self) -> list[str]:
        """Its results and operations, equal in every process that compiles the same."""

    def __call__(self, leaves: list[Any], /) -> Tree:
        """The batch from its placed leaves."""


class DeviceFunction(Protocol):
    """The function that the devices apply to each row of a placed batch: `device_map`."""

    def on(self, shard: HostShard) -> CompiledMap:
        """The program for batches of a shard.

        Raises:
            PartitionError: If the partition does not fit.
        """

    def compiled(self, shard: HostShard) -> CompiledMap:
        """The same program, compiled."""


class OtherHosts(Protocol):
    """Exchange with the other hosts of a run.

    Args:
        name: Prefix of what this host tells.
        error: The error that ends this run, because of another host or a difference.
    """

    name: str
    error: HostError | None

    def check(self, closing: bool, resumed: float) -> float:
        """Exchanges news; as a check of `RunWatch`."""

    def wait(self) -> None:
        """Waits until the data of all hosts are compared, for a few seconds at most.

        Raises:
            HostError: If a host differs.
        """

    def tell(self, text: str) -> None:
        """Tells all other hosts a sentence."""

    def set_weights(self, step: int) -> None:
        """Tells all other hosts that this one has set weights from a step on, without which none can pass it."""

    def ended(self, step: int, error: BaseException) -> None:
        """Tells all other hosts that this one can't go on."""

    def slowest(self) -> tuple[str, list[list[float]]]:
        """A clause about the host that waits longest for data; each process, its next step, and the share it waits."""


class Agreement(Protocol):
    """Agreement of several processes on the step before which a run without a known length ends.

    Args:
        waiting: Since when this process waits for others, and for which step. None: it does not.
    """

    waiting: tuple[float, int] | None

    def goes_on(
        self,
        step: int,
        mine: LaneProgress,
        ended_lane: str,
        check: Callable[[], None],
    ) -> bool:
        """Whether a step that this process has read is part of the run. Waits for the others.

        Args:
            step: The step; all earlier ones were part of it.
            mine: How far this process has read.
            ended_lane: Text: which lane of this process has ended first.
            check: Raises an error if waiting is in vain, or takes too long.
        """

    def waiting_text(self, step: int) -> str:
        """Text: which processes it waits for."""

    def fail(self, error: BaseException) -> None:
        """Tells the others that this process can't go on."""

    def close(self) -> None:
        """Tells the others that this process reads no further."""
