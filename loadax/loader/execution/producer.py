"""BatchProducer: turns steps into the batches of one shard, when the scheduler asks for them."""

import sys
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from time import perf_counter
from typing import Any, Protocol, final

import numpy as np
from jax.profiler import TraceAnnotation

from loadax.errors import LeafError
from loadax.loader.assembly.assembler import FillOptions, Piece
from loadax.loader.assembly.buffer_layout import BatchBuffers
from loadax.loader.assembly.host_shard import HostShard, buffer_layout
from loadax.loader.metrics.stats import Timing
from loadax.loader.options import LoaderOptions, without
from loadax.loader.slots import (
    Finish,
    Lanes,
    OrderedRows,
    PieceExecutor,
    RequestsAhead,
    RowFailures,
)
from loadax.plan.batches import BatchPlan
from loadax.plan.steps import Steps
from loadax.protocols import ArraySpec, Integers, Tree, Visits
from loadax.reader import Reader
from loadax.sharding.placer import Placer

# Visits computed per call. Amortises the fixed cost of a call and the wait for the GIL.
LOOKAHEAD = 1 << 16

_MOST_STEPS = 256  # lanes are sorted step by step, and no batch should wait for more


@final
class VisitLookahead:
    """Computes the visits of a plan's steps at some positions for many steps per call, and caches them.

    The lookahead starts at the requested steps and doubles at each call, so that the first batch does not wait for
    later ones.
    """

    def __init__(self, plan: BatchPlan, positions: Integers, end: int | None):
        self._plan = plan
        if end is None:
            self._end = sys.maxsize
        else:
            self._end = end
        self._positions = positions
        # To balance a step takes the costs of all its rows.
        if plan.costs is None:
            rows = len(positions)
        else:
            rows = max(size for _, size in plan.schedule)
        self._most = max(1, min(LOOKAHEAD // max(1, rows), _MOST_STEPS))
        self._ahead = 1
        self._lock = threading.Lock()
        # Several workers may read steps of different blocks at the same time.
        self._blocks: deque[tuple[range, Visits]] = deque(maxlen=8)

    def __call__(self, first: int, count: int) -> Visits:
        """Visits of `count` steps from `first` on, concatenated."""
        parts = []
        step = first
        stop = first + count
        per_step = len(self._positions)
        while step < stop:
            steps, visits = self._block(step, stop)
            end = min(stop, steps.stop)
            low = (step - steps.start) * per_step
            high = (end - steps.start) * per_step
            parts.append(Visits(visits.rows[low:high], visits.epochs[low:high]))
            step = end
        if len(parts) == 1:
            return parts[0]
        return Visits(*map(np.concatenate, zip(*parts, strict=True)))

    def _block(self, step: int, stop: int) -> tuple[range, Visits]:
        with self._lock:
            for block in self._blocks:
                if step in block[0]:
                    return block
            end = max(stop, min(step + self._ahead, self._end))
            self._ahead = min(2 * self._ahead, self._most)
            steps = range(step, end)
            self._blocks.append((steps, self._plan.visits_of(steps, self._positions)))
            return self._blocks[-1]


class StepProducer(Protocol):
    """Turns steps into batches, of one shape or of several in turn.

    Args:
        executor: Executor that reads the pieces.
        end: Step after the last one. None: infinite.
        places: Function that returns the number of workers that pieces are placed on; 0: there is no choice.
        most_steps: Most steps to read together.
        probed: Rows that were read for the spec.
        rows_per_step: Rows that this process reads for a step, at most.
        bytes_per_step: Bytes of their buffers, at most.
        batch_rows: Function that returns the number of rows of the global batch of a step, without padding.
        to_accelerator: Whether batches are transferred to another device than the processor.
    """

    executor: PieceExecutor
    end: int | None
    places: Callable[[], int]
    batch_rows: Callable[[int], int]

    @property
    def most_steps(self) -> int: ...

    probed: int
    rows_per_step: int
    bytes_per_step: int
    to_accelerator: bool

    def of(self, step: int) -> "BatchProducer":
        """The producer of a step."""

    def prepare(self, threads: int) -> None:
        """Starts the workers that `threads` threads keep busy."""

    def close(self) -> None:
        """Ends the waiting of threads for rows that others read."""


@final
class BatchProducer:
    """Reads, assembles and places the steps of a plan on one shard.

    Args:
        plan: Plan of the run.
        reader: Reader of the rows.
        shard: This process's shard of a batch, on a mesh with devices.
        options: Options of the loader.
        executor: Executor that reads the pieces.
        end: Step after the last one of this shard. None: infinite.
        finish: Builds the batch. None: restores the structure only.
        streams: Lanes of the streams, if the reader has any.
        step: First step.
        family: Readers of one source, this one among them, that worker processes get together.

    Raises:
        WorkerError: If the reader can't be sent to the workers.
    """

    def __init__(
        self,
        plan: Steps,
        reader: Reader,
        shard: HostShard,
        options: LoaderOptions,
        executor: PieceExecutor,
        end: int | None,
        finish: Finish | None = None,
        streams: Lanes | None = None,
        step: int = 0,
        family: tuple[Reader, ...] = (),
    ):
        self.executor = executor
        # Number of workers that pieces are placed on; 0 if masked rows are counted, which follow each other there.
        self.places: Callable[[], int] = (
            executor.places if options.masking is None else _no_places
        )
        self.end = end
        self._local = plan.local
        self.batch_rows: Callable[[int], int] = plan.valid
        self._layout = buffer_layout(shard)
        self._generates = any(tile.leaf.source is None for tile in self._layout.tiles)
        own = plan.of(step)
        self._visits = VisitLookahead(
            own, shard.positions, end if own is plan else own.num_steps
        )
        filling = FillOptions(
            self._layout, options.key_seed, options.masking is not None
        )
        self._job = executor.load(reader, filling, options.prefetch_bytes, family)
        self._finish = shard.batch.structure.build if finish is None else finish
        self._placers = [
            Placer(layout, sharding, leaf.dtype, shard.microbatches)
            for layout, sharding, leaf in zip(
                shard.layouts, shard.shardings, shard.batch.leaves, strict=True
            )
        ]
        self._host = shard.host
        self._positions = shard.positions
        self._quarantine = options.quarantine
        self._failures: RowFailures | None = None
        if options.masking is not None:
            from loadax.loader.execution.masked_rows import MaskedRows

            self._failures = MaskedRows(options.masking, plan, reader.source)
        self._streams: OrderedRows | None = None
        # Spec of rows that go from their lane into the buffers, without a map or a mask in between.
        self._stacked: list[ArraySpec] | None = None
        if streams is not None:
            self._streams = streams.ordered(step, len(shard.positions))
            if self._failures is None:
                self._stacked = streams.stacked(reader)
        # Rows of each lane in a step, if several steps can be read together. 0: they can't.
        self._rows_per_lane = 0
        if (
            streams is not None
            and self._stacked is not None
            and not self._generates
            and not len(self._quarantine)
            and self._layout.gapless
        ):
            self._rows_per_lane = streams.rows_per_lane(
                shard.positions, shard.batch_size
            )
        # Whether steps can be read once more, as after an error.
        self.repeats = streams is None
        self._ahead: RequestsAhead | None = None
        if (
            reader.traits.concurrent_reads > 1
            and executor.capacity.worker_type == "thread"
            and streams is None
            and not family
            and (end is None or end > step + 1)
        ):
            from loadax.loader.ahead.step_requests import open_step_requests

            self._ahead = open_step_requests(
                reader, shard, self._rows_of, step, end, options.prefetch_bytes
            )
        self.probed = reader.probed
        self.source = reader.source
        self.maps = reader.maps
        self.to_accelerator = any(
            device.platform != "cpu"
            for sharding in shard.shardings[:1]
            for device in sharding.mesh.local_devices
        )
        self.rows_per_step = len(shard.positions)
        self.bytes_per_step = self._layout.bytes_per_step

    def of(self, step: int) -> "BatchProducer":  # noqa: ARG002 - there is one
        """The producer of a step."""
        return self

    @property
    def most_steps(self) -> int:
        """Most steps to read together."""
        if self._streams is None:
            return _MOST_STEPS
        if self._rows_per_lane:
            threads = self.executor.capacity.concurrency
            return self._streams.most_steps(self._rows_per_lane, threads)
        return 1

    def prepare(self, threads: int) -> None:
        """Starts the workers that `threads` threads keep busy."""
        self._job.prepare(threads)

    def buffers(self, count: int) -> BatchBuffers:
        """Buffers of `count` steps.

        Raises:
            LeafError: If there is too little memory; names the largest leaf.
        """
        try:
            return self._job.buffers(count)
        except (MemoryError, OSError, OverflowError, ValueError) as error:
            raise LeafError(self._layout.too_large(count)) from error

    def rows(self, first: int, count: int, low: int, high: int) -> Integers:
        """int64[n]: rows `low` to `high` of each of `count` steps from `first` on, without padding."""
        rows = self._visits_of(first, count, low, high).rows
        return rows[rows >= 0]

    def _visits_of(self, first: int, count: int, low: int, high: int) -> Visits:
        visits = self._visits(self._local(first), count)
        cut = [
            numbers.reshape(count, self.rows_per_step)[:, low:high].ravel()
            for numbers in visits
        ]
        return Visits(*cut)

    def _rows_of(self, step: int) -> Visits:
        """Visits of a step that are read: without padding."""
        visits = without(
            self._visits_of(step, 1, 0, self.rows_per_step), self._quarantine
        )
        present = visits.rows >= 0
        return Visits(visits.rows[present], visits.epochs[present])

    def fill(
        self,
        first: int,
        buffers: BatchBuffers,
        low: int,
        high: int,
        filled: Callable[[int], object] = int,
    ) -> Timing:
        """Reads rows `low` to `high` of each of the steps from `first` on into their buffers; `filled`: see `Piece`."""
        visits = without(
            self._visits_of(first, buffers.count, low, high), self._quarantine
        )
        if self._ahead is not None:
            self._ahead.reach(first + buffers.count)
        if self._streams is None:
            # Limits of masked rows are checked before a step is handed out.
            if self._failures is None:
                told = filled
            else:
                told = int
            timing = self._job.run(Piece(visits, low, buffers, first, told))
        else:
            timing = self._read_streams(
                self._streams, first, visits, low, buffers, filled
            )
        if self._failures is not None:
            self._failures.count(
                len(visits.rows),
                timing.failures,
                partial(self._place_of, first, low, high),
            )
        if self._ahead is not None:
            timing = timing._replace(
                under_way=max(0.0, timing.read - timing.read_cpu)
            )
            self._ahead.done(first, buffers.count, high - low)
        return timing._replace(
            bytes=round(
                len(visits.rows) / max(1, self.rows_per_step) * self.bytes_per_step
            )
        )

    def _read_streams(
        self,
        streams: OrderedRows,
        step: int,
        visits: Visits,
        low: int,
        buffers: BatchBuffers,
        filled: Callable[[int], object],
    ) -> Timing:
        out = None
        if self._stacked is not None:
            out = buffers.whole_rows(low, low + len(visits.rows), self._stacked)
        if buffers.count > 1:
            assert out is not None
            timing = streams.read_steps(step, buffers.count, visits, out, filled)
            return timing._replace(rows=len(visits.rows))
        rows = streams.read(step, low, visits, out)
        lanes = rows.timing
        if rows.in_place and not self._generates:
            return lanes._replace(rows=len(visits.rows))
        try:
            timing = self._job.run(
                Piece(rows.visits, low, buffers, in_place=rows.in_place)
            )
        finally:
            for release in rows.releases:
                release()
        read = timing.read + lanes.read
        read_cpu = timing.read_cpu + lanes.read_cpu
        return timing._replace(
            read=read, read_cpu=read_cpu, began=timing.began - lanes.read
        )

    def close(self) -> None:
        """Ends the waiting of threads for rows that others read."""
        if self._streams is not None:
            self._streams.close()
        if self._ahead is not None:
            self._ahead.close()

    def _place_of(self, first: int, low: int, high: int, row: int) -> tuple[int, int]:
        """Step and batch position of a row of a piece that has rows `low` to `high` of the steps from `first` on."""
        step, local = divmod(row, high - low)
        return first + step, int(self._positions[low + local])

    def place(self, buffers: BatchBuffers, index: int) -> tuple[Tree, Tree, Timing]:
        """Places the batch of the `index`-th step of full buffers as global arrays. Never communicates.

        Returns:
            The batch, the leaves that stay on the host (None if there are none), and the time. If no leaf is placed,
            the batch is that of the host.
        """
        began = perf_counter()
        with TraceAnnotation("loadax.place"):
            arrays: list[Any] = [
                placer(buffers.boxes(leaf, index))
                for leaf, placer in enumerate(self._placers)
            ]
            if self._host.leaves:
                host = self._on_host(buffers, index)
            else:
                host = None
            if arrays:
                batch = self._finish(arrays)
            else:
                batch = host
        return batch, host, Timing(place=perf_counter() - began, began=began)

    def _on_host(self, buffers: BatchBuffers, index: int) -> Tree:
        first = len(self._placers)
        leaves = [
            buffers.boxes(first + leaf, index)[0]
            for leaf in range(len(self._host.leaves))
        ]
        # Views would keep the memory of placed leaves for as long as the user keeps a name.
        return self._host.structure.build(
            map(np.array, leaves) if self._placers else leaves
        )


def _no_places() -> int:
    return 0
