"""Starts what watches a run: on every host, with names for its keys that all hosts find alike."""

import threading
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from typing import Any, final

import numpy as np
from jax.sharding import Mesh

from loadax.core.distributed import this_process
from loadax.loader.assembly.host_shard import HostShard
from loadax.loader.metrics.stats import Stats
from loadax.loader.pipeline import Pipeline
from loadax.loader.state import OrderHash
from loadax.loader.watch.agreement import Agreement
from loadax.loader.watch.contents import Contents, ContentsReader, nothing
from loadax.loader.watch.hosts import RunHosts
from loadax.loader.watch.process_exit import exits
from loadax.loader.watch.record import run_record
from loadax.sharding.key_value import Subdirectory, forget, group_name, key_value_store
from loadax.sharding.mesh import grid_of

_lock = threading.Lock()
_loaders: defaultdict[tuple[int, ...], int] = defaultdict(int)  # number of loaders that have run, by their processes


@final
class LoaderRuns:
    """Names the runs of one loader.

    Loaders are numbered in the order in which they begin to iterate, and so are the runs of each. A program that is the
    same on all hosts finds the same names there. The coordination service belongs to the whole process, and so do the
    numbers of loaders.
    """

    def __init__(self) -> None:
        self._numbers: dict[tuple[int, ...], int] = {}  # of this loader, by the processes of a mesh
        self._runs: defaultdict[tuple[int, ...], int] = defaultdict(int)  # likewise

    def next_directory(self, processes: tuple[int, ...]) -> str:
        """Directory of the keys of the next run on the devices of these processes."""
        with _lock:
            if processes not in self._numbers:
                self._numbers[processes] = _loaders[processes]
                _loaders[processes] += 1
            self._runs[processes] += 1  # other processes may have been on other meshes before
            return f"runs/{group_name(processes)}/{self._numbers[processes]}/{self._runs[processes]}"


def run_hosts(
    runs: LoaderRuns,
    order: OrderHash,
    pipeline: Pipeline,
    mesh: Any,
    shard: HostShard,
    start: int,
    progress: Callable[[], tuple[int, Stats]],
    fail: Callable[[BaseException], None],
) -> RunHosts | None:
    """The exchange with the other hosts of a run; None if there are none.

    Args:
        runs: Names of the loader's runs.
        order: Hash of the loader's order.
        pipeline: Its pipeline.
        mesh: Mesh whose processes take part. A planned one, or none, has no processes.
        shard: This process's shard of the first batch.
        start: First step.
        progress: Function that returns the next step and the statistics.
        fail: Ends the run with an error.
    """
    store = key_value_store()
    if store is None or not isinstance(mesh, Mesh):
        return None
    process = this_process().index
    processes = tuple(np.unique(grid_of(mesh).owners).tolist())
    if len(processes) == 1 or process not in processes:
        return None
    directory = runs.next_directory(processes)
    keys = Subdirectory(store, directory)
    options = pipeline.options
    reading: Contents = nothing  # rows of streams are read once
    if options.streams is None:
        # With one thread or none, the source may be one that can't be read on another thread meanwhile.
        threaded = options.num_workers > 1 or options.worker_type == "process"
        reading = ContentsReader(pipeline.whole.dataset.reader, options.quarantine, threaded)
    agreement = Agreement(keys, process, processes, run_record(pipeline, order, shard, start), reading)
    last = partial(forget, store, directory)
    ended = partial(exits, store)
    return RunHosts(keys, process, processes, agreement, progress, fail, last, ended, options.abort_after)
