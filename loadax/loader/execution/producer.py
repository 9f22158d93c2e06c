"""BatchProducer: turns a step into a batch of one shard. When that happens is up to the scheduler."""

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Any, final

import numpy as np
from jax.profiler import TraceAnnotation
from numpy.typing import NDArray

from loadax.core.buffers import BufferPool
from loadax.errors import LeafError
from loadax.loader.assembly.assembler import Assembler, Piece
from loadax.loader.assembly.buffer_layout import Slab
from loadax.loader.assembly.column_tiles import slab_plan
from loadax.loader.assembly.host_shard import HostShard
from loadax.loader.metrics.stats import Timing
from loadax.loader.options import LoaderOptions
from loadax.loader.workers.process_pool import ProcessPool
from loadax.plan.batches import BatchPlan
from loadax.protocols import Integers, Tree, Visits
from loadax.reader import Reader
from loadax.sharding.placer import Placer

Finish = Callable[[list[Any]], Tree]

# visits computed in one call: then its fixed cost, and waiting for the GIL, is spread over so many
_LOOKAHEAD = 1 << 16

_MOST_STEPS = 256  # lanes are sorted step by step: no batch should wait for more


@final
class VisitLookahead:
    """The visits of a plan's steps at some positions, computed for many steps in one call and kept for the next ones.

    It begins with what is asked for, and looks twice as far ahead each time: the first batch does not wait for later
    ones.
    """

    def __init__(self, plan: BatchPlan, positions: Integers, end: int | None):
        self._plan = plan
        self._end = end
        self._positions = positions
        self._most = max(1, min(_LOOKAHEAD // max(1, len(positions)), _MOST_STEPS))
        self._ahead = 1
        self._lock = threading.Lock()
        # The newest few: where a step fills a block, several workers may be in steps that lie apart.
        self._blocks: deque[tuple[range, Visits]] = deque(maxlen=8)

    def __call__(self, first: int, count: int) -> Visits:
        """The visits of the steps from `first` on, one step after the other."""
        found = []
        step, stop, each = first, first + count, len(self._positions)
        while step < stop:
            steps, visits = self._block(step, stop)
            end = min(stop, steps.stop)
            low, high = (step - steps.start) * each, (end - steps.start) * each
            found.append(Visits(visits.rows[low:high], visits.epochs[low:high]))
            step = end
        return found[0] if len(found) == 1 else Visits(*(np.concatenate(parts) for parts in zip(*found, strict=True)))

    def _block(self, step: int, stop: int) -> tuple[range, Visits]:
        with self._lock:
            for block in self._blocks:
                if step in block[0]:
                    return block
            end = max(stop, step + self._ahead)
            if self._end is not None:
                end = min(end, max(stop, self._end))
            self._ahead = min(2 * self._ahead, self._most)
            steps = range(step, end)
            self._blocks.append((steps, self._plan.visits_of(steps, self._positions)))
            return self._blocks[-1]


@final
@dataclass(frozen=True, eq=False)
class Memory:
    """The slab of a run of steps, how many there are, and the memory that it lies in."""

    first: int
    count: int
    slab: Slab
    lease: NDArray[np.uint8]


@final
class BatchProducer:
    """Reads, assembles and places the steps of a plan on one share.

    Args:
        plan: which rows a step has.
        reader: of the rows.
        share: what this process holds of a batch, on a mesh that is there.
        options: Options of the loader.
        end: the step with which batches of this share end; None: never.
        processes: that read, into memory that they share with this one. None: whoever calls `fill` does.
        finish: makes the batch of its placed leaves, without waiting for them. None: they are the batch.
    """

    def __init__(
        self,
        plan: BatchPlan,
        reader: Reader,
        share: HostShard,
        options: LoaderOptions,
        end: int | None,
        processes: ProcessPool | None = None,
        finish: Finish | None = None,
    ):
        self.end = end
        keep, key_seed = options.prefetch_bytes, options.key_seed
        self._slabs = slab_plan(share)
        self._visits = VisitLookahead(plan, share.positions, end)
        self._assembler = Assembler(reader, self._slabs, key_seed, TraceAnnotation)
        self._finish = share.batch.structure.build if finish is None else finish
        self._processes = processes
        self._job = None if processes is None else processes.job(reader, self._slabs, key_seed, keep)
        self.in_processes = self._job is not None
        self._pool = BufferPool(keep) if self._job is None else self._job.arena
        self._placers = [
            Placer(layout, sharding, leaf.dtype, share.microbatches)
            for layout, sharding, leaf in zip(share.layouts, share.shardings, share.batch.leaves, strict=True)
        ]
        self.probed = reader.probed
        self.to_accelerator = any(
            device.platform != "cpu" for sharding in share.shardings[:1] for device in sharding.mesh.local_devices
        )
        self.rows_per_step = len(share.positions)
        self.bytes_per_step = self._slabs.bytes_per_step

    def prepare(self, workers: int) -> None:
        """Makes ready for so many workers, where that takes time."""
        if self._job is not None and self._processes is not None:
            self._processes.prepare(self._job, workers)

    def memory(self, first: int, count: int) -> Memory:
        """Memory for the steps from `first` on."""
        try:
            lease = self._pool.lease(self._slabs.size(count))
        except (MemoryError, OSError, OverflowError, ValueError) as error:
            raise LeafError(self._slabs.too_large(count)) from error
        return Memory(first, count, self._slabs.slab(lease, count), lease)

    def fill(self, memory: Memory, low: int, high: int) -> Timing:
        """Reads the rows `low` to `high` of the run's steps into its memory."""
        each = self.rows_per_step
        visits = self._visits(memory.first, memory.count)
        visits = Visits(visits.rows[low:high], visits.epochs[low:high])
        if self._job is None or self._processes is None:
            timing = self._assembler.fill(Piece(visits, low, each, memory.slab))
        else:
            with TraceAnnotation("loadax.process"):
                timing = self._processes.run(self._job, self._job.order(memory.lease, memory.count, low, each, visits))
        share = (high - low) / max(1, each)
        return timing._replace(bytes=round(share * self.bytes_per_step))

    def place(self, memory: Memory, step: int) -> tuple[Tree, Timing]:
        """The batch of a step of the run whose memory is full, as global arrays. Never communicates."""
        began = perf_counter()
        with TraceAnnotation("loadax.place"):
            arrays: list[Any] = [
                placer(memory.slab.buffers(leaf, step - memory.first)) for leaf, placer in enumerate(self._placers)
            ]
            batch = self._finish(arrays)
        return batch, Timing(place=perf_counter() - began, began=began)
