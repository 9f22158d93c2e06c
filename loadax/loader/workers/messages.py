"""Messages between the training process and a worker. An answer may also be `Raised`, or `Missing` of a module."""

from typing import Any, NamedTuple

from loadax.loader.assembly.assembler import FillOptions
from loadax.loader.workers.shared_memory import Block


class LoadJob(NamedTuple):
    """Request to load a job, sent with the descriptors of the shared memory and of the reader's payload.

    Args:
        number: Number of the job.
        others: Numbers of jobs to keep.
        message: Message of the payload, of which no job is left. None: the worker already has the readers.
        arrays: Arrays of the payload.
        which: Index of the reader that reads the rows.
        options: How to fill the buffers of a step.
    """

    number: int
    others: tuple[int, ...]
    message: bytes | None
    arrays: tuple[tuple[int, int], ...]
    which: int
    options: FillOptions


class ReadPiece(NamedTuple):
    """Request to read a piece of a job into its buffers.

    Args:
        job: Number of the job.
        block: Block of shared memory with the buffers.
        steps: Number of steps in the buffers.
        low: First row of the piece in each step.
        rows: Rows of the visits, int64, as bytes.
        epochs: Epochs of the visits, int64, as bytes.
    """

    job: int
    block: Block
    steps: int
    low: int
    rows: bytes
    epochs: bytes


class PieceRead(NamedTuple):
    """Answer: the piece is in its buffers.

    Args:
        timing: Fields of its `Timing`.
        objects: Pickled rows of the tiles of Python objects; empty if there are none.
    """

    timing: tuple[Any, ...]
    objects: bytes
