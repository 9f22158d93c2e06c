"""Worker affinity: which worker a task is for, if its executor takes the names of workers, as Dask's does.

The same rows of all steps go to the same worker. So a block shuffle's lanes are read by the worker that has their
chunks open, and jobs with one payload meet on the worker that keeps the rows.
"""

import hashlib
from collections.abc import Sequence
from concurrent.futures import Executor
from contextlib import suppress
from functools import lru_cache
from typing import Any


def workers_of(executor: Executor | None) -> tuple[str, ...] | None:
    """Addresses of the workers; may wait for a scheduler. None: tasks can't be given to a worker, or have a limit."""
    # Dask has no public way from an executor to its client, and to the limits with which it was made.
    client = getattr(executor, "_client", None)
    options = getattr(executor, "_kwargs", {})
    if (
        not type(executor).__module__.startswith("distributed.")
        or client is None
        or not {*options} <= {"pure"}
    ):
        return None
    with suppress(Exception):  # whatever a lost scheduler raises
        return tuple(client.scheduler_info(n_workers=-1)["workers"])
    return ()


def options_for(worker: str | None) -> dict[str, Any]:
    """Options of `submit` for a task that is for a worker, but that others may take; None: for any."""
    if worker is None:
        return {}
    return {"workers": [worker], "allow_other_workers": True}


@lru_cache(8)
def ordered(workers: tuple[str, ...], payload: str, most: int) -> list[str]:
    """At most so many of the workers, in an order that depends on the payload, not on the job.

    They are ranked as by rendezvous hashing (Thaler and Ravishankar, 1996), so that payloads use different workers.
    """
    return sorted(
        workers,
        key=lambda worker: hashlib.sha256(f"{payload} {worker}".encode()).digest(),
    )[:most]


def worker_of(workers: Sequence[str], low: int, rows: int) -> str | None:
    """The worker for a piece that begins at row `low` of steps of so many rows; None: there are none to choose from.

    Pieces are cut at multiples of `rows / count` without their fraction; it is the same one for all counts that are a
    multiple of the number of workers, and for pieces of one row.
    """
    if workers:
        return workers[((low + 1) * len(workers) - 1) // rows]
    return None
