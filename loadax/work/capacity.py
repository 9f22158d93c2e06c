"""Capacity: how many workers an executor of pieces has, and what keeps them busy."""

from typing import NamedTuple


class Capacity(NamedTuple):
    """Workers of an executor, and what they need to be busy.

    Args:
        worker_type: Kind of the workers, "thread", "process" or "remote".
        workers: Largest number of workers.
        concurrency: Threads of this process that keep all workers busy; 0: the consumer's thread does all the work.
        first: Threads that keep the initial workers busy.
        piece_seconds: CPU seconds that a piece should take, if pieces are read outside this process, with more
            overhead but without this process's GIL. 0: in this process.
        settling: Seconds until a new worker runs at full speed.
    """

    worker_type: str
    workers: int
    concurrency: int
    first: int
    piece_seconds: float = 0.0
    settling: float = 0.0
